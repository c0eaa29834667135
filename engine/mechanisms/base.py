"""Base class of mechanisms, planning limits and forecasts.

A mechanism has a name, texts, options as dataclass fields, and methods that make and rebuild a
plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypedDict

from engine._clock import planning_time
from engine._format import format_number
from engine._validation import check_choice
from engine.errors import Cancelled, LimitExceeded, NotApplicable, PlanError
from engine.plans import Plan
from engine.plans.blocks import MAX_RECORDS
from engine.plans.objectives import LARGEST_POWER, OBJECTIVES, Objective, check_targets, objective
from engine.plans.solver_state import SolverState
from engine.privacy import Budget
from engine.progress import Listener, Progress
from engine.residuals.cache import SolveCache, default_cache
from engine.residuals.decomposition import Subworkload, has_identity_gram
from engine.residuals.strategy_search import Cost
from engine.workload import Workload

# Largest number of attributes of a group: 2^14 residual spaces take a few seconds.
MAX_ATTRIBUTES = 14

NoiseLaw = Literal["gaussian", "laplace"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Resource limits of planning, with progress callback and cache.

    Attributes
    ----------
    time_limit : computing time in seconds, without waits for other programs; None for no limit.
    memory_limit : memory in bytes.
    progress : callback with a fraction and a text; planning stops if it returns False or raises.
    workers : number of parallel processes, 1 for none; None uses all cores for large problems, or
        the caller's `joblib.parallel_config`.
    cache : whether solutions are read from and written to the cache.
    """

    time_limit: float | None = None
    memory_limit: float = 4e9
    progress: Listener | None = None
    workers: int | None = None
    cache: bool = True

    def __post_init__(self) -> None:
        for name in ("time_limit", "memory_limit"):
            value = getattr(self, name)
            # Memory needs a limit, because the operating system kills a process that exceeds it.
            missing = value is None and name == "memory_limit"
            # `not value > 0` also rejects nan.
            if missing or (
                value is not None
                and (
                    isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0
                )
            ):
                raise PlanError(f"{name} was {value!r}. Give a number above 0, or leave it out.")
        if self.workers is not None and (
            isinstance(self.workers, bool)
            or not isinstance(self.workers, int)
            or not 1 <= self.workers <= 1024
        ):
            raise PlanError(
                f"workers was {self.workers!r}. Give an integer from 1 to 1024, or leave it out."
            )
        if not isinstance(self.cache, bool):
            raise PlanError(f"cache was {self.cache!r}. Give True or False.")

    def solve_cache(self) -> SolveCache | None:
        """Return the cache of solutions, or None."""
        return default_cache() if self.cache else None

    def deadline(self) -> float:
        """Return the time at which planning stops, on the clock of `planning_time`."""
        return math.inf if self.time_limit is None else planning_time() + self.time_limit

    def tell(self, fraction: float, text: str) -> None:
        """Report progress; raise `Cancelled` if the callback returns False."""
        if self.progress is not None and self.progress(fraction, text) is False:
            raise Cancelled("Planning was cancelled; nothing was changed.")


class PlanOptions(TypedDict, total=False):
    """Keyword arguments of `plan` and `forecast`.

    The first group is documented in `Mechanism`, the second one in `Limits`, and the last one in
    the classes of single mechanisms.
    """

    objective: str
    power: float
    targets: float | Sequence[float] | None
    max_records: int

    time_limit: float | None
    memory_limit: float
    progress: Progress | None
    workers: int | None
    cache: bool

    centers: str
    keep: float | Mapping[int, float] | None
    solver: str
    gap: float
    base: Mapping[str, str]
    embedding: str
    operator: str
    restarts: int
    seed: int
    branching: int | str
    charge: str


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Predicted time in seconds, upper bound on memory in bytes, and a description of the work."""

    seconds: float
    memory: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Base class of all mechanisms; the fields of a subclass are its options.

    To add a mechanism, write a subclass and add it to ``MECHANISMS``.

    Class attributes
    ----------------
    name, title, meaning : identifier, display name and one-sentence description.
    variants : combinations of options for comparisons.
    choices : allowed values of options, for forms; options that are not listed are numbers or have
        their default.
    laws : noise distributions; a budget of pure epsilon needs "laplace", all others "gaussian".
    unsaid : values of options that are missing in plan files.
    keeps_invariants : whether the mechanism supports exact totals (public tables) in the schema.

    Options
    -------
    objective : "sum" is the weighted sum of variances; "max" the largest variance of a query with
        positive weight; "lp" is (sum of weight times variance^power)^(1/power), between the two.
        See `engine.plans.objectives`.
    power : p of "lp", from 1 to 100.
    targets : for "max", target standard errors in counts: one number, or one per group.  The
        largest ratio of standard error to target is minimised.
    max_records : public upper bound on the number of records.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    meaning: ClassVar[str]
    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    laws: ClassVar[tuple[str, ...]] = ("gaussian",)
    unsaid: ClassVar[Mapping[str, Any]] = {}
    keeps_invariants: ClassVar[bool] = False

    objective: str = "sum"
    power: float = 2.0
    targets: float | Sequence[float] | None = None
    max_records: int = MAX_RECORDS

    def __post_init__(self) -> None:
        check_choice("option objective", self.objective, OBJECTIVES, error=PlanError, public=True)
        if (
            isinstance(self.power, bool)
            or not isinstance(self.power, (int, float))
            or not 1 <= self.power <= LARGEST_POWER
        ):
            raise PlanError(
                f"power was {self.power!r}. Give a number from 1 to {LARGEST_POWER:g}, or the"
                " objective 'max'."
            )
        if self.targets is not None:
            if self.objective != "max":
                raise PlanError(
                    f"targets was {str(self.targets)[:60]}, but only the objective 'max' takes"
                    " targets."
                )
            object.__setattr__(self, "targets", check_targets(self.targets))
        if (
            isinstance(self.max_records, bool)
            or not isinstance(self.max_records, int)
            or not 1 <= self.max_records < 2**50
        ):
            raise PlanError(
                f"max_records was {self.max_records!r}. Give an integer from 1 to 2^50."
            )

    def options(self) -> dict[str, Any]:
        """Return the options as JSON-compatible data, without redundant ones."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "max_records"}
        # The hash of a plan includes its options.  Options added later are omitted at the value
        # that older plans imply, so that the hashes of older plans remain valid.
        out = {
            name: value
            for name, value in out.items()
            if name not in self.unsaid or value != self.unsaid[name]
        }
        if self.objective != "lp":
            del out["power"]
        if self.targets is None:
            del out["targets"]
        elif isinstance(self.targets, tuple):
            out["targets"] = list(self.targets)
        return out

    def goal(self, workload: Workload) -> Objective:
        """Return the objective for a workload."""
        return objective(self.objective, self.power, self.targets, workload)

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        """Predict the time and memory of `plan`; here, for a fixed strategy."""
        check_size(workload, limits.memory_limit)
        return Forecast(seconds=0.1, memory=150e6, text="a fixed strategy")

    def check_facts(self, workload: Workload) -> None:
        """Raise NotApplicable if the schema has exact totals and they are not supported."""
        if workload.schema.invariants and not self.keeps_invariants:
            raise NotApplicable(
                f"The mechanism '{self.name}' does not measure residual spaces separately, which"
                " the exact totals (invariants) of the schema require. Choose 'querysmasher',"
                " 'residualplanner' or 'wff', or remove the exact totals."
            )

    @abstractmethod
    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        """Return a plan; raise NotApplicable if the mechanism does not support the workload."""

    @abstractmethod
    def rebuild(self, workload: Workload, budget: Budget, solved: SolverState) -> Plan:
        """Rebuild an earlier result of `plan` from its solver state, without a search."""

    def at_budget(self, plan: Plan, budget: Budget) -> Plan:
        """Return the plan for the same request with another budget."""
        return self.rebuild(plan.workload, budget, plan.solved)


def check_request(workload: Workload, budget: Budget, laws: Sequence[str] = ("gaussian",)) -> None:
    """Check workload and budget.

    Raises
    ------
    PlanError
        If an argument has the wrong type or no query has a weight.
    NotApplicable
        If the budget requires another noise distribution.
    """
    if not isinstance(workload, Workload) or not isinstance(budget, Budget):
        raise PlanError("A plan needs a Workload and a Budget, such as Budget(pcost=1.0).")
    if not workload.groups:
        raise PlanError("The workload has no queries. Add at least one group before planning.")
    if not any(g.is_weighted for g in workload.groups):
        raise PlanError("All queries have weight zero. Give at least one group a weight above 0.")
    if budget.law not in laws:
        raise NotApplicable(
            "This mechanism draws Gaussian noise, which keeps no budget of pure epsilon. Give the"
            " budget in rho, mu or (epsilon, delta), or choose a mechanism with Laplace noise, such"
            " as 'hdmm'."
            if budget.law == "laplace"
            else (
                "This mechanism draws Laplace noise and needs a budget of pure epsilon,"
                " Budget.pure(epsilon)."
            )
        )


def check_size(workload: Workload, memory_limit: float, *, closed_form: bool = False) -> None:
    """Raise LimitExceeded if the decomposition alone would exceed the limits.

    With ``closed_form`` marginals on wide attributes need no matrix.
    """
    for group_class in workload.group_classes:
        group = workload.groups[group_class.numbers[0]]
        if len(group.attributes) > MAX_ATTRIBUTES:
            raise LimitExceeded(
                f"A group on {len(group.attributes)} attributes has 2^{len(group.attributes)}"
                f" residual spaces inside it; at most {MAX_ATTRIBUTES} attributes are allowed. Use"
                " smaller groups."
            )
        for part in group.parts:
            cells, classes = part.cells, math.prod([n - 1 for n in part.sizes])
            # One attribute needs dense matrices on its cells, several attributes the factor of the
            # queries.
            if closed_form and has_identity_gram(part, group.query_weights):
                continue
            entries = (
                6 * cells**2
                if len(part.sizes) == 1
                else 8 * cells + 2 * min(part.count, classes) * classes
            )
            if 8 * entries > memory_limit:
                raise LimitExceeded(
                    f"The family '{part.family.name}' on {' x '.join(map(str, part.sizes))} cells"
                    f" needs about {format_number(8 * entries / 1e9)} GB of memory, more than the"
                    f" limit of {memory_limit / 1e9:g} GB. Merge cells into coarser ones, or raise"
                    " memory_limit."
                )


def check_tight(subs: Sequence[Subworkload], costs: Sequence[Cost]) -> None:
    """Raise NotApplicable if a subworkload requires an alternating search.

    Objectives other than the weighted sum adapt query weights to the bounds of the spaces.  Bounds
    of alternating searches are far from their values, so the search would take minutes and end with
    a plan without a useful bound.
    """
    for sub, cost in zip(subs, costs, strict=True):
        if cost.alternates:
            raise NotApplicable(
                f"A subworkload on {' x '.join(map(str, sub.sizes))} cells is too large for a joint"
                " search of its attributes, and alternating searches give weak bounds. Choose the"
                " objective 'sum', merge cells of these attributes, or remove one kind of queries"
                " on them together."
            )
