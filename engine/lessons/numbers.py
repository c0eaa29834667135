"""The numbers of the lessons: small examples that the engine works out in full, so that a reader can check each one.

Everything here is small enough to look at as a whole: tables of at most a few hundred cells, written out cell by cell.
Pieces and plans come from the engine itself; nothing is typed in.

Source: QuerySmasher, section 6.2 and figures 1 and 2 (pieces); Xiao, Wang, Zhang and Kifer 2022 (coarse or fine).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

from engine.arrays import Array
from engine.choice import CommonMechanism, LinearMechanism
from engine.errors import PlanError, WorkloadError
from engine.privacy import Budget
from engine.release import discrete_gaussian
from engine.spaces import Lift, Space, class_rows
from engine.texts import cost
from engine.workload import Attribute, Schema, subsets

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
