"""Forms that add all k-way tables at once, or one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import streamlit as st

from engine import _format as texts
from engine import figures
from engine._format import pluralize
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
MAX_ATTRIBUTES_PAIRS = 100  # attributes up to which all pairs are selected at first
MAX_DRAWN_CELLS = 100_000
MAX_SLIDER_QUERIES = 10_000
PLANE = -1  # choice to draw one query on both attributes of a table
# type of counts -> family of numeric attributes
NUMERIC_FAMILIES = {"Tables": "marginal", "Cumulative tables": "prefix", "Ranges": "range"}
# form -> fields that are reset after an addition, with their initial values
FIELDS: dict[str, dict[str, Any]] = {
    "ways": {"ways_weight": 1.0, "special": []},
    "set": {"group_weight": 1.0},
    "range": {"range_weight": 1.0},
    "sql": {"sql_weight": 1.0, "sql_text": ""},
}
SAME, EACH, JOINT = "Same for all", "One per attribute", "Joint"


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """Arguments of `Workload.add` for one group."""

    attributes: tuple[str, ...]
    family: Any
    weight: float


def add_groups(groups: tuple[Group, ...], form: str = "") -> None:
    """Add the groups that are new to the workload, and reset the fields of the form."""
    workload = history.current().required_workload
    new = forecast_form.new_groups(workload, groups)
    if not new:
        return
    with deferred_errors("group"):
        history.change(workload=Workload(workload.schema, (*workload.groups, *new)), redraw=True)
        history.page_state()[ADDED] = f"{pluralize(len(new), 'table')} added."
        st.session_state.update(
            {key: value for key, value in FIELDS.get(form, {}).items() if key in st.session_state}
        )


def show_added() -> None:
    """Show once what the last button added."""
    if message := history.page_state().pop(ADDED, ""):
        st.success(escape_markdown(message), icon="✅")


def all_ways(schema: Schema) -> None:
    """Draw the form for all k-way tables, with one family per kind or per attribute."""
    choices = [k for k in (1, 2, 3) if k <= len(schema)]
    first = choices[: 2 if len(schema) <= MAX_ATTRIBUTES_PAIRS else 1]
    query_kind = st.radio(
        "Type of counts",
        list(NUMERIC_FAMILIES),
        captions=[_example(schema, how) for how in NUMERIC_FAMILIES],
        key="ways_ask",
    )
    ways = st.multiselect(
        "Attributes per table", choices, default=first, key="ways", format_func=_way
    )
    special = st.multiselect(
        "Use a different query type for",
        schema.names,
        key="special",
        help="Categorical attributes otherwise count every single cell.",
    )
    with show_errors():
        families = _families(schema, query_kind) | {
            name: _family_choice(schema, name) for name in special
        }
        added_groups = _all_tables(
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
            f"{pluralize(len(added_groups.groups), 'table')},"
            f" {pluralize(added_groups.queries, 'query', 'queries')}"
        )
        label = f"Add {text}" if groups else "Add tables"
        buttons.button(
            label,
            add_groups,
            groups,
            "ways",
            key="add_ways",
            type="primary",
            disabled=not forecast_form.before_adding(groups),
        )
        if not added_groups.groups:
            st.caption("Choose at least one number of attributes per table.")
    show_deferred_error("group")


def _families(schema: Schema, query_kind: str) -> dict[str, Any]:
    """Return the families of numeric attributes for a type of counts, unless it is the default."""
    numeric = [a for a in schema.attributes if a.kind == "numeric"]
    return {
        a.name: NUMERIC_FAMILIES[query_kind]
        for a in numeric
        if NUMERIC_FAMILIES[query_kind] != default_family(a.kind)
    }


def _example(schema: Schema, query_kind: str) -> str:
    """Return an example query of a type of counts, on a numeric attribute if there is one."""
    first = next((a for a in schema.attributes if a.kind == "numeric"), schema.attributes[0])
    example = Workload(schema).add(
        first.name, NUMERIC_FAMILIES[query_kind] if first.kind == "numeric" else "marginal"
    )
    return escape_markdown(f"e.g. records with {example.describe(example.queries // 2)}")


@st.cache_resource(max_entries=4, show_spinner="Listing the tables")
def _all_tables(
    key: str, _schema: Schema, _ways: Sequence[int], _families: Mapping[str, Any]
) -> Workload:
    return Workload.all_ways(_schema, _ways, _families or "auto")


def _family_items(families: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (name, family if isinstance(family, str) else family.key)
        for name, family in families.items()
    ]


def one_set(schema: Schema) -> None:
    """Draw the form for one table: family, weight, queries and a chart."""
    left, right = st.columns([2, 3], gap="large")
    with left:
        names = st.multiselect("Attributes", schema.names, key="group_names")
        if not names:
            total = Workload(schema).add((), "total").groups
            is_new = forecast_form.before_adding(total)
            buttons.button(
                "Add the total count", add_groups, total, key="add_total", disabled=not is_new
            )
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
            is_new = forecast_form.before_adding(addition.groups)
            buttons.button(
                "Add this table",
                add_groups,
                addition.groups,
                "set",
                key="add_group",
                type="primary",
                disabled=not is_new,
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
    return family_form.choose(f"Type of counts on {escape_markdown(name)}", names, key)


def _family(schema: Schema, names: list[str]) -> Any:
    choices = [SAME, JOINT] if len(names) == 1 else [SAME, EACH, JOINT]
    how = st.radio("Type of counts", choices, horizontal=True, key="group_how")
    if how == EACH:
        return {name: _family_choice(schema, name) for name in names}
    if how == JOINT:
        return family_form.choose("Joint type of counts", family_form.JOINT, "joint")
    return family_form.choose("Type of counts on each attribute", family_form.SINGLE, "same")


def weight_form(key: str) -> float:
    """Draw and return the weight of the queries that a form adds."""
    st.session_state.setdefault(key, 1.0)
    return st.number_input(
        "Weight",
        min_value=0.0,
        step=0.5,
        key=key,
        help="Importance when sharing the budget; 0 adds no cost.",
    )


def picture(schema: Schema, group: Group, *, key: str) -> None:
    """Draw the queries of a family of the group, or one query on two attributes."""
    part, choices = 0, list(range(len(group.parts)))
    if len(group.attributes) == 2:
        choices.append(PLANE)
    if not choices:
        st.caption("One query: the total count.")
        return
    if len(choices) > 1:
        part = st.selectbox(
            "Chart of the queries on",
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
    if prod(group.parts[part].sizes) > MAX_DRAWN_CELLS:
        st.info(f"{texts.number(prod(group.parts[part].sizes))} cells are too many to draw.")
        return
    figure_view.picture(figures.family_picture(schema, group, part), key=key)


def _query(count: int, key: str) -> int:
    if count <= MAX_SLIDER_QUERIES:
        return st.slider("Query number", 0, count - 1, count // 2, key=f"{key}_query_{count}")
    return int(
        st.number_input("Query number", 0, count - 1, count // 2, key=f"{key}_query_{count}")
    )
