"""Comparison of mechanisms on one workload, and of two plans by group and by query.

**Mechanisms.**  Each mechanism runs in a worker process.  Plans do not depend on records, so the
last `MAX_CACHED_RESULTS` successful results are cached for later comparisons in this process.

**Two plans.**  `losses` compares two plans for the same
workload, query by query.  `single_groups_text` compares a plan with tuned centers and a plan with
uniform centers; tuning decreases the total error, but can increase the error of single groups.
`plan_diff` compares plans for different requests: it returns the differences between the requests,
and the RMSE of every group under both plans.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import (
    cost,
    duration_text,
    format_number,
    pluralize,
    quote_public,
    set_name,
    shortest_text,
)
from engine._threads import cores
from engine._validation import check_int, check_positive, check_type
from engine._values import FrozenValue
from engine._workers import Failed, peak_megabytes, run_in_workers
from engine.analysis.ad_hoc_queries import condition_name, table_names, workload_digest
from engine.analysis.certificates import BIAS_NOTE
from engine.analysis.error_distribution import (
    ErrorDistribution,
    chosen_queries,
    error_distribution,
    is_exact,
    number_in_group,
    variances_of,
)
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
from engine.plans.group_variance import GroupVariance
from engine.privacy import REPLACE_ONE, Budget
from engine.progress import Progress, progress_reporter
from engine.workload import Group, Schema, Workload

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


SAMPLED = (
    "Computed on an even sample of the queries of each group and on its first and last queries;"
    " other queries may be worse."
)
# Products of the first and last queries of this many query families are added to a sample.
MAX_CORNER_PARTS = 10
MIN_SHOWN_GAIN = 5e-4  # smallest relative decrease of the total error that is reported
EQUAL_ERROR_TOLERANCE = 1e-6  # relative; more than the effect of rounding noise to its grid


@dataclass(frozen=True, kw_only=True, eq=False)
class Losses:
    """Comparison of the standard errors of two plans for the same queries.

    All ratios are the standard error under the first plan divided by that under the second plan.
    A ratio counts as above or below 1 if it differs by more than `EQUAL_ERROR_TOLERANCE`.

    Attributes
    ----------
    groups : one row per group, the largest ratio first.  Columns: group (its index), attributes
        and family as text, queries (their number), worse and better (shares of its queries with a
        ratio above and below 1), worst ratio (the largest), worst query (its text).
    worse, better : shares of all queries with a ratio above and below 1.
    worst : largest ratio of a query.
    query : text of the query with this ratio.
    exact : True if every query was evaluated; False if large groups may have been sampled.
    """

    groups: pd.DataFrame
    worse: float
    better: float
    worst: float
    query: str
    exact: bool


def ratios(first: Array, second: Array) -> Array:
    """Return ``first / second`` elementwise, and 1 where the two are equal, also for 0 or infinity.

    The arrays contain standard errors and have the same shape.

    >>> ratios(np.array([2.0, 0.0, np.inf, 1.0]), np.array([1.0, 0.0, np.inf, np.inf])).tolist()
    [2.0, 1.0, 1.0, 0.0]
    """
    equal = first == second
    return np.where(equal, 1.0, first) / np.where(equal, 1.0, second)


def check_same_queries(first: Plan, second: Plan) -> None:
    """Raise PlanError unless two plans answer the same queries in the same order."""
    workload, second_workload = first.workload, second.workload
    same_groups = len(workload.groups) == len(second_workload.groups) and all(
        a.attributes == b.attributes and a.key == b.key
        for a, b in zip(workload.groups, second_workload.groups, strict=True)
    )
    if workload.schema != second_workload.schema or not same_groups:
        raise PlanError(
            "The two plans answer different queries. Give two plans with the same schema and the"
            " same groups of queries in the same order."
        )


def losses(first: Plan, second: Plan) -> Losses:
    """Compare the standard errors of two plans for the same workload, query by query.

    If the workload has more than four million queries, only some queries of each large group are
    evaluated: a sample, and products of the first and last queries of its query families.  In this
    case the worst ratio is a lower bound.

    Raises
    ------
    PlanError : the schemas or the groups of queries of the plans differ.
    """
    import pandas as pd

    check_same_queries(first, second)
    workload, rows = first.workload, []
    # Groups with equal variances under both plans are compared once.
    results = dict[tuple[GroupVariance, GroupVariance], tuple[float, float, float, int]]()
    for i, group in enumerate(workload.groups):
        key = (first.group_variance(i), second.group_variance(i))
        if key not in results:
            results[key] = _group_losses(first, second, i)
        worse, better, worst, number = results[key]
        attributes = set_name(group.attributes)
        text = workload.describe_in_group(i, number)
        rows.append((i, attributes, group.family_text, group.count, worse, better, worst, text))
    names = [
        "group",
        "attributes",
        "family",
        "queries",
        "worse",
        "better",
        "worst ratio",
        "worst query",
    ]
    frame = pd.DataFrame(rows, columns=names).sort_values(
        "worst ratio", ascending=False, kind="stable"
    )
    sizes = [float(n) / float(workload.queries) for n in frame["queries"]]
    return Losses(
        groups=frame.reset_index(drop=True),
        worse=math.fsum(s * w for s, w in zip(sizes, frame["worse"], strict=True)),
        better=math.fsum(s * b for s, b in zip(sizes, frame["better"], strict=True)),
        worst=float(frame["worst ratio"].iloc[0]),
        query=str(frame["worst query"].iloc[0]),
        exact=is_exact(workload),
    )


def _group_losses(first: Plan, second: Plan, group: int) -> tuple[float, float, float, int]:
    """Compare the standard errors of a group's queries, or of a sample of them, under two plans.

    Returns
    -------
    worse, better : shares of the queries with a larger and with a smaller standard error under the
        first plan than under the second.
    worst : largest ratio of standard errors, first plan divided by second plan.
    number : index within the group of a query with this ratio.
    """
    queries, sample = first.workload.groups[group], chosen_queries(first.workload, group)
    error_ratios = _ratios_at(first, second, group, sample)
    worse = float(np.mean(error_ratios > 1.0 + EQUAL_ERROR_TOLERANCE))
    better = float(np.mean(error_ratios < 1.0 - EQUAL_ERROR_TOLERANCE))
    # The largest ratio is often that of a product of first and last queries of the query families,
    # which a sample rarely contains.  These products are added after the shares are computed,
    # because shares need an evenly spread sample.
    if sample is not None:
        corner_parts = queries.parts[:MAX_CORNER_PARTS]
        corners = list(itertools.product(*(sorted({0, p.count - 1}) for p in corner_parts)))
        # All families after the first MAX_CORNER_PARTS contribute their first query to each
        # product.
        zeros = [np.zeros(len(corners), dtype=np.int64) for _ in queries.parts[MAX_CORNER_PARTS:]]
        corner_positions = [*np.array(corners).T, *zeros]
        sample = [
            np.concatenate([sampled_positions, corners_of_family])
            for sampled_positions, corners_of_family in zip(sample, corner_positions, strict=True)
        ]
        error_ratios = _ratios_at(first, second, group, sample)
    # Rounding must not decide between equal ratios, so ``worst`` is the first evaluated query whose
    # ratio is the largest up to the tolerance.
    worst = int(np.argmax(error_ratios >= error_ratios.max() * (1.0 - EQUAL_ERROR_TOLERANCE)))
    return worse, better, float(error_ratios[worst]), number_in_group(queries, sample, worst)


def _ratios_at(
    first: Plan, second: Plan, group: int, sample: list[npt.NDArray[np.int64]] | None
) -> Array:
    """Return the ratios of standard errors of two plans for the queries of a group.

    ``sample`` is the result of `chosen_queries`; None stands for all queries of the group.
    """
    return ratios(*(np.sqrt(variances_of(plan, group, sample)) for plan in (first, second)))


def single_groups_text(tuned_plan: Plan, uniform_plan: Plan | None = None) -> str:
    """Return a sentence about the errors of a plan with tuned centers and one with uniform centers.

    The sentence states the decrease of the total error and, if the error of some groups increases,
    their number and the largest increase.  If no error differs noticeably, the sentence states only
    this.  The text is empty if the centers of the first plan are not tuned, or its objective is
    not the sum of the variances.

    Parameters
    ----------
    uniform_plan : plan for the same request with uniform centers; by default it is computed.

    >>> from engine import Attribute, Budget, Schema, Workload
    >>> schema = Schema([Attribute.of_size(name, 20) for name in ("age", "wage", "rent")])
    >>> workload = Workload.all_ways(schema)
    >>> tuned = plan(workload, Budget(pcost=1.0), centers="tuned", keep=0.05)
    >>> print(single_groups_text(tuned))  # doctest: +NORMALIZE_WHITESPACE
    10.6% smaller errors in total than with uniform centers; 3 of 7 tables are less accurate,
    age by 5.0%.
    """
    if tuned_plan.options.get("centers") != "tuned" or tuned_plan.options.get("objective") != "sum":
        return ""
    options = {name: value for name, value in tuned_plan.options.items() if name != "keep"} | {
        "centers": "uniform"
    }
    uniform_plan = uniform_plan or plan(
        tuned_plan.workload,
        tuned_plan.budget,
        tuned_plan.mechanism,
        max_records=tuned_plan.max_records,
        **options,
    )
    rises = [
        math.sqrt(tuned / uniform) - 1.0 if 0.0 < uniform < math.inf else 0.0
        for tuned, uniform in zip(tuned_plan.totals, uniform_plan.totals, strict=True)
    ]
    gain = 1.0 - tuned_plan.weighted_rmse / uniform_plan.weighted_rmse
    worst = max(range(len(rises)), key=rises.__getitem__)
    if gain < MIN_SHOWN_GAIN and rises[worst] <= EQUAL_ERROR_TOLERANCE:
        return "Uniform centers give the same errors."
    text = f"{max(gain, 0.0):.1%} smaller errors in total than with uniform centers; "
    if rises[worst] <= EQUAL_ERROR_TOLERANCE:
        return text + "no table is less accurate."
    worst_name = table_names(tuned_plan.workload)[worst]
    number = sum(rise > EQUAL_ERROR_TOLERANCE for rise in rises)
    return (
        f"{text}{number:,} of {pluralize(len(rises), 'table')} {'is' if number == 1 else 'are'} "
        f"less accurate, {worst_name} by {rises[worst]:.1%}."
    )


REQUEST_COLUMNS = ("what", "first", "second")
ABSENT = "-"


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanDifference:
    """Differences between two plans.

    Attributes
    ----------
    words : sentences on the differences between the requests.  Options that only one of the plans
        has are in ``request`` only.
    request : one row per difference between the requests.  Columns: what (name of the setting,
        attribute or group), first, second (texts of its values in the two plans).
    groups : one row per group of either plan.  Columns: in ("both", "only first" or "only second"),
        attributes (or the condition of a group with a single query) and family as text, queries
        (their number), the weights and the RMSEs in counts under the first and the second plan, and
        ratio (second RMSE divided by first).  A weight or RMSE is NaN if the plan does not contain
        the group.
    """

    words: tuple[str, ...]
    request: pd.DataFrame
    groups: pd.DataFrame


def plan_diff(first: Plan, second: Plan) -> PlanDifference:
    """Return the differences between two plans, which can have different schemas and workloads.

    A group of the first plan and a group of the second plan are the same group if attributes,
    family and query weights are equal.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> workload = Workload.all_ways(Schema([Attribute.of_size("a", 4)]), (1,), "marginal")
    >>> difference = plan_diff(plan(workload, Budget(pcost=1.0)), plan(workload, Budget(pcost=4.0)))
    >>> difference.words, float(difference.groups["ratio"].round(6)[0])
    (('The budget differs: pcost 1 and pcost 4.',), 0.5)
    """
    import pandas as pd

    sentences, rows = [], []
    for name, value, other_value in _setting_rows(first, second):
        if value != other_value:
            # An option of only one of the plans gets a row of the table, but no sentence.
            if ABSENT not in (value, other_value):
                sentences.append(f"The {name} differs: {value} and {other_value}.")
            rows.append((name, value, other_value))
    schema_rows = _schema_rows(first.schema, second.schema)
    if schema_rows:
        sentences.append(f"The schemas differ in {pluralize(len(schema_rows), 'attribute')}.")
    groups = _matched_groups(first, second)
    for kind, owner in (("only first", "first"), ("only second", "second")):
        if n_groups := int((groups["in"] == kind).sum()):
            verb = "is" if n_groups == 1 else "are"
            sentences.append(f"{pluralize(n_groups, 'table')} {verb} only in the {owner} plan.")
    reweighted = groups[
        (groups["in"] == "both") & (groups["weight, first"] != groups["weight, second"])
    ]
    if len(reweighted):
        verb = "has" if len(reweighted) == 1 else "have"
        weights = "another weight" if len(reweighted) == 1 else "other weights"
        sentences.append(f"{pluralize(len(reweighted), 'table')} {verb} {weights}.")
    rows += schema_rows
    rows += [
        (
            f"weight of {g['attributes']} ({g['family']})",
            f"{g['weight, first']:g}",
            f"{g['weight, second']:g}",
        )
        for _, g in reweighted.iterrows()
    ]
    rows += [
        (
            f"table {g['attributes']} ({g['family']})",
            *(("yes", ABSENT) if g["in"] == "only first" else (ABSENT, "yes")),
        )
        for _, g in groups[groups["in"] != "both"].iterrows()
    ]
    return PlanDifference(
        words=tuple(sentences),
        request=pd.DataFrame(rows, columns=list(REQUEST_COLUMNS)),
        groups=groups,
    )


def _setting_rows(first: Plan, second: Plan) -> list[tuple[str, str, str]]:
    """Return the settings of two plans as rows of name, first value and second value."""
    rows = [
        ("mechanism", first.mechanism, second.mechanism),
        ("budget", *_budget_texts(first, second)),
        (
            "number of rows per person",
            f"{first.budget.rows_per_person:,}",
            f"{second.budget.rows_per_person:,}",
        ),
        ("definition of neighbours", first.budget.neighbours, second.budget.neighbours),
        ("cap on records", f"{first.max_records:,}", f"{second.max_records:,}"),
    ]
    for name in sorted({*first.options, *second.options}):
        rows.append(
            (
                f"option {name}",
                _option_text(first.options, name),
                _option_text(second.options, name),
            )
        )
    return rows


def _budget_texts(first: Plan, second: Plan) -> tuple[str, str]:
    """Return the budgets of two plans as rounded texts.

    Different budgets whose rounded texts are equal are written with all digits.
    """
    names, amounts = [], []
    for budget in (first.budget, second.budget):
        if budget.pure_epsilon is None:
            names.append("pcost")
            amounts.append(budget.pcost)
        else:
            names.append("pure epsilon")
            amounts.append(budget.pure_epsilon)
    first_text, second_text = (
        f"{name} {cost(amount)}" for name, amount in zip(names, amounts, strict=True)
    )
    if first_text == second_text and amounts[0] != amounts[1]:
        first_text, second_text = (
            f"{name} {shortest_text(amount)}" for name, amount in zip(names, amounts, strict=True)
        )
    return first_text, second_text


def _option_text(options: Mapping[str, Any], name: str) -> str:
    return str(options[name]) if name in options else ABSENT


def _schema_rows(first: Schema, second: Schema) -> list[tuple[str, str, str]]:
    """Return one row per attribute that differs between two schemas.

    A row contains the name, and the kind and size of the attribute in each schema, as texts.  The
    second text has a remark if kind and size are equal.
    """
    names = [*first.names, *(name for name in second.names if name not in first.names)]
    rows = []
    for name in names:
        attributes = [schema[name] if name in schema.names else None for schema in (first, second)]
        if attributes[0] == attributes[1]:
            continue
        first_text, second_text = (
            ABSENT if a is None else f"{a.kind}, {pluralize(a.size, 'cell')}" for a in attributes
        )
        if first_text == second_text:
            second_text = f"{second_text}, other details"
        rows.append((f"attribute {name}", first_text, second_text))
    return rows


def _matched_groups(first: Plan, second: Plan) -> pd.DataFrame:
    """Return the table ``groups`` of `PlanDifference`."""
    import pandas as pd

    plans = (first, second)
    errors = [plan.by_group()["rmse"].tolist() for plan in plans]
    rows = []
    for numbers in _matched_numbers(first, second):
        groups = [
            None if number is None else plan.workload.groups[number]
            for plan, number in zip(plans, numbers, strict=True)
        ]
        presence = "both"
        if None in groups:
            presence = "only first" if groups[1] is None else "only second"
        group = next(group for group in groups if group is not None)
        # A group of a single condition is named by the condition, because several groups can have
        # conditions on the same attributes.
        name = next(
            condition_name(plan.workload, number)
            for plan, number in zip(plans, numbers, strict=True)
            if number is not None
        ) or set_name(group.attributes)
        weights = [math.nan if group is None else group.weight for group in groups]
        rmses = [
            math.nan if number is None else rmses_of_plan[number]
            for number, rmses_of_plan in zip(numbers, errors, strict=True)
        ]
        rows.append((presence, name, group.family_text, group.count, *weights, *rmses))
    names = [
        "in",
        "attributes",
        "family",
        "queries",
        "weight, first",
        "weight, second",
        "RMSE, first",
        "RMSE, second",
    ]
    frame = pd.DataFrame(rows, columns=names)
    return frame.assign(ratio=frame["RMSE, second"] / frame["RMSE, first"])


def _matched_numbers(first: Plan, second: Plan) -> list[tuple[int | None, int | None]]:
    """Return the numbers of each group in the two plans; None for a plan without the group.

    Groups that occur several times in both plans are matched in order of occurrence.
    """
    unmatched: dict[str, list[int]] = {}
    for number, group in enumerate(second.workload.groups):
        unmatched.setdefault(_match_key(group), []).append(number)
    pairs: list[tuple[int | None, int | None]] = []
    for number, group in enumerate(first.workload.groups):
        candidates = unmatched.get(_match_key(group))
        pairs.append((number, candidates.pop(0) if candidates else None))
    return pairs + [(None, number) for number in sorted(itertools.chain(*unmatched.values()))]


def _match_key(group: Group) -> str:
    """Return a text that is equal for two groups if only their weights differ."""
    content = {name: value for name, value in group.to_dict().items() if name != "weight"}
    return json.dumps(content, sort_keys=True)


def summary(first: Plan, second: Plan) -> str:
    """Return a sentence that compares the RMSEs of two plans."""
    if math.isclose(first.rmse, second.rmse, rel_tol=1e-6):
        return f"Both plans have the same typical error, {format_number(first.rmse)} counts."
    more = "larger" if second.rmse > first.rmse else "smaller"
    if 0.0 < first.rmse < math.inf and second.rmse < math.inf:
        more = f"{abs(second.rmse / first.rmse - 1.0):.2%} {more}"
    return (
        f"The typical error of the second plan is {more}:"
        f" {format_number(second.rmse)} counts instead of {format_number(first.rmse)}."
    )
