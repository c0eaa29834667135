"""The search for shares of compositions: more of those that cost most, until none costs more than the bound's norm.

Any shares prove a bound: it holds whatever compositions the search has missed, and however early it ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.arrays import Array, Index
from engine.spaces.bounds.alike import Terms, alike, sectors
from engine.spaces.bounds.compositions import SectorMoments, moments
from engine.spaces.bounds.frames import State
from engine.spaces.bounds.links import Linked
from engine.spaces.bounds.norms import root_trace
from engine.spaces.coordinates import basis
from engine.spaces.split import Role
from engine.threads import threads_for

LOOSENESS = (0.4, 1.2, 4.0)  # of the first compositions: how closely they follow the weights of one attribute
FIRST = 100  # compositions of every looseness
STARTS = 16  # of a look for the dearest composition, half of them by chance
TRIED = 12  # moves of one attribute to another value, those that promise most
JOINED = 0.05  # share of those that join a search
FAINT = 1e-7  # share of a composition that leaves it
ROUNDS = 100
ARRIVED = 1e-4  # share of the norm by which the dearest composition may cost more
STEPS = 25  # of L-BFGS for the shares, in every round
MOST_NUMBERS = 30_000_000  # in the matrices of so many compositions as a search begins with


@dataclass(frozen=True, kw_only=True, eq=False)
class Compositions:
    """Some compositions, shape (m, n), with their matrices, (m, r, r), and traces of all terms, (m,), by sector."""

    counts: Array
    matrices: list[Array]
    sizes: list[Array]

    def only(self, which: Index) -> Compositions:
        """Return those whose numbers are given, shape (k,)."""
        return Compositions(
            counts=self.counts[which], matrices=[x[which] for x in self.matrices], sizes=[x[which] for x in self.sizes]
        )

    def and_more(self, other: Compositions) -> Compositions:
        """Return these and others after them."""
        return Compositions(
            counts=np.concatenate([self.counts, other.counts]),
            matrices=[np.concatenate(pair) for pair in zip(self.matrices, other.matrices, strict=True)],
            sizes=[np.concatenate(pair) for pair in zip(self.sizes, other.sizes, strict=True)],
        )


class Composed:
    """The bound as a function of shares of compositions.

    Parameters
    ----------
    asked : a workload whose free attributes are all asked alike.
    role, d, terms : the role and number of its attributes, and what is asked of every one and every pair of them.
    """

    def __init__(self, asked: Linked, role: Role, d: int, terms: Terms) -> None:
        self.d, self.n = d, asked.sizes[role]
        n = self.n
        constant = np.full(n, n**-0.5)
        state = State(asked, {role: constant}, {role: np.column_stack([np.ones(n), basis(n)])}, derivative=False)
        values = state.frame(role, n).K[:, 1:] / constant[:, None]
        self.sectors = [moments(d, values, sector) for sector in sectors(d, n, terms, state, role)]

    def of(self, counts: Array) -> Compositions:
        """Return compositions, shape (m, n), with their matrices."""
        return Compositions(
            counts=counts,
            matrices=[sector.matrices(counts) for sector in self.sectors],
            sizes=[sector.sizes(counts) for sector in self.sectors],
        )

    def norm(self, known: Compositions, shares: Array) -> tuple[float, list[Array]]:
        """Return a lower bound on the nuclear norm for shares, shape (m,), and its derivative by every mean matrix."""
        total, slopes = 0.0, list[Array]()
        for sector, own, sizes in zip(self.sectors, known.matrices, known.sizes, strict=True):
            value, half = root_trace(np.tensordot(shares, own, 1), size=float(shares @ sizes))
            total += sector.times * value
            if half is not None:
                slopes.append(sector.times * half)
        return total, slopes

    def best(self, known: Compositions, shares: Array, deadline: float) -> Array:
        """Return shares of about the largest norm, shape (m,) and sum 1, from some that are all above 0."""
        import scipy.optimize

        def log_value(roots: Array) -> tuple[float, Array]:
            own, whole = roots**2, float(np.sum(roots**2))
            value, slopes = self.norm(known, own)
            by = sum(np.einsum("mij,ij->m", part, slope) for part, slope in zip(known.matrices, slopes, strict=True))
            # the norm is homogeneous of degree 1/2
            return 0.5 * math.log(whole) - math.log(value), roots / whole - 2.0 * roots * by / value

        def in_time(intermediate_result: Any) -> None:
            if time.monotonic() > deadline:
                raise StopIteration  # ends the search with what it has

        roots: Array = np.sqrt(shares)
        found = scipy.optimize.minimize(
            log_value,
            roots.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=in_time,
            options={"maxiter": STEPS, "maxfun": STEPS, "maxcor": 30, "ftol": 1e-13, "gtol": 1e-9},
        )
        return np.asarray(found.x**2 / np.sum(found.x**2))

    def charged(self, slopes: Sequence[Array]) -> list[SectorMoments]:
        """Return what has the costs of compositions as traces, from derivatives as of `norm`, shape (r, r)."""
        return [sector.turned(_root(2.0 * slope)) for sector, slope in zip(self.sectors, slopes, strict=True)]

    def dearest(self, slopes: Sequence[Array], counts: Array) -> tuple[Array, Array]:
        """Return compositions that cost more than those given, shape (m, n), move by move, and what they cost, (m,)."""
        charged = self.charged(slopes)
        moves = np.array(
            [np.eye(self.n)[b] - np.eye(self.n)[a] for a in range(self.n) for b in range(self.n) if a != b]
        )

        def cost(counts: Array) -> Array:
            return np.asarray(sum(sector.traces(counts) for sector in charged))

        found, costs, left = counts.copy(), cost(counts), np.arange(len(counts))
        while len(left):
            gain = sum(sector.slopes(found[left]) for sector in charged) @ moves.T
            gain[(found[left, None, :] + moves < 0.0).any(axis=2)] = -math.inf
            tried = found[left, None, :] + moves[np.argsort(-gain, axis=1, kind="stable")[:, :TRIED]]
            new = np.where((tried < 0.0).any(axis=2), -math.inf, cost(tried.reshape(-1, self.n)).reshape(len(left), -1))
            rows, top = np.arange(len(left)), new.argmax(axis=1)
            dearer = new[rows, top] > costs[left] * (1.0 + 1e-9)
            found[left[dearer]] = tried[rows, top][dearer]
            costs[left[dearer]] = new[rows, top][dearer]
            left = left[dearer]
        return found, costs


def shares_norm(asked: Linked, roots: Mapping[Role, Array], deadline: float) -> float:
    """Return the largest nuclear norm found until a time of the monotonic clock; 0 where not all is asked alike.

    ``roots``, shape (n,), are those of good weights of the values of an attribute: the first compositions are near.
    """
    terms = alike(asked, asked.links[0]) if asked.sums == [(1.0, {0: 1.0})] else None
    if terms is None or not terms.pair or max(asked.sizes.values()) < 2:
        return 0.0
    d, role = len(asked.links[0].names), asked.roles[asked.links[0].names[0]]
    n = asked.sizes[role]
    joint = sum(len(asked.rows[keys[0]]) if len(keys) == 1 else n * n for keys in terms.pair)
    width = n + min(n * (n - 1) // 2, joint)  # of the matrix of a sector, of which there are four
    if len(LOOSENESS) * FIRST * 4 * width**2 > MOST_NUMBERS:
        return 0.0
    with threads_for(width):
        return _search(Composed(asked, role, d, terms), roots[role] ** 2, deadline)


def _search(problem: Composed, weights: Array, deadline: float) -> float:
    rng, d = np.random.default_rng(0), problem.d

    def drawn(looseness: float, count: int) -> Array:
        return rounded(d * rng.dirichlet(weights * d * looseness, size=count), d)

    known = problem.of(np.unique(np.concatenate([drawn(x, FIRST) for x in LOOSENESS]), axis=0))
    shares = np.full(len(known.counts), 1.0 / len(known.counts))
    value = 0.0
    for _ in range(ROUNDS):
        shares = problem.best(known, shares, deadline)
        kept = np.flatnonzero(shares > FAINT)
        known, shares = known.only(kept), shares[kept] / shares[kept].sum()
        now, slopes = problem.norm(known, shares)
        value = max(value, now)
        if time.monotonic() > deadline:
            break
        near = known.counts[rng.permutation(len(known.counts))[: STARTS // 2]]
        found, costs = problem.dearest(slopes, np.concatenate([drawn(LOOSENESS[0], STARTS // 2), near]))
        # what is known costs as much as the norm where the shares are the best
        new = np.unique(found[costs > now * (1.0 + ARRIVED)], axis=0)
        new = new[~(new[:, None] == known.counts).all(axis=2).any(axis=1)]
        if not len(new):
            break
        known = known.and_more(problem.of(new))
        shares = np.concatenate([shares * (1.0 - JOINED), np.full(len(new), JOINED / len(new))])
    return value


def rounded(x: Array, d: int) -> Array:
    """Return whole numbers near x, shape (m, n), none below 0, with sum d in every row.

    >>> rounded(np.array([[0.4, 1.7, 0.9]]), 3)
    array([[0., 2., 1.]])
    """
    out = np.floor(x)
    for row, rest in zip(out, x - out, strict=True):
        row[np.argsort(-rest, kind="stable")[: round(d - row.sum())]] += 1.0
    return np.asarray(out)


def _root(matrix: Array) -> Array:
    values, U = np.linalg.eigh(matrix)
    return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, None] * U.T)
