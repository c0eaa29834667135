"""Registry of mechanisms, planning and default options.

`MECHANISMS` lists all mechanisms.  `plan` makes a plan, `forecast` predicts its cost, and
`load_plan` rebuilds a plan from a file.  `default_options` adds default options: tuned centers if
the predicted additional planning time is small.

Parsing and validation of plan files.
"""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Unpack

import numpy as np

from engine._format import format_number, near_matches
from engine._threads import threads_for
from engine._untrusted import MAX_JSON_MEMORY, parse_json
from engine._validation import check_choice, check_type
from engine.errors import EngineError, PlanError
from engine.mechanisms.base import Forecast, Limits, Mechanism, PlanOptions
from engine.mechanisms.baselines import DataCube, GaussianQueries, Identity, LaplaceQueries, Optimum
from engine.mechanisms.hdmm import HDMM
from engine.mechanisms.hierarchical import GreedyHierarchical, Hierarchical, LevelSelection, Wavelet
from engine.mechanisms.querysmasher import QuerySmasher
from engine.mechanisms.residualplanner import ResidualPlanner, ResidualPlannerPlus, WeightedFourier
from engine.plans import Plan
from engine.plans.objectives import Emphasis, unpack
from engine.plans.plan import FORMAT
from engine.plans.solver_state import Lines, SolverState, Tradeoff
from engine.privacy import Budget
from engine.progress import check_callback
from engine.residuals import Complement, Space, Split
from engine.workload import Workload

# entries of the custom matrices in an untrusted plan file
MAX_ENTRIES = 5_000_000
# entries of the custom matrices per byte of an untrusted plan file, if that is more
MAX_ENTRIES_PER_BYTE = 10


def parse_plan(text: str | bytes, *, untrusted: bool = False) -> tuple[dict[str, Any], SolverState]:
    """Return the validated JSON document of a plan and the state of its solver.

    Parameters
    ----------
    text : content of the plan file.
    untrusted : limit the memory that the document may need in proportion to its size.

    Raises
    ------
    PlanError : the text is not a plan file of this version, or is damaged.
    """
    try:
        data = parse_json(text, max_memory=MAX_JSON_MEMORY if untrusted else math.inf)
    except ValueError:
        message = (
            "The plan is not valid JSON. Give the text that to_json wrote, not the name of a file."
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
        raise PlanError(f"The plan file lacks one of {', '.join(needed)}, solved. Export it again.")
    if untrusted and (entries := _packed_entries(data["workload"])) > max(
        MAX_ENTRIES, MAX_ENTRIES_PER_BYTE * len(text)
    ):
        raise PlanError(
            f"The custom matrices of the plan file unfold to {entries:,} numbers; so many are not"
            " read."
        )
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
            "The solver weights in the plan file are damaged. Export it again."
        ) from None
    if not all(
        len(d) and (d >= 0).all() and (d <= 1).all() and abs(d.sum() - 1.0) < 1e-9 for d in duals
    ):
        raise PlanError(
            "The solver weights in the plan file are not probabilities. Export it again."
        )
    tuned = [
        *split.centers.values(),
        *(a for c in split.complements.values() for a in (*c.by_axis, c.by_total)),
    ]
    if not all((np.abs(a) < 1e6).all() for a in (*tuned, *matrices)):
        raise PlanError(
            "The centers or matrices in the plan file are not numbers below 1e6. Export it again."
        )
    endings, limit = solved.get("endings"), solved.get("memory_limit")
    if (
        "memory_limit" not in solved
        or not isinstance(endings, list)
        or len(endings) != len(duals)
        or not all(isinstance(e, str) for e in endings)
        or not (limit is None or (type(limit) in (int, float) and limit > 0))
    ):
        raise PlanError(
            "The endings or the memory limit in the plan file are damaged. Export it again."
        )
    if not isinstance(joint := solved.get("joint", False), bool):
        raise PlanError(
            "The field 'joint' of the plan file decides how blocks are charged and must be true or"
            " false. Export it again."
        )
    return data, SolverState(
        duals=tuple(duals),
        endings=tuple(endings),
        memory_limit=math.inf if limit is None else limit,
        split=split,
        matrices=matrices,
        tradeoff=tradeoff,
        joint=joint,
    )


def _packed_entries(workload: Any) -> int:
    """Return the number of entries that the packed matrices of a workload declare."""
    total, level = 0, [workload]
    while level:
        value = level.pop()
        if isinstance(value, dict):
            shape = value.get("shape")
            if isinstance(shape, list) and all(type(n) is int for n in shape):
                total += math.prod(shape)
            level += value.values()
        elif isinstance(value, list):
            level += value
    return total


def check_rebuilt(plan: Plan, data: Mapping[str, Any]) -> Plan:
    """Return the plan if it agrees with the document; raise PlanError otherwise."""
    solved = data["solved"]
    promises = {"pcost": plan.pcost, "weighted_rmse": plan.weighted_rmse}
    if plan.tradeoff is not None:
        promises["achieved"] = plan.achieved
    for name, mine in promises.items():
        stored = solved.get(name)
        if not isinstance(stored, float) or not math.isclose(stored, mine, rel_tol=1e-6):
            raise PlanError(
                f"The plan file promises {name} {stored!r}, but its matrices give {mine}. The file"
                " was changed."
            )
    if solved.get("hash") != plan.hash:
        raise PlanError(
            "The plan file was changed after it was written: its hash does not match. Export it"
            " again."
        )
    return plan


def _unpacked_complements(packed: Any) -> dict[Space, Complement]:
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
        lines=Lines.from_dict(packed["lines"]) if "lines" in packed else None,
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
AIMS = ("answers", "published")
LIMITS = tuple(f.name for f in fields(Limits))


def mechanism_class(name: str) -> type[Mechanism]:
    """Return the mechanism class of a name; raise PlanError for an unknown name."""
    by_name = {m.name: m for m in MECHANISMS}
    if not isinstance(name, str) or name not in by_name:
        near = near_matches(name, by_name)
        raise PlanError(
            f"There is no mechanism {repr(name)[:60]}{near}. Choose one of {', '.join(by_name)}."
        )
    return by_name[name]


def _mechanism_of(name: str, options: Mapping[str, Any], max_records: int) -> Mechanism:
    """Return the mechanism of a plan, configured by the options in the plan."""
    return _configured(
        name, {**mechanism_class(name).unsaid, **options, "max_records": max_records}
    )


def checked_options(mechanism: str, options: Mapping[str, Any]) -> tuple[Mechanism, Limits]:
    """Return the configured mechanism and limits; raise PlanError for invalid options."""
    limit_options = {k: v for k, v in options.items() if k in LIMITS}
    limits = Limits(**limit_options | {"progress": check_callback(limit_options.get("progress"))})
    return _configured(mechanism, {k: v for k, v in options.items() if k not in LIMITS}), limits


def _configured(name: str, options: dict[str, Any]) -> Mechanism:
    cls = mechanism_class(name)
    names = [*(f.name for f in fields(cls)), *LIMITS]
    if unknown := [k for k in options if k not in names]:
        near = near_matches(unknown[0], names)
        raise PlanError(
            f"The mechanism '{name}' has no option {unknown[0]}{near}. Its options are"
            f" {', '.join(names)}."
        )
    try:
        return cls(**options)
    except TypeError as error:
        raise PlanError(
            f"An option of the mechanism '{name}' has a value of the wrong type: {error}."
        ) from None


def plan(
    workload: Workload,
    budget: Budget,
    mechanism: str = "querysmasher",
    *,
    aim: str = AIMS[0],
    reference: Any = None,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Fit a mechanism to a workload and a budget; no record is read.

    Parameters
    ----------
    mechanism : name of a mechanism in ``MECHANISMS``.
    aim : "answers" uses the weights of the groups; "published" replaces them by weights that
        minimise the error of published tables, and the workload of the plan has these weights.
    reference : for the aim "published", public tables similar to the expected ones: `Published`
        tables of an earlier release, public records or simulated records.  Never use the protected
        records, because a plan is public.
    options : options of the mechanism, and ``objective``, ``max_records``, ``time_limit``
        (seconds), ``memory_limit`` (bytes), ``progress`` (a function of (fraction, text) that may
        return False to cancel, or True for a progress bar), ``workers`` (number of processes, 1 for
        none) and ``cache`` (whether to read and write the cache of solutions); see `PlanOptions`.

    Notes
    -----
    The privacy cost of the plan, recomputed from the matrices and noise scales of the release, is
    at most ``budget.pcost``.

    Raises
    ------
    PlanError
        For an unknown mechanism or option, or a workload without weighted queries.
    NotApplicable, LimitExceeded, Cancelled
        See `engine.errors`.

    >>> from engine import Attribute, Schema
    >>> schema = Schema([Attribute.of_size("age", 10), Attribute.of_size("hours", 10)])
    >>> result = plan(Workload.all_ways(schema, ways=(1, 2)), Budget(pcost=1.0))
    >>> round(result.rmse, 3)
    2.612
    """
    configured, limits = checked_options(mechanism, options)
    check_choice("aim", aim, AIMS, error=PlanError)
    if isinstance(workload, Workload):
        configured.check_facts(workload)
    if aim == AIMS[0] and reference is not None:
        raise PlanError(
            'A reference is for the aim "published" alone. Leave it out, or choose that aim.'
        )
    if aim != AIMS[0]:
        # The weights come from simulated releases, in a package above this one; see the import
        # layers in pyproject.toml.
        from engine.postprocess.publication_weights import weighed_for_publishing

        workload = weighed_for_publishing(workload, budget, reference, mechanism, **options)
    # Most matrix products are small; code with large matrices sets its own number of threads.
    with threads_for(1):
        return configured.plan(workload, budget, limits)


def forecast(
    workload: Workload, mechanism: str = "querysmasher", **options: Unpack[PlanOptions]
) -> Forecast:
    """Predict the time and memory of `plan` with the same arguments, without planning."""
    check_type(
        "workload",
        workload,
        Workload,
        give="a Workload, such as Workload.all_ways(schema)",
        error=PlanError,
    )
    configured, limits = checked_options(mechanism, options)
    configured.check_facts(workload)
    return configured.forecast(workload, limits)


def at_budget(made: Plan, budget: Budget) -> Plan:
    """Return a plan for another budget of the same kind, without another search.

    Blocks, noise and grids equal those of
    ``plan(made.workload, budget, made.mechanism, **made.options)``.

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
    return _mechanism_of(made.mechanism, made.options, made.max_records).at_budget(made, budget)


def load_plan(text: str | bytes, *, untrusted: bool = False) -> Plan:
    """Load a plan from the text of `Plan.to_json`.

    The plan is rebuilt from its solver weights and compared with the values in the file.

    Parameters
    ----------
    untrusted : whether to reject compressed texts that expand to much more memory than their size.

    Raises
    ------
    PlanError
        If the text is not a plan, is damaged, or contradicts the rebuilt plan.
    """
    try:
        return _load(text, untrusted)
    except EngineError:
        raise
    # A damaged file may contain values of any type.
    except Exception:
        raise PlanError("The plan file is damaged. Export it again.") from None


def _load(text: str | bytes, untrusted: bool) -> Plan:
    data, solved = parse_plan(text, untrusted=untrusted)
    if not isinstance(data["options"], dict):
        raise PlanError("The options in the plan file are damaged. Export it again.")
    configured = _mechanism_of(data["mechanism"], data["options"], data["max_records"])
    workload, budget = Workload.from_dict(data["workload"]), Budget.from_dict(data["budget"])
    for name, pi in solved.split.centers.items():
        if len(pi) != workload.schema[name].size or abs(pi.sum() - 1.0) > 1e-9:
            raise PlanError(
                f"The center of '{name}' in the plan file is not a vector on its cells with sum 1."
            )
    configured.check_facts(workload)
    try:
        with threads_for(1):
            rebuilt = configured.rebuild(workload, budget, solved)
    except (IndexError, ValueError, FloatingPointError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(
            "The solver weights in the plan file do not fit its workload. Export it again."
        ) from None
    return check_rebuilt(rebuilt, data)


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """Label of a mechanism with options, as in the column ``mechanism``.

    Default options are omitted; different plans have different labels.

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
    """Return whether two option values are equal; arrays are never equal, nor are True and 1."""
    if isinstance(value, bool) != isinstance(other, bool):
        return False
    return isinstance(value, (str, bool, int, float, Mapping, type(None))) and bool(value == other)


def title_of(label: str) -> str:
    """Return the display title of a label; values that are words omit the option name.

    >>> title_of("querysmasher (centers=tuned, gap=0.01)"), title_of("identity"), title_of("nonsense")
    ('QuerySmasher, tuned, gap 0.01', 'Identity', 'nonsense')
    """
    name, _, options = label.partition(" (")
    titles = {m.name: m.title for m in MECHANISMS}
    chosen = [word.partition("=") for word in options.removesuffix(")").split(", ") if word]
    words = [value if value.isalpha() else f"{key} {value}".strip() for key, _, value in chosen]
    return ", ".join([titles.get(name, name), *words])


def variants() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return every mechanism with each of its variants as (name, options), by label."""
    return {
        label_of(m.name, options): (m.name, options) for m in MECHANISMS for options in m.variants
    }


# Predicted time in seconds up to which centers are tuned by default.
TUNING_TIME_LIMIT_S = 1.0
# Ratio to the predicted time with uniform centers up to which centers are tuned by default.
TUNING_TIME_RATIO = 3.0
# The option with a default that depends on the workload.
CENTERS_OPTION = "centers"
UNIFORM_REASON = "uniform centers, as in the paper"


@dataclass(frozen=True, kw_only=True)
class DefaultOptions:
    """Options with defaults.

    Attributes
    ----------
    options : keyword arguments of `plan`, except the mechanism.
    reason : the chosen centers and the reason; empty without a choice.
    expected : the forecast for these options, if the choice required it.
    """

    options: Mapping[str, Any]
    reason: str = ""
    expected: Forecast | None = None


def default_options(
    workload: Workload, mechanism: str, options: Mapping[str, Any]
) -> DefaultOptions:
    """Add the default centers to the options of a mechanism, as the app and the command line do.

    `plan` has uniform centers by default, as in the paper.  This function chooses tuned centers if
    the predicted planning time is at most one second, or at most three times that with uniform
    centers, and if accuracy constraints of groups require them.  Other objectives and solvers have
    uniform centers.

    Raises
    ------
    PlanError
        For an unknown mechanism or option.

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
    if configured.objective != "sum" or options.get("solver", "optimal") != "optimal":
        return DefaultOptions(
            options=uniform,
            reason=f"{UNIFORM_REASON}: they are tuned by default only for the sum of all errors",
        )
    try:
        tuned_forecast = forecast(workload, mechanism, **tuned)
        uniform_forecast = (
            tuned_forecast
            if tuned_forecast.seconds <= TUNING_TIME_LIMIT_S
            else forecast(workload, mechanism, **uniform)
        )
    # `plan` raises the same error with its full message.
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
    """Return options with those that they imply: ``keep`` requires tuned centers.

    >>> implied_options({"keep": 0.0})
    {'centers': 'tuned', 'keep': 0.0}
    """
    return (
        {CENTERS_OPTION: "tuned", **options} if options.get("keep") is not None else dict(options)
    )


def _duration(prediction: Forecast) -> str:
    return f"{max(prediction.seconds, 0.1):.{0 if prediction.seconds >= 10.0 else 1}f} s"
