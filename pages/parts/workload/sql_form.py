"""Form that translates SQL into query groups; the SQL is parsed, never run."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from engine import analysis
from engine._format import pluralize
from engine.workload import Group, Schema, Workload
from engine.workload.sql import example, sql_readings, workload_from_sql
from pages.parts.shell import buttons, figure_view
from pages.parts.shell.error_text import escape_markdown, show_errors
from pages.parts.workload import group_form

MAX_READINGS = 20  # conditions listed
MAX_SHOWN = 200  # groups listed


@dataclass(frozen=True, kw_only=True)
class SqlRequest:
    """SQL statements for `engine.workload.sql.workload_from_sql`."""

    text: str

    def workload(self, schema: Schema) -> Workload:
        """Return the groups of the statements; raises WorkloadError."""
        return workload_from_sql(schema, self.text)

    def readings(self, schema: Schema) -> list[tuple[str, str]]:
        """Return pairs of a condition as it is written and as it is parsed; raises
        WorkloadError."""
        return sql_readings(schema, self.text)


def use_example(text: str) -> None:
    """Fill the SQL field with an example."""
    st.session_state["sql_text"] = text


def write_sql(schema: Schema) -> tuple[Group, ...]:
    """Draw the SQL field, the groups that it describes, and the button that adds them.

    Return those groups that the workload does not have.
    """
    offer = example(schema)
    text = st.text_area(
        "SQL (statements separated by ;)",
        key="sql_text",
        height=150,
        placeholder=offer,
        help=(
            "SELECT attributes and COUNT(*) FROM any name; WHERE compares attributes with"
            " constants; GROUP BY allows CUBE, ROLLUP and GROUPING SETS. The SQL is never run."
        ),
    )
    request = SqlRequest(text=text or "")
    if not request.text.strip():
        buttons.button("Insert an example", use_example, offer, key="sql_example")
        return ()
    with show_errors():
        return _check(schema, request)
    return ()


def _check(schema: Schema, request: SqlRequest) -> tuple[Group, ...]:
    """Draw the interpretation of the SQL, a button that adds its groups, and a table of the groups.

    Return the groups of the SQL that the user's workload does not have.
    """
    workload = request.workload(schema)
    readings = request.readings(schema)
    cells = pluralize(analysis.count_cells(workload), "cell")
    st.markdown(
        f"**The SQL describes {pluralize(len(workload.groups), 'table')} with"
        f" {pluralize(workload.queries, 'query', 'queries')} on {cells}.** First:"
        f" {escape_markdown(workload.describe(0))}. Last:"
        f" {escape_markdown(workload.describe(workload.queries - 1))}."
    )
    if readings:
        lines = [
            f"- {escape_markdown(condition)} is read as **{escape_markdown(reading)}**"
            for condition, reading in readings[:MAX_READINGS]
        ]
        more = len(readings) - len(lines)
        st.markdown(
            "\n".join([*lines, *([f"- and {pluralize(more, 'condition')} more"] if more else [])])
        )
    groups = workload.groups
    new = group_form.add_button(
        groups, lambda added: f"Add {pluralize(len(added), 'table')} from SQL", key="add_sql"
    )
    shown = range(min(MAX_SHOWN, len(groups)))
    figure_view.table(
        analysis.workload_table(workload, shown),
        name="groups_from_sql",
        alt="Tables that the SQL would add",
        full_table=lambda: analysis.workload_table(workload),
    )
    if len(groups) > MAX_SHOWN:
        st.caption(f"The first {MAX_SHOWN:,} tables are listed.")
    return new
