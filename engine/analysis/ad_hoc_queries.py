"""Single counting queries from conditions or cells; tables, search and digests of workloads."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import Counter
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
from engine.workload.attribute import query_texts
from engine.workload.predicates import named_in

if TYPE_CHECKING:
    import pandas as pd


MAX_CELLS = 4_000_000  # largest coefficient table of one query
MAX_QUERY_CHARS = 60  # of the condition that names a table
MAX_CELLS_SEARCHED = 100_000  # cells that `find_cells` compares if an attribute has no labels


def workload_table(workload: Workload, chosen: Sequence[int] | None = None) -> pd.DataFrame:
    """Return a table of the groups of a workload.

    Parameters
    ----------
    chosen : indices of the groups to include; by default all groups.

    Returns
    -------
    DataFrame with one row per group: group (its index), attributes and family as text, queries
    (their number), cells (number of cells of the marginal on its attributes) and weight.
    """
    import pandas as pd

    rows = []
    for number_of_group in range(len(workload.groups)) if chosen is None else chosen:
        group = workload.groups[number_of_group]
        attributes = set_name(group.attributes)
        cells = math.prod(group.sizes)
        rows.append(
            (number_of_group, attributes, group.family_text, group.count, cells, group.weight)
        )
    return pd.DataFrame(
        rows, columns=["group", "attributes", "family", "queries", "cells", "weight"]
    )


def condition_name(workload: Workload, group: int) -> str:
    """Return the condition of a group with a single query, such as "age < 18 and vote = 'no'".

    The text is empty if the group has several queries, or if its query is not a condition.  A long
    text is cut at its end.
    """
    parts = workload.groups[group].parts
    families = [part.family for part in parts if isinstance(part.family, Custom)]
    is_labelled = families and all(family.labels is not None for family in families)
    if not is_labelled or workload.groups[group].count != 1:
        return ""
    (text,) = query_texts(workload.schema.attributes, [workload.describe_in_group(group, 0)])
    return text if len(text) <= MAX_QUERY_CHARS else f"{text[: MAX_QUERY_CHARS - 1]}…"


def table_names(workload: Workload) -> list[str]:
    """Return one name per group: its attributes, or the text of its condition.

    A group whose only query is a condition has the name from `condition_name`.  If several other
    groups have the same attributes, their names contain the family, too.

    >>> from engine import Attribute
    >>> workload = Workload(Schema([Attribute.of_size("age", 4), Attribute.of_size("sex", 2)]))
    >>> table_names(workload.add("age").add("age", "range").add("sex"))
    ['age (marginal)', 'age (range)', 'sex']
    >>> table_names(workload.add("age", Custom(predicates=["age < 2"])).add("age"))
    ['age < 2', 'age']
    """
    conditions = [condition_name(workload, g) for g in range(len(workload.groups))]
    n_groups = Counter(
        group.attributes
        for group, condition in zip(workload.groups, conditions, strict=True)
        if not condition
    )
    return [
        condition
        or (
            set_name(group.attributes)
            if n_groups[group.attributes] == 1
            else f"{set_name(group.attributes)} ({group.family_text})"
        )
        for group, condition in zip(workload.groups, conditions, strict=True)
    ]


def workload_errors(
    workload: Workload, chosen: Sequence[int], plan: Plan | None = None
) -> pd.DataFrame:
    """Return a table of some groups of a workload and their typical errors under a plan.

    The columns are those of `workload_table` and "typical error": the RMSE over the queries of the
    group in counts, or NaN if ``plan`` is None.
    """
    from engine.analysis.variance_breakdown import errors_by_group

    table = workload_table(workload, chosen)
    errors = None if plan is None else errors_by_group(plan)["rmse"].to_numpy()[list(chosen)]
    return table.assign(**{"typical error": errors if errors is not None else math.nan})


def find_groups(workload: Workload, words: str) -> list[int]:
    """Return the indices of the groups that contain every word of a search text.

    A group contains a word if the word is part of its number (its index plus 1), of an attribute
    name or of the name of its family; case is ignored.  A word that no group contains selects the
    groups with an attribute that has this word in a label.  An empty search text returns all
    groups.

    >>> from engine import Attribute
    >>> sex = Attribute.of_size("sex", 2, kind="categorical")
    >>> schema = Schema([Attribute.of_size("age", 4), sex])
    >>> find_groups(Workload.all_ways(schema, (1, 2)), "AGE prefix")
    [0, 2]
    >>> vote = Schema([Attribute.categorical("vote", ["Green party", "none"]), sex])
    >>> find_groups(Workload.all_ways(vote, (1,)), "green")
    [0]
    """
    numbers = list(range(len(workload.groups)))
    search_words = words.casefold().split()
    if not search_words:
        return numbers
    texts = [
        f"{i + 1} {' '.join(group.attributes) or 'total'} {group.family_text}".casefold()
        for i, group in enumerate(workload.groups)
    ]
    for word in search_words:
        if any(word in text for text in texts):
            numbers = [i for i in numbers if word in texts[i]]
        else:
            names = _attributes_with_label(workload.schema, word)
            numbers = [i for i in numbers if names.intersection(workload.groups[i].attributes)]
    return numbers


def _attributes_with_label(schema: Schema, word: str) -> set[str]:
    """Return the names of the attributes of which a label contains ``word``, ignoring case.

    ``word`` must be casefolded.  "male" is also contained in "Female".
    """
    return {
        attribute.name
        for attribute in schema.attributes
        if any(word in label.casefold() for label in attribute.labels or ())
    }


def find_cells(attribute: Attribute, text: str, *, limit: int = 100) -> list[int]:
    """Return at most ``limit`` cells of an attribute whose text contains a search text.

    Case is ignored.  Cells whose text equals the search text come first.  If the attribute has no
    labels, only its first `MAX_CELLS_SEARCHED` cells are searched.  If its cells are integer codes,
    a search text that is a code also returns the cell of this code.

    >>> find_cells(Attribute.categorical("town", ["Ulm", "Neu-Ulm", "Bonn"]), "ulm")
    [0, 1]
    >>> find_cells(Attribute.of_size("zip", 30_000), "7", limit=3)
    [7, 17, 27]
    """
    search_text = text.strip().casefold()
    has_labels = attribute.labels is not None
    cells = range(attribute.size if has_labels else min(attribute.size, MAX_CELLS_SEARCHED))
    texts = attribute.labels or map(attribute.label, cells)
    cell_texts = [(cell, label.casefold()) for cell, label in zip(cells, texts, strict=True)]
    equal = [cell for cell, label in cell_texts if label == search_text]
    # An integer code equals the number of its cell, so this cell is returned even if it is beyond
    # the searched cells.
    is_number = re.fullmatch(r"[0-9]{1,8}", search_text) is not None
    if attribute.is_coded and is_number and int(search_text) < attribute.size:
        equal = [int(search_text)]
    containing = (
        cell for cell, label in cell_texts if search_text in label and label != search_text
    )
    return list(itertools.islice(itertools.chain(equal, containing), limit))


def page_of(numbers: Sequence[int], page: int, length: int) -> tuple[Sequence[int], int]:
    """Return the entries of a sequence that are on one page, and the number of pages.

    Every page has ``length`` entries, except that the last one can have fewer.  Pages are numbered
    from 1; a page number outside the range is replaced by the first or the last page.

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
    """Return the total number of cells of all marginals on attribute sets of a workload.

    An attribute set of several groups is counted once.
    """
    size = {attribute.name: attribute.size for attribute in workload.schema.attributes}
    return sum(
        math.prod(map(size.__getitem__, names))
        for names in {frozenset(g.attributes) for g in workload.groups}
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Query:
    """One linear query on a marginal table.

    Attributes
    ----------
    attributes : attributes of the marginal.
    tensor : coefficients of the cells of the marginal, shape ``schema.sizes(attributes)``.
    text : condition that the query counts, such as "age in 1..2".
    """

    attributes: tuple[str, ...]
    tensor: Array
    text: str


def box_query(schema: Schema, cells: Mapping[str, Sequence[int]]) -> Query:
    """Return the query that counts the records with the chosen cells of some attributes.

    ``cells`` maps an attribute to the numbers of its chosen cells.  Other attributes are not
    restricted.

    >>> from engine import Attribute
    >>> box_query(Schema([Attribute.of_size("age", 4)]), {"age": [1, 2]}).text
    'age in 1..2'
    """
    tensor, texts = np.ones(()), []
    for name, cells_of_attribute in cells.items():
        indicator, sorted_cells = np.zeros(schema[name].size), sorted(cells_of_attribute)
        indicator[sorted_cells] = 1.0
        tensor = np.multiply.outer(tensor, indicator)
        texts.append(_cells_text(schema[name], sorted_cells))
    text = " and ".join(filter(None, texts)) or "all records"
    return Query(attributes=tuple(cells), tensor=tensor, text=text)


def run_query(schema: Schema, runs: Mapping[str, tuple[int, int]]) -> Query:
    """Return the query that counts the records with cells in ranges of some attributes.

    ``runs`` maps an attribute to the first and the last cell of its range, inclusive.  Other
    attributes are not restricted.

    >>> from engine import Attribute
    >>> run_query(Schema([Attribute.of_size("age", 4)]), {"age": (1, 2)}).text
    'age in 1..2'
    """
    return box_query(schema, {name: range(first, last + 1) for name, (first, last) in runs.items()})


def parse_query(schema: Schema, attributes: Sequence[str], condition: str) -> Query:
    """Return the query on given attributes that counts the records satisfying a condition.

    Raises
    ------
    WorkloadError : the condition is not valid, or names other attributes.

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

    The attributes of the query are those in the condition.  An empty condition counts all records.

    Raises
    ------
    WorkloadError : the condition is not valid, names no attribute although it is not empty, or is
        on a table of more than `MAX_CELLS` cells.

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
            f"The attributes in the condition {quote_public(condition)} have a table of"
            f" {number(schema.cells(names))} cells; at most {MAX_CELLS:,} are allowed. Use fewer"
            " attributes, or write the query in SQL."
        )
    return parse_query(schema, names, condition)


def further_answers(
    measurement: Measurement, workload: Workload, confidence: float = 0.95
) -> pd.DataFrame:
    """Answer all queries of another workload from an existing measurement, without privacy cost.

    The weights of ``workload`` have no effect.

    Returns
    -------
    DataFrame with one row per query: query (its text), answer, std (standard error), low and high
    (ends of the confidence interval), in counts.

    Raises
    ------
    WorkloadError : the workload has no queries, or its schema is not that of the measurement.
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
    # The same measured numbers, with a plan whose groups are those of ``workload``.
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
    """Return the half-width, in counts, of the 95% interval of an answer under a plan.

    ``variance`` is the variance of the answer in counts^2.
    """
    return quantile(0.95, plan.budget.law) * math.sqrt(variance)


def _cells_text(attribute: Attribute, cells: Sequence[int]) -> str:
    """Return the text of the condition that an attribute has one of ``cells``, in ascending order.

    The text is "no value of" the attribute if there are no cells, and empty if ``cells`` are all
    cells of the attribute.
    """
    if not cells:
        return f"no value of {attribute.name}"
    if len(cells) >= attribute.size:
        return ""
    is_contiguous = cells[-1] - cells[0] + 1 == len(cells)
    if is_contiguous and (len(cells) == 1 or attribute.kind == "numeric"):
        return attribute.condition(cells[0], cells[-1])
    return f"{attribute.name} is {' or '.join(attribute.label(i) for i in cells)}"


def add_truth(
    answers: pd.DataFrame, plan: Plan, group: int, start: int, records: Any
) -> pd.DataFrame:
    """Return answers with the exact counts of simulated or public records as column ``truth``.

    Parameters
    ----------
    answers : one row per query, for consecutive queries of a group.
    group : index of the group in the workload.
    start : index of the first of these queries within the group.
    records : records as for `measure`.
    """
    queries = plan.workload.groups[group]
    rows = plan.budget.rows_per_person
    counts = count_marginals(records, plan.schema, [queries.attributes], rows_per_person=rows)
    truth = apply_group(
        queries, counts[queries.attributes].astype(float), start, start + len(answers)
    )
    return answers.assign(truth=truth)
