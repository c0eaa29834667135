"""AIM and MST baselines: adaptive selection of marginals with a graphical model.

AIM measures all one-way marginals.  In every round the exponential mechanism selects a marginal
with large error under the model, and AIM measures it; if a round changes the model little, the
noise of the following rounds decreases.  MST measures all one-way marginals and a spanning tree of
pairs.  Both are implemented from their papers, with rho-zCDP for selection and measurement
together; the package mbi fits the model.

Their answers are biased, because the model omits what was not measured.  The bias has no
proven bound, so their errors are estimated by simulation.

Sources: McKenna, Mullins, Sheldon and Miklau (2022), AIM, 2201.12677; McKenna, Miklau and Sheldon
(2021), 2108.04978.
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
from engine._validation import check_choice
from engine.errors import LimitExceeded, NotApplicable, PlanError
from engine.privacy import ADD_REMOVE, Budget
from engine.residuals import Space
from engine.workload import Schema, Workload, subsets

ADAPTIVE = ("AIM", "MST")
MISSING = 'AIM and MST need the package mbi: pip install "mbi>=2".'
SLOW = "It needs longer than the time limit. Allow more seconds."
ROUNDS_PER_ATTRIBUTE = 16  # maximum
SELECTION_SHARE = 0.1  # share of the budget of a round for the selection
MAX_MODEL_MEGABYTES = 4.0
FIT_STEPS, FIT_TOLERANCE = 500, 1e-4  # iterations and relative decrease of the loss

Tables = Callable[[Space], Array]
Noisy = Mapping[Space, tuple[Array, float]]  # cells, and the variance of each


class TableModel(Protocol):
    """Model of the joint distribution, with tables on any attributes."""

    def table(self, names: Space) -> Array:
        """Return the table on some attributes, in counts, shape (n_1, ..., n_k)."""

    def refitted(self, measured: Noisy) -> TableModel:
        """Return the model that best fits the measurements."""

    def megabytes(self, sets: Collection[Space]) -> float:
        """Return how large a model of tables on these sets is."""


def adaptive_missing() -> str:
    """Return the installation command of the package mbi; empty if it is installed."""
    return "" if find_spec("mbi") is not None else MISSING


@dataclass(frozen=True, kw_only=True)
class GraphicalModel:
    """Graphical model of mbi; see `graphical_model`."""

    sizes: Mapping[str, int]
    joint: Any = None

    @property
    def _domain(self) -> Any:
        return import_module("mbi").Domain(list(self.sizes), list(self.sizes.values()))

    def table(self, names: Space) -> Array:
        """Return the table on some attributes, in counts, shape (n_1, ..., n_k)."""
        if not names:
            return np.asarray(self.table((next(iter(self.sizes)),)).sum())
        return np.asarray(self.joint.project(names).transpose(names).values, dtype=float)

    def refitted(self, measured: Noisy) -> GraphicalModel:
        """Return the weighted least-squares fit to the measurements, starting from this model."""
        mbi = import_module("mbi")
        measurements = [
            mbi.LinearMeasurement(cells.ravel(), names, stddev=math.sqrt(variance))
            for names, (cells, variance) in measured.items()
        ]
        fit = mbi.estimation.MirrorDescent().estimate
        fitted = fit(
            self._domain, measurements, iters=FIT_STEPS, tol=FIT_TOLERANCE, warm_start=self.joint
        )
        return GraphicalModel(sizes=self.sizes, joint=fitted)

    def megabytes(self, sets: Collection[Space]) -> float:
        """Return how large a model of tables on these sets is."""
        return float(
            import_module("mbi").junction_tree.hypothetical_model_size(self._domain, list(sets))
        )


def graphical_model(schema: Schema, names: Collection[str]) -> TableModel:
    """Return a model without measurements; raise NotApplicable if mbi is not installed."""
    if reason := adaptive_missing():
        raise NotApplicable(reason)
    with warnings.catch_warnings():
        # mbi warns about single precision, which the next line changes
        warnings.simplefilter("ignore")
        import_module("jax").config.update("jax_enable_x64", True)
        import_module("mbi")
    return GraphicalModel(sizes={name: schema[name].size for name in schema.names if name in names})


@dataclass(kw_only=True, eq=False)
class _Search:
    """State of one run of an adaptive method: measurements, model and spent budget."""

    table: Tables
    model: TableModel
    rho: float
    generator: np.random.Generator
    until: float
    spent: float = 0.0
    measured: dict[Space, tuple[Array, float]] = field(default_factory=dict)

    def measure(self, names: Space, sigma: float) -> None:
        """Measure a table and average it with earlier measurements, by inverse variances."""
        self.spent += 0.5 / sigma**2
        exact = self.table(names)
        cells, variance = exact + self.generator.normal(scale=sigma, size=exact.shape), sigma**2
        if names in self.measured:
            before, earlier_variance = self.measured[names]
            joint_variance = 1.0 / (1.0 / variance + 1.0 / earlier_variance)
            cells = joint_variance * (cells / variance + before / earlier_variance)
            variance = joint_variance
        self.measured[names] = cells, variance

    def refit(self) -> None:
        """Fit the model to all measurements; raise LimitExceeded after the time limit."""
        if time.monotonic() > self.until:
            raise LimitExceeded(SLOW)
        self.model = self.model.refitted(self.measured)

    def choose(self, scores: Mapping[Space, float], sensitivity: float, epsilon: float) -> Space:
        """Select a table of large score with the exponential mechanism (Gumbel noise)."""
        self.spent += epsilon**2 / 8.0
        names = list(scores)
        noise = self.generator.gumbel(size=len(names))
        return names[
            int(
                np.argmax(
                    0.5 * epsilon / sensitivity * np.array([scores[n] for n in names]) + noise
                )
            )
        ]

    def off(self, names: Space) -> float:
        """Return the L1 error of the model on a table."""
        return float(np.abs(self.table(names) - self.model.table(names)).sum())


def adaptive_tables(
    method: str,
    workload: Workload,
    budget: Budget,
    table: Tables,
    seed: int,
    *,
    seconds: float = math.inf,
) -> Tables:
    """Simulate the publication of an adaptive method on public tables.

    Parameters
    ----------
    method : one of ``ADAPTIVE``.
    table : returns the table on some attributes, in counts, shape (n_1, ..., n_k).
    seed : seed of a statistical generator: the result is a simulation without privacy protection.
    seconds : time limit.

    Returns
    -------
    A function from attributes to the published table.

    Raises
    ------
    NotApplicable : mbi is not installed, or the budget is not rho-zCDP with add/remove neighbours.
    LimitExceeded : the time limit is exceeded.
    """
    check_choice("method", method, ADAPTIVE, error=PlanError)
    if budget.law != "gaussian" or budget.neighbours != ADD_REMOVE:
        raise NotApplicable(f"{method} needs Gaussian noise and add/remove neighbours.")
    sets: dict[Space, float] = {}
    for group in workload.groups:
        names = tuple(
            n
            for n in workload.schema.names
            if n in group.attributes and workload.schema[n].size > 1
        )
        if group.weight > 0.0 and names:
            sets[names] = sets.get(names, 0.0) + group.weight
    if not sets:
        raise NotApplicable(
            f"{method} selects tables of the workload, which contains only the total."
        )
    singles = sorted({(name,) for names in sets for name in names})
    search = _Search(
        table=table,
        model=graphical_model(workload.schema, {name for (name,) in singles}),
        rho=budget.row_pcost / 2.0,  # per row, if a person has several rows
        generator=np.random.default_rng(seed),
        until=time.monotonic() + seconds,
    )
    (_aim if method == "AIM" else _mst)(search, sets, singles)
    return lambda names: _table_with_unit_axes(search.model, names, workload.schema)


def _aim(search: _Search, sets: Mapping[Space, float], singles: Sequence[Space]) -> None:
    """Run AIM until the budget is spent."""
    rounds = ROUNDS_PER_ATTRIBUTE * len(singles)
    sigma = math.sqrt(rounds / (2.0 * (1.0 - SELECTION_SHARE) * search.rho))
    epsilon = math.sqrt(8.0 * SELECTION_SHARE * search.rho / rounds)
    candidates = {inside for names in sets for inside in subsets(names) if inside}
    # the weight of a candidate is the number of attributes that it shares with the workload
    workload_weights = {
        a: sum(w * len(set(a) & set(names)) for names, w in sets.items())
        for a in sorted(candidates)
    }
    for names in singles:
        search.measure(names, sigma)
    search.refit()
    last = False
    while not last:
        remaining = search.rho - search.spent
        if remaining < 2.0 * (0.5 / sigma**2 + epsilon**2 / 8.0):
            sigma = math.sqrt(0.5 / ((1.0 - SELECTION_SHARE) * remaining))
            epsilon = math.sqrt(8.0 * SELECTION_SHARE * remaining)
            last = True
        share = (search.spent + 0.5 / sigma**2 + epsilon**2 / 8.0) / search.rho
        feasible = {
            names
            for names in workload_weights
            if any(set(names) <= set(measured) for measured in search.measured)
            or search.model.megabytes([*search.measured, names]) <= MAX_MODEL_MEGABYTES * share
        }
        noise_error = math.sqrt(2.0 / math.pi) * sigma
        scores = {
            names: (
                workload_weights[names]
                * (search.off(names) - noise_error * math.prod(search.table(names).shape))
            )
            for names in workload_weights
            if names in feasible
        }
        chosen = search.choose(scores, max(workload_weights[names] for names in scores), epsilon)
        before = search.model.table(chosen)
        search.measure(chosen, sigma)
        search.refit()
        if float(np.abs(search.model.table(chosen) - before).sum()) <= noise_error * before.size:
            sigma, epsilon = sigma / 2.0, 2.0 * epsilon


def _mst(search: _Search, sets: Mapping[Space, float], singles: Sequence[Space]) -> None:
    """Run MST: a third of the budget each for one-way marginals, selection and pairs."""
    for names in singles:
        search.measure(names, math.sqrt(1.5 * len(singles) / search.rho))
    search.refit()
    inside = {pair for names in sets for pair in subsets(names) if len(pair) == 2}
    errors: dict[Space, float] = {pair: search.off(pair) for pair in sorted(inside)}
    # component of the forest of every attribute, named by one of its attributes
    component = {name: name for (name,) in singles}
    tree: list[Space] = []
    while open_pairs := {
        pair: error for pair, error in errors.items() if component[pair[0]] != component[pair[1]]
    }:
        tree.append(
            search.choose(
                open_pairs, 1.0, math.sqrt(8.0 * search.rho / 3.0 / max(len(singles) - 1, 1))
            )
        )
        a, b = tree[-1]
        component = {
            name: component[b] if root == component[a] else root for name, root in component.items()
        }
    for names in tree:
        search.measure(names, math.sqrt(1.5 * len(tree) / search.rho))
    if tree:
        search.refit()


def _table_with_unit_axes(model: TableModel, names: Space, schema: Schema) -> Array:
    wide = tuple(name for name in names if schema[name].size > 1)
    return model.table(wide).reshape(schema.sizes(names))
