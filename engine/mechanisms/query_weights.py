"""Weights of queries: their dual norm, what they prove, and weights query by query.

Factored weights leave the largest variance where no product reaches it.  There `PointWeights` has a weight for every
single query: queries above the mean gain weight, those below lose it, and the factored weights, whose strategies are
known, follow what the single ones earn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from engine.arrays import Array
from engine.mechanisms.kept import separate_bound
from engine.plans import Asked, Block, Emphasis, Objective
from engine.spaces import Decomposition, Space, SpaceSolution
from engine.workload import Part, Workload

POWER = 3.0  # of its variance over the mean, that a query's weight is multiplied by
AXES = "abcdefgh"  # of tables, for sums over products of them
LOST = (
    "Some queries weigh so little beside others that what they ask is lost in rounding. Bring the weights closer "
    "together, or give those queries the weight 0."
)
MOST = 8_000_000  # numbers that the weights of single queries may be


def even(part: Part) -> bool:
    """Return whether the queries of a part ask for all cells alike, so that equal weights are best for them."""
    if len(part.sizes) > 1:
        return False
    gram = part.family.gram(part.sizes)
    apart = gram[~np.eye(len(gram), dtype=bool)]
    return not np.ptp(np.diag(gram)) and not (len(apart) and np.ptp(apart))


def unit_blocks(parts: Decomposition, solutions: list[SpaceSolution]) -> dict[Space, Block]:
    """Return the strategies as blocks of noise 1."""
    return {
        space: Block(
            attributes=space, factors=tuple((a, f.strategy) for a, f in solutions[k].factors), noise=1.0, grid=1.0
        )
        for space, (k, _) in parts.spaces.items()
    }


def dual_norm(workload: Workload, goal: Objective, emphasis: Emphasis) -> tuple[float, Array, list[Array]]:
    """Return the dual norm of the weights, and its derivative by the logs of kind weights and of vectors.

    Shapes (kind weights,) and those of the vectors.
    """
    q = goal.conjugate
    first = {kind: i for i, kind in reversed(list(enumerate(emphasis.kinds)))}
    sizes = np.bincount([k for k in emphasis.kinds if k >= 0], minlength=len(emphasis.weights))
    by_kind, by_vector = np.zeros(len(emphasis.weights)), [np.zeros(len(v)) for v in emphasis.vectors]
    for kind, numbers in enumerate(emphasis.uses):
        group, own = workload.groups[first[kind]], np.ones(1)
        scale = sizes[kind] * emphasis.weights[kind] ** q
        if math.isinf(goal.power):
            scale *= goal.target(first[kind])
        else:
            scale *= group.weight ** (1.0 - q)
            if group.query_weights is not None:
                used = group.query_weights > 0
                own = np.power(group.query_weights, 1.0 - q, where=used, out=np.zeros(group.count))
        masses = [own * emphasis.vectors[n] ** q for n in numbers]
        sums = [float(m.sum()) for m in masses]
        by_kind[kind] = scale * math.prod(sums)
        for n, mass, total in zip(numbers, masses, sums, strict=True):
            # a group whose queries all have the weight 0 adds nothing
            by_vector[n] += by_kind[kind] * mass / total if total > 0.0 else 0.0
    total = float(by_kind.sum())
    value = total ** (1.0 / q)
    return value, by_kind * value / total, [v * value / total for v in by_vector]


def proven(
    workload: Workload, goal: Objective, emphasis: Emphasis, parts: Decomposition, solutions: list[SpaceSolution]
) -> float:
    """Return the lower bound on the norm of the variances at privacy cost 1 that weights and their solutions prove."""
    return separate_bound(parts, solutions) / dual_norm(workload, goal, emphasis)[0]


class PointWeights:
    """A weight for every single query of every kind of group, from factored ones.

    Parameters
    ----------
    asked : the queries by kind, none of them with a vector that runs over all queries of a group.
    emphasis : the factored weights to begin with.
    """

    def __init__(self, asked: Sequence[Asked], emphasis: Emphasis) -> None:
        self.masses: list[Array] = []
        for kind, (one, numbers) in enumerate(zip(asked, emphasis.uses, strict=True)):
            mass = np.array(one.groups * emphasis.weights[kind] * one.target)
            for together in one.queries.sets:
                for p in together:
                    mass = np.multiply.outer(mass, emphasis.vectors[numbers[p]])
            self.masses.append(mass.reshape([table.shape[1] for table in one.queries.tables]))

    @staticmethod
    def fits(asked: Sequence[Asked]) -> bool:
        """Return whether there are few enough queries."""
        return all(len(one.queries.tables) <= len(AXES) for one in asked) and (
            sum(math.prod(len(t.T) for t in one.queries.tables) for one in asked) <= MOST
        )

    def follow(self, asked: Sequence[Asked], noises: Array) -> None:
        """Give weight to the queries above the mean variance.

        ``noises``, squared, have shape (space kinds,).
        """
        found = []
        for one in asked:
            tables = one.queries.tables
            axes = AXES[: len(tables)]
            terms = ",".join(["s", *("s" + a for a in axes)])
            s = noises[list(one.spaces)] / one.target
            found.append(np.einsum(f"{terms}->{axes}", s, *tables, optimize=True))
        total = math.fsum(float(m.sum()) for m in self.masses)
        mean = math.fsum(float(np.vdot(m, v)) for m, v in zip(self.masses, found, strict=True)) / total
        self.masses = [m * (v / mean) ** POWER for m, v in zip(self.masses, found, strict=True)]
        total = math.fsum(float(m.sum()) for m in self.masses)
        self.masses = [m / total for m in self.masses]

    def earned(
        self, asked: Sequence[Asked], counts: Array, noises: Array, emphasis: Emphasis
    ) -> tuple[list[Array], Array]:
        """Return what the queries earn in variance, by vector of the emphasis, and the noises that are best for them.

        ``counts`` and ``noises``, squared and at privacy cost 1, have shape (space kinds,), as what is returned.
        """
        sums, out = np.zeros(len(counts)), [np.zeros(len(v)) for v in emphasis.vectors]
        for one, mass, numbers in zip(asked, self.masses, emphasis.uses, strict=True):
            tables = one.queries.tables
            axes = AXES[: len(tables)]
            for c, (together, table) in enumerate(zip(one.queries.sets, tables, strict=True)):
                others = [i for i in range(len(tables)) if i != c]
                terms, ends = ",".join([axes, *("s" + axes[i] for i in others)]), "s" * bool(others) + axes[c]
                rest = np.einsum(f"{terms}->{ends}", mass, *(tables[i] for i in others), optimize=True)
                own = rest * table / one.target
                if c == 0:
                    sums += np.bincount(one.spaces, own.sum(axis=1), minlength=len(counts))
                tensor = (noises[list(one.spaces)] @ own).reshape([len(out[numbers[p]]) for p in together])
                for i, p in enumerate(together):
                    out[numbers[p]] += tensor.sum(axis=tuple(a for a in range(len(together)) if a != i))
        best = np.sqrt(counts / np.maximum(sums, 1e-300))
        return out, best * float(np.sum(counts / best))


def gains(earned: Array, now: Array) -> Array:
    """Return logs of what is earned over what is earned now, 0 in the mean. All have shape (queries of a part,)."""
    if not earned.any():
        return np.zeros(len(earned))
    ratio = np.log(np.maximum(earned, 1e-300) / np.maximum(now, 1e-300))
    return np.clip(ratio - float(earned @ ratio) / float(earned.sum()), -1.0, 1.0)
