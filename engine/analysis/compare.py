"""Comparison of mechanisms on one workload, with limits on time and memory.

Each mechanism runs in a worker process.  Plans do not depend on records, so the last
`MAX_CACHED_RESULTS` successful results are cached for later comparisons in this process.
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

from engine._format import duration_text, format_number, pluralize, quote_public
from engine._threads import cores
from engine._validation import check_int, check_positive, check_type
from engine._values import FrozenValue
from engine._workers import Failed, peak_megabytes, run_in_workers
from engine.analysis.ad_hoc_queries import workload_digest
from engine.analysis.certificates import BIAS_NOTE
from engine.analysis.error_distribution import ErrorDistribution, error_distribution
from engine.bounds.lower_bounds import best_bound
from engine.errors import EngineError, PlanError
from engine.mechanisms import (
    forecast,
    label_of,
    mechanism_class,
    plan,
    registry,
    title_of,
    variants,
)
from engine.mechanisms.base import Forecast, check_request
from engine.plans import Plan
from engine.privacy import REPLACE_ONE, Budget
from engine.progress import Progress, progress_reporter
from engine.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("mechanism", "rmse", "max_std", "gap", "seconds", "peak_mb", "status")
MAX_CACHED_RESULTS = 256
BOUND = "bound"
QUICK_FORECAST_S = 1.0  # mechanisms that are expected to take at most this time are preselected
# Papers use these mechanisms as a reference, so they are preselected even if they are expected to
# take longer: up to REFERENCE_FORECAST_S, in seconds.
REFERENCE_MECHANISMS, REFERENCE_FORECAST_S = ("hdmm",), 60.0
MechanismChoice = str | tuple[str, Mapping[str, Any]]
_CACHE: OrderedDict[str, dict[str, Any]] = OrderedDict()


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison(FrozenValue):
    """Result of a comparison of mechanisms.

    The mappings have one entry per mechanism that produced a plan.  Its key is the label of the
    mechanism in the column ``mechanism`` of ``frame``.

    Attributes
    ----------
    frame : table of all mechanisms, as returned by `compare`.
    plans : maps a label to the plan as JSON text.
    bound : lower bound, in counts, on the weighted RMSE of every matrix mechanism; 0 if no bound is
        known.
    statement : sentence with the method that computed the bound, or the reason why there is none.
    groups : maps a label to the RMSE of every group, in counts, shape (groups,).
    spreads : maps a label to the distribution of standard errors, thinned out for figures.
    """

    frame: pd.DataFrame
    plans: Mapping[str, str]
    bound: float
    statement: str
    groups: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    spreads: Mapping[str, ErrorDistribution] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Comparison)
            and (self.plans, self.bound, self.statement)
            == (other.plans, other.bound, other.statement)
            and self.frame.equals(other.frame)
        )

    def __hash__(self) -> int:
        return hash((self.statement, self.bound))

    def headline(self) -> dict[str, str]:
        """Return a summary as a mapping of texts.

        The keys are "mechanisms" ("3 of 4" if 3 of 4 mechanisms have a result), "bound" (the lower
        bound) and, if at least one mechanism has a result, "best" and "rmse" (label and RMSE of the
        mechanism with the smallest RMSE).
        """
        successful = self.frame[self.frame["rmse"].notna()]
        texts = {"mechanisms": f"{len(successful)} of {len(self.frame)}"}
        if len(successful):
            texts |= {
                "best": str(successful["mechanism"].iloc[0]),
                "rmse": f"{format_number(float(successful['rmse'].iloc[0]))} counts",
            }
        return texts | {"bound": f"{format_number(self.bound)} counts"}


@dataclass(frozen=True, kw_only=True)
class _Job:
    """Task of one worker process: plan with one mechanism, or search for the lower bound.

    Attributes
    ----------
    label : text of the mechanism with its options, which identifies the job.
    name : name of the mechanism; `BOUND` for the lower bound.
    options : options of the mechanism.
    """

    label: str
    name: str
    options: Mapping[str, Any]


_BOUND_JOB = _Job(label=BOUND, name=BOUND, options={})


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Arguments that all jobs of a comparison share.

    Attributes
    ----------
    budget : result of `Budget.to_dict`.
    time_limit, memory_limit : limits per mechanism, in seconds and bytes.
    """

    workload: Workload
    budget: Mapping[str, float]
    time_limit: float
    memory_limit: float

    def key(self, job: _Job) -> str:
        """Return the cache key of a job: a hash of this request, the mechanism and its options."""
        # The limits are part of the key, because a longer time limit can give a better plan.
        content = [
            workload_digest(self.workload),
            self.budget,
            self.time_limit,
            self.memory_limit,
            job.name,
            dict(job.options),
        ]
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
    """Plan a workload with several mechanisms and tabulate their errors, without reading records.

    Parameters
    ----------
    mechanisms : names, or (name, options) pairs; by default all variants of all mechanisms.
    time_limit, memory_limit : limits per mechanism, in seconds and bytes.
    jobs : number of concurrent processes; by default one per core.
    progress : called with (fraction, text); returning False cancels the comparison.

    Returns
    -------
    DataFrame with one row per mechanism, sorted by rmse, with these columns:

    - mechanism: its label.
    - rmse: root mean squared error over all queries, in counts.
    - max_std: largest standard error of a query, in counts.
    - gap: weighted RMSE divided by the lower bound for all matrix mechanisms, minus 1; NaN if no
      bound is known.
    - seconds: planning time.
    - peak_mb: peak memory of the worker process, in MiB.
    - status: "ok", or the reason why there is no result, such as an exceeded limit.  In this case
      the numbers are NaN; no exception is raised.

    >>> from engine import Attribute, Schema
    >>> schema = Schema([Attribute.of_size("age", 4)])
    >>> workload = Workload.all_ways(schema, ways=(1,))
    >>> table = compare(workload, Budget(pcost=1.0), ["wff", "nonsense"])
    >>> (table["status"] == "ok").tolist()
    [True, False]
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
    """Return the table of `compare` together with the plans and the lower bound.

    The arguments are those of `compare`.
    """
    check_type("workload", workload, Workload, give="a Workload", error=PlanError)
    check_type(
        "budget", budget, Budget, give="a Budget, such as Budget(pcost=1.0)", error=PlanError
    )
    for name, limit in (("time limit", time_limit), ("memory limit", memory_limit)):
        check_positive(name, limit, error=PlanError)
    n_workers = cores() if jobs is None else check_int("number of jobs", jobs, error=PlanError)
    request = _Request(
        workload=workload, budget=budget.to_dict(), time_limit=time_limit, memory_limit=memory_limit
    )
    results: dict[str, dict[str, Any]] = {}
    pending: list[_Job] = []
    for job in _jobs(mechanisms):
        estimate = _forecast(job, workload, budget, time_limit, memory_limit)
        if isinstance(estimate, str):
            results[job.label] = {"status": estimate}
        else:
            pending.append(job)
    # The bound takes as long as several mechanisms, so it is computed last.
    pending.append(_BOUND_JOB)
    cached = _cached_results(pending, request)
    uncached = [job for job in pending if job.label not in cached]
    computed = _computed_results(uncached, request, n_workers, progress)
    return _table(workload, results | cached | computed)


def partial_comparison(
    workload: Workload,
    budget: Budget,
    mechanisms: Iterable[MechanismChoice],
    *,
    time_limit: float = 120.0,
) -> Comparison | None:
    """Return the results that a running `comparison` has cached so far; None if it has no plan yet.

    The arguments are those of the call of `comparison`, which must use the default memory limit.
    """
    request = _Request(
        workload=workload, budget=budget.to_dict(), time_limit=time_limit, memory_limit=4e9
    )
    cached = _cached_results([*_jobs(mechanisms), _BOUND_JOB], request)
    if cached.keys() <= {BOUND}:
        return None
    return _table(
        workload, {BOUND: {"statement": "The bound is still being searched for."}} | cached
    )


def _cached_results(jobs: Iterable[_Job], request: _Request) -> dict[str, dict[str, Any]]:
    """Return the cached results of jobs, by label; jobs without a cached result are left out."""
    entries = ((job.label, _CACHE.get(request.key(job))) for job in jobs)
    return {label: result for label, result in entries if result is not None}


def _computed_results(
    jobs_to_run: list[_Job], request: _Request, n_workers: int, progress: Progress | None
) -> dict[str, dict[str, Any]]:
    """Run jobs in worker processes and return their results, by label.

    The entry ``status`` of a result is "ok", or the reason why the job failed.  Only successful
    results are cached.
    """
    report = progress_reporter(progress, "The comparison was cancelled.")

    def report_running(fraction: float, labels: list[str]) -> None:
        titles = ["lower bound" if label == BOUND else title_of(label) for label in labels]
        report(fraction, f"Running {', '.join(titles)}")

    def store(label: str, result: Any) -> None:
        if not isinstance(result, Failed) and result["status"] == "ok":
            _CACHE[keys[label]] = result
        while len(_CACHE) > MAX_CACHED_RESULTS:
            _CACHE.popitem(last=False)

    keys = {job.label: request.key(job) for job in jobs_to_run}
    calls = {job.label: (_run_job, (request, job.name, dict(job.options))) for job in jobs_to_run}
    # Planning stops by itself at the time limit.  A worker that does not stop is ended 15 s later.
    results = run_in_workers(
        calls,
        at_once=n_workers,
        seconds=request.time_limit + 15.0,
        on_progress=report_running,
        on_result=store,
    )
    # `run_in_workers` does not call ``on_result`` for the calls that finish last.
    for label, result in results.items():
        store(label, result)
    return {
        label: {"status": result.reason} if isinstance(result, Failed) else result
        for label, result in results.items()
    }


def _table(workload: Workload, results: Mapping[str, Mapping[str, Any]]) -> Comparison:
    """Return the results of all jobs as a `Comparison`, with gaps to the lower bound.

    ``results`` maps the labels of the jobs to their results, see `_run_job`.
    """
    import pandas as pd

    bound_result = results[BOUND]
    bound = math.sqrt(bound_result.get("square", 0.0) / workload.queries)
    rows, plans, groups, spreads = [], {}, {}, {}
    for label, result in results.items():
        if label == BOUND:
            continue
        row = {"mechanism": label} | {k: v for k, v in result.items() if k in COLUMNS}
        if "weighted_rmse" in result:
            row["gap"] = result["weighted_rmse"] / bound - 1.0 if bound > 0 else math.nan
            plans[label] = result["plan"]
            groups[label] = result["groups"]
            spreads[label] = result["spread"]
        rows.append(row)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return Comparison(
        frame=frame.sort_values("rmse", kind="stable", na_position="last", ignore_index=True),
        plans=plans,
        bound=bound,
        statement=bound_result.get("statement", "No bound was found within the limits."),
        groups=groups,
        spreads=spreads,
    )


def _jobs(mechanisms: str | Iterable[MechanismChoice] | None) -> list[_Job]:
    """Return one job per mechanism; for None, one per variant of every mechanism.

    Raises PlanError if an element is neither a name nor a pair of a name and its options.
    """
    jobs = []
    allowed = "names of mechanisms, or pairs of a name and its options"
    if isinstance(mechanisms, str):
        mechanisms = [mechanisms]
    check_type("mechanisms", mechanisms, (Iterable, type(None)), give=allowed, error=PlanError)
    for choice in variants().values() if mechanisms is None else mechanisms:
        name, options = (choice, {}) if isinstance(choice, str) else _name_and_options(choice)
        jobs.append(_Job(label=label_of(name, options), name=name, options=dict(options)))
    return jobs


def _name_and_options(choice: Any) -> tuple[str, Mapping[str, Any]]:
    """Return a (name, options) pair unchanged; raise PlanError if it is not a valid pair."""
    if isinstance(choice, tuple) and len(choice) == 2 and isinstance(choice[1], Mapping):
        name, options = choice
        if misplaced := [
            limit for limit in ("time_limit", "memory_limit", "progress") if limit in options
        ]:
            raise PlanError(
                f"The options of {quote_public(name)} contain {misplaced[0]}, which must be the "
                f"same for all mechanisms. Pass {misplaced[0]} as an argument of compare()."
            )
        try:
            json.dumps(dict(options))
        except (TypeError, ValueError):
            raise PlanError(
                f"The options of {quote_public(name)} must be JSON values, because they are sent to"
                " a worker process. Use texts, numbers, lists and mappings, such as {'base':"
                " {'age': 'range'}}."
            ) from None
        return name, options
    raise PlanError(
        f"A mechanism to compare was given as {type(choice).__name__}. Give a name, such as 'wff',"
        " or a pair of a name and its options, such as ('querysmasher', {'centers': 'tuned'})."
    )


def quick_choices(table: pd.DataFrame, most: int = 5, *, also: str = "") -> list[str]:
    """Return the labels of the mechanisms that are preselected for a comparison.

    These are at most ``most`` mechanisms with default options that are expected to take at most a
    second, and HDMM if it is expected to take at most a minute.

    Parameters
    ----------
    table : result of `expected_costs`.
    also : label of a further mechanism, with any options.  If it is expected to take at most a
        minute, it is the first of the ``most`` mechanisms; otherwise it is ignored.

    >>> from engine import Attribute, Schema
    >>> workload = Workload.all_ways(Schema([Attribute.of_size("age", 4)]), (1,))
    >>> quick_choices(expected_costs(workload, Budget(pcost=1.0)), 2)
    ['querysmasher', 'residualplanner+', 'hdmm']
    >>> quick_choices(expected_costs(workload, Budget(pcost=1.0)), 2, also="querysmasher (centers=tuned)")
    ['querysmasher (centers=tuned)', 'querysmasher', 'hdmm']
    """
    ready = table[table["status"] == "ok"]
    default_labels = {m.name for m in registry.MECHANISMS}
    quick = [
        str(label)
        for label, seconds in zip(ready["mechanism"], ready["seconds"], strict=True)
        if (label == also and seconds <= REFERENCE_FORECAST_S)
        or (
            seconds <= QUICK_FORECAST_S
            and label in default_labels
            and label not in REFERENCE_MECHANISMS
        )
    ]
    references = ready.loc[
        ready["mechanism"].isin(REFERENCE_MECHANISMS) & (ready["seconds"] <= REFERENCE_FORECAST_S),
        "mechanism",
    ]
    preselected = sorted(quick, key=lambda label: label != also)[:most]
    return [*preselected, *(str(label) for label in references if label not in preselected)]


def expected_wait_text(table: pd.DataFrame, measured: Mapping[str, float] | None = None) -> str:
    """Return sentences with the longest expected planning time and the number of refused
    mechanisms.

    Parameters
    ----------
    table : result of `expected_costs`.
    measured : label -> planning time in seconds of the mechanisms that have been planned, which are
        left out.  If planning took longer than expected, because the machine is busy, the times of
        all other mechanisms are raised by the same factor.

    >>> import pandas as pd
    >>> rows = [("wff", 0.2, 80.0, "ok"), ("hdmm", 11.0, 90.0, "ok"), ("laplace", math.nan, 0.0, "No.")]
    >>> expected_wait_text(
    ...     pd.DataFrame(rows, columns=["mechanism", "seconds", "memory_mb", "status"])
    ... )
    'HDMM is expected to take about 11 s, the others less. 1 mechanism cannot run.'
    """
    measured = measured or {}
    is_done = table["mechanism"].isin(list(measured))
    slowdown = 1.0
    # Times below half a second say little about the load of the machine.
    if (expected := float(table.loc[is_done, "seconds"].sum())) >= 0.5:
        slowdown = max(1.0, sum(map(float, measured.values())) / expected)
    table = table.assign(seconds=table["seconds"] * slowdown)[~is_done]
    ready = table[table["status"] == "ok"]
    blocked = len(table) - len(ready)
    sentences = []
    if len(ready):
        seconds = dict(zip(map(str, ready["mechanism"]), map(float, ready["seconds"]), strict=True))
        slowest = max(seconds, key=seconds.__getitem__)
        time_text = duration_text(seconds[slowest])
        about = time_text if time_text.startswith("under") else f"about {time_text}"
        others = ", the others less" if len(ready) > 1 else ""
        sentences.append(f"{title_of(slowest)} is expected to take {about}{others}.")
    if blocked:
        sentences.append(f"{pluralize(blocked, 'mechanism')} cannot run.")
    return " ".join(sentences)


def expected_costs(
    workload: Workload,
    budget: Budget,
    mechanisms: str | Iterable[MechanismChoice] | None = None,
    *,
    time_limit: float | None = None,
    memory_limit: float = 4e9,
) -> pd.DataFrame:
    """Return the predicted planning time and memory of the mechanisms of `compare`.

    Parameters
    ----------
    time_limit : limit per mechanism, in seconds, or None for no limit.  With a longer limit, some
        mechanisms search longer.
    memory_limit : limit per mechanism, in bytes.

    Returns
    -------
    DataFrame with one row per mechanism: mechanism (label), seconds, memory_mb (an upper bound) and
    status, "ok" or the reason why planning cannot start.  In this case both numbers are NaN.
    """
    import pandas as pd

    rows: list[tuple[str, float, float, str]] = []
    for job in _jobs(mechanisms):
        estimate = _forecast(job, workload, budget, time_limit, memory_limit)
        if isinstance(estimate, str):
            rows.append((job.label, math.nan, math.nan, estimate))
        else:
            rows.append((job.label, estimate.seconds, estimate.memory / 1e6, "ok"))
    return pd.DataFrame(rows, columns=["mechanism", "seconds", "memory_mb", "status"])


def _forecast(
    job: _Job,
    workload: Workload,
    budget: Budget,
    time_limit: float | None,
    memory_limit: float,
) -> Forecast | str:
    """Return the forecast of a job, or the reason why it cannot start."""
    try:
        check_request(workload, budget, mechanism_class(job.name).laws)
        estimate = forecast(workload, job.name, time_limit=time_limit, **job.options)
    except EngineError as error:
        return str(error)
    if estimate.memory > memory_limit:
        return (
            f"Planning would need about {estimate.memory / 1e9:.1f} GB, more than the limit of"
            f" {memory_limit / 1e9:.1f} GB. Use a larger memory limit or fewer queries."
        )
    return estimate


def _run_job(request: _Request, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run one job, in a worker process, and return its result.

    If ``name`` is `BOUND`, the result has the entries of `_bound`.  Otherwise it has the entries of
    `_plan_summary` for the plan of the mechanism ``name``, and ``seconds`` and ``peak_mb``.  The
    entry ``status`` is "ok".  If the job raises MemoryError or EngineError, ``status`` is the only
    entry, and contains the reason.
    """
    started = time.perf_counter()
    try:
        workload, budget = request.workload, Budget.from_dict(request.budget)
        if name == BOUND:
            return _bound(workload, budget) | {"status": "ok"}
        computed_plan = plan(
            workload,
            budget,
            name,
            time_limit=request.time_limit,
            memory_limit=request.memory_limit,
            **options,
        )
        usage = {"seconds": time.perf_counter() - started, "peak_mb": peak_megabytes()}
        return _plan_summary(computed_plan) | usage | {"status": "ok"}
    except EngineError as error:
        return {"status": str(error)}
    except MemoryError:
        limit_text = f"{request.memory_limit / 1e9:.1f} GB"
        return {
            "status": (
                f"Planning exceeded the memory limit of {limit_text}. Use a larger memory limit or"
                " fewer queries."
            )
        }


def _plan_summary(computed_plan: Plan) -> dict[str, Any]:
    """Return errors and JSON text of a plan as a dictionary of picklable values, for `_table`."""
    return {
        "rmse": computed_plan.rmse,
        "max_std": math.sqrt(computed_plan.max_variance),
        "weighted_rmse": computed_plan.weighted_rmse,
        "plan": computed_plan.to_json(),
        "groups": tuple(computed_plan.rmses),
        "spread": error_distribution(computed_plan).thin(),
    }


def _bound(workload: Workload, budget: Budget) -> dict[str, Any]:
    """Return the lower bound for all matrix mechanisms as a dictionary.

    Its entry ``square`` is the bound on the weighted sum of squared errors in counts^2, or 0 if no
    bound is known.  Its entry ``statement`` is a sentence with the method, or with the reason why
    no bound is known.
    """
    exact, unsupported = workload.schema.exact_text, ""
    if budget.neighbours == REPLACE_ONE:
        unsupported = "neighbours that replace a record"
    elif exact:
        unsupported = f"workloads with {exact}"
    if unsupported:
        return {"square": 0.0, "statement": f"No lower bound is proved for {unsupported}."}
    square, method = best_bound(workload, budget.law)
    return {
        "square": square / budget.row_pcost,
        "statement": (
            f"The bound is the limit for any matrix mechanism, found by {method}. {BIAS_NOTE}"
        ),
    }
