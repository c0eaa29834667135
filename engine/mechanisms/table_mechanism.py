"""Base class of mechanisms with explicit strategies on tables.

A component is one strategy on a marginal table with its share of the budget.  The method
`ExplicitMechanism.design` of a subclass returns the components.  Code that all subclasses share
computes privacy cost, variances and blocks from the components.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from engine._arrays import Array
from engine.bounds.lower_bounds import quick_bound
from engine.errors import NotApplicable, PlanError
from engine.mechanisms.base import Limits, Mechanism, check_request, check_size
from engine.plans import Plan
from engine.plans.solver_state import SolverState
from engine.plans.table_plan import (
    Component,
    ExplicitPlan,
    MarginalsPlan,
    component_blocks,
    component_of_group,
    explicit_strategy,
)
from engine.privacy import Budget
from engine.residuals import Axes, Space, Strategy
from engine.residuals.marginals import IdentityStrategy, identity_strategy
from engine.workload import Group, Schema, Workload

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
