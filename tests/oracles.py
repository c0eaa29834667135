"""Brute-force oracles on the full domain, independent of the engine's formulas.

Notation: the full domain has N cells, in row-major order of the schema's attributes. W are query
rows, shape (queries, N), and B strategy rows with independent noise, shape (measurements, N).
Queries are evaluated cell by cell from the definition of their family, without the rows, Gram
matrices and formulas of the engine.
"""

import functools
import itertools
import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from engine.workload.families import family

# singular values below this fraction of the largest one count as zero
RANK = 1e-9


def codes(sizes):
    """Return the codes of all attributes for every cell of the domain, shape (N, attributes)."""
    return np.array(list(itertools.product(*(range(n) for n in sizes))), dtype=int).reshape(
        -1, len(sizes)
    )


def conditions(query_family, attributes):
    """Return one predicate per query of a family, in order.

    A predicate takes the code of each attribute in a cell and returns whether the query counts it.
    """
    sizes = [a.size for a in attributes]
    n, m = sizes[0], sizes[-1]
    match query_family.name:
        case "marginal":
            return [partial(lambda c, x: x == c, c) for c in range(n)]
        case "prefix":
            return [partial(lambda c, x: x <= c, c) for c in range(n)]
        case "suffix":
            return [partial(lambda c, x: x >= c, c) for c in range(n)]
        case "range":
            return [
                partial(lambda low, high, x: low <= x <= high, i, j)
                for i in range(n)
                for j in range(i, n)
            ]
        case "circular":
            return [
                partial(lambda i, k, x: (x - i) % n < k, i, k)
                for i in range(n)
                for k in range(1, n + 1)
            ]
        case "total":
            return [lambda x: True]
        case "width":
            starts = range(n - query_family.width + 1)
            return [partial(lambda i, x: i <= x < i + query_family.width, i) for i in starts]
        case "level" | "levels":
            (attribute,) = attributes
            levels = {
                level.name: level.area_of_cell
                for hierarchy in attribute.hierarchies
                for level in hierarchy.levels
                if query_family.hierarchy in (None, hierarchy.name)
            }
            levels[attribute.name] = np.arange(n)
            names = getattr(query_family, "levels", None) or [query_family.level]
            return [
                partial(lambda areas, area, x: areas[x] == area, levels[name], area)
                for name in names
                for area in range(max(levels[name]) + 1)
            ]
        case "affine":
            return [partial(lambda c, x, y: x + y <= c, c) for c in range(n + m - 1)]
        case "abs":
            return [partial(lambda c, x, y: abs(x - y) <= c, c) for c in range(max(n, m))]
        case "random":
            count = 3 * math.prod(sizes) if query_family.queries is None else query_family.queries
            drawn = (
                np.random.default_rng([query_family.seed, *sizes]).random((count, math.prod(sizes)))
                < query_family.p
            )
            return [partial(_entry, row, sizes) for row in drawn]
        case "custom" if query_family.predicates is not None:
            return [partial(_predicate, text, attributes) for text in query_family.predicates]
        case "custom":
            return [partial(_entry, row, sizes) for row in query_family.matrix]
    raise AssertionError(f"add the queries of the family {query_family.name} to the oracle")


def _entry(row, sizes, *cell):
    """Return the entry of a query row for a cell, which is given by its codes."""
    position = 0
    for n, c in zip(sizes, cell, strict=True):
        position = position * n + c
    return row[position]


def _predicate(text, attributes, *cell):
    """Evaluate a predicate text as Python; a numeric cell has the midpoint of its bin."""
    values = {}
    for a, c in zip(attributes, cell, strict=True):
        if a.labels is not None:
            values[a.name] = a.labels[c]
        else:
            values[a.name] = c if a.edges is None else (a.edges[c] + a.edges[c + 1]) / 2
    return eval(text, {"abs": abs}, values)


def family_rows(query_family, attributes):
    """Return the query rows of a family on its attributes, shape (queries, product of sizes)."""
    cells = codes([a.size for a in attributes])
    return np.array(
        [[float(holds(*cell)) for cell in cells] for holds in conditions(query_family, attributes)]
    )


def group_rows(schema, group):
    """Return the query rows of a group on the full domain, shape (queries, N)."""
    cells = codes([a.size for a in schema.attributes])
    names = list(schema.names)

    def factor(query_family, chosen):
        query_family = family(query_family)
        attributes = [schema[name] for name in chosen]
        columns = [names.index(name) for name in chosen]
        cell_numbers = np.ravel_multi_index(cells[:, columns].T, [a.size for a in attributes])
        return family_rows(query_family, attributes)[:, cell_numbers]

    if not group.attributes:
        return np.ones((1, len(cells)))
    if isinstance(group.family, Mapping):
        factors = [factor(group.family[name], (name,)) for name in group.attributes]
    elif family(group.family).arity == 1:
        factors = [factor(group.family, (name,)) for name in group.attributes]
    else:
        factors = [factor(group.family, group.attributes)]
    rows = factors[0]
    # the last attribute varies fastest
    for more in factors[1:]:
        rows = np.array([a * b for a in rows for b in more])
    return rows


@functools.lru_cache(maxsize=64)
def workload_rows(workload):
    """Return the query rows of every group, each of shape (queries, N); cached per workload."""
    groups = [group_rows(workload.schema, g) for g in workload.groups]
    for rows in groups:
        rows.flags.writeable = False
    return groups


def query_weights(workload):
    """Return the weights of all queries of every group, each of shape (queries,)."""
    out = []
    for group, rows in zip(workload.groups, workload_rows(workload), strict=True):
        weights = np.ones(len(rows)) if group.query_weights is None else group.query_weights
        out.append(group.weight * weights)
    return out


def block_rows(schema, block):
    """Return the strategy rows of a block on the full domain, shape (measurements, N)."""
    sizes, names = [a.size for a in schema.attributes], list(schema.names)
    cells, out = codes(sizes), np.ones((1, math.prod(sizes)))
    for axes, strategy in block.factors:
        columns = [names.index(block.attributes[a]) for a in axes]
        cell_numbers = np.zeros(len(cells), dtype=int)
        for column in columns:
            cell_numbers = cell_numbers * sizes[column] + cells[:, column]
        out = np.array([a * b for a in out for b in strategy.rows[:, cell_numbers]])
    return out


class Explicit:
    """Plan as one matrix: strategy rows on the full domain, divided by their noise scale."""

    def __init__(self, plan):
        self.law = plan.budget.law
        self.blocks = {
            space: block_rows(plan.schema, b) / b.noise for space, b in plan.blocks.items()
        }
        self.rows = np.concatenate(list(self.blocks.values()))
        _, s, vt = np.linalg.svd(self.rows, full_matrices=False)
        measured = s > RANK * s[0]
        self.s, self.vt = s[measured], vt[measured]

    @property
    def pcost(self):
        """Return the privacy cost by definition: the largest diagonal entry of B^T Sigma^-1 B.

        For Laplace noise it is the squared epsilon.
        """
        return self._cost(self.rows)

    def block_pcost(self, space):
        return self._cost(self.blocks[space])

    def _cost(self, rows):
        if self.law == "laplace":
            # the rows are divided by the standard deviation, sqrt(2) times the Laplace scale
            return float(np.max(np.sum(np.abs(rows), axis=0))) ** 2 * 2
        return float(np.max(np.sum(rows**2, axis=0)))

    def of_group(self, number):
        """Return the matrix from which a group is answered; `LocalExplicit` uses one component."""
        return self

    def covariance(self, W):
        """Return the covariance of the best linear unbiased answers, W (B^T Sigma^-1 B)^+ W^T."""
        half = W @ self.vt.T / self.s
        return half @ half.T

    def variances(self, W):
        """Return the variances of the best linear unbiased answers; infinite outside the row space."""
        out = np.sum((W @ self.vt.T / self.s) ** 2, axis=1)
        return np.where(self.answers(W), out, math.inf)

    def answers(self, W):
        """Return whether each query lies in the row space of the strategy."""
        residual = W - (W @ self.vt.T) @ self.vt
        return np.linalg.norm(residual, axis=1) <= 1e-7 * np.linalg.norm(W, axis=1)


class Unmeasured:
    """Replacement of `Explicit` for a zero-weight group that no component of a plan measures."""

    def variances(self, W):
        return np.where(W.any(axis=1), math.inf, 0.0)


class LocalExplicit(Explicit):
    """Plan whose components are estimated separately; each query is answered by one component."""

    def __init__(self, plan):
        super().__init__(plan)
        self.parts = []
        for rows in self.blocks.values():
            part = object.__new__(Explicit)
            part.rows, part.law = rows, self.law
            _, s, vt = np.linalg.svd(rows, full_matrices=False)
            part.s, part.vt = s[s > RANK * s[0]], vt[s > RANK * s[0]]
            self.parts.append(part)
        self.answered_by = plan.answered_by

    def of_group(self, number):
        part = self.answered_by[number]
        return self.parts[part] if part >= 0 else Unmeasured()

    def _each(self, W):
        """Return the variances of all components, and the component that answers each query.

        The shapes are (components, queries) and (queries,). A query is answered by the first
        component of smallest variance.
        """
        each = np.array([part.variances(W) for part in self.parts])
        return each, np.argmax(each <= each.min(axis=0) * (1 + 1e-6), axis=0)

    def variances(self, W):
        each, chosen = self._each(W)
        return each[chosen, np.arange(len(W))]

    def answers(self, W):
        return np.any([part.answers(W) for part in self.parts], axis=0)

    def covariance(self, W):
        chosen = self._each(W)[1]
        out = np.zeros((len(W), len(W)))
        for number, part in enumerate(self.parts):
            numbers = [i for i, c in enumerate(chosen) if c == number]
            if numbers:
                out[np.ix_(numbers, numbers)] = part.covariance(W[numbers])
        return out


def explicit(plan):
    """Return the explicit matrices of a plan, with or without separate components."""
    return LocalExplicit(plan) if hasattr(plan, "answered_by") else Explicit(plan)


def residual_projector(sizes, inside):
    """Return the projector onto the residual space of the axes ``inside``, shape (N, N)."""
    out = np.ones((1, 1))
    for axis, n in enumerate(sizes):
        mean = np.full((n, n), 1.0 / n)
        out = np.kron(out, np.eye(n) - mean if axis in inside else mean)
    return out


def weighted_gram(workload):
    """Return W^T diag(weights) W on the full domain, shape (N, N)."""
    pairs = zip(workload_rows(workload), query_weights(workload), strict=True)
    return sum((rows * weights[:, None]).T @ rows for rows, weights in pairs)


def optimum(gram, tolerance=2e-6, steps=20_000):
    """Return bounds (low, high) on min tr(G X^-1) over all X with diag X <= 1.

    The method is multiplicative updates of one dual weight mu per cell. With D = diag(mu), the
    strategy X = D^-1/2 (D^1/2 G D^1/2)^1/2 D^-1/2 is optimal if its diagonal is 1 wherever mu > 0
    and at most 1 elsewhere. The bounds hold in every step.
    """
    mu = np.full(len(gram), 1.0 / len(gram))
    low, high = 0.0, math.inf
    for _ in range(steps):
        root = np.sqrt(mu)
        values, U = np.linalg.eigh(root[:, None] * gram * root)
        # Eigenvalues near 0 count as 0, because the square root would enlarge their rounding
        # errors.
        half = np.sqrt(np.where(values > 1e-14 * values[-1], values, 0.0))
        T = float(half.sum())
        diagonal = np.einsum("ck,k,ck->c", U, half, U) / mu
        low, high = max(low, T * T), min(high, float(diagonal.max()) * T)
        if math.sqrt(high / low) <= 1.0 + tolerance:
            break
        mu = np.maximum(mu * diagonal, 1e-14)
        mu /= mu.sum()
    return low, high


def class_optimum(workload, budget, tolerance=2e-6):
    """Return bounds (low, high) on the smallest weighted RMSE of a class of plans.

    These plans have uniform centers and measure every residual space by its own strategy.
    """
    sizes = [a.size for a in workload.schema.attributes]
    low = 0.0
    high = 0.0
    gram, cells = weighted_gram(workload), codes(sizes)
    for inside in itertools.chain.from_iterable(
        itertools.combinations(range(len(sizes)), k) for k in range(len(sizes) + 1)
    ):
        P = residual_projector(sizes, inside)
        space_gram = P @ gram @ P
        if np.trace(space_gram) <= 1e-12 * np.trace(gram):
            continue
        # The Gram matrix does not depend on the attributes outside the space, so one cell of each
        # such attribute is enough.
        first = [
            i
            for i, cell in enumerate(cells)
            if not any(cell[j] for j in range(len(sizes)) if j not in inside)
        ]
        interval = optimum(space_gram[np.ix_(first, first)], tolerance)
        low, high = low + math.sqrt(interval[0]), high + math.sqrt(interval[1])
    scale = math.sqrt(budget * workload.queries)
    return low / scale, high / scale


def svd_bound(workload, budget):
    """Return the singular value bound: a lower bound on the weighted RMSE of every mechanism."""
    cells = math.prod(a.size for a in workload.schema.attributes)
    return singular_sum(workload) / math.sqrt(cells * budget * workload.queries)


@functools.lru_cache(maxsize=64)
def singular_sum(workload):
    """Return the sum of singular values of the query rows, each times the root of its weight."""
    pairs = zip(workload_rows(workload), query_weights(workload), strict=True)
    W = np.concatenate([np.sqrt(w)[:, None] * r for r, w in pairs])
    return float(np.linalg.svd(W, compute_uv=False).sum())
