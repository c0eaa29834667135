"""Form for a query family and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath

import streamlit as st

from engine._format import nonblank_lines
from engine.errors import WorkloadError
from engine.workload import Attribute, Custom, Family, Level, Levels, Width
from engine.workload.families import FAMILIES, Random, read_matrix
from engine.workload.schema_io import MAX_FILE
from pages.parts.shell.error_text import escape_markdown

BY_NAME = {family.name: family for family in FAMILIES}
SINGLE = [family.name for family in FAMILIES if family.arity == 1 and family not in (Level, Levels)]
CONDITION = (
    "Comparisons with constants, in, and, or, not; sums and abs() of coded attributes. Quote names"
    " with spaces in backticks: `` `pay grade` >= 3 ``."
)
# Questions about attributes with bins, as in the texts of queries: day < 184, day >= 92.
BIN_MEANINGS = {
    "prefix": "How many records are below each edge?",
    "suffix": "How many records are at or above each edge?",
    "range": "How many records lie between any two edges?",
}


def joint_families(attributes: int) -> list[str]:
    """Return the names of the families of queries on this number of attributes together.

    >>> joint_families(1), joint_families(2)
    (['random', 'custom'], ['affine', 'abs', 'random', 'custom'])
    """
    fits_all = [family.name for family in FAMILIES if family.arity is None]
    fits_number = [family.name for family in FAMILIES if family.arity == attributes > 1]
    return fits_number + fits_all


def meaning(name: str, attributes: Sequence[Attribute] = ()) -> str:
    """Return a query family as text: its name, and the question that its queries answer.

    If all ordered ``attributes`` have bins, the question is about their edges.

    >>> meaning("prefix")
    'prefix: How many records are at or below each value?'
    >>> meaning("prefix", [Attribute.numeric("day", [1, 184, 366])])
    'prefix: How many records are below each edge?'
    """
    ordered = [attribute for attribute in attributes if attribute.kind == "numeric"]
    has_bins = bool(ordered) and all(attribute.edges is not None for attribute in ordered)
    question = BIN_MEANINGS.get(name) if has_bins else None
    return f"{name}: {question or BY_NAME[name].meaning}"


def choose(
    label: str, names: Sequence[str], key: str, attributes: Sequence[Attribute] = ()
) -> str | Family:
    """Draw the choice of a query family of some attributes and the form for its parameters.

    Return the family as an argument of `Workload.add`: its name, or an object if it has parameters.
    """
    name = st.selectbox(label, names, format_func=lambda name: meaning(name, attributes), key=key)
    return FORMS[name](key) if name in FORMS else name


def families_of(attribute: Attribute) -> list[str]:
    """Return the names of the families that one attribute can have.

    The family `Levels` is among them only if the attribute has a code list.
    """
    return [*SINGLE, Levels.name] if attribute.hierarchies else SINGLE


def choose_of(attribute: Attribute, label: str, key: str) -> str | Family:
    """Draw the choice of the query family of one attribute; return it as `choose` does."""
    name = st.selectbox(
        label,
        families_of(attribute),
        format_func=lambda name: meaning(name, [attribute]),
        key=key,
    )
    if name == Levels.name:
        return _levels(attribute, key)
    return FORMS[name](key) if name in FORMS else name


def _levels(attribute: Attribute, key: str) -> Family:
    """Draw the choice of levels of a code list, each with an optional weight; return the family."""
    names = [hierarchy.name for hierarchy in attribute.hierarchies]
    name = names[0]
    if len(names) > 1:
        name = st.selectbox("Code list", names, key=f"{key}_list")
    hierarchy = attribute.hierarchies[names.index(name)]
    areas = {level.name: level.areas for level in hierarchy.levels}
    # The cells of the attribute are a level, too; it has the name of the attribute.
    areas[attribute.name] = attribute.size
    levels = st.multiselect(
        "Levels",
        list(areas),
        default=list(areas),
        format_func=lambda level: f"{level} ({areas[level]:,})",
        key=f"{key}_levels_{name}",
        help="The number of areas is in brackets. The last level has the single codes.",
    )
    if not levels:
        raise WorkloadError("No level is selected. Select at least one level.")
    chosen = tuple(level for level in areas if level in levels)
    weights = None
    if len(chosen) > 1 and st.checkbox("Weight per level", key=f"{key}_weighted"):
        weights = tuple(
            place.number_input(
                f"Weight of {escape_markdown(level)}",
                min_value=0.0,
                value=1.0,
                step=1.0,
                key=f"{key}_weight_{name}_{level}",
            )
            for place, level in zip(st.columns(len(chosen)), chosen, strict=True)
        )
    return Levels(chosen, weights, name if len(names) > 1 else None)


def _width(key: str) -> Family:
    return Width(st.number_input("Window width (cells)", min_value=1, value=5, key=f"{key}_width"))


def _random(key: str) -> Family:
    left, middle, right = st.columns(3)
    p = left.number_input("Share of cells per query (p)", value=0.3, step=0.05, key=f"{key}_p")
    count = middle.number_input(
        "Number of queries",
        min_value=1,
        value=None,
        key=f"{key}_count",
        placeholder="3 per cell",
    )
    seed = right.number_input("Random seed", min_value=0, value=0, key=f"{key}_seed")
    return Random(p=p, count=count, seed=seed)


def _custom(key: str) -> Family:
    """Draw the input of a family given by conditions or by a query matrix; return the family."""
    method = st.radio(
        "Input method", ["Conditions", "Matrix file"], horizontal=True, key=f"{key}_how"
    )
    if method == "Conditions":
        text = st.text_area(
            "Conditions, one query per line",
            key=f"{key}_text",
            placeholder="age >= 30 and sex == 'F'\nage + hours <= 60",
            help=CONDITION,
        )
        conditions = nonblank_lines(text or "")
        if not conditions:
            raise WorkloadError("There is no condition yet. Write one condition per line.")
        return Custom(predicates=conditions)
    file = st.file_uploader(
        "Query matrix (CSV or NumPy)",
        type=["csv", "npy"],
        key=f"{key}_file",
        help=(
            "One row per query, one column per cell, last attribute varying fastest. CSV without"
            " header, or one array saved with numpy.save."
        ),
        max_upload_size=MAX_FILE // 1_000_000,
    )
    if file is None:
        raise WorkloadError("There is no matrix file yet. Upload one, or write conditions.")
    return Custom(matrix=read_matrix(file.getvalue(), PurePath(file.name).name))


FORMS: dict[str, Callable[[str], Family]] = {"width": _width, "random": _random, "custom": _custom}
