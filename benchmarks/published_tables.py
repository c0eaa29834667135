"""L1 errors of published, unbiased and clipped tables.

    python -m benchmarks.published_tables                        the public survey of the demos
    python -m benchmarks.published_tables --adult adult.csv      also the real Adult table, coded 0 .. size - 1
    python -m benchmarks.published_tables --adult adult.csv --full     and all its triples, 20.9 million cells
    python -m benchmarks.published_tables --statsmodels          also tables that ship with statsmodels, if installed

Clipped tables are unbiased tables, clipped at 0 and rescaled. Noise has the seeds 0, 1, ..., so
that versions are comparable. L1 is the mean, over tables, of the sum of absolute errors divided by
the number of records; `zeros` is the mean published number in empty cells, `small` the bias in
cells of 1 to 10; `integer` are tables of synthetic records, exactly consistent; `MB` is the peak
memory at the first publication. All rows of an epsilon have the same rho: 0.000198, 0.01656 and
1.1825 for epsilon 0.1, 1 and 10 at delta 1e-9. Anchors on Adult, measured with the same rho: the
mixture of products of mbi has .325, .082, .0235 on all tables of one and two attributes, dpsynth
SWIFT .248 and .088; the mixture has .0815 on those of three (numeric attributes in 16 cells) at
epsilon 1.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import demo_data
from benchmarks import options, peak_megabytes
from benchmarks.row_file import RowFile
from engine.mechanisms import plan
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Attribute, Schema, Workload

RHO = {0.1: 0.000198, 1.0: 0.01656, 10.0: 1.1825}
COARSE, MOST_LEVELS = 16, 32
ADULT_NUMERIC = ("age", "fnlwgt", "capital-gain", "capital-loss", "hours-per-week")
FIGURES = (
    "unbiased",
    "clipped",
    "published",
    "integer",
    "zeros",
    "small",
    "cpu s",
    "integer s",
    "MB",
)
Table = tuple[str, pd.DataFrame, Schema, tuple[int, ...]]


def coarsen(
    records: pd.DataFrame, schema: Schema, names: tuple[str, ...], cells: int
) -> tuple[pd.DataFrame, Schema]:
    """Return coded records with some attributes in fewer cells."""
    sizes = {n: schema[n].size for n in schema.names}
    for name in (n for n in names if sizes[n] > cells):
        records = records.assign(**{name: records[name] * cells // sizes[name]})
        sizes[name] = cells
    return records, Schema([Attribute.of_size(name, n) for name, n in sizes.items()])


def encode(records: pd.DataFrame) -> tuple[pd.DataFrame, Schema]:
    """Return numeric records as codes: levels, or bins of equal width if there are many."""
    codes = {}
    for name in records:
        values = records[name].to_numpy(float)
        levels = np.unique(values[~np.isnan(values)])
        values = np.where(np.isnan(values), levels[0], values)
        if len(levels) > MOST_LEVELS:
            levels = np.linspace(levels[0], levels[-1], MOST_LEVELS + 1)[:-1]
        codes[str(name)] = np.searchsorted(levels, values, side="right") - 1
    sizes = {name: int(column.max()) + 1 for name, column in codes.items()}
    return pd.DataFrame(codes), Schema([Attribute.of_size(name, n) for name, n in sizes.items()])


def tables(args: argparse.Namespace) -> Iterator[Table]:
    """Yield (name, records, schema, numbers of attributes of its tables) of each data set."""
    survey = Schema.from_json(demo_data.schemas()["survey"].read_bytes())
    yield "survey", pd.read_csv(demo_data.tables()["survey"]), survey, (1, 2)
    for name in ("randhie", "fair", "anes96") if args.statsmodels else ():
        records = importlib.import_module(f"statsmodels.datasets.{name}").load_pandas().data
        yield name, *encode(records), (1, 2)
    if args.adult is not None:
        records = pd.read_csv(args.adult)
        schema = Schema.from_json(demo_data.schemas()["adult"].read_bytes())
        sizes = dict(zip(records.columns, schema.sizes(schema.names), strict=True))
        if args.domain is not None:
            sizes = json.loads(args.domain.read_text())
        plain = Schema([Attribute.of_size(name, n) for name, n in sizes.items()])
        yield "Adult W2", records, plain, (1, 2)
        yield "Adult W3c", *coarsen(records, plain, ADULT_NUMERIC, COARSE), (1, 2, 3)
        if args.full:
            yield "Adult W3", records, plain, (1, 2, 3)


def rows(table: Table, epsilon: float, seeds: int) -> dict[str, float]:
    """Return the mean figures of one table at one budget, over tables of the most attributes."""
    _, records, schema, ways = table
    result = plan(
        Workload.all_ways(schema, ways, family="marginal"),
        Budget.zcdp(RHO[epsilon]),
        mechanism="residualplanner",
    )
    sets = list(itertools.combinations(schema.names, max(ways)))
    exact = count_marginals(
        records, schema, [(), *(group.attributes for group in result.workload.groups)]
    )
    people = len(records)
    figures: dict[str, list[float]] = {name: [] for name in FIGURES}
    for seed in range(seeds):
        measured = simulate_measurement(
            result, lambda names: exact[tuple(names)].astype(float), np.random.default_rng(seed)
        )
        start = time.process_time()
        published = measured.publish()
        figures["cpu s"].append(time.process_time() - start)
        figures["MB"] = figures["MB"] or [peak_megabytes()]
        integer_tables = measured.publish(integer=True)
        figures["integer s"].append(time.process_time() - start - figures["cpu s"][-1])
        total = max(0.0, float(measured.marginal([])))

        def clipped(names: tuple[str, ...], measured=measured, total=total) -> np.ndarray:
            table = np.maximum(measured.marginal(names), 0.0)
            return table * (total / max(float(table.sum()), 1e-300))

        makers: dict[str, Callable] = {
            "unbiased": measured.marginal,
            "clipped": clipped,
            "published": published.table,
        }
        makers["integer"] = integer_tables.table
        for name, maker in makers.items():
            figures[name].append(
                float(np.mean([np.abs(maker(s) - exact[s]).sum() / people for s in sets]))
            )
        empty = [published.table(s)[exact[s] == 0] for s in sets]
        figures["zeros"].append(float(np.concatenate(empty).mean()))
        small = [(published.table(s) - exact[s])[(exact[s] >= 1) & (exact[s] <= 10)] for s in sets]
        figures["small"].append(float(np.concatenate(small).mean()))
    return {name: float(np.mean(values)) for name, values in figures.items()}


def table_options(script: str, doc: str) -> argparse.ArgumentParser:
    """Return the argument parser of a benchmark on real tables; see `tables`."""
    parser = options(script, doc)
    parser.add_argument("--adult", type=Path, help="the Adult table as CSV, coded 0 .. size - 1")
    parser.add_argument(
        "--domain",
        type=Path,
        help="its domain sizes as JSON, where they are not those of the demos",
    )
    parser.add_argument(
        "--statsmodels", action="store_true", help="also tables that ship with statsmodels"
    )
    parser.add_argument("--only", nargs="+", help="names of tables")
    return parser


def main() -> None:
    """Print one row per table and budget."""
    parser = table_options(__file__, __doc__)
    parser.add_argument(
        "--full", action="store_true", help="also all tables of three attributes of Adult (long)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="releases per row")
    parser.add_argument("--epsilon", nargs="+", type=float, choices=list(RHO), help="budgets")
    args = parser.parse_args()
    head = f"{'tables':12} {'epsilon':>8}" + "".join(f" {name:>9}" for name in FIGURES)
    output = RowFile(head, Path(__file__).with_suffix(".txt") if args.write else None)
    for table in tables(args):
        if args.only and table[0] not in args.only:
            continue
        for epsilon in args.epsilon or RHO:
            row = f"{table[0]:12} {epsilon:8g}"
            if not output.has(row):
                r = rows(table, epsilon, args.seeds)
                digits = {name: 2 if name.endswith(" s") else 4 for name in FIGURES} | {"MB": 0}
                output.add(row + "".join(f" {r[name]:9.{digits[name]}f}" for name in FIGURES))


if __name__ == "__main__":
    main()
