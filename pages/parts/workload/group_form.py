"""Forms that propose all k-way tables, or one table, for the workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import streamlit as st

from engine import _format as texts
from engine import figures
from engine._format import pluralize
from engine.workload import Group, Levels, Schema, Workload, has_queries_on, new_groups
from engine.workload.attribute import query_texts
from engine.workload.families import default_family
from pages.parts.shell import buttons, figure_view, history
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)
from pages.parts.workload import family_form, forecast_form

ADDED = "added"  # key of the page state: message about the tables that were just added
MAX_ATTRIBUTES_PAIRS = 100  # the default includes pairs for schemas of at most this many attributes
MAX_DRAWN_CELLS = 100_000
MAX_SLIDER_QUERIES = 10_000
# Value of the choice of a chart that stands for the chart of one query on both attributes of a
# group. Other values are indices in ``group.parts``, for the chart of the queries of one query
# family.
PLANE = -1
# Maps the query type to the query family of numeric attributes.
NUMERIC_FAMILIES = {"Tables": "marginal", "Cumulative tables": "prefix", "Ranges": "range"}
# Maps the fields that are reset after an addition to their initial values.
RESET: dict[str, Any] = {"special": [], "sql_text": "", "group_names": []}
SAME, EACH, JOINT = "Same for all", "One per attribute", "Joint"


def add_button(
    groups: Sequence[Group], label: Callable[[Sequence[Group]], str], *, key: str
) -> tuple[Group, ...]:
    """Draw the button that adds groups; return those groups that the workload does not have.

    Above the button, the page states how many of the groups the workload already has; right after
    an addition, it states what was added instead.

    The button is not highlighted if the workload has a table on the attributes of every new group:
    further queries on these attributes would lower the accuracy.

    Parameters
    ----------
    label : function that returns the text of the button for the groups that the button adds. If the
        workload has all groups already, its argument is ``groups``.
    """
    workload = history.current().required_workload
    message = history.page_state().pop(ADDED, "")
    if message:
        st.success(escape_markdown(message), icon="✅")
        new = new_groups(workload, groups)
    else:
        # `groups_to_add` also shows the number of groups that the workload already has
        new = forecast_form.groups_to_add(groups)
    is_highlighted = not new or any(not has_queries_on(workload, group.attributes) for group in new)
    buttons.button(
        label(new or groups),
        _add,
        new,
        key=key,
        type="primary" if is_highlighted else "secondary",
        disabled=not new,
    )
    show_deferred_error("group")
    return new


def _add(groups: tuple[Group, ...]) -> None:
    """Add groups to the workload, and reset the fields of the forms."""
    workload = history.current().required_workload
    with deferred_errors("group"):
        history.change(workload=Workload(workload.schema, (*workload.groups, *groups)), redraw=True)
        history.page_state()[ADDED] = f"{pluralize(len(groups), 'table')} added."
        st.session_state.update(
            {key: value for key, value in RESET.items() if key in st.session_state}
        )


def all_ways(schema: Schema) -> tuple[Group, ...]:
    """Draw the form for all k-way tables; return the groups that the workload does not have."""
    choices = [k for k in (1, 2, 3) if k <= len(schema)]
    default_ways = choices[: 2 if len(schema) <= MAX_ATTRIBUTES_PAIRS else 1]
    left, right = st.columns([2, 3])
    ways = left.pills(
        "Attributes per table", choices, selection_mode="multi", default=default_ways, key="ways"
    )
    if "ways_ask" not in st.session_state:
        st.session_state["ways_ask"] = _query_kind_of_workload()
    query_kind = right.radio(
        "Query type",
        list(NUMERIC_FAMILIES),
        captions=list(NUMERIC_FAMILIES.values()),
        key="ways_ask",
        horizontal=True,
    )
    example_place = st.container()
    special = st.multiselect(
        "Use another query type for",
        schema.names,
        key="special",
        placeholder="Attributes (optional)",
        help="Categorical attributes otherwise count every single cell.",
    )
    with show_errors():
        families = _families(schema, query_kind) | {
            name: _family_choice(schema, name) for name in special
        }
        example_place.caption(_example(schema, families))
        tables = _all_tables(
            f"{schema.to_json()}|{sorted(ways)}|{_family_items(families)}",
            schema,
            sorted(ways),
            families,
        )
        if not tables.groups:
            st.caption("Choose at least one number of attributes per table.")
        return add_button(tables.groups, partial(_counts_label, schema), key="add_ways")
    return ()


def _counts_label(schema: Schema, groups: Sequence[Group]) -> str:
    queries = Workload(schema, tuple(groups)).queries
    return f"Add {pluralize(len(groups), 'table')}, {pluralize(queries, 'query', 'queries')}"


def _query_kind_of_workload() -> str:
    """Return the query type of the first numeric attribute that has a family in the workload.

    The result is "Tables" if there is no such attribute, or if its family is not in
    `NUMERIC_FAMILIES`.
    """
    workload = history.current().required_workload
    numeric = {a.name for a in workload.schema.attributes if a.kind == "numeric"}
    # Workloads can have 100,000 groups, so they are not listed without need.
    for group in workload.groups if numeric else ():
        families = group.family if isinstance(group.family, Mapping) else {}
        for name, family in families.items():
            if name in numeric:
                kinds = [kind for kind, one in NUMERIC_FAMILIES.items() if one == family]
                return kinds[0] if kinds else "Tables"
    return "Tables"


def _families(schema: Schema, query_kind: str) -> dict[str, Any]:
    """Return a mapping from numeric attributes to the query family of a query type.

    It is empty if this family is the default of numeric attributes.
    """
    family = NUMERIC_FAMILIES[query_kind]
    return {
        a.name: family
        for a in schema.attributes
        if a.kind == "numeric" and family != default_family(a.kind)
    }


def _example(schema: Schema, families: Mapping[str, Any]) -> str:
    """Return an example query, on the first numeric attribute if there is one.

    ``families`` maps attributes to their query family, if it is not the default.
    """
    attribute = next((a for a in schema.attributes if a.kind == "numeric"), schema.attributes[0])
    family = families.get(attribute.name, default_family(attribute.kind))
    example = Workload(schema).add(attribute.name, family)
    (text,) = query_texts(schema.attributes, [example.describe(example.queries // 2)])
    records = text if text == "all records" else f"records with {text}"
    return escape_markdown(f"Example: {records}.")


@st.cache_resource(max_entries=4, show_spinner="Listing the tables")
def _all_tables(
    key: str, _schema: Schema, _ways: Sequence[int], _families: Mapping[str, Any]
) -> Workload:
    return Workload.all_ways(_schema, _ways, _families or "auto")


def _family_items(families: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return pairs of an attribute and a value that identifies its family, for a cache key."""
    return [
        (name, family if isinstance(family, (str, Levels)) else family.key)
        for name, family in families.items()
    ]


def one_set(schema: Schema) -> tuple[Group, ...]:
    """Draw the form for one table, with a chart; return its group if the workload lacks it."""
    names = st.multiselect(
        "Attributes", schema.names, key="group_names", placeholder="None: the total count"
    )
    with show_errors():
        if not names:
            st.caption("Choose attributes, or add the total number of records.")
            total = Workload(schema).add((), "total").groups
            return add_button(total, lambda _: "Add the total count", key="add_total")
        addition = Workload(schema).add(tuple(names), _family(schema, names))
        (group,) = addition.groups
        first, last = query_texts(
            schema.attributes, [addition.describe(0), addition.describe(group.count - 1)]
        )
        st.caption(
            f"{pluralize(group.count, 'query', 'queries')} on"
            f" {pluralize(schema.cells(names), 'cell')}:"
            f" {escape_markdown(first)} … {escape_markdown(last)}."
        )
        new = add_button(addition.groups, lambda _: "Add this table", key="add_group")
        with st.expander("Show the queries", key="family_fold", on_change="rerun") as fold:
            if fold.open:
                picture(schema, group, key="family")
        return new
    return ()


def _family_choice(schema: Schema, name: str) -> Any:
    """Draw the choice of the family of one attribute; return the family for `Workload.add`."""
    attribute, key = schema[name], f"own_{name}"
    if st.session_state.get(key) not in family_form.families_of(attribute):
        has_levels = bool(attribute.hierarchies)
        st.session_state[key] = Levels.name if has_levels else default_family(attribute.kind)
    return family_form.choose_of(attribute, f"Query type on {escape_markdown(name)}", key)


def _family(schema: Schema, names: list[str]) -> Any:
    """Draw the choice of the families of one table; return the argument for `Workload.add`."""
    choices = [SAME, JOINT] if len(names) == 1 else [SAME, EACH, JOINT]
    has_levels = any(schema[name].hierarchies for name in names)
    by_attribute = has_levels and EACH in choices
    scope = st.radio(
        "Query type",
        choices,
        choices.index(EACH) if by_attribute else 0,
        horizontal=True,
        # Tables of several attributes, one of them with a code list, have another default. Under the
        # same key the field would keep its choice instead of this default.
        key="group_how_levels" if by_attribute else "group_how",
    )
    if scope == EACH:
        return {name: _family_choice(schema, name) for name in names}
    if scope == JOINT:
        return family_form.choose(
            "Joint query type", family_form.joint_families(len(names)), "joint"
        )
    if len(names) == 1 and has_levels:
        return _family_choice(schema, names[0])
    return family_form.choose(
        "Query type on each attribute",
        family_form.SINGLE,
        "same",
        [schema[name] for name in names],
    )


def picture(schema: Schema, group: Group, *, key: str) -> None:
    """Draw a chart of the queries of a group.

    By default, the chart of a group on two attributes shows one query on both attributes. The chart
    of any other group shows the queries of its first query family. The user can choose another
    family. If there are too many ranges to draw, a table of examples replaces the chart; if there
    are too many cells, a message does.
    """
    part, choices = 0, list(range(len(group.parts)))
    # The only query family of a group can be on both attributes. Its chart already shows one query
    # on both, so the choice `PLANE` is not needed.
    if len(group.attributes) == 2 and len(group.parts) != 1:
        choices.append(PLANE)
    if not choices:
        st.caption("One query: the total count.")
        return
    if len(choices) > 1:
        part = st.selectbox(
            "Chart of the queries on",
            choices,
            index=choices.index(PLANE) if PLANE in choices else 0,
            format_func=lambda p: " × ".join(
                group.attributes[a] for a in (range(2) if p == PLANE else group.parts[p].axes)
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
    if figures.has_too_many_ranges(group, part):
        count = pluralize(group.parts[part].count, "query", "queries")
        st.caption(f"{count}, of which these are evenly spaced:")
        st.dataframe(
            figures.query_examples(schema, group, part),
            hide_index=True,
            alt="Examples of the queries",
        )
        return
    figure_view.picture(figures.family_picture(schema, group, part), key=key)


def _query(count: int, key: str) -> int:
    if count <= MAX_SLIDER_QUERIES:
        return st.slider("Query number", 0, count - 1, count // 2, key=f"{key}_query_{count}")
    return int(
        st.number_input("Query number", 0, count - 1, count // 2, key=f"{key}_query_{count}")
    )
