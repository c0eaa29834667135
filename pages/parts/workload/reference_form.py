"""A reference for rehearsals of what will be published: public records, or simulated ones."""

from __future__ import annotations

from hashlib import sha256

import streamlit as st

SIMULATED, PUBLIC = "simulated records", "public records (CSV)"
Reference = bytes | tuple[int, int]


def choose(key: str) -> Reference | None:
    """Draw the choice; return the bytes of a file, or how many records to simulate and the seed."""
    how = st.radio("Reference", [SIMULATED, PUBLIC], horizontal=True, key=f"{key}_reference")
    if how == PUBLIC:
        file = st.file_uploader(
            "Public records, coded as the schema says", type=["csv"], key=f"{key}_file"
        )
        return None if file is None else file.getvalue()
    left, right, _ = st.columns([1, 1, 2])
    rows = int(left.number_input("Records", 100, 2_000_000, 5_000, key=f"{key}_rows"))
    return rows, int(right.number_input("Seed", 0, 2**31 - 1, 1, key=f"{key}_seed"))


def digest(reference: Reference | None) -> str:
    """A name for a reference, the same for the same one."""
    return sha256(reference).hexdigest() if isinstance(reference, bytes) else str(reference)


def lines(reference: Reference | None) -> tuple[set[tuple[str, str]], tuple[str, ...]]:
    """The same as Python: what is imported, and the lines that make it."""
    if not isinstance(reference, tuple):
        return set(), ('reference = "public.csv"',)
    code = f"reference = synthetic(schema, {reference[0]}, {reference[1]})"
    return {("demo_data.make_synthetic", "synthetic")}, (code,)
