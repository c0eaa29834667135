"""Comparison of publication methods by simulation on public data, at several budgets.

Unbiased answers, whose errors are proven, lose to fitted and adaptive ones where noise is large, and these, which are
biased, to them where it is small.  Where the order changes is what rehearsals can tell, and no proof.
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
CLEAR = 2.0  # standard errors of the rehearsals by which two ways differ before one is called better
SIMULATED, UNBIASED = KINDS = "simulated, biased", "unbiased"

_Tables = Callable[[Space], Array]


@dataclass(frozen=True, kw_only=True)
class _Way:
    """A way to publish, with the error of one rehearsal of it at a budget."""

    name: str
    label: str
    kind: str
    error: Callable[[Budget, int, Listener], float]


@dataclass(frozen=True, kw_only=True, eq=False)
class PublishedComparison:
    """Errors of what several ways would publish, at several budgets.

    Attributes
    ----------
    frame : a row a way and budget. Columns: way, label (of the mechanism, empty for adaptive methods), kind ("unbiased"
        or "simulated, biased"), pcost, error (share of the counts that is missed, on average over rehearsals), spread
        (standard error of that mean), status ("ok", or why there is no error).

    Whatever is told is true of the reference, and of records like it; the errors of unbiased answers alone are proven.
    """

    frame: pd.DataFrame = field(repr=False)

    def turns(self) -> pd.DataFrame:
        """Return where the order of two ways changes: below, above (the better ones), pcost, low, high.

        The order is clear at ``low`` and at ``high``, budgets that were rehearsed; ``pcost`` is where lines between
        them meet.  Only ways that differ by more than the spread of their rehearsals count as in order.
        """
        import pandas as pd

        done = self.frame[self.frame["status"] == "ok"]
        rows: list[dict[str, Any]] = []
        for one, other in combinations(list(dict.fromkeys(done["way"])), 2):
            first, second = (done[done["way"] == way] for way in (one, other))
            both = first.merge(second, on="pcost", suffixes=("_1", "_2")).set_index("pcost").sort_index()
            gap = np.log(both["error_1"].to_numpy() / both["error_2"].to_numpy())
            off = both["error_1"] - both["error_2"]
            clear = np.abs(off) > CLEAR * np.hypot(both["spread_1"], both["spread_2"])
            at = np.flatnonzero(clear.to_numpy())
            where = np.log(both.index.to_numpy(float))
            for i, j in pairwise(at):
                if gap[i] * gap[j] < 0.0:
                    meets = where[i] + (where[j] - where[i]) * gap[i] / (gap[i] - gap[j])
                    below, above = (one, other) if gap[i] < 0.0 else (other, one)
                    ends = {"low": both.index[i], "high": both.index[j]}
                    rows.append({"below": below, "above": above, "pcost": math.exp(meets), **ends})
        return pd.DataFrame(rows, columns=["below", "above", "pcost", "low", "high"])

    def words(self, say: Callable[[float], str] = lambda pcost: f"{amount(pcost)} pcost") -> list[str]:
        """Return in sentences where the order changes; ``say`` puts a pcost into words."""
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
    """Rehearse what mechanisms and adaptive methods would publish at several budgets.

    Parameters
    ----------
    reference : public or simulated records, or earlier published tables, as in `published_errors`.
    choices : mechanisms with their options, as in `comparison`; each has a row unbiased, and one published.
    adaptive : some of ``ADAPTIVE``, which need the package mbi.
    factors : times the budget; rehearsals : of every way at each of them, at least 2; seconds : for each of these.
    progress : called with the share done and words; False stops.

    Guarantee: reads the reference alone, so that it costs nothing. A way that has no result says why in its rows.

    Raises
    ------
    PlanError : fewer than two rehearsals, and a reference that does not fit.
    Cancelled : the listener said stop.
    """
    import pandas as pd

    if rehearsals < 2:
        raise PlanError(f"{rehearsals} rehearsals were asked for; their spread takes at least 2.")
    table = tables_of(reference, workload)
    tell = told(rising(listener(progress)), "Comparing was cancelled; nothing was changed.")
    ways = [_mechanism(workload, budget, table, choice, kind) for choice in choices for kind in KINDS]
    ways += [_adaptive(workload, table, method, seconds) for method in adaptive]
    rows: list[dict[str, Any]] = []
    steps = len(ways) * len(factors) * rehearsals
    for way in ways:
        for factor in factors:
            at = budget if factor == 1.0 else budget.at(factor * budget.pcost)
            row = {"way": way.name, "label": way.label, "kind": way.kind, "pcost": at.pcost}
            found, status, begun = [], "ok", time.monotonic()
            try:
                for seed in range(rehearsals):
                    done = (len(rows) * rehearsals + seed) / steps
                    if time.monotonic() - begun > seconds:
                        raise LimitExceeded(SLOW)
                    tell(done, f"Rehearsing {way.name}")
                    found.append(way.error(at, seed, partial(_tell_part, tell, done, steps)))
            except Cancelled:
                raise
            except EngineError as error:
                found, status = [math.nan] * 2, str(error)
            spread = float(np.std(found, ddof=1)) / math.sqrt(len(found))
            rows.append(row | {"error": float(np.mean(found)), "spread": spread, "status": status})
    return PublishedComparison(frame=pd.DataFrame(rows))


def _tell_part(tell: Listener, begun: float, steps: int, share: float, words: str) -> None:
    tell(begun + share / steps, words)


def _mechanism(
    workload: Workload, budget: Budget, table: _Tables, choice: tuple[str, Mapping[str, Any]], kind: str
) -> _Way:
    (name, options), label = choice, label_of(*choice)

    @cache
    def made() -> Plan:
        return plan(workload, budget, name, **dict(options))

    def error(at: Budget, seed: int, tell: Listener) -> float:
        found = simulated(at_budget(made(), at), table, np.random.default_rng(seed))
        return missed((found.publish() if kind == SIMULATED else found).values, table, workload)

    words = UNBIASED if kind == UNBIASED else "published"
    return _Way(name=f"{title_of(label)}, {words}", label=label, kind=kind, error=error)


def _adaptive(workload: Workload, table: _Tables, method: str, seconds: float) -> _Way:
    def error(at: Budget, seed: int, tell: Listener) -> float:
        tables = adaptive_tables(method, workload, at, table, seed, seconds=seconds, tell=tell)

        def answers(number: int) -> Array:
            group = workload.groups[number]
            return apply_group(group, tables(group.attributes), 0, group.count)

        return missed(answers, table, workload)

    return _Way(name=method, label="", kind=SIMULATED, error=error)
