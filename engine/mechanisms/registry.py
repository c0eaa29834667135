"""Registry of mechanisms, planning and default options.

`MECHANISMS` lists all mechanisms.  `plan` computes a plan, `forecast` predicts its time and memory,
and `load_plan` parses and validates a plan file and rebuilds its plan.  `default_options` adds
default options: tuned centers if the predicted additional planning time is small.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Unpack

import numpy as np

from engine._format import format_number, near_matches
from engine._threads import threads_for
from engine._untrusted import MAX_JSON_MEMORY, parse_json
from engine._validation import check_type
from engine.errors import EngineError, PlanError
from engine.mechanisms.base import Forecast, Limits, Mechanism, PlanOptions
from engine.mechanisms.baselines import DataCube, GaussianQueries, Identity, LaplaceQueries, Optimum
from engine.mechanisms.hdmm import HDMM
from engine.mechanisms.hierarchical import GreedyHierarchical, Hierarchical, LevelSelection, Wavelet
from engine.mechanisms.querysmasher import QuerySmasher
from engine.mechanisms.residualplanner import ResidualPlanner, ResidualPlannerPlus, WeightedFourier
from engine.plans import Plan
from engine.plans.objectives import Emphasis, unpack
from engine.plans.plan import FORMAT, LineWeights, SolverState, Tradeoff
from engine.privacy import Budget
from engine.progress import check_callback
from engine.residuals import Complement, Space, Split
from engine.workload import Workload

# Largest number of entries of all custom query matrices in an untrusted plan file: MAX_ENTRIES, or
# MAX_ENTRIES_PER_BYTE times the size of the file if that is more.
MAX_ENTRIES = 5_000_000
MAX_ENTRIES_PER_BYTE = 10


def parse_plan(text: str | bytes, *, untrusted: bool = False) -> tuple[dict[str, Any], SolverState]:
    """Parse and validate a plan file.

    Parameters
    ----------
    text : content of the plan file.
    untrusted : whether to reject a document that would need more memory than `MAX_JSON_MEMORY`, or
        whose matrices have too many entries for the size of the file.

    Returns
    -------
    data : the JSON document.
    solved : the result of the strategy search that the document contains.

    Raises
    ------
    PlanError
        If the text is not a plan file of this version, is damaged, or is rejected because of its
        memory.
    """
    data = _plan_document(text, MAX_JSON_MEMORY if untrusted else math.inf)
    entry_limit = max(MAX_ENTRIES, MAX_ENTRIES_PER_BYTE * len(text))
    if untrusted and (entries := _packed_entries(data["workload"])) > entry_limit:
        raise PlanError(
            f"The custom matrices of the plan file have {entries:,} entries; at most"
            f" {entry_limit:,} are read from a file of this size. Use smaller custom matrices."
        )
    return data, _solver_state(data["solved"])


def _plan_document(text: str | bytes, max_memory: float) -> dict[str, Any]:
    """Return the JSON document of a plan file, after a check of its format and its fields."""
    try:
        data = parse_json(text, max_memory=max_memory)
    except ValueError:
        message = (
            "The text of the plan is not valid JSON, or has too many or too deeply nested values."
            " Give the content of a plan file, as written by to_json, not the name of the file."
        )
        raise PlanError(message) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanError(f'This is not a plan file. Give JSON with "format": "{FORMAT}".')
    solved = data.get("solved")
    needed = ("mechanism", "options", "budget", "max_records", "workload")
    if (
        any(k not in data for k in needed)
        or not isinstance(solved, dict)
        or not isinstance(solved.get("duals"), list)
    ):
        raise PlanError(
            "The plan file has a missing or invalid field. It must have the fields"
            f" {', '.join(map(repr, needed))} and 'solved', and 'solved' must have a list 'duals'."
            " Export the plan again."
        )
    return data


def _solver_state(solved: dict[str, Any]) -> SolverState:
    """Return the result of a strategy search from the field ``solved`` of a plan file.

    Raises
    ------
    PlanError
        A value has a wrong type or is outside its limits.
    """
    try:
        duals = [unpack(d) for d in solved["duals"]]
        split = Split(
            centers={name: unpack(pi) for name, pi in solved["centers"].items()},
            complements=_unpacked_complements(solved["complements"]),
            unions={
                tuple(map(str, a)): tuple(tuple(map(str, s)) for s in spaces)
                for a, spaces in solved["unions"]
            },
            stopped=frozenset(map(str, solved.get("stopped", ()))),
        )
        matrices = tuple(unpack(m["values"]).reshape(m["shape"]) for m in solved["matrices"])
        tradeoff = _unpacked_tradeoff(solved.get("tradeoff"))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, binascii.Error):
        raise PlanError(
            "The search result in the field 'solved' of the plan file is damaged. Export the plan"
            " again."
        ) from None
    _check_numbers(duals, split, matrices)
    endings, limit = solved.get("endings"), solved.get("memory_limit")
    if (
        "memory_limit" not in solved
        or not isinstance(endings, list)
        or len(endings) != len(duals)
        or not all(isinstance(e, str) for e in endings)
        or not (limit is None or (type(limit) in (int, float) and limit > 0))
    ):
        raise PlanError(
            "The field 'endings' or 'memory_limit' of the plan file is damaged. Export the plan"
            " again."
        )
    if not isinstance(joint := solved.get("joint", False), bool):
        raise PlanError(
            "The field 'joint' of the plan file must be true or false; it decides how the privacy"
            " cost is charged. Export the plan again."
        )
    return SolverState(
        duals=tuple(duals),
        endings=tuple(endings),
        memory_limit=math.inf if limit is None else limit,
        split=split,
        matrices=matrices,
        tradeoff=tradeoff,
        joint=joint,
    )


def _check_numbers(
    duals: Sequence[np.ndarray], split: Split, matrices: Sequence[np.ndarray]
) -> None:
    """Raise `PlanError` if numbers of a plan file are outside their limits.

    Each vector of ``duals`` must be a probability distribution. All centers, complements (splits of
    pairs) and matrices must have absolute values below 1e6.
    """
    if not all(
        len(d) and (d >= 0).all() and (d <= 1).all() and abs(d.sum() - 1.0) < 1e-9 for d in duals
    ):
        raise PlanError(
            "The field 'duals' of the plan file is damaged: it must have vectors of numbers from 0"
            " to 1 with sum 1. Export the plan again."
        )
    tuned = [
        *split.centers.values(),
        *(a for c in split.complements.values() for a in (*c.by_axis, c.by_total)),
    ]
    if not all((np.abs(a) < 1e6).all() for a in (*tuned, *matrices)):
        raise PlanError(
            "The centers, complements or matrices of the plan file have a number that is not between"
            " -1e6 and 1e6. Export the plan again."
        )


def _packed_entries(workload: Any) -> int:
    """Return the number of entries of all matrices in the JSON data of a workload.

    Only the declared shapes are read, not the entries.
    """
    total, pending = 0, [workload]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            shape = value.get("shape")
            if isinstance(shape, list) and all(type(n) is int for n in shape):
                total += math.prod(shape)
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return total


def check_rebuilt(plan: Plan, data: Mapping[str, Any]) -> Plan:
    """Compare a rebuilt plan with the plan file ``data``, and return the plan.

    Raises PlanError if the privacy cost, the error or the hash of the plan differs from the file.
    """
    solved = data["solved"]
    recomputed = {"pcost": plan.pcost, "weighted_rmse": plan.weighted_rmse}
    if plan.tradeoff is not None:
        recomputed["achieved"] = plan.achieved
    for name, value in recomputed.items():
        stored = solved.get(name)
        if not isinstance(stored, float) or not math.isclose(stored, value, rel_tol=1e-6):
            raise PlanError(
                f"The plan file states {name} = {stored!r}, but the rebuilt plan has {value}: the"
                " file was changed. Export the plan again."
            )
    if solved.get("hash") != plan.hash:
        raise PlanError(
            "The plan file was changed after it was written: its hash does not match. Export"
            " the plan again."
        )
    return plan


def _unpacked_complements(packed: Any) -> dict[Space, Complement]:
    """Return the complement (center of a pair) of each attribute pair in a plan file."""
    out: dict[Space, Complement] = {}
    for item in packed:
        total = unpack(item["by_total"])
        first, second = (unpack(D).reshape(len(total), -1) for D in item["by_axis"])
        if first.shape[1] * second.shape[1] != len(total):
            raise ValueError("the shapes of a complement do not match")
        complement = Complement(by_axis=(first, second), by_total=total)
        for a, b in item["pairs"]:
            out[a, b] = complement
    return out


def _unpacked_tradeoff(packed: Any) -> Tradeoff | None:
    """Return the query weights and noise shares (`Tradeoff`) in a plan file.

    The result is None for the objective "sum" without accuracy constraints of groups.
    """
    if packed is None:
        return None
    shares, witness = unpack(packed["shares"]), packed["witness"]
    if not ((shares > 0) & np.isfinite(shares)).all():
        raise ValueError("shares must be positive and finite")
    limits = unpack(packed["limits"]) if "limits" in packed else None
    if limits is not None and not (limits > 0).all():
        raise ValueError("limits must be positive")
    return Tradeoff(
        shares=shares,
        emphasis=Emphasis.from_dict(packed["emphasis"]),
        witness=None if witness is None else Emphasis.from_dict(witness),
        limits=limits,
        lines=LineWeights.from_dict(packed["lines"]) if "lines" in packed else None,
    )


MECHANISMS: tuple[type[Mechanism], ...] = (
    QuerySmasher,
    ResidualPlannerPlus,
    ResidualPlanner,
    WeightedFourier,
    HDMM,
    Optimum,
    LevelSelection,
    DataCube,
    Hierarchical,
    GreedyHierarchical,
    Wavelet,
    Identity,
    GaussianQueries,
    LaplaceQueries,
)
LIMITS = tuple(f.name for f in fields(Limits) if f.metadata.get("is_option", True))


def mechanism_class(name: str) -> type[Mechanism]:
    """Return the class of the mechanism ``name``; raise PlanError if there is none."""
    by_name = {m.name: m for m in MECHANISMS}
    if not isinstance(name, str) or name not in by_name:
        near = near_matches(name, by_name)
        raise PlanError(
            f"The mechanism {repr(name)[:60]} does not exist{near}. Choose one of"
            f" {', '.join(by_name)}."
        )
    return by_name[name]


def _mechanism_of(name: str, options: Mapping[str, Any], max_records: int) -> Mechanism:
    """Return the mechanism with the options of a stored plan.

    An option that the plan lacks gets its value in `Mechanism.unsaid`.
    Raises PlanError for an unknown mechanism or option, or an invalid value of an option.
    """
    return _configure(name, {**mechanism_class(name).unsaid, **options, "max_records": max_records})


def checked_options(mechanism: str, options: Mapping[str, Any]) -> tuple[Mechanism, Limits]:
    """Split keyword arguments of `plan` into mechanism options and resource limits.

    Returns
    -------
    The mechanism with its options, and the limits.

    Raises
    ------
    PlanError
        If the mechanism or an option is unknown, or an option has an invalid value.
    """
    limit_options = {k: v for k, v in options.items() if k in LIMITS}
    limits = Limits(**limit_options | {"progress": check_callback(limit_options.get("progress"))})
    return _configure(mechanism, {k: v for k, v in options.items() if k not in LIMITS}), limits


def _configure(name: str, options: dict[str, Any]) -> Mechanism:
    """Return the mechanism ``name`` with the options; raise PlanError for an invalid option."""
    cls = mechanism_class(name)
    names = [*(f.name for f in fields(cls)), *LIMITS]
    if unknown := [k for k in options if k not in names]:
        near = near_matches(unknown[0], names)
        raise PlanError(
            f"The mechanism '{name}' has no option {unknown[0]}{near}. Choose from"
            f" {', '.join(names)}."
        )
    try:
        return cls(**options)
    except TypeError as error:
        raise PlanError(
            f"An option of the mechanism '{name}' has a value of the wrong type ({error}). Correct"
            " this value."
        ) from None


def plan(
    workload: Workload,
    budget: Budget,
    mechanism: str = "querysmasher",
    **options: Unpack[PlanOptions],
) -> Plan:
    """Fit a mechanism to a workload and a budget, without reading records.

    The privacy cost of the plan is at most ``budget.pcost``.  It is computed from the matrices and
    noise scales of the release.

    Parameters
    ----------
    mechanism : name of a mechanism in ``MECHANISMS``.
    options : options of the mechanism, and the following options of all mechanisms.  See
        `PlanOptions`.

        - objective, power, targets, max_records: see `Mechanism`.
        - time_limit: in seconds.
        - memory_limit: in bytes.
        - progress: function of (fraction, text) that returns False to cancel; True shows a progress
          bar.
        - workers: number of worker processes; 1 plans in this process.
        - cache: whether to read and write the cache of solutions.

    Raises
    ------
    PlanError
        For an unknown mechanism or option, an invalid value of an option, or a workload in which no
        weighted query needs a measurement.
    SchemaError, WorkloadError
        For an option that names an attribute or a query family that does not exist.
    NotApplicable, LimitExceeded, Cancelled
        See `engine.errors`.

    >>> from engine import Attribute, Schema
    >>> schema = Schema([Attribute.of_size("age", 10), Attribute.of_size("hours", 10)])
    >>> result = plan(Workload.all_ways(schema, ways=(1, 2)), Budget(pcost=1.0))
    >>> round(result.rmse, 3)
    2.612
    """
    configured, limits = checked_options(mechanism, options)
    if isinstance(workload, Workload):  # `Mechanism.plan` raises PlanError for another type
        configured.check_invariants(workload)
    # Most matrix products are small, so one thread is fastest.  Code with large matrices sets its
    # own number of threads.
    with threads_for(1):
        return configured.plan(workload, budget, limits)


def forecast(
    workload: Workload, mechanism: str = "querysmasher", **options: Unpack[PlanOptions]
) -> Forecast:
    """Predict the time and memory of `plan` with these arguments at any budget, without planning.

    Raises
    ------
    PlanError
        For an unknown mechanism or option, an invalid value of an option, or a ``workload`` of
        another type.
    NotApplicable
        If the mechanism does not support the workload.
    LimitExceeded
        If planning would exceed a limit.
    """
    check_type(
        "workload",
        workload,
        Workload,
        give="a Workload, such as Workload.all_ways(schema)",
        error=PlanError,
    )
    configured, limits = checked_options(mechanism, options)
    configured.check_invariants(workload)
    return configured.forecast(workload, limits)


def at_budget(base: Plan, budget: Budget) -> Plan:
    """Return a plan for another budget of the same kind, without another search.

    The strategies are those of ``base``; noise and grids are computed for the budget.

    Raises
    ------
    PlanError
        If the mechanism is not in ``MECHANISMS``, or the noise for the budget cannot be rounded to
        a grid.
    NotApplicable
        If the mechanism has no noise distribution for this kind of budget.

    >>> from engine import Attribute, Schema
    >>> first = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age"), Budget(pcost=1.0))
    >>> round(at_budget(first, Budget(pcost=4.0)).rmse, 6)
    0.5
    """
    return _mechanism_of(base.mechanism, base.options, base.max_records).at_budget(base, budget)


def load_plan(text: str | bytes, *, untrusted: bool = False) -> Plan:
    """Load a plan from the text of `Plan.to_json`.

    The function rebuilds the plan from the search result in the file.  The hash of the plan must
    equal that in the file.  The privacy cost and the error may differ by a relative 1e-6.

    Parameters
    ----------
    untrusted : whether to reject files that need much more memory than their size.

    Raises
    ------
    PlanError
        If the text is not a plan, is damaged, or contradicts the rebuilt plan.
    EngineError
        If the workload or the budget in the file is not valid, or exceeds a limit.
    """
    try:
        return _load(text, untrusted)
    except EngineError:
        raise
    # A damaged file may contain values of any type.
    except Exception:
        raise PlanError("The plan file is damaged. Export the plan again.") from None


def _load(text: str | bytes, untrusted: bool) -> Plan:
    """Return the plan of a file.  A damaged file may raise any exception."""
    data, solved = parse_plan(text, untrusted=untrusted)
    if not isinstance(data["options"], dict):
        raise PlanError("The field 'options' of the plan file is damaged. Export the plan again.")
    configured = _mechanism_of(data["mechanism"], data["options"], data["max_records"])
    workload, budget = Workload.from_dict(data["workload"]), Budget.from_dict(data["budget"])
    for name, pi in solved.split.centers.items():
        if len(pi) != workload.schema[name].size or abs(pi.sum() - 1.0) > 1e-9:
            raise PlanError(
                f"The plan file is damaged: the center of '{name}' is not a list of one number per"
                " cell with sum 1. Export the plan again."
            )
    configured.check_invariants(workload)
    try:
        with threads_for(1):
            rebuilt = configured.rebuild(workload, budget, solved)
    except (IndexError, ValueError, FloatingPointError) as error:
        # PlanError is a subclass of ValueError.  Its message is already for the user.
        if isinstance(error, PlanError):
            raise
        raise PlanError(
            "The search result in the field 'solved' of the plan file does not fit its workload."
            " Export the plan again."
        ) from None
    return check_rebuilt(rebuilt, data)


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """Return the label of a mechanism with options, for tables that compare mechanisms.

    Options with their default value are omitted.  Mechanisms with different options have different
    labels.

    >>> label_of("querysmasher", {"objective": "sum", "centers": "tuned"}), label_of("wff", {"embedding": "cells"})
    ('querysmasher (centers=tuned)', 'wff')
    """
    defaults = {
        f.name: getattr(m(), f.name) for m in MECHANISMS if m.name == name for f in fields(m)
    }
    text = ", ".join(
        f"{k}={v}" for k, v in options.items() if k not in defaults or not _is_equal(v, defaults[k])
    )
    return f"{name} ({text})" if text else name


def _is_equal(value: Any, other: Any) -> bool:
    """Return whether two option values are equal; True and False differ from 1 and 0.

    The result is False if ``value`` has another type than str, bool, int, float, mapping or None.
    """
    if isinstance(value, bool) != isinstance(other, bool):
        return False
    return isinstance(value, (str, bool, int, float, Mapping, type(None))) and bool(value == other)


def title_of(label: str) -> str:
    """Return the display title of a label of `label_of`.

    Values that are words are shown without the name of their option.

    >>> title_of("querysmasher (centers=tuned, gap=0.01)"), title_of("identity"), title_of("nonsense")
    ('QuerySmasher (tuned, gap 0.01)', 'Identity', 'nonsense')
    """
    name, _, options = label.partition(" (")
    titles = {m.name: m.title for m in MECHANISMS}
    chosen = [word.partition("=") for word in options.removesuffix(")").split(", ") if word]
    words = [value if value.isalpha() else f"{key} {value}".strip() for key, _, value in chosen]
    title = titles.get(name, name)
    return f"{title} ({', '.join(words)})" if words else title


def variants() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return the settings of all mechanisms that a comparison includes.

    The result maps each label to a pair (name of the mechanism, its options).
    """
    return {
        label_of(m.name, options): (m.name, options) for m in MECHANISMS for options in m.variants
    }


# Centers are tuned by default if the predicted planning time is at most this many seconds, or at
# most this multiple of the time with uniform centers.
TUNING_TIME_LIMIT_S = 1.0
TUNING_TIME_RATIO = 3.0
# In the app and on the command line, the default of this option depends on the workload.
CENTERS_OPTION = "centers"
UNIFORM_REASON = "uniform centers, as in the paper"


@dataclass(frozen=True, kw_only=True)
class DefaultOptions:
    """Result of `default_options`.

    Attributes
    ----------
    options : keyword arguments of `plan`, with the default of "centers" added.
    reason : which centers were chosen, and why.  It is empty if the given options determine the
        centers, if the mechanism has no centers, or if the forecast raised an error.
    expected : forecast of time and memory for these options, or None.
    """

    options: Mapping[str, Any]
    reason: str = ""
    expected: Forecast | None = None


def default_options(
    workload: Workload, mechanism: str, options: Mapping[str, Any]
) -> DefaultOptions:
    """Return options with the default of "centers" that the app and the command line use.

    `plan` itself has uniform centers by default, as in the paper.  This function leaves the options
    unchanged if they contain "centers" or the mechanism has no such option.  Otherwise it decides
    by the first rule that applies:

    1. With the option ``keep``, which requires tuned centers: tuned.
    2. With an objective other than "sum" or a solver other than "optimal": uniform.
    3. If the forecast raises an error or predicts too much memory for tuned centers: uniform.
    4. If planning with tuned centers is predicted to take at most one second, or at most three
       times as long as with uniform centers: tuned.
    5. Otherwise: uniform.

    Raises
    ------
    PlanError
        For an unknown mechanism.  If the function has to choose centers, also for an unknown option
        or an invalid value of an option.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 20)])).add("age", "prefix")
    >>> default_options(workload, "querysmasher", {}).options
    {'centers': 'tuned'}
    >>> print(default_options(workload, "querysmasher", {"objective": "max"}).reason)
    uniform centers, as in the paper: they are tuned by default only for the sum of all errors
    """
    options = implied_options(options)
    if (
        CENTERS_OPTION in options
        or CENTERS_OPTION not in mechanism_class(mechanism).__dataclass_fields__
    ):
        return DefaultOptions(options=options)
    configured, limits = checked_options(mechanism, options)
    uniform, tuned = (options | {CENTERS_OPTION: centers} for centers in ("uniform", "tuned"))
    if configured.objective != "sum":
        text = "they are tuned by default only for the sum of all errors"
        return DefaultOptions(options=uniform, reason=f"{UNIFORM_REASON}: {text}")
    if options.get("solver", "optimal") != "optimal":
        text = "they are tuned by default only with the solver 'optimal'"
        return DefaultOptions(options=uniform, reason=f"{UNIFORM_REASON}: {text}")
    try:
        tuned_forecast = forecast(workload, mechanism, **tuned)
        uniform_forecast = (
            tuned_forecast
            if tuned_forecast.seconds <= TUNING_TIME_LIMIT_S
            else forecast(workload, mechanism, **uniform)
        )
    # If the forecast raises an error, the centers are uniform.  `plan` raises the error again.
    except EngineError:
        return DefaultOptions(options=uniform)
    if tuned_forecast.memory > limits.memory_limit:
        text = f"tuning them may take {format_number(tuned_forecast.memory / 1e9)} GB of memory"
        return DefaultOptions(options=uniform, reason=f"{UNIFORM_REASON}: {text}")
    if tuned_forecast.seconds <= TUNING_TIME_LIMIT_S:
        return DefaultOptions(
            options=tuned,
            reason=f"tuned centers: planning takes about {_duration(tuned_forecast)}",
            expected=tuned_forecast,
        )
    text = f"takes about {_duration(tuned_forecast)} in place of {_duration(uniform_forecast)}"
    if tuned_forecast.seconds <= TUNING_TIME_RATIO * uniform_forecast.seconds:
        return DefaultOptions(
            options=tuned, reason=f"tuned centers: planning {text}", expected=tuned_forecast
        )
    return DefaultOptions(
        options=uniform, reason=f"{UNIFORM_REASON}: tuning them {text}", expected=uniform_forecast
    )


def implied_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with tuned centers added if the option ``keep`` requires them.

    >>> implied_options({"keep": 0.0})
    {'centers': 'tuned', 'keep': 0.0}
    """
    return (
        {CENTERS_OPTION: "tuned", **options} if options.get("keep") is not None else dict(options)
    )


def _duration(prediction: Forecast) -> str:
    """Return the predicted planning time as text such as "2.5 s", at least "0.1 s"."""
    return f"{max(prediction.seconds, 0.1):.{0 if prediction.seconds >= 10.0 else 1}f} s"
