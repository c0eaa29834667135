"""Worked examples of the lessons, in numbers.

What is done to noisy counts afterwards: negative ones put up to zero, and cells put together.

Closed forms for a count t with normal noise of standard deviation s, a = t / s:

    mean of max(t + noise, 0)             t Phi(a) + s phi(a)
    mean square of max(t + noise, 0) - t  s^2 (Phi(a) - a phi(a)) + t^2 Phi(-a)

The counts are invented: many cells with little or nothing in them, as with incomes.

Tuned centers and the proof: the split of the paper, the tuned one, and what no mechanism can go below.

A center says how a query on several attributes passes its total down to smaller tables.  Equal centers are the split of
the paper; tuned ones are searched for.  What is left above the bound is an upper limit on what anybody could still win.

Strategies for one small attribute side by side, and the bounds that no strategy can beat.

Every strategy is written out as rows on n cells and scaled to privacy cost 1; the errors are those of least squares.

    identity       every cell
    hierarchical   every node of the binary tree over the cells
    wavelet        the total, and left half minus right half of every node
    Fourier        waves, each as strong as the workload asks for; the best of all strategies made of waves
    optimal        the certified optimum

A weight mu >= 0 on every cell proves a bound: no strategy of privacy cost 1 has a squared error, summed over the
queries, below (tr (W diag(mu) W^T)^(1/2))^2 / sum(mu).  Equal weights give the singular value bound.

Source: Li and Miklau, section 3.2 (singular value bound); Xiao, Wang and Gehrke (wavelet); Hay et al. (hierarchical);
Weighted Fourier Factorizations; the weighted bound is our own, see `engine.residuals.dual_solver`.

The unit of privacy: what a budget promises to a person with many rows, and what a cap on rows costs.

The number of visits per patient is invented.  A cap of c rows a person keeps c of the rows of those who have more: the
total loses the others, which no noise brings back, and the noise must hide c rows instead of all.

The numbers of the lessons: small examples that the engine works out in full, so that a reader can check each one.

Everything here is small enough to look at as a whole: tables of at most a few hundred cells, written out cell by cell.
Pieces and plans come from the engine itself; nothing is typed in.

Source: QuerySmasher, section 6.2 and figures 1 and 2 (pieces); Xiao, Wang, Zhang and Kifer 2022 (coarse or fine).

An attack on a small table: exact answers give every person away, noisy ones do not.

Sixteen invented persons each said yes or no in confidence.  The attacker knows who they are, not what they said, and
reads how many of certain groups of eight said yes.  With exact answers that is a system of linear equations.

Source: Dinur and Nissim 2003 (reconstruction); the groups are the rows of Sylvester's Hadamard matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from engine._arrays import Array
from engine._format import cost
from engine._validation import one_of, positive, whole
from engine.analysis import mechanism_bound
from engine.common_mechanism.common_mechanism import CommonMechanism, LinearMechanism
from engine.errors import PlanError, WorkloadError
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import discrete_gaussian
from engine.residuals import DualProblem, Factor, Lift, Options, Space, WholeDomain, class_rows
from engine.workload import Attribute, Family, Schema, Workload, subsets
from engine.workload.families import family

SPARSE = (0, 2, 9, 24, 41, 38, 22, 13, 8, 5, 3, 2, 1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
WIDTHS = (1, 2, 4, 8)  # cells put together


@dataclass(frozen=True, kw_only=True, eq=False)
class Clipped:
    """Expected values of a table before and after negative counts are put up to zero.

    Attributes
    ----------
    counts : the true counts, shape (bins,).
    std : standard error of a measured count, in counts.
    means : expected published counts when negative ones become 0, shape (bins,).
    errors : root mean squared error of each of them, shape (bins,).
    """

    counts: Array
    std: float
    means: Array
    errors: Array

    @property
    def bias(self) -> float:
        """Expected error of the sum of all published counts, in counts; without clipping it is 0."""
        return float(np.sum(self.means - self.counts))

    @property
    def std_of_sum(self) -> float:
        """Standard error of the sum of the measured counts, nothing put up to zero."""
        return self.std * math.sqrt(len(self.counts))

    @property
    def rmse(self) -> float:
        """Root mean squared error of a cell after clipping; before it is the standard error."""
        return float(np.sqrt(np.mean(self.errors**2)))


def clipped(counts: npt.ArrayLike, std: float) -> Clipped:
    """Return what clipping at zero does to counts, shape (bins,), with normal noise of standard deviation ``std``.

    Raises: PlanError unless ``std`` is positive.

    >>> round(clipped([0.0], 1.0).bias, 4), round(clipped([50.0], 1.0).bias, 4)
    (0.3989, 0.0)
    """
    positive("std", std, error=PlanError)
    true = np.asarray(counts, dtype=float)
    a = true / std
    upper, density = scipy.special.ndtr(a), np.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    means = true * upper + std * density
    squares = std**2 * (upper - a * density) + true**2 * scipy.special.ndtr(-a)
    return Clipped(counts=true, std=float(std), means=means, errors=np.sqrt(squares))


def binned(width: int) -> Array:
    """Return the invented counts with ``width`` neighbouring cells put together, shape (cells / width,).

    >>> binned(8).tolist()
    [149.0, 21.0, 1.0, 1.0]
    """
    if width not in WIDTHS:
        raise PlanError(f"The width was {width!r}. Give one of {WIDTHS}.")
    return np.asarray(np.reshape(SPARSE, (-1, width)).sum(axis=1), dtype=float)


NAMES = ("age", "income", "hours", "children")
ASKED = ("prefix", "range")
CELLS = (4, 10, 12)  # of four attributes: a strategy for all cells is found for few, and centers for many


@dataclass(frozen=True, kw_only=True, eq=False)
class Centered:
    """Two plans of one workload at one budget, and a bound for all mechanisms.

    Attributes
    ----------
    equal, tuned : the plans.
    bound : weighted RMSE, in counts, that no matrix mechanism goes below.
    how : how the bound was found, in words.
    """

    equal: Plan
    tuned: Plan
    bound: float
    how: str

    @property
    def won(self) -> float:
        """Share of the error that tuning takes away."""
        return 1.0 - self.tuned.weighted_rmse / self.equal.weighted_rmse

    @property
    def left(self) -> float:
        """Weighted RMSE of the tuned plan over the bound, minus 1."""
        return max(self.tuned.weighted_rmse / self.bound - 1.0, 0.0)

    def centers(self) -> dict[str, Array]:
        """Return the tuned center of every attribute, shape (n,) with sum 1; equal ones are 1 / n."""
        schema, found = self.tuned.workload.schema, self.tuned.split.centers
        return {name: found.get(name, np.full(schema[name].size, 1.0 / schema[name].size)) for name in schema.names}


def pairs_workload(asked: str, cells: int) -> Workload:
    """Return queries of one family on all pairs of four attributes with the same number of cells.

    Raises: PlanError for a family or a number of cells that the lesson does not have.
    """
    one_of("asked", asked, ASKED, error=PlanError)
    if cells not in CELLS:
        raise PlanError(f"The number of cells was {cells!r}. Give one of {CELLS}.")
    workload = Workload(Schema([Attribute.of_size(name, cells) for name in NAMES]))
    for i, one in enumerate(NAMES):
        for other in NAMES[i + 1 :]:
            workload = workload.add((one, other), asked)
    return workload


def centered(workload: Workload, budget: Budget) -> Centered:
    """Plan a workload with equal and with tuned centers, and bound what anybody could reach.

    Raises: what `plan` raises; LimitExceeded where no bound can be searched in short time.

    >>> found = centered(pairs_workload("prefix", 4), Budget(pcost=1.0))
    >>> found.bound <= found.tuned.weighted_rmse < found.equal.weighted_rmse
    True
    """
    equal, tuned = (plan(workload, budget, centers=kind) for kind in ("uniform", "tuned"))
    bound = mechanism_bound(workload, budget.law)
    return Centered(equal=equal, tuned=tuned, bound=bound.rmse(tuned), how=bound.how)


@lru_cache(maxsize=8)
def centered_pairs(asked: str, cells: int) -> Centered:
    """Return `centered` for the pairs of the lesson at privacy cost 1."""
    return centered(pairs_workload(asked, cells), Budget(pcost=1.0))


def left_text(found: Centered) -> str:
    """What is left above the bound, and what it can come from, in words (Markdown)."""
    won = f"Tuning took **{found.won:.2%}** off the error."
    if found.left < 1e-4:
        return f"{won} **Plan and bound meet**: nobody can do better, whatever they measure."
    apart = len(found.tuned.blocks)
    return (
        f"{won} **{found.left:.2%}** is left above the bound. Part of it may be the **plan**: it measures {apart} "
        "tables with noise of their own, while the best mechanism could tie all of them together. Part of it may be "
        f"the **bound**: it was found by {found.how}, and better weights might prove more. Which part is which, nobody "
        "knows; no mechanism can win more than both."
    )


FAMILIES = ("range", "prefix", "circular", "marginal")
SIZES = (4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tried:
    """One strategy on one workload at privacy cost 1.

    Attributes
    ----------
    name : of the strategy.
    rows : what is measured, shape (measurements, n); the largest column norm is 1.
    errors : standard error of every query, shape (queries,), in counts.
    """

    name: str
    rows: Array
    errors: Array

    @property
    def rmse(self) -> float:
        """Root of the mean squared error, in counts."""
        return float(np.sqrt(np.mean(self.errors**2)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Contest:
    """All strategies on one workload, and what can be proved about every other one.

    Attributes
    ----------
    asked : the query family.
    cells : n.
    tried : the strategies; the optimal one last.
    weights : weights of the cells that prove the best bound, shape (n,), with sum 1.
    """

    asked: Family
    cells: int
    tried: tuple[Tried, ...]
    weights: Array

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.asked.count((self.cells,))

    def bound(self, share: float = 1.0) -> float:
        """Return an RMSE, in counts, that no strategy can beat.

        ``share`` mixes the weights: 0 takes equal ones, which is the singular value bound, 1 the best ones.
        """
        mass = (1.0 - share) / self.cells + share * self.weights
        return math.sqrt(_problem(self.asked.name, self.cells).bound(mass) / self.queries)


@lru_cache(maxsize=32)
def contest(name: str, cells: int) -> Contest:
    """Let all strategies answer one family of queries on some cells at privacy cost 1.

    Raises: PlanError for a family or a number of cells that the lessons do not have.

    >>> found = contest("range", 8)
    >>> {t.name: round(t.rmse, 3) for t in found.tried}["Identity"], found.tried[-1].rmse / found.bound() - 1 < 1e-6
    (1.826, True)
    """
    if name not in FAMILIES or cells not in SIZES:
        raise PlanError(f"The lessons have the families {FAMILIES} on {SIZES} cells, not {name!r} on {cells!r}.")
    asked, problem = family(name), _problem(name, cells)
    queries, gram = asked.rows((cells,)), asked.gram((cells,))
    mass, status = problem.maximise(Options(gap=1e-9))
    optimum = problem.solution(mass, status).strategy.rows
    strategies: dict[str, Callable[[], Array]] = {
        "Identity": lambda: np.eye(cells),
        "Hierarchical": lambda: tree_rows(cells),
        "Wavelet": lambda: wavelet_rows(cells),
        "Fourier": lambda: fourier_rows(gram),
        "Optimal": lambda: optimum,
    }
    tried = tuple(_try(label, rows(), queries) for label, rows in strategies.items())
    return Contest(asked=asked, cells=cells, tried=tried, weights=mass / mass.sum())


def tree_rows(cells: int) -> Array:
    """Return the nodes of a binary tree over the cells, a power of 2, from the root down, shape (2 n - 1, n).

    >>> tree_rows(2)
    array([[1., 1.],
           [1., 0.],
           [0., 1.]])
    """
    levels = range(cells.bit_length())
    return np.concatenate([np.repeat(np.eye(2**k), cells >> k, axis=1) for k in levels])


def wavelet_rows(cells: int) -> Array:
    """Return the Haar wavelet of the cells, a power of 2, shape (n, n): the total, then left minus right halves.

    >>> wavelet_rows(2)
    array([[ 1.,  1.],
           [ 1., -1.]])
    """
    out = [np.ones((1, cells))]
    for k in range(cells.bit_length() - 1):
        nodes, half = np.eye(2**k), cells >> (k + 1)
        out.append(np.repeat(nodes, 2 * half, axis=1) * np.tile(np.repeat([1.0, -1.0], half), 2**k))
    return np.concatenate(out)


def fourier_rows(gram: Array) -> Array:
    """Return real waves on a circle, as strong as a Gram, shape (n, n), asks for; shape (waves asked for, n).

    Guarantee: the best strategy among those with eigenvectors exp(2 pi i k c / n).  Source: Weighted Fourier
    Factorizations: strength of wave k is the fourth root of f_k^* G f_k.
    """
    n = len(gram)
    waves = np.fft.fft(np.eye(n)) / math.sqrt(n)
    asked = np.einsum("kc,cd,kd->k", waves.conj(), gram, waves).real
    rows = []
    for k in range(n // 2 + 1):
        strength = max(float(asked[k]), 0.0) ** 0.25
        if strength**4 > 1e-12 * asked.max():
            both = 1.0 if k in (0, n / 2) else math.sqrt(2.0)
            rows += [both * strength * waves[k].real]
            rows += [both * strength * waves[k].imag] if both > 1.0 else []
    return np.array(rows)


def _try(name: str, rows: Array, queries: Array) -> Tried:
    scaled = rows / math.sqrt(float(np.max(np.sum(rows**2, axis=0))))
    variances = np.diag(LinearMechanism(scaled).covariance(queries))
    return Tried(name=name, rows=scaled, errors=np.sqrt(variances))


@lru_cache(maxsize=32)
def _problem(name: str, cells: int) -> DualProblem:
    gram = family(name).gram((cells,))
    return DualProblem(lift=WholeDomain(cells), factor=Factor(sizes=(cells,), matrix=gram))


VISITS: Mapping[int, int] = {1: 620, 2: 240, 3: 90, 5: 35, 8: 12, 20: 3}  # rows of one person -> persons
CAPS = tuple(range(1, max(VISITS) + 1))
CAP_COLUMNS = ["cap", "rows lost", "standard error", "error"]


def rows_in_all() -> int:
    """Number of rows of all persons together."""
    return sum(rows * persons for rows, persons in VISITS.items())


def of_a_person(budget: Budget, rows: int) -> Budget:
    """Return what a budget that is meant for one row promises to a person with several, when noise stays as it is.

    >>> of_a_person(Budget(pcost=1.0), 3).pcost
    9.0
    """
    rows = whole("rows", rows, 1, max(VISITS), error=PlanError)
    return Budget(pcost=budget.row_pcost * rows**2)


def caps_table(budget: Budget) -> pd.DataFrame:
    """Return one row a cap: rows lost, standard error of the total, and the root of both squared, all in counts.

    Columns: cap, rows lost, standard error, error.  Every cap costs the budget, as a promise to a whole person.

    >>> caps_table(Budget(pcost=1.0)).iloc[0].tolist()[:3]
    [1.0, 701.0, 1.0]
    """
    rows = []
    for cap in CAPS:
        lost = sum((many - cap) * persons for many, persons in VISITS.items() if many > cap)
        noise = cap / math.sqrt(budget.row_pcost)
        rows.append((cap, lost, noise, math.hypot(lost, noise)))
    return pd.DataFrame(rows, columns=CAP_COLUMNS)


def best_cap(budget: Budget) -> int:
    """Return the cap with the smallest error of the total."""
    table = caps_table(budget)
    return CAPS[int(table["error"].argmin())]


GRID = 1024  # noise of the outcomes is a whole number of these parts of a count
MOST_CELLS = 512
MEANING_COLUMNS = ["term", "value", "in words"]
INVENTED = {"0-9": 41, "10-19": 52, "20-29": 88, "30-39": 97, "40-49": 74, "50-59": 63, "60-69": 35, "70+": 12}


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryPiece:
    """What a query asks of one set of attributes beyond all smaller sets.

    Attributes
    ----------
    attributes : the set; empty for the total.
    table : its coefficients, one axis per attribute of the set.
    spread : the same as a query on the whole table, shape (n_1, ..., n_k).
    """

    attributes: Space
    table: Array
    spread: Array

    @property
    def name(self) -> str:
        """The set in words."""
        return " × ".join(self.attributes) or "total"

    @property
    def cost(self) -> float:
        """Privacy cost (pcost) of answering the piece alone with noise of standard deviation 1."""
        return float(np.max(self.spread**2))


@dataclass(frozen=True, kw_only=True, eq=False)
class Smashed:
    """A query, shape (n_1, ..., n_k), and its pieces from the total to the full set."""

    schema: Schema
    query: Array
    pieces: tuple[QueryPiece, ...]

    def added(self, count: int | None = None) -> Array:
        """Return the sum of the first ``count`` pieces, of all when left out, shape (n_1, ..., n_k)."""
        return np.asarray(np.sum([np.zeros_like(self.query), *(p.spread for p in self.pieces[:count])], axis=0))

    @property
    def misfit(self) -> float:
        """Largest difference between the query and the sum of its pieces; rounding only."""
        return float(np.max(np.abs(self.added() - self.query)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Overlaps:
    """Cosines between queries of several tables, shape (queries, queries), with a label and a table for each."""

    labels: tuple[str, ...]
    tables: tuple[str, ...]
    cosines: Array

    @property
    def largest(self) -> float:
        """Largest size of a cosine between queries of two different tables."""
        names = np.array(self.tables)
        return float(np.max(np.abs(self.cosines)[names[:, None] != names[None, :]], initial=0.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbours:
    """What a release shows about one person: densities of a noisy count without and with that person.

    Attributes
    ----------
    values : noisy counts, relative to the count without the person.
    without, with_one : densities at the values.
    guess : share of right guesses that no way of guessing can beat, half of all persons being in.
    """

    values: Array
    without: Array
    with_one: Array
    guess: float


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoAnalyses:
    """A coarse and a fine analysis, and their common mechanism with its residuals."""

    coarse: LinearMechanism
    fine: LinearMechanism
    shared: CommonMechanism

    @property
    def separate(self) -> float:
        """Privacy cost of a look as exact as the shared one of which nothing is used again."""
        return self.shared.common.pcost

    def spends(self) -> pd.DataFrame:
        """Return one row a path: its name, what the look, the rest and all of it cost in pcost."""
        rows = []
        for number, name in enumerate(("coarse", "fine")):
            look, rest = self.shared.spends[number]
            rows.append((f"shared look, then {name}", look, rest, look + rest))
            whole = (self.coarse, self.fine)[number].pcost
            rows.append((f"separate look, then {name}", self.separate, whole, self.separate + whole))
        return pd.DataFrame(rows, columns=["path", "look", "rest", "all"])


def smash(schema: Schema, query: npt.ArrayLike) -> Smashed:
    """Split a query on all attributes of a small schema into one piece for every set of attributes.

    Guarantee: the pieces add up to the query, to rounding, and pieces of different sets are orthogonal.
    Raises: WorkloadError unless the query is a table of finite numbers of the schema's shape with an entry that is
    not 0.  Source: QuerySmasher, equation 3.

    >>> schema = Schema([Attribute.of_size("reply", 2), Attribute.of_size("city", 3)])
    >>> found = smash(schema, [[0, 1, 1], [0, 0, 1]])
    >>> [(p.name, p.table.round(3).tolist()) for p in found.pieces][:2], found.misfit < 1e-12
    ([('total', 0.5), ('reply', [0.167, -0.167])], True)
    """
    sizes = schema.sizes(schema.names)
    try:
        table = np.asarray(query, dtype=float)
    except (TypeError, ValueError):
        table = np.full((), np.nan)
    if table.shape != sizes or not np.isfinite(table).all() or not table.any() or table.size > MOST_CELLS:
        raise WorkloadError(
            f"The query must be a table of numbers of shape {sizes}, at most {MOST_CELLS}, that are not all 0. "
            "Choose at least one cell."
        )
    pieces = tuple(
        QueryPiece(attributes=space, table=own[0], spread=spread[0])
        for space, (own, spread) in _pieces(schema, table.reshape(1, -1)).items()
    )
    return Smashed(schema=schema, query=table, pieces=pieces)


def overlaps(schema: Schema, *, split: bool) -> Overlaps:
    """Return how much the cells of all tables of a schema overlap, as they are or (``split``) as residual spaces.

    >>> pair = Schema([Attribute.of_size("reply", 2), Attribute.of_size("city", 3)])
    >>> round(overlaps(pair, split=False).largest, 3), round(overlaps(pair, split=True).largest, 3)
    (0.707, 0.0)
    """
    if schema.size > MOST_CELLS:
        raise WorkloadError(f"The table has {schema.size:,} cells; at most {MOST_CELLS} are drawn. Take fewer.")
    labels: list[str] = []
    tables: list[str] = []
    found: list[Array] = []
    for space in subsets(schema.names):
        rows = table_rows(schema, space)
        found.append(_pieces(schema, rows)[space][1].reshape(rows.shape) if split else rows)
        cells = itertools.product(*([schema[name].label(i) for i in range(schema[name].size)] for name in space))
        labels += [" ".join(cell) or "all" for cell in cells]
        tables += [" × ".join(space) or "total"] * len(rows)
    unit = np.concatenate(found)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    return Overlaps(labels=tuple(labels), tables=tuple(tables), cosines=unit @ unit.T)


def outcomes(counts: Sequence[int], budget: Budget, draws: int) -> Array:
    """Draw releases of a histogram that could come out, shape (draws, cells), in counts; each would cost the budget.

    The noise is the exact discrete Gaussian on a grid of 1/1024 count, drawn with the operating system's entropy.
    These counts are invented; a release of records goes through `engine.release.measure` and its ledger.

    >>> outcomes([5, 7], Budget(pcost=1.0), 3).shape
    (3, 2)
    """
    # one record is in one cell, so that noise of variance 1 / pcost is what the budget asks for
    variance = Fraction(GRID) ** 2 / Fraction(budget.pcost)
    noise = discrete_gaussian(variance=variance, size=draws * len(counts)).reshape(draws, len(counts))
    return np.asarray(counts, dtype=float) + noise / GRID


def neighbours(budget: Budget, points: int = 201, *, rows: int = 1) -> Neighbours:
    """Return the laws of one noisy count for two tables that differ in one person, and how well one can tell them.

    The noise is that of the budget for one row; ``rows`` is how many rows of that count are the person's.

    Source: Dong, Roth and Su 2019: no test beats a shift of mu between normal laws.

    >>> round(neighbours(Budget(pcost=1.0)).guess, 3)
    0.691
    """
    sigma = 1.0 / budget.mu
    values = np.linspace(-4 * sigma, rows + 4 * sigma, points)
    without, with_one = (
        np.exp(-((values - middle) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) for middle in (0, rows)
    )
    return Neighbours(
        values=values, without=without, with_one=with_one, guess=float(scipy.special.ndtr(rows * budget.mu / 2))
    )


def meanings(budget: Budget, delta: float = 1e-6) -> pd.DataFrame:
    """Return a budget in every unit with what it says in words: columns term, value, in words."""
    epsilon = budget.epsilon(delta)
    mean = f"the shift itself: whoever guesses is right at most {budget.guess:g}% of the time"
    rows = [
        ("pcost", budget.pcost, "the square of the largest shift one person can cause, in units of the noise"),
        ("rho (zCDP)", budget.rho, "half of pcost; releases add up"),
        ("mu (Gaussian DP)", budget.mu, mean),
        (
            f"epsilon at delta {delta:g}",
            epsilon,
            f"but for {delta:g}, no output gets more than {_times(epsilon)} times as likely",
        ),
    ]
    return pd.DataFrame([(term, cost(value), words) for term, value, words in rows], columns=MEANING_COLUMNS)


def two_analyses(attributes: int, *, fine_ways: int, budget: Budget) -> TwoAnalyses:
    """Return all 1-way tables and all ``fine_ways``-way tables of some yes-or-no attributes, each at the budget.

    Raises: PlanError unless 1 < fine_ways <= attributes <= 7.

    >>> two_analyses(7, fine_ways=2, budget=Budget(pcost=1.0)).shared.saved
    0.75
    """
    if not 1 < fine_ways <= attributes <= 7:
        raise PlanError(
            f"{attributes} attributes and {fine_ways}-way tables were given; take 2 to 7 attributes, 2 ways or more, "
            "not more ways than attributes."
        )
    schema = yes_or_no(attributes)

    def analysis(ways: int) -> LinearMechanism:
        tables = [table_rows(schema, names) for names in itertools.combinations(schema.names, ways)]
        rows = np.concatenate(tables)
        return LinearMechanism(rows, np.eye(len(rows)) * len(tables) / budget.pcost)

    coarse, fine = analysis(1), analysis(fine_ways)
    return TwoAnalyses(coarse=coarse, fine=fine, shared=CommonMechanism(coarse, fine))


def yes_or_no(attributes: int) -> Schema:
    """Return a schema of attributes with the answers yes and no."""
    return Schema([Attribute.categorical(f"question {i + 1}", ["yes", "no"]) for i in range(attributes)])


def table_rows(schema: Schema, space: Space) -> Array:
    """Return the cells of the table on some attributes as queries on the whole table, shape (cells, all cells)."""
    sizes = schema.sizes(schema.names)
    shape = [n if name in space else 1 for name, n in zip(schema.names, sizes, strict=True)]
    k = math.prod(shape)
    return np.broadcast_to(np.eye(k).reshape(k, *shape), (k, *sizes)).reshape(k, -1)


def _pieces(schema: Schema, rows: Array) -> dict[Space, tuple[Array, Array]]:
    """Return for every set the pieces of some query rows: own tables (k, ...) and spread (k, n_1, ..., n_d)."""
    names, sizes = schema.names, schema.sizes(schema.names)
    out = {}
    for space in subsets(names):
        inside = tuple(i for i, name in enumerate(names) if name in space)
        own_sizes = tuple(sizes[i] for i in inside)
        classes = class_rows(rows, sizes, inside)
        own = Lift(own_sizes).rows(classes)
        shape = [n if i in inside else 1 for i, n in enumerate(sizes)]
        spread = np.broadcast_to(own.reshape(len(rows), *shape), (len(rows), *sizes))
        out[space] = (own.reshape(len(rows), *own_sizes), spread)
    return out


def _times(epsilon: float) -> str:
    factor = math.exp(min(epsilon, 700.0))
    return f"{factor:,.2f}" if factor < 10 else f"{factor:,.0f}" if factor < 1e6 else f"{factor:.1e}"


SECRETS = (1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1)
PERSONS = len(SECRETS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attack:
    """What an attacker makes of answers.

    Attributes
    ----------
    answers : the published numbers, shape (questions,), in counts.
    estimate : best guess of what every person said by least squares, shape (persons,); 1 is yes.
    """

    answers: Array
    estimate: Array

    @property
    def guesses(self) -> tuple[int, ...]:
        """What the attacker takes every person to have said."""
        return tuple(int(value > 0.5 + 1e-9) for value in self.estimate)

    @property
    def right(self) -> int:
        """Number of persons whose reply the attacker has right."""
        return sum(guess == secret for guess, secret in zip(self.guesses, SECRETS, strict=True))


def group_questions(count: int) -> Array:
    """Return which persons the first ``count`` questions are about, shape (count, persons), 0 or 1.

    Raises: PlanError unless 1 <= count <= 16.

    >>> group_questions(16).sum(axis=1).astype(int).tolist()[:3], int(np.linalg.matrix_rank(group_questions(16)))
    ([16, 8, 8], 16)
    """
    count = whole("count", count, 1, PERSONS, error=PlanError)
    return np.asarray((1.0 + scipy.linalg.hadamard(PERSONS)) / 2.0)[:count]


def spread_of_answers(count: int, budget: Budget) -> float:
    """Return the standard error, in counts, of each of ``count`` answers that together cost the budget.

    One person more among those who said yes moves every question that the person belongs to by one.
    """
    return float(np.sqrt(_questions_of_one(count) / budget.row_pcost))


def answers_given(count: int, budget: Budget | None = None) -> Array:
    """Return what is published, shape (count,), in counts: the truth, or with a budget a fresh noisy release of it.

    The noise is the exact discrete Gaussian on a grid of 1/1024 count, drawn with the operating system's entropy.
    """
    truth = group_questions(count) @ np.asarray(SECRETS, dtype=float)
    if budget is None:
        return np.asarray(truth)
    variance = Fraction(GRID) ** 2 * _questions_of_one(count) / Fraction(budget.row_pcost)
    return np.asarray(truth + discrete_gaussian(variance=variance, size=count) / GRID)


def reconstruct_replies(answers: Sequence[float] | Array) -> Attack:
    """Attack published answers, shape (questions,), by least squares, nearest to half yes, half no.

    >>> reconstruct_replies(answers_given(16)).right
    16
    """
    given = np.asarray(answers, dtype=float)
    asked = group_questions(len(given))
    middle = np.full(PERSONS, 0.5)
    found = middle + scipy.linalg.lstsq(asked, given - asked @ middle)[0]
    return Attack(answers=given, estimate=found)


def _questions_of_one(count: int) -> int:
    """Most questions that one person belongs to: the square of how far one reply moves all answers together."""
    return int(group_questions(count).sum(axis=0).max())
