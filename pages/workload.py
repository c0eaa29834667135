"""Workload page: counting queries to publish, and their weights."""

import streamlit as st

from engine import _format as texts
from engine import analysis
from engine.workload import Workload
from pages.parts.shell import figure_view, history, page_layout, python_script
from pages.parts.shell.error_text import deferred_errors, show_deferred_error
from pages.parts.workload import group_form, group_table, range_form, sql_form

page_layout.require()

TUTORIAL = (
    "A **workload** is a list of **tables**: sets of attributes, each with a **type of counts**,"
    " such as every cell (*marginal*), all values up to a limit (*prefix*) or between two limits"
    " (*range*). The noise is optimized for these counts, so list only what you will publish. A"
    " larger **weight** makes a table more accurate at the expense of the others."
)
FORMS = {
    "All combinations": group_form.all_ways,
    "One table": group_form.one_set,
    "Pick a range": range_form.drag_range,
    "Write SQL": sql_form.write_sql,
}


def use_file() -> None:
    """Open the uploaded workload with its schema."""
    file = st.session_state.get("workload_file")
    if file is not None:
        with deferred_errors("file"):
            history.change(workload=Workload.from_json(file.getvalue()), redraw=True)


def clear() -> None:
    """Remove all tables."""
    history.change(workload=Workload(history.current().required_workload.schema), redraw=True)


def sizes(workload: Workload) -> None:
    """Draw the numbers of tables, queries and cells."""
    cells = analysis.count_cells(workload)
    figure_view.numbers(
        ("Tables", f"{len(workload.groups):,}", "Sets of attributes with their queries"),
        ("Queries", texts.number(workload.queries), "Counts to publish"),
        (
            "Table cells counted",
            texts.number(cells),
            "Cells of the tables counted from the records",
        ),
    )


def files(workload: Workload) -> None:
    """Draw the upload, download and removal of the workload."""
    left, right = st.columns(2)
    with left:
        st.file_uploader(
            "Workload file (includes its schema)",
            type=["json"],
            key="workload_file",
            on_change=use_file,
            max_upload_size=50,
        )
        show_deferred_error("file")
    with right:
        st.download_button(
            "Download workload.json",
            workload.to_json,
            "workload.json",
            "application/json",
            on_click="ignore",
        )
        st.button("Remove all tables", disabled=not workload.groups, on_click=clear, key="clear")


studio = page_layout.header(
    page_layout.page("Workload"),
    "Choose the counts to publish.",
    TUTORIAL,
)
if studio.workload is None:
    st.info(
        "No schema yet. Choose one on the Schema page, or open a workload file.",
        icon="📋",
    )
    if st.button("← Back to Schema", key="back"):
        st.switch_page(page_layout.page("Schema").file)
    st.file_uploader(
        "Workload file (includes its schema)",
        type=["json"],
        key="workload_file",
        on_change=use_file,
        max_upload_size=50,
    )
    show_deferred_error("file")
    st.stop()
sizes(studio.workload)
st.header("Add queries")
figure_view.tabs(FORMS, key="add_how", arguments=(studio.workload.schema,))
group_form.show_added()
st.header("Tables of the workload")
if studio.workload.groups:
    group_table.groups(studio.workload)
else:
    st.info("No table yet. Add combinations, one table, a range or SQL above.", icon="🧮")
st.header("Save or load")
files(studio.workload)
page_layout.footer(
    code=python_script.workload_script(studio).text(),
    target=page_layout.page("Preview"),
    reason="" if studio.workload.groups else "Add at least one table to continue.",
)
