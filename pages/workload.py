"""Workload page: which counting queries the release has to answer, and how much each of them
matters.
"""

import streamlit as st

from engine import _format as texts
from engine import analysis
from engine.workload import Workload
from pages.parts.shell import figure_view, history, page_layout, python_script
from pages.parts.shell.error_text import deferred_errors, show_deferred_error
from pages.parts.workload import group_form, group_table, range_form, sql_form

page_layout.require()

TUTORIAL = (
    "A **workload** is the list of counts that people will ask for. It is made of **groups**: a set"
    " of attributes and a **family** of queries on them, such as every cell (*marginal*),"
    " everything at or below a value (*prefix*), or everything between two values (*range*). Noise"
    " is shared out so that these queries come out as exact as the budget allows, so list what you"
    " will publish and nothing else. A larger **weight** makes a group more exact at the cost of"
    " the others."
)
FORMS = {
    "All k-way sets": group_form.all_ways,
    "One set of attributes": group_form.one_set,
    "Drag a range": range_form.drag_range,
    "Write SQL": sql_form.write_sql,
}


def use_file() -> None:
    """Take the workload, with its schema, from the uploaded file."""
    file = st.session_state.get("workload_file")
    if file is not None:
        with deferred_errors("file"):
            history.change(workload=Workload.from_json(file.getvalue()), redraw=True)


def clear() -> None:
    """Remove every group."""
    history.change(workload=Workload(history.current().required_workload.schema), redraw=True)


def sizes(workload: Workload) -> None:
    """Live counts."""
    cells = analysis.count_cells(workload)
    figure_view.numbers(
        ("Groups", f"{len(workload.groups):,}", "Sets of attributes with a family of queries"),
        ("Queries", texts.number(workload.queries), "Numbers that will be published"),
        (
            "Cells to count",
            texts.number(cells),
            "Cells of the tables that the records are counted in",
        ),
    )


def files(workload: Workload) -> None:
    """Import, export and clear."""
    left, right = st.columns(2)
    with left:
        st.file_uploader(
            "Open a workload file (it brings its schema along)",
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
        st.button("Remove all groups", disabled=not workload.groups, on_click=clear, key="clear")


studio = page_layout.header(
    page_layout.page("Workload"),
    "Say which counts will be published, before anyone looks at the records.",
    TUTORIAL,
)
if studio.workload is None:
    st.info(
        "There is no schema yet. Choose one on the Schema page, or open a workload file, which"
        " brings one.",
        icon="📋",
    )
    if st.button("← Back to Schema", key="back"):
        st.switch_page(page_layout.page("Schema").file)
    st.file_uploader(
        "Open a workload file",
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
st.header("Groups of the workload")
if studio.workload.groups:
    group_table.groups(studio.workload)
else:
    st.info(
        "No group yet. Add all k-way sets, one set of attributes, a range, or SQL above.", icon="🧮"
    )
st.header("Keep it")
files(studio.workload)
page_layout.footer(
    code=python_script.workload_script(studio).text(),
    target=page_layout.page("Preview"),
    reason="" if studio.workload.groups else "add at least one group of queries first.",
)
