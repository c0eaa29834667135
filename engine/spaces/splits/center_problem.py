"""The sum that tuned centers minimise, as a function of the centers, with its gradient; see `centers`.

Residual spaces that look alike are one kind.  Its Gram is a formula in scalars (what a part asks of attributes
outside the space, quadratic in the centers) and factors (what it asks of those inside); derivatives are collected
backwards through solved Grams, factors and scalars.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.spaces.decomposition import Factor, basis, class_rows
from engine.spaces.lifts import Lift, WholeDomain
from engine.spaces.solvers import DualProblem, Options
from engine.spaces.split import Axes
from engine.spaces.subworkload import add_factors, assemble
from engine.threads import threads_for
from engine.workload import Group, Part, Workload

ROUNDING = 1e-9  # a sum this small against its terms is the rounding of zero
MAX_ROWS = 40_000_000  # joint parts with more matrix entries keep uniform centers on their attributes
START = Options(gap=1e-4, evaluations=60)
Watch = Callable[[float, str], None]
Role = int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One part of a group inside a space: the part, the roles of all its attributes, and which positions are inside."""

    part: Part
    roles: tuple[Role, ...]
    inside: Axes


@dataclass(kw_only=True, eq=False)
class SpaceKind:
    """Residual spaces that look alike: how many there are, the roles of their attributes, and their Gram as a formula.

    A term is (factors, monomials): its factors are (axes, piece number), its coefficient the sum over monomials of a
    weight times scalar pieces.
    """

    count: int
    roles: tuple[Role, ...]
    terms: dict[tuple[tuple[Axes, int], ...], dict[tuple[int, ...], float]]


def roles_of(workload: Workload) -> dict[str, Role]:
    """Return a number for every attribute, equal for attributes that are asked the same in every group."""
    seen: dict[str, list[Any]] = {name: [] for name in workload.schema.names}
    for group in workload.groups:
        whole = sorted(repr(p.key) for p in group.parts)
        for part in group.parts:
            for position, axis in enumerate(part.axes):
                seen[group.attributes[axis]].append((repr(part.key), position, group.weight, tuple(whole)))
    numbers: dict[Any, Role] = {}
    out = {}
    for name, places in seen.items():
        key = (workload.schema[name].size, tuple(sorted(places)))
        out[name] = numbers.setdefault(key, len(numbers))
    return out


class CenterProblem:
    """S as a function of the centers, with its gradient.

    Parameters
    ----------
    workload : groups without weights of single queries.
    watch : told the present fraction and a text; may raise to cancel.
    """

    def __init__(self, workload: Workload, watch: Watch) -> None:
        self.workload, self.watch = workload, watch
        self.roles = roles_of(workload)
        self.sizes = {role: workload.schema[name].size for name, role in self.roles.items()}
        self.pieces: list[Piece] = []
        self._numbers: dict[Any, int] = {}
        self._rows: dict[Any, Array] = {}
        self._starts: dict[Any, Array] = {}
        self._grams: dict[Any, Array] = {}
        self._void: dict[int, bool] = {}
        self.kinds = self._kinds()
        self.tuned = [r for r in sorted(self.sizes) if self.sizes[r] > 1 and not self._settled(r)]
        self.options = START

    def _kinds(self) -> list[SpaceKind]:
        order = {name: i for i, name in enumerate(self.workload.schema.names)}
        totals: dict[tuple[str, ...], dict[Any, dict[tuple[int, ...], float]]] = {}
        patterns: dict[Any, list[Any]] = {}
        for group in self.workload.groups:
            if group.weight == 0.0:
                continue
            ranks = sorted(range(len(group.attributes)), key=[order[n] for n in group.attributes].__getitem__)
            key = (group.key, tuple(ranks), tuple(self.roles[n] for n in group.attributes))
            if key not in patterns:
                patterns[key] = self._pattern(group, ranks)
            ranked = [group.attributes[a] for a in ranks]
            for positions, factors, scalars in patterns[key]:
                monomials = totals.setdefault(tuple(ranked[p] for p in positions), {}).setdefault(factors, {})
                monomials[scalars] = monomials.get(scalars, 0.0) + group.weight
        alike: dict[Any, SpaceKind] = {}
        for names, terms in totals.items():
            roles = tuple(self.roles[name] for name in names)
            kind = (roles, frozenset((f, frozenset(m.items())) for f, m in terms.items()))
            if kind not in alike:
                alike[kind] = SpaceKind(count=0, roles=roles, terms=terms)
            alike[kind].count += 1
        return list(alike.values())

    def _pattern(self, group: Group, ranks: Sequence[int]) -> list[Any]:
        position = {axis: p for p, axis in enumerate(ranks)}
        choices = []
        for part in group.parts:
            roles = tuple(self.roles[group.attributes[a]] for a in part.axes)
            options = []
            for k in range(len(part.axes) + 1):
                for inside in itertools.combinations(range(len(part.axes)), k):
                    options.append((tuple(position[part.axes[i]] for i in inside), self._number(part, roles, inside)))
            choices.append(options)
        out = []
        for combination in itertools.product(*choices):
            touched = [(axes, number) for axes, number in combination if axes]
            if any(self._empty(number) for _, number in touched):
                continue
            positions = tuple(sorted(a for axes, _ in touched for a in axes))
            index = {p: i for i, p in enumerate(positions)}
            factors = tuple(sorted((tuple(index[a] for a in axes), number) for axes, number in touched))
            out.append((positions, factors, tuple(sorted(number for axes, number in combination if not axes))))
        return out

    def _number(self, part: Part, roles: tuple[Role, ...], inside: Axes) -> int:
        key = (part.key, roles, inside)
        if key not in self._numbers:
            self._numbers[key] = len(self.pieces)
            self.pieces.append(Piece(part=part, roles=roles, inside=inside))
        return self._numbers[key]

    def _empty(self, number: int) -> bool:
        """Return whether a piece asks nothing of the attributes inside, whatever the centers are."""
        if number not in self._void:
            self._void[number] = self._asks_nothing(self.pieces[number])
        return self._void[number]

    def _asks_nothing(self, piece: Piece) -> bool:
        if any(piece.part.sizes[i] == 1 for i in piece.inside):
            return True
        if len(piece.part.sizes) > 1:
            return False
        gram = self.gram(piece.part)
        N = basis(piece.part.sizes[0])
        return bool(np.trace(N.T @ gram @ N) <= 1e-13 * np.trace(gram))

    def _settled(self, role: Role) -> bool:
        """Return whether uniform is optimal by symmetry, or the attribute is too large to tune."""
        for piece in self.pieces:
            if role in piece.roles:
                if len(piece.part.sizes) > 1:
                    return piece.part.count * math.prod(piece.part.sizes) > MAX_ROWS
                gram = self.gram(piece.part)
                if not np.allclose(gram, np.roll(gram, (1, 1), (0, 1)), rtol=0, atol=1e-12 * np.abs(gram).max()):
                    return False
        return True

    def rows(self, part: Part) -> Array:
        """Return all rows of a joint part, shape (count, *sizes)."""
        if part.key not in self._rows:
            rows = np.concatenate([chunk for _, chunk in part.family.chunks(part.sizes)])
            self._rows[part.key] = rows.reshape(-1, *part.sizes)
        return self._rows[part.key]

    def evaluate(self, centers: Mapping[Role, Array]) -> tuple[float, dict[Role, Array]]:
        """Return S and its derivative by N^T pi for every tuned role."""
        state = _State(problem=self, centers=centers)
        total = 0.0
        for kind in self.kinds:
            total += kind.count * state.space(kind)
        return total, state.finish()

    def dual(self, key: Any, factor: Factor, centers: Sequence[Array | None]) -> tuple[float, Array, list[Array]]:
        """Solve one Gram, starting from the weights of the last time, and return value and derivatives."""
        with threads_for(factor.rank):
            problem = DualProblem(lift=Lift(factor.sizes, centers), factor=factor)
            start = self._starts.get(key)
            if start is not None and len(start) == problem.variables:
                start = 0.99 * start + 0.01 * problem.multiplicity / problem.multiplicity.sum()
            else:
                start = None
            mass, _ = problem.maximise(self.options, start)
            self._starts[key] = mass
            return problem.sensitivities(mass)

    def gram(self, part: Part) -> Array:
        """Return the Gram of a part on one attribute."""
        if part.key not in self._grams:
            self._grams[part.key] = part.family.gram(part.sizes)
        return self._grams[part.key]

    def one_scalar(self, role: Role, c: float) -> Array:
        """Return V^-1 1 / (1^T V^-1 1), V optimal on all cells for G + c mean(G) 1 1^T, G what is asked of the role."""
        n = self.sizes[role]
        gram = np.zeros((n, n))
        for piece in self.pieces:
            for position in piece.inside:
                if piece.roles[position] == role and len(piece.inside) == 1:
                    seen = self._seen(piece.part, position)
                    gram += seen / np.trace(seen)
        total = Factor(sizes=(n,), matrix=gram + c * gram.mean() * np.ones((n, n)))
        with threads_for(n):
            problem = DualProblem(lift=WholeDomain(n), factor=total)
            pi = problem.solution(*problem.maximise(START)).strategy.covariance @ np.ones(n)
        mass = float(pi.sum())
        if abs(mass) <= ROUNDING * float(np.abs(pi).sum()):  # nobody asks for the total: any center is as good
            return np.full(n, 1.0 / n)
        return pi / mass

    def _seen(self, part: Part, position: int) -> Array:
        """Return the Gram that a part asks of one of its attributes when the others are averaged."""
        if len(part.sizes) == 1:
            return self.gram(part)
        rows = self.rows(part)
        for other in reversed(range(len(part.sizes))):
            if other != position:
                rows = rows.mean(axis=other + 1)
        return rows.T @ rows


@dataclass(kw_only=True, eq=False)
class _State:
    """One evaluation: scalars, factors and solved Grams at given centers, and derivatives collected backwards."""

    problem: CenterProblem
    centers: Mapping[Role, Array]
    scalars: dict[int, float] = field(default_factory=dict)
    by_scalar: dict[int, float] = field(default_factory=dict)
    factors: dict[int, Factor] = field(default_factory=dict)
    by_factor: dict[int, Array] = field(default_factory=dict)
    by_role: dict[Role, Array] = field(default_factory=dict)
    solved: dict[int, tuple[float, Array, list[Array]]] = field(default_factory=dict)

    def center(self, role: Role) -> Array:
        n = self.problem.sizes[role]
        return self.centers.get(role, np.full(n, 1.0 / n))

    def scalar(self, number: int) -> float:
        if number not in self.scalars:
            piece = self.problem.pieces[number]
            if len(piece.roles) == 1:
                pi = self.center(piece.roles[0])
                self.scalars[number] = float(pi @ self.problem.gram(piece.part) @ pi)
            else:
                self.scalars[number] = float(np.sum(self._contracted(piece, ()) ** 2))
        return self.scalars[number]

    def _contracted(self, piece: Piece, keep: Axes) -> Array:
        """Return the rows of a joint part with the centers applied on all positions but those in ``keep``."""
        out = self.problem.rows(piece.part)
        for position in reversed(range(len(piece.roles))):
            if position not in keep:
                out = np.tensordot(out, self.center(piece.roles[position]), axes=(position + 1, 0))
        return out

    def factor(self, number: int) -> Factor:
        if number not in self.factors:
            piece = self.problem.pieces[number]
            sizes = tuple(piece.part.sizes[i] for i in piece.inside)
            if len(piece.roles) == 1:
                N = basis(sizes[0])
                made = Factor(sizes=sizes, matrix=N.T @ self.problem.gram(piece.part) @ N)
            else:
                given = [self.center(r) for r in piece.roles]
                rows = class_rows(
                    piece.part, piece.inside, given, self.problem.rows(piece.part).reshape(piece.part.count, -1)
                )
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
        used = [factors for factors, c in coefficients.items() if c > 0]
        if not used:
            return 0.0
        if len(used) == 1:
            solved = [(axes, number, self._alone(number)) for axes, number in used[0]]
            value = coefficients[used[0]] * math.prod(found[0] for _, _, found in solved)
            outer = 0.5 * kind.count / math.sqrt(value)
            by_coefficient = {used[0]: value / coefficients[used[0]]}
            for axes, number, (own, by_gram, by_center) in solved:
                share = outer * value / own
                self._collect([kind.roles[a] for a in axes], by_center, share)
                self._collect_factor(number, share * by_gram)
        else:
            sizes, axes = tuple(self.problem.sizes[r] for r in kind.roles), tuple(range(len(kind.roles)))
            single = {f: assemble([(1.0, tuple((a, self.factor(k)) for a, k in f))], axes, sizes) for f in used}
            gram = add_factors([(coefficients[f], single[f]) for f in used], sizes)
            centers = [self.centers.get(r) for r in kind.roles]
            value, by_gram, by_center = self.problem.dual(id(kind), gram, centers)
            outer = 0.5 * kind.count / math.sqrt(value)
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

    def _alone(self, number: int) -> tuple[float, Array, list[Array]]:
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
        """Return the derivatives by N^T pi of every role, scalars and joint factors included."""
        for number, change in self.by_scalar.items():
            piece = self.problem.pieces[number]
            if len(piece.roles) == 1:
                role = piece.roles[0]
                gradient = 2.0 * self.problem.gram(piece.part) @ self.center(role)
                self._add(role, change * basis(self.problem.sizes[role]).T @ gradient)
                continue
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
        flat = self.problem.rows(piece.part).reshape(piece.part.count, -1)
        weights = 2.0 * class_rows(piece.part, piece.inside, given, flat) @ by_gram
        for position, role in enumerate(piece.roles):
            if position in piece.inside:
                continue
            keep = tuple(sorted((*piece.inside, position)))
            out = self._contracted(piece, keep)  # (count, sizes of keep)
            for axis in reversed(range(len(keep))):
                if keep[axis] != position:
                    out = np.moveaxis(
                        np.tensordot(out, basis(piece.part.sizes[keep[axis]]), axes=(axis + 1, 0)), -1, axis + 1
                    )
            at = keep.index(position)
            out = np.moveaxis(out, at + 1, -1).reshape(piece.part.count, -1, piece.part.sizes[position])
            gradient = np.einsum("qm,qmn->n", weights, out)
            self._add(role, basis(self.problem.sizes[role]).T @ gradient)
