"""Weights of groups that make published tables most exact, from simulated or public records."""

from __future__ import annotations

import streamlit as st

from engine.plans import Plan
from engine.workload import Workload
from pages.parts.jobs import job_queue, job_widget, publishing
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import escape_markdown
from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import Script, plan_script
from pages.parts.workload import reference_form
from pages.parts.workload.reference_form import Reference


def draw(plan: Plan) -> None:
    """The reference, the button that searches, and what came of it."""
    studio = history.current()
    st.caption(
        "Tables that are published are fitted: non-negative, consistent, and most noise of large"
        " tables is gone. Other weights of the groups serve them better. They are found by"
        " rehearsals on a reference, which must be public: the records of another year or place, or"
        " simulated ones; **never the records that are to be protected**. Weights that groups have"
        " say how much each of them matters."
    )
    reference = reference_form.choose("aim")
    key = f"weigh|{studio.key}|{reference_form.digest(reference)}"
    buttons.button(
        "Find the weights",
        _find,
        key,
        studio,
        reference,
        key="aim_find",
        disabled=reference is None or studio.options.get("objective", "sum") != "sum",
        type="primary",
    )
    with st.expander("As Python"):
        st.code(_script(studio, reference), language=None, wrap_lines=True)
    done = job_widget.job(key, label="Rehearsing what would be published")
    if done is not None:
        text, before, after = done.result
        if Workload.from_json(text) == studio.workload:
            st.info("No other weights were better on the reference in every rehearsal.", icon="🎯")
            return
        st.markdown(
            escape_markdown(
                f"On the reference the published tables miss {after:.1%} of the counts, instead of"
                f" {before:.1%} with the present weights."
            )
        )
        left, _ = st.columns([1, 2])
        buttons.button(
            "Use these weights",
            _use,
            text,
            key="aim_use",
            place=left,
            type="primary",
            width="stretch",
        )


def _find(key: str, studio: RequestState, reference: Reference) -> None:
    if (old := st.session_state.get("aim_job", key)) != key:
        job_widget.release_job(old)
    st.session_state["aim_job"] = key
    if not job_queue.is_there(key):
        request = (
            studio.required_workload.to_json(),
            studio.budget.to_dict(),
            studio.mechanism,
            dict(studio.options_without_defaults),
        )
        job_widget.start(key, publishing.weigh, *request, reference)


def _use(text: str) -> None:
    history.change(workload=Workload.from_json(text), redraw=True)


def _script(studio: RequestState, reference: Reference | None) -> str:
    """The same in Python."""
    imports, lines = reference_form.lines(reference)
    script = plan_script(studio)
    *first, last = script.lines
    aimed = f'{last[:-1]}, aim="published", reference=reference)'
    return Script(imports=script.imports | imports, lines=(*first, *lines, aimed)).text()
