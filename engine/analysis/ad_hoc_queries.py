"""Single queries given as conditions, boxes or text, and tables and digests of workloads."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._arrays import Array
from engine._format import number, quote_public, set_name
from engine._validation import check_type
from engine._values import cached_on_value
from engine.errors import NotAnswerable, WorkloadError
from engine.plans import Plan
from engine.records import count_marginals
from engine.release import Measurement, apply_group, quantile
from engine.workload import Attribute, Custom, Schema, Workload
from engine.workload.predicates import named_in

if TYPE_CHECKING:
    import pandas as pd


MAX_CELLS = 4_000_000  # largest coefficient table of one query
MAX_CELLS_SEARCHED = 100_000  # cells without labels whose texts `find_cells` writes


def workload_table(workload: Workload, chosen: Sequence[int] | None = None) -> pd.DataFrame:
    """Return one row per group: number, attributes as text, family, queries, cells and weight.

    Parameters
    ----------
    chosen : numbers of the groups to include; by default all groups.
    """
    import pandas as pd

    numbers = range(len(workload.groups)) if chosen is None else chosen
    rows = [
        (
            i,
            " × ".join(g.attributes) or "(total)",
            g.family_text,
            g.count,
            math.prod(g.sizes),
            g.weight,
        )
        for i, g in ((i, workload.groups[i]) for i in numbers)
    ]
    return pd.DataFrame(
        rows, columns=["group", "attributes", "family", "queries", "cells", "weight"]
    )


def workload_errors(
    workload: Workload, chosen: Sequence[int], plan: Plan | None = None
) -> pd.DataFrame:
    """Return `workload_table` of some groups with the typical error of each, in counts.

    The column "typical error" is empty without a plan of the workload.
    """
    from engine.analysis.variance_breakdown import errors_by_group

    table = workload_table(workload, chosen)
    errors = None if plan is None else errors_by_group(plan)["rmse"].to_numpy()[list(chosen)]
    return table.assign(**{"typical error": errors if errors is not None else math.nan})


def find_groups(workload: Workload, words: str) -> list[int]:
    """Return the numbers of the groups that match every word of a search text, ignoring case.

    A word matches if it occurs in the number, the attribute names or the family of the group.

    >>> from engine import Attribute
    >>> sex = Attribute.of_size("sex", 2, kind="categorical")
    >>> schema = Schema([Attribute.of_size("age", 4), sex])
    >>> find_groups(Workload.all_ways(schema, (1, 2)), "AGE prefix")
    [0, 2]
    """
    needles = words.casefold().split()
    if not needles:
        return list(range(len(workload.groups)))
    return [
        i
        for i, g in enumerate(workload.groups)
        for text in [f"{i} {' '.join(g.attributes) or 'total'} {g.family_text}".casefold()]
        if all(needle in text for needle in needles)
    ]


def find_cells(attribute: Attribute, text: str, *, limit: int = 100) -> list[int]:
    """Return the cells of an attribute whose text contains a search text, ignoring case.

    Cells with exactly this text are first; at most ``limit`` cells are returned. Of an attribute
    without labels only the first `MAX_CELLS_SEARCHED` cells are searched, and any code by its
    complete number.

    >>> find_cells(Attribute.categorical("town", ["Ulm", "Neu-Ulm", "Bonn"]), "ulm")
    [0, 1]
    >>> find_cells(Attribute.of_size("zip", 30_000), "7", limit=3)
    [7, 17, 27]
    """
    needle = text.strip().casefold()
    cells = range(
        attribute.size if attribute.labels is not None else min(attribute.size, MAX_CELLS_SEARCHED)
    )
    texts = attribute.labels or map(attribute.label, cells)
    matches = [(cell, label.casefold()) for cell, label in zip(cells, texts, strict=True)]
    exact = [cell for cell, label in matches if label == needle]
    contained = (cell for cell, label in matches if needle in label and label != needle)
    # a code beyond the cells that are searched is found by its number
    if attribute.is_coded and re.fullmatch(r"[0-9]{1,8}", needle) and int(needle) < attribute.size:
        exact = [int(needle)]
    return [*exact, *itertools.islice(contained, max(limit - len(exact), 0))]


def page_of(numbers: Sequence[int], page: int, length: int) -> tuple[Sequence[int], int]:
    """Return the part of a sequence on one page of a list, and the number of pages.

    Pages are numbered from 1 and have ``length`` entries.

    >>> page_of(range(250), 3, 100)
    (range(200, 250), 3)
    """
    pages = max(1, -(-len(numbers) // length))
    start = (min(max(page, 1), pages) - 1) * length
    return numbers[start : start + length], pages


@cached_on_value
def workload_digest(workload: Workload) -> str:
    """Return the SHA-256 digest of a workload and its schema, as 64 hexadecimal digits.

    The digest is computed once per workload object.

    >>> from engine import Attribute
    >>> schema = Schema([Attribute.of_size("age", 4)])
    >>> families = ("range", "range", "prefix")
    >>> first, second, third = (workload_digest(Workload(schema).add("age", f)) for f in families)
    >>> first == second, first == third
    (True, False)
    """
    return hashlib.sha256(workload.to_json().encode()).hexdigest()


@cached_on_value
def count_cells(workload: Workload) -> int:
    """Return the number of cells of the marginals on the distinct attribute sets of a workload."""
    size = {attribute.name: attribute.size for attribute in workload.schema.attributes}
    return sum(
        math.prod(map(size.__getitem__, names))
        for names in {frozenset(g.attributes) for g in workload.groups}
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """One linear query; ``tensor`` are coefficients of shape ``schema.sizes(attributes)``."""

    attributes: tuple[str, ...]
    tensor: Array
    text: str


def box_query(schema: Schema, cells: Mapping[str, Sequence[int]]) -> Query:
    """Return the query that counts the records in a set of cells for each attribute.

    >>> from engine import Attribute
    >>> box_query(Schema([Attribute.of_size("age", 4)]), {"age": [1, 2]}).text
    'age in 1..2'
    """
    tensor, texts = np.ones(()), []
    for name, chosen in cells.items():
        indicator, chosen_cells = np.zeros(schema[name].size), sorted(chosen)
        indicator[chosen_cells] = 1.0
        tensor = np.multiply.outer(tensor, indicator)
        if not chosen_cells:
            texts.append(f"no value of {name}")
        elif chosen_cells[-1] - chosen_cells[0] + 1 == len(chosen_cells) < schema[name].size:
            is_one_condition = len(chosen_cells) == 1 or schema[name].kind == "numeric"
            texts.append(
                schema[name].condition(chosen_cells[0], chosen_cells[-1])
                if is_one_condition
                else _value_list(schema[name], chosen_cells)
            )
        elif len(chosen_cells) < schema[name].size:
            texts.append(_value_list(schema[name], chosen_cells))
    return Query(attributes=tuple(cells), tensor=tensor, text=" and ".join(texts) or "all records")


def run_query(schema: Schema, runs: Mapping[str, tuple[int, int]]) -> Query:
    """Return the query that counts the records in ranges of cells.

    ``runs`` maps an attribute to its first and last cell, inclusive.

    >>> from engine import Attribute
    >>> run_query(Schema([Attribute.of_size("age", 4)]), {"age": (1, 2)}).text
    'age in 1..2'
    """
    return box_query(schema, {name: range(first, last + 1) for name, (first, last) in runs.items()})


def parse_query(schema: Schema, attributes: Sequence[str], condition: str) -> Query:
    """Return the query that counts the records satisfying a condition on named attributes.

    Raises
    ------
    WorkloadError : the condition is not valid.

    >>> from engine import Attribute
    >>> parse_query(Schema([Attribute.of_size("age", 4)]), ["age"], "age >= 2").tensor
    array([0., 0., 1., 1.])
    """
    _check_schema(schema)
    names = schema.named(attributes, error=WorkloadError)
    rows = (
        Custom(predicates=[condition])
        .bind([schema[name] for name in names])
        .rows(schema.sizes(names))
    )
    return Query(attributes=names, tensor=rows.reshape(schema.sizes(names)), text=condition.strip())


def _check_schema(schema: Schema) -> None:
    """Raise WorkloadError unless the argument is a Schema."""
    check_type(
        "schema", schema, Schema, give="the Schema of the plan, plan.schema", error=WorkloadError
    )


def condition_query(schema: Schema, condition: str) -> Query:
    """Return the query that counts the records satisfying a condition.

    The query is on the attributes in the condition.  An empty condition counts all records.

    Raises
    ------
    WorkloadError : the condition is not valid, names no attribute, or needs too large a table.

    >>> from engine import Attribute
    >>> schema = Schema([Attribute.of_size("age", 4), Attribute.of_size("sex", 2)])
    >>> condition_query(schema, "age >= 2").attributes
    ('age',)
    """
    _check_schema(schema)
    check_type(
        "condition",
        condition,
        str,
        give="words, such as \"age >= 30 and sex == 'F'\"",
        error=WorkloadError,
    )
    if not condition.strip():
        return box_query(schema, {})
    names = [schema.names[i] for i in named_in(condition, [schema[name] for name in schema.names])]
    if schema.cells(names) > MAX_CELLS:
        raise WorkloadError(
            f"The condition {quote_public(condition)} is on a table of"
            f" {number(schema.cells(names))} cells; at most {MAX_CELLS:,} are allowed. Use fewer"
            " attributes, or write the query in SQL."
        )
    return parse_query(schema, names, condition)


def further_answers(
    measurement: Measurement, workload: Workload, confidence: float = 0.95
) -> pd.DataFrame:
    """Answer further queries from an existing measurement, without privacy cost.

    The weights of the queries have no effect.

    Returns
    -------
    DataFrame with the columns query, answer, std, low and high, in counts.

    Raises
    ------
    WorkloadError : the queries are on a different schema, or there are none.
    NotAnswerable : the measurement does not determine one of the queries.
    """
    import pandas as pd

    check_type(
        "measurement", measurement, Measurement, give="the result of measure()", error=WorkloadError
    )
    check_type(
        "workload",
        workload,
        Workload,
        give="the queries as a Workload on plan.schema",
        error=WorkloadError,
    )
    if workload.schema != measurement.plan.schema:
        raise WorkloadError(
            "The schema of the queries differs from the schema of the measurement. Build the"
            " Workload on measurement.plan.schema."
        )
    extended, tables = replace(measurement, plan=measurement.plan.with_groups(workload.groups)), []
    for i, group in enumerate(workload.groups):
        if not np.isfinite(extended.plan.variances(i)).all():
            raise NotAnswerable(
                f"The measurement does not determine all {group.family_text} queries on"
                f" {set_name(group.attributes)}. Use coarser queries or fewer attributes."
            )
        tables.append(extended.answers(i, confidence=confidence))
    if not tables:
        raise WorkloadError("The workload has no queries. Add at least one group.")
    return pd.concat(tables, ignore_index=True)


def half_width(plan: Plan, variance: float) -> float:
    """Return the half-width of a 95% interval, in counts, for a variance in counts^2."""
    return quantile(0.95, plan.budget.law) * math.sqrt(variance)


def _value_list(attribute: Attribute, cells: Sequence[int]) -> str:
    """Return a condition that lists the values of an attribute, as text."""
    return f"{attribute.name} is {' or '.join(attribute.label(i) for i in cells)}"


def add_truth(
    answers: pd.DataFrame, plan: Plan, group: int, start: int, records: Any
) -> pd.DataFrame:
    """Add the exact counts of simulated or public records to answers, as the column ``truth``.

    Parameters
    ----------
    answers : answers to consecutive queries of a group.
    start : number of the first of these queries within its group.
    records : records as for `measure`.
    """
    queries = plan.workload.groups[group]
    rows = plan.budget.rows_per_person
    counts = count_marginals(records, plan.schema, [queries.attributes], rows_per_person=rows)
    truth = apply_group(
        queries, counts[queries.attributes].astype(float), start, start + len(answers)
    )
    return answers.assign(truth=truth)
