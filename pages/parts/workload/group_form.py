"""Forms that add query groups: all k-way sets at once, or one set of attributes with its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import streamlit as st

from engine import _format as texts
from engine import figures
from engine._format import pluralize
from engine.errors import WorkloadError
from engine.workload import Group, Schema, Workload
from engine.workload.families import default_family
from pages.parts.shell import buttons, figure_view, history
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)
from pages.parts.workload import family_form, forecast_form

ADDED = "added"
WIDE = 100  # attributes up to which all pairs are offered at first
MAX_DRAWN = 100_000  # cells of a family that is drawn
MAX_SLIDER = 10_000
PLANE = -1  # the choice to draw one query on both attributes of a group
FAMILY_OF_KIND = {
    "Tables": "marginal",
    "Cumulative tables": "prefix",
    "Ranges": "range",
}  # of a numeric attribute
FIELDS: dict[
    str, dict[str, Any]
] = {  # form -> its fields that describe one addition, with their first values
    "ways": {"ways_weight": 1.0, "special": []},
    "set": {"group_weight": 1.0},
    "range": {"range_weight": 1.0},
    "sql": {"sql_weight": 1.0, "sql_text": ""},
}
SAME, EACH, JOINT = "The same on each", "One per attribute", "Joint"


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """One group to add, as `Workload.add` takes it."""

    attributes: tuple[str, ...]
    family: Any
    weight: float


def add_groups(groups: tuple[Group, ...], form: str = "") -> None:
    """Add groups of the current schema, each once, and reset the fields of the form that describe
    them.
    """
    workload = history.current().required_workload
    new = forecast_form.new_groups(workload, groups)
    with deferred_errors("group"):
        if not new:
            raise WorkloadError(
                "All of this is asked already. To make it more exact, give it a larger weight"
                " below."
            )
        history.change(workload=Workload(workload.schema, (*workload.groups, *new)), redraw=True)
        left_out = (
            f"; {pluralize(len(groups) - len(new), 'group')} asked already"
            if len(new) < len(groups)
            else ""
        )
        history.page_state()[ADDED] = f"{pluralize(len(new), 'group')} added{left_out}."
        st.session_state.update(
            {key: value for key, value in FIELDS.get(form, {}).items() if key in st.session_state}
        )


def show_added() -> None:
    """Say once what the last press added."""
    if words := history.page_state().pop(ADDED, ""):
        st.success(escape_markdown(words), icon="✅")


def all_ways(schema: Schema) -> None:
    """All sets of k attributes, with one family per kind or per attribute."""
    choices = [k for k in (1, 2, 3) if k <= len(schema)]
    first = choices[: 2 if len(schema) <= WIDE else 1]
    query_kind = st.radio(
        "What to ask of each set",
        list(FAMILY_OF_KIND),
        captions=[_example(schema, how) for how in FAMILY_OF_KIND],
        key="ways_ask",
    )
    ways = st.multiselect(
        "Sets of how many attributes", choices, default=first, key="ways", format_func=_way
    )
    special = st.multiselect(
        "Attributes with a family of their own",
        schema.names,
        key="special",
        help="All others as chosen above; of a categorical attribute always every single cell.",
    )
    with show_errors():
        families = _families(schema, query_kind) | {
            name: _family_choice(schema, name) for name in special
        }
        added_groups = _all_sets(
            f"{schema.to_json()}|{sorted(ways)}|{_family_items(families)}",
            schema,
            sorted(ways),
            families,
        )
        weight = weight_form("ways_weight")
        groups = (
            added_groups.groups
            if weight == 1.0
            else tuple(replace(group, weight=weight) for group in added_groups.groups)
        )
        text = (
            f"{pluralize(len(added_groups.groups), 'group')} with"
            f" {pluralize(added_groups.queries, 'query', 'queries')}"
        )
        label = (
            f"Add all {', '.join(_way(k) for k in sorted(ways))} sets: {text}" if ways else "Add"
        )
        if groups:
            forecast_form.before_adding(groups)
        buttons.button(
            label, add_groups, groups, "ways", key="add_ways", type="primary", disabled=not groups
        )
        if not added_groups.groups:
            st.caption("Choose at least one number of attributes.")
    show_deferred_error("group")


def _families(schema: Schema, query_kind: str) -> dict[str, Any]:
    """What a word asks of the numeric attributes; the others have no order and are asked cell by
    cell.
    """
    numeric = [a for a in schema.attributes if a.kind == "numeric"]
    return {
        a.name: FAMILY_OF_KIND[query_kind]
        for a in numeric
        if FAMILY_OF_KIND[query_kind] != default_family(a.kind)
    }


def _example(schema: Schema, query_kind: str) -> str:
    """One of the queries that a word stands for, on the first numeric attribute if there is one."""
    first = next((a for a in schema.attributes if a.kind == "numeric"), schema.attributes[0])
    example = Workload(schema).add(
        first.name, FAMILY_OF_KIND[query_kind] if first.kind == "numeric" else "marginal"
    )
    return escape_markdown(
        f"such as: how many records have {example.describe(example.queries // 2)}"
    )


@st.cache_resource(max_entries=4, show_spinner="Listing the sets")
def _all_sets(
    key: str, _schema: Schema, _ways: Sequence[int], _families: Mapping[str, Any]
) -> Workload:
    return Workload.all_ways(_schema, _ways, _families or "auto")


def _family_items(families: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (name, family if isinstance(family, str) else family.key)
        for name, family in families.items()
    ]


def one_set(schema: Schema) -> None:
    """One set of attributes: its family, its weight, what it asks, and a picture."""
    left, right = st.columns([2, 3], gap="large")
    with left:
        names = st.multiselect("Attributes of the group", schema.names, key="group_names")
        if not names:
            st.caption(
                "Choose attributes for tables and ranges, or add the one query that needs none."
            )
            total = Workload(schema).add((), "total").groups
            buttons.button("Add the number of all records", add_groups, total, key="add_total")
            return
        with show_errors():
            request = GroupRequest(
                attributes=tuple(names),
                family=_family(schema, names),
                weight=weight_form("group_weight"),
            )
            addition = Workload(schema).add(request.attributes, request.family, request.weight)
            (group,) = addition.groups
            st.caption(
                f"{pluralize(group.count, 'query', 'queries')} on"
                f" {pluralize(schema.cells(names), 'cell')}. First:"
                f" {escape_markdown(addition.describe(0))}. Last:"
                f" {escape_markdown(addition.describe(group.count - 1))}."
            )
            forecast_form.before_adding(addition.groups)
            buttons.button(
                "Add this group",
                add_groups,
                addition.groups,
                "set",
                key="add_group",
                type="primary",
            )
            with right:
                picture(schema, group, key="family")
    show_deferred_error("group")


def _way(k: int) -> str:
    return f"{k}-way"


def _family_choice(schema: Schema, name: str) -> Any:
    names = family_form.SINGLE
    start = names.index(default_family(schema[name].kind))
    key = f"own_{name}"
    if key not in st.session_state:
        st.session_state[key] = names[start]
    return family_form.choose(f"Family of {escape_markdown(name)}", names, key)


def _family(schema: Schema, names: list[str]) -> Any:
    ways = [SAME, JOINT] if len(names) == 1 else [SAME, EACH, JOINT]
    how = st.radio("Queries on these attributes", ways, horizontal=True, key="group_how")
    if how == EACH:
        return {name: _family_choice(schema, name) for name in names}
    if how == JOINT:
        return family_form.choose("Family of the whole set", family_form.JOINT, "joint")
    return family_form.choose("Family on each attribute", family_form.SINGLE, "same")


def weight_form(key: str) -> float:
    """Draw and return the weight of the queries that a form adds."""
    st.session_state.setdefault(key, 1.0)
    return st.number_input(
        "Weight of each query",
        min_value=0.0,
        step=0.5,
        key=key,
        help=(
            "How much its squared error counts when noise is shared out; 0 asks for what comes out"
            " anyway."
        ),
    )


def picture(schema: Schema, group: Group, *, key: str) -> None:
    """Draw what a group asks: the rows of one of its families, or one query on the plane of two
    attributes.
    """
    part, choices = 0, list(range(len(group.parts)))
    if len(group.attributes) == 2:
        choices.append(PLANE)
    if not choices:
        st.caption("The group asks one query: how many records there are.")
        return
    if len(choices) > 1:
        part = st.selectbox(
            "Picture of the queries on",
            choices,
            format_func=lambda p: " × ".join(
                group.attributes[a] for a in (range(2) if p < 0 else group.parts[p].axes)
            ),
            key=f"{key}_part",
        )
    if part == PLANE or len(group.parts[part].axes) == 2:
        query = _query(group.count, key) if group.count > 1 else 0
        figure_view.picture(figures.plane_picture(schema, group, query), key=key)
        return
    if prod(group.parts[part].sizes) > MAX_DRAWN:
        st.info(
            f"The family has {texts.number(prod(group.parts[part].sizes))} cells, too many to draw."
        )
        return
    figure_view.picture(figures.family_picture(schema, group, part), key=key)


def _query(count: int, key: str) -> int:
    if count <= MAX_SLIDER:
        return st.slider("Query to draw", 0, count - 1, count // 2, key=f"{key}_query_{count}")
    return int(
        st.number_input("Query to draw", 0, count - 1, count // 2, key=f"{key}_query_{count}")
    )
