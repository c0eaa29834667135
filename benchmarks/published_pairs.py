"""L1 errors of published pairs on CSV files, next to simple methods and mixtures of products.

    python -m benchmarks.published_pairs survey.csv census.csv     any tables of records
    python -m benchmarks.published_pairs survey.csv --seeds 5 --mixture 1

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

SWIFT and MST of dpsynth are not measured here, because the package index does not have dpsynth.  To
add them, write a function such as `mixture_tables`.  Figures that were measured elsewhere with the
same coding and delta (seed 0), beside `weighted` (5 seeds):

                epsilon     SWIFT       MST    weighted
    401ksubs        0.1      .312      .366        .267
    401ksubs          1     .0647     .0905       .0618
    labsup          0.1     .0563     .0904       .0436
    labsup            1     .0150     .0398       .0081
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.row_file import RowFile
from engine._arrays import Array
from engine.mechanisms import plan
from engine.plans import Plan
from engine.postprocess.publication_weights import publication_weights
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import Measurement
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


def mixture_tables(measurement: Measurement) -> Tables:
    """Return a function to the tables of a mixture of products that mbi fits to unbiased tables."""
    import_module("jax").config.update("jax_enable_compilation_cache", False)
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


def errors(
    records: pd.DataFrame, schema: Schema, epsilon: float, seeds: int, mixtures: int
) -> dict[str, float]:
    """Return the mean figures of one table at one budget; see the module for `FIGURES`.

    ``mixtures`` is the number of seeds for which a mixture is fitted.
    """
    workload = Workload.all_ways(schema, (1, 2), family="marginal")
    budget = Budget.zcdp(rho_of(epsilon))
    weighted = publication_weights(workload, budget, expected_records=len(records))
    exact = count_marginals(records, schema, [(), *(group.attributes for group in workload.groups)])
    pairs = list(itertools.combinations(schema.names, 2))

    def fitted_plan(chosen: Workload) -> Plan:
        return plan(chosen, budget, mechanism="residualplanner")

    def mean_error(tables: Tables) -> float:
        return float(np.mean([np.abs(tables(p) - exact[p]).sum() for p in pairs]) / len(records))

    def measure(result: Plan, seed: int) -> Measurement:
        return simulate_measurement(
            result, lambda names: exact[tuple(names)].astype(float), np.random.default_rng(seed)
        )

    plans = {
        "equal": fitted_plan(workload),
        "weighted": fitted_plan(weighted),
        "independent": fitted_plan(Workload.all_ways(schema, (1,), family="marginal")),
    }
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    for seed in range(seeds):
        measurements = {name: measure(result, seed) for name, result in plans.items()}
        figures["clipped"].append(mean_error(clipped_tables(measurements["equal"])))
        figures["independent"].append(mean_error(independent_tables(measurements["independent"])))
        if seed < mixtures:
            start = time.process_time()
            mixture = mixture_tables(measurements["equal"])
            figures["mixture s"].append(time.process_time() - start)
            figures["mixture"].append(mean_error(mixture))
        figures["equal"].append(mean_error(measurements["equal"].publish().table))
        start = time.process_time()
        published = measurements["weighted"].publish()
        figures["cpu s"].append(time.process_time() - start)
        figures["weighted"].append(mean_error(published.table))
    means = {
        name: float(np.mean(values)) if values else math.nan for name, values in figures.items()
    }
    rivals = [means[name] for name in ("clipped", "independent", "mixture")]
    return means | {"ratio": means["weighted"] / float(np.nanmin(rivals))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row per table and budget."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published_pairs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tables", nargs="+", type=Path, help="CSV files")
    parser.add_argument("--epsilon", nargs="+", type=float, default=EPSILONS, help="budgets")
    parser.add_argument("--seeds", type=int, default=5, help="releases per row")
    parser.add_argument(
        "--mixture", type=int, default=0, help="seeds with a mixture, which needs the package mbi"
    )
    parser.add_argument("--coded", action="store_true", help="columns are codes 0 .. size - 1")
    parser.add_argument("--attributes", type=int, default=14, help="maximum number per table")
    parser.add_argument("--cells", type=int, default=12, help="maximum number per attribute")
    parser.add_argument("--out", type=Path, help="text file; rows that it contains are skipped")
    args = parser.parse_args(arguments)
    head = f"{'table':12} {'epsilon':>8} {'seeds':>5}" + "".join(f" {n:>11}" for n in FIGURES)
    output = RowFile(head, args.out)
    for path in args.tables:
        records = pd.read_csv(path, low_memory=False)
        coded, schema = (
            with_schema(records)
            if args.coded
            else encode_quantiles(records, args.attributes, args.cells)
        )
        for epsilon in args.epsilon:
            row = f"{path.stem:12} {epsilon:8g} {args.seeds:5}"
            if not output.has(row):
                figures = errors(coded, schema, epsilon, args.seeds, args.mixture)
                output.add(row + "".join(f" {figures[name]:11.4f}" for name in FIGURES))


if __name__ == "__main__":
    main()
