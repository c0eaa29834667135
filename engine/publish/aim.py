"""Weights of groups for what will be published: tables are judged after they were fitted, and not by their noise.

Fitting takes most noise from large tables, whose cells are small, and from those that smaller tables tell already.  So
the weight of a group is multiplied by

    queries^-a  d^b          d the share of records that its table places otherwise than smaller tables say

and the powers a and b are those whose rehearsals on a reference are nearest to it once they are published.  All
candidates are rehearsed with the same noise, the weights as they were given among them, and none that is worse than
these in any rehearsal is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.checks import instance
from engine.errors import PlanError
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.progress import Progress, told
from engine.publish.tables import Published, simulated
from engine.publish.tables import reference as most_even
from engine.release import apply_group, count_marginals
from engine.spaces import Space
from engine.workload import Schema, Workload

QUERY_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
SIGNAL_POWERS = (0.25, 0.5, 0.75)
LEAST = 0.1  # share of records: a reference may have lost to noise what its table says beyond smaller ones
REHEARSALS, ENOUGH = (2, 8), 100_000  # at least and at most, and the cells that are enough


@dataclass(kw_only=True, eq=False)
class _Tables:
    """Tables of a reference, in counts: of published ones, or counted when they are asked for."""

    reference: Any
    schema: Schema
    found: dict[Space, Array] = field(default_factory=dict)

    def __call__(self, names: Space) -> Array:
        if names not in self.found:
            larger = next((held for held in self.found if set(names) < set(held)), None)
            if isinstance(self.reference, Published):
                self.found[names] = self.reference.table(names)
            elif larger is not None:
                kept = [name for name in larger if name in names]
                summed = self.found[larger].sum(axis=tuple(i for i, name in enumerate(larger) if name not in names))
                self.found[names] = summed.transpose([kept.index(name) for name in names])
            else:
                self.count([names])
        return self.found[names]

    def count(self, sets: Iterable[Space]) -> None:
        """Read records once for all of these."""
        counted = count_marginals(self.reference, self.schema, list(sets))
        self.found |= {names: table.astype(float) for names, table in counted.items()}


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
    table, tell = _tables(reference, workload), told(progress, "Planning was cancelled; nothing was changed.")
    asked = [i for i, group in enumerate(workload.groups) if group.weight > 0.0]
    sizes = np.array([float(group.count) for group in workload.groups])
    beyond = np.array([_beyond(table, workload, i) if i in asked else 1.0 for i in range(len(workload.groups))])
    tried: dict[tuple[float, float], tuple[Array, Workload]] = {}
    most = len(QUERY_POWERS) + len(SIGNAL_POWERS)

    def error(powers: tuple[float, float]) -> float:
        if powers not in tried:
            tell(len(tried) / most, "Rehearsing what would be published")
            made = _weighed(workload, sizes ** -powers[0] * beyond ** powers[1])
            tried[powers] = _missed(plan(made, budget, mechanism, **options), table, workload), made
        found, as_given = tried[powers][0], tried[QUERY_POWERS[0], 0.0][0]
        return float(found.mean()) if (found <= as_given).all() else math.inf

    best, _ = min(((a, 0.0) for a in QUERY_POWERS), key=error)
    chosen = min([(best, 0.0), *((best, b) for b in SIGNAL_POWERS)], key=error)
    return tried[chosen][1]


def _tables(reference: Any, workload: Workload) -> Callable[[Space], Array]:
    """Return the tables of a reference that fits; raise PlanError for one that does not."""
    if reference is None:
        raise PlanError(
            'The aim "published" needs a reference: published tables of an earlier release, or public or simulated '
            "records. Never give the records that are to be protected: a plan is public."
        )
    if isinstance(reference, Published):
        theirs = reference.measurement.plan.schema
        if any(name not in theirs or theirs[name].size != workload.schema[name].size for name in workload.schema):
            raise PlanError("The reference has other attributes than the workload. Publish it on the same schema.")
        if reference.fit == "none":
            raise PlanError('A reference has no negative cells. Publish it with fit="shrunk" or "nonnegative".')
    table = _Tables(reference=reference, schema=workload.schema)
    if not isinstance(reference, Published):
        table.count({group.attributes for group in workload.groups})
    if not float(table(())) > 0.0:
        raise PlanError("The reference holds no record, so that it says nothing of the tables to come. Give another.")
    return table


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


def published_errors(
    made: Plan,
    reference: Any,
    *,
    weights: Sequence[float] | None = None,
    fit: str = "shrunk",
    rehearsals: int | None = None,
) -> Array:
    """Return the errors of what rehearsals of a plan on a reference publish, shape (rehearsals,).

    The error of a group is the sum of absolute errors of its published answers over the sum of its exact ones; groups
    are weighed by ``weights``, shape (groups,), or their own, and their mean is returned.  Every plan of the same
    spaces meets the same noise.

    Raises: as `weighed_for_publishing`.
    """
    groups = made.workload.groups
    weighed = [replace(g, weight=w) for g, w in zip(groups, weights or [g.weight for g in groups], strict=True)]
    workload = Workload(made.workload.schema, tuple(weighed))
    return _missed(made, _tables(reference, workload), workload, fit, rehearsals)


def _missed(
    made: Plan,
    table: Callable[[Space], Array],
    workload: Workload,
    fit: str = "shrunk",
    rehearsals: int | None = None,
) -> Array:
    cells = sum(workload.schema.cells(group.attributes) for group in workload.groups)
    errors = np.zeros(rehearsals or min(max(ENOUGH // cells, REHEARSALS[0]), REHEARSALS[1]))
    for seed in range(len(errors)):
        published = simulated(made, table, np.random.default_rng(seed)).publish(fit)
        for number, group in enumerate(workload.groups):
            if group.weight > 0.0:
                exact = apply_group(group, table(group.attributes), 0, group.count)
                off = float(np.abs(published.values(number) - exact).sum())
                errors[seed] += group.weight * off / max(float(np.abs(exact).sum()), 1.0)
    return errors / sum(group.weight for group in workload.groups)
