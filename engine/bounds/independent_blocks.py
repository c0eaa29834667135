"""Lower bound for plans that measure residual spaces independently, charged for the costliest cell of all together.

For weights mu of the cells of the whole domain, with sum 1, the cost of a plan is at least the mean
over mu of what its cells cost.  With T_k the nuclear norm of G_k^(1/2) L_k diag(mu_k)^(1/2), G_k the
class Gram of block k, L_k its lift and mu_k the sums of mu on its attributes, no plan of cost 1 then
has a smaller weighted squared error than

    (sum over blocks of T_k)^2.

Weights that are best for every block alone prove more, but only of plans that are charged block by block: the same mu
must serve all blocks.  Here mu is a product of weights of the attributes, alike where attributes are asked alike; it
starts uniform, and every step moves the weights of an attribute to what its cells cost under the best plan for mu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from engine._arrays import Array
from engine._threads import threads_for
from engine.bounds.product_weights import lowered, proved
from engine.residuals import Axes, Factor, Lift, SplitLift, digest
from engine.residuals.decomposition import Decomposition, Subworkload
from engine.residuals.kronecker_sums import assemble, merge

MAX_STEPS = 15
MAX_NORMS, MAX_FLOPS = 3_000, 4e9  # of all steps together; one step is taken whatever it costs
MAX_DIMENSION = 1_000  # class coordinates of a sum of products that is written out
CLOSE = 1e-7  # relative gain of the bound below which the search ends


@dataclass(frozen=True, kw_only=True, eq=False)
class _Norm:
    """The nuclear norm of one factor under weights of its cells: ``rows`` are G^(1/2) L, shape (rank, cells)."""

    axes: Axes
    sizes: tuple[int, ...]
    rows: Array

    def at(self, weights: Sequence[Array]) -> tuple[float, list[Array]]:
        """Return a lower bound on T, and what the cells of every axis cost times their weights, shape (n_i,) each."""
        mass: Array = np.ones(())
        for own in weights:
            mass = np.multiply.outer(mass, own)
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
        return float(np.sqrt(lowered(eigenvalues)).sum()), [own / own.sum() for own in along]


def independent_bound(parts: Decomposition) -> float:
    """Return a weighted squared error, in counts^2, that no plan of the class has less of at joint privacy cost 1."""
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
    evaluated = [norm for k, _ in blocks for _, own in norms[k] for norm in own]
    flops = sum(float(len(norm.rows)) ** 2 * norm.rows.shape[1] for norm in evaluated)
    steps = min(MAX_STEPS, MAX_NORMS // max(len(evaluated), 1), int(MAX_FLOPS / max(flops, 1.0)))
    weights = [np.full(n, 1.0 / n) for n in sizes]
    best = 0.0
    for _ in range(max(1, steps)):
        total, moved = _step(blocks, norms, weights)
        if not total > best * (1.0 + CLOSE):
            break
        best = total
        # T is of degree 1/2 in the weights, which makes the square of the ratio a step of about the right length
        weights = [
            w * np.divide(own, w, out=np.zeros_like(w), where=w > 0.0) ** 2
            for w, own in zip(weights, moved, strict=True)
        ]
        weights = [w / w.sum() if w.any() else np.full(len(w), 1.0 / len(w)) for w in weights]
    return proved(best)


def _step(
    blocks: dict[tuple[int, tuple[int, ...]], float],
    norms: dict[int, list[tuple[float, list[_Norm]]]],
    weights: list[Array],
) -> tuple[float, list[Array]]:
    """Return the sum of T, and by role what its cells cost times their weights, shape (n,)."""
    found = []
    for (k, roles), count in blocks.items():
        values, costs = [], list[list[tuple[int, Array]]]()
        for coefficient, factors in norms[k]:
            value, along = coefficient, list[tuple[int, Array]]()
            for norm in factors:
                T, own = norm.at([weights[roles[a]] for a in norm.axes])
                value *= T * T
                along += [(roles[a], c) for a, c in zip(norm.axes, own, strict=True)]
            values.append(value)
            costs.append(along)
        # squares of terms add up, because one strategy has to serve all of them
        squared = math.fsum(values)
        found.append((count * math.sqrt(squared), [v / squared if squared else 0.0 for v in values], costs))
    total = math.fsum(T for T, *_ in found)
    moved = [np.zeros_like(w) for w in weights]
    for T, shares, terms in found:
        for part, costs_of in zip(shares, terms, strict=True):
            for role, along_axis in costs_of:
                moved[role] += along_axis * (part * T / total)
    return total, moved


def _norms(sub: Subworkload, factors: Sequence[Factor]) -> list[tuple[float, list[_Norm]]]:
    """Return products of norms: one for a product or a Gram that is written out, else one for every term."""
    terms, axes = merge(sub, factors), tuple(range(len(sub.sizes)))
    if not axes:
        return [(math.fsum(c for c, _ in terms), [])]
    if sub.spaces or sub.complements:
        lift = SplitLift(sub.sizes, sub.centers, sub.spaces or (axes,), sub.complements)
        return [(1.0, [_norm(assemble(terms, axes, sub.sizes), lift, axes)])]
    if len(terms) > 1 and sub.dimension <= MAX_DIMENSION:
        return [(1.0, [_norm(assemble(terms, axes, sub.sizes), Lift(sub.sizes, sub.centers), axes)])]
    return [
        (c, [_norm(f, Lift(f.sizes, [sub.centers[a] for a in own]), own) for own, f in product]) for c, product in terms
    ]


def _norm(factor: Factor, lift: Lift, axes: Axes) -> _Norm:
    if factor.low_rank:
        root = factor.matrix
    else:
        with threads_for(len(factor.matrix)):
            eigenvalues, U = scipy.linalg.eigh(factor.matrix, check_finite=False)
        root = (U * np.sqrt(lowered(eigenvalues))).T
    return _Norm(axes=axes, sizes=lift.sizes, rows=lift.rows(root))
