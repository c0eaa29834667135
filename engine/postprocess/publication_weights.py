"""Group weights for published tables.

Fitting takes most noise from large tables, whose cells are small, and from those that smaller tables tell already.  So
the weight of a group is multiplied by

    queries^-a  d^b          d the share of records that its table places otherwise than smaller tables say

and the powers a and b are those whose rehearsals on a reference are nearest to it once they are published.  All
candidates are rehearsed with the same noise, the weights as they were given among them, and none that is worse than
these in any rehearsal is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine._validation import instance
from engine.errors import PlanError
from engine.mechanisms import plan
from engine.postprocess.shrinkage import reference as most_even
from engine.postprocess.simulation import rehearsed_errors, tables_of
from engine.privacy import Budget
from engine.progress import Progress, told
from engine.residuals import Space
from engine.workload import Workload

QUERY_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
SIGNAL_POWERS = (0.25, 0.5, 0.75)
LEAST = 0.1  # share of records: a reference may have lost to noise what its table says beyond smaller ones


def weighed_for_publishing(
    workload: Workload,
    budget: Budget,
    reference: Any,
    mechanism: str = "querysmasher",
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Workload:
    """Return a workload with the weights that make published answers nearest to a reference; see `engine.plan`.

    Parameters
    ----------
    reference : tables like those to come, which anybody may know: `Published` tables of an earlier release, or public
        or simulated records, as `count_marginals` takes them.  Numbers of records should be alike.

    The error of a group is the sum of absolute errors of its published answers over the sum of its exact ones; groups
    are weighed by the weights that they have, and single queries keep theirs.

    Guarantee: a function of its arguments alone.  On the reference no worse than the weights as they were.

    Raises
    ------
    PlanError : no reference, one on another schema or without records, or an objective that weights do not move.
    NotApplicable : the mechanism measures no residual spaces, so that nothing can be published.
    """
    instance("workload", workload, Workload, give="a Workload, such as Workload.all_ways(schema)", error=PlanError)
    if options.get("objective", "sum") != "sum":
        raise PlanError('The aim "published" chooses weights for the weighted sum. Leave the objective out.')
    table, tell = tables_of(reference, workload), told(progress, "Planning was cancelled; nothing was changed.")
    asked = [i for i, group in enumerate(workload.groups) if group.weight > 0.0]
    sizes = np.array([float(group.count) for group in workload.groups])
    beyond = np.array([_beyond(table, workload, i) if i in asked else 1.0 for i in range(len(workload.groups))])
    tried: dict[tuple[float, float], tuple[Array, Workload]] = {}
    most = len(QUERY_POWERS) + len(SIGNAL_POWERS)

    def error(powers: tuple[float, float]) -> float:
        if powers not in tried:
            tell(len(tried) / most, "Rehearsing what would be published")
            made = _weighed(workload, sizes ** -powers[0] * beyond ** powers[1])
            tried[powers] = rehearsed_errors(plan(made, budget, mechanism, **options), table, workload), made
        found, as_given = tried[powers][0], tried[QUERY_POWERS[0], 0.0][0]
        return float(found.mean()) if (found <= as_given).all() else math.inf

    best, _ = min(((a, 0.0) for a in QUERY_POWERS), key=error)
    chosen = min([(best, 0.0), *((best, b) for b in SIGNAL_POWERS)], key=error)
    return tried[chosen][1]


def _weighed(workload: Workload, factors: Array) -> Workload:
    """Return a workload with its weights times factors, shape (groups,), so that their sum over queries stays."""
    own = np.array([group.weight * group.count for group in workload.groups])
    factors = factors * (own.sum() / (own @ factors))
    groups = tuple(replace(g, weight=g.weight * float(f)) for g, f in zip(workload.groups, factors, strict=True))
    return Workload(workload.schema, groups)


def _beyond(table: Callable[[Space], Array], workload: Workload, number: int) -> float:
    """Return the share of records that a group's table places otherwise than tables on fewer attributes say."""
    names = tuple(n for n in workload.groups[number].attributes if workload.schema[n].size > 1)
    if len(names) < 2:
        return 1.0
    exact = table(names)
    axes = tuple(range(len(names)))
    margins = {
        kept: exact.sum(axis=tuple(a for a in axes if a not in kept))
        for kept in (*(axes[:i] + axes[i + 1 :] for i in axes), axes[:-2])
    }
    moved = float(np.abs(exact - most_even(axes, margins)).sum() / exact.sum())
    return max(moved, LEAST)
