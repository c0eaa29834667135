"""The bound where all attributes are asked alike, for weights that are no product of weights of the attributes.

By symmetry the best weights of the cells stay as they are when attributes trade places.  A cell then counts for its
*composition* alone: how many attributes have which value, c_a of them the value a, with sum d.  Weights are shares of
compositions, and the bound is the nuclear norm of the shares' mean of matrices M(c).  These fall into the sectors of
`alike`.  With orthonormal functions phi_u of the values and a unit vector w over the attributes, orthogonal to the
constant, the columns of a sector stand for

    trivial        1,   sum_i phi_u(x_i) / root(d),   sum_{i<j} S(x_i, x_j) / root(P)
    standard       sum_i w_i phi_u(x_i),   sum_{i<j} (w_i + w_j) S(x_i, x_j) / root(d - 2),
                   sum_{i<j} (w_j - w_i) L(x_i, x_j) / root(d)
    two rows       S(x_i, x_j) of all pairs, less what the sectors above hold of them
    antisymmetric  L(x_i, x_j) likewise

so that every M(c) is made of sums over values, whatever d is.  The bound is concave in the shares.  A cell costs
<M^(-1/2), M(c)>; where none costs more than the norm itself, the bound is the optimum of all matrix mechanisms.
Source: our own; `shares` searches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from engine.arrays import Array
from engine.spaces.bounds.alike import PairColumns, Sector

RANK = 1e-10  # of the largest singular value: queries of a sector that count as nothing


@dataclass(frozen=True, kw_only=True, eq=False)
class SectorMoments:
    """The matrix of one sector for every composition c, shape (r, r):

        sum_{a<b} pair c_a c_b x_ab x_ab^T + pair (c_a choose 2) x_aa x_aa^T + value c_a g_a g_a^T + total g g^T,
        g_a = own_a + sum_b c_b x_ab,   g = sum_a c_a g_a.

    Attributes
    ----------
    times : how often the sector occurs.
    own, x : shapes (n, r) and (n, n, r).
    """

    times: float
    own: Array
    x: Array
    pair: float = 0.0
    value: float = 0.0
    total: float = 0.0

    def matrices(self, counts: Array) -> Array:
        """Return the matrices of compositions, shape (m, n), as shape (m, r, r)."""
        g, single, double = self._parts(counts)
        sums = np.einsum("ma,mar->mr", counts, g)
        out = self.total * sums[:, :, None] * sums[:, None, :]
        if self.value:
            out += self.value * (single[:, :, None] * g).transpose(0, 2, 1) @ g
        if self.pair:
            n, _, r = self.x.shape
            x = self.x.reshape(n * n, r)
            out += self.pair * np.array([(x * w.reshape(-1, 1)).T @ x for w in double])
        return np.asarray(out)

    def traces(self, counts: Array) -> Array:
        """Return the traces of these matrices, shape (m,)."""
        g, single, double = self._parts(counts)
        sums = np.einsum("ma,mar->mr", counts, g)
        out = self.total * np.sum(sums**2, axis=1)
        if self.value:
            out += self.value * np.sum(single * np.sum(g**2, axis=2), axis=1)
        if self.pair:
            out += self.pair * np.einsum("mab,ab->m", double, np.sum(self.x**2, axis=2))
        return np.asarray(out)

    def sizes(self, counts: Array) -> Array:
        """Return the traces of all terms, their signs left out, shape (m,): what rounding is held against."""
        return replace(self, pair=abs(self.pair), value=abs(self.value), total=abs(self.total)).traces(counts)

    def slopes(self, counts: Array) -> Array:
        """Return the derivative of these traces by every count, shape (m, n)."""
        n, _, r = self.x.shape
        g, single, _ = self._parts(counts)
        sums = np.einsum("ma,mar->mr", counts, g)
        moved = g + (counts @ self.x.reshape(n, n * r)).reshape(-1, n, r)  # of the sums
        out = 2.0 * self.total * np.einsum("mar,mr->ma", moved, sums)
        if self.value:
            weighed = (single[:, :, None] * g).reshape(-1, n * r)
            out += self.value * (np.sum(g**2, axis=2) + 2.0 * weighed @ self.x.transpose(0, 2, 1).reshape(n * r, n))
        if self.pair:
            squares = np.sum(self.x**2, axis=2)
            out += self.pair * (counts @ squares - np.diag(squares) / 2.0)
        return np.asarray(out)

    def turned(self, Z: Array) -> SectorMoments:
        """Return the same for Z M Z^T, with Z of shape (s, r)."""
        return replace(self, own=self.own @ Z.T, x=self.x @ Z.T)

    def _parts(self, counts: Array) -> tuple[Array, Array, Array]:
        n, _, r = self.x.shape
        g = self.own + (counts @ self.x.transpose(1, 0, 2).reshape(n, n * r)).reshape(-1, n, r)
        # pairs of attributes with values a and b, half of them with a before b
        double = counts[:, :, None] * counts[:, None, :] / 2.0
        double[:, range(n), range(n)] -= counts / 2.0
        return g, counts, double


def moments(d: int, values: Array, sector: Sector) -> SectorMoments:
    """Return the matrices of a sector of d attributes; ``values`` of all functions but the constant, shape (n, u)."""
    n, u = values.shape
    tables = values[:, None, :, None] * values[None, :, None, :]
    S, L = (PairColumns(u, sign).columns(tables.reshape(-1, u, u)).reshape(n, n, -1) for sign in (1, -1))
    rows = sector.matrix()
    _, sizes, V = np.linalg.svd(rows, full_matrices=False)
    kept = sizes > RANK * sizes.max(initial=0.0)
    # fewer rows have a smaller nuclear norm
    rows = sizes[kept, None] * V[kept]
    out = {
        "trivial": lambda: _trivial(d, values, S, rows),
        "standard": lambda: _standard(d, values, S, L, rows),
        "two rows": lambda: _pairs(d - 2, S, rows, sector.times, 1.0 / (2.0 * (d - 1))),
        "antisymmetric": lambda: _pairs(d, L, rows, sector.times, 0.0),
    }
    return replace(out[sector.name](), times=sector.times)


def _trivial(d: int, values: Array, S: Array, rows: Array) -> SectorMoments:
    zero, one, rest = rows[:, :1], rows[:, 1 : 1 + values.shape[1]], rows[:, 1 + values.shape[1] :]
    x = S[:, :, : rest.shape[1]] @ rest.T / math.sqrt(2.0 * d * (d - 1))
    # the constant is shared out: there are d attributes
    own = zero.T / d + values @ one.T / math.sqrt(d) - np.einsum("aar->ar", x)
    return SectorMoments(times=1.0, own=own, x=x, total=1.0)


def _standard(d: int, values: Array, S: Array, L: Array, rows: Array) -> SectorMoments:
    u = values.shape[1]
    one, even, odd = rows[:, :u], rows[:, u : u + S.shape[2]], rows[:, u + S.shape[2] :]
    x = S[:, :, : even.shape[1]] @ even.T / math.sqrt(d - 2)
    own = values @ one.T - np.einsum("aar->ar", x)
    x = x + (L[:, :, : odd.shape[1]] @ odd.T / math.sqrt(d)).transpose(1, 0, 2)
    return SectorMoments(times=1.0, own=own, x=x, value=1.0 / (d - 1), total=-1.0 / (d * (d - 1)))


def _pairs(k: int, table: Array, rows: Array, times: float, total: float) -> SectorMoments:
    x = table @ rows.T / math.sqrt(k)
    return SectorMoments(
        times=1.0, own=-np.einsum("aar->ar", x), x=x, pair=k / times, value=-1.0 / times, total=total / times
    )
