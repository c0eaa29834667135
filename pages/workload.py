"""Workload page: the counts to publish, their weights and their errors."""

import streamlit as st

from engine import _format as texts
from pages.parts.schema import grid
from pages.parts.shell import figure_view, page_layout, python_script
from pages.parts.workload import (
    accuracy_panel,
    group_form,
    group_table,
    range_form,
    sql_form,
)

page_layout.require()

TUTORIAL = (
    "A **workload** is a list of **tables**: sets of attributes, each with a **query type**,"
    " such as every cell (*marginal*), all values up to a limit (*prefix*) or between two limits"
    " (*range*). The noise is optimized for these queries, so list only what you will publish. A"
    " larger **weight** makes a table more accurate at the expense of the others."
)
FORMS = {
    "All combinations": group_form.all_ways,
    "One table": group_form.one_set,
    "Pick a range": range_form.drag_range,
    "Write SQL": sql_form.write_sql,
}


def require_schema() -> None:
    """Draw buttons to the pages on which a schema can be chosen, and end the page."""
    st.info("No schema yet. Describe your columns on Schema, or open a file on Start.", icon="📋")
    with st.container(horizontal=True):
        for title in ("Schema", "Start"):
            if st.button(f"← Back to {title}", key="back" if title == "Schema" else "back_start"):
                st.switch_page(page_layout.page(title).file)
    st.stop()


request_state = page_layout.header(
    page_layout.page("Workload"),
    "Choose the queries. The panel shows how accurate their answers will be.",
    TUTORIAL,
)
if request_state.workload is None:
    require_schema()
workload = request_state.required_workload
grid.note_incomplete(workload.schema)
left, right = st.columns([7, 4], gap="medium")
with left:
    proposed = figure_view.tabs(FORMS, key="add_how", arguments=(workload.schema,))
with right:
    plan = accuracy_panel.draw(proposed or ())
with left:
    st.subheader("Tables of the workload", anchor=False)
    st.caption(
        f"{texts.pluralize(len(workload.groups), 'table')},"
        f" {texts.pluralize(workload.queries, 'query', 'queries')}"
        if workload.groups
        else "No table yet. Add combinations, one table, a range or SQL above."
    )
    if workload.groups:
        matches = group_table.groups(workload, plan)
        with st.container(horizontal=True):
            group_table.change_all(matches)
page_layout.footer(
    code=python_script.workload_script(request_state).text(),
    target=page_layout.page("Preview"),
    reason="" if workload.groups else "Add at least one table to continue.",
)
