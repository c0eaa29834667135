"""Objective of tuned centers and its gradient.

One evaluation of the sum that tuned centers minimise, with its derivatives; see `center_problem`.

The sum that tuned centers minimise, as a function of the centers, with its gradient; see `centers`.

Residual spaces that look alike are one kind.  Its Gram is a formula in scalars (what a part asks of attributes
outside the space, quadratic in the centers) and factors (what it asks of those inside); derivatives are collected
backwards through solved Grams, factors and scalars.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._arrays import Array, Index, numbered
from engine._threads import threads_for
from engine.progress import Listener
from engine.residuals.basis import Lift, WholeDomain, basis, center, class_rows, contract, grouped
from engine.residuals.decomposition import NEGLIGIBLE, Factor, Spreading, asked_spaces
from engine.residuals.dual_solver import DualProblem, Options
from engine.residuals.kronecker_sums import add_factors, assemble, part_rows, rows_bytes
from engine.residuals.split import Axes, Role
from engine.residuals.strategy_search import dense_bytes, step_seconds
from engine.residuals.tuning.limits import Allowance
from engine.workload import Group, Part, Workload, subsets
from engine.workload.workload import AlikeGroups

if TYPE_CHECKING:
    pass


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


ROUNDING = 1e-9  # a sum this small against its terms is the rounding of zero
MAX_ROWS = 40_000_000  # joint parts with more matrix entries are left out
STEPS = 30  # evaluations that one search takes, for forecasts
JOINT = 20  # steps of a joint part, from the weights of the last time, in one evaluation
SLOWEST = 2.0  # seconds of one evaluation; a space that takes longer is searched term by term
START = Options(gap=1e-4, evaluations=60)


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
    weight times scalar pieces.  With ``apart`` the sum of what the terms need on their own stands for what they need
    together, which is never less.
    """

    count: int
    roles: tuple[Role, ...]
    terms: dict[tuple[tuple[Axes, int], ...], dict[tuple[int, ...], float]]
    apart: bool = False


def roles_of(workload: Workload) -> dict[str, Role]:
    """Return a number for every attribute, equal for attributes that are asked the same in every group."""
    known: dict[Any, int] = {}
    _, weights = np.unique([group.weight for group in workload.groups], return_inverse=True)
    asked: list[Index] = [np.zeros((0, 3), dtype=np.int64)]  # attribute, place, weight
    for alike in workload.alike:
        parts = [(known.setdefault(p.key, len(known)), p.axes) for p in workload.groups[alike.numbers[0]].parts]
        whole = tuple(sorted(number for number, _ in parts))
        for number, axes in parts:
            for position, axis in enumerate(axes):
                place = known.setdefault((number, position, whole), len(known))
                columns = [alike.places[:, alike.ranks.index(axis)], np.full(len(alike.numbers), place)]
                asked.append(np.column_stack([*columns, weights[alike.numbers]]))
    rows = np.concatenate(asked)
    firsts, kind = numbered(rows)
    own: dict[int, list[tuple[int, ...]]] = {}
    for (attribute, *told), times in zip(rows[firsts].tolist(), np.bincount(kind).tolist(), strict=True):
        own.setdefault(attribute, []).append((*told, times))
    numbers: dict[Any, Role] = {}
    return {
        a.name: numbers.setdefault((a.size, tuple(own.get(i, ()))), len(numbers))
        for i, a in enumerate(workload.schema.attributes)
    }


def too_slow(sizes: Sequence[int]) -> bool:
    """Return whether a space that is asked several products takes too long to be searched in every step."""
    return step_seconds(math.prod(n - 1 for n in sizes), math.prod(sizes)) > SLOWEST


class CenterProblem:
    """S as a function of the centers, with its gradient.

    Parameters
    ----------
    workload : groups without weights of single queries.
    watch : told the present fraction and a text; may raise to cancel.
    allowance : groups whose parts it does not hold are left out; attributes that no other group asks keep uniform
        centers.
    """

    def __init__(self, workload: Workload, watch: Listener, allowance: Allowance | None = None) -> None:
        self.workload, self.watch, self.allowance = workload, watch, allowance or Allowance()
        self.roles = roles_of(workload)
        self.sizes = {role: workload.schema[name].size for name, role in self.roles.items()}
        self.pieces: list[Piece] = []
        self._numbers: dict[Any, int] = {}
        self._rows: dict[Any, Array] = {}
        self._starts: dict[Any, Array] = {}
        self._grams: dict[Any, Array] = {}
        self._void: dict[int, bool] = {}
        self._bytes, self._seconds = 0, 0.0
        self._roles = np.array([self.roles[name] for name in workload.schema.names], dtype=np.int64)
        asked = self._alike()
        fits = self._affordable([group for group, *_ in asked])
        self._asked = list(itertools.compress(asked, fits))
        # what is left out is asked of the plan all the same, which has to be better than that with uniform centers
        seen = {role for _, own, _ in self._asked for role in self._roles[own.places[0]].tolist()}
        self.kinds = self._kinds()
        self.tuned = [r for r in sorted(seen) if self.sizes[r] > 1 and not self._settled(r)]
        self.options = START

    def _alike(self) -> list[tuple[Group, AlikeGroups, Array]]:
        """Return groups alike on attributes of equal roles: the first one, all with a weight, and their weights."""
        weights, out = np.array([group.weight for group in self.workload.groups]), []
        for alike in self.workload.alike:
            _, kind = numbered(self._roles[alike.places])
            for k in range(int(kind.max()) + 1):
                own = (kind == k) & (weights[alike.numbers] > 0.0)
                if own.any():
                    chosen = replace(alike, numbers=alike.numbers[own], places=alike.places[own])
                    first = self.workload.groups[chosen.numbers[0]]
                    out.append((first, chosen, weights[chosen.numbers]))
        return sorted(out, key=lambda found: int(found[1].numbers[0]))

    def _affordable(self, firsts: Sequence[Group]) -> list[bool]:
        """Return for the first group of every kind whether its parts can be held, all together, from the smallest."""
        held: dict[Any, bool] = {}
        for group in sorted(firsts, key=lambda g: max((p.cells for p in g.parts), default=0)):
            for part in group.parts:
                key, n, rank = self._part_key(group, part), part.cells, min(part.count, part.cells)
                if key not in held:
                    peak = rows_bytes(part) + dense_bytes(rank, n, n) + 32 * n * n
                    step = step_seconds(rank, n)
                    joint = len(part.sizes) > 1
                    large = joint and (part.count * n > MAX_ROWS or not self.allowance.bearable(JOINT * step))
                    held[key] = not large and self._take(32 * n * n, peak, step)
        return [all(held[self._part_key(first, part)] for part in first.parts) for first in firsts]

    def _part_key(self, group: Group, part: Part) -> Any:
        return part.key, tuple(self.roles[group.attributes[a]] for a in part.axes)

    def _take(self, kept: int, peak: int, step: float) -> bool:
        """Count bytes that stay and seconds of every evaluation, when there is room for them."""
        seconds = self._seconds + STEPS * step
        if not (self.allowance.fits(self._bytes + kept + peak) and self.allowance.worth(seconds)):
            return False
        self._bytes, self._seconds = self._bytes + kept, seconds
        return True

    def _kinds(self) -> list[SpaceKind]:
        products: dict[Any, int] = {}  # numbers of (factors, scalars)
        spreading = []
        for group, own, weights in self._asked:
            pattern = [
                (positions, products.setdefault((factors, scalars), len(products)), 1.0)
                for positions, factors, scalars in self._pattern(group, own.ranks)
            ]
            spreading.append(Spreading(numbers=own.numbers, places=own.places, weights=weights, pattern=pattern))
        known, found = list(products), list[tuple[int, SpaceKind]]()
        for spaces in asked_spaces(spreading, self._roles, self.workload.schema.exact_places):
            counts = np.bincount(spaces.kinds).tolist()
            _, examples = np.unique(spaces.kinds, return_index=True)
            for k, asked in enumerate(spaces.asked):
                terms: dict[Any, dict[tuple[int, ...], float]] = {}
                for number, weight in asked.items():
                    factors, scalars = known[number]
                    terms.setdefault(factors, {})[scalars] = weight
                roles = tuple(self._roles[spaces.places[examples[k]]].tolist())
                found.append((int(spaces.reached[k]), SpaceKind(count=counts[k], roles=roles, terms=terms)))
        # in the order in which the groups come to them, which the last digits of sums depend on
        kinds = [kind for _, kind in sorted(found, key=lambda own: own[0])]
        for shape in sorted(kinds, key=lambda k: math.prod(self.sizes[r] for r in k.roles)):
            if len(shape.terms) > 1:
                sizes = [self.sizes[r] for r in shape.roles]
                d, cells = math.prod(n - 1 for n in sizes), math.prod(sizes)
                peak = dense_bytes(d, d, cells) + 8 * d * ((len(shape.terms) + 4) * d + 3 * cells)
                slow = too_slow(sizes)
                shape.apart = not self._take(0, peak, step_seconds(d, cells)) or slow
        return kinds

    def _pattern(self, group: Group, ranks: Sequence[int]) -> list[Any]:
        position = {axis: p for p, axis in enumerate(ranks)}
        choices = []
        for part in group.parts:
            roles = tuple(self.roles[group.attributes[a]] for a in part.axes)
            options = []
            for inside in subsets(range(len(part.axes))):
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
        """Return whether uniform is optimal by symmetry."""
        for piece in self.pieces:
            if role in piece.roles:
                if len(piece.part.sizes) > 1:
                    return False
                gram = self.gram(piece.part)
                if not np.allclose(gram, np.roll(gram, (1, 1), (0, 1)), rtol=0, atol=1e-12 * np.abs(gram).max()):
                    return False
        return True

    def rows(self, part: Part) -> Array:
        """Return rows with the Gram of a joint part, shape (rows, *sizes)."""
        if part.key not in self._rows:
            self._rows[part.key] = part_rows(part).reshape(-1, *part.sizes)
        return self._rows[part.key]

    def whole(self, part: Part) -> float:
        """Return the trace of the Gram of a part, beside which less is rounding."""
        return float(np.trace(self.gram(part)) if len(part.sizes) == 1 else np.sum(self.rows(part) ** 2))

    def evaluate(self, centers: Mapping[Role, Array]) -> tuple[float, dict[Role, Array]]:
        """Return S and its derivatives by N^T pi, shape (n - 1,) a tuned role; TimeoutError when the time is over."""
        state = Evaluation(problem=self, centers=centers)
        total = 0.0
        for kind in self.kinds:
            total += kind.count * state.space(kind)
        return total, state.finish()

    def whole_center(self, role: Role, inside: int, c: float) -> Array:
        """Return V 1 / (1^T V 1), V the covariance of the best strategy on all cells for G + c 1 1^T. Shape (n,).

        ``inside`` is the number of the piece with the Gram G.
        """
        self.allowance.check()
        n = self.sizes[role]
        factor = Factor(sizes=(n,), matrix=self.gram(self.pieces[inside].part) + c)
        with threads_for(n):
            problem = DualProblem(lift=WholeDomain(n), factor=factor)
            options = replace(self.options, deadline=self.allowance.deadline)
            mass, status = problem.maximise(options, self._starts.get(("whole", role)))
            self._starts["whole", role] = 0.99 * mass + 0.01 / n
            self._starts[inside] = mass  # without its total the attribute has nearly the same weights
            pi = problem.solution(mass, status).strategy.covariance.sum(axis=1)
        return np.asarray(pi / pi.sum())

    def dual(self, key: Any, factor: Factor, centers: Sequence[Array | None]) -> tuple[float, Array, list[Array]]:
        """Solve one Gram from the weights of the last time; value, derivatives in the shapes of `sensitivities`."""
        self.allowance.check()
        with threads_for(factor.rank):
            problem = DualProblem(lift=Lift(factor.sizes, centers), factor=factor)
            start = self._starts.get(key)
            if start is not None and len(start) == problem.variables:
                start = 0.99 * start + 0.01 * problem.multiplicity / problem.multiplicity.sum()
            else:
                start = None
            mass, _ = problem.maximise(replace(self.options, deadline=self.allowance.deadline), start)
            self.allowance.check()
            self._starts[key] = mass
            return problem.sensitivities(mass)

    def gram(self, part: Part) -> Array:
        """Return the Gram of a part on one attribute. Shape (n, n)."""
        if part.key not in self._grams:
            self._grams[part.key] = part.family.gram(part.sizes)
        return self._grams[part.key]

    def one_scalar(self, role: Role, c: float) -> Array:
        """Return V^-1 1 / (1^T V^-1 1), V optimal on all cells for G + c mean(G) 1 1^T, G what is asked of the role.

        Shape (n,).
        """
        n = self.sizes[role]
        gram = np.zeros((n, n))
        for piece in self.pieces:
            for position in piece.inside:
                if piece.roles[position] == role and len(piece.inside) == 1:
                    seen = self._seen(piece.part, position)
                    gram += seen / max(float(np.trace(seen)), 1e-300)
        total = Factor(sizes=(n,), matrix=gram + c * gram.mean() * np.ones((n, n)))
        if not gram.any():
            return np.full(n, 1.0 / n)
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
        means = [None if i == position else center(n, None) for i, n in enumerate(part.sizes)]
        rows = contract(self.rows(part), means, 1)
        return rows.T @ rows
