"""Coverage check: rehearse many times, and count how often the intervals hold the truth.

It runs the very code of a release on simulated or public records, so it checks what will be handed out, not a formula.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._format import how_many
from engine.errors import PlanError
from engine.plans import Plan
from engine.progress import Progress, told
from engine.records import count_marginals
from engine.release import apply_group, measure, quantile
from engine.release.ingest import maximal_sets

if TYPE_CHECKING:
    import pandas as pd


LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, kw_only=True, eq=False)
class Coverage:
    """What came of many rehearsals.

    Attributes
    ----------
    rehearsals, queries : how often the plan was measured, and how many of its queries were watched.
    table : one row a level: promised and found coverage, and how far the found one may stray by chance.
    bias : mean error over its standard error of the query that strays most, in standard errors of that mean.
    spread : mean squared error over the predicted variance, all watched queries together; 1 is as predicted.
    """

    rehearsals: int
    queries: int
    table: pd.DataFrame
    bias: float
    spread: float

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        row = self.table.set_index("promised").loc[0.95]
        return (
            f"In {how_many(self.rehearsals, 'rehearsal')} of {how_many(self.queries, 'query', 'queries')}, "
            f"{row['found']:.1%} of the 95% intervals held the truth; the mean squared error was {self.spread:.3f} "
            "times the predicted variance."
        )


def coverage_check(
    plan: Plan,
    records: Any,
    *,
    rehearsals: int = 1000,
    queries: int = 400,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> Coverage:
    """Rehearse a plan many times and compare answers, intervals and errors with the exact counts.

    Parameters
    ----------
    records : simulated or public records, as `measure` takes them; never confidential ones, because the truth is used.
    queries : how many queries are watched, spread evenly over the groups.
    seconds : stop after this time with the rehearsals done so far, at least two.

    Raises
    ------
    PlanError : fewer than two rehearsals were asked for.
    Cancelled : ``progress`` returned False.
    """
    import pandas as pd

    if isinstance(rehearsals, bool) or not isinstance(rehearsals, int) or rehearsals < 2:
        raise PlanError(f"rehearsals was {rehearsals!r}. Give a whole number from 2, such as 1000.")
    groups = range(len(plan.workload.groups))
    chosen = _watched(plan, queries)
    asked = [plan.workload.groups[i].attributes for i in groups if len(chosen[i])]
    sets = list(dict.fromkeys([*maximal_sets(plan), *asked]))
    counts = count_marginals(records, plan.schema, sets, rows_per_person=plan.budget.rows_per_person)
    truth, std = [], []
    for i in groups:
        if len(chosen[i]):
            group = plan.workload.groups[i]
            table = np.asarray(counts[group.attributes], dtype=float)
            truth.append(_each(partial(apply_group, group, table), chosen[i]))
            std.append(np.sqrt(_each(partial(plan.variances, i), chosen[i])))
    exact, scale = np.concatenate(truth), np.concatenate(std)
    errors: list[np.ndarray[Any, Any]] = []
    tell = told(progress, "The coverage check was cancelled; nothing was spent.")
    started = time.monotonic()
    while len(errors) < rehearsals and (len(errors) < 2 or time.monotonic() - started < seconds):
        drawn = measure(plan, counts, rehearsal=True)
        found = [_each(partial(drawn.values, i), chosen[i]) for i in groups if len(chosen[i])]
        errors.append((np.concatenate(found) - exact) / scale)
        tell(len(errors) / rehearsals, f"Rehearsal {len(errors):,}")
    scores = np.array(errors)
    law = plan.budget.law
    rows = []
    for level in LEVELS:
        inside = np.abs(scores) <= quantile(level, law)
        # queries of one rehearsal share their noise, so the spread between rehearsals is what chance allows
        stray = 2.0 * float(inside.mean(axis=1).std(ddof=1)) / math.sqrt(len(scores))
        rows.append((level, float(inside.mean()), stray))
    return Coverage(
        rehearsals=len(scores),
        queries=scores.shape[1],
        table=pd.DataFrame(rows, columns=["promised", "found", "by chance"]),
        bias=float(np.abs(scores.mean(axis=0)).max() * math.sqrt(len(scores))),
        spread=float(np.mean(scores**2)),
    )


def _watched(plan: Plan, queries: int) -> list[list[int]]:
    """Return for every group the positions of the queries that are watched."""
    groups = plan.workload.groups
    picked = set(np.linspace(0, len(groups) - 1, min(len(groups), queries)).round().astype(int).tolist())
    quota = max(1, queries // len(picked))
    return [
        sorted({int(p) for p in np.linspace(0, g.count - 1, min(g.count, quota)).round()}) if i in picked else []
        for i, g in enumerate(groups)
    ]


def _each(values: Callable[[int, int], Any], positions: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the values at scattered positions; neighbours are fetched together."""
    if len(positions) == positions[-1] - positions[0] + 1:
        return np.asarray(values(positions[0], positions[-1] + 1))
    return np.concatenate([values(p, p + 1) for p in positions])
