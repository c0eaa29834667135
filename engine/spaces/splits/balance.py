"""Centers where every attribute is asked in one way alone: S and its derivatives over all kinds of spaces at once.

A space of one term is a product: what its attributes ask themselves (inside), times a sum of products of totals
(outside).  So S follows from a few numbers an attribute, whatever the number of spaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.arrays import Array, Index
from engine.spaces.split import Role
from engine.spaces.splits.center_problem import CenterProblem
from engine.spaces.splits.evaluation import Evaluation


class CenterBalance:
    """S of a problem whose spaces have one term each, and the best center of every role for what the others make of it.

    Parameters
    ----------
    problem : its kinds of spaces have one term each.
    alone : for every tuned role the numbers of the pieces inside and outside, as `asked_alone` tells them.
    """

    def __init__(self, problem: CenterProblem, alone: Mapping[Role, tuple[int, int]]) -> None:
        self.problem, self.alone = problem, alone
        terms = [(k, *term) for k, kind in enumerate(problem.kinds) for term in kind.terms.items()]
        sums = [(k, numbers, weight) for k, _, monomials in terms for numbers, weight in monomials.items()]
        one = len(problem.pieces)  # stands for no piece
        self._inside = _padded([[number for _, number in factors] for _, factors, _ in terms], one)
        self._outside = _padded([numbers for _, numbers, _ in sums], one)
        self._kind = np.array([k for k, *_ in sums], dtype=np.int64)
        self._weights = np.array([weight for *_, weight in sums])
        self._counts = np.array([kind.count for kind in problem.kinds], dtype=float)
        self._settled: dict[int, float] = {}  # what pieces need whose centers stay as they are

    def offsets(self, centers: Mapping[Role, Array]) -> tuple[float, dict[Role, float]]:
        """Return S, and for every role the c whose `whole_center` is best when all else stays as it is.

        ``centers`` have shape (n,) each.
        With L what the attribute asks itself and s its total, S changes by a dL + b ds; the center of the best strategy
        on all cells for G + c 1 1^T minimises sqrt(L) + sqrt(s + c), and so a L + b s where b / a = sqrt(L / (s + c)).
        """
        state = Evaluation(problem=self.problem, centers=centers)
        one = len(self.problem.pieces)
        values, scalars = np.ones(one + 1), np.ones(one + 1)
        for number in np.unique(self._inside[self._inside < one]).tolist():
            values[number] = self._value(state, number)
        for number in np.unique(self._outside[self._outside < one]).tolist():
            scalars[number] = state.scalar(number)
        inside, outside = values[self._inside], scalars[self._outside]
        product = inside.prod(axis=1)
        total = np.bincount(self._kind, self._weights * outside.prod(axis=1), len(product))
        roots = np.sqrt(product * total)
        outer = np.divide(0.5 * self._counts, roots, out=np.zeros_like(roots), where=roots > 0.0)
        by_value = _collected(self._inside, (outer * total)[:, None] * _others(inside), one)
        by_scalar = _collected(
            self._outside, ((outer * product)[self._kind] * self._weights)[:, None] * _others(outside), one
        )
        out = {}
        for role, (own, rest) in self.alone.items():
            a, b = float(by_value[own]), float(by_scalar[rest])
            if a > 0.0 and b > 0.0:
                out[role] = float(values[own]) * (a / b) ** 2 - float(scalars[rest])
        return float(self._counts @ roots), out

    def _value(self, state: Evaluation, number: int) -> float:
        if number in self._settled:
            return self._settled[number]
        found = state.alone(number)[0] if state.asks(number) else 0.0
        if not set(self.problem.pieces[number].roles) & set(self.alone):
            self._settled[number] = found
        return found


def asked_alone(problem: CenterProblem) -> dict[Role, tuple[int, int]]:
    """Return the pieces inside and outside of every tuned role, or nothing unless each is asked in one way alone.

    That is by one family, beside others as a product, in spaces of one term.
    """
    if any(len(kind.terms) > 1 for kind in problem.kinds):
        return {}
    places: dict[Role, list[int]] = {role: [] for role in problem.tuned}
    for number, piece in enumerate(problem.pieces):
        for role in piece.roles:
            places.get(role, []).append(number)
    out = {}
    for role, numbers in places.items():
        if len(numbers) != 2 or any(len(problem.pieces[k].roles) > 1 for k in numbers):
            return {}
        out[role] = (numbers[0], numbers[1]) if problem.pieces[numbers[0]].inside else (numbers[1], numbers[0])
    return out


def _padded(rows: Sequence[Sequence[int]], filling: int) -> Index:
    """Return rows of numbers as an array, shape (rows, longest), short ones filled up."""
    longest = max(map(len, rows), default=0)
    out = np.full((len(rows), longest), filling, dtype=np.int64)
    for own, row in zip(out, rows, strict=True):
        own[: len(row)] = row
    return out


def _others(values: Array) -> Array:
    """Return for every entry the product of the others in its row, in the shape of the values."""
    columns = range(values.shape[1])
    return np.column_stack([np.delete(values, k, axis=1).prod(axis=1) for k in columns]) if columns else values


def _collected(numbers: Index, shares: Array, one: int) -> Array:
    """Return the sum of the shares of every piece, shape (pieces + 1,), from shares in the shape of the numbers."""
    return np.bincount(numbers.ravel(), shares.ravel(), one + 1).astype(float)
