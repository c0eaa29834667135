"""One evaluation of the sum that tuned centers minimise, with its derivatives; see `center_problem`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from engine.arrays import Array
from engine.spaces.coordinates import basis, class_rows, contract, grouped
from engine.spaces.decomposition import NEGLIGIBLE, Factor
from engine.spaces.split import Axes, Role
from engine.spaces.terms import add_factors, assemble
from engine.workload import Part

if TYPE_CHECKING:
    from engine.spaces.splits.center_problem import CenterProblem, Piece, SpaceKind


@dataclass(kw_only=True, eq=False)
class Evaluation:
    """Scalars, factors and solved Grams at given centers, and derivatives collected backwards."""

    problem: CenterProblem
    centers: Mapping[Role, Array]
    scalars: dict[int, float] = field(default_factory=dict)
    by_scalar: dict[int, float] = field(default_factory=dict)
    factors: dict[int, Factor] = field(default_factory=dict)
    asking: dict[int, bool] = field(default_factory=dict)
    by_factor: dict[int, Array] = field(default_factory=dict)
    by_role: dict[Role, Array] = field(default_factory=dict)
    solved: dict[int, tuple[float, Array, list[Array]]] = field(default_factory=dict)

    def center(self, role: Role) -> Array:
        """Return the center of a role, shape (n,)."""
        n = self.problem.sizes[role]
        return self.centers.get(role, np.full(n, 1.0 / n))

    def scalar(self, number: int) -> float:
        """Return what a piece asks of the attributes outside a space, in counts^2."""
        if number not in self.scalars:
            piece = self.problem.pieces[number]
            if len(piece.roles) == 1:
                pi = self.center(piece.roles[0])
                found = float(pi @ self.problem.gram(piece.part) @ pi)
            else:
                found = float(np.sum(self._contracted(piece, ()) ** 2))
            self.scalars[number] = found if found > NEGLIGIBLE * self.problem.whole(piece.part) else 0.0
        return self.scalars[number]

    def _contracted(self, piece: Piece, keep: Axes) -> Array:
        """Return the rows of a joint part with the centers applied on all positions but those in ``keep``."""
        vectors = [None if i in keep else self.center(role) for i, role in enumerate(piece.roles)]
        return contract(self.problem.rows(piece.part), vectors, 1)

    def factor(self, number: int) -> Factor:
        """Return what a piece asks of the attributes inside a space."""
        if number not in self.factors:
            piece = self.problem.pieces[number]
            sizes = tuple(piece.part.sizes[i] for i in piece.inside)
            if len(piece.roles) == 1:
                N = basis(sizes[0])
                made = Factor(sizes=sizes, matrix=N.T @ self.problem.gram(piece.part) @ N)
            else:
                given = [self.center(r) for r in piece.roles]
                rows = class_rows(self._flat(piece.part), piece.part.sizes, piece.inside, given)
                low = len(rows) < rows.shape[1]
                made = Factor(sizes=sizes, matrix=rows if low else rows.T @ rows, low_rank=low)
            self.factors[number] = made
        return self.factors[number]

    def space(self, kind: SpaceKind) -> float:
        """Return sqrt(L) of one kind of space, and collect its derivatives times the number of such spaces."""
        coefficients = {
            factors: math.fsum(w * math.prod(map(self.scalar, numbers)) for numbers, w in monomials.items())
            for factors, monomials in kind.terms.items()
        }
        used = [f for f, c in coefficients.items() if c > 0 and all(self.asks(number) for _, number in f)]
        if not used:
            return 0.0
        # a Kronecker product has the product of its factors' optima, so that each factor is solved once for all spaces
        if len(used) == 1 or kind.apart:
            by_coefficient = {f: math.prod(self.alone(number)[0] for _, number in f) for f in used}
            value = math.fsum(coefficients[f] * own for f, own in by_coefficient.items())
            outer = 0.5 * kind.count / math.sqrt(value)
            for f in used:
                for axes, number in f:
                    own, by_gram, by_center = self.alone(number)
                    share = outer * coefficients[f] * by_coefficient[f] / own
                    self._collect([kind.roles[a] for a in axes], by_center, share)
                    self._collect_factor(number, share * by_gram)
        else:
            sizes, axes = tuple(self.problem.sizes[r] for r in kind.roles), tuple(range(len(kind.roles)))
            single = {f: assemble([(1.0, tuple((a, self.factor(k)) for a, k in f))], axes, sizes) for f in used}
            gram = add_factors([(coefficients[f], single[f]) for f in used], sizes)
            centers = [self.centers.get(r) for r in kind.roles]
            value, by_gram, by_center = self.problem.dual(kind, gram, centers)
            outer = 0.5 * kind.count / math.sqrt(value)
            # d L / d coefficient at fixed weights (envelope theorem): the derivative by the Gram along the term
            by_coefficient = {f: float(np.sum(single[f].dense() * by_gram)) for f in used}
            self._collect(kind.roles, by_center, outer)
            for f in used:
                if len(f) == 1:
                    self._collect_factor(f[0][1], outer * coefficients[f] * by_gram)
        for factors in used:
            for numbers, w in kind.terms[factors].items():
                for k in set(numbers):
                    others = math.prod(self.scalar(x) for x in numbers if x != k)
                    power = numbers.count(k)
                    change = outer * by_coefficient[factors] * w * power * others * self.scalar(k) ** (power - 1)
                    self.by_scalar[k] = self.by_scalar.get(k, 0.0) + change
        return math.sqrt(value)

    def _flat(self, part: Part) -> Array:
        rows = self.problem.rows(part)
        return rows.reshape(len(rows), -1)

    def asks(self, number: int) -> bool:
        """Return whether a piece asks more than rounding of the attributes inside."""
        if number not in self.asking:
            whole = self.problem.whole(self.problem.pieces[number].part)
            self.asking[number] = self.factor(number).trace > NEGLIGIBLE * whole
        return self.asking[number]

    def alone(self, number: int) -> tuple[float, Array, list[Array]]:
        """Return L of a piece on the attributes inside, and its derivatives in the shapes of `sensitivities`."""
        if number not in self.solved:
            piece = self.problem.pieces[number]
            centers = [self.centers.get(piece.roles[i]) for i in piece.inside]
            self.solved[number] = self.problem.dual(number, self.factor(number), centers)
        return self.solved[number]

    def _collect(self, roles: Sequence[Role], by_center: Sequence[Array], share: float) -> None:
        for role, gradient in zip(roles, by_center, strict=True):
            self._add(role, share * gradient)

    def _collect_factor(self, number: int, by_gram: Array) -> None:
        if len(self.problem.pieces[number].inside) < len(self.problem.pieces[number].roles):
            self.by_factor[number] = self.by_factor.get(number, 0.0) + by_gram

    def _add(self, role: Role, gradient: Array) -> None:
        self.by_role[role] = self.by_role.get(role, 0.0) + gradient

    def finish(self) -> dict[Role, Array]:
        """Return the derivatives by N^T pi, shape (n - 1,) a role, scalars and joint factors included."""
        for number, change in self.by_scalar.items():
            piece = self.problem.pieces[number]
            if len(piece.roles) == 1:
                role = piece.roles[0]
                gradient = 2.0 * self.problem.gram(piece.part) @ self.center(role)
                self._add(role, change * basis(self.problem.sizes[role]).T @ gradient)
                continue
            # the scalar is the squared norm of rows with all centers applied, and each center is linear in them
            answers = self._contracted(piece, ())
            for position, role in enumerate(piece.roles):
                gradient = 2.0 * answers @ self._contracted(piece, (position,))
                self._add(role, change * basis(self.problem.sizes[role]).T @ gradient)
        for number, by_gram in self.by_factor.items():
            self._through_factor(self.problem.pieces[number], by_gram)
        return self.by_role

    def _through_factor(self, piece: Piece, by_gram: Array) -> None:
        """Carry a derivative by a class Gram back to the centers that the part passes its other attributes through."""
        given = [self.center(r) for r in piece.roles]
        # G = R^T R, and R is linear in every center outside the space: dG = 2 R^T dR against a symmetric derivative
        weights = 2.0 * class_rows(self._flat(piece.part), piece.part.sizes, piece.inside, given) @ by_gram
        for position, role in enumerate(piece.roles):
            if position in piece.inside:
                continue
            keep = tuple(sorted((*piece.inside, position)))
            bases = [None if i == position else basis(piece.part.sizes[i]) for i in keep]
            out = contract(self._contracted(piece, keep), bases, 1)  # (rows, coordinates and one axis of cells)
            at = keep.index(position)
            out = grouped(out, [tuple(i for i in range(len(keep)) if i != at), (at,)], 1)
            gradient = np.einsum("qm,qmn->n", weights, out)
            self._add(role, basis(self.problem.sizes[role]).T @ gradient)
