"""Comparison of publication methods by simulation on public data, at several budgets.

If noise is large, fitted tables and adaptive methods, which are biased, have smaller errors than
unbiased answers, whose errors are exact; if noise is small, larger ones.  Simulations estimate the
budgets of these crossovers; they are not a proof.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._arrays import Array
from engine._format import amount
from engine.errors import Cancelled, EngineError, LimitExceeded, PlanError
from engine.mechanisms import at_budget, label_of, plan, title_of
from engine.plans import Plan
from engine.postprocess.simulation import missed, tables_of
from engine.postprocess.uncertainty import simulated
from engine.privacy import Budget
from engine.progress import Listener, Progress, listener, rising, told
from engine.publish.aim_mst import SLOW, adaptive_tables
from engine.release import apply_group
from engine.residuals import Space
from engine.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


FACTORS = (0.01, 0.1, 1.0, 10.0)
SIGNIFICANT_SE = 2.0  # standard errors from which a difference of two methods is significant
SIMULATED, UNBIASED = KINDS = "simulated, biased", "unbiased"

_Tables = Callable[[Space], Array]


@dataclass(frozen=True, kw_only=True)
class _Method:
    """Publication method; ``error`` simulates it once at a budget."""

    name: str
    label: str
    kind: str
    error: Callable[[Budget, int, Listener], float]


@dataclass(frozen=True, kw_only=True, eq=False)
class PublishedComparison:
    """Simulated errors of several publication methods at several budgets.

    Attributes
    ----------
    frame : one row per method and budget. Columns: way (name of the method), label (of the
        mechanism, empty for adaptive methods), kind ("unbiased" or "simulated, biased"), pcost,
        error (mean relative error over rehearsals), spread (standard error of that mean), status
        ("ok", or the reason why there is no error).

    The results hold for the reference and for similar records.
    """

    frame: pd.DataFrame = field(repr=False)

    def turns(self) -> pd.DataFrame:
        """Return crossovers: below, above (the better method on each side), pcost, low, high.

        The difference is significant at the simulated budgets ``low`` and ``high``; ``pcost`` is
        the log-log interpolation between them.
        """
        import pandas as pd

        done = self.frame[self.frame["status"] == "ok"]
        rows: list[dict[str, Any]] = []
        for one, other in combinations(list(dict.fromkeys(done["way"])), 2):
            first, second = (done[done["way"] == way] for way in (one, other))
            both = first.merge(second, on="pcost", suffixes=("_1", "_2")).set_index("pcost").sort_index()
            gap = np.log(both["error_1"].to_numpy() / both["error_2"].to_numpy())
            difference = both["error_1"] - both["error_2"]
            significant = np.abs(difference) > SIGNIFICANT_SE * np.hypot(both["spread_1"], both["spread_2"])
            significant_rows = np.flatnonzero(significant.to_numpy())
            log_pcost = np.log(both.index.to_numpy(float))
            for i, j in pairwise(significant_rows):
                if gap[i] * gap[j] < 0.0:
                    log_crossover = log_pcost[i] + (log_pcost[j] - log_pcost[i]) * gap[i] / (gap[i] - gap[j])
                    below, above = (one, other) if gap[i] < 0.0 else (other, one)
                    bracket = {"low": both.index[i], "high": both.index[j]}
                    rows.append({"below": below, "above": above, "pcost": math.exp(log_crossover), **bracket})
        return pd.DataFrame(rows, columns=["below", "above", "pcost", "low", "high"])

    def words(self, say: Callable[[float], str] = lambda pcost: f"{amount(pcost)} pcost") -> list[str]:
        """Return the crossovers as sentences; ``say`` formats a pcost."""
        return [
            f"{row['below']} misses less up to about {say(row['pcost'])} (it is clear at {say(row['low'])}), "
            f"{row['above']} beyond (clear at {say(row['high'])})."
            for _, row in self.turns().iterrows()
        ]


def published_comparison(
    workload: Workload,
    budget: Budget,
    reference: Any,
    choices: Sequence[tuple[str, Mapping[str, Any]]],
    adaptive: Sequence[str] = (),
    *,
    factors: Sequence[float] = FACTORS,
    rehearsals: int = 3,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> PublishedComparison:
    """Simulate the publications of mechanisms and adaptive methods at several budgets.

    Parameters
    ----------
    reference : public or simulated records, or earlier published tables, as in `published_errors`.
    choices : mechanisms with options, as in `comparison`; each is simulated unbiased and published.
    adaptive : methods from ``ADAPTIVE``, which need the package mbi.
    factors : budgets, as multiples of ``budget``.
    rehearsals : simulations per method and budget, at least 2.
    seconds : time limit per method and budget.
    progress : called with the share of the work done and a message; False cancels.

    Guarantee: reads only the reference, so that it costs no privacy.  The status of a method
    without a result contains the reason.

    Raises
    ------
    PlanError : fewer than two rehearsals, or a reference that does not fit the workload.
    Cancelled : ``progress`` returned False.
    """
    import pandas as pd

    if rehearsals < 2:
        raise PlanError(f"{rehearsals} rehearsals were asked for; their spread takes at least 2.")
    table = tables_of(reference, workload)
    tell = told(rising(listener(progress)), "Comparing was cancelled; nothing was changed.")
    methods = [_mechanism(workload, budget, table, choice, kind) for choice in choices for kind in KINDS]
    methods += [_adaptive(workload, table, adaptive_name, seconds) for adaptive_name in adaptive]
    rows: list[dict[str, Any]] = []
    steps = len(methods) * len(factors) * rehearsals
    for method in methods:
        for factor in factors:
            scaled_budget = budget if factor == 1.0 else budget.at(factor * budget.pcost)
            row = {"way": method.name, "label": method.label, "kind": method.kind, "pcost": scaled_budget.pcost}
            errors, status, start_time = [], "ok", time.monotonic()
            try:
                for seed in range(rehearsals):
                    done = (len(rows) * rehearsals + seed) / steps
                    if time.monotonic() - start_time > seconds:
                        raise LimitExceeded(SLOW)
                    tell(done, f"Rehearsing {method.name}")
                    errors.append(method.error(scaled_budget, seed, partial(_report_part, tell, done, steps)))
            except Cancelled:
                raise
            except EngineError as error:
                errors, status = [math.nan] * 2, str(error)
            spread = float(np.std(errors, ddof=1)) / math.sqrt(len(errors))
            rows.append(row | {"error": float(np.mean(errors)), "spread": spread, "status": status})
    return PublishedComparison(frame=pd.DataFrame(rows))


def _report_part(tell: Listener, offset: float, steps: int, share: float, words: str) -> None:
    tell(offset + share / steps, words)


def _mechanism(
    workload: Workload, budget: Budget, table: _Tables, choice: tuple[str, Mapping[str, Any]], kind: str
) -> _Method:
    (name, options), label = choice, label_of(*choice)

    @cache
    def base_plan() -> Plan:
        return plan(workload, budget, name, **dict(options))

    def error(at: Budget, seed: int, tell: Listener) -> float:
        measurement = simulated(at_budget(base_plan(), at), table, np.random.default_rng(seed))
        return missed((measurement.publish() if kind == SIMULATED else measurement).values, table, workload)

    words = UNBIASED if kind == UNBIASED else "published"
    return _Method(name=f"{title_of(label)}, {words}", label=label, kind=kind, error=error)


def _adaptive(workload: Workload, table: _Tables, method: str, seconds: float) -> _Method:
    def error(at: Budget, seed: int, tell: Listener) -> float:
        tables = adaptive_tables(method, workload, at, table, seed, seconds=seconds, tell=tell)

        def answers(number: int) -> Array:
            group = workload.groups[number]
            return apply_group(group, tables(group.attributes), 0, group.count)

        return missed(answers, table, workload)

    return _Method(name=method, label="", kind=SIMULATED, error=error)
