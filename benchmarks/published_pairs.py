"""L1 errors of published pairs on CSV files, beside independence and clipped answers.

    python -m benchmarks.published_pairs survey.csv census.csv     any tables of records

Every table is coded to at most 14 attributes (the first ones with two values) of at most 12 cells,
by quantiles.  L1 is the mean, over pairs, of the sum of absolute errors divided by the number of
records.  `independent` are products of the published one-way tables.  Noise has the seeds 0, 1,
...; all rows of an epsilon have the same rho as `benchmarks.published_tables`.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.published_tables import RHO
from engine.mechanisms import plan
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Attribute, Schema, Workload

FIGURES = ("unbiased", "clipped", "independent", "published", "cpu s")


def encode_quantiles(
    records: pd.DataFrame, attributes: int, cells: int
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
    schema = Schema([Attribute.of_size(name, int(c.max()) + 1) for name, c in codes.items()])
    return pd.DataFrame(codes), schema


def errors(records: pd.DataFrame, schema: Schema, epsilon: float, seeds: int) -> np.ndarray:
    """Return the mean figures of one table at one budget, in the order of ``FIGURES``."""
    workload = Workload.all_ways(schema, (1, 2), family="marginal")
    result = plan(workload, Budget.zcdp(RHO[epsilon]), mechanism="residualplanner")
    exact = count_marginals(records, schema, [(), *(group.attributes for group in workload.groups)])
    pairs = list(itertools.combinations(schema.names, 2))
    rows = []
    for seed in range(seeds):
        measured = simulate_measurement(
            result, lambda names: exact[tuple(names)].astype(float), np.random.default_rng(seed)
        )
        start = time.process_time()
        published = measured.publish()
        seconds = time.process_time() - start
        sums = np.zeros(4)
        for pair in pairs:
            answers = measured.marginal(pair)
            clipped = np.maximum(answers, 0.0)
            clipped *= max(0.0, float(measured.marginal([]))) / max(float(clipped.sum()), 1e-300)
            product = np.outer(*(published.table([name]) for name in pair))
            tables = (answers, clipped, product / published.total, published.table(pair))
            sums += [np.abs(table - exact[pair]).sum() / len(records) for table in tables]
        rows.append([*(sums / len(pairs)), seconds])
    return np.asarray(np.mean(rows, axis=0))


def main() -> None:
    """Print one row per table and budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("tables", nargs="+", type=Path, help="CSV files")
    parser.add_argument("--epsilon", nargs="+", type=float, choices=list(RHO), default=list(RHO))
    parser.add_argument("--seeds", type=int, default=2, help="releases per row")
    parser.add_argument("--attributes", type=int, default=14, help="maximum number per table")
    parser.add_argument("--cells", type=int, default=12, help="maximum number per attribute")
    args = parser.parse_args()
    print(f"{'table':12} {'epsilon':>8}" + "".join(f" {name:>11}" for name in FIGURES))
    for path in args.tables:
        records, schema = encode_quantiles(pd.read_csv(path), args.attributes, args.cells)
        for epsilon in args.epsilon:
            figures = errors(records, schema, epsilon, args.seeds)
            row = "".join(f" {figure:11.4f}" for figure in figures)
            print(f"{path.stem:12} {epsilon:8g}{row}", flush=True)


if __name__ == "__main__":
    main()
