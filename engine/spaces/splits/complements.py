"""Tuned complements: for queries on pairs that are no products, choose freely how they split into smaller spaces.

Product centers are one way to tell "what only the pair can say" from "what single attributes and the total share".  Any
other complement of the lower functionals does as well.  In class coordinates a query on the pair (i, j) has the pieces

    c    on the pair,   c = q (N_i (x) N_j)
    a_i  on i,          a_i = q (N_i (x) pi_j) + c D_i         (likewise j)
    a_0  on the total,  a_0 = q (pi_i (x) pi_j) + c D_0

with free matrices D = (D_i, D_j, D_0), and the pair measures the lift

    L_B = L_i (x) L_j - D_i (L_i (x) 1^T) - D_j (1^T (x) L_j) - D_0 (1^T (x) 1^T).

Pieces times functionals still add up to the query, so a release is unbiased; every block is measured independently, so
costs add up and the best shares of the budget keep their closed form.  D = 0 is the product split.

Tuning works in coordinates relative to uniform centers, where the chain pair -> attribute -> total has the parameters
Z_i, Z_j, z_0 of a pair and zeta = N^T pi of an attribute, and minimises S = sum of sqrt(L_B) by L-BFGS from the
published split Z = 0, zeta = 0, which is kept when nothing is better.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.progress import Listener
from engine.spaces.coordinates import Lift, SplitLift, basis, class_rows
from engine.spaces.decomposition import NEGLIGIBLE, Factor
from engine.spaces.solvers import DualProblem, Options
from engine.spaces.split import Complement, Space, swapped
from engine.spaces.splits.allowance import Allowance
from engine.spaces.splits.pairs import AskedPair, pair_kinds
from engine.spaces.splits.rows import fewer, product_rows
from engine.threads import threads_for
from engine.workload import Group, Workload

COARSE_STEPS, STEPS = 25, 200
GAIN = 3e-5  # a new start that lowers S by less than this share shows that the search has arrived
COARSE, FINE = Options(gap=1e-3, evaluations=60), Options(gap=1e-4, evaluations=200)


@dataclass(kw_only=True, eq=False)
class PairKind:
    """Pairs that are asked the same, in coordinates relative to uniform centers: rows C, A_i, A_j, a_0."""

    sizes: tuple[int, int]
    C: Array
    A: tuple[Array, Array]
    a0: Array
    swaps: bool  # swapping the attributes changes nothing, so that Z_j is Z_i with its coordinates swapped
    count: int = 0


@dataclass(kw_only=True, eq=False)
class SingleKind:
    """Attributes that are asked the same: own rows (class part, part on the total), and the pairs they are in."""

    n: int
    own: Array
    total: Array
    pairs: Counter[tuple[int, int]] = field(default_factory=Counter)  # (pair kind, slot) -> number
    count: int = 0


class ComplementProblem:
    """S as a function of (Z, z_0) of every kind of pair and zeta of every kind of attribute, with its gradient."""

    def __init__(self, workload: Workload, watch: Listener, allowance: Allowance | None = None) -> None:
        self.workload, self.watch, self.allowance = workload, watch, allowance or Allowance()
        self.options = COARSE
        self.pairs: list[PairKind] = []
        self.singles: list[SingleKind] = []
        self.pair_kind: dict[Space, int] = {}
        self.single_kind: dict[str, int] = {}
        self._starts: dict[Any, Array] = {}
        self._find_kinds()
        self.links = Counter((p, self.single_kind[a], self.single_kind[b]) for (a, b), p in self.pair_kind.items())
        self.constant = math.fsum(g.weight for g in workload.groups if not g.attributes)
        self._layout()

    def _find_kinds(self) -> None:
        on_one: dict[str, list[Group]] = {}
        for group in self.workload.groups:
            if group.weight > 0.0 and len(group.attributes) == 1:
                on_one.setdefault(group.attributes[0], []).append(group)
        for p, ((sizes, _), pairs) in enumerate(pair_kinds(self.workload).items()):
            self.pairs.append(_pair_kind(sizes, pairs[next(iter(pairs))]))
            self.pairs[p].count = len(pairs)
            self.pair_kind |= dict.fromkeys(pairs, p)
        inside: dict[str, Counter[tuple[int, int]]] = {}
        for pair, p in self.pair_kind.items():
            for slot, name in enumerate(pair):
                inside.setdefault(name, Counter())[p, 0 if self.pairs[p].swaps else slot] += 1
        kinds: dict[Any, int] = {}
        for name in self.workload.schema.names:
            own = on_one.get(name, [])
            if name not in inside and not own:
                continue
            seen = inside.get(name, Counter())
            n = self.workload.schema[name].size
            # attributes asked alike share their parameters: the search is as large as there are kinds, not attributes
            alike = (n, frozenset(Counter((g.key, g.weight) for g in own).items()), frozenset(seen.items()))
            if alike not in kinds:
                kinds[alike] = len(self.singles)
                rows = [math.sqrt(g.weight) * product_rows(g) for g in own] or [np.zeros((0, n))]
                stacked = np.concatenate(rows)
                self.singles.append(SingleKind(n=n, own=stacked @ basis(n), total=stacked.mean(axis=1), pairs=seen))
            self.single_kind[name] = kinds[alike]
            self.singles[kinds[alike]].count += 1

    def _layout(self) -> None:
        self.shapes: list[tuple[Any, tuple[int, ...]]] = []
        for p, kind in enumerate(self.pairs):
            m = tuple(n - 1 for n in kind.sizes)
            self.shapes.append((("Z", p, 0), (m[0] * m[1], m[0])))
            if not kind.swaps:
                self.shapes.append((("Z", p, 1), (m[0] * m[1], m[1])))
            self.shapes.append((("z", p), (m[0] * m[1],)))
        self.shapes += [(("zeta", s), (kind.n - 1,)) for s, kind in enumerate(self.singles)]
        self.length = sum(math.prod(shape) for _, shape in self.shapes)

    def parameters(self, x: Array) -> dict[Any, Array]:
        """Return named parameters from one vector, Z_j of symmetric pairs filled in.

        ``x`` has shape (length,); the shapes of parameters are those of `shapes`.
        """
        out, at = {}, 0
        for name, shape in self.shapes:
            out[name] = x[at : at + math.prod(shape)].reshape(shape)
            at += math.prod(shape)
        for p, kind in enumerate(self.pairs):
            if kind.swaps:
                out["Z", p, 1] = swapped(out["Z", p, 0], *(n - 1 for n in kind.sizes))
                out["z", p] = (out["z", p] + swapped(out["z", p], *(n - 1 for n in kind.sizes))) / 2.0
        return out

    def vector(self, gradient: Mapping[Any, Array]) -> Array:
        """Return one vector from derivatives by named parameters; the reverse of `parameters`, transposed.

        Shape (length,).
        """
        pieces = []
        for name, _ in self.shapes:
            value = gradient[name]
            kind = self.pairs[name[1]] if name[0] != "zeta" else None
            if kind is not None and kind.swaps:
                m, k = (n - 1 for n in kind.sizes)
                value = (
                    value + swapped(gradient["Z", name[1], 1], m, k)
                    if name[0] == "Z"
                    else (value + swapped(value, m, k)) / 2
                )
            pieces.append(value.ravel())
        return np.concatenate(pieces)

    def evaluate(self, x: Array) -> tuple[float, Array]:
        """Return S and its gradient. ``x`` and gradient have shape (length,)."""
        at = self.parameters(x)
        gradient = {name: np.zeros_like(value) for name, value in at.items()}
        passed = {
            (p, slot): kind.A[slot] + kind.C @ at["Z", p, slot] for p, kind in enumerate(self.pairs) for slot in (0, 1)
        }
        S = math.fsum(self._pair(p, kind, at, gradient) for p, kind in enumerate(self.pairs))
        S += math.fsum(self._single(s, kind, at, passed, gradient) for s, kind in enumerate(self.singles))
        S += self._total(at, passed, gradient)
        return S, self.vector(gradient)

    def _pair(self, p: int, kind: PairKind, at: Mapping[Any, Array], gradient: dict[Any, Array]) -> float:
        D = Complement(by_axis=(at["Z", p, 0], at["Z", p, 1]), by_total=at["z", p])
        if not kind.C.any():
            return 0.0
        low = len(kind.C) < kind.C.shape[1]
        factor = Factor(sizes=kind.sizes, matrix=kind.C if low else kind.C.T @ kind.C, low_rank=low)
        with threads_for(factor.rank):
            problem, mass = self._solve(("pair", p), factor, SplitLift(kind.sizes, None, ((0, 1),), {(0, 1): D}))
            T, pulls = problem.pulls(mass)
        share = -2.0 * T * kind.count * 0.5 / T  # L = T^2 and the space counts sqrt(L)
        for E, rows in pulls:
            cells = rows.reshape(len(rows), *kind.sizes)
            for slot in (0, 1):
                gradient["Z", p, slot] += share * E @ (cells.sum(axis=2 - slot) @ basis(kind.sizes[slot]))
            gradient["z", p] += share * E @ rows.sum(axis=1)
        return kind.count * T

    def _single(
        self, s: int, kind: SingleKind, at: Mapping[Any, Array], passed: Mapping[Any, Array], gradient: dict[Any, Array]
    ) -> float:
        gram = kind.own.T @ kind.own
        for key, number in kind.pairs.items():
            gram = gram + number * passed[key].T @ passed[key]
        if not np.trace(gram) > 0.0 or kind.n == 1:
            return 0.0
        pi = 1.0 / kind.n + basis(kind.n) @ at["zeta", s]
        factor = Factor(sizes=(kind.n,), matrix=gram)
        with threads_for(kind.n):
            problem, mass = self._solve(("single", s), factor, Lift((kind.n,), [pi]))
            value, by_gram, (by_center,) = problem.sensitivities(mass)
        outer = 0.5 * kind.count / math.sqrt(value)
        gradient["zeta", s] += outer * by_center
        for key, number in kind.pairs.items():
            p, slot = key
            gradient["Z", p, slot] += 2.0 * outer * number * self.pairs[p].C.T @ (passed[key] @ by_gram)
        return kind.count * math.sqrt(value)

    def _total(self, at: Mapping[Any, Array], passed: Mapping[Any, Array], gradient: dict[Any, Array]) -> float:
        value, changes = self.constant, list[tuple[Any, Array]]()
        for s, single in enumerate(self.singles):
            t = single.total + single.own @ at["zeta", s]
            value += single.count * float(t @ t)
            changes.append((("zeta", s), 2.0 * single.count * single.own.T @ t))
        for (p, *slots), number in self.links.items():
            kind = self.pairs[p]
            t = kind.a0 + kind.C @ at["z", p]
            for slot, s in enumerate(slots):
                t = t + passed[p, slot] @ at["zeta", s]
            value += number * float(t @ t)
            back = 2.0 * number * kind.C.T @ t
            changes.append((("z", p), back))
            for slot, s in enumerate(slots):
                changes.append((("Z", p, slot), np.outer(back, at["zeta", s])))
                changes.append((("zeta", s), 2.0 * number * passed[p, slot].T @ t))
        if value <= 0.0:
            return 0.0
        for name, change in changes:
            gradient[name] += 0.5 / math.sqrt(value) * change
        return math.sqrt(value)

    def _solve(self, key: Any, factor: Factor, lift: Lift) -> tuple[DualProblem, Array]:
        self.allowance.check()
        problem = DualProblem(lift=lift, factor=factor)
        start = self._starts.get(key)
        uniform = problem.multiplicity / problem.multiplicity.sum()
        fits = start is not None and len(start) == problem.variables
        options = replace(self.options, deadline=self.allowance.deadline)
        mass, _ = problem.maximise(options, 0.99 * start + 0.01 * uniform if fits and start is not None else None)
        self.allowance.check()
        self._starts[key] = mass
        return problem, mass


def tuned_complements(
    workload: Workload,
    watch: Listener,
    start: Callable[[int], Array | None] = lambda _: None,
    allowance: Allowance | None = None,
) -> tuple[dict[str, Array], dict[Space, Complement], Array]:
    """Return centers by attribute and complements by pair, in schema order, that lower S, and the parameters.

    Centers have shape (n_i,), parameters (length,).
    ``start`` returns parameters of a similar workload to go on from, for their number, or None.

    Guarantee: S at the result is at most S of the published split, up to the gap of the inner solver; when the time of
    the allowance is over, the best so far is returned.
    """
    problem = ComplementProblem(workload, watch, allowance)
    search = _Search(problem)
    with contextlib.suppress(TimeoutError):
        search.run(start(problem.length))
    if search.x.any():
        return *split_of(problem, search.x), search.x
    return {}, {}, search.x


class _Search:
    """Remembers the best parameters that were looked at; without any, zeros stand for the published split."""

    def __init__(self, problem: ComplementProblem) -> None:
        self.problem, self.x = problem, np.zeros(problem.length)
        self.lowest, self.done = math.inf, 0

    def look(self, x: Array) -> tuple[float, Array]:
        """Return log S and its gradient."""
        S, gradient = self.problem.evaluate(x)
        if self.lowest > S:
            self.lowest, self.x = S, x.copy()
        return math.log(S), gradient / S

    def run(self, given: Array | None) -> None:
        """Go down from the better of the published split and what is given, first coarsely, then from where it ends."""
        published, _ = self.problem.evaluate(np.zeros(self.problem.length))
        if not published > 0.0:
            return
        self.lowest = published
        if given is not None:
            self.look(given)
        if self.lowest == published:
            self._descend(COARSE, COARSE_STEPS)
        self.done, gain = 0, math.inf
        while self.done < STEPS and gain > GAIN:
            # L-BFGS may stop on a plateau; a new start forgets its curvature and either goes on or shows the end
            self.problem.options, self.lowest = FINE, math.inf  # values of coarse searches are no rivals of fine ones
            before = self.look(self.x)[0]
            self._descend(FINE, STEPS)
            gain = math.exp(before - math.log(self.lowest)) - 1.0

    def _descend(self, options: Options, steps: int) -> None:
        """Go down by L-BFGS from the best so far, with inner solves as exact as the options say."""
        import scipy.optimize

        self.problem.options = options

        def log_value(x: Array) -> tuple[float, Array]:
            found = self.look(x)
            self.done += 1
            self.problem.watch(min(1.0, self.done / steps), f"Tuning complements, step {self.done}")
            return found

        left = max(1, steps - self.done)
        limits: Any = {"maxiter": left, "maxfun": left, "ftol": 3e-8, "gtol": 0.0, "maxcor": 20}
        scipy.optimize.minimize(log_value, self.x, jac=True, method="L-BFGS-B", options=limits)


def split_of(problem: ComplementProblem, x: Array) -> tuple[dict[str, Array], dict[Space, Complement]]:
    """Return centers, shape (n_i,), and complements relative to the product of those; ``x`` has shape (length,)."""
    at = problem.parameters(x)
    zeta = {name: at["zeta", s] for name, s in problem.single_kind.items()}
    sizes = {name: problem.workload.schema[name].size for name in zeta}
    made: dict[Any, Complement] = {}
    complements = {}
    for pair, p in problem.pair_kind.items():
        a, b = pair
        key = (p, problem.single_kind[a], problem.single_kind[b])
        if key not in made:
            first = at["Z", p, 0] - np.kron(np.eye(sizes[a] - 1), zeta[b][:, None])
            second = at["Z", p, 1] - np.kron(zeta[a][:, None], np.eye(sizes[b] - 1))
            total = at["z", p] + np.kron(zeta[a], zeta[b]) + first @ zeta[a] + second @ zeta[b]
            made[key] = Complement(by_axis=(first, second), by_total=total)
        complements[pair] = made[key]
    return {name: 1.0 / sizes[name] + basis(sizes[name]) @ z for name, z in zeta.items()}, complements


def _pair_kind(sizes: tuple[int, ...], asked: AskedPair) -> PairKind:
    blocks = []
    for group, turned in asked:
        rows = math.sqrt(group.weight) * product_rows(group)
        if turned:
            rows = np.swapaxes(rows.reshape(len(rows), sizes[1], sizes[0]), 1, 2).reshape(len(rows), -1)
        blocks.append(rows)
    stacked = fewer(np.concatenate(blocks))
    swaps = False
    if sizes[0] == sizes[1]:
        probe = np.random.default_rng(3).standard_normal(sizes)
        image = (stacked.T @ (stacked @ probe.ravel())).reshape(sizes)
        turned_image = (stacked.T @ (stacked @ probe.T.ravel())).reshape(sizes).T
        swaps = bool(np.allclose(image, turned_image, rtol=0, atol=1e-9 * np.abs(image).max()))
    total, *axes, C = (class_rows(stacked, sizes, inside) for inside in ((), (0,), (1,), (0, 1)))
    if np.sum(C**2) <= NEGLIGIBLE * np.sum(stacked**2):
        C = np.zeros_like(C)
    return PairKind(sizes=(sizes[0], sizes[1]), C=C, A=(axes[0], axes[1]), a0=total[:, 0], swaps=swaps)
