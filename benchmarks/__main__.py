"""Run all benchmark tables in order.

    python -m benchmarks            print all of them
    python -m benchmarks --write    print them and write the .txt files

No private data is needed. `benchmarks.common_mechanism --data` and `benchmarks.release --adult`
also print rows on the Brazil counts of the paper and on the real Adult table, if the files exist.
"""

import argparse
import subprocess
import sys
import time

TABLES = {
    "published": "QuerySmasher, tables 2 to 4, at the certified optimum",
    "rivals": "the other mechanisms' columns of QuerySmasher's tables",
    "tuned": "tuned and published splits",
    "bounds": "tuned plans against the bound for all matrix mechanisms",
    "pair_tables": (
        "the best of all mechanisms on tables of pairs, between tuned plans and that bound"
    ),
    "speed": "planning time and its targets",
    "random_small": "tuned splits on random small workloads, against the optimum of all mechanisms",
    "random_large": "tuned splits on random large workloads, against every other mechanism",
    "scale": "QuerySmasher, tables 5 to 7: the largest workloads",
    "large_pairs": "sums and differences on every large pair, several products on one large space",
    "objectives": "largest variance and norms between; QuerySmasher, table 8",
    "hdmm_tables": "HDMM, tables 3 to 7, columns of HDMM",
    "classic_strategies": "HDMM, tables 3 to 7, baseline strategies; level selection, figures 2 and 3",
    "common_mechanism": "the common mechanism, savings and choices",
    "release": "releases: seconds and memory from plan to file",
    "ledger": "durable spends per second",
    "counting": "counting of records, compared with DuckDB, pandas and Polars",
    "cluster": "records in parts: Spark cluster, counted files, extrapolation to ten billion rows",
    "published_tables": "published tables, compared with unbiased and clipped ones",
    "adaptive": "published tables of AIM and MST, compared with ours; needs the package mbi",
    "coverage": "coverage of intervals of published tables",
    "warm": "planning time after an edit",
    "wide": "optimal strategies on one wide attribute, by width and family",
    "levels": "areas of nested levels: time and memory, errors against TopDown, coverage",
    "latency": "the app: time from an edit to its preview",
    "load": "the app: many users, memory, bytes, requests to other hosts",
}


def main(arguments: list[str] | None = None) -> int:
    """Run every table in a new process; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--write", action="store_true", help="also write the tables to their .txt files"
    )
    parser.add_argument("--only", nargs="+", choices=list(TABLES), help="some of the tables")
    args = parser.parse_args(arguments)
    failed = []
    for name in args.only or TABLES:
        print(f"\n== {TABLES[name]}: python -m benchmarks.{name}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--write"] if args.write else [])]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(f"({time.monotonic() - start:.0f} s)", flush=True)
    print("\nFailed: " + ", ".join(failed) if failed else "\nAll tables succeeded.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
