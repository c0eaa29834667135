"""Upload of a workload file or a plan file, which replaces the present request."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from engine.mechanisms import load_plan
from engine.workload import Workload
from pages.parts.shell import history
from pages.parts.shell.error_text import deferred_errors, show_deferred_error

MAX_UPLOAD_MB = 100


def workload_upload() -> None:
    """Draw the upload of a workload file, which contains its schema."""
    _upload("Workload file (includes its schema)", "workload_file", _use_workload)


def plan_upload() -> None:
    """Draw the upload of a plan file, which contains workload, budget and mechanism."""
    _upload("Open a plan file", "plan_file", _use_plan)


def _upload(label: str, key: str, use: Callable[[bytes], None]) -> None:
    """Draw an upload of a JSON file; ``use`` gets its content, and its errors are shown below."""

    def take() -> None:
        file = st.session_state.get(key)
        if file is not None:
            with deferred_errors(key):
                use(file.getvalue())

    st.file_uploader(label, type=["json"], key=key, on_change=take, max_upload_size=MAX_UPLOAD_MB)
    show_deferred_error(key)


def _use_workload(content: bytes) -> None:
    history.change(workload=Workload.from_json(content), redraw=True)


def _use_plan(content: bytes) -> None:
    plan = load_plan(content)
    options = dict(plan.options) | {"max_records": plan.max_records}
    request_state = history.RequestState(
        workload=plan.workload, budget=plan.budget, mechanism=plan.mechanism
    )
    history.commit(request_state.with_options(options), redraw=True)
