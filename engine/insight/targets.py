"""Fitness for use: from a budget to accuracy, and from the accuracy that is needed to the budget.

    share_within(plan, tolerance)    the share of the queries whose standard error is within a tolerance
    tolerance_for(plan, share)       the smallest tolerance that this share of the queries meets
    budget_for(workload, targets)    the smallest budget at which every query, or a share of them, meets its target

The variances of one plan at another budget are in proportion to 1 / pcost, so the smallest budget is one division away
from any plan; only the rounding of the noise to its grid has to be made good.  Variances are counted without listing
queries that are alike; the cost is that of one pass over the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.errors import PlanError
from engine.mechanisms import plan
from engine.plans import Plan, calibrate, check_targets, footprint
from engine.privacy import Budget
from engine.workload import Workload

FITS = ("scale", "shape")
BINS = 1 << 16
KEPT = 4_000_000  # values are sorted, once so few are left
SPAN = 2.0**-40  # or once they differ by less than this share
MARGIN = 1.0 + 1e-8  # more than two plans at one budget differ by rounding to the grid


def share_within(made: Plan, tolerance: float | Sequence[float]) -> float:
    """Return the share of all queries whose standard error is at most a tolerance, from 0 to 1.

    Parameters
    ----------
    tolerance : standard error in counts, above 0: one number, or one a group.

    Raises
    ------
    PlanError : a tolerance that is no number above 0, or not one a group.
    """
    within = 0.0
    for ratios, numbers in _ratios(made, _by_group(made.workload, tolerance, "tolerance")):
        within += float(np.sum(numbers[ratios <= 1.0]))
    return within / made.workload.queries


def tolerance_for(made: Plan, share: float = 1.0) -> float:
    """Return the smallest standard error, in counts, that at least this share of all queries is within.

    Guarantee: exact up to a relative 1e-12.  Infinite when too many queries of weight zero are not answerable.

    Raises
    ------
    PlanError : a share that is not above 0 and at most 1.

    >>> from engine import Attribute, Schema
    >>> made = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age"), Budget(pcost=1.0))
    >>> round(tolerance_for(made, 0.5), 6), share_within(made, 0.99)
    (1.0, 0.0)
    """
    return math.sqrt(_quantile(made, (1.0,) * len(made.workload.groups), _checked_share(share)))


def budget_for(
    workload: Workload,
    targets: float | Sequence[float],
    share: float = 1.0,
    mechanism: str = "querysmasher",
    fit: str = "scale",
    **options: Any,
) -> Budget:
    """Return the smallest budget at which a share of all queries has a standard error within its target.

    Parameters
    ----------
    targets : largest standard error that is fine, in counts: one number, or one a group.
    share : of the queries, above 0 and at most 1.
    fit : "scale", noise in the proportions of ``plan(workload, budget, mechanism, **options)``; "shape", proportions
        made for the targets, as ``objective="max", targets=targets`` does.  A shape needs less where ``share`` is 1.
    options : of the mechanism, as for `plan`.

    Guarantee: ``plan(workload, budget_for(...), mechanism, **options)``, with ``objective="max", targets=targets`` for
    a shape, keeps the targets for the share.

    Raises
    ------
    PlanError : targets or a share that are none, or targets that no budget meets, because queries of weight zero are
        not answerable.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age")
    >>> round(budget_for(workload, 0.5).pcost, 4)
    4.0
    """
    if fit not in FITS:
        raise PlanError(f"fit was {fit!r}. Choose one of {', '.join(FITS)}.")
    share, squares = _checked_share(share), _by_group(workload, targets, "targets")
    if fit == "shape":
        taken = [name for name in ("objective", "power", "targets") if name in options]
        if taken:
            raise PlanError(f"A shape has its own objective. Leave out {', '.join(taken)}, or take fit='scale'.")
        options = options | {"objective": "max", "targets": check_targets(targets)}
    made = plan(workload, Budget(pcost=1.0), mechanism, **options)
    pcost = 1.0
    for _ in range(20):
        needed = _quantile(made, squares, share)
        if not math.isfinite(needed):
            raise PlanError(
                f"Less than the share {share:g} of the queries can be answered at all: some have weight zero and are "
                "not covered by the others. Give them a weight, leave them out, or ask for a smaller share."
            )
        if needed * MARGIN <= 1.0:
            return Budget(pcost=pcost)
        pcost *= needed * MARGIN if needed > 1.0 else MARGIN
        made = _at_budget(made, Budget(pcost=pcost))
    raise PlanError("The noise of these targets is finer than its grid. Lower max_records, or ask for less accuracy.")


def _at_budget(made: Plan, budget: Budget) -> Plan:
    """Return the same strategies and shares at another budget."""
    scale = math.sqrt(made.budget.pcost / budget.pcost)
    noises = {space: block.noise * scale for space, block in made.blocks.items()}
    strategies = {space: block.factors for space, block in made.blocks.items()}
    blocks = calibrate(strategies, noises, budget.pcost, made.max_records, unions=made.split.unions)
    # the key of a block need not be its attributes
    named = {key: replace(block, attributes=made.blocks[key].attributes) for key, block in blocks.items()}
    return replace(made, budget=budget, blocks=named)


def _checked_share(share: object) -> float:
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise PlanError(f"share was {share!r}. Give a number above 0 and at most 1, such as 0.95.")
    return float(share)


def _by_group(workload: Workload, given: Any, name: str) -> tuple[float, ...]:
    """Return the squares of one number for all groups, or of one for each."""
    try:
        values = check_targets(given)
    except PlanError as error:
        raise PlanError(str(error).replace("targets was", f"{name} was")) from None
    several = values if isinstance(values, tuple) else (values,) * len(workload.groups)
    if len(several) != len(workload.groups):
        raise PlanError(
            f"{name} has {len(several)} numbers for {len(workload.groups)} groups. Give one a group, or one for all."
        )
    return tuple(v * v for v in several)


def _ratios(made: Plan, squares: Sequence[float]) -> Iterator[tuple[Array, Array]]:
    """Yield (variances over squared targets, number of queries that have them), groups that are alike at once."""
    kinds: dict[tuple[int, float], list[int]] = {}
    for i, square in enumerate(squares):
        kinds.setdefault((id(made.group_variance(i)), square), []).append(i)
    for (_, square), groups in kinds.items():
        found = made.group_variance(groups[0])
        if found.unmeasured and not math.isfinite(found.total()):
            count = made.workload.groups[groups[0]].count
            for start in range(0, count, KEPT):
                values = found.values(start, min(count, start + KEPT)) / square
                yield values, np.full(len(values), float(len(groups)))
            continue
        for values, numbers in footprint(found).blocks():
            yield values / square, numbers * len(groups)


def _quantile(made: Plan, squares: Sequence[float], share: float) -> float:
    """Return the smallest ratio that at least a share of the queries is within.

    A histogram over the logarithm narrows the range by a factor of 65,536 a pass, until few values are left to sort.
    """
    # all queries below the number wanted, however the share was rounded
    wanted = math.ceil(made.workload.queries * share * (1.0 - 1e-15))
    low, high, below, size = 0.0, math.inf, 0.0, 0
    edges = np.concatenate([[0.0], np.geomspace(1e-30, 1e30, BINS - 1), [math.inf]])
    while True:
        counts: npt.NDArray[np.float64] = np.zeros(len(edges) - 1)
        sizes = np.zeros(len(edges) - 1)
        endless = 0.0
        for values, numbers in _ratios(made, squares):
            flat, weight = values.ravel(), numbers.ravel()
            endless += float(weight[np.isinf(flat)].sum())
            inside = (flat >= low) & (flat < high) & np.isfinite(flat)
            bins = np.searchsorted(edges, flat[inside], side="right") - 1
            counts += np.bincount(bins, weight[inside], minlength=len(counts))
            sizes += np.bincount(bins, minlength=len(counts))
        reached = below + np.cumsum(counts)
        at = int(np.searchsorted(reached, wanted))
        if at == len(counts):
            return math.inf if endless else float(high)
        below, size = float(reached[at] - counts[at]), int(sizes[at])
        low, high = float(edges[at]), float(edges[at + 1])
        if size <= KEPT or high - low <= SPAN * high:
            return _sorted_quantile(made, squares, low, high, wanted - below)
        edges = np.linspace(low, high, BINS + 1)


def _sorted_quantile(made: Plan, squares: Sequence[float], low: float, high: float, wanted: float) -> float:
    pieces = []
    for values, numbers in _ratios(made, squares):
        inside = (values >= low) & (values < high)
        found, inverse = np.unique(values[inside], return_inverse=True)
        pieces.append((found, np.bincount(inverse, numbers[inside], minlength=len(found))))
    together = np.concatenate([v for v, _ in pieces])
    order = np.argsort(together, kind="stable")
    reached = np.cumsum(np.concatenate([n for _, n in pieces])[order])
    return float(together[order][min(int(np.searchsorted(reached, wanted)), len(order) - 1)])
