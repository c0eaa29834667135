"""Sets of analyses to choose from, coarse first: each is a name for people and a workload on one schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

import numpy as np

from engine.checks import whole
from engine.choice.common_mechanism import CENSUS_AGES
from engine.errors import WorkloadError
from engine.workload import Custom, Schema, Workload

FEWER, PRESENT = "one attribute fewer", "present workload"
Analyses = Mapping[str, Workload]


def by_ways(schema: Schema, ways: Sequence[int] = (1, 2)) -> Analyses:
    """Return all k-way tables for each k, from few attributes to many.

    Raises: WorkloadError unless there are two numbers or more, each from 1 to the number of attributes.

    >>> from engine import Attribute
    >>> found = by_ways(Schema([Attribute.of_size(name, 2) for name in "abc"]), (1, 2))
    >>> {name: workload.queries for name, workload in found.items()}
    {'1-way': 6, '2-way': 12}
    """
    chosen = sorted(set(ways))
    for k in chosen:
        whole("way", k, 1, len(schema))
    if len(chosen) < 2:
        raise WorkloadError(f"The ways {chosen} were given. Give at least two numbers from 1 to {len(schema)}.")
    return {f"{k}-way": Workload.all_ways(schema, ways=(k,), family="marginal") for k in chosen}


def against_coarser(workload: Workload) -> Analyses:
    """Return a workload and the coarser one that asks every group about one attribute fewer.

    Queries on the attributes that stay are those of the group; where they belong together, every cell is asked.

    Raises: WorkloadError if there are no groups, or no group has an attribute to leave out.

    >>> from engine import Attribute
    >>> pairs = Workload.all_ways(Schema([Attribute.of_size(name, 2) for name in "abc"]), ways=2)
    >>> [len(w.groups) for w in against_coarser(pairs).values()]
    [3, 3]
    """
    most = max((len(g.attributes) for g in workload.groups), default=0)
    if most == 0:
        raise WorkloadError("This workload has no group with an attribute to leave out. Add groups to it first.")
    coarser, known = Workload(workload.schema), set()
    for group in workload.groups:
        families = {group.attributes[p.axes[0]]: p.family for p in group.parts if len(p.axes) == 1}
        for kept in combinations(group.attributes, max(len(group.attributes) - 1, 0)):
            family = {name: families.get(name, "marginal") for name in kept} or "total"
            wider = Workload(workload.schema).add(kept, family)
            key = (frozenset(kept), wider.groups[0].key)
            if key not in known:
                known.add(key)
                coarser = coarser.add(kept, family)
    return {FEWER: coarser, PRESENT: workload}


def census_ages(schema: Schema, *, age: str = "age", by: str = "sex") -> Analyses:
    """Return the four tables of age by sex of a census cascade: all ages together, 4, 9 and 23 bins of age.

    Parameters
    ----------
    age : an attribute with one cell a year, 103 in all, the last of them open.
    by : the attribute that every table is split by.

    Raises: WorkloadError when the schema has no such attributes.
    Source: Xiao, Wang, Zhang and Kifer 2022, section 7.5.1.
    """
    years = max(CENSUS_AGES["Total"])
    if age not in schema or by not in schema or schema[age].size != years:
        raise WorkloadError(
            f"The census example needs '{by}' and '{age}' with {years} cells, one a year. Use the demo schema of the "
            "census."
        )
    found = {"Total": Workload(schema).add((by,), "marginal")}
    for name, edges in CENSUS_AGES.items():
        if name == "Total":
            continue
        starts = np.array(edges)
        bin_of_year = np.searchsorted(starts, np.arange(years), side="right") - 1
        rows = (bin_of_year == np.arange(len(edges) - 1)[:, None]).astype(float)
        bins = Custom(rows, labels=[_bin(age, a, b, years) for a, b in pairwise(edges)])
        found[name] = Workload(schema).add((age, by), {age: bins, by: "marginal"})
    return found


def _bin(age: str, first: int, stop: int, years: int) -> str:
    return (
        f"{age} {first} and over"
        if stop == years
        else f"{age} {first}" + (f" to {stop - 1}" if stop > first + 1 else "")
    )
