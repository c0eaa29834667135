"""Tuned centers: the search and the closed form for separable workloads.

Centers where every attribute is asked in one way alone: S and its derivatives over all kinds of spaces at once.

A space of one term is a product: what its attributes ask themselves (inside), times a sum of products of totals
(outside).  So S follows from a few numbers an attribute, whatever the number of spaces.

Tuned centers: choose the vectors pi_i that split a query between a residual space and the smaller ones.

For any pi_i with sum 1 the identity I = P_i + pi_i 1^T, P_i = I - pi_i 1^T, splits every query exactly.  The rows of
P_i span what sums to nothing against pi_i, whatever pi_i is, so the spaces stay linearly independent: each piece is
estimated without bias from its own noisy answers, and so is their sum.  A record moves a block by at most its largest
column norm, and blocks have independent noise: the privacy cost is the sum of the blocks' costs, and by Cauchy and
Schwarz the best shares of the budget have the same closed form.  Only the value changes:

    S(pi) = sum over B of sqrt(L_B(pi)),   RMSE proportional to S.

pi_i = 1 / n_i is the published choice.  Here S is minimised: first along a family with one scalar c, pi_i in proportion
to V_i^-1 1 with V_i optimal for G_i + c 1 1^T (for one attribute alone some c gives the best of all mechanisms), then
by L-BFGS on all centers with the gradient of the envelope theorem.  Where every attribute is asked in one way alone,
products of such families beside, that family holds the best centers, and c follows from the derivatives of S: a few
rounds replace the search.  The start is kept when nothing is better, so a tuned plan is never worse than a uniform one.

That c exists: let V be the optimal privacy cost matrix on the cells of one attribute, c = 1 / (1^T V^-1 1) and
pi = c V^-1 1.  Then V pi = c 1 and pi^T V pi = c, so P^T V P = V - c 1 1^T: the total at precision c and the block
P^T V P have exactly the privacy cost matrix V, and mechanisms with equal ones answer alike.

Attributes that play the same role in the workload share a center; where the Gram of an attribute does not change when
its cells are shifted around (marginals, circular ranges, totals), uniform is optimal by symmetry and stays.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from engine._arrays import Array, Index
from engine.progress import Listener
from engine.residuals.basis import basis
from engine.residuals.dual_solver import Options
from engine.residuals.split import Role
from engine.residuals.tuning.center_objective import CenterProblem, Evaluation
from engine.residuals.tuning.limits import Allowance
from engine.workload import Workload


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


POLISH = Options(gap=2e-6, evaluations=200)
FIXED = Options(gap=1e-5, evaluations=100)
STEPS = 60
ROUNDS = 12
ARRIVED = 1e-6  # a round that would gain less, as a share of S, is not made
SCALARS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)


def tuned_centers(
    workload: Workload,
    watch: Listener,
    start: Mapping[str, Array] | None = None,
    allowance: Allowance | None = None,
) -> dict[str, Array]:
    """Return centers, shape (n_i,), by attribute, that lower S; attributes that keep uniform ones are absent.

    ``start`` holds centers of a similar workload; the search goes on from them when they are better than uniform ones.

    Guarantee: S at the result is at most S at uniform centers, up to the gap of the inner solver, over the groups that
    the allowance holds; when its time is over, the best so far is returned.
    """
    problem = CenterProblem(workload, watch, allowance)
    if not problem.tuned or any(g.query_weights is not None for g in workload.groups):
        return {}
    search = _Search(problem)
    with contextlib.suppress(TimeoutError):
        search.run({role: start[name] for name, role in problem.roles.items() if start and name in start})
    return {name: search.best[role] for name, role in problem.roles.items() if role in search.best}


class _Search:
    """Remembers the best centers that were looked at."""

    def __init__(self, problem: CenterProblem) -> None:
        self.problem = problem
        self.best: dict[Role, Array] = {}
        self.lowest, self.done = math.inf, 0

    def look(self, centers: dict[Role, Array]) -> tuple[float, dict[Role, Array]]:
        """Return S and its derivatives."""
        S, by_role = self.problem.evaluate(centers)
        if self.lowest > S:
            self.lowest, self.best = S, centers
        return S, by_role

    def run(self, given: Mapping[Role, Array]) -> None:
        """Try uniform centers, those given and a family of one scalar, and go down from the best."""
        known = {role: pi for role, pi in given.items() if role in self.problem.tuned}
        if pieces := asked_alone(self.problem):
            self._balance(CenterBalance(self.problem, pieces), known)
            return
        uniform, _ = self.look({})
        if not uniform > 0.0:
            return
        if not (known and self.look(known)[0] < uniform):
            for c in SCALARS:
                self.look({role: self.problem.one_scalar(role, c) for role in self.problem.tuned})
                self.problem.watch(0.1, f"Tuning centers with c = {c:g}")
        # values of coarse searches are no rivals of fine ones
        self.problem.options, self.lowest = POLISH, math.inf
        self._descend(self.best)

    def _balance(self, balance: CenterBalance, start: dict[Role, Array]) -> None:
        """Set every center to the best for what the others make of it, again and again."""
        self.problem.options, self.lowest = FIXED, math.inf
        centers, before = start, math.inf
        for step in range(ROUNDS):
            S, offsets = balance.offsets(centers)
            gain = self.lowest - S
            if gain > 0.0:
                self.lowest, self.best = S, centers
            # gains shrink by about the same factor every round, so that the next one is known before it is made
            shrinks = min(1.0, gain / before) if math.isfinite(before) else 1.0
            if gain * shrinks < ARRIVED * S or not offsets:
                return
            before = gain
            self.problem.watch(0.1 + 0.9 * step / ROUNDS, f"Balancing centers, round {step + 1}")
            found = {role: self.problem.whole_center(role, balance.alone[role][0], c) for role, c in offsets.items()}
            centers = {**centers, **{role: pi for role, pi in found.items() if np.isfinite(pi).all()}}

    def _descend(self, start: Mapping[Role, Array]) -> None:
        """Go down by L-BFGS."""
        import scipy.optimize

        sizes = [self.problem.sizes[r] for r in self.problem.tuned]
        cuts = np.cumsum([n - 1 for n in sizes])[:-1]

        def log_value(x: Array) -> tuple[float, Array]:
            own = zip(self.problem.tuned, sizes, np.split(x, cuts), strict=True)
            S, by_role = self.look({r: 1.0 / n + basis(n) @ part for r, n, part in own})
            self.done += 1
            self.problem.watch(0.1 + 0.9 * min(1.0, self.done / STEPS), f"Tuning centers, step {self.done}")
            found = [by_role.get(r, np.zeros(n - 1)) for r, n in zip(self.problem.tuned, sizes, strict=True)]
            return math.log(S), np.concatenate(found) / S

        first = [basis(n).T @ start.get(r, np.full(n, 1.0 / n)) for r, n in zip(self.problem.tuned, sizes, strict=True)]
        scipy.optimize.minimize(
            log_value,
            np.concatenate(first),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": STEPS, "maxfun": STEPS, "ftol": 1e-7, "gtol": 0.0},
        )
