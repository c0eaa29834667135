"""Imports of release code: no clock, no pickle, no random generator."""

from __future__ import annotations

import ast
import functools
import pickle
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest

import engine
from demo_data.make_synthetic import synthetic
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.release import measure
from engine.release.measure import load_measurement
from engine.release.noise import fresh_seed
from engine.workload import Attribute, Schema, Workload

ROOT = Path(engine.__file__).parent
WATCHED = {
    "random",
    "numpy.random",
    "time",
    "datetime",
    "uuid",
    "secrets",
    "pickle",
    "shelve",
    "marshal",
    "joblib",
}
PICKLES = {
    "pickle",
    "shelve",
    "marshal",
    "dill",
    "cloudpickle",
    "read_pickle",
    "to_pickle",
    "allow_pickle",
}
# Maps a module that handles private values to the watched names that it may import.
ALLOWED = {
    "ledger/sqlite_file.py": {"datetime", "uuid"},  # time of a row, identifier of a new ledger
    "ledger/signing.py": {"secrets"},  # a new key, from the operating system
    # random part of the name of a temporary file
    "_atomic_io.py": {"secrets"},
    # conversion of dates in records
    "release/public_draft.py": {"datetime"},
    "records/encoding.py": {"datetime"},
    "records/database.py": {"datetime"},
}
CLOCKS = re.compile(r"\b(now|today|utcnow|time|monotonic)\(\)")


@functools.cache
def watched_uses(text: str) -> set[str]:
    """Return the watched names that a module imports or uses."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                names |= {name.name for name in node.names}
            case ast.ImportFrom(module=str(module), level=0):
                names |= {module, *(f"{module}.{name.name}" for name in node.names)}
            case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="random"):
                names.add("numpy.random")
            case ast.Attribute(attr="read_pickle" | "to_pickle" as name):
                names.add(name)
            case ast.keyword(arg="allow_pickle", value=value) if (
                getattr(value, "value", None) is not False
            ):
                names.add("allow_pickle")
            case ast.Name(id="__import__" | "eval" | "exec" as name):
                names.add(name)
    tops = {name.partition(".")[0] for name in names}
    return {
        name
        for name in names | tops
        if name in WATCHED | PICKLES or name in ("__import__", "eval", "exec")
    }


def watched_uses_by_module(*packages: str) -> dict[str, set[str]]:
    """Return the watched names that each module uses; watched_uses_by_module that use none are left out."""
    files = {file for package in packages for file in (ROOT / package).rglob("*.py")}
    uses_by_module = {
        str(f.relative_to(ROOT).as_posix()): watched_uses(f.read_text(encoding="utf-8"))
        for f in sorted(files)
    }
    return {name: uses for name, uses in uses_by_module.items() if uses}


def test_release_imports_no_generator_clock_or_pickle() -> None:
    common_mechanism_uses = {
        name: uses
        for name, uses in watched_uses_by_module("common_mechanism").items()
        if name.removeprefix("common_mechanism/").startswith(("stepwise", "two_stage", "common_"))
    }
    release_uses = watched_uses_by_module("release", "ledger", "records")
    file_uses = {"_atomic_io.py": watched_uses_by_module(".")["_atomic_io.py"]}
    uses_by_module = common_mechanism_uses | release_uses | file_uses
    assert uses_by_module == ALLOWED
    # These modules import `datetime` to convert dates, but do not read the clock.
    for name in ALLOWED:
        if name.startswith("records/"):
            assert not CLOCKS.search((ROOT / name).read_text(encoding="utf-8")), name


def test_engine_uses_no_pickle_or_unseeded_generator() -> None:
    """Only the strategy search pickles tasks with joblib, which `_threads` uses to count cores."""
    for name, uses in watched_uses_by_module(".").items():
        assert not uses & (PICKLES | {"random", "eval", "exec", "__import__"}), name
        assert "joblib" not in uses or name in ("residuals/subworkload_solver.py", "_threads.py")
    for file in ROOT.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        permitted_uses = text.count("np.random.default_rng(") + text.count("np.random.Generator")
        assert text.count("np.random.") == permitted_uses, file
        assert "default_rng()" not in text, file


@pytest.mark.parametrize(
    "forbidden",
    [
        "import random",
        "from random import gauss",
        "import numpy.random",
        "from numpy import random",
        "from numpy.random import normal",
        "x = np.random.normal()",
        "import time",
        "from time import time_ns",
        "import pickle",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=flag)",
        "pd.read_pickle(f)",
        "__import__('random')",
    ],
)
def test_watched_uses_detects_forbidden_code(forbidden: str) -> None:
    assert watched_uses(forbidden)
    permitted = "import os\nnp.load(f, allow_pickle=False)\nrandom_bits = 3"
    assert not watched_uses(permitted)


def test_measure_without_generator_clock_or_pickle_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)])
    small_plan = plan(Workload.all_ways(schema, ways=(1, 2)), Budget(pcost=0.2))
    records = synthetic(schema, 300, seed=1)
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("survey", total=Budget(pcost=1.0))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the release calls a forbidden function")

    assert fresh_seed()  # the seeded bits of tests are created at the first draw
    forbidden = {
        np.random: "default_rng normal standard_normal seed random RandomState Generator",
        random: "random gauss Random randint getrandbits randbytes",
        pickle: "loads load dumps dump",
    }
    for module, names in forbidden.items():
        for name in names.split():
            monkeypatch.setattr(module, name, refuse)
    for name in ("time", "time_ns", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: 10**9)
    first, second = (
        measure(small_plan, records, dataset="survey", ledger=book, attempt=n) for n in (1, 2)
    )
    assert load_measurement(book, first.key).key == first.key
    monkeypatch.undo()
    for space in small_plan.blocks:
        assert not (first.answers_on_grid[space] == second.answers_on_grid[space]).any()
