"""Modules that `import engine` loads, and limits of threads."""

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
DEFERRED = {
    *(
        "pandas",
        "scipy.optimize",
        "scipy.sparse",
        "sqlglot",
        "joblib",
        "loky",
        "plotly",
        "streamlit",
        "tqdm",
    ),
    *("scipy.linalg", "scipy.special", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet"),
}


# the command line always reads files
ARROW = {"pyarrow.compute", "pyarrow.parquet"}


@pytest.mark.parametrize(("module", "expected"), [("engine", set()), ("engine.cli.main", ARROW)])
def test_import_engine_loads_no_slow_packages(module: str, expected: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert {"engine.records.marginals", module} <= loaded
    assert loaded & DEFERRED == expected


def test_threads_for_limits_blas_loaded_later() -> None:
    code = (
        "import engine, scipy\nfrom engine._threads import threads_for\nfrom threadpoolctl import"
        " threadpool_info\nwith threads_for(9):\n    scipy.linalg.eigh([[2.0]])\n   "
        " print(*{pool['num_threads'] for pool in threadpool_info() if pool['user_api'] =="
        " 'blas'})\n"
    )
    several = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | several,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["1"]


def test_version_without_installed_metadata_is_read_from_project(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert engine.__version__ == importlib.metadata.version(project["name"])

    def unknown(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert engine.__version__ == project["version"]
