"""Strategies that measure the areas of nested levels on one wide attribute, without matrices.

The precisions p_a of the areas and the lower bound are those of `engine.residuals.level_solver`.
pi(a) is the sum of the center over area a.  The row of area a is sqrt(p_a) (1 - pi(a)) on the cells
of a and -sqrt(p_a) pi(a) on all other cells: it measures sqrt(p_a) z(a) with noise of variance 1.
Answers and estimates take linear time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine.residuals.dual_solver import Options, Solution
from engine.residuals.level_solver import (
    AreaTree,
    LeastSquares,
    LevelGram,
    cell_costs,
    sums_upward,
)
from engine.residuals.operators import CosineMatrix, EntryRows, Operator, PrecisionMatrix
from engine.residuals.strategy import MAX_UNMEASURED_SHARE, Strategy
from engine.workload import Marginal, Part
from engine.workload.families import Areas


@dataclass(frozen=True, kw_only=True, eq=False)
class AreaRows(EntryRows):
    """Strategy matrix with one row per measured area, shape (rows, n), without its entries.

    A row has one value on the cells of its area and another value on all other cells.

    Attributes
    ----------
    tree : the areas.
    measured : index of the area of every row, shape (rows,); areas are counted level by level from
        the root, which has index 0.
    inside, outside : value of every row inside and outside its area, shape (rows,); real or
        integer.
    transposed : whether the matrix is transposed, shape (n, rows).
    """

    form: ClassVar[str] = "areas"

    tree: AreaTree
    measured: Index
    inside: npt.NDArray[Any]
    outside: npt.NDArray[Any]
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        rows, n = len(self.measured), self.tree.cells
        return (n, rows) if self.transposed else (rows, n)

    def transpose(self) -> AreaRows:
        return replace(self, transposed=not self.transposed)

    @property
    def entries(self) -> Array:
        """The values of every row inside and outside its area, shape (rows, 2)."""
        return np.column_stack([self.inside, self.outside])

    def with_entries(self, entries: npt.NDArray[Any]) -> AreaRows:
        return replace(self, inside=entries[:, 0], outside=entries[:, 1])

    @property
    def layout(self) -> Mapping[str, npt.NDArray[np.int64]]:
        tree = self.tree
        first = np.concatenate(tree.starts)
        end = np.concatenate([np.append(starts[1:], tree.cells) for starts in tree.starts])
        ranges = np.column_stack([first, end])[self.measured]
        return {"order": tree.order, "ranges": ranges}

    def column_costs(self, power: int) -> Array:
        """Return for every column the sum of |x|^power over its entries x, shape (n,)."""
        inside, outside = np.abs(self.inside) ** power, np.abs(self.outside) ** power
        return np.asarray(self._by_cell(inside - outside) + outside.sum())

    def column_products(self, cells: Index, other: int) -> Array:
        """Return the inner products of the k columns ``cells`` with column ``other``.

        The result has shape (k,).
        """
        # column ``other`` consists of the answers to a table with a single record, in this cell
        is_other = np.zeros(self.tree.cells)
        is_other[other] = 1.0
        column = self._answers(is_other)
        products = self._by_cell((self.inside - self.outside) * column)
        return np.asarray(products[cells] + float(self.outside @ column))

    def _by_cell(self, values: npt.NDArray[Any]) -> Any:
        """Return for every cell the sum of the values of all rows whose areas contain the cell.

        ``values`` has one entry per row, shape (..., rows); the result has shape (..., n).
        """
        counts = self.tree.counts
        by_area = np.zeros((*values.shape[:-1], sum(counts)), dtype=values.dtype)
        by_area[..., self.measured] = values
        sums: Any = np.zeros((*values.shape[:-1], self.tree.cells), dtype=values.dtype)
        first = 0
        for count, position in zip(counts, self.tree.position, strict=True):
            sums += by_area[..., first : first + count][..., position]
            first += count
        return sums

    def _answers(self, tensor: npt.NDArray[Any]) -> Any:
        """Return the answers of the rows to tables of shape (..., n), shape (..., rows)."""
        sums = self.tree.area_sums(tensor)
        total = sums[0]
        answers = np.concatenate(sums, axis=-1)[..., self.measured]
        return answers * (self.inside - self.outside) + total * self.outside

    def _apply(self, tensor: Array) -> Array:
        if tensor.dtype != object:  # sums of large integers could overflow
            tensor = np.asarray(tensor, float)
        if self.transposed:
            return np.asarray(self._answers(tensor))
        constant = np.sum(tensor * self.outside, axis=-1, keepdims=True)
        return np.asarray(self._by_cell(tensor * (self.inside - self.outside)) + constant)


@dataclass(frozen=True, kw_only=True, eq=False)
class AreaEstimates:
    """Least squares estimates of the cells from the answers of measured areas.

    The estimated count of an area of the last measured level is divided evenly among its cells.

    Attributes
    ----------
    tree : all areas; its last level consists of the cells.
    estimates : least squares on the areas down to the last measured level.
    measured : indices of the measured areas, counted level by level from the root with index 0.
    """

    tree: AreaTree
    estimates: LeastSquares
    measured: Index

    @cached_property
    def roots(self) -> Array:
        """Square roots of the precisions of the measured areas, shape (rows,)."""
        return np.sqrt(np.concatenate(self.estimates.precisions)[self.measured])

    @cached_property
    def sizes(self) -> Index:
        """Number of cells of every area of the last measured level."""
        return np.diff(self.estimates.tree.starts[-1], append=self.tree.cells)

    def apply_covariance(self, queries: Array) -> Array:
        """Multiply queries, shape (..., n), by the covariance matrix of the estimated cells."""
        return self._spread(self.estimates.solve(self._means(queries)))

    def _means(self, queries: Array) -> Array:
        """Return the mean entry of queries in every area of the last measured level."""
        return np.asarray(self.estimates.tree.area_sums(queries)[-1] / self.sizes)

    def _spread(self, values: Array) -> Array:
        """Divide the value of every area of the last measured level evenly among its cells."""
        return np.asarray((values / self.sizes)[..., self.estimates.tree.position[-1]])

    def cells_of(self, answers: Array) -> Array:
        """Return the estimated cells, shape (..., n), from strategy answers, shape (..., rows)."""
        measured_tree, scaled = self.estimates.tree, answers * self.roots
        by_area = np.zeros((*answers.shape[:-1], sum(measured_tree.counts)))
        by_area[..., self.measured] = scaled
        # sum of the scaled answers of an area and of all areas that contain it, level by level
        loads, first = np.zeros((*answers.shape[:-1], 1)), 0
        for count, parent in zip(measured_tree.counts, measured_tree.parent, strict=True):
            loads = loads[..., parent] + by_area[..., first : first + count]
            first += count
        return self._spread(self.estimates.solve(loads))

    def answers_of(self, queries: Array) -> Array:
        """Return the weights of the strategy answers in the estimates of queries.

        ``queries`` has shape (..., n), and the result has shape (..., rows).
        """
        sums = sums_upward(self.estimates.tree, self.estimates.solve(self._means(queries)))
        return np.asarray(np.concatenate(sums, axis=-1)[..., self.measured] * self.roots)


@dataclass(frozen=True, kw_only=True, eq=False)
class AreaReconstruction(Operator):
    """Matrix that estimates residual coordinates from strategy answers, shape (n - 1, rows).

    Its entries are not stored.
    """

    areas: AreaEstimates
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        rows, coordinates = len(self.areas.measured), self.areas.tree.cells - 1
        return (rows, coordinates) if self.transposed else (coordinates, rows)

    def transpose(self) -> AreaReconstruction:
        return replace(self, transposed=not self.transposed)

    def _apply(self, tensor: Array) -> Array:
        N = CosineMatrix(cells=self.areas.tree.cells)
        if self.transposed:
            return np.asarray(self.areas.cells_of(tensor) @ N)
        return self.areas.answers_of(np.asarray(tensor @ N.T))


@dataclass(frozen=True, kw_only=True, eq=False)
class AreaCovariance(Operator):
    """Covariance matrix of the estimated residual coordinates at noise scale 1, (n - 1, n - 1).

    Its entries are not stored.
    """

    areas: AreaEstimates

    @property
    def shape(self) -> tuple[int, int]:
        return (self.areas.tree.cells - 1,) * 2

    def transpose(self) -> AreaCovariance:
        return self

    def _apply(self, tensor: Array) -> Array:
        N = CosineMatrix(cells=self.areas.tree.cells)
        return np.asarray(self.areas.apply_covariance(np.asarray(tensor @ N.T)) @ N)


@dataclass(frozen=True, kw_only=True, eq=False)
class AreaPrecision(PrecisionMatrix):
    """Precision matrix B^T B of the table without its total, shape (n, n), for strategy rows B.

    Its entries are not stored.
    """

    rows: AreaRows

    @property
    def shape(self) -> tuple[int, int]:
        return (self.rows.shape[1],) * 2

    @property
    def diagonal(self) -> Array:
        return self.rows.column_costs(2)

    def _apply(self, tensor: Array) -> Array:
        return np.asarray((tensor @ self.rows.T) @ self.rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelStrategy(Strategy):
    """Strategy that measures the count of areas, each minus a fixed share of the total.

    The share of an area is the sum of the attribute's center over its cells.  Rows and
    reconstruction are operators, so that no matrix is stored for a wide attribute.
    """

    rows: AreaRows  # type: ignore[assignment]
    pinv: AreaReconstruction  # type: ignore[assignment]

    @property
    def _areas(self) -> AreaEstimates:
        return self.pinv.areas

    @property
    def is_finite(self) -> bool:
        entries = (self.rows.inside, self.rows.outside, self._areas.roots)
        return all(bool(np.isfinite(numbers).all()) for numbers in entries)

    def column_costs(self, law: str) -> Array:
        return self.rows.column_costs(1 if law == "laplace" else 2)

    def column_gram(self) -> Array:
        rows = self.rows.dense()
        return np.asarray(rows.T @ rows)

    def column_products(self, cells: Index, other: int) -> tuple[Array, float, Array]:
        squares = self.column_costs("gaussian")
        return squares[cells], float(squares[other]), self.rows.column_products(cells, other)

    @property
    def tree(self) -> AreaTree:
        """All areas, measured or not; the last level consists of the cells."""
        return self._areas.tree

    def product_range(self, level: int) -> tuple[float, float]:
        """Return bounds (low, high) on the inner product of the columns of two different cells.

        The bounds hold for all pairs of cells whose smallest common area is on ``level``.
        """
        rows, measured_tree = self.rows, self.rows.tree
        if level > measured_tree.depth:  # the two columns are equal
            costs = self.column_costs("gaussian")
            return float(costs.min()), float(costs.max())
        outside, difference = np.asarray(rows.outside), rows.inside - rows.outside
        # Row r has the value outside_r + difference_r on the cells of its area and outside_r on the
        # other cells.  So the product of two columns is |outside|^2, plus the sum of difference^2
        # over the areas with both cells, plus the entries of ``cell_sums`` of both cells.
        cell_sums = rows._by_cell(difference * outside)[measured_tree.order]
        squares = np.zeros(sum(measured_tree.counts))
        squares[rows.measured] = difference**2
        shared = np.zeros(1)
        # ``parent`` also has the levels below ``level``
        for by_area, parent in zip(
            measured_tree.split(squares)[: level + 1], measured_tree.parent, strict=False
        ):
            shared = shared[parent] + by_area
        starts, common = measured_tree.starts[level], float(outside @ outside)
        low = shared + 2.0 * np.minimum.reduceat(cell_sums, starts)
        high = shared + 2.0 * np.maximum.reduceat(cell_sums, starts)
        return float(low.min()) + common, float(high.max()) + common

    @cached_property
    def column_norm(self) -> float:
        return math.sqrt(float(self.column_costs("gaussian").max()))

    @cached_property
    def column_sum(self) -> float:
        return float(self.column_costs("laplace").max())

    @cached_property
    def rounding_terms(self) -> int:
        # An answer is (inside - outside) * count + outside * total, for the count of the area.  An
        # answer has at most 4 roundings more than the count and the total.  A record adds at most
        # |inside| + 2 |outside| to the sum of the absolute values.
        rows = self.rows
        inside, outside = np.abs(rows.inside) + 2.0 * np.abs(rows.outside), np.abs(rows.outside)
        absolute = replace(rows, inside=inside, outside=outside).column_costs(2)
        terms = self.rows.tree.summands + 4
        return math.ceil(terms * math.sqrt(float(absolute.max())) / self.column_norm)

    @property
    def answer_rows(self) -> AreaRows:  # type: ignore[override]
        return self.rows

    @property
    def covariance(self) -> AreaCovariance:  # type: ignore[override]
        return AreaCovariance(areas=self._areas)

    @cached_property
    def cell_covariance(self) -> Array:
        N = CosineMatrix(cells=self.cells)
        return np.asarray(N @ self.covariance.dense() @ N.T)

    @property
    def coordinate_trace(self) -> float:
        return float(self._variances_of_level(self.tree.depth).sum())

    @property
    def precision(self) -> AreaPrecision | None:
        return AreaPrecision(rows=self.rows) if self.complete else None

    @property
    def rank(self) -> int:
        return self._areas.estimates.tree.counts[-1] - 1

    @cached_property
    def span(self) -> Array:
        position = self._areas.estimates.tree.position[-1]
        indicators = np.zeros((self.rank + 1, self.cells))
        indicators[position, np.arange(self.cells)] = 1.0 / np.sqrt(self._areas.sizes[position])
        # in residual coordinates the rows sum to 0, so the last one depends on the rows before it
        residual = np.asarray(indicators @ CosineMatrix(cells=self.cells))
        return np.asarray(np.linalg.qr(residual.T[:, : self.rank])[0])

    def leaves_span(self, residual_rows: Array) -> npt.NDArray[np.bool_]:
        rows = np.asarray(residual_rows @ CosineMatrix(cells=self.cells).T)
        areas = self._areas
        outside = rows - areas._spread(areas.estimates.tree.area_sums(rows)[-1])
        norms = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
        leaving: npt.NDArray[np.bool_] = (
            np.linalg.norm(outside, axis=1) > MAX_UNMEASURED_SHARE * norms
        )
        return leaving

    def total_variance(self, gram: LevelGram) -> float:
        """Return the sum of weight times variance of all areas at noise scale 1, in counts^2.

        All levels with positive weights in ``gram`` must be measured.
        """
        # levels below the last measured level have no variances here, and weight 0
        return math.fsum(
            float(weights @ v)
            for weights, v in zip(gram.weights, self._areas.estimates.variances, strict=False)
        )

    def query_variances(self, part: Part) -> Array:
        if (levels := self._levels_of(part)) is not None:
            return np.concatenate(
                [self._variances_of_level(level)[areas] for level, areas in levels]
            )
        variances = [
            np.einsum("qc,qc->q", rows, self._areas.apply_covariance(rows))
            for _, rows in part.family.chunks(part.sizes)
        ]
        return np.asarray(np.maximum(np.concatenate(variances), 0.0))

    def covers(self, part: Part) -> bool:
        levels, depth = self._levels_of(part), self._areas.estimates.tree.depth
        return levels is not None and all(level <= depth for level, _ in levels)

    def _levels_of(self, part: Part) -> list[tuple[int, Index]] | None:
        """Return which areas of the tree the queries of a family count.

        The result has one pair per level of the family: the level in the tree, and the index in
        this level of the area of every query, shape (queries of the level,).  The result is None if
        the family has other queries than areas or the marginal, or a level that is not in the tree.
        """
        if isinstance(part.family, Areas) and part.family.selection is not None:
            partitions = part.family.selection.areas
        elif part.family.key == Marginal().key:
            partitions = (np.arange(self.cells),)
        else:
            return None
        tree, levels = self._areas.tree, list[tuple[int, Index]]()
        # For every level that is queried, find the level of the tree with the same areas. Both
        # arrays, ``area_of_cell`` and ``position``, have the index of the area of every cell.
        for area_of_cell in partitions:
            queries = int(area_of_cell.max()) + 1
            for level, position in enumerate(tree.position):
                # ``areas`` has, for every query, the tree's area that contains one of its cells.
                # Both levels have the same areas if this area contains exactly the query's cells.
                areas = np.empty(queries, dtype=np.int64)
                areas[area_of_cell] = position
                if tree.counts[level] == queries and np.array_equal(areas[area_of_cell], position):
                    levels.append((level, areas))
                    break
        return levels if len(levels) == len(partitions) else None

    def _variances_of_level(self, level: int) -> Array:
        """Return the variance of every area of one level of the tree at noise scale 1."""
        tree, estimates = self._areas.tree, self._areas.estimates
        depth = estimates.tree.depth
        if level <= depth:
            return estimates.variances[level]
        # the estimate of a measured area is divided evenly among its cells
        sizes = np.diff(tree.starts[level], append=tree.cells)
        measured = estimates.tree.position[depth][tree.order[tree.starts[level]]]
        shares = sizes / self._areas.sizes[measured]
        return np.asarray(shares**2 * estimates.variances[depth][measured])


def level_solution(gram: LevelGram, options: Options, dual: Array | None = None) -> Solution:
    """Return the strategy that measures areas with optimal precisions, for the uniform center.

    Parameters
    ----------
    gram : weights of the areas.
    options : stopping rule of the search.
    dual : the ``dual`` of an earlier solution; if given, it determines the strategy without a
        search.
    """
    problem = gram.problem
    tree, status = problem.tree, "optimal"
    if dual is None:
        dual, status = problem.solve(
            gap=options.gap, evaluations=options.evaluations, deadline=options.deadline
        )
    levels, mass = problem.unpack(dual)
    precisions = np.concatenate(levels[1:])
    estimates = LeastSquares(tree=tree, precisions=levels)
    measured = 1 + np.flatnonzero(precisions)
    roots = np.sqrt(precisions[measured - 1])
    # sum of the center's entries over the cells of every measured area
    area_shares = np.concatenate(problem.center)[measured]
    rows = AreaRows(
        tree=tree,
        measured=measured,
        inside=roots * (1.0 - area_shares),
        outside=-roots * area_shares,
    )
    reconstruction = AreaReconstruction(
        areas=AreaEstimates(tree=gram.tree, estimates=estimates, measured=measured)
    )
    strategy = LevelStrategy(
        sizes=(gram.cells,),
        rows=rows,
        pinv=reconstruction,
        complete=tree.counts[-1] == gram.cells,
    )
    # the bound is computed for one area per class of equivalent areas
    mass_of_class = np.bincount(problem.classes[-1], mass).astype(float)
    return Solution(
        strategy=strategy,
        value=problem.total(estimates) * float(cell_costs(tree, levels, problem.center).max()),
        bound=problem.quotient.root_bound(mass_of_class) ** 2,
        dual=dual,
        status=status,
    )


def level_weights(gram: LevelGram, dual: Array) -> Array:
    """Return the weights of the cells that prove the lower bound of a solution, shape (n,), sum 1.

    ``dual`` is the ``dual`` of a result of `level_solution`.
    """
    problem = gram.problem
    tree, (_, mass) = problem.tree, problem.unpack(dual)
    sizes = np.diff(tree.starts[-1], append=tree.cells)
    return np.asarray((mass / sizes)[tree.position[-1]])
