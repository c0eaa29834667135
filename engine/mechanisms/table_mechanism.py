"""Base class of mechanisms with one strategy on whole tables.

A subclass says which components it measures; budget, privacy cost, variances and release are the same for all.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from engine._arrays import Array
from engine.bounds.lower_bounds import global_bound
from engine.errors import NotApplicable, PlanError
from engine.mechanisms.base import Limits, Mechanism, check_request, check_size
from engine.plans import Plan
from engine.plans.solver_state import Solved
from engine.plans.table_plan import (
    Component,
    ExplicitPlan,
    MarginalsPlan,
    answered_by,
    component_blocks,
    explicit_strategy,
)
from engine.privacy import Budget
from engine.residuals import Axes, Space, Strategy
from engine.workload import Group, Schema, Workload

MOST_DENSE = 4096  # cells of a strategy that is held as one matrix


@dataclass(frozen=True, kw_only=True, eq=False)
class Design:
    """What a mechanism decided to measure.

    Attributes
    ----------
    components : what is measured.
    whole_tables : the components are marginal tables, and least squares goes over all of them.
    statement : words about the search, for the certificate.
    bound : a bound for all matrix mechanisms in counts^2 at privacy cost 1, when the search has proved one.
    matrices : what a file must keep to rebuild the components.
    origin : a number to which the mechanism gives a meaning, kept in files.
    joint : the dearest cell in all components is charged, see `ExplicitPlan`.
    """

    components: tuple[Component, ...]
    whole_tables: bool = False
    statement: str = ""
    bound: float | None = None
    matrices: tuple[Array, ...] = ()
    origin: int = 0
    joint: bool = False

    def arrays(self, schema: Schema) -> tuple[Array, ...]:
        """Return the components as plain arrays of their own shapes, so that a file can hold them."""
        out: list[Any] = [[self.origin, len(self.components), float(self.whole_tables)]]
        for c in self.components:
            out += [[c.share, len(c.factors)], c.groups, [schema.names.index(a) for a in c.attributes]]
            for axes, strategy in c.factors:
                out += [axes, strategy.rows]
        return tuple(np.ascontiguousarray(a, dtype=float) for a in out)

    @classmethod
    def from_arrays(cls, matrices: tuple[Array, ...], workload: Workload, law: str) -> Design:
        """Return the design that `arrays` wrote down, in its shapes; raise ValueError when the arrays are none."""
        left = list(matrices)

        def take() -> Array:
            if not left:
                raise ValueError("the recorded strategy ends too early")
            return left.pop(0)

        def whole(values: Array, below: int) -> tuple[int, ...]:
            numbers = tuple(int(v) for v in values.ravel())
            if not all(0 <= n < below for n in numbers):
                raise ValueError("the recorded strategy has numbers out of range")
            return numbers

        known: dict[tuple[Axes, bytes], Strategy] = {}
        origin, count, together = whole(take(), 10**6)
        names, components = workload.schema.names, []
        for _ in range(count):
            share, factors = take().ravel()
            groups = whole(take(), len(workload.groups))
            attributes = tuple(names[i] for i in whole(take(), len(names)))
            sizes, made = workload.schema.sizes(attributes), []
            for _ in range(int(factors)):
                axes, rows = whole(take(), len(attributes)), take()
                own = tuple(sizes[a] for a in axes)
                if rows.ndim != 2 or rows.shape[1] != math.prod(own):
                    raise ValueError("the recorded rows do not fit")
                # equal factors are one object, so that least squares is done once and later caches know it again
                if (own, rows.tobytes()) not in known:
                    known[own, rows.tobytes()] = explicit_strategy(rows, own, law)
                made.append((axes, known[own, rows.tobytes()]))
            components.append(Component(attributes=attributes, factors=tuple(made), share=float(share), groups=groups))
        return cls(components=tuple(components), whole_tables=bool(together), matrices=matrices, origin=origin)


@dataclass(frozen=True, kw_only=True)
class ExplicitMechanism(Mechanism):
    """Base of the mechanisms of this kind; see the module's text."""

    laws: ClassVar[tuple[str, ...]] = ("gaussian", "laplace")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective != "sum":
            raise PlanError(
                f"The mechanism '{self.name}' has no objective {self.objective!r}, only 'sum'. Use 'querysmasher', "
                "'residualplanner+' or 'wff'."
            )

    @abstractmethod
    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        """Return what to measure; ``found`` holds the matrices of an earlier design, empty for a new search.

        Their shapes are the mechanism's own.
        """

    def plan(self, workload: Workload, budget: Budget, limits: Limits) -> Plan:
        check_request(workload, budget, self.laws)
        check_size(workload, limits.memory_limit)
        if not any(g.weight > 0 and _asks(g) for g in workload.groups):
            raise PlanError("The weighted queries count no record at all. Add a query that counts something.")
        limits.tell(0.0, "Choosing the strategy")
        made = explicit_plan(self, workload, budget, self.design(workload, budget.law, limits, ()))
        limits.tell(1.0, "Planned")
        return made

    def rebuild(self, workload: Workload, budget: Budget, solved: Solved) -> Plan:
        check_request(workload, budget, self.laws)
        design = self.design(workload, budget.law, Limits(), solved.matrices)
        known = design if solved.bound is None else replace(design, bound=solved.bound)
        return explicit_plan(self, workload, budget, known)


def explicit_plan(mechanism: Mechanism, workload: Workload, budget: Budget, design: Design) -> Plan:
    """Return the plan of a mechanism that decided to measure this."""
    common: dict[str, Any] = {
        "workload": workload,
        "budget": budget,
        "mechanism": mechanism.name,
        "options": mechanism.options(),
        "blocks": component_blocks(design.components, budget, mechanism.max_records, design.joint),
        "bound": _quick_bound(workload, budget.law) if design.bound is None else design.bound,
        "statement": (
            f"{design.statement} No matrix mechanism whatsoever with this noise can have a smaller weighted RMSE "
            "than the bound."
        ).strip(),
        "duals": (),
        "matrices": design.matrices,
        "max_records": mechanism.max_records,
    }
    if design.whole_tables:
        return MarginalsPlan(**common)
    answering = answered_by(design.components, len(workload.groups))
    return ExplicitPlan(**common, answered_by=answering, joint=design.joint)


@lru_cache(maxsize=64)
def _quick_bound(workload: Workload, law: str) -> float:
    """Bound for all mechanisms; kept, because all of them, at any budget, and every reading of a file ask for it."""
    return global_bound(workload, law, steps=0)


def _asks(group: Group) -> bool:
    """Return whether a query of the group that has a weight counts any cell at all."""
    marks = np.ones(1, dtype=bool)
    for part in group.parts:
        own = np.concatenate([rows.any(axis=1) for _, rows in part.family.chunks(part.sizes)])
        marks = np.logical_and.outer(marks, own).ravel() if group.query_weights is not None else marks & own.any()
    return bool((marks & (True if group.query_weights is None else group.query_weights > 0)).any())


def asked_attributes(workload: Workload) -> Space:
    """Return the attributes that some group asks about, in schema order."""
    asked = {name for g in workload.groups for name in g.attributes}
    return tuple(name for name in workload.schema.names if name in asked)


def one_component(workload: Workload, attributes: Space, factors: tuple[tuple[Axes, Strategy], ...]) -> Design:
    """Return the design of one strategy that answers every group."""
    everything = tuple(range(len(workload.groups)))
    return Design(components=(Component(attributes=attributes, factors=factors, share=1.0, groups=everything),))


@lru_cache(maxsize=256)
def identity_strategy(n: int) -> Strategy:
    """Return the strategy that measures every cell."""
    return Strategy(sizes=(n,), rows=np.eye(n), pinv=np.eye(n), complete=True)


def check_dense(workload: Workload, attributes: Space, what: str) -> int:
    """Return the number of cells of a table that is to be held whole; raise NotApplicable when there are too many."""
    cells = math.prod(workload.schema.sizes(attributes))
    if cells > MOST_DENSE:
        raise NotApplicable(
            f"{what} works on all {cells:,} cells of {' x '.join(attributes)} at once, at most {MOST_DENSE:,}. Use "
            "'querysmasher', or ask about fewer or coarser attributes."
        )
    return cells
