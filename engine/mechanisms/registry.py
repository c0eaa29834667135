"""Registry of mechanisms, default options and planning.

The mechanisms that the project knows, and the two functions that make plans with them.

What a plan is made with where nobody said: tuned centers, where the forecast says that they take little longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Unpack

from engine._format import amount, near_matches
from engine._threads import threads_for
from engine._validation import instance, one_of
from engine.errors import EngineError, PlanError
from engine.mechanisms.base import Forecast, Limits, Mechanism, PlanOptions
from engine.mechanisms.baselines import DataCube, GaussianQueries, Identity, LaplaceQueries, Optimum
from engine.mechanisms.hdmm import HDMM
from engine.mechanisms.hierarchical import GreedyHierarchical, Hierarchical, LevelSelection, Wavelet
from engine.mechanisms.querysmasher import QuerySmasher
from engine.mechanisms.residualplanner import ResidualPlanner, ResidualPlannerPlus
from engine.mechanisms.wff import WeightedFourier
from engine.plans import Plan
from engine.plans.serialization import check_rebuilt, parse_plan
from engine.privacy import Budget
from engine.progress import listener
from engine.workload import Workload

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
    """Return the mechanism of this name; raise PlanError when there is none."""
    by_name = {m.name: m for m in MECHANISMS}
    if not isinstance(name, str) or name not in by_name:
        near = near_matches(name, by_name)
        raise PlanError(f"There is no mechanism {repr(name)[:60]}{near}. Choose one of {', '.join(by_name)}.")
    return by_name[name]


def _recorded(name: str, options: Mapping[str, Any], max_records: int) -> Mechanism:
    """Return the mechanism that made a plan, by the options that the plan holds."""
    return _configured(name, {**mechanism_class(name).unsaid, **options, "max_records": max_records})


def checked_options(mechanism: str, options: Mapping[str, Any]) -> tuple[Mechanism, Limits]:
    """Return a mechanism with its options, and what planning may take; raise PlanError for what is mistyped."""
    asked = {k: v for k, v in options.items() if k in LIMITS}
    limits = Limits(**asked | {"progress": listener(asked.get("progress"))})
    return _configured(mechanism, {k: v for k, v in options.items() if k not in LIMITS}), limits


def _configured(name: str, options: dict[str, Any]) -> Mechanism:
    cls = mechanism_class(name)
    known = [*(f.name for f in fields(cls)), *LIMITS]
    if unknown := [k for k in options if k not in known]:
        near = near_matches(unknown[0], known)
        raise PlanError(f"The mechanism '{name}' has no option {unknown[0]}{near}. Its options are {', '.join(known)}.")
    try:
        return cls(**options)
    except TypeError as error:
        raise PlanError(f"An option of the mechanism '{name}' has a value of the wrong kind: {error}.") from None


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
    aim : "answers", the weights of the groups as they are; "published", weights that make published tables most exact,
        which the workload of the plan then has.
    reference : for that aim, tables like those to come which anybody may know: `Published` tables of an earlier
        release, public records or simulated ones.  Never the records that are to be protected: a plan is public.
    options : the mechanism's own, and ``objective``, ``max_records``, ``time_limit`` (seconds), ``memory_limit``
        (bytes), ``progress``, a function of (fraction, text) that may return False to cancel, or True for a bar,
        ``workers``, the number of processes (1 for none), and ``cache``, whether to use and keep what searches find;
        see `PlanOptions`.

    Guarantee: the privacy cost of the plan, recomputed from the matrices and noise scales that it will release, is at
    most ``budget.pcost``.

    Raises
    ------
    PlanError : an unknown mechanism or option, or a workload without weighted queries.
    NotApplicable, LimitExceeded, Cancelled : see `engine.errors`.

    >>> from engine.workload import Attribute, Schema
    >>> schema = Schema([Attribute.of_size("age", 10), Attribute.of_size("hours", 10)])
    >>> made = plan(Workload.all_ways(schema, ways=(1, 2)), Budget(pcost=1.0))
    >>> round(made.rmse, 3)
    2.612
    """
    configured, limits = checked_options(mechanism, options)
    one_of("aim", aim, AIMS, error=PlanError)
    if isinstance(workload, Workload):
        configured.check_facts(workload)
    if aim == AIMS[0] and reference is not None:
        raise PlanError('A reference is for the aim "published" alone. Leave it out, or say that aim.')
    if aim != AIMS[0]:
        # upwards: the weights are found by simulated releases; see the layers in pyproject.toml
        from engine.postprocess.publication_weights import weighed_for_publishing

        workload = weighed_for_publishing(workload, budget, reference, mechanism, **options)
    with threads_for(1):  # many small products, except where the matrices are known to be large
        return configured.plan(workload, budget, limits)


def forecast(workload: Workload, mechanism: str = "querysmasher", **options: Unpack[PlanOptions]) -> Forecast:
    """Return what `plan` with the same arguments would take in time and memory, without planning."""
    instance("workload", workload, Workload, give="a Workload, such as Workload.all_ways(schema)", error=PlanError)
    configured, limits = checked_options(mechanism, options)
    configured.check_facts(workload)
    return configured.forecast(workload, limits)


def at_budget(made: Plan, budget: Budget) -> Plan:
    """Return the plan that the same request makes at another budget of the same kind, without searching again.

    Guarantee: blocks, noise and grids are those of ``plan(made.workload, budget, made.mechanism, **made.options)``.

    Raises
    ------
    PlanError : the plan comes from none of ``MECHANISMS``, or the budget is beyond what its noise can be rounded to.
    NotApplicable : the mechanism has no noise that keeps this kind of budget.

    >>> from engine.workload import Attribute, Schema
    >>> made = plan(Workload(Schema([Attribute.of_size("age", 4)])).add("age"), Budget(pcost=1.0))
    >>> round(at_budget(made, Budget(pcost=4.0)).rmse, 6)
    0.5
    """
    return _recorded(made.mechanism, made.options, made.max_records).at_budget(made, budget)


def load_plan(text: str | bytes, *, untrusted: bool = False) -> Plan:
    """Return the plan that `Plan.to_json` wrote, rebuilt from its solver weights and checked against its promises.

    Parameters
    ----------
    untrusted : the text is from somebody else: refuse it where it is packed to need far more memory than its size.

    Raises
    ------
    PlanError : the text is no plan, is damaged, or promises what its matrices do not hold.
    """
    try:
        return _loaded(text, untrusted)
    except EngineError:
        raise
    except Exception:  # whatever values a file has where others are expected
        raise PlanError("The plan file is damaged. Export it again.") from None


def _loaded(text: str | bytes, untrusted: bool) -> Plan:
    data, solved = parse_plan(text, untrusted=untrusted)
    if not isinstance(data["options"], dict):
        raise PlanError("The options in the plan file are damaged. Export it again.")
    configured = _recorded(data["mechanism"], data["options"], data["max_records"])
    workload, budget = Workload.from_dict(data["workload"]), Budget.from_dict(data["budget"])
    for name, pi in solved.split.centers.items():
        if len(pi) != workload.schema[name].size or abs(pi.sum() - 1.0) > 1e-9:
            raise PlanError(f"The center of '{name}' in the plan file is no vector with sum 1 on its cells.")
    configured.check_facts(workload)
    try:
        with threads_for(1):
            rebuilt = configured.rebuild(workload, budget, solved)
    except (IndexError, ValueError, FloatingPointError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError("The solver weights in the plan file do not fit its workload. Export it again.") from None
    return check_rebuilt(rebuilt, data)


def label_of(name: str, options: Mapping[str, Any]) -> str:
    """Return the word for a mechanism with options, as in the column ``mechanism``; what `plan` takes anyway is unsaid.

    Guarantee: what is planned differently has different words.

    >>> label_of("querysmasher", {"objective": "sum", "centers": "tuned"}), label_of("wff", {"embedding": "cells"})
    ('querysmasher (centers=tuned)', 'wff')
    """
    unsaid = {f.name: getattr(m(), f.name) for m in MECHANISMS if m.name == name for f in fields(m)}
    words = ", ".join(f"{k}={v}" for k, v in options.items() if k not in unsaid or not _same(v, unsaid[k]))
    return f"{name} ({words})" if words else name


def _same(value: Any, other: Any) -> bool:
    """Return whether an option has the other value; arrays, and True for 1, are none that a plan takes anyway."""
    if isinstance(value, bool) != isinstance(other, bool):
        return False
    return isinstance(value, (str, bool, int, float, Mapping, type(None))) and bool(value == other)


def title_of(label: str) -> str:
    """Return a label of a comparison in words for people: words speak for themselves, numbers need their option.

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
    return {label_of(m.name, options): (m.name, options) for m in MECHANISMS for options in m.variants}


SOON = 1.0  # seconds of forecast up to which nobody minds that tuning takes longer
TIMES = 3.0  # times what uniform centers take, up to which tuning is worth it unasked
OPEN = "centers"  # the option that is filled in
PAPER = "uniform centers, as in the paper"


@dataclass(frozen=True, kw_only=True)
class Usual:
    """Options with what nobody said filled in.

    Attributes
    ----------
    options : keyword arguments of `plan`, besides the mechanism.
    reason : which centers were taken and why, in words; empty where there was nothing to fill in.
    expected : the forecast for these options, where it was needed to fill them in.
    """

    options: Mapping[str, Any]
    reason: str = ""
    expected: Forecast | None = None


def usual_options(workload: Workload, mechanism: str, options: Mapping[str, Any]) -> Usual:
    """Fill in what the options of a mechanism leave open, as the app and the command line do.

    `plan` itself takes uniform centers, as in the paper.  Here centers are tuned where the forecast says that planning
    takes at most a second, or at most three times what it takes with uniform ones, and where groups are to be kept.
    Other objectives and solvers stay with uniform centers.

    Raises
    ------
    PlanError : an unknown mechanism or option.

    >>> from engine.workload import Attribute, Schema
    >>> asked = Workload(Schema([Attribute.of_size("age", 20)])).add("age", "prefix")
    >>> usual_options(asked, "querysmasher", {}).options
    {'centers': 'tuned'}
    >>> print(usual_options(asked, "querysmasher", {"objective": "max"}).reason)
    uniform centers, as in the paper: they are tuned unasked for the sum of all errors alone
    """
    options = implied_options(options)
    if OPEN in options or OPEN not in mechanism_class(mechanism).__dataclass_fields__:
        return Usual(options=options)
    configured, limits = checked_options(mechanism, options)
    uniform, tuned = (options | {OPEN: centers} for centers in ("uniform", "tuned"))
    if configured.objective != "sum" or options.get("solver", "optimal") != "optimal":
        return Usual(options=uniform, reason=f"{PAPER}: they are tuned unasked for the sum of all errors alone")
    try:
        takes = forecast(workload, mechanism, **tuned)
        before = takes if takes.seconds <= SOON else forecast(workload, mechanism, **uniform)
    except EngineError:  # planning says it in full
        return Usual(options=uniform)
    if takes.memory > limits.memory_limit:
        words = f"tuning them may take {amount(takes.memory / 1e9)} GB of memory"
        return Usual(options=uniform, reason=f"{PAPER}: {words}")
    if takes.seconds <= SOON:
        return Usual(options=tuned, reason=f"tuned centers: planning takes about {_words(takes)}", expected=takes)
    words = f"takes about {_words(takes)} in place of {_words(before)}"
    if takes.seconds <= TIMES * before.seconds:
        return Usual(options=tuned, reason=f"tuned centers: planning {words}", expected=takes)
    return Usual(options=uniform, reason=f"{PAPER}: tuning them {words}", expected=before)


def implied_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those that they imply: groups are kept by tuned centers alone.

    >>> implied_options({"keep": 0.0})
    {'centers': 'tuned', 'keep': 0.0}
    """
    return {OPEN: "tuned", **options} if options.get("keep") is not None else dict(options)


def _words(takes: Forecast) -> str:
    return f"{max(takes.seconds, 0.1):.{0 if takes.seconds >= 10.0 else 1}f} s"
