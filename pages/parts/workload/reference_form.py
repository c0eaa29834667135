"""Form for the records of a rehearsal: public or simulated."""

from __future__ import annotations

from hashlib import sha256

import streamlit as st

SIMULATED, PUBLIC = "simulated records", "public records (CSV)"
Reference = bytes | tuple[int, int]


def choose(key: str) -> Reference | None:
    """Draw the choice; return a file, or number and seed of simulated records."""
    how = st.radio("Reference", [SIMULATED, PUBLIC], horizontal=True, key=f"{key}_reference")
    if how == PUBLIC:
        file = st.file_uploader(
            "Public records (coded as in the schema)", type=["csv"], key=f"{key}_file"
        )
        return None if file is None else file.getvalue()
    left, right, _ = st.columns([1, 1, 2])
    rows = int(left.number_input("Records", 100, 2_000_000, 5_000, key=f"{key}_rows"))
    return rows, int(right.number_input("Seed", 0, 2**31 - 1, 1, key=f"{key}_seed"))


def digest(reference: Reference | None) -> str:
    """Return a digest of a reference."""
    return sha256(reference).hexdigest() if isinstance(reference, bytes) else str(reference)


def lines(reference: Reference | None) -> tuple[set[tuple[str, str]], tuple[str, ...]]:
    """Return imports and lines of Python that create the reference."""
    if not isinstance(reference, tuple):
        return set(), ('reference = "public.csv"',)
    code = f"reference = synthetic(schema, {reference[0]}, {reference[1]})"
    return {("demo_data.make_synthetic", "synthetic")}, (code,)
