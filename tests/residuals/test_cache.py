"""Cache of strategy searches: equal plans with and without it, damaged files."""

import json
import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import engine.residuals.search_cache as solve_cache
from engine.errors import Cancelled
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.release import measure
from engine.residuals import DualProblem, Factor, Options
from engine.residuals.decomposition import decompose
from engine.residuals.search_cache import (
    Search,
    SolveCache,
    default_cache,
    default_folder,
    most_similar,
)
from engine.residuals.subworkload_solver import SubworkloadSolver
from engine.workload import Attribute, Schema, Workload
from tests import shapes
from tests.residuals.tuning.full_domain import limit_unions
from tests.waiting import CEILING

BUDGET = Budget(pcost=1.0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Give each test an empty cache folder and an empty cache in memory."""
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(tmp_path / "cache"))
    clear_memory()
    yield tmp_path / "cache"
    clear_memory()


def clear_memory():
    """Clear the cache in memory, like a new process."""
    solve_cache._cache.cache_clear()


def workload(weight=1.0, n=9):
    base = Workload(shapes.numeric(n, n, n))
    return (
        base.add(("a", "b"), "affine")
        .add(("a", "b"), "prefix", weight)
        .add(("c",), "range")
        .add(("b", "c"), "abs")
    )


def record_evaluations(monkeypatch):
    """Return a list to which every later evaluation of a search appends its gap."""
    gaps, original = [], DualProblem.maximise

    def maximise(self, options, start=None, watch=None):
        def record(gap):
            gaps.append(gap)
            if watch is not None:
                watch(gap)

        return original(self, options, start, record)

    monkeypatch.setattr(DualProblem, "maximise", maximise)
    return gaps


def files(folder):
    return sorted(folder.glob("*.weights"))


@pytest.mark.parametrize(
    "options",
    [{}, {"solver": "eigenbasis"}, {"solver": "fourier"}, {"centers": "tuned"}],
    ids=str,
)
@pytest.mark.parametrize("joint", [True, False], ids=["joint", "all-ways"])
def test_plan_with_cache_equals_plan_without(options, joint):
    schema = shapes.numeric(5, 4)
    if joint:
        target = Workload(schema).add(("a", "b"), "affine").add(("a",), "range")
    else:
        target = Workload.all_ways(schema, (1, 2))
    expected = plan(target, BUDGET, cache=False, **options).to_json()
    assert plan(target, BUDGET, **options).to_json() == expected
    # this plan comes from the cache in memory
    assert plan(target, BUDGET, **options).to_json() == expected


def test_plan_from_cache_files_is_equal(folder, monkeypatch):
    expected = plan(workload(), BUDGET).to_json()
    assert files(folder)
    clear_memory()
    for path in files(folder):
        header, _, _ = path.read_bytes().partition(b"\n")
        assert json.loads(header)["format"] == "weights/1"
    # Only searches with a file are read from it; small searches have no file and run again.
    monkeypatch.setattr(solve_cache, "MIN_CACHED_COORDINATES_SQUARED", 10**9)
    monkeypatch.setattr(
        solve_cache, "_worth_a_file", lambda s: (folder / (s.key + ".weights")).exists()
    )
    gaps = record_evaluations(monkeypatch)
    assert plan(workload(), BUDGET).to_json() == expected
    # Without the stored searches on pairs, this plan would take hundreds of evaluations.
    assert len(gaps) < 60


def test_plan_edited_workload_solves_changed_spaces_only(monkeypatch):
    plan(workload(), BUDGET)
    gaps = record_evaluations(monkeypatch)
    plan(workload().add((), "total"), BUDGET)
    assert gaps == []
    edited = plan(workload(weight=1.1), BUDGET)
    evaluations = len(gaps)
    gaps.clear()
    uncached = plan(workload(weight=1.1), BUDGET, cache=False)
    assert 0 < evaluations < len(gaps)
    assert edited.weighted_rmse == pytest.approx(uncached.weighted_rmse, rel=2e-6)
    assert edited.certificate.gap < uncached.certificate.gap + 2e-6


@pytest.mark.parametrize(
    "damage", ["empty", "half", "text", "other format", "flipped", "other key", "short", "folder"]
)
def test_cache_damaged_file_is_rewritten(folder, damage):
    expected = plan(workload(), BUDGET).to_json()
    contents = {path: path.read_bytes() for path in files(folder)}
    content_of_other_key = list(contents.values())[-1]
    for path, content in contents.items():
        header, _, body = content.partition(b"\n")
        path.unlink()
        if damage == "folder":
            path.mkdir()
            continue
        damaged_contents = {
            "empty": b"",
            "half": content[: len(content) // 2],
            "text": b"hello",
            "other format": header.replace(b"weights/1", b"weights/0") + b"\n" + body,
            "flipped": header + b"\n" + bytes([body[0] ^ 1]) + body[1:],
            "other key": content_of_other_key,
            "short": header + b"\n" + body[:-8],
        }
        path.write_bytes(damaged_contents[damage])
        content_of_other_key = content
    clear_memory()
    assert plan(workload(), BUDGET).to_json() == expected
    if damage != "folder":
        assert {path: path.read_bytes() for path in files(folder)} == contents


@pytest.mark.parametrize(
    "wrong_weights", ["uniform", "one cell", "random", "negative", "nan", "length", "sum"]
)
def test_cache_forged_weights_do_not_change_plan(folder, wrong_weights, monkeypatch):
    """Files with a valid checksum and wrong weights change neither error nor privacy cost."""
    uncached = plan(workload(), BUDGET, cache=False)
    writer = SolveCache(folder)
    rng = np.random.default_rng(3)

    def save_forged_weights(_: SolveCache, search: Search, solution) -> None:
        n = len(solution.dual)
        forged_weights = {
            "uniform": np.full(n, 1.0 / n),
            "one cell": np.eye(n)[0],
            "random": rng.dirichlet(np.full(n, 0.1)),
            "negative": np.array([2.0, -1.0, *[0.0] * n][:n]),
            "nan": np.full(n, np.nan),
            "length": np.full(n + 1, 1.0 / (n + 1)),
            "sum": np.full(n, 1.0),
        }
        writer._save(search.key, forged_weights[wrong_weights])

    with monkeypatch.context() as patch:
        patch.setattr(SolveCache, "keep", save_forged_weights)
        plan(workload(), BUDGET)
    assert files(folder)
    clear_memory()
    monkeypatch.setattr(solve_cache, "MIN_CACHED_COORDINATES_SQUARED", 0)
    result = plan(workload(), BUDGET)
    assert result.pcost <= BUDGET.pcost
    assert result.weighted_rmse == pytest.approx(uncached.weighted_rmse, rel=2e-6)
    assert result.certificate.gap <= uncached.certificate.gap + 2e-6
    assert load_plan(result.to_json()).pcost == result.pcost


def test_cache_forged_centers_are_not_worse_than_uniform(folder, monkeypatch):
    # One strategy for all spaces would leave no centers to tune.
    limit_unions(monkeypatch)
    target = Workload.all_ways(shapes.numeric(6, 5), (1, 2))
    uniform_rmse = plan(target, BUDGET, cache=False).weighted_rmse
    tuned_rmse = plan(target, BUDGET, centers="tuned", cache=False).weighted_rmse
    plan(target, BUDGET, centers="tuned")
    rng, writer = np.random.default_rng(0), SolveCache(folder)
    center_files = [path for path in files(folder) if path.stem.endswith("centers")]
    assert center_files
    for path in center_files:
        random_vectors = [rng.standard_normal(n) for n in (6, 5)]
        writer._save(path.stem, np.concatenate([v / v.sum() for v in random_vectors]))
    clear_memory()
    rmse = plan(target, BUDGET, centers="tuned").weighted_rmse
    assert rmse <= uniform_rmse * (1 + 1e-4)
    assert rmse == pytest.approx(tuned_rmse, rel=1e-5)


def test_cache_off_writes_no_files(folder, monkeypatch):
    monkeypatch.setenv("DP_WORKBENCH_CACHE", "off")
    assert default_folder() is None
    gaps = record_evaluations(monkeypatch)
    plan(workload(), BUDGET)
    evaluations = len(gaps)
    plan(workload(), BUDGET)
    assert len(gaps) == evaluations > 0  # the second plan comes from the cache in memory
    plan(workload(), BUDGET, cache=False)
    assert len(gaps) == 2 * evaluations
    assert not folder.exists()


def test_default_folder_follows_environment_variable(monkeypatch):
    monkeypatch.setenv("DP_WORKBENCH_CACHE", "~/somewhere")
    assert default_folder() == Path("~/somewhere").expanduser()
    monkeypatch.delenv("DP_WORKBENCH_CACHE")
    assert default_folder().parent.name == "dp-query-workbench"


def test_plan_unwritable_cache_folder_is_equal(tmp_path, monkeypatch):
    expected = plan(workload(), BUDGET, cache=False).to_json()
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(file))
    assert plan(workload(), BUDGET).to_json() == expected
    read_only_folder = tmp_path / "locked"
    read_only_folder.mkdir()
    read_only_folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(read_only_folder / "cache"))
    assert plan(workload(), BUDGET).to_json() == expected
    read_only_folder.chmod(stat.S_IRWXU)


def test_cache_folder_respects_size_limit(tmp_path):
    cache = SolveCache(tmp_path, disk=80_000)
    (tmp_path / "other.txt").write_text("text")
    for i in range(60):
        cache._save(f"{i:04}", np.full(500, float(i)))
        os.utime(tmp_path / f"{i:04}.weights", ns=(i, i))
        # The folder is trimmed only after an eighth of the limit is written.
        assert sum(p.stat().st_size for p in files(tmp_path)) <= 90_000
    assert cache._read("0059") is not None
    assert cache._read("0000") is None
    assert (tmp_path / "other.txt").exists()
    assert not list(tmp_path.glob("*.part"))


def test_lru_cache_respects_size_limit():
    cache = solve_cache.LruCache(100)
    for key in "abcd":
        cache.put(key, key, 40)
    assert [cache.get(key) for key in "abcd"] == [None, None, "c", "d"]
    assert cache.used == 80
    # A read entry is removed last.
    cache.get("c")
    cache.put("e", "e", 40)
    assert (cache.get("c"), cache.get("d")) == ("c", None)
    # An entry above the limit is not stored.
    cache.put("f", "f", 101)
    assert (cache.get("f"), cache.used) == (None, 80)
    # A new value with the same key replaces the old one.
    cache.put("e", "e", 10)
    assert cache.used == 50


def test_lru_cache_counts_shared_parts_once():
    cache = solve_cache.LruCache(100)
    for key in "abc":
        cache.put(key, key, {"shared": 60, key: 10})
    assert cache.used == 60 + 3 * 10
    cache.put("d", "d", 15)
    assert (cache.get("a"), cache.used) == (None, 60 + 2 * 10 + 15)
    cache.put("c", "c", 10)  # the new entry does not use the shared part, but "b" does
    assert (cache.get("b"), cache.used) == ("b", 95)
    cache.put("e", "e", 100)
    assert [cache.get(key) for key in "bcd"] == [None] * 3
    assert cache.used == 100
    cache.put("f", "f", {"shared": 60, "f": 50})  # above the limit
    assert (cache.get("f"), cache.get("e")) == (None, "e")


def _write_and_read(folder, stride, rounds):
    """Write files of seven keys in turn and check that every file that is read is complete."""
    cache = SolveCache(Path(folder), disk=200_000)
    for i in range(rounds):
        cache._save(f"key{i % 7}", np.full(1000, float(i % 7)))
        key_number = (i * stride) % 7
        values = cache._read(f"key{key_number}")
        assert values is None or (values == key_number).all()


def test_cache_concurrent_writers_leave_complete_files(tmp_path):
    context = multiprocessing.get_context("fork")  # faster than spawn
    writers = [
        context.Process(target=_write_and_read, args=(str(tmp_path), stride, 40))
        for stride in (1, 2, 3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(CEILING)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    for path in files(tmp_path):
        key_number = float(path.stem.removeprefix("key"))
        assert (SolveCache(tmp_path)._read(path.stem) == key_number).all()


def test_cache_stopped_search_is_not_saved(folder, monkeypatch):
    stopped = plan(workload(n=14), BUDGET, time_limit=1e-9)
    assert "time limit" in stopped.statement
    assert not files(folder)
    finished = plan(workload(n=14), BUDGET)
    assert "time limit" not in finished.statement
    assert finished.certificate.gap < stopped.certificate.gap
    uncached = plan(workload(n=14), BUDGET, cache=False)
    assert finished.weighted_rmse == pytest.approx(uncached.weighted_rmse, rel=2e-6)


def test_cache_cancelled_plan_saves_finished_searches():
    messages = []

    def cancel_after_40_evaluations(fraction, text):
        messages.append(text)
        return sum("gap" in message for message in messages) < 40

    with pytest.raises(Cancelled):
        plan(workload(), BUDGET, progress=cancel_after_40_evaluations, workers=1)
    assert default_cache()._solutions.snapshot()
    assert plan(workload(), BUDGET).to_json() == plan(workload(), BUDGET, cache=False).to_json()


def test_search_key_depends_on_request():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2, 12))
    center = rng.dirichlet(np.ones(5))

    def search(
        sizes=(4, 5), matrix=rows, low_rank=True, centers=(None, None), method="optimal", **options
    ):
        factor = Factor(sizes=sizes, matrix=matrix, low_rank=low_rank)
        return Search(factor=factor, centers=centers, method=method, options=Options(**options))

    base, nearly_equal, loose = search(), search(matrix=rows * (1 + 1e-15)), search(gap=1e-3)
    different = [
        base,
        nearly_equal,
        loose,
        search(sizes=(5, 4)),
        search(matrix=rows.T @ rows, low_rank=False),
        search(centers=(None, center)),
        search(method="eigenbasis"),
        search(evaluations=7),
    ]
    assert len({s.key for s in different}) == len(different)
    assert base.shape == nearly_equal.shape == loose.shape
    assert search(deadline=5.0).key == base.key


def test_most_similar_returns_nearest_gram():
    def search(weight):
        """Return a search whose Gram matrix is diag(1 + weight, 1, 1)."""
        matrix = np.diag([1.0 + weight, 1.0, 1.0])
        return Search(factor=Factor(sizes=(4,), matrix=matrix), centers=(None,))

    cache = SolveCache()
    for weight in (1.0, 2.0, 9.0):
        cache.suggest(search(weight), search(weight).run())
    nearest_weights = search(2.0).run().dual
    np.testing.assert_array_equal(most_similar(cache.hints(), search(2.1)), nearest_weights)
    other_size = Search(factor=Factor(sizes=(5,), matrix=np.eye(4)), centers=(None,))
    assert most_similar(cache.hints(), other_size) is None


def test_load_plan_does_not_use_cache(folder, monkeypatch):
    text = plan(workload(), BUDGET).to_json()
    clear_memory()
    for path in files(folder):
        path.unlink()
    gaps = record_evaluations(monkeypatch)
    assert load_plan(text).to_json() == text
    assert gaps == []
    assert not files(folder)


def test_measure_does_not_use_cache(folder, monkeypatch):
    schema = Schema([Attribute.of_size("x", 60), Attribute.of_size("y", 7)])
    result = plan(Workload.all_ways(schema, (1, 2)), BUDGET)
    contents = {path: path.read_bytes() for path in files(folder)}
    assert contents

    def refuse(*_):
        raise AssertionError("cache used")

    monkeypatch.setattr(SolveCache, "_save", refuse)
    monkeypatch.setattr(SolveCache, "recall", refuse)
    records = pd.DataFrame({"x": [1, 5, 59], "y": [0, 6, 3]})
    measure(result, records, rehearsal=True).answers(0)
    assert {path: path.read_bytes() for path in files(folder)} == contents


def test_subworkload_solver_without_cache_is_optimal():
    parts = decompose(workload())
    solver = SubworkloadSolver(
        factors=parts.factors, method="optimal", options=Options(), memory_limit=1e9
    )
    assert all(solver.solve(s).status == "optimal" for s in parts.subworkloads)
