"""Tables that anybody can run again; see `benchmarks.__main__`.

Searches start cold: nothing that an earlier run kept on disk may shorten a time.
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

__all__ = ["one_thread", "options", "own_process", "peak_megabytes", "table"]

os.environ["DP_WORKBENCH_CACHE"] = "off"


def options(script: str, doc: str) -> argparse.ArgumentParser:
    """Return the options of a script, of which every one that makes a table has this one."""
    name = Path(script).stem
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"also write benchmarks/{name}.txt")
    return parser


def one_thread() -> None:
    """Let processes that are started from now on compute on one thread."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


@contextmanager
def table(script: str, *, write: bool) -> Iterator[Callable[..., None]]:
    """Yield what prints lines at once; with `write` they are kept beside the script, unless something was raised."""
    lines: list[str] = []

    def show(*new: str) -> None:
        lines.extend(new)
        print(*new, sep="\n", flush=True)

    yield show
    if write:
        Path(script).with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def own_process(work: Callable[..., Any], *given: Any) -> Any:
    """Return what `work` returns in a process of its own, which has a peak of memory of its own."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *given).result()
