"""What a release may not touch: other randomness than the operating system's, the clock, and pickled objects."""

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
WATCHED = {"random", "numpy.random", "time", "datetime", "uuid", "secrets", "pickle", "shelve", "marshal", "joblib"}
PICKLES = {"pickle", "shelve", "marshal", "dill", "cloudpickle", "read_pickle", "to_pickle", "allow_pickle"}
# in the packages that handle private values; times of rows are information, their order is the hash chain
ALLOWED = {
    "ledger/hash_chain.py": {"datetime", "uuid"},  # the time of a row, and the identifier of a new ledger
    "ledger/signing.py": {"secrets"},  # a new key, from the operating system
    "_atomic_io.py": {"secrets"},  # an unused file name
    # dates that records hold
    "release/public_draft.py": {"datetime"},
    "records/stored_dates.py": {"datetime"},
    "records/encoding.py": {"datetime"},
    "records/database.py": {"datetime"},
    "records/spark.py": {"datetime"},
}
CLOCKS = re.compile(r"\b(now|today|utcnow|time|monotonic)\(\)")


@functools.cache
def watched(text: str) -> set[str]:
    """What a module imports or names of what is watched."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                found |= {name.name for name in node.names}
            case ast.ImportFrom(module=str(module), level=0):
                found |= {module, *(f"{module}.{name.name}" for name in node.names)}
            case ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="random"):
                found.add("numpy.random")
            case ast.Attribute(attr="read_pickle" | "to_pickle" as name):
                found.add(name)
            case ast.keyword(arg="allow_pickle", value=value) if getattr(value, "value", None) is not False:
                found.add("allow_pickle")
            case ast.Name(id="__import__" | "eval" | "exec" as name):
                found.add(name)
    tops = {name.partition(".")[0] for name in found}
    return {name for name in found | tops if name in WATCHED | PICKLES or name in ("__import__", "eval", "exec")}


def modules(*rooms: str) -> dict[str, set[str]]:
    files = {file for room in rooms for file in (ROOT / room).rglob("*.py")}
    found = {str(f.relative_to(ROOT).as_posix()): watched(f.read_text(encoding="utf-8")) for f in sorted(files)}
    return {name: uses for name, uses in found.items() if uses}


def test_a_release_imports_no_generator_no_clock_and_no_pickle() -> None:
    steps = {
        name: uses
        for name, uses in modules("common_mechanism").items()
        if name.removeprefix("common_mechanism/").startswith(("stepwise", "two_stage", "common_"))
    }
    found = steps | modules("release", "ledger", "records") | {"_atomic_io.py": modules(".")["_atomic_io.py"]}
    assert found == ALLOWED
    for name in ALLOWED:
        if name.startswith("records/"):
            assert not CLOCKS.search((ROOT / name).read_text(encoding="utf-8")), name


def test_nothing_in_the_engine_reads_pickled_objects_or_draws_from_a_generator_without_seed() -> None:
    """Searches for strategies send tasks to workers through joblib; what a release reads goes through none."""
    for name, uses in modules(".").items():
        assert not uses & (PICKLES | {"random", "eval", "exec", "__import__"}), name
        assert "joblib" not in uses or name == "residuals/parallel.py"
    for file in ROOT.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        seeded = text.count("np.random.default_rng(") + text.count("np.random.Generator")
        assert text.count("np.random.") == seeded, file
        assert "default_rng()" not in text, file


@pytest.mark.parametrize(
    "text",
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
def test_the_search_itself_finds_what_it_looks_for(text: str) -> None:
    assert watched(text)
    assert not watched("import os\nnp.load(f, allow_pickle=False)\nrandom_bits = 3")


def test_a_release_runs_where_all_of_these_are_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)])
    made, records = plan(Workload.all_ways(schema, ways=(1, 2)), Budget(pcost=0.2)), synthetic(schema, 300, seed=1)
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("survey", total=Budget(pcost=1.0))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("out of reach")

    assert fresh_seed()  # tests have bits from a generator, made when the first are drawn
    for owner, names in (
        (np.random, ("default_rng", "normal", "standard_normal", "seed", "random", "RandomState", "Generator")),
        (random, ("random", "gauss", "Random", "randint", "getrandbits", "randbytes")),
        (pickle, ("loads", "load", "dumps", "dump")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, refuse)
    for name in ("time", "time_ns", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: 10**9)
    found = [measure(made, records, dataset="survey", ledger=book, attempt=n) for n in (1, 2)]
    assert load_measurement(book, found[0].key).key == found[0].key
    monkeypatch.undo()
    for space in made.blocks:
        assert not (found[0].answers_on_grid[space] == found[1].answers_on_grid[space]).any()
