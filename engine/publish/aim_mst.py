"""AIM and MST baselines.

AIM measures every attribute; then, round after round, the table that its model misses most, drawn with the exponential
mechanism, with less noise as soon as rounds no longer tell anything new.  MST measures every attribute and a tree of
pairs.  Both are written from their papers, noise and choice together are rho-zCDP; the model is fitted by the package
mbi, which is not one of those that are always there.

Their answers are those of a model that leaves out what it did not measure: they are biased, and nobody can say by how
much, so that what is told of them comes from simulations.

Source: McKenna, Mullins, Sheldon and Miklau (2022), AIM, 2201.12677; McKenna, Miklau and Sheldon (2021), 2108.04978.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from engine._arrays import Array
from engine._validation import one_of
from engine.errors import LimitExceeded, NotApplicable, PlanError
from engine.privacy import ADD_REMOVE, Budget
from engine.progress import Listener
from engine.residuals import Space
from engine.workload import Schema, Workload, subsets

ADAPTIVE = ("AIM", "MST")
MISSING = 'AIM and MST need the package mbi: pip install "dp-query-workbench[adaptive]".'
SLOW = "It needs longer than the time limit. Allow more seconds."
ROUNDS = 16  # for every attribute, at most
CHOOSING = 0.1  # share of the budget of a round that chooses what is measured in it
MEGABYTES = 4.0  # of the graphical model at the end
STEPS, SETTLED = 500, 1e-4  # of a fit, and the share of its loss that its last steps may gain

Tables = Callable[[Space], Array]
Noisy = Mapping[Space, tuple[Array, float]]  # cells, and the variance of each


class TableModel(Protocol):
    """A distribution with tables on any attributes."""

    def table(self, names: Space) -> Array:
        """Return the table on some attributes, in counts, shape (n_1, ..., n_k)."""

    def refitted(self, measured: Noisy) -> TableModel:
        """Return the model nearest to all that was measured."""

    def megabytes(self, sets: Collection[Space]) -> float:
        """Return how large a model of tables on these sets is."""


def adaptive_missing() -> str:
    """Return how to get the package that fits the models of adaptive methods, and nothing where it is there."""
    return "" if find_spec("mbi") is not None else MISSING


@dataclass(frozen=True, kw_only=True)
class GraphicalModel:
    """A graphical model of mbi; raises NotApplicable where the package is not installed."""

    sizes: Mapping[str, int]
    found: Any = None

    @property
    def _domain(self) -> Any:
        return import_module("mbi").Domain(list(self.sizes), list(self.sizes.values()))

    def table(self, names: Space) -> Array:
        """Return the table on some attributes, in counts, shape (n_1, ..., n_k)."""
        if not names:
            return np.asarray(self.table((next(iter(self.sizes)),)).sum())
        return np.asarray(self.found.project(names).transpose(names).values, dtype=float)

    def refitted(self, measured: Noisy) -> GraphicalModel:
        """Return the model nearest to all that was measured, in squares over variances, from the present one on."""
        mbi = import_module("mbi")
        told = [
            mbi.LinearMeasurement(cells.ravel(), names, stddev=math.sqrt(variance))
            for names, (cells, variance) in measured.items()
        ]
        fit = mbi.estimation.MirrorDescent().estimate
        made = fit(self._domain, told, iters=STEPS, tol=SETTLED, warm_start=self.found)
        return GraphicalModel(sizes=self.sizes, found=made)

    def megabytes(self, sets: Collection[Space]) -> float:
        """Return how large a model of tables on these sets is."""
        return float(import_module("mbi").junction_tree.hypothetical_model_size(self._domain, list(sets)))


def graphical_model(schema: Schema, names: Collection[str]) -> TableModel:
    """Return a model of some attributes that knows nothing yet; raises NotApplicable without the package mbi."""
    if reason := adaptive_missing():
        raise NotApplicable(reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it counts in single precision before the next line
        import_module("jax").config.update("jax_enable_x64", True)
        import_module("mbi")
    return GraphicalModel(sizes={name: schema[name].size for name in schema.names if name in names})


@dataclass(kw_only=True, eq=False)
class _Search:
    """One run of an adaptive method: what was measured so far, the model of it, and what was spent."""

    table: Tables
    model: TableModel
    rho: float
    generator: np.random.Generator
    tell: Listener
    until: float
    spent: float = 0.0
    measured: dict[Space, tuple[Array, float]] = field(default_factory=dict)

    def measure(self, names: Space, sigma: float) -> None:
        """Measure a table, and join it with what was measured of it before."""
        self.spent += 0.5 / sigma**2
        exact = self.table(names)
        cells, variance = exact + self.generator.normal(scale=sigma, size=exact.shape), sigma**2
        if names in self.measured:
            before, its = self.measured[names]
            joint = 1.0 / (1.0 / variance + 1.0 / its)
            cells, variance = joint * (cells / variance + before / its), joint
        self.measured[names] = cells, variance

    def refit(self) -> None:
        """Fit the model anew, unless the time is over."""
        if time.monotonic() > self.until:
            raise LimitExceeded(SLOW)
        self.tell(self.spent / self.rho, f"Fitting a model to {len(self.measured)} tables")
        self.model = self.model.refitted(self.measured)

    def choose(self, scores: Mapping[Space, float], sensitivity: float, epsilon: float) -> Space:
        """Draw the best of some tables with the exponential mechanism."""
        self.spent += epsilon**2 / 8.0
        names = list(scores)
        noise = self.generator.gumbel(size=len(names))
        return names[int(np.argmax(0.5 * epsilon / sensitivity * np.array([scores[n] for n in names]) + noise))]

    def off(self, names: Space) -> float:
        """Return by how much the model misses a table."""
        return float(np.abs(self.table(names) - self.model.table(names)).sum())


def adaptive_tables(
    method: str,
    workload: Workload,
    budget: Budget,
    table: Tables,
    seed: int,
    *,
    seconds: float = math.inf,
    tell: Listener = lambda share, words: None,
) -> Tables:
    """Return the tables that an adaptive method would publish, had the records these tables.

    Parameters
    ----------
    method : one of ``ADAPTIVE``.
    table : gives the table on some attributes, in counts, of shape (n_1, ..., n_k).
    seed : of noise of the statistical kind: this is a simulation, and protects nobody.
    seconds : after which it stops.
    tell : is told the share of the budget that is spent.

    Raises
    ------
    NotApplicable : without the package mbi, and for budgets that count otherwise than in rho-zCDP of one row more.
    LimitExceeded : it takes longer.
    """
    one_of("method", method, ADAPTIVE, error=PlanError)
    if budget.law != "gaussian" or budget.neighbours != ADD_REMOVE:
        raise NotApplicable(f"{method} is known for Gaussian noise, and for neighbours that are there or not.")
    sets: dict[Space, float] = {}
    for group in workload.groups:
        names = tuple(n for n in workload.schema.names if n in group.attributes and workload.schema[n].size > 1)
        if group.weight > 0.0 and names:
            sets[names] = sets.get(names, 0.0) + group.weight
    if not sets:
        raise NotApplicable(f"{method} chooses among tables of the workload, which asks for the total alone.")
    singles = sorted({(name,) for names in sets for name in names})
    search = _Search(
        table=table,
        model=graphical_model(workload.schema, {name for (name,) in singles}),
        rho=budget.row_pcost / 2.0,  # of one row, when a person has several
        generator=np.random.default_rng(seed),
        tell=tell,
        until=time.monotonic() + seconds,
    )
    (_aim if method == "AIM" else _mst)(search, sets, singles)
    return lambda asked: _laid_out(search.model, asked, workload.schema)


def _aim(search: _Search, sets: Mapping[Space, float], singles: Sequence[Space]) -> None:
    rounds = ROUNDS * len(singles)
    sigma = math.sqrt(rounds / (2.0 * (1.0 - CHOOSING) * search.rho))
    epsilon = math.sqrt(8.0 * CHOOSING * search.rho / rounds)
    known = {inside for names in sets for inside in subsets(names) if inside}
    # a table matters to all that share attributes with it
    matters = {a: sum(w * len(set(a) & set(names)) for names, w in sets.items()) for a in sorted(known)}
    for names in singles:
        search.measure(names, sigma)
    search.refit()
    last = False
    while not last:
        left = search.rho - search.spent
        if left < 2.0 * (0.5 / sigma**2 + epsilon**2 / 8.0):
            sigma, epsilon = math.sqrt(0.5 / ((1.0 - CHOOSING) * left)), math.sqrt(8.0 * CHOOSING * left)
            last = True
        share = (search.spent + 0.5 / sigma**2 + epsilon**2 / 8.0) / search.rho
        small = {
            names
            for names in matters
            if any(set(names) <= set(held) for held in search.measured)
            or search.model.megabytes([*search.measured, names]) <= MEGABYTES * share
        }
        by_noise = math.sqrt(2.0 / math.pi) * sigma
        scores = {
            names: matters[names] * (search.off(names) - by_noise * math.prod(search.table(names).shape))
            for names in matters
            if names in small
        }
        chosen = search.choose(scores, max(matters[names] for names in scores), epsilon)
        before = search.model.table(chosen)
        search.measure(chosen, sigma)
        search.refit()
        if float(np.abs(search.model.table(chosen) - before).sum()) <= by_noise * before.size:
            sigma, epsilon = sigma / 2.0, 2.0 * epsilon


def _mst(search: _Search, sets: Mapping[Space, float], singles: Sequence[Space]) -> None:
    """A third of the budget each for all attributes, for which pairs to take, and for these."""
    for names in singles:
        search.measure(names, math.sqrt(1.5 * len(singles) / search.rho))
    search.refit()
    inside = {pair for names in sets for pair in subsets(names) if len(pair) == 2}
    off: dict[Space, float] = {pair: search.off(pair) for pair in sorted(inside)}
    part = {name: name for (name,) in singles}  # of the forest, by one of its attributes
    tree: list[Space] = []
    while open_pairs := {pair: missed for pair, missed in off.items() if part[pair[0]] != part[pair[1]]}:
        tree.append(search.choose(open_pairs, 1.0, math.sqrt(8.0 * search.rho / 3.0 / max(len(singles) - 1, 1))))
        a, b = tree[-1]
        part = {name: part[b] if held == part[a] else held for name, held in part.items()}
    for names in tree:
        search.measure(names, math.sqrt(1.5 * len(tree) / search.rho))
    if tree:
        search.refit()


def _laid_out(model: TableModel, names: Space, schema: Schema) -> Array:
    wide = tuple(name for name in names if schema[name].size > 1)
    return model.table(wide).reshape(schema.sizes(names))
