"""Lower bound for plans that measure residual spaces independently at a joint privacy cost.

The joint cost of a plan is the maximum over cells of the summed costs of its blocks.  For weights
mu of the cells of the full domain, with sum 1, it is at least the mean over mu of the costs of the
cells.  With T_k the nuclear norm of G_k^(1/2) L_k diag(mu_k)^(1/2), G_k the class Gram of block k,
L_k its lift and mu_k the marginal of mu on its attributes, no plan of cost 1 has a smaller weighted
squared error than

    (sum over blocks of T_k)^2.

Optimal weights for each single block would give a larger value, but only for plans whose cost is
the sum of the costs of the blocks; here all blocks have the same mu.  It is a product of weights of
the attributes, equal for equivalent attributes.  The search starts at uniform weights, and every
step moves the weights of an attribute to the costs of its cells under the optimal plan for mu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from engine._arrays import Array
from engine._threads import threads_for
from engine.bounds.product_weights import error_bound, lower_eigenvalues
from engine.residuals import Axes, Factor, Lift, SplitLift, digest
from engine.residuals.decomposition import Decomposition, Subworkload
from engine.residuals.kronecker_sums import assemble, merge_terms

MAX_STEPS = 15
# limits on all steps together; the first step has no limit
MAX_NORMS, MAX_FLOPS = 3_000, 4e9
# class coordinates up to which a sum of Kronecker products is stored as one dense matrix
MAX_DIMENSION = 1_000
# relative gain of the bound below which the search ends
MIN_GAIN = 1e-7


@dataclass(frozen=True, kw_only=True, eq=False)
class _Norm:
    """The nuclear norm of one factor as a function of the weights of its cells.

    ``rows`` are G^(1/2) L, shape (rank, cells).
    """

    axes: Axes
    sizes: tuple[int, ...]
    rows: Array

    def at(self, weights: Sequence[Array]) -> tuple[float, list[Array]]:
        """Return a lower bound on T, and the weighted costs of the cells by axis, shapes (n_i,).

        Each array of costs is normalized to sum 1.
        """
        mass: Array = np.ones(())
        for axis_weights in weights:
            mass = np.multiply.outer(mass, axis_weights)
        mass = mass.ravel()
        with threads_for(len(self.rows)):
            eigenvalues, U = scipy.linalg.eigh((self.rows * mass) @ self.rows.T, check_finite=False)
        if not eigenvalues[-1] > 0.0:
            return 0.0, [np.zeros(n) for n in self.sizes]
        root = np.sqrt(np.maximum(eigenvalues, eigenvalues[-1] * 1e-18))
        half = (U / np.sqrt(root)).T @ self.rows
        costs = (mass * np.einsum("rc,rc->c", half, half)).reshape(self.sizes)
        axes = range(len(self.sizes))
        along = [costs.sum(axis=tuple(b for b in axes if b != a)) for a in axes]
        return float(np.sqrt(lower_eigenvalues(eigenvalues)).sum()), [
            axis_costs / axis_costs.sum() for axis_costs in along
        ]


def independent_bound(parts: Decomposition) -> float:
    """Return a lower bound on the weighted squared error at joint privacy cost 1, in counts^2.

    The bound holds for all plans that measure the residual spaces independently.
    """
    usage: dict[str, list[tuple[int, int]]] = {}
    for space, (k, _) in parts.spaces.items():
        for axis, name in enumerate(space):
            usage.setdefault(name, []).append((k, axis))
    numbers: dict[object, int] = {}
    roles: dict[str, int] = {}
    sizes: list[int] = []
    for name, uses in usage.items():
        sub, axis = parts.subworkloads[uses[0][0]], uses[0][1]
        key = (sub.sizes[axis], digest(sub.centers[axis]), tuple(sorted(uses)))
        roles[name] = numbers.setdefault(key, len(numbers))
        if roles[name] == len(sizes):
            sizes.append(sub.sizes[axis])
    blocks: dict[tuple[int, tuple[int, ...]], float] = {}
    for space, (k, scale) in parts.spaces.items():
        key_of = (k, tuple(roles[name] for name in space))
        blocks[key_of] = blocks.get(key_of, 0.0) + math.sqrt(scale)
    norms = {k: _norms(parts.subworkloads[k], parts.factors) for k in {k for k, _ in blocks}}
    evaluated = [norm for k, _ in blocks for _, factors in norms[k] for norm in factors]
    flops = sum(float(len(norm.rows)) ** 2 * norm.rows.shape[1] for norm in evaluated)
    steps = min(MAX_STEPS, MAX_NORMS // max(len(evaluated), 1), int(MAX_FLOPS / max(flops, 1.0)))
    weights = [np.full(n, 1.0 / n) for n in sizes]
    best = 0.0
    for _ in range(max(1, steps)):
        total, weighted_costs = _step(blocks, norms, weights)
        if not total > best * (1.0 + MIN_GAIN):
            break
        best = total
        # T is homogeneous of degree 1/2 in the weights, so the squared ratio sets the step length
        weights = [
            w * np.divide(cost, w, out=np.zeros_like(w), where=w > 0.0) ** 2
            for w, cost in zip(weights, weighted_costs, strict=True)
        ]
        weights = [w / w.sum() if w.any() else np.full(len(w), 1.0 / len(w)) for w in weights]
    return error_bound(best)


def _step(
    blocks: dict[tuple[int, tuple[int, ...]], float],
    norms: dict[int, list[tuple[float, list[_Norm]]]],
    weights: list[Array],
) -> tuple[float, list[Array]]:
    """Return the sum of T, and the weighted costs of the cells by class, shapes (n,)."""
    terms_of_blocks = []
    for (k, roles), count in blocks.items():
        values, costs = [], list[list[tuple[int, Array]]]()
        for coefficient, factors in norms[k]:
            value, along = coefficient, list[tuple[int, Array]]()
            for norm in factors:
                T, costs_by_axis = norm.at([weights[roles[a]] for a in norm.axes])
                value *= T * T
                along += [(roles[a], c) for a, c in zip(norm.axes, costs_by_axis, strict=True)]
            values.append(value)
            costs.append(along)
        # the squares of the terms add up because all terms share one strategy
        squared = math.fsum(values)
        terms_of_blocks.append((count * math.sqrt(squared), [v / squared if squared else 0.0 for v in values], costs))
    total = math.fsum(T for T, *_ in terms_of_blocks)
    weighted_costs = [np.zeros_like(w) for w in weights]
    for T, shares, terms in terms_of_blocks:
        for part, costs_of in zip(shares, terms, strict=True):
            for role, along_axis in costs_of:
                weighted_costs[role] += along_axis * (part * T / total)
    return total, weighted_costs


def _norms(sub: Subworkload, factors: Sequence[Factor]) -> list[tuple[float, list[_Norm]]]:
    """Return products of norms: a single one for a product or a dense Gram, else one per term."""
    terms, axes = merge_terms(sub, factors), tuple(range(len(sub.sizes)))
    if not axes:
        return [(math.fsum(c for c, _ in terms), [])]
    if sub.spaces or sub.complements:
        lift = SplitLift(sub.sizes, sub.centers, sub.spaces or (axes,), sub.complements)
        return [(1.0, [_norm(assemble(terms, axes, sub.sizes), lift, axes)])]
    if len(terms) > 1 and sub.dimension <= MAX_DIMENSION:
        return [(1.0, [_norm(assemble(terms, axes, sub.sizes), Lift(sub.sizes, sub.centers), axes)])]
    return [
        (c, [_norm(f, Lift(f.sizes, [sub.centers[a] for a in f_axes]), f_axes) for f_axes, f in product])
        for c, product in terms
    ]


def _norm(factor: Factor, lift: Lift, axes: Axes) -> _Norm:
    if factor.low_rank:
        root = factor.matrix
    else:
        with threads_for(len(factor.matrix)):
            eigenvalues, U = scipy.linalg.eigh(factor.matrix, check_finite=False)
        root = (U * np.sqrt(lower_eigenvalues(eigenvalues))).T
    return _Norm(axes=axes, sizes=lift.sizes, rows=lift.rows(root))
