"""Group weights that minimize the error of published tables.

Fitting removes most noise from large tables, whose cells are small, and from tables that smaller
tables predict well. Therefore the weight of a group is multiplied by

    queries^-a  d^b

where d is the share of records that its table places differently from the maximum-entropy table of
its margins.  The powers a and b minimize the simulated error of published tables on a reference.
All candidates, including the original weights, are simulated with the same noise; a candidate with
a larger error than the original weights in any simulation is rejected.

Simulation of publication methods on public data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine._validation import check_type
from engine.errors import PlanError
from engine.mechanisms import plan
from engine.plans import Plan
from engine.postprocess.published_tables import Published
from engine.postprocess.shrinkage import max_entropy_table as maximum_entropy
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.progress import Progress, progress_reporter
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
                summed = self.cache[larger].sum(
                    axis=tuple(i for i, name in enumerate(larger) if name not in names)
                )
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
        if any(
            name not in theirs or theirs[name].size != workload.schema[name].size
            for name in workload.schema
        ):
            raise PlanError(
                "The reference has other attributes than the workload. Publish it on the same"
                " schema."
            )
        if reference.fit == "none":
            raise PlanError(
                'A reference has no negative cells. Publish it with fit="shrunk" or "nonnegative".'
            )
    table = _Tables(reference=reference, schema=workload.schema)
    if not isinstance(reference, Published):
        table.count({group.attributes for group in workload.groups})
    if not float(table(())) > 0.0:
        raise PlanError("The reference holds no record. Give a reference with records.")
    return table


def relative_error(
    answers: Callable[[int], Array], table: Callable[[Space], Array], workload: Workload
) -> float:
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
                simulate_measurement(plan, table, np.random.default_rng(s)).publish().values,
                table,
                workload,
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
    the workload; see `relative_error`.  Plans with the same spaces are simulated with the same
    noise.

    Raises: see `weighed_for_publishing`.
    """
    groups = plan.workload.groups
    weighted_groups = [
        replace(g, weight=w)
        for g, w in zip(groups, weights or [g.weight for g in groups], strict=True)
    ]
    workload = Workload(plan.workload.schema, tuple(weighted_groups))
    return rehearsed_errors(plan, tables_of(reference, workload), workload)


QUERY_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
SIGNAL_POWERS = (0.25, 0.5, 0.75)
# lower bound of d: the noise of a published reference may hide the deviation
MIN_DEVIATION = 0.1


def weighed_for_publishing(
    workload: Workload,
    budget: Budget,
    reference: Any,
    mechanism: str = "querysmasher",
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Workload:
    """Choose the group weights of smallest simulated error of published answers.

    Parameters
    ----------
    workload : its group weights are the weights of the error; query weights do not change.
    reference : public tables similar to the private ones: `Published` tables of an earlier release,
        or public or simulated records as for `count_marginals`, with a similar number of records.
    **options : options of the mechanism, see `engine.plan`.

    The error of a group is the sum of absolute errors of its published answers divided by the sum
    of its exact answers.

    Guarantee: a deterministic function of its arguments.  On the reference, the error is at most
    that of the original weights.

    Raises
    ------
    PlanError : no reference, a reference on a different schema or without records, or an objective
        other than the weighted sum.
    NotApplicable : the mechanism does not measure residual spaces, so that its answers cannot be
        published.
    """
    check_type(
        "workload",
        workload,
        Workload,
        give="a Workload, such as Workload.all_ways(schema)",
        error=PlanError,
    )
    if options.get("objective", "sum") != "sum":
        raise PlanError(
            'The aim "published" chooses weights for the weighted sum. Leave the objective out.'
        )
    table, tell = (
        tables_of(reference, workload),
        progress_reporter(progress, "Planning was cancelled; nothing was changed."),
    )
    weighted = [i for i, group in enumerate(workload.groups) if group.weight > 0.0]
    sizes = np.array([float(group.count) for group in workload.groups])
    deviations = np.array(
        [
            _deviation(table, workload, i) if i in weighted else 1.0
            for i in range(len(workload.groups))
        ]
    )
    candidates: dict[tuple[float, float], tuple[Array, Workload]] = {}
    max_candidates = len(QUERY_POWERS) + len(SIGNAL_POWERS)

    def error(powers: tuple[float, float]) -> float:
        if powers not in candidates:
            tell(len(candidates) / max_candidates, "Rehearsing what would be published")
            candidate = _scale_weights(workload, sizes ** -powers[0] * deviations ** powers[1])
            candidates[powers] = (
                rehearsed_errors(plan(candidate, budget, mechanism, **options), table, workload),
                candidate,
            )
        errors, original_errors = candidates[powers][0], candidates[QUERY_POWERS[0], 0.0][0]
        return float(errors.mean()) if (errors <= original_errors).all() else math.inf

    best, _ = min(((a, 0.0) for a in QUERY_POWERS), key=error)
    chosen = min([(best, 0.0), *((best, b) for b in SIGNAL_POWERS)], key=error)
    return candidates[chosen][1]


def _scale_weights(workload: Workload, factors: Array) -> Workload:
    """Multiply group weights by factors, shape (groups,), normalized to the same sum."""
    query_weights = np.array([group.weight * group.count for group in workload.groups])
    factors = factors * (query_weights.sum() / (query_weights @ factors))
    groups = tuple(
        replace(g, weight=g.weight * float(f))
        for g, f in zip(workload.groups, factors, strict=True)
    )
    return Workload(workload.schema, groups)


def _deviation(table: Callable[[Space], Array], workload: Workload, number: int) -> float:
    """Return the share of records by which a table differs from its reference."""
    names = tuple(n for n in workload.groups[number].attributes if workload.schema[n].size > 1)
    if len(names) < 2:
        return 1.0
    exact = table(names)
    axes = tuple(range(len(names)))
    margins = {
        subset: exact.sum(axis=tuple(a for a in axes if a not in subset))
        for subset in (*(axes[:i] + axes[i + 1 :] for i in axes), axes[:-2])
    }
    deviation = float(np.abs(exact - maximum_entropy(axes, margins)).sum() / exact.sum())
    return max(deviation, MIN_DEVIATION)
