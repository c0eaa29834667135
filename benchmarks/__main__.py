"""Every table that this project reproduces, one after the other.

    python -m benchmarks            print all of them
    python -m benchmarks --write    print them and write the .txt files beside their scripts

No private data is needed.  Rows on the paper's own Brazil counts, and a release of the real Adult table, are printed by
`benchmarks.common_mechanism --data` and `benchmarks.release --adult` when the files are there.
"""

import argparse
import subprocess
import sys
import time

TABLES = {
    "published": "QuerySmasher, tables 2 and 4, at the certified optimum",
    "rivals": "the other mechanisms' columns of QuerySmasher's tables",
    "tuned": "tuned splits beside the published ones",
    "bounds": "tuned plans against the bound for all matrix mechanisms",
    "pair_tables": "the best of all mechanisms on tables of pairs, between tuned plans and that bound",
    "speed": "what planning takes, beside what was aimed at",
    "random_small": "tuned splits on random small workloads, against the optimum of all mechanisms",
    "random_large": "tuned splits on random large workloads, against every other mechanism",
    "scale": "QuerySmasher, tables 3, 5 and 7: the largest workloads",
    "large_pairs": "sums and differences on every large pair, several products on one large space",
    "objectives": "largest variance and norms between; QuerySmasher, table 8",
    "hdmm_tables": "HDMM, tables 3 to 7, its own columns",
    "classic_strategies": "HDMM, tables 3 to 7, the strategies it is compared with; level selection, example 3.1",
    "common_mechanism": "the common mechanism, savings and choices",
    "release": "from the click to the file",
    "ledger": "durable spends a second",
    "counting": "records to tables, beside DuckDB, pandas and Polars",
    "cluster": "records in parts: a cluster of Spark, counted files, ten billion rows on paper",
    "published_tables": "published tables beside unbiased and clipped ones",
    "adaptive": "what adaptive methods would publish, beside ours; their rows need the package mbi",
    "aimed": "published tables of plans that aim at them",
    "coverage": "how often intervals of published tables hold",
    "warm": "plans after an edit",
    "wide": "optimal strategies on one wide attribute, by width and family",
    "latency": "the app: from an edit to its preview",
    "load": "the app: many users at once, memory, bytes, requests to other hosts",
}


def main(arguments: list[str] | None = None) -> int:
    """Run every table in a process of its own; return 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="also write the tables to their .txt files")
    parser.add_argument("--only", nargs="+", choices=list(TABLES), help="some of the tables")
    given = parser.parse_args(arguments)
    failed = []
    for name in given.only or TABLES:
        print(f"\n== {TABLES[name]}: python -m benchmarks.{name}", flush=True)
        begun = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--write"] if given.write else [])]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(f"({time.monotonic() - begun:.0f} s)", flush=True)
    print("\nFailed: " + ", ".join(failed) if failed else "\nAll tables were made.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
