"""Coverage of the intervals of published tables, by simulation on public records.

    python -m benchmarks.coverage                              the public survey of the demos
    python -m benchmarks.coverage --adult adult.csv --domain adult-domain.json
    python -m benchmarks.coverage --csv census.csv --weighted  CSV files, with `publication_weights`

The cells are those of one-way and two-way tables whose published number is above 10; `half` is the
half-width of their 95% intervals, next to that of the unbiased answers. `from` and `to` are the
seeds of rehearsals: batches are saved, so that an interrupted run resumes, and a last row has all
batches together. All rows of an epsilon have the same rho: 0.000198, 0.01656 and 1.1825 for epsilon
0.1, 1 and 10 at delta 1e-9.  CSV files are coded as in `benchmarks.published_pairs`.

The survey has 944 records; at epsilon 0.1 the noise of this number has the standard deviation 870.
In half of the rehearsals the published total is 0, and there are no intervals.  In the others, most
cells above 10 come from rehearsals with too large a total, whose intervals nearly always cover.  Of
all cells of its pairs, 87% are covered, and of those with a true count above 10, 77% (100
rehearsals): the intervals are not too wide.  All cells share the error of the total, so look first
at the interval of the total.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.published_pairs import encode_quantiles
from benchmarks.published_tables import RHO, Table, table_options, tables
from benchmarks.row_file import RowFile
from engine._arrays import Array
from engine.mechanisms import plan
from engine.postprocess.publication_weights import publication_weights
from engine.postprocess.uncertainty import DRAWS, simulate_measurement
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Workload

ABOVE, CONFIDENCE, BATCH = 10.0, 0.95, 25


def coverage(
    workload: Workload,
    budget: Budget,
    exact: Callable[[tuple[str, ...]], Array],
    *,
    rehearsals: int,
    begin: int = 0,
    draws: int = DRAWS,
) -> dict[int, dict[str, float]]:
    """Return coverage and half-widths, in counts, of intervals of cells above 10.

    ``exact`` gives the exact table on some attributes, of shape (n_1, ..., n_k); figures are by
    numbers of attributes. Rehearsals have the seeds from ``begin`` on.
    """
    result = plan(workload, budget, mechanism="residualplanner")
    sums = {len(g.attributes): np.zeros(4) for g in workload.groups}
    for seed in range(begin, begin + rehearsals):
        published = simulate_measurement(result, exact, np.random.default_rng(seed)).publish()
        if published.total <= 0.0:
            continue
        uncertainty = published.uncertainty(draws=draws)
        for number, group in enumerate(workload.groups):
            values = published.table(group.attributes)
            half = uncertainty.reach(CONFIDENCE) * uncertainty.table_errors(group.attributes)
            unbiased = 1.96 * np.sqrt(result.variances(number).reshape(values.shape))
            is_covered = np.abs(values - exact(group.attributes)) <= half
            figures = np.stack([is_covered, half, unbiased, np.ones_like(values)])
            sums[len(group.attributes)] += figures[:, values > ABOVE].sum(axis=1)
    out = {}
    for order, (covered, reach, unbiased_reach, cells) in sums.items():
        each = max(cells, 1.0)
        out[order] = {
            "covered": covered / each,
            "half": reach / each,
            "unbiased half": unbiased_reach / each,
            "cells": cells,
        }
    return out


def selected_tables(args: argparse.Namespace) -> Iterator[Table]:
    """Yield the CSV files of the options, or else the tables of `benchmarks.published_tables`."""
    for path in args.csv:
        yield path.stem, *encode_quantiles(pd.read_csv(path, low_memory=False)), (1, 2)
    if not args.csv:
        yield from tables(args)


def main() -> None:
    """Print one row per table and budget."""
    parser = table_options(__file__, __doc__)
    parser.add_argument("--rehearsals", type=int, default=200, help="rehearsals per row")
    parser.add_argument("--csv", nargs="+", type=Path, default=[], help="CSV files of records")
    parser.add_argument("--weighted", action="store_true", help="plan with `publication_weights`")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of the bootstrap")
    parser.add_argument("--epsilon", nargs="+", type=float, choices=list(RHO), help="budgets")
    args = parser.parse_args(namespace=argparse.Namespace(full=False))
    figures = f"{'covered':>8} {'half':>8} {'unbiased':>9} {'cells':>9} {'cpu s':>8}"
    head = f"{'tables':12} {'epsilon':>8} {'ways':>4} {'from':>5} {'to':>5} {figures}"
    output = RowFile(head, Path(__file__).with_suffix(".txt") if args.write else None)
    for name, records, schema, ways in selected_tables(args):
        if max(ways) > 2 or (args.only and name not in args.only):
            continue
        workload = Workload.all_ways(schema, ways, family="marginal")
        exact = count_marginals(records, schema, [(), *(g.attributes for g in workload.groups)])
        for epsilon in args.epsilon or RHO:
            row = f"{name:12} {epsilon:8g}"
            for begin in range(0, args.rehearsals, BATCH):
                seeds = f"{begin:5} {min(begin + BATCH, args.rehearsals) - 1:5}"
                if all(output.has(f"{row} {order:4} {seeds}") for order in ways):
                    continue
                start = time.process_time()
                budget = Budget.zcdp(RHO[epsilon])
                figures_by_order = coverage(
                    publication_weights(workload, budget, expected_records=len(records))
                    if args.weighted
                    else workload,
                    budget,
                    lambda names, exact=exact: exact[tuple(names)].astype(float),
                    rehearsals=min(BATCH, args.rehearsals - begin),
                    begin=begin,
                    draws=args.draws,
                )
                for order, r in figures_by_order.items():
                    output.add(
                        f"{row} {order:4} {seeds}"
                        f" {_figures(list(r.values()), time.process_time() - start)}"
                    )
            for order in ways:
                _together(output, f"{row} {order:4}", args.rehearsals)


def _figures(means: list[float], seconds: float) -> str:
    covered, half, unbiased, cells = means
    return f"{covered:8.4f} {half:8.2f} {unbiased:9.2f} {cells:9.0f} {seconds:8.1f}"


def _together(output: RowFile, row: str, rehearsals: int) -> None:
    """Add the row of all batches, weighted by their cells."""
    seeds = f"{0:5} {rehearsals - 1:5}"
    if output.has(f"{row} {seeds}"):
        return
    batches = np.array(
        [line.removeprefix(row).split()[2:] for line in output.rows if line.startswith(row)], float
    )
    means = np.average(batches[:, :3], axis=0, weights=np.maximum(batches[:, 3], 1e-9))
    output.add(f"{row} {seeds} {_figures([*means, batches[:, 3].sum()], batches[:, 4].sum())}")


if __name__ == "__main__":
    main()
