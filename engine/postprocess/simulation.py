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
from engine.postprocess.uncertainty import simulated
from engine.records import count_marginals
from engine.release import apply_group
from engine.residuals import Space
from engine.workload import Schema, Workload

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


def tables_of(reference: Any, workload: Workload) -> Callable[[Space], Array]:
    """Return the tables of a reference that fits; raise PlanError for one that does not.

    ``reference`` : `Published` tables of an earlier release, or public or simulated records, as `count_marginals`
    takes them.  What is returned gives a table on some attributes, in counts, of shape (n_1, ..., n_k).
    """
    if reference is None:
        raise PlanError(
            "A rehearsal needs a reference: published tables of an earlier release, or public or simulated "
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


def missed(answers: Callable[[int], Array], table: Callable[[Space], Array], workload: Workload) -> float:
    """Return the error of answers by group, each of shape (queries,), on tables whose numbers are known.

    The error of a group is the sum of absolute errors over the sum of exact answers; groups are weighed.
    """
    error = 0.0
    for number, group in enumerate(workload.groups):
        if group.weight > 0.0:
            exact = apply_group(group, table(group.attributes), 0, group.count)
            off = float(np.abs(answers(number) - exact).sum())
            error += group.weight * off / max(float(np.abs(exact).sum()), 1.0)
    return error / sum(group.weight for group in workload.groups)


def rehearsed_errors(
    made: Plan,
    table: Callable[[Space], Array],
    workload: Workload,
    fit: str = "shrunk",
    seeds: Sequence[int] = (),
) -> Array:
    """Return the errors of what rehearsals publish, one a seed, groups weighed as in ``workload``. Shape (seeds,)."""
    cells = sum(workload.schema.cells(group.attributes) for group in workload.groups)
    seeds = seeds or range(min(max(ENOUGH // cells, REHEARSALS[0]), REHEARSALS[1]))
    return np.array(
        [missed(simulated(made, table, np.random.default_rng(s)).publish(fit).values, table, workload) for s in seeds]
    )


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
    return rehearsed_errors(made, tables_of(reference, workload), workload, fit, range(rehearsals or 0))
