"""Search for weights that minimise the error of published tables."""

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
    """Draw the reference, the search button and the result."""
    studio = history.current()
    st.caption(
        "Published tables are non-negative and consistent, which removes noise; other weights can"
        " make them more accurate. The search rehearses on public or simulated records, **never on"
        " the records to be protected**. Current weights count as importance."
    )
    reference = reference_form.choose("aim")
    key = f"weigh|{studio.key}|{reference_form.digest(reference)}"
    buttons.button(
        "Find weights",
        _start_search,
        key,
        studio,
        reference,
        key="aim_find",
        disabled=reference is None or studio.options.get("objective", "sum") != "sum",
        type="primary",
    )
    with st.expander("As Python"):
        st.code(_script(studio, reference), language=None, wrap_lines=True)
    done = job_widget.job(key, label="Rehearsing the publication")
    if done is not None:
        text, before, after = done.result
        if Workload.from_json(text) == studio.workload:
            st.info("No better weights found.", icon="🎯")
            return
        st.markdown(
            escape_markdown(
                f"Error of the published tables on the reference: {after:.1%} of the counts"
                f" ({before:.1%} with the current weights)."
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


def _start_search(key: str, studio: RequestState, reference: Reference) -> None:
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
    """Return the search as Python."""
    imports, lines = reference_form.lines(reference)
    script = plan_script(studio)
    *first_lines, last = script.lines
    plan_line = f'{last[:-1]}, aim="published", reference=reference)'
    return Script(imports=script.imports | imports, lines=(*first_lines, *lines, plan_line)).text()
