"""Writing SQL that becomes query groups, checked while it is written; nothing is run and no table
is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from engine import analysis
from engine._format import pluralize
from engine.workload import Schema, Workload
from engine.workload.sql import example, sql_readings, workload_from_sql
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import escape_markdown, show_deferred_error, show_errors
from pages.parts.workload import forecast_form, group_form

MAX_READINGS = 20  # conditions whose reading is shown
MAX_SHOWN = 200  # groups of a text that are listed


@dataclass(frozen=True, kw_only=True)
class SqlRequest:
    """The statements as `engine.workload.sql.workload_from_sql` takes them."""

    text: str

    def workload(self, schema: Schema) -> Workload:
        """The groups that the statements ask for; raises WorkloadError."""
        return workload_from_sql(schema, self.text)

    def readings(self, schema: Schema) -> list[tuple[str, str]]:
        """The conditions as written and as read; raises WorkloadError."""
        return sql_readings(schema, self.text)


def use_example(text: str) -> None:
    """Put the example into the field."""
    st.session_state["sql_text"] = text


def write_sql(schema: Schema) -> None:
    """Draw the text field, what its statements would add, and the button that adds it."""
    offer = example(schema)
    text = st.text_area(
        "SQL, statements separated by ;",
        key="sql_text",
        height=150,
        placeholder=offer,
        help=(
            "SELECT with attributes and COUNT(*), FROM one table of any name, WHERE with"
            " comparisons of attributes with constants, GROUP BY with CUBE, ROLLUP and GROUPING"
            " SETS. It is read, never run."
        ),
    )
    request = SqlRequest(text=text or "")
    if not request.text.strip():
        st.caption("What the SQL asks for is shown here before anything is added.")
        buttons.button("Use an example", use_example, offer, key="sql_example")
        return
    with show_errors():
        _check(schema, request)
    show_deferred_error("group")


def _check(schema: Schema, request: SqlRequest) -> None:
    workload, readings = request.workload(schema), request.readings(schema)
    cells = pluralize(analysis.count_cells(workload), "cell")
    st.markdown(
        f"**This adds {pluralize(len(workload.groups), 'group')} with"
        f" {pluralize(workload.queries, 'query', 'queries')} on {cells}.** First:"
        f" {escape_markdown(workload.describe(0))}. Last:"
        f" {escape_markdown(workload.describe(workload.queries - 1))}."
    )
    if readings:
        lines = [
            f"- {escape_markdown(written)} is read as **{escape_markdown(reading)}**"
            for written, reading in readings[:MAX_READINGS]
        ]
        more = len(readings) - len(lines)
        st.markdown(
            "\n".join([*lines, *([f"- and {pluralize(more, 'condition')} more"] if more else [])])
        )
    weight = group_form.weight_form("sql_weight")
    groups = tuple(replace(group, weight=weight) for group in workload.groups)
    forecast_form.before_adding(groups)
    buttons.button(
        f"Add {pluralize(len(groups), 'group')} from SQL",
        group_form.add_groups,
        groups,
        "sql",
        key="add_sql",
        type="primary",
    )
    shown = range(min(MAX_SHOWN, len(groups)))
    figure_view.table(
        analysis.workload_table(workload, shown),
        name="groups_from_sql",
        alt="Groups that the SQL would add",
        full_table=lambda: analysis.workload_table(workload),
    )
    if len(groups) > MAX_SHOWN:
        st.caption(f"The first {MAX_SHOWN:,} groups are listed.")
    if len(groups) == 1:
        group_form.picture(schema, groups[0], key="sql_picture")
