"""Baselines: identity, Gaussian, Laplace, DataCube and the dense optimum.

`Identity` measures every cell.  `GaussianQueries` and `LaplaceQueries` measure every query.
`DataCube` measures a few marginal tables.  `Optimum` is the optimal matrix mechanism for domains
that fit into one dense matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from engine._arrays import Array
from engine._clock import planning_time
from engine._threads import threads_for
from engine._validation import check_choice
from engine.bounds.lower_bounds import full_domain_problem
from engine.errors import NotApplicable, PlanError, WorkloadError
from engine.mechanisms.base import (
    Design,
    ExplicitMechanism,
    Forecast,
    Limits,
    NoiseLaw,
    check_dense,
    check_start,
    dense_start_seconds,
    is_number,
    one_component,
    used_attributes,
)
from engine.plans.table_plan import Component, explicit_strategy
from engine.residuals import Axes, DualProblem, Options, Space, Strategy
from engine.residuals.decomposition import has_identity_gram
from engine.residuals.marginals import identity_strategy
from engine.residuals.search_cache import STRATEGY_TIME_RATIO
from engine.residuals.strategy import joint_sensitivity
from engine.workload import Group, Part, Workload, subsets

# Largest number of matrix entries (queries times cells) of one query family in a group.
MAX_PART_ENTRIES = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Identity(ExplicitMechanism):
    """Adds equal noise to every cell of the table on all attributes of the workload."""

    name: ClassVar[str] = "identity"
    title: ClassVar[str] = "Identity"
    meaning: ClassVar[str] = (
        "Noise on every cell of the full table; sums of many cells become very noisy."
    )
    closed_form: ClassVar[bool] = True

    def design(
        self, workload: Workload, law: str, limits: Limits, bases: tuple[Array, ...]
    ) -> Design:
        attributes = used_attributes(workload)
        factors = tuple(
            ((axis,), identity_strategy(n))
            for axis, n in enumerate(workload.schema.sizes(attributes))
        )
        return one_component(workload, attributes, factors)


@dataclass(frozen=True, kw_only=True)
class GaussianQueries(ExplicitMechanism):
    """Equal Gaussian noise on every query, with least squares within each group.

    Weights of queries are ignored.

    Options
    -------
    charge : how the privacy cost is computed.  "groups" charges the sum of the costs of all groups.
        "cell" adds up the costs of all groups for each cell, and charges the largest sum, which is
        never more.  Plan files without this option have "groups".
    """

    name: ClassVar[str] = "gaussian"
    title: ClassVar[str] = "Gaussian mechanism"
    meaning: ClassVar[str] = "Gaussian noise on every query, then least squares within each group."
    laws: ClassVar[tuple[str, ...]] = ("gaussian",)
    closed_form: ClassVar[bool] = True
    unsaid: ClassVar[Mapping[str, Any]] = {"charge": "groups"}

    charge: str = "cell"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("option charge", self.charge, ("cell", "groups"), error=PlanError, public=True)

    def design(
        self, workload: Workload, law: str, limits: Limits, bases: tuple[Array, ...]
    ) -> Design:
        """Return one component per group of the workload: its queries, scaled to sensitivity 1.

        A group with the sensitivity s has a budget share in proportion to s^2 (Gaussian noise) or s
        (Laplace noise).  So the noise of a query is the same in all groups.
        """
        strategies, sensitivities = [], []
        for group in workload.groups:
            order = group.ranks(workload.schema)
            factors, sensitivity = _group_strategy(group, order, law)
            strategies.append((group.named(order), factors))
            sensitivities.append(sensitivity)
        # A group whose queries have only coefficients 0 needs no budget, but a share of 0 would
        # make its noise infinite.
        smallest = 1e-6 * max(sensitivities)
        shares = [
            max(s, smallest) if law == "laplace" else max(s, smallest) ** 2 for s in sensitivities
        ]
        joint = self.charge == "cell"
        total = math.fsum(shares)
        if joint:
            total = joint_sensitivity(
                (
                    (attributes, factors, share)
                    for (attributes, factors), share in zip(strategies, shares, strict=True)
                ),
                law,
            )
        components = [
            Component(attributes=attributes, factors=factors, share=share / total, groups=(number,))
            for number, ((attributes, factors), share) in enumerate(
                zip(strategies, shares, strict=True)
            )
        ]
        return Design(components=tuple(components), joint=joint)


def _group_strategy(
    group: Group, order: Sequence[int], law: str
) -> tuple[tuple[tuple[Axes, Strategy], ...], float]:
    """Return the queries of a group, scaled to sensitivity 1, and the sensitivity before scaling.

    Parameters
    ----------
    order : axes of the group in schema order.

    Returns
    -------
    factors : Kronecker factors of the queries, as pairs (axes, strategy).  Here, axes are indices
        in ``order``.
    sensitivity : sensitivity of the queries before scaling.
    """
    factors, sensitivity = list[tuple[Axes, Strategy]](), 1.0
    for part in group.parts:
        axes = tuple(order.index(a) for a in part.axes)
        if has_identity_gram(part):
            factors.append((axes, identity_strategy(part.sizes[0])))
            continue
        if part.count * math.prod(part.sizes) > MAX_PART_ENTRIES:
            raise NotApplicable(
                f"A query family has {part.count:,} queries on {math.prod(part.sizes):,} cells. In"
                " this mechanism the number of queries times the number of cells must be at most"
                f" {MAX_PART_ENTRIES:,}."
                " Use 'querysmasher', or coarser attributes."
            )
        strategy, norm = _normalized_rows(part, law)
        factors.append((axes, strategy))
        sensitivity *= norm
    return tuple(factors), sensitivity


@dataclass(frozen=True, kw_only=True)
class LaplaceQueries(GaussianQueries):
    """Equal Laplace noise on every query, for a budget of pure epsilon."""

    name: ClassVar[str] = "laplace"
    title: ClassVar[str] = "Laplace mechanism"
    meaning: ClassVar[str] = "Laplace noise on every query, then least squares within each group."
    laws: ClassVar[tuple[str, ...]] = ("laplace",)


@lru_cache(maxsize=64)
def _normalized_rows(part: Part, law: str) -> tuple[Strategy, float]:
    """Return the query rows of a family at sensitivity 1, and the sensitivity before scaling.

    The sensitivity is the largest column norm: L1 for the law "laplace", otherwise L2.
    """
    rows = part.family.rows(part.sizes)
    norm = float(
        abs(rows).sum(axis=0).max() if law == "laplace" else (rows**2).sum(axis=0).max() ** 0.5
    )
    return explicit_strategy(rows, part.sizes, law), norm


# For forecasts of time: floating point operations per second in large eigenvalue problems.
FLOPS_PER_S = 1e10


@dataclass(frozen=True, kw_only=True)
class Optimum(ExplicitMechanism):
    """The optimal strategy on the full domain, with a certificate.

    Options
    -------
    gap : relative RMSE gap at which the search stops.
    """

    name: ClassVar[str] = "optimum"
    title: ClassVar[str] = "Global optimum"
    meaning: ClassVar[str] = (
        "The most accurate matrix mechanism, for domains of up to a few thousand cells."
    )
    laws: ClassVar[tuple[str, ...]] = ("gaussian",)

    gap: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.gap) or not 0 < self.gap < 1:
            raise PlanError(
                f"gap is {self.gap!r}. Give a number above 0 and below 1, such as 1e-5."
            )

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        cells = check_dense(workload, used_attributes(workload), "The global optimum")
        text = f"one problem on {cells:,} cells"
        return Forecast(
            seconds=0.1 + 60 * 5.0 * cells**3 / FLOPS_PER_S,
            memory=120e6 + 100.0 * cells**2,
            text=text,
        )

    def design(
        self, workload: Workload, law: str, limits: Limits, bases: tuple[Array, ...]
    ) -> Design:
        """Return the optimal strategy on the full table, from a search or from stored dual weights."""
        attributes = used_attributes(workload)
        cells = check_dense(workload, attributes, "The global optimum")
        sizes = workload.schema.sizes(attributes)
        if not bases:
            seconds = dense_start_seconds(cells, sum(group.count for group in workload.groups))
            check_start(f"The global optimum on {cells:,} cells", seconds, limits)
        with threads_for(cells):
            started, deadline = planning_time(), limits.deadline()
            problem = full_domain_problem(workload)
            if bases:
                mass = bases[0]
                if len(mass) != problem.variables:
                    raise ValueError("the stored cell weights are not one per cell")
            else:
                # The strategy is computed after the search, so the search ends before the
                # deadline.  At most half of the remaining time is reserved for the strategy.
                now = planning_time()
                reserve = min(STRATEGY_TIME_RATIO * (now - started), 0.5 * (deadline - now))
                mass = self._search(problem, cells, limits, deadline - max(reserve, 0.0))
            solution = problem.solution(mass, "")
            strategy = explicit_strategy(solution.strategy.rows, sizes)
        factors = ((tuple(range(len(sizes))), strategy),) if sizes else ()
        design = one_component(workload, attributes, factors)
        statement = (
            ""
            if solution.gap <= 1.01 * self.gap
            else "The search stopped before it reached the required gap."
        )
        return Design(
            components=design.components,
            statement=statement,
            bound=solution.bound,
            matrices=(mass,),
        )

    def _search(self, problem: DualProblem, cells: int, limits: Limits, deadline: float) -> Array:
        """Search for the optimum, and return its dual weights, one per class of equivalent cells."""
        n_steps = 0

        def watch(gap: float) -> None:
            """Report progress after a step.  The fraction grows towards 1 with every step."""
            nonlocal n_steps
            n_steps += 1
            limits.tell(
                1.0 - math.exp(-n_steps / 40.0),
                f"Searching a strategy for {cells:,} cells, gap {gap:.1e}",
            )

        mass, _ = problem.maximise(Options(gap=self.gap, deadline=deadline), watch=watch)
        return mass


def marginal_component(workload: Workload, attributes: Space, share: float) -> Component:
    """Return a `Component` that measures every cell of a marginal.

    ``share`` is its share of the budget.
    """
    factors = tuple(
        ((axis,), identity_strategy(n)) for axis, n in enumerate(workload.schema.sizes(attributes))
    )
    return Component(attributes=attributes, factors=factors, share=share, groups=())


@dataclass(frozen=True, kw_only=True)
class DataCube(ExplicitMechanism):
    """Measures a greedy choice of marginals that determine all marginals of the workload."""

    name: ClassVar[str] = "datacube"
    title: ClassVar[str] = "DataCube"
    meaning: ClassVar[str] = (
        "Measures a few large marginals and sums all others from them; marginals only."
    )
    closed_form: ClassVar[bool] = True

    def design(
        self, workload: Workload, law: str, limits: Limits, bases: tuple[Array, ...]
    ) -> Design:
        """Return one component, with an equal budget share, per marginal that `data_cube` chooses."""
        attributes = used_attributes(workload)
        for group in workload.groups:
            for part in group.parts:
                if part.family.name not in ("marginal", "total"):
                    raise NotApplicable(
                        f"A group on {' x '.join(group.attributes)} has '{part.family.name}'"
                        " queries, but DataCube answers only marginals. Choose 'querysmasher', or"
                        " use only marginals."
                    )
        marginals = []
        for group in workload.groups:
            # A total has no axis in the marginal, because it sums over its attribute.
            marginal_parts = [part for part in group.parts if part.family.name == "marginal"]
            names = [group.attributes[a] for part in marginal_parts for a in part.axes]
            marginals.append(tuple(sorted(attributes.index(name) for name in names)))
        noise: NoiseLaw = "laplace" if law == "laplace" else "gaussian"
        measured = data_cube(workload.schema.sizes(attributes), marginals, noise)
        tables = [tuple(attributes[axis] for axis in axes) for axes in measured]
        return Design(
            components=tuple(
                marginal_component(workload, table, 1.0 / len(tables)) for table in tables
            ),
            full_tables=True,
        )


def data_cube(
    sizes: Sequence[int],
    queried_sets: Sequence[Axes],
    noise: NoiseLaw = "laplace",
    *,
    limit: int | None = None,
) -> tuple[Axes, ...]:
    """Choose which marginals to measure, with equal noise, for a workload of marginals.

    A measured marginal covers a queried marginal if each cell of the queried one is the sum of at
    most ``limit`` cells of the measured one.  Greedy set cover repeatedly adds the marginal that
    covers the most queried marginals which are not covered yet.

    Parameters
    ----------
    sizes : number of cells of every axis.
    queried_sets : axes of every marginal of the workload.
    noise : distribution by which choices for several limits are compared.
    limit : largest number of cells that are summed.  With None, up to 24 limits are tried, and the
        choice with the smallest least squares error is returned.  The experiments of the paper use
        the number of marginals in the workload.

    Returns
    -------
    The axes of every measured marginal.

    Source: Ding and others (2011), BMAX by set cover, with candidates from the workload.

    >>> data_cube((2, 3), [(), (0,), (1,), (0, 1)], limit=6)
    ((0, 1),)
    """
    wanted = list(dict.fromkeys(tuple(sorted(axes)) for axes in queried_sets))
    if not wanted or any(not 0 <= i < len(sizes) for axes in wanted for i in axes):
        raise WorkloadError(
            f"queried_sets is {str(wanted)[:60]}. Give at least one marginal, with axes from 0 to"
            f" {len(sizes) - 1}."
        )
    # Entry [i, j] is the number of cells of marginal i that sum to one cell of marginal j.  The
    # entry is infinite if marginal i does not determine marginal j.
    summed_cells = np.array(
        [
            [
                (
                    math.prod(sizes[i] for i in measured if i not in queried)
                    if set(queried) <= set(measured)
                    else math.inf
                )
                for queried in wanted
            ]
            for measured in wanted
        ]
    )
    limits = np.unique(summed_cells[np.isfinite(summed_cells)])
    if limit is not None:
        limits = np.array([max(limit, 1)])
    # The set cover is computed for each limit.  Similar limits often give the same cover, so that
    # 24 of them are enough.
    if len(limits) > 24:
        limits = np.unique(limits[np.linspace(0, len(limits) - 1, 24).astype(int)])
    best: tuple[float, tuple[Axes, ...]] = (math.inf, ())
    for max_cells in limits:
        covers = summed_cells <= max_cells
        uncovered, chosen = np.ones(len(wanted), dtype=bool), []
        while uncovered.any():
            # Greedy set cover adds the marginal that covers the most uncovered marginals.
            largest = int(np.argmax(covers[:, uncovered].sum(axis=1)))
            chosen.append(wanted[largest])
            uncovered &= ~covers[largest]
        best = min(best, (marginals_error(sizes, wanted, chosen, noise), tuple(chosen)))
    return best[1]


def marginals_error(
    sizes: Sequence[int], queried_sets: Sequence[Axes], measured: Sequence[Axes], noise: NoiseLaw
) -> float:
    """Return the sum of the variances of all cells of queried marginals; half of it for Laplace.

    The unit is counts^2.  The measured marginals have equal noise and together spend pcost 1
    (Gaussian noise) or epsilon 1 (Laplace noise).  Least squares estimates the cells of the queried
    marginals from them.  The result is infinite if the measured marginals do not determine some
    queried marginal.

    Parameters
    ----------
    sizes : number of cells of every axis.
    queried_sets : axes of every queried marginal.
    measured : axes of every measured marginal.
    noise : "gaussian" or "laplace".

    Notes
    -----
    Every residual space (one per set B of axes) is an eigenspace of two Gram matrices.  The Gram
    matrix of the queried marginals has the eigenvalue g_B on it, and the Gram matrix of the
    measured marginals has the eigenvalue l_B.  The error is the sum over B of dim(B) g_B / l_B.
    With n_i cells on axis i,

        g_B = sum over queried sets S containing B of (product over i not in S of n_i),

    and l_B is the same sum over the measured sets.

    >>> marginals_error((2, 3), [(0,), (1,)], [(0, 1)], "gaussian")
    12.0
    """
    spaces = sorted({B for axes in queried_sets for B in subsets(sorted(axes))})

    def eigenvalues(sets: Sequence[Axes]) -> Array:
        """Return one eigenvalue per residual space, for the Gram matrix of the marginals on ``sets``."""
        set_has_axis = np.array(
            [[i in axes for i in range(len(sizes))] for axes in sets], dtype=float
        ).reshape(len(sets), -1)
        space_has_axis = np.array(
            [[i in B for i in range(len(sizes))] for B in spaces], dtype=float
        ).reshape(len(spaces), -1)
        # product of the sizes of all axes outside each set, computed from their logarithms
        cells_outside = np.exp((1.0 - set_has_axis) @ np.log(np.asarray(sizes, dtype=float)))
        is_contained = space_has_axis @ (1.0 - set_has_axis).T == 0.0
        sums: Array = is_contained @ cells_outside
        return sums

    measured_values = eigenvalues(measured)
    dimensions = [math.prod(sizes[i] - 1 for i in B) for B in spaces]
    # An eigenvalue of 0 means that no measured table contains the residual space.
    if not measured_values.all():
        return math.inf
    total = float(
        np.sum(np.array(dimensions, dtype=float) * eigenvalues(queried_sets) / measured_values)
    )
    # Gaussian noise: each of k tables has pcost 1/k and variance k.  Laplace noise: each has
    # epsilon 1/k and variance 2 k^2, and half of the variance is returned.
    return total * (len(measured) ** 2 if noise == "laplace" else len(measured))
