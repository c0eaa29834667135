"""Lower bound by product weights: nuclear norms over excitations and reduced attributes.

Nuclear norms that floating point cannot lift: every eigenvalue is lowered by more than its error before the root.

By Weyl's inequality an eigenvalue moves by at most the spectral norm of what rounding added, in the matrix and inside
LAPACK; both stay far below ``SLACK`` times the order of the matrix times the machine's epsilon times the largest
eigenvalue.  Null directions, whose computed eigenvalues are rounding alone, then count as nothing.

What a workload asks, as the bound needs it: terms on attributes with free weights, and the rest in closed form.

An attribute whose Grams do not change when its cells are shifted around (marginals, circular ranges, totals) has
uniform weights at the best, by symmetry.  Then s = mu^(1/2) is an eigenvector of all its Grams, so that nothing couples
the cells' sum to the rest: it is either outside, a factor ``total``, or inside, a factor ``rest``.  Subsets of such
attributes part the problem into `Link`s, one a subset, on the free attributes alone.

The weights of one attribute, seen through the functions of its cells that are looked at closely.

Notation
--------
mu, s        weights of the cells, sum 1, and their roots
K            D^(1/2) times functions of the cells, orthonormal columns, the first one s; shape (n, k)
Y            root of H = D^(1/2) W^T W D^(1/2): rows with the same Gram as those of a family
R = K^T Y K  what a family asks inside K, index 0 for the cells' sum; C = R^2
t            what it asks outside: the nuclear norm of Y on the complement of K

Y is symmetric, and in the bases (K, rest) of its rows and its columns its two blocks off the diagonal are left out: a
pinching, which no nuclear norm survives larger.  For one group alone nothing is lost, because a trace is its blocks'.

The nuclear norm of a link, attribute by attribute inside or outside of K, dense on what is inside.

For every set T of attributes that are outside K, with t their plain factors, the Gram on the others' K is

    M_T = sum over terms A containing T of weight_A (x)_{i in A, not in T} C_i (x) s s^T,

a matrix on excitations: sets of attributes that are in K off s, the others being in s.  Terms that ask T in different
ways are stacked, and count at least as the root of the sum of their squares.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from engine._arrays import Array, Index
from engine._threads import threads_for
from engine.residuals import Space, contract, grouped
from engine.residuals.kronecker_sums import part_rows
from engine.residuals.split import Role
from engine.workload import Part, Workload, whole_group

SLACK = 16.0  # the error bounds of sums and of LAPACK have constants of about 1
GUARD = 1.0 - 1e-7  # covers every rounding that is not an eigenvalue's: sums, products, functions that are orthonormal
EIGENVALUE_CUTOFF = 1e-11  # below this share of the largest, an eigenvalue gives the derivative nothing but noise


def root_trace(matrix: Array, derivative: bool = True, size: float = 0.0) -> tuple[float, Array | None]:
    """Return a lower bound on tr sqrt(M) of a symmetric M >= 0, and its derivative by M, shape as M.

    ``size`` is that of the terms of M, where some were subtracted: their rounding may be more than that of M.

    >>> round(root_trace(np.diag([4.0, 9.0]))[0], 9)
    5.0
    """
    if len(matrix) == 1:
        value = _roots(matrix[0], size) if size else float(np.sqrt(max(matrix[0, 0], 0.0)))
        return value, np.full((1, 1), 0.5 / value if value > 0.0 else 0.0)
    with threads_for(len(matrix)):
        if not derivative:
            return _roots(np.asarray(scipy.linalg.eigvalsh(matrix, check_finite=False), dtype=float), size), None
        eigenvalues, U = scipy.linalg.eigh(matrix, check_finite=False)
        kept = eigenvalues > max(EIGENVALUE_CUTOFF * eigenvalues[-1], 1e-300)
        U = U[:, kept]
        return _roots(eigenvalues, size), (U * (0.5 / np.sqrt(eigenvalues[kept]))) @ U.T


def nuclear(matrix: Array, derivative: bool = True) -> tuple[float, Array]:
    """Return a lower bound on the nuclear norm of a matrix of any shape, and its derivative, shape as the matrix.

    >>> round(nuclear(np.array([[3.0, 4.0]]))[0], 9)
    5.0
    """
    if not matrix.size:
        return 0.0, np.zeros_like(matrix)
    wide = matrix.shape[0] <= matrix.shape[1]
    value, half = root_trace(matrix @ matrix.T if wide else matrix.T @ matrix, derivative)
    if half is None:
        return value, np.zeros((0, 0))
    return value, 2.0 * (half @ matrix if wide else matrix @ half)


def lowered(eigenvalues: Array, size: float = 0.0) -> Array:
    """Return ascending eigenvalues, shape (n,), each lowered by more than its error, none below 0.

    ``size`` is that of what the matrix was made of, where it is more than the largest eigenvalue.

    >>> lowered(np.array([-1e-16, 1e-16, 4.0])).round(9)
    array([0., 0., 4.])
    """
    slack = SLACK * (len(eigenvalues) + 100) * np.finfo(float).eps * max(float(eigenvalues[-1]), size, 0.0)
    return np.maximum(eigenvalues - slack, 0.0)


def _roots(eigenvalues: Array, size: float) -> float:
    return float(np.sqrt(lowered(eigenvalues, size)).sum())


def proved(norm: float, law: str = "gaussian") -> float:
    """Return the bound that a lower bound on a nuclear norm proves, in counts^2 at privacy cost 1.

    For Laplace noise it is twice that, at epsilon 1: an L1 sensitivity is never below the Euclidean one, and Laplace
    noise of scale 1 has variance 2.
    """
    return norm * norm * GUARD * (2.0 if law == "laplace" else 1.0)


PROBES = 3  # random tables that tell whether a part asks the same in both orders
MOST_ENTRIES = 4_000_000  # of the rows of a joint part that is looked at; a larger one counts as nothing
Key = int  # of a part: equal numbers ask the same
Pieces = tuple[tuple[Space, Key], ...]  # attributes and key of every part


@dataclass(frozen=True, kw_only=True, eq=False)
class Link:
    """What is asked of free attributes together with some settled ones: weights by the parts of the free ones."""

    terms: dict[Pieces, float]

    @cached_property
    def names(self) -> Space:
        """Attributes that some part has."""
        return tuple(sorted({name for pieces in self.terms for names, _ in pieces for name in names}))

    def kinds(self, sizes: Mapping[str, int]) -> Counter[tuple[int, ...]]:
        """Return the sizes of the attributes of all sets inside some term, with the number of such sets."""
        seen: set[Space] = set()
        for pieces in self.terms:
            names = sorted(name for part, _ in pieces for name in part)
            for count in range(len(names) + 1):
                seen.update(itertools.combinations(names, count))
        return Counter(tuple(sorted(sizes[name] for name in inside)) for inside in seen)


@dataclass(kw_only=True, eq=False)
class Linked:
    """A workload in links over its free attributes.

    Attributes
    ----------
    links : distinct ones.
    sums : the nuclear norm is the sum over these of root(sum of squares of factor times norm of the link, by number).
    roles, sizes : of the free attributes; attributes with the same role are asked alike and share their weights.
    rows : key of a part -> rows with its Gram, shape (k, cells of the part).
    swaps : key of a part on two attributes -> whether it asks the same of them in both orders.
    singles : role -> keys of its parts on one attribute.
    joints : key of a part on several attributes -> their roles, in one of the places where it is asked.
    """

    links: list[Link]
    sums: list[tuple[float, dict[int, float]]]
    roles: dict[str, Role]
    sizes: dict[Role, int]
    rows: dict[Key, Array]
    swaps: dict[Key, bool]
    singles: dict[Role, list[Key]] = field(default_factory=dict)
    joints: dict[Key, tuple[Role, ...]] = field(default_factory=dict)


def in_links(workload: Workload) -> Linked:
    """Return what a workload asks; groups of weight 0 and joint parts that are too large are left out."""
    rows: dict[Key, Array] = {}
    shapes: dict[Key, Part] = {}
    numbers: dict[Any, Key] = {}
    groups: list[tuple[float, Pieces]] = []
    for group in workload.groups:
        own, weight = group.query_weights, group.weight
        if own is not None and not group.parts:
            weight, own = weight * float(own[0]), None
        parts: Sequence[Part] = group.parts if own is None or len(group.parts) == 1 else (whole_group(group),)
        large = any(len(p.axes) > 1 and p.count * math.prod(p.sizes) > MOST_ENTRIES for p in parts)
        if not group.is_weighted or large:
            continue
        asked: list[tuple[Space, Key]] = []
        for part in parts:
            key = numbers.setdefault((part.key, None if own is None else own.tobytes()), len(numbers))
            if key not in rows:
                rows[key], shapes[key] = part_rows(part, own), part
            asked.append((tuple(group.attributes[a] for a in part.axes), key))
        groups.append((weight, tuple(sorted(asked))))
    joint = {name for _, pieces in groups for names, _ in pieces if len(names) > 1 for name in names}
    settled = _Settled(rows)
    moved = {names[0] for _, pieces in groups for names, key in pieces if len(names) == 1 and settled.of(key) is None}
    free = joint | moved
    swaps = {key: _swaps(rows[key], p.sizes) for key, p in shapes.items() if len(p.sizes) == 2}
    roles = _roles(groups, free, swaps, workload)
    sizes = {role: workload.schema[name].size for name, role in roles.items()}
    links, sums = _sums(_links(groups, free, settled), settled)
    out = Linked(links=links, sums=sums, roles=roles, sizes=sizes, rows=rows, swaps=swaps)
    for _, pieces in groups:
        for names, key in pieces:
            if len(names) == 1 and names[0] in free and key not in out.singles.setdefault(roles[names[0]], []):
                out.singles[roles[names[0]]].append(key)
            if len(names) > 1:
                out.joints.setdefault(key, tuple(roles[name] for name in names))
    return out


def _swaps(rows: Array, sizes: Sequence[int]) -> bool:
    """Return whether a part asks the same of two attributes in both orders, by the answers to random tables."""
    if sizes[0] != sizes[1]:
        return False
    tables = np.random.default_rng(0).standard_normal((PROBES, *sizes))
    one, other = (np.sum((t.reshape(PROBES, -1) @ rows.T) ** 2, axis=1) for t in (tables, tables.transpose(0, 2, 1)))
    return bool(np.allclose(one, other, rtol=1e-12, atol=0.0))


def _roles(
    groups: list[tuple[float, Pieces]], free: set[str], swaps: Mapping[Key, bool], workload: Workload
) -> dict[str, Role]:
    seen: dict[str, list[Any]] = {name: [] for name in workload.schema.names if name in free}
    for weight, pieces in groups:
        keys = tuple(sorted(key for _, key in pieces))
        for names, key in pieces:
            for position, name in enumerate(names):
                if name in free:
                    seen[name].append((key, 0 if swaps.get(key) else position, weight, keys))
    numbers: dict[Any, Role] = {}
    return {
        name: numbers.setdefault((workload.schema[name].size, tuple(sorted(places))), len(numbers))
        for name, places in seen.items()
    }


class _Settled:
    """The two factors of parts whose best weights are uniform: what the sum over cells is worth, and the rest."""

    def __init__(self, rows: dict[Key, Array]) -> None:
        self.rows, self.known = rows, dict[Key, tuple[float, float] | None]()

    def of(self, key: Key) -> tuple[float, float] | None:
        """Return (a, tr sqrt C), or None when the Gram is no function of the distance on a circle."""
        if key not in self.known:
            gram = self.rows[key].T @ self.rows[key]
            n = len(gram)
            alike = np.allclose(gram, np.roll(gram, (1, 1), (0, 1)), rtol=0, atol=1e-12 * np.abs(gram).max())
            # a circulant has its eigenvalues in its Fourier transform, the first one for the sum
            exact = scipy.linalg.circulant(gram[0]) / n
            total = float(exact[0].sum())
            self.known[key] = (total, root_trace(exact - total / n)[0]) if alike else None
        return self.known[key]


def _links(groups: list[tuple[float, Pieces]], free: set[str], settled: _Settled) -> dict[Pieces, dict[Pieces, float]]:
    """Return the terms on free attributes for every set of settled parts that are inside."""
    out: dict[Pieces, dict[Pieces, float]] = {}
    for weight, pieces in groups:
        kept = tuple(p for p in pieces if len(p[0]) > 1 or p[0][0] in free)
        fixed = [p for p in pieces if len(p[0]) == 1 and p[0][0] not in free]
        factors = [settled.known[key] or (0.0, 0.0) for _, key in fixed]
        for inside in itertools.product((False, True), repeat=len(fixed)):
            value = weight * math.prod(f[0] for f, within in zip(factors, inside, strict=True) if not within)
            if all(f[1] > 0.0 for f, within in zip(factors, inside, strict=True) if within):
                terms = out.setdefault(tuple(itertools.compress(fixed, inside)), {})
                terms[kept] = terms.get(kept, 0.0) + value
    return out


def _sums(
    linked: dict[Pieces, dict[Pieces, float]], settled: _Settled
) -> tuple[list[Link], list[tuple[float, dict[int, float]]]]:
    """Return distinct links, and the sums over them, those with the same single link put together."""
    numbers: dict[Any, int] = {}
    links: list[Link] = []
    by_set: dict[Space, dict[int, float]] = {}
    for inside, terms in linked.items():
        key = frozenset(terms.items())
        if key not in numbers:
            numbers[key] = len(links)
            links.append(Link(terms=terms))
        factor = math.prod((settled.known[key] or (0.0, 0.0))[1] for _, key in inside)
        squares = by_set.setdefault(tuple(names[0] for names, _ in inside), {})
        # rows asked in different ways are stacked: |[X; Y]|_*^2 >= |X|_*^2 + |Y|_*^2
        squares[numbers[key]] = math.hypot(squares.get(numbers[key], 0.0), factor)
    single: dict[int, float] = {}
    out: list[tuple[float, dict[int, float]]] = []
    for squares in by_set.values():
        if len(squares) == 1:
            ((number, factor),) = squares.items()
            single[number] = single.get(number, 0.0) + factor
        else:
            out.append((1.0, squares))
    return links, out + [(factor, {number: 1.0}) for number, factor in single.items()]


ROOT_CUTOFF = 1e-6  # roots this small against the largest may be rounding alone, and give the derivative nothing


@dataclass(kw_only=True, eq=False)
class FamilyRoot:
    """One family on one frame, with derivatives by R and t as they come in; ``roots`` and U make Y."""

    gram: Array
    roots: Array
    U: Array
    R: Array
    C: Array
    t: float
    by_root: Array
    by_gram: Array
    by_t: float = 0.0


class Frame:
    """One attribute under weights, with k functions; collects derivatives and carries them back to s.

    Parameters
    ----------
    s : roots of the weights, shape (n,), length 1.
    functions : of the cells, shape (n, k), the first one constant.
    families : key -> rows, shape (m, n).
    """

    def __init__(self, s: Array, functions: Array, families: Mapping[Key, Array]) -> None:
        self.s = s
        K, _ = np.linalg.qr(functions * s[:, None])
        # QR leaves the sign of a column open; a sign that flips between two steps would look like a jump to the climb
        self.K = K * np.where(functions[0] * K[0] < 0.0, -1.0, 1.0)
        self.K[:, 0] = s
        self.F = self.K * s[:, None]  # a row W is W F on K
        self.by_F = np.zeros_like(self.F)
        self.families = {key: self._family(rows) for key, rows in families.items()}

    def _family(self, rows: Array) -> FamilyRoot:
        gram = rows.T @ rows
        with threads_for(len(gram)):
            eigenvalues, U = scipy.linalg.eigh(gram * self.s[:, None] * self.s, check_finite=False)
        roots = np.sqrt(lowered(eigenvalues))
        part = U.T @ self.K
        R = part.T @ (part * roots[:, None])
        # tr Y on the complement of K is what tr Y on K leaves; with all functions in K nothing is left but rounding
        t = max(float(roots.sum() - np.trace(R)), 0.0) if len(R) < len(gram) else 0.0
        return FamilyRoot(
            gram=gram, roots=roots, U=U, R=R, C=R @ R, t=t, by_root=np.zeros_like(R), by_gram=np.zeros_like(R)
        )

    def by_s(self) -> Array:
        """Return the derivative by s for what was collected, shape (n,), along the sphere."""
        by_K = self.s[:, None] * self.by_F
        out = np.einsum("nk,nk->n", self.by_F, self.K)
        for family in self.families.values():
            by_root = family.by_root + family.R @ family.by_gram + family.by_gram @ family.R
            by_root = 0.5 * (by_root + by_root.T)
            by_root[np.diag_indices(len(by_root))] -= family.by_t
            part = family.U.T @ self.K
            by_K += 2.0 * family.U @ (family.roots[:, None] * part) @ by_root
            by_Y = part @ by_root @ part.T
            by_Y[np.diag_indices(len(by_Y))] += family.by_t
            # Y^2 = H makes dY solve Y dY + dY Y = dH: in the eigenbasis of Y a division by sums of roots
            sums = family.roots[:, None] + family.roots
            by_H = np.divide(by_Y, sums, out=np.zeros_like(by_Y), where=sums > ROOT_CUTOFF * family.roots[-1])
            out += 2.0 * ((family.U @ by_H @ family.U.T) * family.gram) @ self.s
        Psi = self.K / self.s[:, None]
        out += np.einsum("nk,nk->n", by_K, Psi)
        # K is the Q of a QR decomposition: with E = Psi ds it moves by E less K times twice the upper triangle of the
        # symmetric K^T E, the diagonal once
        half = np.triu(self.K.T @ by_K)
        half[np.diag_indices(len(half))] *= 0.5
        out -= 2.0 * self.s * np.einsum("nk,nk->n", Psi @ half, Psi)
        # weights have sum 1, so that s stays on the sphere and what points outwards changes nothing
        return np.asarray(out - (out @ self.s) * self.s)


@dataclass(kw_only=True, eq=False)
class Joint:
    """A part on several attributes: its rows on their K, shape (m, k_1, ..., k_p), with the derivative by them."""

    rows: Array
    frames: tuple[Frame, ...]
    Z: Array
    by_rows: Array

    def back(self) -> None:
        """Carry the derivative on to the frames."""
        for axis, frame in enumerate(self.frames):
            out = contract(self.rows, [None if a == axis else f.F for a, f in enumerate(self.frames)], 1)
            rest = tuple(a for a in range(out.ndim) if a != axis + 1)
            # Z is linear in the F of every axis, even where two axes share one frame: each adds its own share
            frame.by_F += grouped(out, [rest, (axis + 1,)]).T @ grouped(self.by_rows, [rest, (axis + 1,)])


class State:
    """All attributes under weights; frames and joint parts are made when they are first asked for.

    Parameters
    ----------
    asked : the workload.
    s : roots of the weights by role.
    functions : by role, the most important first, shape (n, n).
    """

    def __init__(
        self, asked: Linked, s: Mapping[Role, Array], functions: Mapping[Role, Array], derivative: bool
    ) -> None:
        self.asked, self.s, self.functions, self.derivative = asked, s, functions, derivative
        self.frames: dict[tuple[Role, int], Frame] = {}
        self.joints: dict[Any, Joint] = {}

    def frame(self, role: Role, k: int) -> Frame:
        """Return one attribute with k functions."""
        if (role, k) not in self.frames:
            families = {key: self.asked.rows[key] for key in self.asked.singles.get(role, ())}
            self.frames[role, k] = Frame(self.s[role], self.functions[role][:, :k], families)
        return self.frames[role, k]

    def joint(self, key: Key, places: tuple[tuple[Role, int], ...]) -> Joint:
        """Return a part on several attributes, given by role and number of functions."""
        if (key, places) not in self.joints:
            frames = tuple(self.frame(*place) for place in places)
            rows = self.asked.rows[key].reshape(-1, *(len(f.s) for f in frames))
            Z = contract(rows, [frame.F for frame in frames], 1)
            self.joints[key, places] = Joint(rows=rows, frames=frames, Z=Z, by_rows=np.zeros(Z.shape))
        return self.joints[key, places]

    def by_s(self) -> dict[Role, Array]:
        """Return the derivative by s of every role, shape (n,)."""
        for joint in self.joints.values():
            joint.back()
        out = {role: np.zeros(len(s)) for role, s in self.s.items()}
        for (role, _), frame in self.frames.items():
            out[role] += frame.by_s()
        return out


Ways = dict[tuple[Key, ...], dict[Pieces, float]]  # how T is asked -> weights of what is asked of the others
Back = Callable[[float], None]  # takes the derivative by a value


@dataclass(frozen=True, kw_only=True, eq=False)
class Dense:
    """M_T for one T, asked in one way: its order, and for every term weight, parts and where its Gram stands."""

    outside: tuple[tuple[str, Key], ...]
    order: int
    terms: list[tuple[float, Pieces, Index]]


class Excitations:
    """One link with a number of functions for every attribute.

    Parameters
    ----------
    asked, link : what is asked.
    functions : attribute -> k, the number of its functions, the constant one included.
    """

    def __init__(self, asked: Linked, link: Link, functions: Mapping[str, int]) -> None:
        self.asked, self.k = asked, functions
        self.place = {name: (asked.roles[name], k) for name, k in functions.items()}
        sums: dict[Space, Ways] = {}
        for pieces, weight in link.terms.items():
            loose = [p for p in pieces if len(p[0]) == 1 and self.k[p[0][0]] < asked.sizes[asked.roles[p[0][0]]]]
            for count in range(len(loose) + 1):
                for T in itertools.combinations(loose, count):
                    T = tuple(sorted(T, key=lambda p: p[0]))
                    ways = sums.setdefault(tuple(p[0][0] for p in T), {})
                    rest = tuple(p for p in pieces if p not in T)
                    terms = ways.setdefault(tuple(p[1] for p in T), {})
                    terms[rest] = terms.get(rest, 0.0) + weight
        kept = [(1, ways) for ways in sums.items()]
        if max(functions.values(), default=1) == 1:
            kept = self._counted(sums)
        self.sums = [
            (count, [self._dense(tuple(zip(T, way, strict=True)), terms) for way, terms in ways.items()])
            for count, (T, ways) in kept
        ]

    def _counted(self, sums: Mapping[Space, Ways]) -> list[tuple[int, tuple[Space, Ways]]]:
        """Return one of all sets T that agree but for the names of attributes, with their number."""
        roles, kinds = self.asked.roles, dict[Any, tuple[int, tuple[Space, Ways]]]()

        def kind(names: Space, keys: Iterable[Key]) -> Any:
            return tuple(sorted(zip((roles[name] for name in names), keys, strict=True)))

        for T, ways in sums.items():
            asked = []
            for way, terms in ways.items():
                weights: dict[Any, float] = {}
                for pieces, weight in terms.items():
                    own = tuple(sorted((tuple(roles[name] for name in names), key) for names, key in pieces))
                    weights[own] = weights.get(own, 0.0) + weight
                asked.append((kind(T, way), tuple(sorted(weights.items()))))
            key = tuple(sorted(asked))
            count, first = kinds.get(key, (0, (T, ways)))
            kinds[key] = (count + 1, first)
        return list(kinds.values())

    def _dense(self, outside: tuple[tuple[str, Key], ...], terms: Mapping[Pieces, float]) -> Dense:
        offsets: dict[Space, int] = {}
        order, out = 0, []
        for pieces, weight in terms.items():
            names = [name for part, _ in pieces for name in part]
            at = np.zeros([self.k[name] for name in names], dtype=np.int64)
            for mask in itertools.product((False, True), repeat=len(names)):
                inside = tuple(sorted(itertools.compress(names, mask)))
                shape = [self.k[name] - 1 for name in inside]
                if inside not in offsets:
                    offsets[inside] = order
                    order += math.prod(shape)
                block = (offsets[inside] + np.arange(math.prod(shape))).reshape(shape)
                own = [name for name in names if name in inside]
                block = block.transpose([inside.index(name) for name in own])
                at[tuple(slice(1, None) if within else 0 for within in mask)] = block
            out.append((weight, pieces, at.ravel()))
        return Dense(outside=outside, order=order, terms=out)

    def value(self, state: State) -> tuple[float, Back]:
        """Return a lower bound on the nuclear norm, and what takes a derivative by it to the state."""
        found = []
        for count, ways in self.sums:
            parts = [(dense, *self._one(dense, state)) for dense in ways]
            found.append((count, math.sqrt(math.fsum((t * T) ** 2 for _, t, T, _ in parts)), parts))

        def back(outer: float) -> None:
            for count, total, parts in found:
                for dense, t, T, half in parts:
                    if t * T > 0.0 and half is not None:
                        share = outer * count * t * T / total
                        self._back(dense, state, share * t, half)
                        for name, key in dense.outside:
                            family = state.frame(*self.place[name]).families[key]
                            family.by_t += share * t * T / family.t

        return math.fsum(count * total for count, total, _ in found), back

    def _one(self, dense: Dense, state: State) -> tuple[float, float, Array | None]:
        t = math.prod(state.frame(*self.place[name]).families[key].t for name, key in dense.outside)
        M = np.zeros((dense.order, dense.order))
        if t > 0.0:
            for weight, pieces, at in dense.terms:
                gram = np.full((1, 1), weight)
                for own in self._grams(pieces, state):
                    gram = np.asarray(np.kron(gram, own), dtype=float)
                M[np.ix_(at, at)] += gram
        return t, *root_trace(M, state.derivative)

    def _grams(self, pieces: Pieces, state: State) -> list[Array]:
        out = []
        for names, key in pieces:
            if len(names) == 1:
                out.append(state.frame(*self.place[names[0]]).families[key].C)
            else:
                Z = state.joint(key, tuple(self.place[name] for name in names)).Z
                Z = Z.reshape(len(Z), -1)
                out.append(Z.T @ Z)
        return out

    def _back(self, dense: Dense, state: State, share: float, half: Array) -> None:
        for weight, pieces, at in dense.terms:
            grams = self._grams(pieces, state)
            block = share * weight * half[np.ix_(at, at)].reshape([len(g) for g in grams] * 2)
            for p, (names, key) in enumerate(pieces):
                # the derivative by a Kronecker product, by one factor: the trace with every other
                others = [None if q == p else own.ravel() for q, own in enumerate(grams)]
                by = contract(grouped(block, [(q, q + len(grams)) for q in range(len(grams))]), others)
                by = by.reshape(grams[p].shape)
                if len(names) == 1:
                    state.frame(*self.place[names[0]]).families[key].by_gram += by
                else:
                    joint = state.joint(key, tuple(self.place[name] for name in names))
                    joint.by_rows += 2.0 * (joint.Z.reshape(len(joint.Z), -1) @ by).reshape(joint.Z.shape)
