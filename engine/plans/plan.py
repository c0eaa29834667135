"""Plans: strategies and noise for a workload and a budget, with their predicted error.

A plan contains no data.  All its predictions are computed from the matrices, noise scales and grids
that a release uses.  Its privacy cost is recomputed from them when the plan is created and whenever
it is loaded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import cost, format_number, number
from engine._validation import check_int, check_slice
from engine._values import FrozenValue
from engine.bounds.lower_bounds import best_bound
from engine.errors import PlanError, Unanswered
from engine.plans.blocks import (
    Block,
    apply_factors,
    block_of_space,
    is_on_curve,
    measures_piece,
    table_of_blocks,
)
from engine.plans.objectives import Objective, achieved_norm, objective, pack
from engine.plans.reconstruction import (
    Answers,
    SpaceAnswers,
    finite_table,
    query_pieces,
    union_rows,
    unmeasured_error,
)
from engine.plans.replace_one import ReplaceOne, person_pcost, replace_one_cost
from engine.plans.solver_state import Certificate, SolverState, Tradeoff, canonical_json, pack_split
from engine.plans.variance import (
    GroupVariance,
    VarianceBuilder,
    table_of_groups,
    variances_by_class,
)
from engine.privacy import Budget
from engine.privacy.budget import DEFAULT_DELTA, delta_text
from engine.residuals import Space, Split
from engine.residuals.basis import UNIFORM
from engine.workload import Group, Schema, Workload

if TYPE_CHECKING:
    import pandas as pd


FORMAT = "plan/1"
# relative norm below which the component of a query in a residual space counts as zero
ROUNDING = 1e-9
NamedQuery = tuple[Sequence[str], npt.ArrayLike]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Plan(FrozenValue):
    """A mechanism fitted to a workload and a budget.

    Attributes
    ----------
    workload, budget : queries to answer, and privacy budget.
    mechanism, options : name of the mechanism and its options; with the workload and the budget
        they define `hash`.
    blocks : mapping from the attributes of a measured table to its strategy, noise and grid; each
        block measures one residual space, or several jointly.
    bound : lower bound on the norm of the variances at privacy cost 1, in counts^2, or relative to
        the target variances.  The norm is the weighted sum of the variances unless the options set
        another objective.
    statement : description of the certificate in words: which plans the bound holds for, and how
        the searches ended.
    duals, endings, memory_limit : final dual weights and termination message of each strategy
        search, and the memory limit in bytes that chose between dense and alternating searches;
        enough to rebuild the identical plan.
    split : decomposition of queries into residual spaces: centers, complements and jointly
        measured spaces.
    matrices : strategy matrices and budget shares that cannot be computed from ``duals``.
    max_records : largest public number of records for which the privacy cost includes rounding.
    tradeoff : noise and query weights for an objective other than the sum, or for the sum under
        accuracy constraints of groups; None for all other plans.
    joint : whether the privacy cost is the joint cost, the maximum over cells of the summed costs
        of the blocks; otherwise it is the sum of the costs of the blocks, which is at least as
        large apart from the effects of rounding to the grid.
    ideal : squared noise of every block at privacy cost 1 before rounding to the grid, in counts^2,
        shape (blocks,); None for a plan of marginal tables, which is rebuilt for another budget.

    Raises
    ------
    PlanError : the plan costs more than the budget.
    Unanswered : a query with positive weight cannot be answered.
    """

    # whether every group is answered from a single measured table
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
        if not self.pcost <= self.budget.pcost:
            raise PlanError(
                f"The privacy cost of the plan is {self.pcost}, over the budget of"
                f" {self.budget.pcost}. A plan must cost at most its budget. Please report this"
                " error with the options of the plan."
            )
        groups = self.workload.groups
        for i in (
            range(len(groups))
            if self.full_tables
            else self._variances.partial_groups(self.workload).tolist()
        ):
            group = groups[i]
            if group.weight > 0 and not self._answers(i):
                raise Unanswered(
                    f"The plan cannot answer some {group.family_text} queries on"
                    f" {' x '.join(group.attributes) or 'nothing'} (group {i}), although their"
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
        """Privacy cost of the release for one person, computed from its matrices, rounded up."""
        return person_pcost(self.blocks, self.budget, self.max_records, self.joint)

    @cached_property
    def on_curve(self) -> bool:
        """Whether the (epsilon, delta) curve of continuous Gaussian noise holds for the release.

        It holds if the grid of the released numbers is fine enough.  Otherwise epsilon follows from
        the zCDP parameter and is larger.
        """
        return is_on_curve([self.blocks], self.pcost)

    @property
    def epsilon_by_delta(self) -> dict[str, float]:
        """Mapping from delta, as text, to epsilon for each of `Budget.listed_deltas`."""
        return {delta_text(delta): self.epsilon(delta) for delta in self.budget.listed_deltas}

    def epsilon(self, delta: float) -> float:
        """Return the smallest proven epsilon of a release, rounded up; see `Budget.epsilon`."""
        return self.budget.epsilon(delta) if self.on_curve else self.budget.epsilon_zcdp(delta)

    @property
    def meaning(self) -> str:
        """The privacy guarantee in one line; with exact totals it is not standard DP."""
        return self.schema.meaning(self.budget, curve=self.on_curve)

    @cached_property
    def replace_one_pcost(self) -> ReplaceOne:
        """Privacy cost for one person whose rows are replaced: an upper bound and an example.

        Guarantee: the bound holds for all pairs of cells and for rows outside the domain.  The
        example is the most costly pair of cells in a local search.
        """
        return replace_one_cost(self.blocks, self.budget, self.max_records, self.schema, self.joint)

    @property
    def estimate_blocks(self) -> Mapping[Space, Block]:
        """Mapping from key to the strategy and noise of the estimates that make up all answers.

        An answer is a sum of one term per residual space.  The estimates are the measured blocks,
        unless a plan combines several measurements into the estimate of a space.
        """
        return self.blocks

    def answers_from(self, estimates: Mapping[Space, Array]) -> Answers:
        """Return an object that computes tables and answers from the estimates of `combine`."""
        return SpaceAnswers(
            workload=self.workload,
            split=self.split,
            blocks=self.estimate_blocks,
            estimates=estimates,
        )

    def sources(self, group: int) -> list[Block]:
        """Return for every summand of `group_variance` the block whose noise causes it."""
        summands = self.group_variance(group).summands
        names = self.workload.groups[group].attributes
        spaces = [tuple(names[a] for a in s.axes) for s in summands]
        return [self.estimate_blocks[self.block_key_of_space.get(space, space)] for space in spaces]

    def combine(self, estimates: Mapping[Space, Array]) -> Mapping[Space, Array]:
        """Return the estimates for `answers_from`, computed from those of the measured blocks.

        The keys are those of `estimate_blocks`.  Here the estimates are returned unchanged; a plan
        that measures a residual space several times averages them, and may overwrite the arrays.
        """
        return estimates

    @cached_property
    def _variances(self) -> VarianceBuilder:
        return VarianceBuilder(blocks=self.estimate_blocks, split=self.split, schema=self.schema)

    def group_variance(self, group: int) -> GroupVariance:
        """Return the variances of the queries of a group; see `engine.plans.variance`."""
        self._check_group(group)
        return self._variances.group(self.workload.groups[group])

    def _check_group(self, group: int) -> None:
        check_int("number of the group", group, 0, len(self.workload.groups) - 1, error=PlanError)

    @cached_property
    def _group_variance_list(self) -> list[GroupVariance]:
        """Variances of every group, in the order of the groups."""
        return variances_by_class(
            self.estimate_blocks, self.split, self.workload, self.group_variance
        )

    def _by_group(self, value: Callable[[GroupVariance], float]) -> list[float]:
        """Return one number per group, computed once for groups with the same variances."""
        by_variances = {v: value(v) for v in dict.fromkeys(self._group_variance_list)}
        return [by_variances[v] for v in self._group_variance_list]

    @cached_property
    def totals(self) -> list[float]:
        """Sum of the variances of the queries of every group, in counts^2."""
        return self._by_group(GroupVariance.total)

    @cached_property
    def largest(self) -> list[float]:
        """For every group, the largest variance of a query, in counts^2."""
        return self._by_group(GroupVariance.largest)

    @property
    def rmses(self) -> list[float]:
        """Root of the mean variance of the queries of every group, in counts."""
        return [
            math.sqrt(total / g.count)
            for total, g in zip(self.totals, self.workload.groups, strict=True)
        ]

    @cached_property
    def rmse(self) -> float:
        """Unweighted root of the mean variance of all queries, in counts.

        Infinite if a query of weight 0 is not measured.
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
        """Error of the plan in the unit of its objective, as bounded by the certificate.

        In counts: `weighted_rmse` for the objective "sum", the largest standard error for "max",
        and the root of a power mean of variances for "lp".  With targets, the largest ratio of
        standard error to target.
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
        """Lower bounds on the error, and the gaps of the plan above them.

        One bound holds for the class of plans that the mechanism searches, one for all matrix
        mechanisms.
        """
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
        """Hash of the workload, the budget, the mechanism, its options and max_records.

        Equal hashes identify the same release.  The delta at which epsilon is reported is excluded,
        because it changes neither the noise nor the privacy cost.
        """
        budget = replace(self.budget, report_delta=DEFAULT_DELTA).to_dict()
        return hashlib.sha256(
            canonical_json(self._request() | {"budget": budget}).encode()
        ).hexdigest()

    def by_group(self) -> pd.DataFrame:
        """Return one row per group: attributes, family, queries, rmse and max_std in counts."""
        return table_of_groups(self.workload.groups, self.rmses, self.largest)

    def by_space(self) -> pd.DataFrame:
        """Return one row per block: attributes, measurements, noise in counts and budget share.

        The shares sum to 1; see `table_of_blocks`.
        """
        return table_of_blocks(self.blocks.values(), self.max_records)

    def with_noise(self, budget: Budget, blocks: Mapping[Space, Block]) -> Self:
        """Return the plan at another budget with other noise; cached variances are reused."""
        plan = replace(self, budget=budget, blocks=blocks)
        plan._variances.share_caches(self._variances)
        return plan

    def with_groups(self, groups: Iterable[Group]) -> Self:
        """Return a plan with the same measurements whose workload is ``groups``.

        Their weights are set to 0, because a plan may have unanswerable queries only of weight 0.
        """
        return replace(
            self,
            workload=Workload(self.schema, tuple(replace(group, weight=0.0) for group in groups)),
        )

    def variances(self, group: int, start: int = 0, stop: int | None = None) -> Array:
        """Return variances of queries ``start:stop``, shape (stop - start,), in counts^2.

        The order of the queries is that of `describe`.
        """
        return self.group_variance(group).values(
            *check_slice(start, stop, self.workload.groups[group].count, error=PlanError)
        )

    def variance_of(self, attributes: Sequence[str], query_tensor: npt.ArrayLike) -> float:
        """Return the variance of any query on ``attributes``, in counts^2.

        ``query_tensor`` has the shape of the marginal table on the attributes, in this order.

        Raises
        ------
        SchemaError : an attribute does not exist.
        PlanError : an attribute occurs twice, or ``query_tensor`` has another shape or entries that
            are not finite numbers.
        NotAnswerable : the strategy does not measure a component of the query.
        """
        return float(self.covariance([(attributes, query_tensor)])[0, 0])

    def covariance(self, queries: Sequence[NamedQuery]) -> Array:
        """Return the covariance matrix of the answers to k queries, shape (k, k), in counts^2.

        Parameters
        ----------
        queries : (attributes, query tensor) pairs, as the arguments of `variance_of`.

        Raises
        ------
        SchemaError, NotAnswerable : as for `variance_of`.
        PlanError : as for `variance_of`, or an entry of ``queries`` is not a pair.
        """
        pieces = [self._reconstruction(*self.check_query(query)) for query in queries]
        out = np.zeros((len(pieces), len(pieces)))
        for i, a in enumerate(pieces):
            for j in range(i, len(pieces)):
                b = pieces[j]
                out[i, j] = out[j, i] = math.fsum(float(a[s] @ b[s]) for s in a.keys() & b.keys())
        return out

    def check_query(self, query: NamedQuery) -> tuple[Space, npt.ArrayLike]:
        """Return the attributes and the tensor of a query.

        Raises PlanError unless the query is a pair of attributes and a tensor, and SchemaError if
        an attribute does not exist.
        """
        if not isinstance(query, (tuple, list)) or len(query) != 2:
            kind = type(query).__name__
            found = f"a {kind} of {len(query)}" if isinstance(query, (tuple, list)) else f"a {kind}"
            raise PlanError(
                f"A query is {found}, but must be a pair (attributes, table). Give such a pair."
            )
        return self.schema.named(query[0], error=PlanError), query[1]

    def query_table(self, names: Space, query_tensor: npt.ArrayLike) -> Array:
        """Return a query as a table of finite numbers, shape (n_1, ..., n_k).

        Raises
        ------
        PlanError : the query has another shape, or entries that are not finite numbers.
        """
        return finite_table(names, self.schema.sizes(names), query_tensor)

    def query_pieces(
        self, attributes: Sequence[str], query_tensor: npt.ArrayLike
    ) -> dict[Space, Array]:
        """Return the components of a query by residual space, shapes (n_1 - 1, ...).

        The attributes of every space are in schema order.
        """
        return query_pieces(self.schema, self.split, attributes, query_tensor)

    @cached_property
    def block_key_of_space(self) -> Mapping[Space, Space]:
        """Mapping from residual space to the key of its block in `estimate_blocks`."""
        return block_of_space(self.estimate_blocks)

    @property
    def solved(self) -> SolverState:
        """Result of the strategy search, enough to rebuild the plan at this or another budget."""
        return SolverState(**{f.name: getattr(self, f.name) for f in fields(SolverState)})

    def _reconstruction(
        self, attributes: Sequence[str], query_tensor: npt.ArrayLike
    ) -> dict[Space, Array]:
        """Return a mapping from block to the coefficients of its noise in the answer to a query.

        The coefficients are those of independent noises of variance 1, so the inner products of the
        coefficients of two queries are the covariance of their answers.
        """
        components = self.query_pieces(attributes, query_tensor)
        size = float(np.linalg.norm(np.asarray(query_tensor, dtype=float)))
        by_block: dict[Space, dict[Space, Array]] = {}
        for space, piece in components.items():
            if (
                not piece.size
                or self.schema.is_exact(space)
                or np.linalg.norm(piece) <= ROUNDING * size
            ):
                continue
            if space not in self.block_key_of_space:
                raise unmeasured_error(attributes, space)
            by_block.setdefault(self.block_key_of_space[space], {})[space] = piece
        out = {}
        for key, block_pieces in by_block.items():
            block = self.estimate_blocks[key]
            if block.union:
                ((_, strategy),) = block.factors
                rows_by_space = {space: piece[None] for space, piece in block_pieces.items()}
                row = union_rows(self.schema, block, rows_by_space)
                if not strategy.complete and strategy.leaves_span(row)[0]:
                    raise unmeasured_error(attributes, key)
                out[key] = block.noise * (row @ strategy.pinv)[0]
            else:
                if not measures_piece(block, block_pieces[key]):
                    raise unmeasured_error(attributes, key)
                solved = apply_factors(block, block_pieces[key], lambda s: s.pinv.T)
                out[key] = (
                    block.noise
                    * (solved if block.weights is None else solved / block.weights).ravel()
                )
        return out

    def headline(self) -> dict[str, str]:
        """Return a summary: mechanism, size of the workload, error and privacy cost."""
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
        """Return the plan file as JSON text: the request, the search result, cost and error."""
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
        # a mechanism restores ``joint`` of plans with `full_tables` from its options or `matrices`
        if self.joint and not self.full_tables:
            solved["joint"] = True
        if self.tradeoff is not None:
            solved["tradeoff"] = self.tradeoff.to_dict()
            solved["achieved"] = self.achieved
        return canonical_json(self._request() | {"solved": solved})
