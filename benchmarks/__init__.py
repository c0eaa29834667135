"""Reproducible benchmark tables; see `benchmarks.__main__`.

The search cache on disk is off, so that earlier runs shorten no time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine._workers import peak_megabytes

__all__ = ["one_thread", "options", "peak_megabytes", "run_in_new_process", "table"]

os.environ["DP_WORKBENCH_CACHE"] = "off"


def options(script: str, doc: str) -> argparse.ArgumentParser:
    """Return the argument parser of a benchmark script, with the option --write."""
    name = Path(script).stem
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc.splitlines()[0]
    )
    parser.add_argument("--write", action="store_true", help=f"also write benchmarks/{name}.txt")
    return parser


def one_thread() -> None:
    """Limit processes that start from now on to one thread."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


@contextmanager
def table(script: str, *, write: bool) -> Iterator[Callable[..., None]]:
    """Yield a function that prints lines; with `write`, save them if no error was raised."""
    lines: list[str] = []

    def show(*new: str) -> None:
        lines.extend(new)
        print(*new, sep="\n", flush=True)

    yield show
    if write:
        Path(script).with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_in_new_process(work: Callable[..., Any], *args: Any) -> Any:
    """Return the result of `work` in a new process, which has a separate peak of memory."""
    with ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        return pool.submit(work, *args).result()
