"""Lower bounds on the error of every matrix mechanism.

The search for weights: L-BFGS on log of the bound with its exact gradient, then more functions of the cells.

A search looks at few functions of every attribute; what it finds is then valued with as many as the time allows.  Every
value on the way is a bound, so the best so far may be returned at any moment.

The bound from weights on all cells at once, where the domain is small: nothing but the search's gap is lost.

The best bound that a short search gives: on all cells where the domain is small, by product weights elsewhere.

For any probability weights mu on the cells of the whole domain, D = diag(mu), no strategy of privacy cost 1 has a
smaller weighted squared error than |W D^(1/2)|_*^2, the squared nuclear norm.  Here mu is a product of weights of the
attributes, or symmetric in them, and the norm is evaluated on no more than small matrices:

    whole        all cells at once, where the domain is small
    links        attributes whose best weights are uniform, in closed form; the others with what is asked of them
    frames       one attribute: some functions of its cells are looked at closely, the rest is a factor (a pinching)
    excitations  any workload: dense on sets of attributes that leave their mean
    alike        attributes that are asked alike: the symmetric group parts the matrix into small sectors
    products     products of any order of such attributes, which two states each part like spins
    climb        the search for the weights
    compositions attributes that are asked alike, under weights that are no product
    shares       the search for these, whose limit is the optimum of all matrix mechanisms
    norms        nuclear norms that rounding cannot lift

Dropping rows or blocks makes a nuclear norm smaller, so whatever is too large to look at counts as nothing, and the
bound holds however early a search ends.  Source: our own; the bound for one mu is the dual of the matrix mechanism.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np
import scipy

from engine._arrays import Array
from engine._threads import threads_for
from engine.bounds.product_weights import Excitations, Link, Linked, State, in_links, proved, root_trace
from engine.bounds.symmetric import FUNCTIONS, Alike, AlikeProducts, alike, product_orders, shares_norm
from engine.errors import LimitExceeded
from engine.residuals import DualProblem, Factor, Options, Space, WholeDomain, center, contract
from engine.residuals.basis import WholeTable
from engine.residuals.split import Role
from engine.workload import Workload

SCALARS = (0.0, 0.1, 1.0, 3.0, 10.0, 100.0)  # how much more the total counts in a start than the cells of an attribute
ORDERS = (150, 400, 1000, 2500, 6000)  # of the largest matrix, one rung after the other
GROWTH = 2.6  # from one rung to the next
GRADIENT = 3.0  # how much longer a value takes with its gradient
FIRST = 0.4  # share of the time for the search on the lowest rung
LAST = 0.1  # share of what is left for weights that are no product
FEW = 20  # steps at a higher rung
NEGLIGIBLE = 1e-12  # length of what couples the sum of all cells to a function, beside all that is asked
SMALLEST = 1e-5  # share of the root of a weight in the largest: functions are divided by it
Roots = Mapping[Role, Array]


class Model:
    """The bound as a function of the weights, with so many functions for the attributes of every link.

    Parameters
    ----------
    asked : the workload.
    counts : the most functions an attribute may have, link by link; see `Ladder`.
    """

    def __init__(self, asked: Linked, counts: Sequence[int]) -> None:
        self.asked = asked
        self.links = [self._link(link, k) for link, k in zip(asked.links, counts, strict=True)]

    def _link(self, link: Link, k: int) -> Alike | AlikeProducts | Excitations:
        functions = {name: min(k, self.asked.sizes[self.asked.roles[name]]) for name in link.names}
        terms = alike(self.asked, link)
        if terms is None:
            # with more than one function excitations see parts on several attributes, too, which products leave out
            left_out = any(len(part) > 1 for pieces in link.terms for part, _ in pieces)
            few = k == 1 or (k <= FUNCTIONS and not left_out)
            orders = product_orders(self.asked, link) if few else None
            if orders is not None:
                return AlikeProducts(len(functions), self.asked.roles[link.names[0]], orders)
            return Excitations(self.asked, link, functions)
        return Alike(len(functions), self.asked.roles[link.names[0]], terms, min(functions.values()))

    def value(
        self, s: Roots, functions: Mapping[Role, Array], derivative: bool = True
    ) -> tuple[float, dict[Role, Array]]:
        """Return a lower bound on the nuclear norm and its derivative by s; shapes (n,) and (n, k) by role."""
        state = State(self.asked, s, functions, derivative)
        found = [link.value(state) for link in self.links]
        total, by_link = 0.0, np.zeros(len(found))
        for factor, squares in self.asked.sums:
            root = math.sqrt(math.fsum((c * found[number][0]) ** 2 for number, c in squares.items()))
            total += factor * root
            for number, c in squares.items():
                by_link[number] += factor * c * c * found[number][0] / root if root > 0.0 else 0.0
        if not derivative:
            return total, {}
        for (_, back), share in zip(found, by_link, strict=True):
            back(share)
        return total, state.by_s()


class Ladder:
    """How many functions the attributes of every link may have, for matrices up to some order."""

    def __init__(self, asked: Linked) -> None:
        self.sizes = [[asked.sizes[asked.roles[name]] for name in link.names] for link in asked.links]
        self.alike = [alike(asked, link) for link in asked.links]
        self.kinds = [
            link.kinds({name: asked.sizes[asked.roles[name]] for name in link.names}) if terms is None else Counter()
            for link, terms in zip(asked.links, self.alike, strict=True)
        ]

    def counts(self, order: int) -> list[int]:
        """Return the number of functions for every link, at least 1."""
        return [self._count(i, order) for i in range(len(self.sizes))]

    def _count(self, i: int, order: int) -> int:
        terms, most = self.alike[i], max(self.sizes[i], default=1)
        if terms is not None:
            # without products few queries are asked of a pair, and their number is the order
            return min(most, math.isqrt(order)) if any(len(keys) == 2 for keys in terms.pair) else most
        k = 1
        while k < most and self._order(i, k + 1) <= order:
            k += 1
        return k

    def _order(self, i: int, k: int) -> int:
        return sum(count * math.prod(min(k, n) - 1 for n in sizes) for sizes, count in self.kinds[i].items())


def functions(asked: Linked, s: Roots) -> dict[Role, Array]:
    """Return functions of the cells of every attribute, the most important under the weights first; shape (n, n)."""
    out = {}
    for role, root in s.items():
        H = gram(asked, role) * root[:, None] * root
        # the constant function, s here, is in K whatever the others are, and first of these is what couples it to them
        coupled = H @ root - (root @ H @ root) * root
        length = float(np.linalg.norm(coupled))
        first = [root] if length <= NEGLIGIBLE * float(np.trace(H)) else [root, coupled / length]
        known = np.column_stack(first)
        off = np.eye(len(root)) - known @ known.T
        _, U = scipy.linalg.eigh(off @ H @ off, check_finite=False)
        # ascending order: the last matters most, and what is known has eigenvalue 0
        others = U[:, : len(first) - 1 : -1] if len(first) < len(root) else U[:, :0]
        out[role] = np.column_stack([known, others]) / root[:, None]
    return out


def gram(asked: Linked, role: Role) -> Array:
    """Return what is asked of an attribute, every family to the same amount, others averaged; shape (n, n)."""
    n = asked.sizes[role]
    out = np.zeros((n, n))
    seen = [asked.rows[key] for key in asked.singles.get(role, ())]
    for key, places in asked.joints.items():
        sizes = tuple(asked.sizes[r] for r in places)
        for axis, own in enumerate(places):
            if own == role:
                means = [None if a == axis else center(m, None) for a, m in enumerate(sizes)]
                seen.append(contract(asked.rows[key].reshape(-1, *sizes), means, 1))
    for rows in seen:
        # a family of many queries would drown one of few, though the bound may hang on either
        out += rows.T @ rows / max(float(np.sum(rows**2)), 1e-300)
    return out


def starts(asked: Linked) -> list[dict[Role, Array]]:
    """Return roots of weights to start from, shape (n,) by role: optimal alone, the total counted more or less."""
    grams = {role: gram(asked, role) for role in asked.sizes}
    out = [{role: np.full(n, n**-0.5) for role, n in asked.sizes.items()}]
    for c in SCALARS:
        found = {}
        for role, G in grams.items():
            if not np.trace(G) > 0.0:  # queries of several attributes whose mean over the others is 0
                found[role] = out[0][role]
                continue
            # the optimal dual weights of one attribute alone, where the bound is exact, with its total counted c times
            problem = DualProblem(lift=WholeDomain(len(G)), factor=Factor(sizes=(0,), matrix=G + c * G.mean()))
            with threads_for(len(G)):
                mass, _ = problem.maximise(Options(gap=1e-3))
            found[role] = held(np.sqrt(mass))
        out.append(found)
    return out


def held(s: Array) -> Array:
    """Return roots of weights with length 1, shape (n,), none of them too small to divide by."""
    s = np.abs(s)
    # functions are divided by the roots, which a weight of 0 would make infinite
    s = np.maximum(s, SMALLEST * float(s.max()))
    return np.asarray(s / np.linalg.norm(s))


def climb(model: Model, s: Roots, deadline: float, steps: int) -> tuple[float, Roots]:
    """Return the best bound and weights that L-BFGS finds from s, the functions being those that matter there."""
    import scipy.optimize

    chosen, roles = functions(model.asked, s), list(s)
    cuts = np.cumsum([0, *(len(s[role]) for role in roles)])
    best: tuple[float, Roots] = (0.0, s)

    def log_value(x: Array) -> tuple[float, Array]:
        nonlocal best
        # the sign of a root is free; near zero it is kept away from it
        signs = np.where(x < 0.0, -1.0, 1.0)
        parts = {role: x[a:b] for role, a, b in zip(roles, cuts[:-1], cuts[1:], strict=True)}
        lengths = {role: float(np.linalg.norm(part)) for role, part in parts.items()}
        own = {role: held(part) for role, part in parts.items()}
        value, by = model.value(own, chosen)
        if value > best[0]:
            best = (value, own)
        if time.monotonic() > deadline:
            raise _Late
        gradient = np.concatenate([by[role] / lengths[role] for role in roles]) * signs
        return -math.log(value), -gradient / value

    with suppress(_Late):
        scipy.optimize.minimize(
            log_value,
            np.concatenate([s[role] for role in roles]),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": steps, "maxfun": steps, "maxcor": 20, "ftol": 1e-9, "gtol": 0.0},
        )
    return best


class _Late(Exception):
    """The time is over."""


def best_norm(asked: Linked, deadline: float, steps: int) -> float:
    """Return the largest nuclear norm found until a time of the monotonic clock, in steps of the search for weights.

    Without steps the starts are compared and no more; then no clock decides, and the same workload has the same value.
    """
    deadline = deadline if steps else math.inf
    ladder = Ladder(asked)
    counts = ladder.counts(ORDERS[0])
    model = Model(asked, counts)
    if not asked.sizes:
        return model.value({}, {}, derivative=False)[0]
    best: tuple[float, Roots] = (-1.0, {})
    for s in starts(asked):
        if best[0] < 0.0 or time.monotonic() < deadline:
            value = model.value(s, functions(asked, s), derivative=False)[0]
            best = max(best, (value, s), key=_value)
    if not steps:
        return best[0]
    # more functions raise a bound more than the last steps do: they have the larger half of the time
    now = time.monotonic()
    best = max(best, climb(model, best[1], now + FIRST * (deadline - now), steps), key=_value)
    for order in ORDERS[1:]:
        before, counts = counts, ladder.counts(order)
        if counts == before:
            continue
        if time.monotonic() > deadline:
            break
        began = time.monotonic()
        model = Model(asked, counts)
        value = model.value(best[1], functions(asked, best[1]), derivative=False)[0]
        best = max(best, (value, best[1]), key=_value)
        took = time.monotonic() - began
        if GRADIENT * took * FEW <= (deadline - time.monotonic()) / 4:
            best = max(best, climb(model, best[1], deadline, FEW), key=_value)
        if 2.0 * took * GROWTH**3 > deadline - time.monotonic():
            break
    now = time.monotonic()
    return max(best[0], shares_norm(asked, best[1], now + LAST * (deadline - now)))


def _value(found: tuple[float, Roots]) -> float:
    return found[0]


SMALL = 512  # cells of a domain up to which the bound is searched on the domain itself


def exact_bound(workload: Workload, gap: float = 1e-4, law: str = "gaussian") -> float:
    """Return the best such bound of a small domain, from the dual of the whole problem; see `small_domain`."""
    problem = whole_problem(workload)
    with threads_for(problem.lift.cells):
        mass, _ = problem.maximise(Options(gap=gap))
        T = math.fsum(root_trace((W * mass) @ W.T, derivative=False)[0] for W in problem.projected)
    return proved(T, law) / float(mass.sum())


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
    """Return W^T diag(weights) W on all cells of the attributes that are asked about; shape (cells, cells)."""
    names = asked(workload)
    sizes = workload.schema.sizes(names)
    cells = math.prod(sizes)
    out = np.zeros((cells, cells))
    for group in workload.groups:
        if not group.is_weighted:
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


SECONDS = 20.0  # what a search may take unless it is told otherwise
STEPS = 60
MOST_CELLS = 2_000  # of one attribute, up to which a bound is searched
KEPT = 64  # bounds of workloads


def global_bound(workload: Workload, law: str = "gaussian", *, seconds: float = SECONDS, steps: int = STEPS) -> float:
    """Return a weighted squared error, in counts^2 at privacy cost 1, that no matrix mechanism can go below.

    Guarantee: true in floating point, see `norms`; the best found in the time, which a last large matrix may stretch.

    Parameters
    ----------
    law : "gaussian", or "laplace" at epsilon 1.
    seconds : what the search may take; the best so far is returned.
    steps : of the search for weights; with 0 only some good weights are tried, always the same ones.

    >>> from engine.workload import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 3)])).add("age", "marginal")
    >>> round(global_bound(workload), 6)  # noise on every cell is optimal
    3.0
    """
    deadline = time.monotonic() + seconds
    with threads_for(1):  # many small products, except where the matrices are known to be large
        return proved(best_norm(in_links(workload), deadline, steps), law)


@lru_cache(maxsize=KEPT)
def best_bound(workload: Workload, law: str = "gaussian") -> tuple[float, str]:
    """Return the best such bound, and how it was found, in words; kept, because it takes seconds.

    Raises
    ------
    LimitExceeded : an attribute has too many cells to search a bound in short time.
    """
    if not any(g.is_weighted for g in workload.groups):
        return 0.0, "no query has a weight"
    largest = max((n for g in workload.groups for n in g.sizes), default=1)
    if largest > MOST_CELLS:
        raise LimitExceeded(
            f"An attribute has {largest:,} cells; a bound for all mechanisms is searched up to {MOST_CELLS:,}. Use "
            "coarser cells."
        )
    if small_domain(workload):
        return exact_bound(workload, law=law), "the dual of the problem on all cells at once"
    return global_bound(workload, law), "weights of the cells, from the dual of the problem"
