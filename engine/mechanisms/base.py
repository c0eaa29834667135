"""Base classes of mechanisms, planning limits and forecasts.

A mechanism has a name, descriptions, options as dataclass fields, and methods that compute a plan
or rebuild it from a plan file.

**Strategies on tables.**  A component is one strategy on a
marginal table with its share of the budget.  The method `ExplicitMechanism.design` of a subclass
returns the components.  Code that all subclasses share computes privacy cost, variances and blocks
from the components.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine._format import format_number
from engine._validation import check_choice
from engine.bounds.lower_bounds import quick_bound
from engine.errors import Cancelled, LimitExceeded, NotApplicable, PlanError
from engine.plans import Plan
from engine.plans.blocks import MAX_RECORDS
from engine.plans.objectives import LARGEST_POWER, OBJECTIVES, Objective, check_targets, objective
from engine.plans.plan import SolverState
from engine.plans.table_plan import (
    Component,
    ExplicitPlan,
    MarginalsPlan,
    component_blocks,
    component_of_group,
    explicit_strategy,
)
from engine.privacy import Budget
from engine.progress import Listener, Progress
from engine.residuals import Axes, Space, Strategy
from engine.residuals.decomposition import (
    Subworkload,
    has_identity_gram,
    is_wide_areas,
    wide_interval_gram,
    wide_window_gram,
)
from engine.residuals.marginals import IdentityStrategy, identity_strategy
from engine.residuals.search_cache import SolveCache, default_cache
from engine.residuals.search_costs import Cost
from engine.residuals.window_strategy import WindowWeights
from engine.workload import Group, Part, Schema, Workload

# Largest number of attributes of a group. A group on 14 attributes has 2^14 residual spaces, one
# per subset of its attributes; planning them takes a few seconds.
MAX_ATTRIBUTES = 14
# Intervals on one wide attribute, at most two per cell, are planned without matrices for at most
# this number of cells.  At this number planning takes about 20 s.
MAX_INTERVAL_CELLS = 100_000
# Windows of one width on one attribute are solved without matrices for at most this number of
# cells. At this number planning takes about 10 s with uniform centers, and sampling the noise about
# 50 s.
MAX_WINDOW_CELLS = 10_000

NoiseLaw = Literal["gaussian", "laplace"]


def is_number(value: object) -> bool:
    """Return whether the value of an option is a float or an integer; True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_integer(value: object) -> bool:
    """Return whether the value of an option is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Resource limits of planning, with progress callback and cache.

    Attributes
    ----------
    time_limit : computing time in seconds, without waits for other programs; None for no limit. The
        plan with uniform centers is completed even if this takes longer than the limit; in this
        case its searches are shortened, and centers are not tuned.  A strategy that is expected to
        exceed the limit even without search steps is refused before anything is computed.  If the
        limit ends the search for a lower bound early, the certificate has a smaller valid bound.
    memory_limit : memory in bytes.
    progress : callback with a fraction and a text; planning stops if it returns False or raises.
    workers : number of worker processes; 1 computes in this process.  With None, the number in an
        active `joblib.parallel_config`, or else all cores for large problems and 1 for small ones.
    cache : whether solved strategies are read from and written to the cache on disk.
    window_weights : dual weights of windows, by `WindowSpace.key`.  The searches of one planning
        call share this mapping: each search starts at the weights of the last search for the same
        windows, and stores its own.  It is no option of `plan`; every planning call begins with an
        empty mapping, so that a plan does not depend on earlier plans.
    """

    time_limit: float | None = None
    memory_limit: float = 4e9
    progress: Listener | None = None
    workers: int | None = None
    cache: bool = True
    window_weights: WindowWeights = field(
        default_factory=dict, repr=False, compare=False, metadata={"is_option": False}
    )

    def __post_init__(self) -> None:
        for name in ("time_limit", "memory_limit"):
            value = getattr(self, name)
            if value is None and name == "time_limit":
                continue
            # `not value > 0` also rejects nan.
            if not is_number(value) or not value > 0:
                raise PlanError(
                    f"{name} is {value!r}, but must be a number above 0. Give one, or leave the"
                    " option out."
                )
        if self.workers is not None and (
            not is_integer(self.workers) or not 1 <= self.workers <= 1024
        ):
            raise PlanError(
                f"workers is {self.workers!r}, but must be an integer from 1 to 1024. Give one, or"
                " leave the option out."
            )
        if not isinstance(self.cache, bool):
            raise PlanError(f"cache is {self.cache!r}. Give True or False.")

    def solve_cache(self) -> SolveCache | None:
        """Return the cache of solved strategies, or None if it is not used."""
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

    `Mechanism` documents the keys from ``objective`` to ``max_records``.  `Limits` documents the
    keys from ``time_limit`` to ``cache``.  All later keys are options of single mechanisms; the
    classes of these mechanisms document them.
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
    """Prediction of the resources of planning.

    Attributes
    ----------
    seconds : expected computing time in seconds.
    memory : upper bound on the memory of the process in bytes.
    text : description of the work, such as the number of residual spaces.
    """

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
    variants : one mapping from option to value for each variant of the mechanism that a comparison
        includes.
    choices : mapping from option to the values that the app offers in a form.
    laws : noise distributions that the mechanism can use.  A budget of pure epsilon requires
        "laplace", and every other budget "gaussian".
    unsaid : values of options that old plan files lack, as a mapping from option to value.  A file
        lacks an option if it was written before the option existed.
    keeps_invariants : whether the mechanism supports exact totals (public tables) in the schema.

    Options
    -------
    objective : what the plan minimises.  "sum" is the weighted sum of variances; "max" is the
        largest variance of a query with positive weight; "lp" is the compromise
        (sum of weight times variance^power)^(1/power).  See `engine.plans.objectives`.
    power : p of "lp", from 1 to 100.
    targets : target standard errors in counts, only for "max": one number for all groups, or one
        per group.  With targets, the plan minimises the largest ratio of standard error to target.
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
        if not is_number(self.power) or not 1 <= self.power <= LARGEST_POWER:
            raise PlanError(
                f"power is {self.power!r}, but must be a number from 1 to {LARGEST_POWER:g}. Give"
                " one, or choose the objective 'max' for an infinite power."
            )
        if self.targets is not None:
            if self.objective != "max":
                raise PlanError(
                    f"targets is {str(self.targets)[:60]}, but the objective {self.objective!r} has"
                    " no targets. Choose the objective 'max', or leave out targets."
                )
            object.__setattr__(self, "targets", check_targets(self.targets))
        if not is_integer(self.max_records) or not 1 <= self.max_records < 2**50:
            raise PlanError(
                f"max_records is {self.max_records!r}. Give an integer from 1 to 2^50 - 1."
            )

    def options(self) -> dict[str, Any]:
        """Return the options that identify a plan, as JSON-compatible data.

        The result leaves out

        - "max_records", which a plan stores separately;
        - "power", unless the objective is "lp";
        - "targets" if it is None;
        - every option whose value equals its value in ``unsaid``.
        """
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "max_records"}
        # The hash of a plan covers its options.  An option with its value in ``unsaid`` is left
        # out, so that the hash equals that of a plan file from before the option existed.
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
        """Return the objective that the options select, with targets for the workload's groups."""
        return objective(self.objective, self.power, self.targets, workload)

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        """Predict the time and memory of `plan`.

        This implementation is for mechanisms without a search.
        """
        check_size(workload, limits.memory_limit, closed_form=getattr(self, "closed_form", False))
        return Forecast(seconds=0.1, memory=150e6, text="a fixed strategy")

    def check_invariants(self, workload: Workload) -> None:
        """Raise NotApplicable if the schema has exact totals that the mechanism does not support."""
        if workload.schema.invariants and not self.keeps_invariants:
            raise NotApplicable(
                f"The schema has invariants (exact totals), which the mechanism '{self.name}' does"
                " not support. Choose 'querysmasher', 'residualplanner' or 'wff', or remove the"
                " invariants from the schema."
            )

    @abstractmethod
    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        """Compute a plan; raise NotApplicable if the mechanism does not support the workload."""

    @abstractmethod
    def rebuild(self, workload: Workload, budget: Budget, solved: SolverState) -> Plan:
        """Rebuild the plan of an earlier search from its stored result ``solved``."""

    def at_budget(self, plan: Plan, budget: Budget) -> Plan:
        """Return a plan for another budget with the strategies of ``plan``, without a search."""
        return self.rebuild(plan.workload, budget, plan.solved)


def check_request(workload: Workload, budget: Budget, laws: Sequence[str] = ("gaussian",)) -> None:
    """Check the arguments of a planning call.

    Parameters
    ----------
    laws : noise distributions of the mechanism.

    Raises
    ------
    PlanError
        If an argument has the wrong type, or no query has a positive weight.
    NotApplicable
        If the budget requires a noise distribution that is not in ``laws``.
    """
    if not isinstance(workload, Workload) or not isinstance(budget, Budget):
        raise PlanError(
            f"The arguments are a {type(workload).__name__} and a {type(budget).__name__}. Give a"
            " Workload and a Budget, such as Budget(pcost=1.0)."
        )
    if not workload.groups:
        raise PlanError("The workload has no queries. Add at least one group before planning.")
    if not any(g.is_weighted for g in workload.groups):
        raise PlanError("All queries have weight zero. Give at least one group a weight above 0.")
    if budget.law not in laws and budget.law == "laplace":
        raise NotApplicable(
            "The budget is in pure epsilon, but this mechanism draws Gaussian noise, which never"
            " satisfies pure epsilon. Give the budget in rho, mu or (epsilon, delta), or choose a"
            " mechanism with Laplace noise, such as 'hdmm'."
        )
    if budget.law not in laws:
        raise NotApplicable(
            "The budget is for Gaussian noise, but this mechanism draws Laplace noise. Give a"
            " budget of pure epsilon, Budget.pure(epsilon), or choose another mechanism."
        )


def check_size(
    workload: Workload, memory_limit: float, *, closed_form: bool = False, intervals: bool = False
) -> None:
    """Raise LimitExceeded if a group has too many attributes or too many cells.

    Parameters
    ----------
    memory_limit : largest memory of a plan, in bytes.
    closed_form : if True, marginals need no dense matrix and have no limit of cells.
    intervals : if True, queries on one wide attribute need fewer dense matrices of shape (cells,
        cells).  Prefixes, suffixes and areas of a hierarchy need none.  Windows of one width need
        none if all other queries on their attribute are prefixes, suffixes or the marginal.  Ranges
        need fewer matrices.
    """
    for group_class in workload.group_classes:
        group = workload.groups[group_class.numbers[0]]
        if len(group.attributes) > MAX_ATTRIBUTES:
            raise LimitExceeded(
                f"A group has {len(group.attributes)} attributes; at most {MAX_ATTRIBUTES} are"
                " allowed, because every subset of them is planned separately. Use groups on fewer"
                " attributes."
            )
        for part in group.parts:
            cells = part.cells
            if closed_form and has_identity_gram(part, group.query_weights):
                continue
            if intervals and is_wide_areas(part):
                continue
            # number of dense matrices of shape (cells, cells) that planning needs
            matrices = 6.0
            entries = matrices * cells**2
            if len(part.sizes) > 1:
                # A family on several attributes needs no matrix of shape (cells, cells).  It needs
                # only its query rows in residual coordinates.
                matrices = 0.0
                entries = _joint_entries(part.sizes, part.count)
            elif intervals and wide_interval_gram(part, group.query_weights) is not None:
                # The variances of at most 2 * cells queries are computed without a matrix.  For
                # more queries the covariance matrix of the cells is formed.
                if part.count <= 2 * cells:
                    _check_interval_cells(part)
                    continue
                matrices = 4.5
                entries = matrices * cells**2
            is_too_large = 8 * entries > memory_limit  # an entry takes 8 bytes
            if is_too_large and intervals and _is_window_attribute(workload, group, part):
                if cells <= MAX_WINDOW_CELLS:
                    continue
                raise LimitExceeded(
                    f"The family '{part.family.name}' on {cells:,} cells would take minutes to"
                    f" plan. Merge cells until at most {MAX_WINDOW_CELLS:,} remain, or "
                    + ", or ".join(_cheaper_requests(part))
                    + "."
                )
            if is_too_large:
                # largest number of cells that fits the limit, with 8 bytes per entry
                max_cells = math.isqrt(int(memory_limit / 8.0 / matrices)) if matrices else 0
                fitting = f"at most {max_cells:,}" if max_cells else _fitting(part, memory_limit)
                merge = f"Merge cells until {fitting} remain"
                remedies = [merge, *_cheaper_requests(part), "or raise memory_limit."]
                raise LimitExceeded(
                    f"The family '{part.family.name}' on {_shape(part.sizes)} cells"
                    f" needs about {format_number(8 * entries / 1e9)} GB of memory, more than the"
                    f" limit of {memory_limit / 1e9:g} GB. " + ", ".join(remedies)
                )


def _is_window_attribute(workload: Workload, group: Group, part: Part) -> bool:
    """Return whether a part (product factor) has windows that are solved without a matrix.

    This requires that all groups have only windows of the same width, prefixes, suffixes or the
    marginal on the attribute of ``part`` (a query family).  ``group`` is the group of the part.
    """
    if wide_window_gram(part, group.query_weights) is None:
        return False
    name = group.attributes[part.axes[0]]
    for other_group in workload.groups:
        for other in other_group.parts:
            if name not in [other_group.attributes[axis] for axis in other.axes]:
                continue
            intervals = wide_interval_gram(other, other_group.query_weights)
            if intervals is not None and intervals.ranges == 0.0:
                continue
            if wide_window_gram(other, other_group.query_weights) is None or (
                other.family.key != part.family.key
            ):
                return False
    return True


def _joint_entries(sizes: Sequence[int], queries: int) -> float:
    """Return the number of matrix entries that planning needs for queries on several attributes."""
    coordinates = math.prod([n - 1 for n in sizes])
    return 8.0 * math.prod(sizes) + 2.0 * min(queries, coordinates) * coordinates


def _fitting(part: Part, memory_limit: float) -> str:
    """Return attribute sizes of a query family that fit the memory limit, such as "90 x 50".

    The cells of all attributes are merged by the same factor.
    """
    sizes, factor = part.sizes, 1
    # an entry takes 8 bytes
    while 8 * _joint_entries(sizes, part.count) > memory_limit and max(sizes) > 1:
        factor += max(1, factor // 10)
        sizes = tuple(math.ceil(n / factor) for n in part.sizes)
    return f"about {_shape(sizes)}"


def _shape(sizes: Sequence[int]) -> str:
    return " x ".join(f"{n:,}" for n in sizes)


def _check_interval_cells(part: Part) -> None:
    """Raise LimitExceeded if a query family has more than `MAX_INTERVAL_CELLS` cells."""
    if part.cells > MAX_INTERVAL_CELLS:
        raise LimitExceeded(
            f"The family '{part.family.name}' on {part.cells:,} cells would take minutes to plan."
            f" Merge cells until at most {MAX_INTERVAL_CELLS:,} remain, or "
            + ", or ".join(_cheaper_requests(part))
            + "."
        )


def _cheaper_requests(part: Part) -> list[str]:
    """Return proposals for an error message: queries or mechanisms that are cheaper to plan.

    There is none for a query family on several attributes.
    """
    if len(part.sizes) > 1:
        return []
    if part.family.name == "marginal":
        return ["choose 'querysmasher' with the objective 'sum'"]
    if part.family.name == "range":
        return ["choose prefixes or the marginal in place of all ranges"]
    return ["choose the marginal in place of these queries"]


# A time limit excludes no strategy with at most this expected time, in seconds.  The expected time
# does not include search steps.
MIN_REFUSED_SECONDS = 1.0


def check_start(what: str, seconds: float, limits: Limits) -> None:
    """Raise LimitExceeded if a strategy takes too long even without search steps.

    The error is raised if ``seconds`` exceeds both the time limit and `MIN_REFUSED_SECONDS`.

    Parameters
    ----------
    what : subject of the error message, such as "The global optimum of 3,000 cells".
    seconds : expected time of computing a strategy without search steps.
    """
    if seconds > max(limits.time_limit or math.inf, MIN_REFUSED_SECONDS):
        raise start_error(what, seconds, limits)


def start_error(what: str, seconds: float, limits: Limits) -> LimitExceeded:
    """Return the error that `check_start` raises.  The parameters are those of `check_start`."""
    return LimitExceeded(
        f"{what} takes about {math.ceil(seconds):,} s even without a search, and the time limit is"
        f" {limits.time_limit:g} s. Set time_limit={math.ceil(seconds)} or more, or merge cells "
        "into coarser ones."
    )


def check_no_alternation(subs: Sequence[Subworkload], costs: Sequence[Cost]) -> None:
    """Raise NotApplicable if a subworkload is too large for one dense strategy.

    The function is for objectives other than the weighted sum.  The search for these objectives
    needs strong lower bounds.  A subworkload that is too large would get a product strategy, which
    proves only a weak lower bound.
    """
    for sub, cost in zip(subs, costs, strict=True):
        if cost.alternates:
            raise NotApplicable(
                f"The queries on {' x '.join(map(str, sub.sizes))} cells need one dense strategy,"
                " which is too large to compute for this objective. Choose the objective 'sum', merge"
                " cells of these attributes, or remove a query family that is on these attributes"
                " jointly."
            )


# Largest number of cells of a table for mechanisms with one dense strategy matrix.
MAX_DENSE_CELLS = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """Components that a mechanism measures.

    Attributes
    ----------
    components : strategies on tables, with their shares of the budget.
    full_tables : if True, every component measures all cells of its table, and least squares over
        all tables answers the queries.
    statement : sentence about the search, for the certificate.
    bound : lower bound on the weighted squared error of all matrix mechanisms, in counts^2 at
        privacy cost 1.  None if the search proved no bound.
    matrices : arrays in plan files, from which the mechanism rebuilds the components.
    origin : integer in plan files with a meaning that the mechanism defines, such as the index of
        the method that chose the components.
    joint : if True, the joint privacy cost of all components is charged, see `Plan.joint`.  If
        False, the sum of their costs is charged.
    """

    components: tuple[Component, ...]
    full_tables: bool = False
    statement: str = ""
    bound: float | None = None
    matrices: tuple[Array, ...] = ()
    origin: int = 0
    joint: bool = False

    def arrays(self, schema: Schema) -> tuple[Array, ...]:
        """Return the design as a sequence of arrays for a plan file.

        The first array is a header: ``origin``, number of components, ``full_tables`` as 0 or 1,
        and a 1 if ``joint`` is true.  The following arrays are, for every component,

        - [share of the budget, number of factors of the strategy];
        - indices of the groups that the component answers;
        - indices of the component's attributes in the schema;
        - for every factor: an array of axes, and an array of strategy rows.
        """
        header = [self.origin, len(self.components), float(self.full_tables)]
        arrays: list[Any] = [[*header, 1.0] if self.joint else header]
        for component in self.components:
            arrays += [
                [component.share, len(component.factors)],
                component.groups,
                [schema.names.index(name) for name in component.attributes],
            ]
            for axes, strategy in component.factors:
                # The identity strategy is stored as an array without rows.
                is_identity = isinstance(strategy, IdentityStrategy)
                arrays += [axes, np.empty((0, strategy.cells)) if is_identity else strategy.rows]
        return tuple(np.ascontiguousarray(array, dtype=float) for array in arrays)

    @classmethod
    def from_arrays(cls, matrices: tuple[Array, ...], workload: Workload, law: str) -> Design:
        """Rebuild a design from the arrays that the method `arrays` returned.

        Raises
        ------
        ValueError
            If the arrays do not describe a design for the workload.
        """
        remaining = list(matrices)

        def take() -> Array:
            """Remove the next array from ``remaining`` and return it."""
            if not remaining:
                raise ValueError("the stored design has too few arrays")
            return remaining.pop(0)

        def integers(values: Array, below: int) -> tuple[int, ...]:
            """Return the values as integers from 0 to ``below`` - 1."""
            numbers = tuple(int(v) for v in values.ravel())
            if not all(0 <= n < below for n in numbers):
                raise ValueError("the stored design has a number out of range")
            return numbers

        strategies: dict[tuple[Axes, bytes], Strategy] = {}
        origin, count, full_tables, *joint = integers(take(), 10**6)
        if joint not in ([], [1]):
            raise ValueError(
                "the header of the stored design must be 3 numbers, optionally followed by the number 1"
            )
        names, components = workload.schema.names, []
        for _ in range(count):
            share, factors = take().ravel()
            groups = integers(take(), len(workload.groups))
            attributes = tuple(names[i] for i in integers(take(), len(names)))
            sizes, factor_list = workload.schema.sizes(attributes), []
            for _ in range(int(factors)):
                axes, rows = integers(take(), len(attributes)), take()
                axis_sizes = tuple(sizes[a] for a in axes)
                if rows.ndim != 2 or rows.shape[1] != math.prod(axis_sizes):
                    raise ValueError("the stored strategy rows do not have one column per cell")
                # Equal factors share one Strategy object, so that its pseudoinverse is computed
                # once.  Caches also compare strategies by object identity.
                if (axis_sizes, rows.tobytes()) not in strategies:
                    strategies[axis_sizes, rows.tobytes()] = (
                        explicit_strategy(rows, axis_sizes, law)
                        if len(rows)
                        else identity_strategy(rows.shape[1])
                    )
                factor_list.append((axes, strategies[axis_sizes, rows.tobytes()]))
            components.append(
                Component(
                    attributes=attributes,
                    factors=tuple(factor_list),
                    share=float(share),
                    groups=groups,
                )
            )
        return cls(
            components=tuple(components),
            full_tables=bool(full_tables),
            matrices=matrices,
            origin=origin,
            joint=bool(joint),
        )


@dataclass(frozen=True, kw_only=True)
class ExplicitMechanism(Mechanism):
    """Base class of mechanisms that measure explicit strategies on marginal tables.

    A subclass implements `design`.
    """

    laws: ClassVar[tuple[str, ...]] = ("gaussian", "laplace")
    # whether marginals on wide attributes are measured without matrices
    closed_form: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective != "sum":
            raise PlanError(
                f"The objective is {self.objective!r}, but the mechanism '{self.name}' has only the"
                " objective 'sum'. Choose that, or the mechanism 'querysmasher',"
                " 'residualplanner+' or 'wff'."
            )

    @abstractmethod
    def design(
        self, workload: Workload, law: str, limits: Limits, bases: tuple[Array, ...]
    ) -> Design:
        """Return the components to measure.

        Parameters
        ----------
        law : "gaussian" or "laplace".
        bases : `Design.matrices` of an earlier design, which the function rebuilds without a
            search.  If ``bases`` is empty, a search is run.
        """

    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        check_request(workload, budget, self.laws)
        check_size(workload, limits.memory_limit, closed_form=self.closed_form)
        if not any(g.weight > 0 and _has_nonzero_query(g) for g in workload.groups):
            raise PlanError(
                "All coefficients of the queries with positive weight are 0, so they count no"
                " records. Add a query with a coefficient other than 0."
            )
        limits.tell(0.0, "Choosing the strategy")
        result = explicit_plan(
            self, workload, budget, self.design(workload, budget.law, limits, ())
        )
        limits.tell(1.0, "Planned")
        return result

    def rebuild(self, workload: Workload, budget: Budget, solved: SolverState) -> Plan:
        check_request(workload, budget, self.laws)
        design = self.design(workload, budget.law, Limits(), solved.matrices)
        if solved.bound is not None:
            design = replace(design, bound=solved.bound)
        return explicit_plan(self, workload, budget, design)


def explicit_plan(mechanism: Mechanism, workload: Workload, budget: Budget, design: Design) -> Plan:
    """Return the plan that releases the components of a design within the budget."""
    common: dict[str, Any] = {
        "workload": workload,
        "budget": budget,
        "mechanism": mechanism.name,
        "options": mechanism.options(),
        "blocks": component_blocks(design.components, budget, mechanism.max_records, design.joint),
        "bound": _cached_bound(workload, budget.law) if design.bound is None else design.bound,
        "statement": (
            f"{design.statement} No matrix mechanism whatsoever with this noise can have a"
            " smaller weighted RMSE than the bound."
        ).strip(),
        "duals": (),
        "matrices": design.matrices,
        "max_records": mechanism.max_records,
    }
    if design.full_tables:
        return MarginalsPlan(**common)
    answered_by = component_of_group(design.components, len(workload.groups))
    return ExplicitPlan(**common, answered_by=answered_by, joint=design.joint)


@lru_cache(maxsize=64)
def _cached_bound(workload: Workload, law: str) -> float:
    """Return a lower bound on the weighted sum of variances of every matrix mechanism.

    The unit is counts^2 at privacy cost 1.
    """
    return quick_bound(workload, law)


def _has_nonzero_query(group: Group) -> bool:
    """Return whether some query of positive weight has a coefficient other than 0."""
    nonzero_rows = [part.family.squared_norms(part.sizes) > 0.0 for part in group.parts]
    if group.query_weights is None:
        return all(rows.any() for rows in nonzero_rows)
    # Every query of the group is a product of one row per part (product factor). The query is 0 if
    # one of these rows is 0.
    nonzero_queries = np.ones(1, dtype=bool)
    for rows in nonzero_rows:
        nonzero_queries = np.logical_and.outer(nonzero_queries, rows).ravel()
    return bool((nonzero_queries & (group.query_weights > 0)).any())


def used_attributes(workload: Workload) -> Space:
    """Return the attributes that occur in at least one group, in schema order."""
    used = {name for g in workload.groups for name in g.attributes}
    return tuple(name for name in workload.schema.names if name in used)


def one_component(
    workload: Workload, attributes: Space, factors: tuple[tuple[Axes, Strategy], ...]
) -> Design:
    """Return a design that answers all groups from one table on ``attributes``.

    The strategy on the table is a Kronecker product.  ``factors`` has one pair per factor: (axes of
    the table, strategy on these axes).
    """
    everything = tuple(range(len(workload.groups)))
    return Design(
        components=(
            Component(attributes=attributes, factors=factors, share=1.0, groups=everything),
        )
    )


def dense_start_seconds(cells: int, queries: int) -> float:
    """Return the expected time of computing one dense strategy, in seconds, without search steps.

    The first term is for eigenvalue problems of matrices of shape (cells, cells).  The second term
    is for products of matrices of shapes (cells, rank) and (rank, rank).

    >>> 5.0 < dense_start_seconds(2_000, 10_000) < 20.0
    True
    """
    rank = min(cells, queries)
    return 2.5e-10 * cells**3 + 1e-9 * cells * rank**2


def check_dense(workload: Workload, attributes: Space, what: str) -> int:
    """Return the number of cells of the table on ``attributes``.

    Raises NotApplicable if the number exceeds `MAX_DENSE_CELLS`.  ``what`` is the subject of the
    error message, such as "The global optimum".
    """
    cells = math.prod(workload.schema.sizes(attributes))
    if cells > MAX_DENSE_CELLS:
        raise NotApplicable(
            f"{what} takes at most {MAX_DENSE_CELLS:,} cells, but {' x '.join(attributes)} has"
            f" {cells:,}. Use 'querysmasher', or use fewer or coarser attributes."
        )
    return cells
