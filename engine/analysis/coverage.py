"""Coverage check of confidence intervals by simulation.

The simulation runs the code of a release on simulated or public records, so it checks the
implementation and not only the formulas.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._format import pluralize
from engine.errors import PlanError
from engine.plans import Plan
from engine.progress import Progress, progress_reporter
from engine.records import count_marginals
from engine.release import apply_group, measure, quantile
from engine.release.ingest import maximal_sets

if TYPE_CHECKING:
    import pandas as pd


CONFIDENCE_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
MAX_CHECKED_QUERIES = 400  # spread evenly over the groups


@dataclass(frozen=True, kw_only=True, eq=False)
class Coverage:
    """Result of a coverage check.

    Attributes
    ----------
    rehearsals, queries : number of simulated releases, and number of queries that were checked.
    table : one row per confidence level: nominal coverage ("promised"), empirical coverage
        ("found") and two standard errors of the latter ("by chance").
    bias : largest absolute mean error over the queries, in standard errors of that mean.
    spread : mean squared error divided by the predicted variance, over all checked queries; the
        expected value is 1.
    """

    rehearsals: int
    queries: int
    table: pd.DataFrame
    bias: float
    spread: float

    @property
    def sentence(self) -> str:
        """Summary of the result."""
        row = self.table.set_index("promised").loc[0.95]
        return (
            f"In {pluralize(self.rehearsals, 'rehearsal')} of {pluralize(self.queries, 'query', 'queries')}, "
            f"{row['found']:.1%} of the 95% intervals held the truth; the mean squared error was {self.spread:.3f} "
            "times the predicted variance."
        )


def coverage_check(
    plan: Plan,
    records: Any,
    *,
    rehearsals: int = 1000,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> Coverage:
    """Simulate many releases of a plan and compare answers and intervals with the exact counts.

    Parameters
    ----------
    records : simulated or public records, as for `measure`.  Confidential records are not allowed,
        because the result depends on the exact counts.
    seconds : time limit, after which no further rehearsal starts; at least two are done.

    Raises
    ------
    PlanError : ``rehearsals`` is not an integer of at least 2.
    Cancelled : ``progress`` returned False.
    """
    import pandas as pd

    if isinstance(rehearsals, bool) or not isinstance(rehearsals, int) or rehearsals < 2:
        raise PlanError(f"rehearsals was {rehearsals!r}. Give an integer of at least 2, such as 1000.")
    groups = range(len(plan.workload.groups))
    positions = _sampled_queries(plan, MAX_CHECKED_QUERIES)
    sampled_sets = [plan.workload.groups[i].attributes for i in groups if len(positions[i])]
    sets = list(dict.fromkeys([*maximal_sets(plan), *sampled_sets]))
    counts = count_marginals(records, plan.schema, sets, rows_per_person=plan.budget.rows_per_person)
    truth, standard_errors = [], []
    for i in groups:
        if len(positions[i]):
            group = plan.workload.groups[i]
            table = np.asarray(counts[group.attributes], dtype=float)
            truth.append(_values_at(partial(apply_group, group, table), positions[i]))
            standard_errors.append(np.sqrt(_values_at(partial(plan.variances, i), positions[i])))
    exact_answers, scale = np.concatenate(truth), np.concatenate(standard_errors)
    errors: list[np.ndarray[Any, Any]] = []
    report = progress_reporter(progress, "The coverage check was cancelled; nothing was spent.")
    started = time.monotonic()
    while len(errors) < rehearsals and (len(errors) < 2 or time.monotonic() - started < seconds):
        measurement = measure(plan, counts, rehearsal=True)
        answers = [_values_at(partial(measurement.values, i), positions[i]) for i in groups if len(positions[i])]
        errors.append((np.concatenate(answers) - exact_answers) / scale)
        report(len(errors) / rehearsals, f"Rehearsal {len(errors):,}")
    scores = np.array(errors)
    noise = plan.budget.law
    rows = []
    for level in CONFIDENCE_LEVELS:
        is_covered = np.abs(scores) <= quantile(level, noise)
        # The queries of one rehearsal share their noise, so the sampling error comes from the
        # standard deviation between rehearsals.
        chance_margin = 2.0 * float(is_covered.mean(axis=1).std(ddof=1)) / math.sqrt(len(scores))
        rows.append((level, float(is_covered.mean()), chance_margin))
    return Coverage(
        rehearsals=len(scores),
        queries=scores.shape[1],
        table=pd.DataFrame(rows, columns=["promised", "found", "by chance"]),
        bias=float(np.abs(scores.mean(axis=0)).max() * math.sqrt(len(scores))),
        spread=float(np.mean(scores**2)),
    )


def _sampled_queries(plan: Plan, queries: int) -> list[list[int]]:
    """Return the positions of the queries to check, for every group."""
    groups = plan.workload.groups
    sampled_groups = set(np.linspace(0, len(groups) - 1, min(len(groups), queries)).round().astype(int).tolist())
    quota = max(1, queries // len(sampled_groups))
    return [
        sorted({int(p) for p in np.linspace(0, g.count - 1, min(g.count, quota)).round()})
        if i in sampled_groups
        else []
        for i, g in enumerate(groups)
    ]


def _values_at(values: Callable[[int, int], Any], positions: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the values at positions; a contiguous range takes one call."""
    if len(positions) == positions[-1] - positions[0] + 1:
        return np.asarray(values(positions[0], positions[-1] + 1))
    return np.concatenate([values(p, p + 1) for p in positions])
