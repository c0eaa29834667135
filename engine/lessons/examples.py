"""Worked examples of the lessons.

The examples are small, and their counts are invented.  Decompositions and plans are computed by
the engine.

Clipping of negative counts: `clipping_example`
    For a count t with normal noise of standard deviation s, and a = t / s,

        E max(t + noise, 0)           = t Phi(a) + s phi(a)
        E (max(t + noise, 0) - t)^2   = s^2 (Phi(a) - a phi(a)) + t^2 Phi(-a)

    The example has many counts that are 0, as a table of incomes has.
Tuned centers: `centers_example`
    The center of an attribute is a vector of weights with sum 1.  It defines which part of a query
    on several attributes is answered from the tables of fewer attributes.  The paper uses equal
    weights; tuned centers are optimized for the workload.
Strategies for one attribute: `contest`
    Every strategy is a matrix on n cells, scaled to privacy cost 1; queries are answered by least
    squares.  The strategies are: identity (all cells), hierarchical (all nodes of a binary tree),
    wavelet (the total, and for every node its left half minus its right half), Fourier (waves with
    optimal weights) and the certified optimum.

    Weights mu >= 0 on the cells prove a lower bound: no strategy of privacy cost 1 has a total
    squared error below (tr (W diag(mu) W^T)^(1/2))^2 / sum(mu) for the workload matrix W.  Equal
    weights give the singular value bound.  Sources: Li and Miklau, section 3.2 (singular value
    bound); Xiao, Wang and Gehrke (wavelet); Hay et al. (hierarchical); Weighted Fourier
    Factorizations.  The weighted bound is derived in `engine.residuals.dual_solver`.
Contribution bounding: `caps_table`
    With a cap of c rows per person, all further rows of the person are not counted.  This biases
    the total, but the noise has to hide only c rows.
Decomposition of queries: `decompose_query`; common mechanism: `two_analyses`
    Sources: QuerySmasher, section 6.2 and figures 1 and 2; Xiao, Wang, Zhang and Kifer 2022.
Reconstruction attack: `reconstruct_replies`
    Each of sixteen invented persons has a confidential reply, yes or no.  The attacker knows who
    the persons are, and the published number of yes replies in several groups: first of all
    persons, then of groups of eight.  Exact numbers form a system of linear equations; with sixteen
    groups its solution is the replies.  Source: Dinur and Nissim 2003; the groups are the rows of
    Sylvester's Hadamard matrix.
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
from engine._format import cost, percent_rounded_up
from engine._validation import check_choice, check_int, check_positive
from engine.analysis import mechanism_bound
from engine.common_mechanism import CommonMechanism, LinearMechanism
from engine.errors import PlanError, WorkloadError
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import discrete_gaussian
from engine.residuals import DualProblem, Factor, FullDomain, Lift, Options, Space, residual_rows
from engine.workload import Attribute, Family, Schema, Workload, subsets
from engine.workload.attribute import cell_text
from engine.workload.families import family

# Invented counts of the 32 cells of an attribute, half of them 0.
SPARSE = (
    0,
    2,
    9,
    24,
    41,
    38,
    22,
    13,
    8,
    5,
    3,
    2,
    1,
    1,
    0,
    1,
    0,
    0,
    0,
    1,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    1,
)
WIDTHS = (1, 2, 4, 8)  # numbers of cells per bin


@dataclass(frozen=True, kw_only=True, eq=False)
class ClippingExample:
    """Expected values and errors of noisy counts if negative ones are replaced by zero (clipped).

    Attributes
    ----------
    counts : true counts, shape (bins,).
    std : standard deviation of the noise, in counts.
    means : expected values of the clipped noisy counts, shape (bins,).
    errors : root mean squared errors of the clipped noisy counts, shape (bins,).
    """

    counts: Array
    std: float
    means: Array
    errors: Array

    @property
    def bias(self) -> float:
        """Bias of the sum of all clipped noisy counts, in counts."""
        return float(np.sum(self.means - self.counts))

    @property
    def std_of_sum(self) -> float:
        """Standard error of the sum of all noisy counts without clipping, in counts."""
        return self.std * math.sqrt(len(self.counts))

    @property
    def rmse(self) -> float:
        """Root mean squared error over all clipped noisy counts, in counts."""
        return float(np.sqrt(np.mean(self.errors**2)))


def clipping_example(counts: npt.ArrayLike, std: float) -> ClippingExample:
    """Return expected values and errors of counts with normal noise, clipped at zero.

    Parameters
    ----------
    counts : true counts, shape (bins,).
    std : standard deviation of the noise, in counts.

    Raises
    ------
    PlanError : ``std`` is not positive and finite.

    >>> round(clipping_example([0.0], 1.0).bias, 4), round(clipping_example([50.0], 1.0).bias, 4)
    (0.3989, 0.0)
    """
    check_positive("std", std, error=PlanError)
    true_counts = np.asarray(counts, dtype=float)
    scaled = true_counts / std
    cdf = scipy.special.ndtr(scaled)
    density = np.exp(-(scaled**2) / 2) / math.sqrt(2 * math.pi)
    means = true_counts * cdf + std * density
    mean_squares = std**2 * (cdf - scaled * density) + true_counts**2 * scipy.special.ndtr(-scaled)
    return ClippingExample(
        counts=true_counts, std=float(std), means=means, errors=np.sqrt(mean_squares)
    )


def bin_counts(width: int) -> Array:
    """Return the counts of `SPARSE` in bins of ``width`` adjacent cells, shape (32 / width,).

    Raises
    ------
    PlanError : ``width`` is not one of `WIDTHS`.

    >>> bin_counts(8).tolist()
    [149.0, 21.0, 1.0, 1.0]
    """
    if width not in WIDTHS:
        raise PlanError(f"The width of a bin was {width!r} cells. Give one of {WIDTHS}.")
    return np.asarray(np.reshape(SPARSE, (-1, width)).sum(axis=1), dtype=float)


NAMES = ("age", "income", "hours", "children")
QUERY_KINDS = ("prefix", "range")
CELLS = (4, 10, 12)  # allowed numbers of cells per attribute


@dataclass(frozen=True, kw_only=True, eq=False)
class CentersExample:
    """Two plans for the same workload and budget, and a lower bound for all matrix mechanisms.

    Attributes
    ----------
    equal, tuned : plans with equal and with tuned centers.
    bound : lower bound on the weighted RMSE of every matrix mechanism, in counts.
    how : method that computed the bound, as text.
    """

    equal: Plan
    tuned: Plan
    bound: float
    how: str

    @property
    def gain(self) -> float:
        """Relative decrease of the weighted RMSE by tuned centers."""
        return 1.0 - self.tuned.weighted_rmse / self.equal.weighted_rmse

    @property
    def gap(self) -> float:
        """Weighted RMSE with tuned centers divided by the lower bound, minus 1; at least 0."""
        return max(self.tuned.weighted_rmse / self.bound - 1.0, 0.0)

    def centers(self) -> dict[str, Array]:
        """Return the centers of the tuned plan: by attribute, weights of its n cells with sum 1."""
        schema, tuned_centers = self.tuned.workload.schema, self.tuned.split.centers
        return {
            name: tuned_centers.get(name, np.full(schema[name].size, 1.0 / schema[name].size))
            for name in schema.names
        }


def pairs_workload(queries: str, cells: int) -> Workload:
    """Return a workload of one query family on all pairs of four attributes.

    Parameters
    ----------
    queries : query family, one of `QUERY_KINDS`.
    cells : number of cells of every attribute, one of `CELLS`.

    Raises
    ------
    PlanError : ``queries`` is not in `QUERY_KINDS`, or ``cells`` is not in `CELLS`.
    """
    check_choice("queries", queries, QUERY_KINDS, error=PlanError)
    if cells not in CELLS:
        raise PlanError(f"The number of cells was {cells!r}. Give one of {CELLS}.")
    workload = Workload(Schema([Attribute.of_size(name, cells) for name in NAMES]))
    for i, first in enumerate(NAMES):
        for second in NAMES[i + 1 :]:
            workload = workload.add((first, second), queries)
    return workload


def centers_example(workload: Workload, budget: Budget) -> CentersExample:
    """Plan a workload with equal and with tuned centers, and compute a lower bound.

    Raises
    ------
    LimitExceeded : an attribute has too many cells for the bound.

    >>> result = centers_example(pairs_workload("prefix", 4), Budget(pcost=1.0))
    >>> result.bound <= result.tuned.weighted_rmse < result.equal.weighted_rmse
    True
    """
    equal, tuned = (plan(workload, budget, centers=centers) for centers in ("uniform", "tuned"))
    bound = mechanism_bound(workload, budget.law)
    return CentersExample(equal=equal, tuned=tuned, bound=bound.rmse(tuned), how=bound.how)


@lru_cache(maxsize=8)
def centered_pairs(queries: str, cells: int) -> CentersExample:
    """Return `centers_example` for a workload of `pairs_workload`, at privacy cost 1; cached."""
    return centers_example(pairs_workload(queries, cells), Budget(pcost=1.0))


def gap_text(example: CentersExample) -> str:
    """Return Markdown text about the gap between tuned plan and lower bound, and possible
    causes."""
    gain_text = f"Tuning reduces the error by **{example.gain:.2%}**."
    if example.gap < 1e-4:
        return f"{gain_text} **Plan and bound are equal**: no mechanism has a smaller error."
    n_tables = len(example.tuned.blocks)
    return (
        f"{gain_text} The plan is still **{percent_rounded_up(example.gap, 2)}** above the bound. "
        f"The **plan** may not be optimal: it measures {n_tables} tables separately, and measuring "
        "them jointly could be better. The **bound** may be too low: it was computed by "
        f"{example.how}, and better weights could raise it. No mechanism can improve the error by "
        "more than this gap."
    )


# Allowed query families and numbers of cells in `contest`.
FAMILIES = ("range", "prefix", "circular", "marginal")
SIZES = (4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyResult:
    """Errors of the queries of a workload if they are answered from one strategy.

    Attributes
    ----------
    name : name of the strategy.
    rows : strategy matrix, shape (measurements, n).  The largest norm of a column is 1, so the
        privacy cost is 1 with noise of standard deviation 1.
    errors : standard error of every query, shape (queries,), in counts.
    """

    name: str
    rows: Array
    errors: Array

    @property
    def rmse(self) -> float:
        """Root mean squared error over all queries, in counts."""
        return float(np.sqrt(np.mean(self.errors**2)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Contest:
    """Comparison of several strategies for the queries of one family on one attribute.

    Attributes
    ----------
    family : query family.
    cells : number of cells n of the attribute.
    results : one per strategy; the last one is the optimal strategy.
    weights : weights of the cells, shape (n,), with sum 1.  Any weights prove a lower bound on the
        error of every strategy; these weights prove the largest lower bound.
    """

    family: Family
    cells: int
    results: tuple[StrategyResult, ...]
    weights: Array

    @property
    def queries(self) -> int:
        """Number of queries."""
        return self.family.count((self.cells,))

    def bound(self, share: float = 1.0) -> float:
        """Return a lower bound on the RMSE of every strategy, in counts.

        The bound is proved by weights of the cells: ``share`` times ``weights`` plus 1 - ``share``
        times equal weights.  With ``share`` 0 it is the singular value bound, with 1 the largest
        lower bound.
        """
        cell_weights = (1.0 - share) / self.cells + share * self.weights
        return math.sqrt(_problem(self.family.name, self.cells).bound(cell_weights) / self.queries)


@lru_cache(maxsize=32)
def contest(name: str, cells: int) -> Contest:
    """Compare all strategies for one query family at privacy cost 1; cached.

    Parameters
    ----------
    name : name of the query family, one of `FAMILIES`.
    cells : number of cells of the attribute, one of `SIZES`.

    Raises
    ------
    PlanError : ``name`` is not in `FAMILIES`, or ``cells`` is not in `SIZES`.

    >>> result = contest("range", 8)
    >>> round(result.results[0].rmse, 3), result.results[-1].rmse / result.bound() - 1 < 1e-6
    (1.826, True)
    """
    if name not in FAMILIES or cells not in SIZES:
        raise PlanError(
            f"The lessons have no example of the family {name!r} on {cells!r} cells. Give one of"
            f" {FAMILIES} and one of {SIZES}."
        )
    query_family = family(name)
    problem = _problem(name, cells)
    queries = query_family.rows((cells,))
    gram = query_family.gram((cells,))
    mass, status = problem.maximise(Options(gap=1e-9))
    optimum = problem.solution(mass, status).strategy.rows
    strategies: dict[str, Callable[[], Array]] = {
        "Identity": lambda: np.eye(cells),
        "Hierarchical": lambda: tree_rows(cells),
        "Wavelet": lambda: wavelet_rows(cells),
        "Fourier": lambda: fourier_rows(gram),
        "Optimal": lambda: optimum,
    }
    results = tuple(_evaluated(label, rows(), queries) for label, rows in strategies.items())
    return Contest(family=query_family, cells=cells, results=results, weights=mass / mass.sum())


def tree_rows(cells: int) -> Array:
    """Return the hierarchical strategy, shape (2 n - 1, n): the nodes of a binary tree on n cells.

    The root comes first.  The number of cells is a power of 2.

    >>> tree_rows(2)
    array([[1., 1.],
           [1., 0.],
           [0., 1.]])
    """
    levels = range(cells.bit_length())
    return np.concatenate([np.repeat(np.eye(2**k), cells >> k, axis=1) for k in levels])


def wavelet_rows(cells: int) -> Array:
    """Return the Haar wavelet strategy, shape (n, n).

    The first row is the total; each further row is the left half minus the right half of a node of
    the binary tree on the cells.  The number of cells is a power of 2.

    >>> wavelet_rows(2)
    array([[ 1.,  1.],
           [ 1., -1.]])
    """
    blocks = [np.ones((1, cells))]
    for k in range(cells.bit_length() - 1):
        nodes = np.eye(2**k)
        half = cells >> (k + 1)
        blocks.append(
            np.repeat(nodes, 2 * half, axis=1) * np.tile(np.repeat([1.0, -1.0], half), 2**k)
        )
    return np.concatenate(blocks)


def fourier_rows(gram: Array) -> Array:
    """Return the best strategy of real Fourier waves for a workload, shape (waves, n).

    Parameters
    ----------
    gram : Gram matrix G of the workload, shape (n, n).

    Notes
    -----
    Guarantee: the strategy is optimal among all whose Gram matrices have the eigenvectors
    f_k = exp(2 pi i k c / n) / sqrt(n).  The amplitude of wave k is the fourth root of f_k^* G f_k;
    waves with amplitude 0 are left out.  Source: Weighted Fourier Factorizations.
    """
    n = len(gram)
    waves = np.fft.fft(np.eye(n)) / math.sqrt(n)
    energies = np.einsum("kc,cd,kd->k", waves.conj(), gram, waves).real
    rows = []
    for k in range(n // 2 + 1):
        strength = max(float(energies[k]), 0.0) ** 0.25
        if strength**4 <= 1e-12 * energies.max():
            continue
        # Waves 0 and n / 2 are real.  Any other wave k and its conjugate, wave n - k, are replaced
        # by their real and imaginary parts, scaled so that the Gram matrix stays the same.
        is_real = k in (0, n / 2)
        scale = 1.0 if is_real else math.sqrt(2.0)
        rows.append(scale * strength * waves[k].real)
        if not is_real:
            rows.append(scale * strength * waves[k].imag)
    return np.array(rows)


def _evaluated(name: str, rows: Array, queries: Array) -> StrategyResult:
    """Scale a strategy to privacy cost 1, and compute the standard errors of the queries."""
    scaled = rows / math.sqrt(float(np.max(np.sum(rows**2, axis=0))))
    variances = np.diag(LinearMechanism(scaled).covariance(queries))
    return StrategyResult(name=name, rows=scaled, errors=np.sqrt(variances))


@lru_cache(maxsize=32)
def _problem(name: str, cells: int) -> DualProblem:
    """Return the dual problem whose solution is the best strategy for a query family; cached."""
    gram = family(name).gram((cells,))
    return DualProblem(lift=FullDomain(cells), factor=Factor(sizes=(cells,), matrix=gram))


# Maps a number of rows to the number of invented persons with this number of rows.
VISITS: Mapping[int, int] = {1: 620, 2: 240, 3: 90, 5: 35, 8: 12, 20: 3}
FIRST = "first measurement"  # column of `TwoAnalyses.spends`
CAPS = tuple(range(1, max(VISITS) + 1))
CAP_COLUMNS = ["cap", "rows lost", "standard error", "error"]


def rows_in_all() -> int:
    """Return the total number of rows in the example of contribution bounding."""
    return sum(rows * persons for rows, persons in VISITS.items())


def person_budget(budget: Budget, rows: int) -> Budget:
    """Return the privacy cost for a person with several rows, as a budget.

    One row of a person costs what ``budget`` allows for one row.

    Raises
    ------
    PlanError : ``rows`` is not from 1 to the largest number of rows in `VISITS`.

    >>> person_budget(Budget(pcost=1.0), 3).pcost
    9.0
    """
    rows = check_int("rows", rows, 1, max(VISITS), error=PlanError)
    return Budget(pcost=budget.row_pcost * rows**2)


def caps_table(budget: Budget) -> pd.DataFrame:
    """Return a table of the error of the total number of rows for every cap on rows per person.

    With every cap the privacy cost of a person is `Budget.row_pcost`.  Columns, all in counts:

    - cap: largest number of rows of a person that are counted.
    - rows lost: number of rows that are not counted.
    - standard error: standard deviation of the noise.
    - error: root mean squared error of the total, sqrt(rows lost^2 + standard error^2).

    >>> caps_table(Budget(pcost=1.0)).iloc[0].tolist()[:3]
    [1.0, 701.0, 1.0]
    """
    rows = []
    for cap in CAPS:
        rows_lost = sum(
            (n_rows - cap) * persons for n_rows, persons in VISITS.items() if n_rows > cap
        )
        noise = cap / math.sqrt(budget.row_pcost)
        rows.append((cap, rows_lost, noise, math.hypot(rows_lost, noise)))
    return pd.DataFrame(rows, columns=CAP_COLUMNS)


def best_cap(budget: Budget) -> int:
    """Return the cap on rows per person with the smallest error in `caps_table`."""
    table = caps_table(budget)
    return CAPS[int(table["error"].argmin())]


NOISE_GRID_STEPS = 1024  # grid steps of the noise per count
MAX_CELLS = 512  # largest number of cells of a table that is decomposed
MEANING_COLUMNS = ["term", "value", "in words"]
# Invented numbers of persons by age.
INVENTED = {
    "0-9": 41,
    "10-19": 52,
    "20-29": 88,
    "30-39": 97,
    "40-49": 74,
    "50-59": 63,
    "60-69": 35,
    "70+": 12,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryPiece:
    """Component of a query in one residual space.

    A residual space is the part of a table that no smaller attribute set contains.

    Attributes
    ----------
    attributes : attributes of the residual space; empty for the total.
    table : coefficients on the marginal of these attributes, one axis per attribute.
    spread : the same component as coefficients on the full table, shape (n_1, ..., n_k).
    """

    attributes: Space
    table: Array
    spread: Array

    @property
    def name(self) -> str:
        """Attributes of the residual space as text."""
        return " × ".join(self.attributes) or "total"

    @property
    def cost(self) -> float:
        """Privacy cost (pcost) of measuring only this component, with a standard error of 1."""
        return float(np.max(self.spread**2))


@dataclass(frozen=True, kw_only=True, eq=False)
class QueryDecomposition:
    """A query and its components in all residual spaces of its table.

    Attributes
    ----------
    query : coefficients of the query on the full table, shape (n_1, ..., n_k).
    pieces : components, one per residual space, starting with the total.
    """

    schema: Schema
    query: Array
    pieces: tuple[QueryPiece, ...]

    def added(self, count: int | None = None) -> Array:
        """Return the sum of the first ``count`` components, shape (n_1, ..., n_k).

        By default all components are added.
        """
        return np.asarray(
            np.sum([np.zeros_like(self.query), *(p.spread for p in self.pieces[:count])], axis=0)
        )

    @property
    def misfit(self) -> float:
        """Largest absolute difference between the query and the sum of its components."""
        return float(np.max(np.abs(self.added() - self.query)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Overlaps:
    """Cosines between queries of several tables.

    Attributes
    ----------
    labels : label of every query.
    tables : name of the table of every query.
    cosines : cosine between the coefficient vectors of any two queries, shape (queries, queries).
    """

    labels: tuple[str, ...]
    tables: tuple[str, ...]
    cosines: Array

    @property
    def largest(self) -> float:
        """Largest absolute cosine between queries of different tables."""
        names = np.array(self.tables)
        return float(np.max(np.abs(self.cosines)[names[:, None] != names[None, :]], initial=0.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbours:
    """Densities of a noisy count for two datasets, without and with one person.

    Attributes
    ----------
    values : values of the noisy count minus the exact count without the person, shape (points,).
    without, with_one : densities at these values for the two datasets, shape (points,).
    guess : largest probability with which an attacker guesses the dataset right from the noisy
        count, if both datasets are equally likely.
    """

    values: Array
    without: Array
    with_one: Array
    guess: float


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoAnalyses:
    """A coarse and a fine analysis, and what they have in common.

    Attributes
    ----------
    coarse, fine : mechanisms of the two analyses.
    shared : common mechanism of the two, which can be measured before one of them is chosen.
    """

    coarse: LinearMechanism
    fine: LinearMechanism
    shared: CommonMechanism

    @property
    def separate(self) -> float:
        """Pcost of a separate measurement that is as accurate as the common mechanism."""
        return self.shared.common.pcost

    def spends(self) -> pd.DataFrame:
        """Return a table of the pcost of a first measurement (the look) and a following analysis.

        Each row is one combination of a look (shared with the analysis, or separate from it) and an
        analysis (coarse or fine).  Columns: path (text of the combination), `FIRST`, remainder
        (what the analysis costs in addition), total.
        """
        rows = []
        for number, name in enumerate(("coarse", "fine")):
            look, residual = self.shared.spends[number]
            rows.append((f"shared first, then {name}", look, residual, look + residual))
            full_cost = (self.coarse, self.fine)[number].pcost
            rows.append(
                (
                    f"separate first, then {name}",
                    self.separate,
                    full_cost,
                    self.separate + full_cost,
                )
            )
        return pd.DataFrame(rows, columns=["path", FIRST, "remainder", "total"])


def decompose_query(schema: Schema, query: npt.ArrayLike) -> QueryDecomposition:
    """Decompose a query on all attributes of a small schema into its components in residual spaces.

    Parameters
    ----------
    query : coefficients on the table of all attributes, in the shape of the schema.

    Raises
    ------
    WorkloadError : ``query`` does not have the shape of the schema, contains an entry that is not a
        finite number, has more than `MAX_CELLS` entries, or is 0 everywhere.

    Notes
    -----
    Guarantee: the components sum to the query, up to rounding, and are pairwise orthogonal.
    Source: QuerySmasher, equation 3.

    >>> schema = Schema([Attribute.of_size("reply", 2), Attribute.of_size("city", 3)])
    >>> result = decompose_query(schema, [[0, 1, 1], [0, 0, 1]])
    >>> [(p.name, p.table.round(3).tolist()) for p in result.pieces][:2], result.misfit < 1e-12
    ([('total', 0.5), ('reply', [0.167, -0.167])], True)
    """
    sizes = schema.sizes(schema.names)
    try:
        table = np.asarray(query, dtype=float)
    except (TypeError, ValueError):
        table = np.full((), np.nan)
    if table.shape != sizes or not np.isfinite(table).all():
        raise WorkloadError(
            f"The query is not an array of finite numbers of the shape {sizes} of the schema. Give one"
            " coefficient per cell."
        )
    if table.size > MAX_CELLS:
        raise WorkloadError(
            f"The query has {table.size:,} coefficients; at most {MAX_CELLS} are allowed. Choose a"
            " schema with fewer cells."
        )
    if not table.any():
        raise WorkloadError("All coefficients of the query are 0. Choose at least one cell.")
    pieces = tuple(
        QueryPiece(attributes=space, table=coefficients[0], spread=spread[0])
        for space, (coefficients, spread) in _pieces_by_space(schema, table.reshape(1, -1)).items()
    )
    return QueryDecomposition(schema=schema, query=table, pieces=pieces)


def overlaps(schema: Schema, *, split: bool) -> Overlaps:
    """Return the cosines between the cells of all marginals of a schema.

    A cell stands for the query that counts its records, as a vector of coefficients on the full
    table (the table of all attributes).

    Parameters
    ----------
    split : whether every vector is first projected to the residual space of its marginal, the part
        of the marginal that no smaller attribute set contains.

    Raises
    ------
    WorkloadError : the full table has more than `MAX_CELLS` cells.

    >>> pair = Schema([Attribute.of_size("reply", 2), Attribute.of_size("city", 3)])
    >>> round(overlaps(pair, split=False).largest, 3), round(overlaps(pair, split=True).largest, 3)
    (0.707, 0.0)
    """
    if schema.size > MAX_CELLS:
        raise WorkloadError(
            f"The schema has a table of {schema.size:,} cells; at most {MAX_CELLS} are allowed."
            " Choose a schema with fewer cells."
        )
    labels: list[str] = []
    tables: list[str] = []
    query_rows: list[Array] = []
    for space in subsets(schema.names):
        rows = table_rows(schema, space)
        if split:
            _, projected = _pieces_by_space(schema, rows)[space]
            rows = projected.reshape(rows.shape)
        query_rows.append(rows)
        cells = itertools.product(
            *([cell_text(schema[name], i) for i in range(schema[name].size)] for name in space)
        )
        labels += [" ".join(cell) or "all" for cell in cells]
        tables += [" × ".join(space) or "total"] * len(rows)
    unit_rows = np.concatenate(query_rows)
    unit_rows = unit_rows / np.linalg.norm(unit_rows, axis=1, keepdims=True)
    return Overlaps(labels=tuple(labels), tables=tuple(tables), cosines=unit_rows @ unit_rows.T)


def draw_releases(
    counts: Sequence[int], budget: Budget, draws: int, *, seed: int | None = None
) -> Array:
    """Draw several possible releases of a histogram, shape (draws, cells), in counts.

    Each release alone costs ``budget``.  The noise is a discrete Gaussian on a grid of 1/1024
    count.  This function is for invented counts; `engine.release.measure` releases real records.

    Parameters
    ----------
    counts : numbers of persons in each cell; every person is in one cell.
    seed : seed of the noise, so that all readers of a lesson see the same numbers.  By default the
        random bits are those of the operating system.

    >>> draw_releases([5, 7], Budget(pcost=1.0), 3).shape
    (3, 2)
    """
    # Every person is in one cell, so the sensitivity is 1 and the variance is 1 / pcost counts^2.
    # The variable `variance` is in grid steps^2.
    variance = Fraction(NOISE_GRID_STEPS) ** 2 / Fraction(budget.pcost)
    noise = discrete_gaussian(
        variance=variance, size=draws * len(counts), entropy=_seeded_bytes(seed)
    )
    table = noise.reshape(draws, len(counts))
    return np.asarray(counts, dtype=float) + table / NOISE_GRID_STEPS


def _seeded_bytes(seed: int | None) -> Callable[[int], bytes] | None:
    """Return a function that maps n to the next n pseudorandom bytes; None without a seed."""
    return None if seed is None else np.random.default_rng(seed).bytes


def neighbours(budget: Budget, points: int = 201, *, rows: int = 1) -> Neighbours:
    """Return the densities of one noisy count for two datasets that differ in one person.

    Source: Dong, Roth and Su 2019 (test between two normal distributions shifted by mu).

    Parameters
    ----------
    budget : budget for a person with one row, which determines the noise.
    points : number of values at which the densities are computed.
    rows : number of rows of the person that the count includes.

    >>> round(neighbours(Budget(pcost=1.0)).guess, 3)
    0.691
    """
    sigma = 1.0 / budget.mu
    values = np.linspace(-4 * sigma, rows + 4 * sigma, points)
    without, with_one = (
        np.exp(-((values - middle) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
        for middle in (0, rows)
    )
    return Neighbours(
        values=values,
        without=without,
        with_one=with_one,
        guess=float(scipy.special.ndtr(rows * budget.mu / 2)),
    )


def budget_table(budget: Budget) -> pd.DataFrame:
    """Return a table with one row per privacy parameter of a budget: pcost, rho, mu and epsilon.

    Columns, all with texts: term (name of the parameter), value, and "in words" (an explanation).
    """
    delta = budget.report_delta
    epsilon = budget.epsilon(delta)
    mu_text = f"largest shift; an attacker guesses right at most {budget.guess:g}% of the time"
    rows = [
        (
            "pcost",
            budget.pcost,
            "square of the largest shift by one person, in standard deviations of the noise",
        ),
        ("rho (zCDP)", budget.rho, "half of pcost; the values of several releases add up"),
        ("mu (Gaussian DP)", budget.mu, mu_text),
        (
            f"epsilon at delta {cost(delta)}",
            epsilon,
            (
                f"one person makes no output more than {_factor_text(epsilon)} times as likely,"
                f" except with probability {cost(delta)}"
            ),
        ),
    ]
    return pd.DataFrame(
        [(term, cost(value), meaning) for term, value, meaning in rows], columns=MEANING_COLUMNS
    )


def two_analyses(attributes: int, *, fine_ways: int, budget: Budget) -> TwoAnalyses:
    """Return two analyses of binary attributes: all 1-way marginals, and all k-way marginals.

    Each analysis alone costs the complete budget.

    Parameters
    ----------
    attributes : number of attributes, from 2 to 7.
    fine_ways : number k of attributes of a marginal in the fine analysis, from 2 to ``attributes``.

    Raises
    ------
    PlanError : not 2 <= ``fine_ways`` <= ``attributes`` <= 7.

    >>> two_analyses(7, fine_ways=2, budget=Budget(pcost=1.0)).shared.saved
    0.75
    """
    if not 1 < fine_ways <= attributes <= 7:
        raise PlanError(
            f"There are {attributes} attributes and the fine analysis is {fine_ways}-way. Choose 2"
            " to 7 attributes, and a fine analysis from 2-way up to the number of attributes."
        )
    schema = yes_or_no(attributes)

    def analysis(ways: int) -> LinearMechanism:
        tables = [table_rows(schema, names) for names in itertools.combinations(schema.names, ways)]
        rows = np.concatenate(tables)
        # one person changes one cell of every table, so the squared sensitivity is len(tables)
        return LinearMechanism(rows, np.eye(len(rows)) * len(tables) / budget.pcost)

    coarse, fine = analysis(1), analysis(fine_ways)
    return TwoAnalyses(coarse=coarse, fine=fine, shared=CommonMechanism(coarse, fine))


def yes_or_no(attributes: int) -> Schema:
    """Return a schema of ``attributes`` attributes, each with the values yes and no."""
    return Schema(
        [Attribute.categorical(f"question {i + 1}", ["yes", "no"]) for i in range(attributes)]
    )


def table_rows(schema: Schema, space: Space) -> Array:
    """Return for every cell of a marginal the coefficients of its count on the full table.

    The result has the shape (cells of the marginal, cells of the full table).  ``space`` contains
    the attributes of the marginal.
    """
    sizes = schema.sizes(schema.names)
    shape = [n if name in space else 1 for name, n in zip(schema.names, sizes, strict=True)]
    k = math.prod(shape)
    return np.broadcast_to(np.eye(k).reshape(k, *shape), (k, *sizes)).reshape(k, -1)


def _pieces_by_space(schema: Schema, rows: Array) -> dict[Space, tuple[Array, Array]]:
    """Return the components of k queries in every residual space of a schema.

    Parameters
    ----------
    rows : coefficients of the queries on the full table, shape (k, cells).

    Returns
    -------
    Mapping from the attributes of a residual space to the pair (coefficients, spread).  Both arrays
    contain the components of the k queries in this space:

    - ``coefficients`` on the marginal of its attributes, shape (k, sizes of these attributes).
    - ``spread`` on the full table, shape (k, n_1, ..., n_d).
    """
    names = schema.names
    sizes = schema.sizes(schema.names)
    pieces = {}
    for space in subsets(names):
        axes = tuple(i for i, name in enumerate(names) if name in space)
        piece_sizes = tuple(sizes[i] for i in axes)
        residual_coordinates = residual_rows(rows, sizes, axes)
        coefficients = Lift(piece_sizes).rows(residual_coordinates)
        shape = [n if i in axes else 1 for i, n in enumerate(sizes)]
        spread = np.broadcast_to(coefficients.reshape(len(rows), *shape), (len(rows), *sizes))
        pieces[space] = (coefficients.reshape(len(rows), *piece_sizes), spread)
    return pieces


SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def _factor_text(epsilon: float) -> str:
    """Return exp(epsilon), the largest ratio of two probabilities, as text.

    The text of an epsilon above 700 is that of 700.
    """
    factor = math.exp(min(epsilon, 700.0))  # larger exponents overflow
    if factor < 10:
        return f"{factor:,.2f}"
    if factor < 1e6:
        return f"{factor:,.0f}"
    mantissa, exponent = f"{factor:.1e}".split("e+")
    return f"{mantissa} · 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


# Confidential reply of every invented person; 1 is yes and 0 is no.
SECRETS = (1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1)
PERSONS = len(SECRETS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attack:
    """Result of a reconstruction attack on the replies of `SECRETS`.

    Attributes
    ----------
    answers : published answers, shape (questions,), in counts.
    estimate : least squares estimate of every reply, shape (persons,); 1 is yes and 0 is no.
    """

    answers: Array
    estimate: Array

    @property
    def guesses(self) -> tuple[int, ...]:
        """Guessed reply of every person: 1 if the estimate is above 1/2, otherwise 0."""
        return tuple(int(value > 0.5 + 1e-9) for value in self.estimate)

    @property
    def right(self) -> int:
        """Number of replies that are guessed correctly."""
        return sum(guess == secret for guess, secret in zip(self.guesses, SECRETS, strict=True))


def group_questions(count: int) -> Array:
    """Return the query matrix of the first ``count`` questions, shape (count, persons).

    A question asks for the number of yes replies in a group of persons.  An entry of the matrix is
    1 if the person is in the group, otherwise 0.

    Raises
    ------
    PlanError : not 1 <= count <= 16.

    >>> questions = group_questions(16)
    >>> questions.sum(axis=1).astype(int).tolist()[:3], int(np.linalg.matrix_rank(questions))
    ([16, 8, 8], 16)
    """
    count = check_int("count", count, 1, PERSONS, error=PlanError)
    return np.asarray((1.0 + scipy.linalg.hadamard(PERSONS)) / 2.0)[:count]


def spread_of_answers(count: int, budget: Budget) -> float:
    """Return the standard error of each answer, in counts, if ``count`` answers share a budget.

    Raises
    ------
    PlanError : not 1 <= count <= 16.
    """
    # A person whose group is in q questions changes q answers by 1, so the squared sensitivity is
    # the largest q.
    return float(np.sqrt(_max_questions_per_person(count) / budget.row_pcost))


def published_answers(
    count: int, budget: Budget | None = None, *, seed: int | None = None
) -> Array:
    """Return the answers to the first ``count`` questions, shape (count,), in counts.

    Parameters
    ----------
    budget : budget of all answers together.  The noise is a discrete Gaussian on a grid of 1/1024
        count.  Without a budget the answers are exact.
    seed : seed of the noise, so that all readers of a lesson see the same numbers.  By default the
        random bits are those of the operating system.

    Raises
    ------
    PlanError : not 1 <= count <= 16.
    """
    truth = group_questions(count) @ np.asarray(SECRETS, dtype=float)
    if budget is None:
        return np.asarray(truth)
    squared_sensitivity = _max_questions_per_person(count)
    variance = Fraction(NOISE_GRID_STEPS) ** 2 * squared_sensitivity / Fraction(budget.row_pcost)
    noise = discrete_gaussian(variance=variance, size=count, entropy=_seeded_bytes(seed))
    return np.asarray(truth + noise / NOISE_GRID_STEPS)


def reconstruct_replies(answers: Sequence[float] | Array) -> Attack:
    """Estimate the replies of all persons from published answers, by least squares.

    If there are fewer answers than persons, several estimates fit the answers equally well.  The
    result is the estimate nearest to the vector with the value 1/2 for every person.

    Parameters
    ----------
    answers : answers to the first questions of `group_questions`, shape (questions,).

    Raises
    ------
    PlanError : there are not between 1 and 16 answers.

    >>> reconstruct_replies(published_answers(16)).right
    16
    """
    answer_vector = np.asarray(answers, dtype=float)
    questions = group_questions(len(answer_vector))
    prior = np.full(PERSONS, 0.5)
    estimate = prior + scipy.linalg.lstsq(questions, answer_vector - questions @ prior)[0]
    return Attack(answers=answer_vector, estimate=estimate)


def _max_questions_per_person(count: int) -> int:
    """Return the largest number of questions whose groups contain the same person.

    This is the squared L2 sensitivity of the first ``count`` questions.
    """
    return int(group_questions(count).sum(axis=0).max())
