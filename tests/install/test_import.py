"""Modules that `import engine` loads, thread limits and the version."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize(
    ("code", "module"),
    [
        (
            "import engine\n[getattr(engine, name) for name in engine.__all__ if name != 'plot']",
            "engine.records.marginals",
        ),
        ("import engine.cli.plan, engine.cli.release", "engine.cli.arguments"),
    ],
    ids=["engine", "commands"],
)
def test_import_of_public_names_loads_no_slow_packages(code: str, module: str) -> None:
    code = f"import sys\n{code}\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert module in loaded
    assert not loaded & DEFERRED


@pytest.mark.parametrize(
    "code",
    ["import engine", "from engine.cli.main import _parser\n_parser(None).format_help()"],
    ids=["engine", "help"],
)
def test_import_engine_and_help_load_no_numpy(code: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not set(run.stdout.split()) & {"numpy", "pyarrow", "scipy", *DEFERRED}


def test_public_names_match_imports_for_type_checkers() -> None:
    tree = ast.parse(Path(engine.__file__).read_text(encoding="utf-8"))
    imports = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("engine.")
        for alias in node.names
    }
    assert imports == engine._MODULES
    assert sorted(imports) == sorted(engine.__all__)
    for name in engine.__all__:
        assert getattr(engine, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = engine.no_such_name


def test_threads_for_limits_blas_loaded_later() -> None:
    code = """
import engine, scipy
from engine._threads import threads_for
from threadpoolctl import threadpool_info
with threads_for(9):  # a matrix of 9 rows needs one thread only
    scipy.linalg.eigh([[2.0]])
    print(*{pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
"""
    two_threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | two_threads,
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
