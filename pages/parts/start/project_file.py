"""Files that are opened and saved on the page Start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

import demo_data
from engine._untrusted import parse_json
from engine.analysis import remove_targets
from engine.mechanisms import load_plan
from engine.workload import Schema, Workload
from pages.parts.jobs import plan_cache
from pages.parts.schema import draft_form, grid
from pages.parts.shell import history, session_restore
from pages.parts.shell.error_text import deferred_errors, show_deferred_error
from pages.parts.shell.request_state import RequestState

KEY, PLACE = "open_file", "open"  # key of the uploader, and of its error message
TARGET = "open_target"  # key of the page state: title of the page that shows the opened file
MAX_UPLOAD_MB = 200


def read_project(content: bytes, present: RequestState) -> RequestState | None:
    """Return the request in a project, workload or plan file; None for any other content.

    A workload file replaces only the workload of the present request.
    """
    if content.lstrip()[:1] != b"{":
        return None
    try:
        document: dict[str, Any] = parse_json(content, constants=True)
    except ValueError:
        return None
    kind = str(document.get("format", ""))
    if kind.startswith("workload/"):
        return replace(present, workload=Workload.from_json(content))
    if kind.startswith("plan/"):
        plan = load_plan(content)
        options = dict(plan.options) | {"max_records": plan.max_records}
        return RequestState(
            workload=plan.workload, budget=plan.budget, mechanism=plan.mechanism
        ).with_options(options)
    is_project = {"budget", "question"} <= document.keys()
    return RequestState.from_json(content) if is_project else None


@st.cache_resource(show_spinner=False)
def _demo_schemas() -> list[Schema]:
    return [Schema.from_json(path.read_bytes()) for path in demo_data.schemas().values()]


def is_demo(schema: Schema | None) -> bool:
    """Return whether a schema is the schema of a demo."""
    return schema is not None and schema in _demo_schemas()


def clear_demo() -> None:
    """Remove the schema of the session, with its workload, if it is the schema of a demo.

    The user can restore them by undo.
    """
    if not is_demo(history.current().schema):
        return
    grid.clear()
    session_restore.clear_project()
    options = remove_targets(history.current().options)
    history.change(workload=None, options=options, redraw=True)
    history.note_dropped_groups(())


def _separate_from_demo() -> None:
    """After records were opened, remove a demo; the grid then has only the columns of the records."""
    if names := history.page_state().get(draft_form.RECORDS):
        clear_demo()
        grid.set_names(names)


def _use_file() -> None:
    """Open the uploaded file, and store the title of the page that shows its content."""
    file, schema = st.session_state.get(KEY), history.current().schema
    if file is None or not file.name.lower().endswith(".json"):
        draft_form.use_upload(KEY, PLACE)
        _separate_from_demo()
    else:
        with deferred_errors(PLACE):
            _use_json(file.name, file.getvalue())
    if history.current().schema != schema:
        session_restore.clear_project()


def _use_json(name: str, content: bytes) -> None:
    """Open the content of a JSON file: a project, workload or plan, a schema, or records."""
    request = read_project(content, history.current())
    if request is None:
        draft_form.take(KEY, name, content)
        _separate_from_demo()
        return
    grid.clear()
    history.commit(request, redraw=True)
    has_tables = request.workload is not None and bool(request.workload.groups)
    history.page_state()[TARGET] = "Preview" if has_tables else "Workload"


def draw() -> str:
    """Draw the uploader for files of this app, data dictionaries and records.

    Of records, only the column names are read.

    Returns
    -------
    The title of the page that shows the file which was just opened, or an empty text if no file
    was opened.
    """
    st.file_uploader(
        "Open project, schema or records (names only)",
        key=KEY,
        on_change=_use_file,
        max_upload_size=MAX_UPLOAD_MB,
        help=(
            "Also a plan or workload that you saved, or a data dictionary. Of records, only the"
            " column names are read."
        ),
    )
    draft_form.sheet_choice(PLACE, _separate_from_demo)
    show_deferred_error(PLACE)
    state = history.page_state()
    if state.pop(draft_form.TAKEN, False):
        history.carry(draft_form.KEYS)
        return "Schema"
    target: str = state.pop(TARGET, "")
    return target


def save(request: RequestState) -> None:
    """Draw buttons that download a request as project, schema, workload and plan.

    The button for the plan is disabled until the plan has been computed.
    """
    workload = request.required_workload
    plan = plan_cache.cached_plan(request.key)
    for label, name, mime, content in (
        ("Project (JSON)", "project.json", "application/json", request.to_json),
        ("Schema (JSON)", "schema.json", "application/json", workload.schema.to_json),
        ("Schema (CSV)", "schema.csv", "text/csv", workload.schema.to_csv),
        ("Workload (JSON)", "workload.json", "application/json", workload.to_json),
        ("Plan (JSON)", "plan.json", "application/json", plan.to_json if plan else None),
    ):
        st.download_button(
            label,
            content or "",
            name,
            mime,
            key=f"save_{name}",
            on_click="ignore",
            disabled=content is None,
            help=None if content is not None else "Open Preview first: it computes the plan.",
            width="stretch",
        )
