"""Form for group weights that lower the error of published tables."""

from __future__ import annotations

import streamlit as st

from engine.workload import Workload
from pages.parts.jobs import job_queue, job_widget, publishing
from pages.parts.shell import buttons, history
from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import Script, budget_text, plan_script


def draw() -> None:
    """Draw the expected number of records, the search button and the result."""
    request_state = history.current()
    st.caption(
        "Published tables are non-negative and consistent, which removes most noise of large"
        " tables. Other weights can therefore make them more accurate. They follow from the sizes"
        " of the tables, the budget and the expected number of records, and from your weights, which"
        " say how much the errors of a table matter."
    )
    records = st.number_input(
        "Expected number of records",
        1,
        10**10,
        10_000,
        key="published_records",
        help="A public estimate. Do not count the confidential records.",
    )
    key = f"weigh|{request_state.key}|{records}"
    buttons.button(
        "Find weights",
        _start_search,
        key,
        request_state,
        float(records),
        key="published_find",
        disabled=request_state.options.get("objective", "sum") != "sum",
        type="primary",
    )
    with st.expander("As Python"):
        st.code(_script(request_state, records), language=None, wrap_lines=True)
    finished_job = job_widget.job(key, label="Planning with other weights")
    if finished_job is not None:
        text, errors = finished_job.result
        st.markdown("Standard errors of **unbiased answers**, in counts:")
        columns = ("Attributes", "With the current weights", "With the new weights")
        st.dataframe([dict(zip(columns, row, strict=True)) for row in errors], hide_index=True)
        st.caption(
            "The new weights are for published tables. They make some unbiased answers less"
            " accurate; keep the current weights if readers will add up or model the answers."
        )
        left, _ = st.columns([1, 2])
        buttons.button(
            "Use these weights",
            _use,
            text,
            key="published_use",
            place=left,
            type="primary",
            width="stretch",
        )


def _start_search(key: str, request_state: RequestState, records: float) -> None:
    job_widget.replace_job("published_job", key)
    if not job_queue.is_there(key):
        job_widget.start(key, publishing.weigh, *request_state.plan_arguments, records)


def _use(text: str) -> None:
    history.change(workload=Workload.from_json(text), redraw=True)


def _script(request_state: RequestState, records: int) -> str:
    """Return Python code that computes the weights and then the plan."""
    script = plan_script(request_state)
    *first_lines, plan_line = script.lines
    weights_line = (
        f"workload = publication_weights(workload, {budget_text(request_state.budget)},"
        f" expected_records={records})"
    )
    imports = script.imports | {("engine", "publication_weights")}
    return Script(imports=imports, lines=(*first_lines, weights_line, plan_line)).text()
