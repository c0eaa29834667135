"""What a program pays that only says `import engine`."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import engine

ROOT = Path(__file__).resolve().parents[2]
WHERE_USED = {
    *("pandas", "scipy.optimize", "scipy.sparse", "sqlglot", "joblib", "loky", "plotly", "streamlit", "tqdm"),
    *("scipy.linalg", "scipy.special", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet"),
}


ARROW = {"pyarrow.compute", "pyarrow.parquet"}  # little beside the rest, for whom files are all there is


@pytest.mark.parametrize(("room", "used"), [("engine", set()), ("engine.cli.main", ARROW)])
def test_what_takes_long_to_import_is_imported_where_it_is_used(room: str, used: set[str]) -> None:
    code = f"import sys, {room}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert {"engine.records.weighted_rows", room} <= loaded
    assert loaded & WHERE_USED == used


def test_linear_algebra_that_is_loaded_late_is_held_to_one_thread_too() -> None:
    code = (
        "import engine, scipy\n"
        "from engine._threads import threads_for\n"
        "from threadpoolctl import threadpool_info\n"
        "with threads_for(9):\n"
        "    scipy.linalg.eigh([[2.0]])\n"
        "    print(*{pool['num_threads'] for pool in threadpool_info() if pool['user_api'] == 'blas'})\n"
    )
    several = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | several, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["1"]


def test_the_version_is_that_of_the_package_also_where_it_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert engine.__version__ == importlib.metadata.version(told["name"])

    def unknown(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert engine.__version__ == told["version"]
