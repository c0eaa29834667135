"""Plans: strategies and noise for a workload and a budget, with their predicted errors.

A plan contains no data.  Its predicted errors and its privacy cost are computed from the strategy
matrices, noise scales and grids that a release uses.  The privacy cost is recomputed whenever a
plan is created or loaded.

A plan also stores the result of its finished strategy search (`SolverState`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import cost, format_number, number
from engine._validation import check_int, check_slice
from engine._values import FrozenValue
from engine.bounds.lower_bounds import best_bound
from engine.errors import LimitExceeded, PlanError, Unanswered
from engine.plans.blocks import (
    Block,
    apply_factors,
    block_of_space,
    is_on_curve,
    measures_piece,
    table_of_blocks,
)
from engine.plans.group_variance import GroupVariance
from engine.plans.objectives import Emphasis, Objective, achieved_norm, objective, pack, unpack
from engine.plans.reconstruction import (
    Answers,
    SpaceAnswers,
    finite_table,
    query_pieces,
    union_rows,
    unmeasured_error,
)
from engine.plans.replace_one import ReplaceOne, person_pcost, replace_one_cost
from engine.plans.variance_builder import (
    VarianceBuilder,
    table_of_groups,
    variances_by_class,
)
from engine.privacy import DEFAULT_DELTA, REPLACE_ONE, Budget, delta_text
from engine.residuals import Space, Split
from engine.residuals.basis import UNIFORM
from engine.workload import Group, Schema, Workload

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class LineWeights:
    """Query weights for which the strategies of residual spaces are optimal.

    In each residual space, the weight of a query is the product of one weight per attribute.

    Attributes
    ----------
    weights : weight vectors, each with one weight per query on a single attribute.
    indices : for each residual space, in the order of the decomposition, one index in ``weights``
        per attribute; -1 if all queries on the attribute have equal weights.
    """

    weights: tuple[Array, ...]
    indices: tuple[tuple[int, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as JSON-ready data."""
        return {"weights": [pack(w) for w in self.weights], "uses": [list(i) for i in self.indices]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LineWeights:
        """Return the weights that `to_dict` described; raise ValueError if an entry is invalid."""
        lines = cls(
            weights=tuple(map(unpack, data["weights"])), indices=tuple(map(tuple, data["uses"]))
        )
        numbers = [n for indices in lines.indices for n in indices]
        if not all(type(n) is int and -1 <= n < len(lines.weights) for n in numbers):
            raise ValueError("the query weights by attribute contain an invalid index")
        if not all(np.isfinite(w).all() and (w > 0).all() for w in lines.weights):
            raise ValueError("the query weights by attribute are not all positive and finite")
        return lines


@dataclass(frozen=True, kw_only=True, eq=False)
class Tradeoff:
    """Result of the search for an objective other than the sum, or under accuracy constraints.

    Attributes
    ----------
    shares : squared noise of each residual space at privacy cost 1, in counts^2, in the order of
        the decomposition.
    emphasis : query weights.  If ``lines`` is None, the strategies minimize the sum of variances
        with these weights; otherwise they only certify the bound.
    witness : query weights that certify the bound; None if ``emphasis`` certifies it.
    limits : largest allowed sum of variances of each group at privacy cost 1, in counts^2, shape
        (groups,); infinite for groups without an accuracy constraint.  None if no group has one.
    lines : query weights by attribute for which the strategies are optimal, or None.
    """

    shares: Array
    emphasis: Emphasis
    witness: Emphasis | None = None
    limits: Array | None = None
    lines: LineWeights | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data."""
        weights = {"emphasis": self.emphasis, "witness": self.witness}
        packed = {name: None if e is None else e.to_dict() for name, e in weights.items()}
        data: dict[str, Any] = packed | {"shares": pack(self.shares)}
        if self.limits is not None:
            data["limits"] = pack(self.limits)
        if self.lines is not None:
            data["lines"] = self.lines.to_dict()
        return data


@dataclass(frozen=True, kw_only=True, eq=False)
class SolverState:
    """Result of a finished strategy search, from which the plan is rebuilt without searching.

    Attributes
    ----------
    duals : final dual weights of each search.
    endings : termination message of each search.
    memory_limit : memory limit in bytes, which chose between dense and alternating searches.
    split : decomposition of queries into residual spaces.
    matrices : strategy matrices and budget shares that cannot be computed from ``duals``.
    tradeoff : result of the search for an objective other than the sum, or for the sum under
        accuracy constraints of groups; None for all other plans.
    joint : value of `Plan.joint`; None if it is computed when the plan is rebuilt.
    bound : value of `Plan.bound`; None if the state was read from a plan file.  A bound in a file
        is not trusted but recomputed.
    """

    duals: tuple[Array, ...]
    endings: tuple[str, ...] = ()
    memory_limit: float = math.inf
    split: Split = UNIFORM
    matrices: tuple[Array, ...] = ()
    tradeoff: Tradeoff | None = None
    joint: bool | None = None
    bound: float | None = None


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Lower bounds on the error of plans, and how far one plan is above them.

    The class of a plan is the set of all plans that its mechanism searches, at the same privacy
    cost.

    Attributes
    ----------
    lower_bound : lower bound on `Plan.achieved` for all plans of the class, in the same unit.
    gap : `Plan.achieved` / lower_bound - 1.  If the lower bound is 0, the gap is 0 for a plan whose
        strategies need no search, and infinite for all other plans.  The gap is also infinite if
        neighbours replace a record.
    statement : description in words of the class and of how the searches ended.
    weighted_rmse : weighted RMSE of the plan, in counts.
    search : function that returns a lower bound on the weighted RMSE of all matrix mechanisms, in
        counts.
    """

    lower_bound: float
    gap: float
    statement: str
    weighted_rmse: float
    search: Callable[[], float] = field(repr=False, compare=False)

    @classmethod
    def of_plan(
        cls,
        budget: Budget,
        *,
        achieved: float,
        bound: float,
        statement: str,
        weighted_rmse: float,
        search: Callable[[], float],
        exact: str = "",
        searched: bool = False,
    ) -> Certificate:
        """Return the certificate of a plan.

        Parameters
        ----------
        achieved : `Plan.achieved`, the error of the plan in the unit of its objective.
        bound : lower bound on `Plan.achieved` over the plans that the mechanism chooses from.
        statement, weighted_rmse : see `Certificate`.
        search : function that returns a lower bound on the weighted RMSE of all matrix mechanisms,
            in counts.  It is not called if tables are public or neighbours replace a record.
        exact : text that names the public tables; empty if there are none.
        searched : whether the strategies come from a search.  It decides the gap if the bound is 0:
            infinite if True, 0 if False.

        Notes
        -----
        The bounds are proved for neighbours that add or remove a record.  They do not hold if
        neighbours replace a record, because the number of records can then be released exactly. In
        this case the certificate has the lower bound 0 and an infinite gap.
        """
        gap = math.inf if searched else 0.0
        if bound > 0:
            gap = achieved / bound - 1.0
        # ``search = float`` gives the lower bound 0, because float() returns 0.0.
        if budget.neighbours == REPLACE_ONE:
            bound, gap, search = 0.0, math.inf, float
            statement = "No bound is proved for neighbours that replace a record."
        elif exact:
            search, statement = float, f"{statement} All of them keep {exact}."
        return cls(
            lower_bound=bound,
            gap=gap,
            statement=statement,
            weighted_rmse=weighted_rmse,
            search=search,
        )

    @cached_property
    def global_bound(self) -> float:
        """Lower bound on the weighted RMSE of every matrix mechanism, in counts.

        The first access takes seconds.  The bound is 0 if an attribute has too many cells for the
        search, if neighbours replace a record, or if tables are public.
        """
        try:
            return self.search()
        except LimitExceeded:
            return 0.0

    @cached_property
    def global_gap(self) -> float:
        """weighted_rmse / global_bound - 1, or infinity if the bound is 0.

        The error of the plan is at most this share above that of the best matrix mechanism.
        """
        return self.weighted_rmse / self.global_bound - 1.0 if self.global_bound > 0.0 else math.inf


def pack_split(split: Split) -> dict[str, Any]:
    """Return the decomposition of queries into residual spaces as JSON-ready data.

    The result has centers, complements (splits of attribute pairs) and jointly measured spaces.
    Equal complements are stored once, together with the attribute pairs that use them.  The entry
    ``stopped`` is present only if ``split.stopped`` is not empty.
    """
    distinct: dict[bytes, dict[str, Any]] = {}
    for pair, c in split.complements.items():
        packed = distinct.setdefault(
            c.key,
            {"by_axis": [pack(D) for D in c.by_axis], "by_total": pack(c.by_total), "pairs": []},
        )
        packed["pairs"].append(list(pair))
    stopped = {"stopped": sorted(split.stopped)} if split.stopped else {}
    return stopped | {
        "centers": {name: pack(pi) for name, pi in split.centers.items()},
        "complements": list(distinct.values()),
        "unions": [[list(a), [list(s) for s in spaces]] for a, spaces in split.unions.items()],
    }


def canonical_json(data: Any) -> str:
    """Return canonical JSON text: equal data have equal text and equal hashes."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


FORMAT = "plan/1"
# The component of a query in a residual space counts as zero if its norm is at most this share of
# the norm of the query.
ROUNDING = 1e-9
NamedQuery = tuple[Sequence[str], npt.ArrayLike]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan(FrozenValue):
    """A mechanism with strategies and noise for a workload and a budget.

    Attributes
    ----------
    workload : queries to answer.
    budget : privacy budget.
    mechanism : name of the mechanism.
    options : options of the mechanism.  Workload, budget, mechanism, options and ``max_records``
        define `hash`.
    blocks : key of a block -> strategy, noise and grid.  The key is the set of attributes whose
        residual space the block measures, unless a mechanism defines other keys.
    bound : lower bound on the norm of the variances at privacy cost 1, in counts^2; with targets,
        of the variances divided by the target variances.  The norm is the weighted sum of the
        variances unless the options set another objective.
    statement : description of the certificate in words: which plans the bound holds for, and how
        the searches ended.
    duals : final dual weights of each strategy search.
    endings : termination message of each strategy search.
    memory_limit : memory limit in bytes, which chose between dense and alternating searches.
    split : decomposition of queries into residual spaces: centers, complements (splits of pairs)
        and jointly measured spaces.
    matrices : strategy matrices and budget shares that cannot be computed from ``duals``.
    max_records : public upper bound on the number of records; the privacy cost includes rounding
        errors for at most this number.
    tradeoff : noise and query weights for an objective other than the sum, or for the sum under
        accuracy constraints of groups; None for all other plans.
    joint : if True, the privacy cost is the maximum over cells of the summed costs of the blocks
        for a record in the cell.  If False, it is the sum of the costs of the blocks.  Apart from
        effects of rounding, the maximum is at most this sum.
    ideal : squared noise of every block at privacy cost 1 before rounding to the grid, in counts^2,
        shape (blocks,); None for a plan of marginal tables, which is rebuilt for another budget.

    Raises
    ------
    PlanError : if the privacy cost exceeds the budget.
    Unanswered : if the plan cannot answer a query with positive weight.
    """

    # Whether every group is answered from a single measured table.
    full_tables: ClassVar[bool] = False

    workload: Workload
    budget: Budget
    mechanism: str
    options: Mapping[str, Any]
    blocks: Mapping[Space, Block]
    bound: float
    statement: str
    duals: tuple[Array, ...]
    max_records: int
    endings: tuple[str, ...] = ()
    memory_limit: float = math.inf
    split: Split = UNIFORM
    matrices: tuple[Array, ...] = ()
    tradeoff: Tradeoff | None = None
    joint: bool = False
    ideal: Array | None = None

    def __post_init__(self) -> None:
        # `not <=` instead of `>` also rejects nan
        if not self.pcost <= self.budget.pcost:
            raise PlanError(
                f"The privacy cost of the plan is {self.pcost}, but its budget is"
                f" {self.budget.pcost}. A plan must cost at most its budget. Please report this"
                " error with the options of the plan."
            )
        groups = self.workload.groups
        if self.full_tables:
            unproven_groups = list(range(len(groups)))
        else:
            unproven_groups = self._variances.partial_groups(self.workload).tolist()
        for i in unproven_groups:
            group = groups[i]
            if group.weight > 0 and not self._answers(i):
                raise Unanswered(
                    f"The plan cannot answer some {group.family_text} queries on"
                    f" {' x '.join(group.attributes) or 'no attribute'} (group {i}), although their"
                    " weight is positive. If other weights are much larger, choose weights that"
                    " differ less; otherwise choose another mechanism."
                )

    def _answers(self, group: int) -> bool:
        """Return whether the plan can answer all queries of a group that have positive weight."""
        queries = self.workload.groups[group]
        if not self.full_tables and self._variances.measures_all(queries):
            return True
        variances = self.group_variance(group)
        if variances.unmeasured and queries.query_weights is not None:
            return bool(
                np.isfinite(variances.values(0, queries.count)[queries.query_weights > 0]).all()
            )
        return not variances.unmeasured or math.isfinite(variances.total())

    @property
    def schema(self) -> Schema:
        """The public schema."""
        return self.workload.schema

    @cached_property
    def pcost(self) -> float:
        """Privacy cost of the release for one person, computed from the blocks and rounded up."""
        return person_pcost(self.blocks, self.budget, self.max_records, self.joint)

    @cached_property
    def on_curve(self) -> bool:
        """Whether the (epsilon, delta) curve of continuous Gaussian noise holds for the release.

        The curve holds if the grid of the released numbers is fine enough.  If it does not hold,
        epsilon is computed from the zCDP parameter and is larger.
        """
        return is_on_curve([self.blocks], self.pcost)

    @property
    def epsilon_by_delta(self) -> dict[str, float]:
        """Epsilon for each delta in `Budget.listed_deltas`; the keys are the deltas as texts."""
        return {delta_text(delta): self.epsilon(delta) for delta in self.budget.listed_deltas}

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon proven for a release at ``delta``, rounded up."""
        return self.budget.epsilon(delta) if self.on_curve else self.budget.epsilon_zcdp(delta)

    @property
    def meaning(self) -> str:
        """Privacy guarantee in one line; with invariants it is subspace differential privacy."""
        return self.schema.meaning(self.budget, curve=self.on_curve)

    @cached_property
    def replace_one_pcost(self) -> ReplaceOne:
        """Privacy cost if neighbours replace the rows of one person: an upper bound and an example.

        Guarantee: the bound holds for all pairs of cells and for rows outside the domain.  The
        example is the most costly pair of cells that a local search finds.
        """
        return replace_one_cost(self.blocks, self.budget, self.max_records, self.schema, self.joint)

    @property
    def estimate_blocks(self) -> Mapping[Space, Block]:
        """Key -> strategy and noise of an estimate from which answers are computed.

        An answer is a sum of one term per residual space, and each term is computed from one
        estimate.  The estimates have the keys and noise of ``blocks``, unless the plan averages
        several measurements of a residual space.
        """
        return self.blocks

    def answers_from(self, estimates: Mapping[Space, Array]) -> Answers:
        """Return an object that computes tables and answers.

        ``estimates`` is the result of `combine`.
        """
        return SpaceAnswers(
            workload=self.workload,
            split=self.split,
            blocks=self.estimate_blocks,
            estimates=estimates,
        )

    def sources(self, group: int) -> list[Block]:
        """Return for each term of `group_variance` the block whose noise causes this term."""
        terms = self.group_variance(group).terms
        names = self.workload.groups[group].attributes
        spaces = [tuple(names[a] for a in t.axes) for t in terms]
        return [self.estimate_blocks[self.block_key_of_space.get(space, space)] for space in spaces]

    def combine(self, estimates: Mapping[Space, Array]) -> Mapping[Space, Array]:
        """Return the estimates with the keys of `estimate_blocks`, for `answers_from`.

        The argument has the estimates of the measured blocks.  This method returns it unchanged.  A
        subclass that measures a residual space several times averages the estimates, and may
        overwrite the arrays of the argument.
        """
        return estimates

    @cached_property
    def _variances(self) -> VarianceBuilder:
        return VarianceBuilder(blocks=self.estimate_blocks, split=self.split, schema=self.schema)

    def group_variance(self, group: int) -> GroupVariance:
        """Return the variances of the queries of a group; see `engine.plans.group_variance`."""
        self._check_group(group)
        return self._variances.group(self.workload.groups[group])

    def _check_group(self, group: int) -> None:
        check_int("number of the group", group, 0, len(self.workload.groups) - 1, error=PlanError)

    @cached_property
    def _group_variance_list(self) -> list[GroupVariance]:
        """Variances of the queries of each group, in the order of the groups."""
        return variances_by_class(
            self.estimate_blocks, self.split, self.workload, self.group_variance
        )

    def _by_group(self, value: Callable[[GroupVariance], float]) -> list[float]:
        """Return the result of the function ``value`` for each group.

        Groups that share one `GroupVariance` are evaluated once.
        """
        by_variances = {v: value(v) for v in dict.fromkeys(self._group_variance_list)}
        return [by_variances[v] for v in self._group_variance_list]

    @cached_property
    def totals(self) -> list[float]:
        """Sum of the variances of the queries of each group, in counts^2."""
        return self._by_group(GroupVariance.total)

    @cached_property
    def largest(self) -> list[float]:
        """Largest variance of a query of each group, in counts^2."""
        return self._by_group(GroupVariance.largest)

    @property
    def rmses(self) -> list[float]:
        """Root of the mean variance of the queries of each group, in counts."""
        return [
            math.sqrt(total / g.count)
            for total, g in zip(self.totals, self.workload.groups, strict=True)
        ]

    @cached_property
    def rmse(self) -> float:
        """Root of the unweighted mean variance of all queries, in counts.

        It is infinite if the plan cannot answer some query.  Only queries of weight 0 can be
        unanswered.
        """
        return math.sqrt(math.fsum(self.totals) / self.workload.queries)

    @cached_property
    def weighted_rmse(self) -> float:
        """Root of (sum of weight times variance) / (number of queries), in counts."""
        total = 0.0
        for i, group in enumerate(self.workload.groups):
            if group.query_weights is not None and group.weight > 0:
                variances = self.variances(i)
                used = group.query_weights > 0
                total += group.weight * float(group.query_weights[used] @ variances[used])
            elif group.weight > 0:
                total += group.weight * self.totals[i]
        return math.sqrt(total / self.workload.queries)

    @cached_property
    def max_variance(self) -> float:
        """Largest variance of a query, in counts^2."""
        return max(map(math.sqrt, self.largest)) ** 2

    @cached_property
    def achieved(self) -> float:
        """Error of the plan that its objective minimizes and its certificate bounds from below.

        For the objective "sum" it is `weighted_rmse`, for "max" the largest standard error, and for
        "lp" the root of a power mean of the variances, all in counts.  With targets it is the
        largest ratio of standard error to target.
        """
        goal = self._goal
        if goal.linear:
            return self.weighted_rmse
        return goal.mean(
            achieved_norm(self.workload, self.group_variance, goal), self.workload.queries
        )

    @cached_property
    def _goal(self) -> Objective:
        options = self.options
        return objective(
            options.get("objective", "sum"),
            options.get("power", 2.0),
            options.get("targets"),
            self.workload,
        )

    @cached_property
    def certificate(self) -> Certificate:
        """Lower bounds on the error, and how far the error of the plan is above them.

        One bound holds for all plans that the mechanism searches, the other for all matrix
        mechanisms.
        """
        # ``self.bound`` is at privacy cost 1
        bound = self._goal.mean(self.bound / self.budget.row_pcost, self.workload.queries)

        def search() -> float:
            """Return a lower bound on the weighted RMSE of all matrix mechanisms, in counts."""
            square, _ = best_bound(self.workload, self.budget.law)
            return math.sqrt(square / self.budget.row_pcost / self.workload.queries)

        return Certificate.of_plan(
            self.budget,
            achieved=self.achieved,
            bound=bound,
            statement=self.statement,
            weighted_rmse=self.weighted_rmse,
            search=search,
            exact=self.schema.exact_text,
            searched=bool(self.duals),
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 hash of the workload, the budget, the mechanism, its options and max_records.

        Equal hashes mean equal requests; the strategies can differ if a limit ended a search.
        The delta at which epsilon is reported is not hashed, because it changes neither the noise
        nor the privacy cost.
        """
        budget = replace(self.budget, report_delta=DEFAULT_DELTA).to_dict()
        return hashlib.sha256(
            canonical_json(self._request() | {"budget": budget}).encode()
        ).hexdigest()

    def by_group(self) -> pd.DataFrame:
        """Return a data frame with one row per group.

        The columns are attributes, family, queries, rmse and max_std (largest standard error), the
        last two in counts.
        """
        return table_of_groups(self.workload.groups, self.rmses, self.largest)

    def by_space(self) -> pd.DataFrame:
        """Return a data frame with one row per block.

        The columns are attributes, measurements, noise in counts and share of the budget.  The
        shares sum to 1; see `table_of_blocks`.
        """
        return table_of_blocks(self.blocks.values(), self.max_records)

    def with_noise(self, budget: Budget, blocks: Mapping[Space, Block]) -> Self:
        """Return the plan with another budget and blocks that differ only in their noise."""
        plan = replace(self, budget=budget, blocks=blocks)
        plan._variances.share_caches(self._variances)
        return plan

    def with_statement(self, statement: str, stopped: frozenset[str]) -> Self:
        """Return the plan with another statement, and other limits that stopped its search.

        ``stopped`` has the names of the limits.  Measurements and errors stay the same.  A plan
        without `full_tables` is not checked again, because that takes as long as all variances.
        """
        split = replace(self.split, stopped=stopped)
        if self.full_tables:
            return replace(self, statement=statement, split=split)
        plan = object.__new__(type(self))
        vars(plan).update({field.name: getattr(self, field.name) for field in fields(self)})
        vars(plan).update(statement=statement, split=split)
        plan._variances.share_caches(self._variances)
        return plan

    def with_groups(self, groups: Iterable[Group]) -> Self:
        """Return a plan with the same measurements, whose workload consists of ``groups``.

        The weights of the groups are set to 0, because a plan must answer all queries of positive
        weight.
        """
        return replace(
            self,
            workload=Workload(self.schema, tuple(replace(group, weight=0.0) for group in groups)),
        )

    def variances(self, group: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the variances of queries ``start:stop`` of a group, in counts^2.

        The result has shape (stop - start,).  The queries are in the order of `Workload.describe`.
        """
        return self.group_variance(group).values(
            *check_slice(start, stop, self.workload.groups[group].count, error=PlanError)
        )

    def variance_of(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> float:
        """Return the variance of any linear query on ``attributes``, in counts^2.

        Parameters
        ----------
        query_tensor : coefficients of the query, with the shape of the marginal table on the
            attributes, axes in this order.

        Raises
        ------
        SchemaError : if an attribute does not exist.
        PlanError : if an attribute occurs twice, or ``query_tensor`` has another shape or entries
            that are not finite numbers.
        NotAnswerable : if the plan does not measure a component of the query.
        """
        return float(self.covariance([(attributes, query_tensor)])[0, 0])

    def covariance(self, queries: Sequence[NamedQuery]) -> Array:
        """Return the covariance matrix of the answers to k queries, shape (k, k), in counts^2.

        Parameters
        ----------
        queries : k pairs (attributes, query tensor) with the arguments of `variance_of`.

        Raises
        ------
        SchemaError, NotAnswerable : as `variance_of`.
        PlanError : as `variance_of`, or if an entry of ``queries`` is not a pair.
        """
        coefficients = [self._reconstruction(*self.check_query(query)) for query in queries]
        covariances = np.zeros((len(coefficients), len(coefficients)))
        for i, first in enumerate(coefficients):
            for j in range(i, len(coefficients)):
                second = coefficients[j]
                # The noise of different blocks is independent, so only common blocks contribute.
                covariances[i, j] = covariances[j, i] = math.fsum(
                    float(first[key] @ second[key]) for key in first.keys() & second.keys()
                )
        return covariances

    def check_query(self, query: NamedQuery) -> tuple[Space, npt.ArrayLike]:
        """Return the attributes of a query, as a tuple, and its tensor, which is not checked.

        Raises
        ------
        PlanError : if the query is not a pair, or contains an attribute twice.
        SchemaError : if an attribute does not exist.
        """
        if not isinstance(query, (tuple, list)) or len(query) != 2:
            kind = type(query).__name__
            is_sequence = isinstance(query, (tuple, list))
            actual = f"{kind} of {len(query)} entries" if is_sequence else kind
            raise PlanError(f"A query has the type {actual}. Give a pair (attributes, table).")
        return self.schema.named(query[0], error=PlanError), query[1]

    def query_table(self, names: Space, query_tensor: npt.ArrayLike) -> Array:
        """Return the coefficients of a query as an array of finite numbers, shape (n_1, ..., n_k).

        Raises
        ------
        PlanError : if the query has another shape, or entries that are not finite numbers.
        """
        return finite_table(names, self.schema.sizes(names), query_tensor)

    def query_pieces(
        self, attributes: Sequence[str], query_tensor: npt.ArrayLike
    ) -> dict[Space, Array]:
        """Return the components of a query: residual space -> array of shape (n_1 - 1, ...).

        The attributes of every residual space are in schema order.
        """
        return query_pieces(self.schema, self.split, attributes, query_tensor)

    @cached_property
    def block_key_of_space(self) -> Mapping[Space, Space]:
        """Residual space -> key in `estimate_blocks` of the block that measures it."""
        return block_of_space(self.estimate_blocks)

    @property
    def solved(self) -> SolverState:
        """Result of the strategy search, from which the plan can be rebuilt for any budget."""
        return SolverState(**{f.name: getattr(self, f.name) for f in fields(SolverState)})

    def _reconstruction(
        self, attributes: Sequence[str], query_tensor: npt.ArrayLike
    ) -> dict[Space, Array]:
        """Return how the answer to a query depends on the noise of each block.

        The result maps the key of a block to one coefficient per strategy answer: the factor with
        which independent noise of variance 1 enters the answer.  The covariance of the answers to
        two queries is therefore the sum over blocks of the inner products of their coefficients.
        """
        components = self.query_pieces(attributes, query_tensor)
        size = float(np.linalg.norm(np.asarray(query_tensor, dtype=float)))
        by_block: dict[Space, dict[Space, Array]] = {}
        for space, piece in components.items():
            # A component needs no measurement if public tables contain its space, or if it is 0 up
            # to rounding.
            if (
                not piece.size
                or self.schema.is_exact(space)
                or np.linalg.norm(piece) <= ROUNDING * size
            ):
                continue
            if space not in self.block_key_of_space:
                raise unmeasured_error(attributes, space)
            by_block.setdefault(self.block_key_of_space[space], {})[space] = piece
        coefficients = {}
        for key, block_pieces in by_block.items():
            block = self.estimate_blocks[key]
            if block.union:
                # A block that measures several residual spaces jointly has a single factor.
                ((_, strategy),) = block.factors
                rows_by_space = {space: piece[None] for space, piece in block_pieces.items()}
                row = union_rows(self.schema, block, rows_by_space)
                if not strategy.complete and strategy.leaves_span(row)[0]:
                    raise unmeasured_error(attributes, key)
                coefficients[key] = block.noise * (row @ strategy.pinv)[0]
            else:
                if not measures_piece(block, block_pieces[key]):
                    raise unmeasured_error(attributes, key)
                by_answer = apply_factors(block, block_pieces[key], lambda s: s.pinv.T)
                if block.weights is not None:
                    by_answer = by_answer / block.weights
                coefficients[key] = block.noise * by_answer.ravel()
        return coefficients

    def headline(self) -> dict[str, str]:
        """Return texts for display: mechanism, groups, queries, error and privacy cost."""
        return {
            "mechanism": self.mechanism,
            "groups": number(len(self.workload.groups)),
            "queries": number(self.workload.queries),
            "rmse": f"{format_number(self.rmse)} counts",
            "pcost": cost(self.pcost),
        }

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Plan)
            and self.hash == other.hash
            and self.to_json() == other.to_json()
        )

    def __hash__(self) -> int:
        return hash((self.mechanism, self.budget, self.max_records, self.workload))

    def _request(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "mechanism": self.mechanism,
            "options": dict(self.options),
            "budget": self.budget.to_dict(),
            "max_records": self.max_records,
            "workload": self.workload.to_dict(),
        }

    def to_json(self) -> str:
        """Return the plan file as JSON text: request, result of the search, cost and error."""
        solved: dict[str, Any] = {
            "matrices": [{"shape": list(m.shape), "values": pack(m)} for m in self.matrices],
            "duals": [pack(d) for d in self.duals],
            "endings": list(self.endings),
            "memory_limit": self.memory_limit if math.isfinite(self.memory_limit) else None,
            **pack_split(self.split),
            "pcost": self.pcost,
            "weighted_rmse": self.weighted_rmse,
            "hash": self.hash,
        }
        # A mechanism of plans with `full_tables` computes ``joint`` again from the options or the
        # matrices, so it is not stored.
        if self.joint and not self.full_tables:
            solved["joint"] = True
        if self.tradeoff is not None:
            solved["tradeoff"] = self.tradeoff.to_dict()
            solved["achieved"] = self.achieved
        return canonical_json(self._request() | {"solved": solved})
