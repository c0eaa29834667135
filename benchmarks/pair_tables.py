"""Least error of mechanisms that measure two-way tables, compared with tuned plans.

    python -m benchmarks.pair_tables [--write] [--only "[10]^40 abs"]

All attributes have the same queries. "pairs" is the least RMSE, at privacy cost 1, if every two-way
table is measured by the same rows, each with an equal share of the cost, and all queries are
estimated jointly by least squares; "at least" is a proof that none of these mechanisms does better.
Tuned plans are one of them: what lies between "plan" and "pairs" could be won with noise that 1-way
answers share, what lies between "pairs" and "bound" only by measuring three or more attributes
together.

With rows whose Gram is Q on the table of a pair, the symmetric group parts the Gram of everything
into sectors, each A^T Q A with a constant A (`engine/bounds/symmetric.py`), and likewise the Gram
of the workload. Least squares read a piece of every query from every table. Given these pieces, the
best Q is an ordinary matrix mechanism on the cells of one table; for a fixed Q, least squares give
the best pieces. Alternating both steps never increases the error.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from functools import reduce
from pathlib import Path

import numpy as np
import scipy

from benchmarks import options
from benchmarks.row_file import RowFile
from engine._arrays import Array
from engine.analysis.certificates import standard_workload
from engine.bounds.lower_bounds import global_bound
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import basis
from engine.workload import Workload

ROWS = ("[10]^40 affine", "[10]^40 abs", "[20]^40 affine", "[20]^40 abs")
MAX_STEPS = 1_000  # alternating updates of pieces and strategy
MAX_GAP = 2e-5  # gap in the RMSE at which a search ends
RANK_TOLERANCE = 1e-12  # smaller shares of the largest eigenvalue are directions without queries
MIN_EIGENVALUE = 1e-18  # share of the largest eigenvalue to which others are raised for a root


def root(gram: Array, power: float = 0.5) -> Array:
    """Return a power of a positive semidefinite matrix, shape (m, m)."""
    values, U = np.linalg.eigh(gram)
    return np.asarray((U * np.maximum(values, MIN_EIGENVALUE * values.max()) ** power) @ U.T)


def product(matrices: Iterable[Array]) -> Array:
    """Return the Kronecker product."""
    return reduce(lambda a, b: np.asarray(np.kron(a, b)), matrices)


def sectors(n: int, d: int) -> list[tuple[float, Array]]:
    """Return the multiplicity and the matrix A, shape (n^2, width), of every sector.

    The coordinates of a pair are the products of two functions on n cells, the first one constant.
    """
    unit = np.eye(n * n).reshape(n, n, n * n)
    even, odd = {}, {}
    for i in range(n):
        for j in range(i, n):
            even[i, j] = unit[i, i] if i == j else (unit[i, j] + unit[j, i]) / math.sqrt(2.0)
            odd[i, j] = (unit[i, j] - unit[j, i]) / math.sqrt(2.0)
    one = range(1, n)
    S = np.array([even[i, j] for i in one for j in range(i, n)]).T
    L = np.array([odd[i, j] for i in one for j in range(i + 1, n)]).T.reshape(n * n, -1)
    sums, differences = (np.array([pair[0, j] for j in one]).T for pair in (even, odd))
    total = even[0, 0][:, None] * math.sqrt(d * (d - 1) / 2)
    standard = sums * math.sqrt(d / 2 - 1) + differences * math.sqrt(d / 2)
    return [
        (1.0, np.hstack([total, sums * math.sqrt(d - 1), S])),
        (d - 1.0, np.hstack([standard, S, L])),
        (d * (d - 3) / 2, S),
        ((d - 1) * (d - 2) / 2, L),
    ]


def pair_gram(workload: Workload, functions: Array) -> Array:
    """Return the Gram matrix of the queries on a pair in products of functions, shape (n^2, n^2).

    Each 1-way group is divided equally among the pairs with its attribute. ``functions`` has shape
    (n, n) and columns of mean square 1, the first one constant.
    """
    d, n = len(workload.schema.names), len(functions)
    constant, out = np.diag(np.arange(n) == 0.0).astype(float), np.zeros((n * n, n * n))
    for attributes in (workload.schema.names[:1], workload.schema.names[:2]):
        for group in (g for g in workload.groups if g.attributes == tuple(attributes)):
            gram = product(part.family.gram(part.sizes) for part in group.parts)
            values = product([functions / n] * len(attributes))
            gram = group.weight * values.T @ gram @ values
            one = len(attributes) == 1
            out += (np.kron(gram, constant) + np.kron(constant, gram)) / (d - 1) if one else gram
    return out


def pair_tables(workload: Workload) -> tuple[float, float]:
    """Return the least RMSE of strategies on tables of pairs at privacy cost 1, and a lower bound."""
    d, n = len(workload.schema.names), workload.schema[workload.schema.names[0]].size
    functions = np.column_stack([np.ones(n), math.sqrt(n) * basis(n)])
    cells = np.kron(functions, functions)
    H, all_sectors, pairs = pair_gram(workload, functions), sectors(n, d), d * (d - 1) / 2
    # joint rows help only if there are joint queries; rows on one attribute always help
    two = np.flatnonzero(np.arange(n * n) % n * (np.arange(n * n) >= n))
    values, U = np.linalg.eigh(H[np.ix_(two, two)])
    joint_rows = np.zeros((n * n, int((values > RANK_TOLERANCE * values.max()).sum())))
    joint_rows[two] = U[:, len(two) - joint_rows.shape[1] :]
    B = np.hstack([np.delete(np.eye(n * n), two, axis=1), joint_rows])
    parts = []
    for times, A in all_sectors:
        _, sizes, V = np.linalg.svd(B.T @ A, full_matrices=False)
        A = A @ V[sizes > math.sqrt(RANK_TOLERANCE) * sizes.max(initial=1.0)].T
        parts.append((times, A, A.T @ H @ A))
    mu, Q, best, least = np.full(n * n, n**-2.0), B @ B.T, math.inf, 0.0
    transposition = np.arange(n * n).reshape(n, n).T.ravel()
    for step in range(MAX_STEPS):
        total, N, slope = 0.0, np.zeros_like(H), np.zeros_like(H)
        for times, A, M in parts:
            if A.size:
                variances = np.linalg.inv(A.T @ Q @ A)
                read = A @ variances
                total += times * float(np.sum(variances * M))
                N += times * Q @ read @ M @ read.T @ Q
                slope += times * read @ M @ read.T
        # the attributes of a pair are interchangeable
        N, slope = ((X + X[np.ix_(transposition, transposition)]) / 2.0 for X in (N, slope))
        cost = np.einsum("xa,ab,xb->x", cells, Q, cells)
        best = min(best, total * cost.max())
        if step % 20 == 0:
            D = B.T @ (cells.T * mu) @ cells @ B
            # the error is convex in Q, so every Q has an error of at least total^2 / <slope, Q> and a
            # cost of at least <D, Q>
            top = float(scipy.linalg.eigh(B.T @ slope @ B, D, eigvals_only=True)[-1])
            least = max(least, total**2 / top)
            if best <= least * (1.0 + MAX_GAP) ** 2:
                break
        mu = mu * cost / cost.max()
        mu = (mu + mu[transposition]) / (mu.sum() * 2.0)
        narrow = B.T @ (cells.T * mu) @ cells @ B
        half, back = root(narrow), root(narrow, -0.5)
        Q = B @ back @ root(half @ B.T @ N @ B @ half) @ back @ B.T
    return math.sqrt(best * pairs / workload.queries), math.sqrt(least * pairs / workload.queries)


def main(arguments: list[str] | None = None) -> int:
    """Print one row per workload."""
    parser = options(__file__, __doc__)
    parser.add_argument("--only", choices=ROWS, help="one row")
    args = parser.parse_args(arguments)
    head = f"{'workload':<18}{'plan':>10}{'pairs':>10}{'at least':>10}{'bound':>10}"
    head += f"{'plan over':>11}{'pairs over':>12}{'s':>8}"
    output = RowFile(head, Path(__file__).with_suffix(".txt") if args.write else None)
    for name in ROWS:
        begin = f"{name:<18}"
        if args.only not in (None, name) or output.has(begin):
            continue
        workload = standard_workload(*name.split())
        plan_rmse = plan(workload, Budget(pcost=1.0), centers="tuned").weighted_rmse
        start = time.process_time()
        pairs, least = pair_tables(workload)
        seconds = time.process_time() - start
        bound = math.sqrt(global_bound(workload) / workload.queries)
        output.add(
            f"{begin}{plan_rmse:>10.4f}{pairs:>10.4f}{least:>10.4f}{bound:>10.4f}"
            f"{plan_rmse / bound - 1.0:>11.3%}{pairs / bound - 1.0:>12.3%}{seconds:>8.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
