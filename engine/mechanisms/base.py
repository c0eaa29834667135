"""What every mechanism offers: a name, words, options as fields, and two ways to make a plan."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypedDict

from engine._format import amount
from engine._validation import one_of
from engine.errors import Cancelled, LimitExceeded, NotApplicable, PlanError
from engine.plans import Plan
from engine.plans.blocks import MAX_RECORDS
from engine.plans.objectives import LARGEST_POWER, OBJECTIVES, Objective, check_targets, objective
from engine.plans.solver_state import Solved
from engine.privacy import Budget
from engine.progress import Listener, Progress
from engine.residuals.cache import SolveCache, default_cache
from engine.residuals.decomposition import Subworkload
from engine.residuals.strategy_search import Cost
from engine.workload import Workload

MAX_ATTRIBUTES = 14  # of one group: 2^14 residual spaces take a few seconds

NoiseLaw = Literal["gaussian", "laplace"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What planning may take: seconds, bytes, workers; whom to tell about progress; whether to remember.

    ``progress`` is called with a fraction and a text; when it returns False, or raises, planning stops.  ``workers`` is
    the number of processes that search side by side, 1 for none; left out, large work uses all cores, or what the
    caller's `joblib.parallel_config` says.  ``cache=False`` neither uses nor keeps what searches found.
    """

    time_limit: float | None = None
    memory_limit: float = 4e9
    progress: Listener | None = None
    workers: int | None = None
    cache: bool = True

    def __post_init__(self) -> None:
        for name in ("time_limit", "memory_limit"):
            value = getattr(self, name)
            # time may be without limit; memory may not, for what passes it is killed without a word
            missing = value is None and name == "memory_limit"
            # not above 0, and not: at most 0; no comparison holds for nan
            if missing or (
                value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0)
            ):
                raise PlanError(f"{name} was {value!r}. Give a number above 0, or leave it out.")
        if self.workers is not None and (
            isinstance(self.workers, bool) or not isinstance(self.workers, int) or not 1 <= self.workers <= 1024
        ):
            raise PlanError(f"workers was {self.workers!r}. Give a whole number from 1 to 1024, or leave it out.")
        if not isinstance(self.cache, bool):
            raise PlanError(f"cache was {self.cache!r}. Give True or False.")

    def solve_cache(self) -> SolveCache | None:
        """Return where solutions are kept, or None."""
        return default_cache() if self.cache else None

    def deadline(self) -> float:
        """Return the moment to stop at, on the monotonic clock."""
        return math.inf if self.time_limit is None else time.monotonic() + self.time_limit

    def tell(self, fraction: float, text: str) -> None:
        """Report progress; raise Cancelled when the listener asks to stop."""
        if self.progress is not None and self.progress(fraction, text) is False:
            raise Cancelled("Planning was cancelled; nothing was changed.")


class PlanOptions(TypedDict, total=False):
    """Keyword arguments of `plan` and `forecast`; what each means is said where it belongs.

    The first are those of every mechanism, see `Mechanism`; then come what planning may take,
    see `Limits`, and what single mechanisms have of their own, see their classes.
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
    """What planning will take: a rough time in seconds, an upper bound on memory in bytes, and the work in words."""

    seconds: float
    memory: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Base of all mechanisms; the fields of a subclass are its options, ``variants`` the choices worth comparing.

    ``choices`` lists the values of options that take one of a few, for forms; an option that is not in it is a number
    or keeps its default.  ``unsaid`` holds options of plan files that do not name them.  ``laws``
    names the noise it can draw, which the kind of budget decides: "laplace" for pure epsilon.  One that
    ``keeps_invariants`` leaves out what public tables tell; others do not apply beside such tables.

    To add a mechanism, write one subclass in a file of its own and put it into ``MECHANISMS``.

    Options of all
    --------------
    objective : "sum", the weighted sum of variances; "max", the largest variance of a query of positive weight; "lp",
        (sum of weight times variance^power)^(1/power), between the two.  See `engine.plans.objectives`.
    power : p of "lp", from 1 to 100.
    targets : for "max", standard errors that are fine, in counts: one number, or one a group.  The largest ratio of
        standard error to target is minimised.
    max_records : public cap on the number of records that a plan may be used for.
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
        one_of("option objective", self.objective, OBJECTIVES, error=PlanError, public=True)
        if (
            isinstance(self.power, bool)
            or not isinstance(self.power, (int, float))
            or not 1 <= self.power <= LARGEST_POWER
        ):
            raise PlanError(
                f"power was {self.power!r}. Give a number from 1 to {LARGEST_POWER:g}, or the objective 'max'."
            )
        if self.targets is not None:
            if self.objective != "max":
                raise PlanError(f"targets was {str(self.targets)[:60]}, but only the objective 'max' takes targets.")
            object.__setattr__(self, "targets", check_targets(self.targets))
        if (
            isinstance(self.max_records, bool)
            or not isinstance(self.max_records, int)
            or not 1 <= self.max_records < 2**50
        ):
            raise PlanError(f"max_records was {self.max_records!r}. Give a whole number from 1 to 2^50.")

    def options(self) -> dict[str, Any]:
        """Return the options as JSON-ready data, without those that every plan records itself or that say nothing."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "max_records"}
        # a plan's hash holds its options: one that came later is left out at its old meaning, or old plans would change
        out = {name: value for name, value in out.items() if name not in self.unsaid or value != self.unsaid[name]}
        if self.objective != "lp":
            del out["power"]
        if self.targets is None:
            del out["targets"]
        elif isinstance(self.targets, tuple):
            out["targets"] = list(self.targets)
        return out

    def goal(self, workload: Workload) -> Objective:
        """Return what is minimised."""
        return objective(self.objective, self.power, self.targets, workload)

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        """Return what `plan` would take; a fixed strategy takes next to nothing."""
        check_size(workload, limits.memory_limit)
        return Forecast(seconds=0.1, memory=150e6, text="a fixed strategy")

    def check_facts(self, workload: Workload) -> None:
        """Raise NotApplicable when the schema has exact totals, and this mechanism cannot keep them."""
        if workload.schema.invariants and not self.keeps_invariants:
            raise NotApplicable(
                f"The mechanism '{self.name}' measures more than residual spaces, and exact totals of the schema are "
                "kept where those are measured one by one. Choose 'querysmasher', 'residualplanner' or 'wff', or "
                "declare no invariants."
            )

    @abstractmethod
    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        """Return a plan; raise NotApplicable with the reason when the mechanism cannot serve the workload."""

    @abstractmethod
    def rebuild(self, workload: Workload, budget: Budget, solved: Solved) -> Plan:
        """Return the plan that `plan` made before, from what its search had found."""

    def at_budget(self, made: Plan, budget: Budget) -> Plan:
        """Return the plan that this mechanism, which made another one, makes of its request at another budget."""
        return self.rebuild(made.workload, budget, made.solved)


def check_request(workload: Workload, budget: Budget, laws: Sequence[str] = ("gaussian",)) -> None:
    """Raise PlanError unless there is something to plan, NotApplicable when the budget needs another noise."""
    if not isinstance(workload, Workload) or not isinstance(budget, Budget):
        raise PlanError("A plan needs a Workload and a Budget, such as Budget(pcost=1.0).")
    if not workload.groups:
        raise PlanError("The workload asks no query. Add at least one group before planning.")
    if not any(g.is_weighted for g in workload.groups):
        raise PlanError("Every query has weight zero, so any noise would do. Give at least one group a weight above 0.")
    if budget.law not in laws:
        raise NotApplicable(
            "This mechanism draws Gaussian noise, which keeps no budget of pure epsilon. Give the budget in rho, mu or "
            "(epsilon, delta), or choose a mechanism with Laplace noise, such as 'hdmm'."
            if budget.law == "laplace"
            else "This mechanism draws Laplace noise and needs a budget of pure epsilon, Budget.pure(epsilon)."
        )


def check_size(workload: Workload, memory_limit: float) -> None:
    """Raise LimitExceeded when the decomposition alone would pass the limits, before anything is built."""
    for alike in workload.alike:
        group = workload.groups[alike.numbers[0]]
        if len(group.attributes) > MAX_ATTRIBUTES:
            raise LimitExceeded(
                f"A group on {len(group.attributes)} attributes has 2^{len(group.attributes)} residual spaces "
                f"inside it; at most {MAX_ATTRIBUTES} attributes are allowed. Ask for smaller groups."
            )
        for part in group.parts:
            cells, classes = part.cells, math.prod([n - 1 for n in part.sizes])
            # one attribute is solved in dense matrices on its cells; of several, the queries' factor is what is held
            entries = 6 * cells**2 if len(part.sizes) == 1 else 8 * cells + 2 * min(part.count, classes) * classes
            if 8 * entries > memory_limit:
                raise LimitExceeded(
                    f"The family '{part.family.name}' on {' x '.join(map(str, part.sizes))} cells needs about "
                    f"{amount(8 * entries / 1e9)} GB of memory, more than the limit of {memory_limit / 1e9:g} GB. "
                    "Merge cells into coarser ones, or raise memory_limit."
                )


def check_tight(subs: Sequence[Subworkload], costs: Sequence[Cost]) -> None:
    """Raise NotApplicable when a subworkload is searched in turns, under an objective that is no weighted sum.

    The weights of the queries follow the bounds of the spaces, and those of turns stay far below what is reached: the
    search would take minutes and end in a plan that nothing shows to be any good.
    """
    for sub, cost in zip(subs, costs, strict=True):
        if cost.turns:
            raise NotApplicable(
                f"A subworkload on {' x '.join(map(str, sub.sizes))} cells is too large for one search of all its "
                "attributes, and parts of it prove too little about single queries. Choose the objective 'sum', merge "
                "cells of these attributes, or ask one kind of queries less of them together."
            )
