"""What a plan is made with where nobody said: tuned centers, where the forecast says that they take little longer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import EngineError
from engine.mechanisms.base import Forecast
from engine.mechanisms.known import checked_options, forecast, mechanism_class
from engine.texts import amount
from engine.workload import Workload

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
