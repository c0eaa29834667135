"""Strategies for the areas of nested levels on one attribute, in linear time per evaluation.

A hierarchy divides the n cells of an attribute into areas: level 1 is the coarsest partition, every
level refines the one before, and the last level consists of the cells.  The queries count the
records of areas, with one weight per area.  On the residual space with center pi, the query of area
a counts z(a), where z = x - pi 1^T x is the table x without its total and z(a) is the sum of z over
the cells of a.  The entries of z have sum 0.

The strategy measures z(a) for every area a with precision p_a, that is with noise of variance
1 / p_a.  The value of the root is 0.  The variances of the least squares estimates are computed in
one pass from the cells to the root (u_a, s_a) and one pass from the root to the cells (v_c):

    u_a = s_a / (1 + p_a s_a),   s_a = sum of u_c over the children c of a   (u_a = 1 / p_a for cells)
    v_c = (u_c / s_a)^2 v_a + u_c - u_c^2 / s_a                              (v = 0 for the root)

u_a is the variance of z(a) estimated from the measurements of a and of the areas inside a.  v_a is
the variance of z(a) estimated from all measurements.
A record in cell i has the privacy cost

    c_i = sum of p_a (1 - 2 pi(a)) over the areas a that contain i,  plus  sum of p_a pi(a)^2 over
    all a.

The precisions minimise the weighted sum of the v_a at max c_i = 1, by a quasi-Newton method on
log p with a smooth maximum.  The weights mu that the smooth maximum gives to the cells prove a
lower bound for all strategies, as in `engine.residuals.interval_solver`: f(mu)^2 with f(mu) = tr (G
K)^(1/2), where G is the Gram of the queries in terms of z and K = sum of mu_i (e_i - pi)(e_i -
pi)^T.  By the quadrature of the inverse square root, f = sum_j w_j tr G (K^-1 + s_j G)^-1.  Each of
these inverses is the covariance of z if area a of weight g_a is measured with precision s_j g_a and
cell i with the additional precision 1 / mu_i, plus a rank-one term that vanishes for mu = pi.

If all cells have weights, the error of the best precisions is within about 1e-4 of the optimum of
all strategies.  If the only queries are a few areas of very different sizes, it is within 1%.

Source: least squares on trees as in Hay et al., PVLDB 3 (2010), and Cumings-Menon and Zhuravlev,
arXiv 2404.13164; the optimal precisions and the certificate are our work.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine._clock import planning_time
from engine.residuals.interval_solver import inverse_root_quadrature
from engine.residuals.operators import CosineMatrix, Operator
from engine.workload import AreaWeights

# sharpness of the smooth maximum in every round of the search; a round starts from the result of
# the round before
SHARPNESS = (10.0, 50.0, 200.0, 1e3, 5e3, 2e4, 1e5)
# number of earlier steps that the quasi-Newton method combines
HISTORY = 20
# largest number of steps of the quasi-Newton method in a round
MAX_STEPS = 200
# smallest weight of a cell in the lower bound, as a multiple of the uniform weight 1/n
MIN_SHARE = 1e-6
# Areas above the last level are not measured if their precision is below this share of the largest
# precision.  On the last level, smaller precisions are raised to this share.
MIN_PRECISION = 1e-6
# The search ends at this relative RMSE gap even if a smaller one is required, because independent
# measurements of areas cannot always reach the optimum of all strategies.
SEARCH_GAP = 1e-4
# a round ends when a step decreases its objective, which is a logarithm, by less than this share
MIN_GAIN = 1e-9

Levels = list[Array]  # one array per level, from the root to the cells, shape (areas of the level,)


@dataclass(frozen=True, kw_only=True, eq=False)
class AreaTree:
    """Areas of nested levels over the cells of one attribute.

    Cells are sorted so that every area is a range of cells, and areas are numbered in this order.
    Level 0 is the root, the total of all cells.

    Attributes
    ----------
    area_of_cell : for every level after the root, from coarse to fine, the index of the area that
        contains each cell, shape (n,).  The areas of the last level may have several cells.
    copies : if equal siblings are merged into one area, the number of siblings that every area
        represents, one array per level.  None if no areas are merged.
    """

    area_of_cell: tuple[Index, ...]
    copies: tuple[Array, ...] | None = None

    @cached_property
    def order(self) -> Index:
        """Indices of the cells, sorted so that every area is a range of cells, shape (n,)."""
        return np.lexsort(self.area_of_cell[::-1])

    @cached_property
    def starts(self) -> tuple[Index, ...]:
        """For every level, the position in ``order`` at which each area begins, shape (areas,)."""
        starts = [np.zeros(1, dtype=np.int64)]
        is_new = np.zeros(self.cells, dtype=bool)
        is_new[0] = True
        for areas in self.area_of_cell:
            sorted_areas = areas[self.order]
            is_new[1:] |= sorted_areas[1:] != sorted_areas[:-1]
            starts.append(np.flatnonzero(is_new))
        return tuple(starts)

    @cached_property
    def first_child(self) -> tuple[Index, ...]:
        """For every level except the last: for each area, the index of its first child.

        Children are areas of the next finer level.
        """
        return tuple(
            np.searchsorted(fine, coarse)
            for coarse, fine in zip(self.starts, self.starts[1:], strict=False)
        )

    @cached_property
    def parent(self) -> tuple[Index, ...]:
        """For every level: for each area, the index of its parent in the level before.

        The entry of the root, which has no parent, is 0.
        """
        parents = [np.zeros(1, dtype=np.int64)]
        for first, starts in zip(self.first_child, self.starts[1:], strict=True):
            children = np.diff(first, append=len(starts))
            parents.append(np.repeat(np.arange(len(first)), children))
        return tuple(parents)

    @cached_property
    def position(self) -> tuple[Index, ...]:
        """For every level, the index of the area that contains each cell, shape (n,).

        Areas are numbered as in ``starts``; the cells are in their original order.
        """
        positions = []
        for starts in self.starts:
            counts = np.diff(starts, append=self.cells)
            position = np.empty(self.cells, dtype=np.int64)
            position[self.order] = np.repeat(np.arange(len(starts)), counts)
            positions.append(position)
        return tuple(positions)

    @property
    def cells(self) -> int:
        """Number of cells n."""
        return len(self.area_of_cell[0])

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of areas of every level; 1 for the root."""
        return tuple(map(len, self.starts))

    @property
    def depth(self) -> int:
        """Number of levels after the root."""
        return len(self.area_of_cell)

    @cached_property
    def key(self) -> str:
        """Hash of the areas; trees with equal keys have the same areas in the same order."""
        digest = hashlib.sha256()
        for position in self.position:
            digest.update(np.ascontiguousarray(position).tobytes())
        return digest.hexdigest()

    def truncated(self, depth: int) -> AreaTree:
        """Return the tree without the levels that are finer than level ``depth``."""
        return self if depth == self.depth else AreaTree(area_of_cell=self.area_of_cell[:depth])

    def split(self, values: Array) -> Levels:
        """Split values of all areas, shape (areas,), into one array per level, the root first."""
        return np.split(values, np.cumsum(self.counts)[:-1])

    def area_sums(self, table: npt.NDArray[Any]) -> list[Any]:
        """Return the count of every area, one array per level, from tables of shape (..., n).

        The array of a level with k areas has shape (..., k).  The count of an area is computed as
        the sum of the counts of its children, because this takes fewer roundings than a sum of all
        cells.
        """
        sums = [np.add.reduceat(table[..., self.order], self.starts[-1], axis=-1)]
        for level in reversed(range(self.depth)):
            sums.append(self.upward(sums[-1], level))
        return sums[::-1]

    @cached_property
    def summands(self) -> int:
        """Upper bound on the number of roundings of the value of a cell in `area_sums`.

        The bound is the sum over all levels of the largest number of children of an area.
        """
        # the children of the areas of the last level are their cells
        first_children = [*self.first_child, self.starts[-1]]
        numbers_of_children = [*self.counts[1:], self.cells]
        return sum(
            int(np.diff(first, append=count).max())
            for first, count in zip(first_children, numbers_of_children, strict=True)
        )

    def upward(self, values: Array, level: int) -> Array:
        """Return for every area of a level the sum of its children's ``values``.

        The last axis of ``values`` belongs to the areas of the next finer level.
        """
        return np.add.reduceat(values, self.first_child[level], axis=-1)

    def child_sums(self, values: Array, level: int) -> Array:
        """Return for every area of a level the sum of its children's values.

        A child that represents k equal siblings (``copies``) counts k times.
        """
        return self.upward(self.repeated(values, level + 1), level)

    def repeated(self, values: Array, level: int) -> Array:
        """Multiply the values of a level by ``copies``, the numbers of equal siblings."""
        return values if self.copies is None else values * self.copies[level]

    @cached_property
    def numbers(self) -> tuple[Array, ...]:
        """For every level, how many equal areas each area represents; all 1 without ``copies``."""
        if self.copies is None:
            return tuple(map(np.ones, self.counts))
        numbers = [np.ones(1)]
        for copies, parent in zip(self.copies[1:], self.parent[1:], strict=True):
            numbers.append(numbers[-1][parent] * copies)
        return tuple(numbers)


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelGram:
    """Gram of the counts of areas, with one weight per area.

    Attributes
    ----------
    tree : the areas; its last level consists of the cells.
    weights : weight of every area, at least 0, one array per level; level 0 is the total.
    """

    tree: AreaTree
    weights: tuple[Array, ...]

    @classmethod
    def of(cls, area_weights: AreaWeights) -> LevelGram:
        """Return the Gram of weighted areas."""
        tree = area_tree(area_weights.levels)
        weights = [np.zeros(1)]
        for position, areas, values in zip(
            tree.position[1:], area_weights.levels, area_weights.weights, strict=True
        ):
            by_area = np.empty(int(position.max()) + 1)
            by_area[position] = values[areas]
            weights.append(by_area)
        return cls(tree=tree, weights=tuple(weights))

    def marginal(self, weight: float) -> LevelGram:
        """Return the Gram of all cells with this ``weight``; all other areas have weight 0."""
        weights = [np.zeros(count) for count in self.tree.counts[:-1]]
        return LevelGram(tree=self.tree, weights=(*weights, np.full(self.tree.counts[-1], weight)))

    def __add__(self, other: LevelGram) -> LevelGram:
        if other.tree.key != self.tree.key:
            raise ValueError(
                "The Grams are of two different hierarchies, so their sum is not a Gram with one weight per"
                " area. Add their dense matrices."
            )
        weights = tuple(a + b for a, b in zip(self.weights, other.weights, strict=True))
        return LevelGram(tree=self.tree, weights=weights)

    def __mul__(self, scale: float) -> LevelGram:
        return LevelGram(tree=self.tree, weights=tuple(scale * w for w in self.weights))

    __rmul__ = __mul__

    @property
    def cells(self) -> int:
        """Number of cells of the attribute."""
        return self.tree.cells

    @cached_property
    def problem(self) -> LevelProblem:
        """Optimization problem of the precisions of all areas, for the uniform center."""
        return LevelProblem.of(self)

    @property
    def largest_weight(self) -> float:
        """Largest weight of an area, without the total."""
        return max(float(weights.max()) for weights in self.weights[1:])

    def key(self, scale: float) -> tuple[str, bytes]:
        """Return a key of the tree and of the weights divided by ``scale``.

        Weights are rounded, so Grams that differ only by rounding errors mostly have equal keys.
        The weight of the total is left out, because residual Grams do not depend on it.
        """
        digest = hashlib.sha256()
        for weights in self.weights[1:]:
            digest.update(_rounded(weights / scale).tobytes())
        return self.tree.key, digest.digest()

    def product(self, table: Array) -> Array:
        """Multiply tables, shape (..., n), by the Gram W^T W of the weighted areas W."""
        sums = self.tree.area_sums(table)
        product = np.zeros(table.shape)
        for weights, values, position in zip(self.weights, sums, self.tree.position, strict=True):
            if weights.any():
                product += (weights * values)[..., position]
        return product

    def total_square(self, pi: Array) -> float:
        """Return the weighted sum of the squared counts of all areas in the table ``pi``."""
        return math.fsum(
            float(weights @ values**2)
            for weights, values in zip(self.weights, self.tree.area_sums(pi), strict=True)
        )

    def residual_trace(self) -> float:
        """Return the trace of the residual Gram for the uniform center, in counts^2."""
        sizes = self.tree.area_sums(np.ones(self.cells))
        return math.fsum(
            # the query of an area of k cells minus its mean k/n has the squared norm k (1 - k/n)
            float(np.sum(weights * k * (1.0 - k / self.cells)))
            for weights, k in zip(self.weights[1:], sizes[1:], strict=True)
        )


@lru_cache(maxsize=16)
def _cached_tree(levels: tuple[bytes, ...]) -> AreaTree:
    return AreaTree(area_of_cell=tuple(np.frombuffer(level, np.int64) for level in levels))


def area_tree(levels: Sequence[Index]) -> AreaTree:
    """Return the tree of nested levels.

    ``levels`` has for every level, from coarse to fine, the index of the area of each cell, shape
    (n,).  Trees are cached.
    """
    return _cached_tree(tuple(np.ascontiguousarray(level, np.int64).tobytes() for level in levels))


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelMatrix(Operator):
    """Residual Gram N^T W^T W N of weighted areas W, shape (n - 1, n - 1), without its entries.

    N is the cosine basis.
    """

    gram: LevelGram

    @property
    def shape(self) -> tuple[int, int]:
        return self.gram.cells - 1, self.gram.cells - 1

    def transpose(self) -> LevelMatrix:
        return self

    @property
    def trace(self) -> float:
        """Sum of the diagonal, in counts^2."""
        return self.gram.residual_trace()

    def _apply(self, tensor: Array) -> Array:
        N = CosineMatrix(cells=self.gram.cells)
        return np.asarray(self.gram.product(tensor @ N.T) @ N)


@dataclass(frozen=True, kw_only=True, eq=False)
class LeastSquares:
    """Least squares estimates of area counts without the total, from measurements of all areas.

    The estimated table z has sum 0.  The recurrences are those of the module's docstring.

    Attributes
    ----------
    tree : the areas.
    precisions : inverse variance of the measurement of every area, one array per level.  Entries of
        the last level are positive.  Entries of other levels may be 0, and level 0 is ignored.
    """

    tree: AreaTree
    precisions: Levels
    inside: Levels = field(init=False)  # u: see the module's docstring; 0 for the root
    children: Levels = field(init=False)  # s: sum of u over the children of every area

    def __post_init__(self) -> None:
        tree, u, s = self.tree, 1.0 / self.precisions[-1], list[Array]()
        inside = [u]
        for level in reversed(range(tree.depth)):
            s.append(tree.child_sums(u, level))
            u = s[-1] / (1.0 + self.precisions[level] * s[-1]) if level else np.zeros(1)
            inside.append(u)
        object.__setattr__(self, "inside", inside[::-1])
        object.__setattr__(self, "children", s[::-1])

    @cached_property
    def shares(self) -> Levels:
        """Ratio u_c / s_a of every area c with parent a, one array per level; 0 for the root.

        If the estimate of the parent changes, its child c gets this share of the change.
        """
        return [np.zeros(1)] + [
            u / s[parent]
            for u, s, parent in zip(
                self.inside[1:], self.children, self.tree.parent[1:], strict=True
            )
        ]

    @cached_property
    def variances(self) -> Levels:
        """Variance of the estimated z(a) of every area a, one array per level; 0 for the root."""
        variances = [np.zeros(1)]
        for u, share, parent in zip(
            self.inside[1:], self.shares[1:], self.tree.parent[1:], strict=True
        ):
            variances.append(share**2 * variances[-1][parent] + u * (1.0 - share))
        return variances

    def gradient(self, weights: Sequence[Array]) -> Levels:
        """Return the derivatives of the weighted sum of variances with respect to the precisions.

        ``weights`` and the result have one array per level.
        """
        tree, shares, variances = self.tree, self.shares, self.variances
        # A child c of area a has the variance v_c = (u_c / s_a)^2 v_a + u_c - u_c^2 / s_a, with the
        # sum s_a of u over the children of a (``self.children``). ``shares`` are the u_c / s_a.
        # ``by_variance``: derivative of the weighted sum with respect to the variance v_a of every
        # area, from the cells up, because the variances of the children depend on v_a.
        by_variance = [weights[-1]]
        for level in reversed(range(tree.depth)):
            below = tree.upward(by_variance[-1] * shares[level + 1] ** 2, level)
            by_variance.append(weights[level] + below)
        by_variance.reverse()
        # ``by_inside``: derivative of the weighted sum of variances with respect to u_a
        # (``self.inside``) of every area, from the root down
        by_inside, by_precision = np.zeros(1), [np.zeros(1)]
        for level in range(1, tree.depth + 1):
            parent, share, s = tree.parent[level], shares[level], self.children[level - 1]
            variance_ratio = (variances[level - 1] / s)[parent]
            by_children = tree.upward(
                by_variance[level] * share**2 * (1.0 - 2.0 * variance_ratio), level - 1
            )
            if level > 1:  # u_a = s_a / (1 + p_a s_a)
                by_children += by_inside * (self.inside[level - 1] / s) ** 2
            by_inside = by_variance[level] * (2.0 * share * variance_ratio + 1.0 - 2.0 * share)
            by_inside += tree.repeated(by_children[parent], level)
            by_precision.append(-by_inside * self.inside[level] ** 2)
        return by_precision

    def solve(self, loads: Array) -> Array:
        """Multiply vectors by the covariance matrix of the estimates on the last level.

        ``loads`` and the result have shape (..., areas of the last level).
        """
        tree, gains = self.tree, [loads * self.inside[-1]]
        sums = list[Array]()
        # from the cells to the root: products that use only the measurements inside every area
        for level in reversed(range(tree.depth)):
            sums.append(tree.child_sums(gains[-1], level))
            gains.append(sums[-1] / (1.0 + self.precisions[level] * self.children[level]))
        gains.reverse()
        sums.reverse()
        # from the root to the cells: products that use all measurements
        z = np.zeros((*loads.shape[:-1], 1))
        for level in range(1, tree.depth + 1):
            difference = z - sums[level - 1]
            z = gains[level] + self.shares[level] * difference[..., tree.parent[level]]
        return z


def _rounded(numbers: Array) -> Array:
    """Round every number to 40 binary digits, so that most rounding errors vanish."""
    mantissas, exponents = np.frexp(numbers)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissas, 40)), exponents - 40))


def cell_costs(tree: AreaTree, precisions: Levels, center: Levels) -> Array:
    """Return the privacy cost of a record in every area of the last level, shape (areas,).

    ``precisions`` of the areas, and ``center`` summed over every area, have one array per level.
    """
    costs, common = np.zeros(1), 0.0
    for p, pi, parent, number in zip(
        precisions[1:], center[1:], tree.parent[1:], tree.numbers[1:], strict=True
    ):
        costs = costs[parent] + p * (1.0 - 2.0 * pi)
        common += float((number * p) @ pi**2)
    return costs + common


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelProblem:
    """Optimisation problem of the precisions of all areas, and its lower bound.

    Attributes
    ----------
    tree : the areas, down to the finest level with a weight.
    weights : weight of every area, one array per level; 0 for the root, which has no residual part.
    center : sum of the center over every area, one array per level.
    """

    tree: AreaTree
    weights: Levels
    center: Levels

    @classmethod
    def of(cls, gram: LevelGram) -> LevelProblem:
        """Return the problem for the weighted areas of ``gram`` and the uniform center."""
        depth = max(level for level, weights in enumerate(gram.weights) if weights.any())
        tree = gram.tree.truncated(depth)
        center = tree.area_sums(np.full(tree.cells, 1.0 / tree.cells))
        return cls(tree=tree, weights=[np.zeros(1), *gram.weights[1 : depth + 1]], center=center)

    def error(self, precisions: Levels) -> float:
        """Return the weighted sum of the variances of all areas measured with these precisions."""
        return self.total(LeastSquares(tree=self.tree, precisions=precisions))

    def total(self, estimates: LeastSquares) -> float:
        """Return the weighted sum of the variances of all areas under these estimates."""
        return math.fsum(
            float(weights @ v)
            for weights, v in zip(self.total_weights, estimates.variances, strict=True)
        )

    @cached_property
    def total_weights(self) -> Levels:
        """Weight of every area times the number of equal areas it represents, by level."""
        return [w * number for w, number in zip(self.weights, self.tree.numbers, strict=True)]

    @cached_property
    def classes(self) -> tuple[Index, ...]:
        """For every level, the index of the equivalence class of every area.

        Two areas are equivalent if their parents are equivalent and the areas themselves, with all
        areas inside them, have equal weights and centers.
        """
        tree, classes = self.tree, [np.zeros(1, dtype=np.int64)]
        # areas of one class are of one kind, and their parents are of one class
        for level, kind in enumerate(self._kinds(), 1):
            _, kind_numbers = np.unique(kind, return_inverse=True)
            pairs = classes[-1][tree.parent[level]] * len(kind) + kind_numbers
            classes.append(np.unique(pairs, return_inverse=True)[1])
        return tuple(classes)

    def _kinds(self) -> list[Index]:
        """Return for every level after the root the index of the kind of every area.

        Two areas of the last level are of one kind if their weights and centers are equal.  Two
        areas of another level are of one kind if their weights and the kinds of their children are
        equal.  Unlike `classes`, kinds do not depend on the parents.
        """
        tree, scale = self.tree, max(float(weights.max()) for weights in self.weights)
        # indices of the different weights and of the different centers of the last level
        weight_index, center_index = (
            np.unique(_rounded(values / unit), return_inverse=True)[1]
            for values, unit in ((self.weights[-1], scale), (self.center[-1], 1.0))
        )
        kinds = [weight_index * tree.counts[-1] + center_index]
        for level in reversed(range(1, tree.depth)):
            # kinds of the children of every area, sorted, one area after the other
            child_kinds = kinds[-1][np.lexsort((kinds[-1], tree.parent[level + 1]))]
            starts = [*tree.first_child[level].tolist(), len(child_kinds)]
            weights = _rounded(self.weights[level] / scale).tolist()
            index_of_kind = dict[tuple[float, bytes], int]()
            kinds.append(
                np.array(
                    [
                        index_of_kind.setdefault(
                            (weight, child_kinds[start:end].tobytes()), len(index_of_kind)
                        )
                        for weight, (start, end) in zip(weights, pairwise(starts), strict=True)
                    ]
                )
            )
        return kinds[::-1]

    @cached_property
    def quotient(self) -> LevelProblem:
        """Smaller problem with the same optimum: one area per equivalence class of equal areas.

        Equivalent areas have equal precisions at an optimum, because error and cost are convex in
        the precisions and do not change if equivalent areas are exchanged.
        """
        tree, classes = self.tree, self.classes
        # index of the first area of every class, and the class of its parent
        first_areas = [np.unique(numbers, return_index=True)[1] for numbers in classes]
        parents = [
            above[parent[first]]
            for above, parent, first in zip(classes, tree.parent[1:], first_areas[1:], strict=False)
        ]
        # each class of areas on the last level of the tree is one cell of the smaller problem
        area_of_cell = [np.arange(len(first_areas[-1]))]
        for parent in reversed(parents[1:]):
            area_of_cell.insert(0, parent[area_of_cell[0]])
        # number of areas of every class
        sizes = [np.bincount(numbers).astype(float) for numbers in classes]
        # number of areas of a class per area of its parent class
        copies = [
            size / above[p] for size, above, p in zip(sizes[1:], sizes, parents, strict=False)
        ]
        return LevelProblem(
            tree=AreaTree(area_of_cell=tuple(area_of_cell), copies=(np.ones(1), *copies)),
            weights=[w[first] for w, first in zip(self.weights, first_areas, strict=True)],
            center=[pi[first] for pi, first in zip(self.center, first_areas, strict=True)],
        )

    def smoothed(self, logs: Array, sharpness: float) -> tuple[float, Array, Array]:
        """Return log(error * smooth maximum of the privacy costs), its gradient and dual weights.

        ``logs`` are the logarithms of the precisions of all areas except the root, shape (areas,).
        The smooth maximum is the power mean of order ``sharpness`` over areas of the last level.

        Returns
        -------
        value : the logarithm.
        gradient : derivative of ``value`` with respect to ``logs``, shape (areas,).
        mass : derivative of the smooth maximum with respect to the privacy costs on the last level,
            scaled to sum 1, shape (areas of the last level,).  If an area represents several equal
            areas, its entry is their sum.
        """
        tree = self.tree
        precisions = [np.zeros(1), *tree.split(np.concatenate([np.zeros(1), np.exp(logs)]))[1:]]
        estimates = LeastSquares(tree=tree, precisions=precisions)
        error, costs = self.total(estimates), cell_costs(tree, precisions, self.center)
        # costs are divided by the largest, so that high powers cannot overflow
        largest = float(costs.max())
        ratios = costs / largest
        powers, numbers = ratios ** (sharpness - 1.0), tree.numbers
        power_sum = float((numbers[-1] * powers) @ ratios)
        by_cost = powers / (power_sum * largest)
        total = float(numbers[-1] @ by_cost)
        # The measurement of area a costs p_a pi(a)^2 in every cell, and p_a (1 - 2 pi(a)) more in
        # the cells of a.  ``m`` is the sum of ``by_cost`` over the cells of an area.
        gradient = []
        for p, by_error, m, pi, number in zip(
            precisions[1:],
            estimates.gradient(self.total_weights)[1:],
            sums_upward(tree, by_cost)[1:],
            self.center[1:],
            numbers[1:],
            strict=True,
        ):
            by_maximum = number * (m * (1.0 - 2.0 * pi) + total * pi**2)
            gradient.append(p * (by_error / error + by_maximum))
        maximum = math.log(largest) + math.log(power_sum / numbers[-1].sum()) / sharpness
        mass = numbers[-1] * by_cost / total
        return math.log(error) + maximum, np.concatenate(gradient), mass

    def root_bound(self, mass: Array) -> float:
        """Return f(mu), the root of a lower bound on the weighted sum of variances.

        The bound f(mu)^2 holds for every strategy.  ``mass`` holds the weights mu of the areas of
        the last level, shape (areas,); an entry is the sum over the equal areas it represents.

        Notes
        -----
        f(mu) is tr (G K)^(1/2), with the Gram G of the queries, the center pi and
        K = sum_i mu_i (e_i - pi)(e_i - pi)^T over the cells i.
        """
        tree, center, number = self.tree, self.center, self.tree.numbers[-1]
        mass = np.maximum(mass / number, MIN_SHARE / number.sum())
        mass = mass / (number @ mass)
        difference = mass - center[-1]
        slope = difference / mass
        # all eigenvalues of G K are between 1 / high and 1 / low
        traces = cell_costs(tree, self.weights, center)
        low = 1.0 / float((number * mass) @ traces)
        smallest = float(self.weights[-1][self.weights[-1] > 0.0].min())
        high = max(1.0 / (smallest * float(mass.min())), low)
        nodes, node_weights = inverse_root_quadrature(low, high)
        total = 0.0
        for s, w in zip(nodes.tolist(), node_weights.tolist(), strict=True):
            precisions = [s * weights for weights in self.weights]
            precisions[-1] += 1.0 / mass
            estimates = LeastSquares(tree=tree, precisions=precisions)
            total += w * self.total(estimates)
            # add the effect of the rank-one term of K^-1, which is 0 for mu = pi
            if difference.any():
                y = estimates.solve(slope)
                pivot = 1.0 + float((number * slope) @ (difference - y))
                squares = math.fsum(
                    float(weights @ values**2)
                    for weights, values in zip(
                        self.total_weights, sums_upward(tree, y), strict=True
                    )
                )
                total += w * squares / pivot
        return total

    def solve(
        self, *, gap: float = 0.0, evaluations: int = 10_000, deadline: float = math.inf
    ) -> tuple[Array, str]:
        """Search for the precisions of the areas and the weights mu that prove the lower bound.

        The search is on the `quotient`, in one round per entry of `SHARPNESS`, and ends after the
        first round whose weights prove a relative RMSE gap of ``gap`` or `SEARCH_GAP`, whichever is
        larger, or after which a limit is reached.

        Parameters
        ----------
        gap : required relative RMSE gap.
        evaluations : number of evaluations of the error after which no further round begins.
        deadline : time on the clock of `planning_time` after which no further round begins.

        Returns
        -------
        The best precisions and weights in one vector, for `unpack`; and the reason why the search
        ended, "optimal" if it proved the gap.
        """
        import scipy.optimize

        problem, count = self.quotient, 0
        tree = problem.tree
        logs = np.zeros(sum(tree.counts[1:]))
        mass = tree.numbers[-1] / tree.numbers[-1].sum()
        # The variables log p are scaled so that the objective has similar second derivatives for
        # all variables. Without scaling, the second derivative of a variable is proportional to the
        # number of equivalent areas that share it, and about to the square root of their number of
        # cells.
        scales = np.concatenate(
            [
                np.sqrt(number) * (self.tree.cells * pi) ** 0.25
                for number, pi in zip(tree.numbers[1:], problem.center[1:], strict=True)
            ]
        )

        def smoothed(scaled_logs: Array, sharpness: float) -> tuple[float, Array]:
            value, gradient, _ = problem.smoothed(scaled_logs / scales, sharpness)
            return value, gradient / scales

        best, solution = math.inf, problem.pack(np.exp(logs), mass)
        status = "stopped where the search made no more progress"
        for sharpness in SHARPNESS:
            search = scipy.optimize.minimize(
                smoothed,
                logs * scales,
                args=(sharpness,),
                jac=True,
                method="L-BFGS-B",
                # no limit on the gradient (gtol): with many areas, each derivative is small even
                # far from the optimum
                options={"maxcor": HISTORY, "maxiter": MAX_STEPS, "ftol": MIN_GAIN, "gtol": 0.0},
            )
            logs, count = search.x / scales, count + search.nfev
            mass = problem.smoothed(logs, sharpness)[2]
            packed = problem.pack(np.exp(logs), mass)
            error = problem.error(problem.scaled(packed[: len(logs)]))
            proved = math.sqrt(error) / problem.root_bound(mass) - 1.0
            if proved < best:
                best, solution = proved, packed
            if proved <= max(SEARCH_GAP, gap):
                status = "optimal"
                break
            if planning_time() > deadline:
                status = "stopped at the time limit"
                break
            if count >= evaluations:
                status = "stopped at the limits of the search"
                break
        return solution, status

    def pack(self, precisions: Array, mass: Array) -> Array:
        """Return precisions and weights as one vector with sum 1.

        ``precisions`` are those of all areas except the root; ``mass`` holds the weights mu of
        the areas of the last level.  Small precisions above the last level are set to 0.
        """
        # areas of the last level are always measured, because a query may depend on a single such
        # area
        smallest = MIN_PRECISION * float(precisions.max())
        cells = self.tree.counts[-1]
        precisions = np.where(precisions < smallest, 0.0, precisions)
        precisions[-cells:] = np.maximum(precisions[-cells:], smallest)
        return 0.5 * np.concatenate([precisions / precisions.sum(), mass / mass.sum()])

    def scaled(self, precisions: Array) -> Levels:
        """Scale precisions so that the largest privacy cost is 1; return one array per level.

        ``precisions`` are those of all areas except the root, in one vector.
        """
        levels = self.tree.split(np.concatenate([np.zeros(1), precisions]))
        largest = float(cell_costs(self.tree, levels, self.center).max())
        return [p / largest for p in levels]

    def unpack(self, packed: Array) -> tuple[Levels, Array]:
        """Return the precisions of all areas, and the weights mu of the areas of the last level.

        ``packed`` is the result of `solve`, with one entry per equivalence class.  The precisions,
        one array per level, are scaled so that the largest privacy cost is 1; mu has sum 1.
        """
        tree = self.quotient.tree
        areas = sum(tree.counts[1:])
        levels = [
            p[numbers]
            for p, numbers in zip(self.quotient.scaled(packed[:areas]), self.classes, strict=True)
        ]
        mass = (packed[areas:] / tree.numbers[-1])[self.classes[-1]]
        return levels, mass / mass.sum()


def sums_upward(tree: AreaTree, values: Array) -> Levels:
    """Return the sum of ``values`` over the areas of the last level inside every area, by level."""
    sums = [values]
    for level in reversed(range(tree.depth)):
        sums.append(tree.child_sums(sums[-1], level))
    return sums[::-1]
