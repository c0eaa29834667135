"""Simulation of publication methods on public data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine.errors import PlanError
from engine.plans import Plan
from engine.postprocess.published_tables import Published
from engine.postprocess.uncertainty import simulate_measurement
from engine.records import count_marginals
from engine.release import apply_group
from engine.residuals import Space
from engine.workload import Schema, Workload

REHEARSALS = (2, 8)  # minimum and maximum number of simulations
SIMULATED_CELLS = 100_000  # number of cells, over all simulations, to aim for


@dataclass(kw_only=True, eq=False)
class _Tables:
    """Tables of a reference, in counts: published, or counted on demand and cached."""

    reference: Any
    schema: Schema
    cache: dict[Space, Array] = field(default_factory=dict)

    def __call__(self, names: Space) -> Array:
        if names not in self.cache:
            larger = next((held for held in self.cache if set(names) < set(held)), None)
            if isinstance(self.reference, Published):
                self.cache[names] = self.reference.table(names)
            elif larger is not None:
                common = [name for name in larger if name in names]
                summed = self.cache[larger].sum(axis=tuple(i for i, name in enumerate(larger) if name not in names))
                self.cache[names] = summed.transpose([common.index(name) for name in names])
            else:
                self.count([names])
        return self.cache[names]

    def count(self, sets: Iterable[Space]) -> None:
        """Count the tables on all these sets in one pass over the records."""
        counted = count_marginals(self.reference, self.schema, list(sets))
        self.cache |= {names: table.astype(float) for names, table in counted.items()}


def tables_of(reference: Any, workload: Workload) -> Callable[[Space], Array]:
    """Return a function from attributes to tables of a reference, in counts, shape (n_1, ..., n_k).

    Parameters
    ----------
    reference : `Published` tables of an earlier release, or public or simulated records as for
        `count_marginals`.

    Raises: PlanError if there is no reference, its schema differs, it has negative cells or no
    records.
    """
    if reference is None:
        raise PlanError(
            "A rehearsal needs a reference: published tables of an earlier release, or public or "
            "simulated records. Never give the private records: a plan is public."
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
        raise PlanError("The reference holds no record. Give a reference with records.")
    return table


def relative_error(answers: Callable[[int], Array], table: Callable[[Space], Array], workload: Workload) -> float:
    """Return the weighted mean error of answers, given the exact tables.

    The error of a group is the sum of absolute errors divided by the sum of exact answers; the mean
    has the weights of the groups.  ``answers`` returns the answers of a group, shape (queries,).
    """
    error = 0.0
    for number, group in enumerate(workload.groups):
        if group.weight > 0.0:
            exact = apply_group(group, table(group.attributes), 0, group.count)
            absolute_error = float(np.abs(answers(number) - exact).sum())
            error += group.weight * absolute_error / max(float(np.abs(exact).sum()), 1.0)
    return error / sum(group.weight for group in workload.groups)


def rehearsed_errors(plan: Plan, table: Callable[[Space], Array], workload: Workload) -> Array:
    """Return errors of simulated publications, shape (seeds,), weighted as in ``workload``."""
    cells = sum(workload.schema.cells(group.attributes) for group in workload.groups)
    seeds = range(min(max(SIMULATED_CELLS // cells, REHEARSALS[0]), REHEARSALS[1]))
    return np.array(
        [
            relative_error(
                simulate_measurement(plan, table, np.random.default_rng(s)).publish().values, table, workload
            )
            for s in seeds
        ]
    )


def published_errors(
    plan: Plan,
    reference: Any,
    *,
    weights: Sequence[float] | None = None,
) -> Array:
    """Return the errors of simulated publications of a plan on a reference, shape (rehearsals,).

    The error is the mean over groups with weights ``weights``, shape (groups,), by default those of
    the workload; see `relative_error`.  Plans with the same spaces are simulated with the same noise.

    Raises: see `weighed_for_publishing`.
    """
    groups = plan.workload.groups
    weighted_groups = [replace(g, weight=w) for g, w in zip(groups, weights or [g.weight for g in groups], strict=True)]
    workload = Workload(plan.workload.schema, tuple(weighted_groups))
    return rehearsed_errors(plan, tables_of(reference, workload), workload)
