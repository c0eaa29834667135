"""Weights of groups that make published tables most exact, from simulated or public records."""

from __future__ import annotations

from hashlib import sha256

import streamlit as st

from engine import Plan, Workload
from pages.parts.jobs import publishing, watch, work
from pages.parts.shell import state
from pages.parts.shell.code import Script, plan_script
from pages.parts.shell.state import Studio
from pages.parts.shell.words import plain

SIMULATED, PUBLIC = "simulated records", "public records (CSV)"
Reference = bytes | tuple[int, int]


def draw(plan: Plan) -> None:
    """The reference, the button that searches, and what came of it."""
    studio = state.current()
    st.caption(
        "Tables that are published are fitted: non-negative, consistent, and most noise of large tables is gone. Other "
        "weights of the groups serve them better. They are found by rehearsals on a reference, which must be public: "
        "the records of another year or place, or simulated ones; **never the records that are to be protected**. "
        "Weights that groups have say how much each of them matters."
    )
    reference = _reference()
    key = f"weigh|{studio.key}|{_digest(reference)}"
    st.button(
        "Find the weights",
        on_click=_find,
        args=(key, studio, reference),
        disabled=reference is None or studio.options.get("objective", "sum") != "sum",
        key="aim_find",
        type="primary",
    )
    with st.expander("As Python"):
        st.code(_script(studio, reference), language="python")
    done = watch.job(key, label="Rehearsing what would be published")
    if done is not None:
        text, before, after = done.result
        if Workload.from_json(text) == studio.workload:
            st.info("No other weights were better on the reference in every rehearsal.", icon="🎯")
            return
        st.markdown(
            plain(
                f"On the reference the published tables miss {after:.1%} of the counts, instead of {before:.1%} with "
                "the present weights."
            )
        )
        left, _ = st.columns([1, 2])
        left.button("Use these weights", on_click=_use, args=(text,), key="aim_use", type="primary", width="stretch")


def _reference() -> Reference | None:
    how = st.radio("Reference", [SIMULATED, PUBLIC], horizontal=True, key="aim_reference")
    if how == PUBLIC:
        file = st.file_uploader("Public records, coded as the schema says", type=["csv"], key="aim_file")
        return None if file is None else file.getvalue()
    left, right, _ = st.columns([1, 1, 2])
    rows = int(left.number_input("Records", 100, 2_000_000, 5_000, key="aim_rows"))
    return rows, int(right.number_input("Seed", 0, 2**31 - 1, 1, key="aim_seed"))


def _digest(reference: Reference | None) -> str:
    return sha256(reference).hexdigest() if isinstance(reference, bytes) else str(reference)


def _find(key: str, studio: Studio, reference: Reference) -> None:
    if (old := st.session_state.get("aim_job", key)) != key:
        watch.let_go(old)
    st.session_state["aim_job"] = key
    if not work.is_there(key):
        request = studio.asked.to_json(), studio.budget.to_dict(), studio.mechanism, dict(studio.taken)
        watch.start(key, publishing.weigh, *request, reference)


def _use(text: str) -> None:
    state.change(workload=Workload.from_json(text), redraw=True)


def _script(studio: Studio, reference: Reference | None) -> str:
    """The same in Python."""
    lines: tuple[str, ...] = ('reference = "public.csv"',)
    imports = set()
    if isinstance(reference, tuple):
        imports = {("demo_data.make_synthetic", "synthetic")}
        lines = (f"reference = synthetic(schema, {reference[0]}, {reference[1]})",)
    made = plan_script(studio)
    *first, last = made.lines
    aimed = f'{last[:-1]}, aim="published", reference=reference)'
    return Script(imports=made.imports | imports, lines=(*first, *lines, aimed)).text()
