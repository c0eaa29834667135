"""Clusters of groups: which groups of a workload are answered from one strategy."""

from __future__ import annotations

import numpy as np

from engine.whole_group import whole_group
from engine.workload import Group, Workload


def weighted_groups(workload: Workload) -> tuple[int, ...]:
    """Return the numbers of the groups that the objective sees; rows of zeros and weights of zero leave no trace."""
    return tuple(k for k, g in enumerate(workload.groups) if g.weight > 0 and _asks(g))


def _asks(group: Group) -> bool:
    weights = group.query_weights
    if weights is not None and not weights.any():
        return False
    parts = (whole_group(group),) if weights is not None and len(group.parts) > 1 else group.parts
    for part in parts:
        if weights is None and part.family.arity is not None:  # rows of ones and zeros by rule, never all zero
            continue
        chunks = (
            (rows, None if weights is None else weights[i : i + len(rows)])
            for i, rows in part.family.chunks(part.sizes)
        )
        if not any(bool(np.any(rows if w is None else rows[w > 0])) for rows, w in chunks):
            return False
    return True


def by_sets(workload: Workload) -> list[tuple[int, ...]]:
    """Return one cluster for every set of attributes.

    >>> from engine.schema import Attribute, Schema
    >>> asked = Workload.all_ways(Schema([Attribute.of_size(c, 3) for c in "ab"]), (1, 2)).add("a", "marginal")
    >>> by_sets(asked), by_maximal_sets(asked)
    ([(0, 3), (1,), (2,)], [(2, 0, 3, 1)])
    """
    found: dict[frozenset[str], list[int]] = {}
    for k in weighted_groups(workload):
        found.setdefault(frozenset(workload.groups[k].attributes), []).append(k)
    return [tuple(v) for v in found.values()]


def by_maximal_sets(workload: Workload) -> list[tuple[int, ...]]:
    """Return one cluster for every largest set, with each smaller set in one of the clusters that cover it.

    A smaller set goes where fewest groups are yet, in the order of the workload among equals.
    """
    clusters: dict[frozenset[str], list[int]] = {}
    sets = {frozenset(workload.groups[c[0]].attributes): c for c in by_sets(workload)}
    for names in sorted(sets, key=len, reverse=True):
        covering = [held for names_held, held in clusters.items() if names <= names_held]
        if covering:
            min(covering, key=len).extend(sets[names])
        else:
            clusters[names] = list(sets[names])
    return [tuple(v) for v in clusters.values()]
