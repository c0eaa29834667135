"""OPT_marginals: strategies that measure weighted marginals on sets of attributes.

Notation
--------
weights         theta   theta_A on the marginal on A, with L2 sensitivity^2 sum theta_A^2, L1 sensitivity sum theta_A
share           v       v_A = theta_A^2
traces          t_B     squared norm of what the workload asks of residual space B: trace of its class Gram, counts^2
precision       f_B     sum over A containing B of v_A / (product of n_i over A less B)

M^T M has the eigenvalue f_B * (product of n_i outside B) on residual space B, and a query's piece on B is constant
along the attributes outside, so the squared error is sum_B t_B / f_B whatever the size of the domain.  With v as
variables the Gaussian problem is convex, and a derivative gives a lower bound: E(v)^2 / max_A of -dE/dv_A, sum v = 1.

Source: HDMM, sections 7 and 8; the form by residual spaces and the bound are our own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.arrays import Array
from engine.errors import NotApplicable, PlanError
from engine.spaces import Space, decompose
from engine.workload import Workload, subsets

FULL = 14  # with this many attributes and fewer all subsets may be measured
MAX_SETS = 50_000
STEPS = 3000
NEGLIGIBLE = 1e-9  # shares below this part of the whole are not measured


@dataclass(frozen=True, kw_only=True, eq=False)
class MarginalStrategy:
    """Weighted marginals, answered by least squares over all of them together.

    Attributes
    ----------
    noise : "gaussian" or "laplace".
    shares : set of attributes -> share of the budget: theta^2 of the pcost (Gaussian), theta of epsilon (Laplace).
    precision : residual space -> f_B at budget 1; a class row c of space B has variance |c|^2 / f_B (twice that for
        Laplace noise).
    squared_error : weighted, in counts^2, at pcost 1 or epsilon 1.
    bound : no marginal strategy has a smaller squared error; None for Laplace noise.
    status : how the search ended, in words.
    """

    noise: str
    shares: Mapping[Space, float]
    precision: Mapping[Space, float]
    squared_error: float
    bound: float | None
    status: str


def residual_traces(workload: Workload) -> dict[Space, float]:
    """Return t_B for every residual space that a weighted query touches, in counts^2.

    Every workload is equivalent to one of weighted marginals as far as marginal strategies go.
    Source: HDMM, theorem 10.

    >>> from engine import Attribute, Schema
    >>> found = residual_traces(Workload(Schema([Attribute.of_size("a", 4)])).add("a", "marginal"))
    >>> {space: round(t, 9) for space, t in found.items()}
    {(): 0.25, ('a',): 3.0}
    """
    parts, out = decompose(workload), {}
    for space, (number, scale) in parts.spaces.items():
        total = math.fsum(
            term.coefficient * math.prod(parts.factors[k].trace for _, k in term.factors)
            for term in parts.subworkloads[number].terms
        )
        out[space] = scale * total
    return out


class Lattice:
    """Sets of attributes, and the sums over the sets that contain another.

    Parameters
    ----------
    sizes : attribute -> domain size, in the order of the schema.
    sets : the sets; they must hold every subset of each of them.
    """

    def __init__(self, sizes: Mapping[str, int], sets: Sequence[Space]) -> None:
        import scipy.sparse

        self.sets, self.sizes = tuple(sets), dict(sizes)
        number = {s: i for i, s in enumerate(self.sets)}
        self.full = len(self.sets) == 2 ** len(self.sizes)
        if self.full:  # along one attribute at a time
            names = list(self.sizes)
            bits = [[int(name in s) for name in names] for s in self.sets]
            self.position = np.array([int("".join(map(str, b)) or "0", 2) for b in bits])
            return
        rows, columns, values = [], [], []
        for a, s in enumerate(self.sets):
            for inner in subsets(s):
                rows.append(number[inner])
                columns.append(a)
                values.append(1.0 / math.prod(self.sizes[x] for x in s if x not in inner))
        self.matrix = scipy.sparse.csr_matrix((values, (rows, columns)), shape=(len(self.sets),) * 2)

    def precision(self, v: Array) -> Array:
        """Return f, shape (sets,)."""
        return self._along(v, forward=True) if self.full else np.asarray(self.matrix @ v)

    def transposed(self, by_precision: Array) -> Array:
        """Return the derivative by v of what has this derivative by f. Shape (sets,), as given."""
        return self._along(by_precision, forward=False) if self.full else np.asarray(self.matrix.T @ by_precision)

    def inverse(self, f: Array) -> Array:
        """Return v with precision(v) = f; it may be negative. Shape (sets,), as given."""
        import scipy.sparse.linalg

        if not self.full:
            return np.asarray(scipy.sparse.linalg.spsolve(self.matrix.tocsc(), f))
        return self._along(f, forward=True, sign=-1.0)

    def _along(self, values: Array, *, forward: bool, sign: float = 1.0) -> Array:
        table = np.zeros(len(self.sets))
        table[self.position] = values
        table = table.reshape((2,) * len(self.sizes))
        # sums over all sets that hold a set are a Kronecker product of 2 x 2 matrices: d 2^d steps in place of 3^d
        for axis, n in enumerate(self.sizes.values()):
            out, inn = (np.take(table, side, axis=axis) for side in (0, 1))
            pair = (out + sign * inn / n, inn) if forward else (out, inn + sign * out / n)
            table = np.stack(pair, axis=axis)
        return np.asarray(table.ravel()[self.position])


def lattice_of(workload: Workload, spaces: Sequence[Space]) -> Lattice:
    """Return the sets that may be measured: all subsets of few attributes, else the subsets of the groups' sets.

    Raises: NotApplicable if there are more than 50,000.
    """
    touched = {a for s in spaces for a in s}
    sizes = {a.name: a.size for a in workload.schema.attributes if a.name in touched}
    if len(sizes) <= FULL:
        names = list(sizes)
        return Lattice(sizes, list(subsets(names)))
    closed: set[Space] = {()}
    # the largest first: what it holds needs no look
    for space in sorted(spaces, key=len, reverse=True):
        members = workload.schema.ranked(space)
        if members in closed:
            continue
        if len(members) <= FULL:
            closed.update(subsets(members))
        if len(members) > FULL or len(closed) > MAX_SETS:
            raise NotApplicable(
                f"The subsets of the asked attribute sets are more than {MAX_SETS:,}, too many to weigh one by one. "
                "Ask for smaller groups, or choose querysmasher."
            )
    return Lattice(sizes, sorted(closed, key=lambda s: (len(s), s)))


def closed_form(lattice: Lattice, traces: Array) -> Array | None:
    """Return the optimal v for Gaussian noise, sum 1, or None where it would be negative.

    Traces and result have shape (sets,).

    Guarantee: if it is given, its squared error is `marginal_svd_bound`.  Source: HDMM, theorem 13.
    """
    v = _formula(lattice, traces)
    if (v < -1e-12 * np.abs(v).max()).any():
        return None
    v = np.maximum(v, 0.0)
    return np.asarray(v / v.sum())


def _formula(lattice: Lattice, traces: Array) -> Array:
    freedom, cells = _counts(lattice)
    return lattice.inverse(np.sqrt(traces * cells / freedom))


def _counts(lattice: Lattice) -> tuple[Array, Array]:
    """Return for every set the product of n - 1 and the product of n."""
    freedom = [math.prod(float(lattice.sizes[a] - 1) for a in s) for s in lattice.sets]
    cells = [math.prod(float(lattice.sizes[a]) for a in s) for s in lattice.sets]
    return np.array(freedom), np.array(cells)


def marginal_svd_bound(lattice: Lattice, traces: Array) -> float:
    """Return the SVD bound of the marginal approximation of a workload, in counts^2 at pcost 1.

    ``traces`` has shape (sets,).
    For a workload of marginals it bounds every matrix mechanism, otherwise every marginal strategy.  An eigenvalue has
    the multiplicity product of n - 1 over its space.
    Source: HDMM, theorem 12.

    >>> marginal_svd_bound(Lattice({"a": 4}, [(), ("a",)]), np.array([0.25, 3.0]))
    4.0
    """
    freedom, cells = _counts(lattice)
    return float(np.sum(np.sqrt(traces * freedom / cells)) ** 2)


def marginal_objective(theta: Array, lattice: Lattice, traces: Array, noise: str) -> tuple[float, Array]:
    """Return log of sensitivity^2 times sum t / f, and its derivative by theta, shape (sets,), theta >= 0."""
    f = lattice.precision(theta**2)
    asked = traces > 0
    if not (f[asked] > 0).all():  # something that is asked would not be measured
        return 1e10, np.zeros_like(theta)
    pieces = np.divide(traces, f, out=np.zeros_like(f), where=asked)
    error = float(pieces.sum())
    by_v = -lattice.transposed(np.divide(pieces, f, out=np.zeros_like(f), where=asked)) / error
    if noise == "gaussian":
        total = float(theta @ theta)
        return math.log(total) + math.log(error), 2.0 * theta * (1.0 / total + by_v)
    total = float(theta.sum())
    return 2.0 * math.log(total) + math.log(error), 2.0 / total + 2.0 * theta * by_v


def marginal_strategy(
    workload: Workload, noise: str = "gaussian", restarts: int = 4, seed: int | np.random.Generator = 0
) -> MarginalStrategy:
    """Return the best weighted marginals for a workload: OPT_marginals.

    Guarantee: the sensitivity at the shares returned is 1, and the error is that of these shares; for Gaussian noise it
    comes with a lower bound.
    Raises: NotApplicable if there are too many sets to measure; PlanError for an unknown noise.
    Source: HDMM, problem 2.

    >>> from engine import Attribute, Schema
    >>> asked = Workload.all_ways(Schema([Attribute.of_size(c, 10) for c in "ab"]), (0, 1, 2), "marginal")
    >>> found = marginal_strategy(asked)
    >>> found.status, round(found.squared_error / found.bound, 9)
    ('closed form', 1.0)
    """
    if noise not in ("gaussian", "laplace"):
        raise PlanError(f"noise was {noise!r}. Choose gaussian or laplace.")
    by_space = {s: t for s, t in residual_traces(workload).items() if t > 0}
    lattice = lattice_of(workload, list(by_space))
    sorted_space = {workload.schema.ranked(s): t for s, t in by_space.items()}
    traces = np.array([sorted_space.get(s, 0.0) for s in lattice.sets])
    traces /= (scale := float(traces.sum()))
    v = closed_form(lattice, traces) if noise == "gaussian" else None
    status = "closed form"
    if v is None:
        v, status = _search(lattice, traces, noise, restarts, np.random.default_rng(seed))
    v = _trimmed(lattice, traces, v, noise)
    f = lattice.precision(v)
    asked = traces > 0
    error, bound = float(np.sum(traces[asked] / f[asked])), None
    if noise == "gaussian":
        slopes = lattice.transposed(np.divide(traces, f**2, out=np.zeros_like(f), where=asked))
        bound = scale * error**2 / float(slopes.max())
    shares = v if noise == "gaussian" else np.sqrt(v)
    return MarginalStrategy(
        noise=noise,
        shares={s: float(x) for s, x in zip(lattice.sets, shares, strict=True) if x > 0},
        precision={s: float(x) for s, x in zip(lattice.sets, f, strict=True) if x > 0},
        squared_error=scale * error * (1.0 if noise == "gaussian" else 2.0),
        bound=bound,
        status=status,
    )


def _search(lattice: Lattice, traces: Array, noise: str, restarts: int, rng: np.random.Generator) -> tuple[Array, str]:
    """Return the best v of several searches; the Gaussian problem is convex and needs one."""
    import scipy.optimize

    count, asked = len(traces), traces > 0
    guess = np.maximum(_formula(lattice, traces), 0.0)
    starts = [np.sqrt(guess / guess.sum() + 1e-4 / count)]
    if noise == "laplace":
        # theta = 0 is a trap for every single set, so starts that measure everything find more than sparse ones
        dense = [rng.random(count) for _ in range(max(1, restarts))]
        starts += [asked + 1e-2] + [d if k % 2 else d / d.sum() for k, d in enumerate(dense)]
    best, value, status = starts[0], math.inf, ""
    for theta in starts:
        found = scipy.optimize.minimize(
            marginal_objective,
            theta,
            args=(lattice, traces, noise),
            jac=True,
            method="L-BFGS-B",
            # the sign of theta means nothing for Gaussian noise, and a bound would hold a set at 0 for good
            bounds=[(0.0, None)] * count if noise == "laplace" else None,
            options={"maxcor": 15, "maxiter": STEPS, "maxfun": 2 * STEPS, "ftol": 1e-13, "gtol": 0.0},
        )
        if found.fun < value:
            best, value, status = found.x, float(found.fun), f"{found.nit} steps"
    return best**2, status


def _trimmed(lattice: Lattice, traces: Array, v: Array, noise: str) -> Array:
    """Return v without negligible shares at sensitivity 1, unless the error would grow."""

    def at_one(values: Array) -> Array:
        return np.asarray(values / (values.sum() if noise == "gaussian" else np.sqrt(values).sum() ** 2))

    def error(values: Array) -> float:
        f = lattice.precision(values)[traces > 0]
        return float(np.sum(traces[traces > 0] / f)) if (f > 0).all() else math.inf

    whole, share = at_one(v), (v if noise == "gaussian" else np.sqrt(v))
    for threshold in (1e-4, 1e-6, NEGLIGIBLE):
        kept = at_one(np.where(share >= threshold * share.max(), v, 0.0))
        if error(kept) <= error(whole) * (1.0 + 1e-9):
            return np.asarray(kept)
    return np.asarray(whole)
