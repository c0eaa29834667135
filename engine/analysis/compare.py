"""Compare mechanisms on one workload, each in a process of its own with limits on time and memory.

Plans hold no data, so what came of a request may be kept and shared: a comparison that asks the same again is instant.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine._format import amount, shown
from engine._threads import cores
from engine._validation import instance, positive, whole
from engine._values import Value
from engine._workers import Failed, call_apart, peak_megabytes
from engine.analysis.ad_hoc_queries import workload_digest
from engine.analysis.error_distribution import Spread, spread
from engine.analysis.error_targets import BIASED
from engine.bounds.lower_bounds import best_bound
from engine.errors import EngineError, PlanError
from engine.mechanisms import forecast, label_of, mechanism_class, plan, variants
from engine.mechanisms import registry as known
from engine.mechanisms.base import Forecast, check_request
from engine.plans import Plan
from engine.privacy import REPLACE_ONE, Budget
from engine.progress import Progress, told
from engine.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("mechanism", "rmse", "max_std", "gap", "seconds", "peak_mb", "status")
KEPT = 256  # results that are kept
BOUND = "bound"
QUICK = 1.0  # seconds of forecast up to which a mechanism is compared without being asked for
MechanismChoice = str | tuple[str, Mapping[str, Any]]
_CACHE: OrderedDict[str, dict[str, Any]] = OrderedDict()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison(Value):
    """What a comparison found.

    Attributes
    ----------
    frame : one row a mechanism, best first; see `compare`.
    plans : the plan of every mechanism that has one, as JSON text, by the word in the column ``mechanism``.
    bound : weighted RMSE, in counts, that no matrix mechanism whatsoever can go below.
    statement : how the bound was found.
    groups : RMSE of every group under every mechanism that has a plan, in counts, shape (groups,), by the same word.
    spreads : distribution of its standard errors, thinned for pictures, by the same word.
    """

    frame: pd.DataFrame
    plans: Mapping[str, str]
    bound: float
    statement: str
    groups: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Comparison)
            and (self.plans, self.bound, self.statement) == (other.plans, other.bound, other.statement)
            and self.frame.equals(other.frame)
        )

    def __hash__(self) -> int:
        return hash((self.statement, self.bound))

    def headline(self) -> dict[str, str]:
        """Return which mechanism is best, and how good any could be."""
        served = self.frame[self.frame["rmse"].notna()]
        out = {"mechanisms": f"{len(served)} of {len(self.frame)}"}
        if len(served):
            out |= {"best": str(served["mechanism"].iloc[0]), "rmse": f"{amount(float(served['rmse'].iloc[0]))} counts"}
        return out | {"bound": f"{amount(self.bound)} counts"}


@dataclass(frozen=True, kw_only=True)
class _Job:
    label: str
    name: str
    options: Mapping[str, Any]


_SEARCH = _Job(label=BOUND, name=BOUND, options={})


@dataclass(frozen=True, kw_only=True)
class _Request:
    workload: Workload
    budget: Mapping[str, float]
    time_limit: float
    memory_limit: float

    def key(self, job: _Job) -> str:
        """Return the identity of one result; a longer time may give a better one, so the limits belong to it."""
        limits = [self.time_limit, self.memory_limit]
        content = [workload_digest(self.workload), self.budget, *limits, job.name, dict(job.options)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def compare(
    workload: Workload,
    budget: Budget,
    mechanisms: str | Iterable[MechanismChoice] | None = None,
    *,
    time_limit: float = 120.0,
    memory_limit: float = 4e9,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Plan a workload with several mechanisms and say how each does; no data is touched.

    Parameters
    ----------
    mechanisms : names, or (name, options) pairs; by default every mechanism with each of its variants.
    time_limit, memory_limit : what one mechanism may take, in seconds and bytes; one that would take more says so.
    jobs : processes at once; by default one a core.
    progress : called with (fraction, text); returning False stops everything.

    Returns
    -------
    DataFrame with one row a mechanism, best first: mechanism; rmse and max_std in counts; gap, the relative distance of
    its weighted RMSE to the best known bound, which holds for all matrix mechanisms; seconds; peak_mb; status, "ok" or
    the reason why there is no result.  A mechanism that fails never raises.

    >>> from engine.workload import Attribute, Schema
    >>> schema = Schema([Attribute.of_size("age", 4)])
    >>> found = compare(Workload.all_ways(schema, ways=(1,)), Budget(pcost=1.0), ["wff", "nonsense"])
    >>> found["status"].str[:13].tolist()
    ['ok', 'There is no m']
    """
    return comparison(
        workload,
        budget,
        mechanisms,
        time_limit=time_limit,
        memory_limit=memory_limit,
        jobs=jobs,
        progress=progress,
    ).frame


def comparison(
    workload: Workload,
    budget: Budget,
    mechanisms: str | Iterable[MechanismChoice] | None = None,
    *,
    time_limit: float = 120.0,
    memory_limit: float = 4e9,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Return the same as `compare` together with the plans and the bound."""
    if not isinstance(workload, Workload) or not isinstance(budget, Budget):
        raise PlanError("A comparison needs a Workload and a Budget, such as Budget(pcost=1.0).")
    for word, limit in (("time limit", time_limit), ("memory limit", memory_limit)):
        positive(word, limit, error=PlanError)
    at_once = cores() if jobs is None else whole("number of jobs", jobs, error=PlanError)
    asked = _Request(workload=workload, budget=budget.to_dict(), time_limit=time_limit, memory_limit=memory_limit)
    results: dict[str, dict[str, Any]] = {}
    waiting: list[_Job] = []
    for job in _jobs(mechanisms):
        needed = _forecast(job, workload, budget, memory_limit)
        if isinstance(needed, str):
            results[job.label] = {"status": needed}
        else:
            waiting.append(job)
    waiting.append(_SEARCH)  # last: it takes as long as some mechanisms together, and they say more without it
    known = _known(waiting, asked)
    left = [job for job in waiting if job.label not in known]
    found = _found(left, asked, at_once, progress)
    return _table(workload, results | known | found)


def compared_so_far(
    workload: Workload, budget: Budget, mechanisms: Iterable[MechanismChoice], *, time_limit: float = 120.0
) -> Comparison | None:
    """Return what is kept of a `comparison` of the same request, which may be on its way; None before the first plan.

    Until the bound is there the plans stand against the best of them.
    """
    asked = _Request(workload=workload, budget=budget.to_dict(), time_limit=time_limit, memory_limit=4e9)
    known = _known([*_jobs(mechanisms), _SEARCH], asked)
    if known.keys() <= {BOUND}:
        return None
    return _table(workload, {BOUND: {"statement": "The bound is still being searched for."}} | known)


def _known(jobs: Iterable[_Job], asked: _Request) -> dict[str, dict[str, Any]]:
    kept = ((job.label, _CACHE.get(asked.key(job))) for job in jobs)
    return {label: found for label, found in kept if found is not None}


def _found(left: list[_Job], asked: _Request, jobs: int, progress: Progress | None) -> dict[str, dict[str, Any]]:
    tell = told(progress, "The comparison was cancelled.")

    def hear(fraction: float, labels: list[str]) -> None:
        tell(fraction, f"Comparing: {', '.join(labels)}")

    def arrived(label: str, found: Any) -> None:
        if not isinstance(found, Failed) and found["status"] == "ok":
            _CACHE[keys[label]] = found
        while len(_CACHE) > KEPT:
            _CACHE.popitem(last=False)

    keys = {job.label: asked.key(job) for job in left}
    calls = {job.label: (_result, (asked, job.name, dict(job.options))) for job in left}
    # planning stops itself at the limit; a process that does not is ended
    found = call_apart(calls, at_once=jobs, seconds=asked.time_limit + 15.0, hear=hear, arrived=arrived)
    for label, one in found.items():
        arrived(label, one)
    return {label: {"status": one.reason} if isinstance(one, Failed) else one for label, one in found.items()}


def _table(workload: Workload, results: Mapping[str, Mapping[str, Any]]) -> Comparison:
    """Put the results side by side, each against the best bound."""
    import pandas as pd

    found = results[BOUND]
    bound = math.sqrt(found.get("square", 0.0) / workload.queries)
    rows, plans, groups, spreads = [], {}, {}, {}
    for label, result in results.items():
        if label == BOUND:
            continue
        row = {"mechanism": label} | {k: v for k, v in result.items() if k in COLUMNS}
        if "weighted_rmse" in result:
            row["gap"] = result["weighted_rmse"] / bound - 1.0 if bound > 0 else math.nan
            plans[label], groups[label], spreads[label] = result["plan"], result["groups"], result["spread"]
        rows.append(row)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return Comparison(
        frame=frame.sort_values("rmse", kind="stable", na_position="last", ignore_index=True),
        plans=plans,
        bound=bound,
        statement=found.get("statement", "No bound was found within the limits."),
        groups=groups,
        spreads=spreads,
    )


def _jobs(mechanisms: str | Iterable[MechanismChoice] | None) -> list[_Job]:
    out = []
    give = "names of mechanisms, or pairs of a name and its options"
    if isinstance(mechanisms, str):
        mechanisms = [mechanisms]
    instance("mechanisms", mechanisms, (Iterable, type(None)), give=give, error=PlanError)
    for choice in variants().values() if mechanisms is None else mechanisms:
        name, options = (choice, {}) if isinstance(choice, str) else _pair(choice)
        out.append(_Job(label=label_of(name, options), name=name, options=dict(options)))
    return out


def _pair(choice: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(choice, tuple) and len(choice) == 2 and isinstance(choice[1], Mapping):
        name, options = choice
        if said := [limit for limit in ("time_limit", "memory_limit", "progress") if limit in options]:
            raise PlanError(f"The options of {shown(name)} hold {said[0]}, which is one for all. Give it to compare().")
        try:
            json.dumps(dict(options))
        except (TypeError, ValueError):
            raise PlanError(
                f"The options of {shown(name)} hold more than texts, numbers, lists and mappings of these. They are "
                "sent to another process: give names, such as {'base': {'age': 'range'}}."
            ) from None
        return name, options
    raise PlanError(
        f"A mechanism to compare was given as {type(choice).__name__}. Give a name, such as 'wff', or a pair of a name "
        "and its options, such as ('querysmasher', {'centers': 'tuned'})."
    )


def quick_choices(table: pd.DataFrame, most: int = 5, *, also: str = "") -> list[str]:
    """Return at most so many mechanisms of `expected` that start and take about a second.

    One of each and no variants, besides the label ``also``, which comes first.

    >>> from engine.workload import Attribute, Schema
    >>> workload = Workload.all_ways(Schema([Attribute.of_size("age", 4)]), (1,))
    >>> quick_choices(expected(workload, Budget(pcost=1.0)), 2)
    ['querysmasher', 'residualplanner+']
    >>> quick_choices(expected(workload, Budget(pcost=1.0)), 2, also="querysmasher (centers=tuned)")
    ['querysmasher (centers=tuned)', 'querysmasher']
    """
    ready = table[(table["status"] == "ok") & (table["seconds"] <= QUICK)]
    plain = {m.name for m in known.MECHANISMS}
    found = [str(label) for label in ready["mechanism"] if label in plain or label == also]
    return sorted(found, key=lambda label: label != also)[:most]


def expected(
    workload: Workload,
    budget: Budget,
    mechanisms: str | Iterable[MechanismChoice] | None = None,
    *,
    memory_limit: float = 4e9,
) -> pd.DataFrame:
    """Say what `compare` would take for every mechanism, without planning.

    Returns
    -------
    DataFrame with columns mechanism, seconds, memory_mb (an upper bound) and status: "ok" or why it will not start.
    """
    import pandas as pd

    rows: list[tuple[str, float, float, str]] = []
    for job in _jobs(mechanisms):
        found = _forecast(job, workload, budget, memory_limit)
        if isinstance(found, str):
            rows.append((job.label, math.nan, math.nan, found))
        else:
            rows.append((job.label, found.seconds, found.memory / 1e6, "ok"))
    return pd.DataFrame(rows, columns=["mechanism", "seconds", "memory_mb", "status"])


def _forecast(job: _Job, workload: Workload, budget: Budget, memory_limit: float) -> Forecast | str:
    """Return what a job would take, or why it should not start."""
    try:
        check_request(workload, budget, mechanism_class(job.name).laws)
        needed = forecast(workload, job.name, **job.options)
    except EngineError as error:
        return str(error)
    if needed.memory > memory_limit:
        return f"It would need about {needed.memory / 1e9:.1f} GB, more than the limit of {memory_limit / 1e9:.1f} GB."
    return needed


def _result(asked: _Request, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Do one job; runs in a process of its own."""
    started = time.perf_counter()
    try:
        workload, budget = asked.workload, Budget.from_dict(asked.budget)
        if name == BOUND:
            return _bound(workload, budget) | {"status": "ok"}
        made = plan(workload, budget, name, time_limit=asked.time_limit, memory_limit=asked.memory_limit, **options)
        taken = {"seconds": time.perf_counter() - started, "peak_mb": peak_megabytes()}
        return _read(made) | taken | {"status": "ok"}
    except (MemoryError, EngineError) as error:
        words = f"It ran out of the memory limit of {asked.memory_limit / 1e9:.1f} GB."
        return {"status": str(error) if isinstance(error, EngineError) else words}


def _read(made: Plan) -> dict[str, Any]:
    """Return what is told of a plan: read here, it need not be read again by everybody who looks."""
    return {
        "rmse": made.rmse,
        "max_std": math.sqrt(made.max_variance),
        "weighted_rmse": made.weighted_rmse,
        "plan": made.to_json(),
        "groups": tuple(made.rmses),
        "spread": spread(made).thinned(),
    }


def _bound(workload: Workload, budget: Budget) -> dict[str, Any]:
    exact = "for neighbours that replace a record" if budget.neighbours == REPLACE_ONE else workload.schema.exact_text
    if exact:
        return {"square": 0.0, "statement": f"No bound is proved {exact.replace('the exact', 'beside the exact', 1)}."}
    square, how = best_bound(workload, budget.law)
    return {
        "square": square / budget.row_pcost,
        "statement": f"No matrix mechanism, whatever it measures, can go below the bound, found by {how}. {BIASED}",
    }
