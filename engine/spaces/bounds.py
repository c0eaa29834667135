"""Lower bounds that hold for every matrix mechanism whatsoever, not only for those of one class.

For any probability weights mu on the cells of the whole domain, D = diag(mu), no strategy of privacy cost 1 has a
smaller weighted squared error than |W D^(1/2)|_*^2, the squared nuclear norm.  With uniform weights this is the
singular value bound.  A nuclear norm is at least <Y, W D^(1/2)> for every Y with Y^T Y <= I, and such test matrices can
be built attribute by attribute:

    mu is a product of weights mu_i, u_i = mu_i^(1/2), P_i the projector off u_i.
    On a part of a group (rows W, one family on a few attributes) choose partial isometries Y_S, one for every subset S
    of its attributes, with orthogonal ranges and Y_S^T Y_S <= the projector on S; v_S = <Y_S, W D^(1/2)>.
    A group A tests residual space B with the product of its parts' Y_S, S = B on the part, times a share; by
    Cauchy and Schwarz the best shares of all groups that hold B give

    |W D^(1/2)|_*  >=  sum over B of sqrt( sum over groups A holding B of weight_A (product over parts of v_S)^2 ).

This has the shape of the value that QuerySmasher reaches, space by space.  Dropping a part makes the bound smaller, so
parts that are too large to look at count as nothing.  Source: our own; the test matrix is the idea of WFF, section 5.5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from engine.arrays import Array
from engine.spaces.decomposition import Factor
from engine.spaces.lifts import WholeDomain, WholeTable
from engine.spaces.solvers import DualProblem, Options
from engine.spaces.split import Axes, Space, digest
from engine.threads import threads_for
from engine.workload import Part, Workload, subsets, whole_group

STRETCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)  # how much more the total counts than the rest when a test matrix is made
MOST_JOINT = 4_000_000  # entries of the rows of a joint part that is looked at
GUARD = 1.0 - 1e-7  # no rounding may lift the bound above what is true
SMALL = 512  # cells of a domain up to which the bound is searched on the domain itself


def global_bound(workload: Workload, law: str = "gaussian") -> float:
    """Return a weighted squared error, in counts^2 at privacy cost 1, that no matrix mechanism can go below.

    For Laplace noise it is twice that, at epsilon 1: an L1 sensitivity is never below the Euclidean one, and Laplace
    noise of scale 1 has variance 2.

    >>> from engine import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 3)])).add("age", "marginal")
    >>> round(global_bound(workload), 6)  # noise on every cell is optimal
    3.0
    """
    return _Search(workload).best() * GUARD * (2.0 if law == "laplace" else 1.0)


def exact_bound(workload: Workload, gap: float = 1e-4, law: str = "gaussian") -> float:
    """Return the best such bound of a small domain, from the dual of the whole problem; see `small_domain`."""
    problem = whole_problem(workload)
    with threads_for(problem.lift.cells):
        mass, _ = problem.maximise(Options(gap=gap))
        return problem.bound(mass) * (2.0 if law == "laplace" else 1.0)


def whole_problem(workload: Workload) -> DualProblem:
    """Return the problem of the best strategy on all cells of the attributes that are asked about."""
    sizes = workload.schema.sizes(asked(workload))
    lift = WholeTable(sizes)
    gram = lift.classes(lift.classes(domain_gram(workload)).T)
    return DualProblem(lift=lift, factor=Factor(sizes=sizes, matrix=gram))


def asked(workload: Workload) -> Space:
    """Return the attributes that some group asks about, in schema order."""
    names = {name for g in workload.groups for name in g.attributes}
    return tuple(name for name in workload.schema.names if name in names)


def small_domain(workload: Workload, cells: int = SMALL) -> bool:
    """Return whether the attributes that are asked about have at most this many cells together."""
    return math.prod(workload.schema.sizes(asked(workload))) <= cells


def domain_gram(workload: Workload) -> Array:
    """Return W^T diag(weights) W on all cells of the attributes that are asked about. Shape (cells, cells)."""
    names = asked(workload)
    sizes = workload.schema.sizes(names)
    cells = math.prod(sizes)
    out = np.zeros((cells, cells))
    for group in workload.groups:
        if group.weight == 0.0:
            continue
        order = [names.index(n) for n in group.attributes]
        if group.query_weights is None:
            matrix, axes = np.ones((1, 1)), list[int]()
            for part in group.parts:
                matrix = np.asarray(np.kron(matrix, part.family.gram(part.sizes)), dtype=float)
                axes += [order[a] for a in part.axes]
        else:
            rows, axes = np.ones((1, 1)), []
            for part in group.parts:
                rows = np.asarray(np.kron(rows, part.family.rows(part.sizes)), dtype=float)
                axes += [order[a] for a in part.axes]
            matrix = (rows * group.query_weights[:, None]).T @ rows
        rest = [a for a in range(len(sizes)) if a not in axes]
        matrix = np.asarray(np.kron(matrix, np.ones((math.prod(sizes[a] for a in rest),) * 2)), dtype=float)
        place = [(axes + rest).index(a) for a in range(len(sizes))]
        shape = [sizes[a] for a in axes + rest]
        moved = matrix.reshape([*shape, *shape]).transpose(*place, *(len(sizes) + p for p in place))
        out += group.weight * moved.reshape(cells, cells)
    return out


Values = Mapping[Axes, float]  # positions of the part inside the space -> <Y_S, W D^(1/2)>


@dataclass(kw_only=True, eq=False)
class _Kind:
    """One kind of part under the weights of its attributes, with every test matrix that was made for it."""

    options: list[Values]
    chosen: int = 0


class _Search:
    """Chooses weights for every attribute and a test matrix for every kind of part."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def best(self) -> float:
        """Return the best bound found."""
        return max(self._bound(weights) for weights in self._weights())

    def _weights(self) -> list[dict[str, Array]]:
        """Return candidate weights: uniform, and those that are optimal for every attribute on its own."""
        grams: dict[str, Array] = {}
        for group in self.workload.groups:
            for part in group.parts:
                if len(part.axes) == 1 and group.weight > 0:
                    name = group.attributes[part.axes[0]]
                    grams.setdefault(name, np.zeros((part.sizes[0],) * 2))
                    grams[name] += _unit_gram(part)
        out: list[dict[str, Array]] = [{}]
        known: dict[Any, Array] = {}
        for stretch in (1.0, 3.0, 10.0, 100.0):
            chosen = {}
            for name, gram in grams.items():
                if not gram.any():
                    continue
                key = (stretch, gram.tobytes())
                if key not in known:
                    # a total counted more or less often moves the weights between the middle and the ends
                    known[key] = _optimal_weights(gram + (stretch - 1.0) * gram.mean())
                chosen[name] = known[key]
            out.append(chosen)
        return out

    def _bound(self, weights: Mapping[str, Array]) -> float:
        kinds: dict[Any, _Kind] = {}
        rows: list[tuple[float, list[tuple[Axes, Any]], list[int]]] = []
        for group in self.workload.groups:
            if group.weight == 0.0:
                continue
            own, weight, used = group.query_weights, group.weight, []
            if own is not None and not group.parts:
                weight, own = weight * float(own[0]), None
            for part in group.parts if own is None or len(group.parts) == 1 else (whole_group(group),):
                given = [weights.get(group.attributes[a]) for a in part.axes]
                key = (part.key, own is not None and own.tobytes(), *map(digest, given))
                if key not in kinds:
                    kinds[key] = _Kind(options=_options(part, given, own))
                used.append((part.axes, key))
            rows.append((weight, used, [self.workload.schema.order[n] for n in group.attributes]))
        best = self._value(rows, kinds)
        for choice in range(1, max((len(k.options) for k in kinds.values()), default=1)):
            previous = [k.chosen for k in kinds.values()]
            for kind in kinds.values():
                kind.chosen = min(choice, len(kind.options) - 1)
            found = self._value(rows, kinds)
            if found > best:
                best = found
            else:
                for kind, old in zip(kinds.values(), previous, strict=True):
                    kind.chosen = old
        if len(kinds) > 1 and len(kinds) * len(rows) < 20_000:
            for kind in kinds.values():
                kept = kind.chosen
                for choice in range(len(kind.options)):
                    kind.chosen = choice
                    if (found := self._value(rows, kinds)) > best:
                        best, kept = found, choice
                kind.chosen = kept
        return best

    @staticmethod
    def _value(rows: Sequence[tuple[float, list[tuple[Axes, Any]], list[int]]], kinds: Mapping[Any, _Kind]) -> float:
        spaces: dict[tuple[int, ...], float] = {}
        for weight, used, order in rows:
            choices = [
                [(tuple(order[axes[i]] for i in inside), v) for inside, v in kinds[k].options[kinds[k].chosen].items()]
                for axes, k in used
            ]
            for combination in itertools.product(*choices):
                value = weight
                for _, v in combination:
                    value *= v * v
                if value > 0.0:
                    space = tuple(sorted(a for inside, _ in combination for a in inside))
                    spaces[space] = spaces.get(space, 0.0) + value
        return math.fsum(math.sqrt(v) for v in spaces.values()) ** 2


def _unit_gram(part: Part) -> Array:
    gram = part.family.gram(part.sizes)
    return gram / max(float(np.trace(gram)), 1e-300)


def _optimal_weights(gram: Array) -> Array:
    problem = DualProblem(lift=WholeDomain(len(gram)), factor=Factor(sizes=(0,), matrix=gram))
    with threads_for(len(gram)):
        mass, _ = problem.maximise(Options(gap=1e-3))
    return mass


def _options(part: Part, given: Sequence[Array | None], own: Array | None) -> list[Values]:
    """Return the values of several test matrices for one part, whose queries may have weights of their own."""
    weights = [np.full(n, 1.0 / n) if g is None else g for n, g in zip(part.sizes, given, strict=True)]
    with threads_for(max(part.sizes)):
        if len(part.sizes) == 1:
            return _single(part, weights[0], own)
        if part.count * math.prod(part.sizes) > MOST_JOINT:
            return [{(): 0.0}]
        return _joint(part, weights, own)


def _single(part: Part, mu: Array, own: Array | None) -> list[Values]:
    root = np.sqrt(mu)
    gram = part.family.gram(part.sizes, own) * root[:, None] * root
    total = math.sqrt(max(0.0, float(root @ gram @ root)))
    out: list[Values] = []
    for stretch in STRETCHES:
        S = np.eye(len(mu)) + (stretch - 1.0) * np.outer(root, root)
        values, U = scipy.linalg.eigh(S @ gram @ S)
        kept = values > 1e-11 * max(values[-1], 1e-300)
        if not kept.all():
            break  # the polar factor is no isometry on all cells, so its ranges would not be orthogonal
        Q = (U / np.sqrt(values)) @ U.T @ S @ gram
        a = float(root @ Q @ root)
        out.append({(): max(a, 0.0), (0,): max(float(np.trace(Q)) - a, 0.0)})
    if total > 0.0:
        passed = gram @ root / total
        rest = scipy.linalg.eigvalsh(gram - np.outer(passed, passed))
        out.append({(): total, (0,): float(np.sqrt(np.maximum(rest, 0.0)).sum())})
    return out or [{(): 0.0}]


def _joint(part: Part, weights: Sequence[Array], own: Array | None) -> list[Values]:
    """Return the values for some orders in which the subsets of the axes take their ranges."""
    root: Array = np.ones(1)
    for mu in weights:
        root = np.asarray(np.kron(root, np.sqrt(mu)), dtype=float)
    X = np.concatenate([rows for _, rows in part.family.chunks(part.sizes)]) * root
    if own is not None:
        X = X * np.sqrt(own)[:, None]
    inside = list(subsets(range(len(part.sizes))))
    pieces = {s: _project(X, part.sizes, weights, s) for s in inside}
    out: list[Values] = []
    for order in (inside, inside[::-1], [inside[0], *inside[:0:-1]]):
        taken, values = np.zeros((len(X), 0)), dict[Axes, float]()
        for s in order:
            left = pieces[s] - taken @ (taken.T @ pieces[s])
            U, singular, _ = np.linalg.svd(left, full_matrices=False)
            kept = singular > 1e-9 * max(float(np.linalg.norm(pieces[s])), 1e-300)
            values[s] = float(singular[kept].sum())
            taken = np.linalg.qr(np.concatenate([taken, U[:, kept]], axis=1))[0]
        out.append(values)
    return out


def _project(X: Array, sizes: Sequence[int], weights: Sequence[Array], inside: Axes) -> Array:
    """Return rows of X on the cells projected off u_i for the axes inside and onto u_i for the others."""
    table = X.reshape(len(X), *sizes)
    for axis, mu in enumerate(weights):
        u = np.sqrt(mu)
        along = np.tensordot(table, u, axes=(axis + 1, 0))
        onto = np.moveaxis(np.multiply.outer(along, u), -1, axis + 1)
        table = table - onto if axis in inside else onto
    return table.reshape(len(X), -1)
