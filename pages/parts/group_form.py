"""Forms that add query groups: all k-way sets at once, or one set of attributes with its family."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import streamlit as st

from engine import Schema, Workload, charts, figures
from engine.workload import Group
from pages.parts import family_form, show, state
from pages.parts.words import count, kept_for, plain, show_kept, shown_here

MAX_DRAWN = 100_000  # cells of a family that is drawn
SAME, EACH, JOINT = "The same on each", "One per attribute", "Joint"


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """One group to add, as `Workload.add` takes it."""

    attributes: tuple[str, ...]
    family: Any
    weight: float


def add_groups(groups: tuple[Group, ...]) -> None:
    """Add groups that were made for the present schema."""
    workload = state.current().workload
    with kept_for("group"):
        state.change(workload=Workload(workload.schema, (*workload.groups, *groups)), redraw=True)


def all_ways(schema: Schema) -> None:
    """All sets of k attributes, with one family per kind or per attribute."""
    choices = [k for k in (1, 2, 3) if k <= len(schema)]
    ways = st.multiselect("Sets of how many attributes", choices, default=choices[:2], key="ways", format_func=_way)
    special = st.multiselect(
        "Attributes with a family of their own",
        schema.names,
        key="special",
        help="All others: every single cell of a categorical attribute, every prefix (at or below) of a numeric one.",
    )
    with shown_here():
        families = {name: _own_family(schema, name) for name in special}
        made = Workload.all_ways(schema, sorted(ways), families or "auto")
        text = f"{count(len(made.groups), 'group')} with {count(made.queries, 'query', 'queries')}"
        label = f"Add all {', '.join(_way(k) for k in sorted(ways))} sets: {text}" if ways else "Add"
        st.button(
            label, type="primary", disabled=not made.groups, on_click=add_groups, args=(made.groups,), key="add_ways"
        )
        if not made.groups:
            st.caption("Choose at least one number of attributes.")


def one_set(schema: Schema) -> None:
    """One set of attributes: its family, its weight, what it asks, and a picture."""
    left, right = st.columns([2, 3], gap="large")
    with left:
        names = st.multiselect("Attributes of the group", schema.names, key="group_names")
        if not names:
            st.caption("Choose attributes for tables and ranges, or add the one query that needs none.")
            total = Workload(schema).add((), "total").groups
            st.button("Add the number of all records", on_click=add_groups, args=(total,), key="add_total")
            return
        with shown_here():
            request = GroupRequest(attributes=tuple(names), family=_family(schema, names), weight=_weight())
            made = Workload(schema).add(request.attributes, request.family, request.weight)
            (group,) = made.groups
            st.caption(
                f"{count(group.count, 'query', 'queries')} on {count(schema.cells(names), 'cell')}. "
                f"First: {plain(made.describe(0))}. Last: {plain(made.describe(group.count - 1))}."
            )
            st.button("Add this group", type="primary", on_click=add_groups, args=(made.groups,), key="add_group")
            with right:
                _picture(schema, group)
    show_kept("group")


def _way(k: int) -> str:
    return f"{k}-way"


def _own_family(schema: Schema, name: str) -> Any:
    names = family_form.SINGLE
    start = names.index(family_form.default_name(schema[name].kind))
    key = f"own_{name}"
    if key not in st.session_state:
        st.session_state[key] = names[start]
    return family_form.choose(f"Family of {name}", names, key)


def _family(schema: Schema, names: list[str]) -> Any:
    ways = [SAME, JOINT] if len(names) == 1 else [SAME, EACH, JOINT]
    how = st.radio("Queries on these attributes", ways, horizontal=True, key="group_how")
    if how == EACH:
        return {name: _own_family(schema, name) for name in names}
    if how == JOINT:
        return family_form.choose("Family of the whole set", family_form.JOINT, "joint")
    return family_form.choose("Family on each attribute", family_form.SINGLE, "same")


def _weight() -> float:
    return st.number_input(
        "Weight of each query",
        min_value=0.0,
        value=1.0,
        step=0.5,
        key="group_weight",
        help="How much its squared error counts when noise is shared out; 0 asks for what comes out anyway.",
    )


def _picture(schema: Schema, group: Group) -> None:
    part = 0
    if len(group.parts) > 1:
        part = st.selectbox(
            "Picture of the queries on",
            range(len(group.parts)),
            format_func=lambda p: group.attributes[group.parts[p].axes[0]],
            key="picture_part",
        )
    query = 0
    shown = group.parts[part]
    if len(shown.axes) == 2 and shown.count > 1:
        query = st.slider("Query to draw", 0, shown.count - 1, shown.count // 2, key=f"picture_query_{shown.count}")
    if prod(shown.sizes) > MAX_DRAWN:
        st.info(f"The family has {charts.number(prod(shown.sizes))} cells, too many to draw.")
        return
    show.picture(figures.family_picture(schema, group, part, query), key="family")
