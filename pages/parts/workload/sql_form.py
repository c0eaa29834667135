"""Writing SQL that becomes query groups, checked while it is written; nothing is run and no table is read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from engine import Schema, Workload, insight
from engine.texts import how_many
from engine.workload import example, whole_edges, workload_from_sql
from pages.parts.shell import clicks, show
from pages.parts.shell.words import plain, show_kept, shown_here
from pages.parts.workload import forecast_form, group_form

MAX_SHOWN = 200  # groups of a text that are listed


@dataclass(frozen=True, kw_only=True)
class SqlRequest:
    """The statements as `engine.workload.workload_from_sql` takes them."""

    text: str
    whole_numbers: tuple[str, ...]

    def made(self, schema: Schema) -> Workload:
        """The groups that the statements ask for; raises WorkloadError."""
        return workload_from_sql(schema, self.text, whole_numbers=self.whole_numbers)


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
        help="SELECT with attributes and COUNT(*), FROM one table of any name, WHERE with comparisons of attributes "
        "with constants, GROUP BY with CUBE, ROLLUP and GROUPING SETS. It is read, never run.",
    )
    request = SqlRequest(text=text or "", whole_numbers=_whole(schema))
    if not request.text.strip():
        st.caption("What the SQL asks for is shown here before anything is added.")
        clicks.button("Use an example", use_example, offer, key="sql_example")
        return
    with shown_here():
        _check(schema, request.made(schema))
    show_kept("group")


def _whole(schema: Schema) -> tuple[str, ...]:
    names = [a.name for a in schema.attributes if a.edges is not None]
    if not names:
        return ()
    chosen = st.multiselect(
        "Attributes whose records hold whole numbers only",
        names,
        default=whole_edges(schema),
        key="sql_whole",
        help="Of such an attribute age <= 39 means age < 40. Of any other it would cut a bin from 39 to 40 in two.",
    )
    return tuple(chosen)


def _check(schema: Schema, made: Workload) -> None:
    cells = how_many(insight.counted_cells(made), "cell")
    st.markdown(
        f"**This adds {how_many(len(made.groups), 'group')} with {how_many(made.queries, 'query', 'queries')} on "
        f"{cells}.** "
        f"First: {plain(made.describe(0))}. Last: {plain(made.describe(made.queries - 1))}."
    )
    weight = group_form.weight_form("sql_weight")
    groups = tuple(replace(group, weight=weight) for group in made.groups)
    forecast_form.before_adding(groups)
    clicks.button(
        f"Add {how_many(len(groups), 'group')} from SQL", group_form.add_groups, groups, key="add_sql", type="primary"
    )
    shown = range(min(MAX_SHOWN, len(groups)))
    show.table(
        insight.workload_table(made, shown),
        name="groups_from_sql",
        alt="Groups that the SQL would add",
        whole=lambda: insight.workload_table(made),
    )
    if len(groups) > MAX_SHOWN:
        st.caption(f"The first {MAX_SHOWN:,} groups are listed.")
    if len(groups) == 1:
        group_form.picture(schema, groups[0], key="sql_picture")
