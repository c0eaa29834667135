"""Cache of strategy searches: equal plans with and without it, damaged files."""

import json
import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import engine.residuals.cache as solve_cache
from engine.errors import Cancelled
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.release import measure
from engine.residuals import DualProblem, Factor, Options
from engine.residuals.cache import SolveCache, default_cache, default_folder, most_similar
from engine.residuals.decomposition import decompose
from engine.residuals.strategy_search import Search
from engine.residuals.subworkload_solver import SubworkloadSolver
from engine.workload import Attribute, Schema, Workload
from tests import shapes
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
    ids=lambda o: str(o),
)
@pytest.mark.parametrize("joint", [True, False])
def test_plan_with_cache_equals_plan_without(options, joint):
    target = Workload(shapes.numeric(5, 4)).add(("a", "b"), "affine").add(("a",), "range")
    if not joint:
        target = Workload.all_ways(shapes.numeric(5, 4), (1, 2))
    cold = plan(target, BUDGET, cache=False, **options).to_json()
    assert plan(target, BUDGET, **options).to_json() == cold
    # this plan comes from the cache in memory
    assert plan(target, BUDGET, **options).to_json() == cold


def test_plan_from_cache_files_is_equal(folder, monkeypatch):
    cold = plan(workload(), BUDGET).to_json()
    assert files(folder)
    clear_memory()
    for path in files(folder):
        assert json.loads(path.read_bytes().partition(b"\n")[0])["format"] == "weights/1"
    # Only searches with a file are read from it; small searches have no file and run again.
    monkeypatch.setattr(solve_cache, "MIN_CACHED_COORDINATES_SQUARED", 10**9)
    monkeypatch.setattr(
        solve_cache, "_worth_a_file", lambda s: (folder / (s.key + ".weights")).exists()
    )
    gaps = record_evaluations(monkeypatch)
    assert plan(workload(), BUDGET).to_json() == cold
    # Without the stored searches on pairs, this plan would take hundreds of evaluations.
    assert len(gaps) < 60


def test_plan_edited_workload_solves_changed_spaces_only(monkeypatch):
    plan(workload(), BUDGET)
    gaps = record_evaluations(monkeypatch)
    plan(workload().add((), "total"), BUDGET)
    assert gaps == []
    edited = plan(workload(weight=1.1), BUDGET)
    warm = len(gaps)
    cold = plan(workload(weight=1.1), BUDGET, cache=False)
    assert 0 < warm < len(gaps) - warm
    assert edited.weighted_rmse == pytest.approx(cold.weighted_rmse, rel=2e-6)
    assert edited.certificate.gap < cold.certificate.gap + 2e-6


@pytest.mark.parametrize(
    "harm", ["empty", "half", "text", "other format", "flipped", "other key", "short", "folder"]
)
def test_cache_damaged_file_is_rewritten(folder, harm):
    cold = plan(workload(), BUDGET).to_json()
    contents = {path: path.read_bytes() for path in files(folder)}
    others = list(contents.values())
    for i, (path, content) in enumerate(contents.items()):
        head, _, body = content.partition(b"\n")
        path.unlink()
        if harm == "folder":
            path.mkdir()
            continue
        path.write_bytes(
            {
                "empty": b"",
                "half": content[: len(content) // 2],
                "text": b"hello",
                "other format": head.replace(b"weights/1", b"weights/0") + b"\n" + body,
                "flipped": head + b"\n" + bytes([body[0] ^ 1]) + body[1:],
                "other key": others[i - 1],
                "short": head + b"\n" + body[:-8],
            }[harm]
        )
    clear_memory()
    assert plan(workload(), BUDGET).to_json() == cold
    if harm != "folder":
        assert {path: path.read_bytes() for path in files(folder)} == contents


@pytest.mark.parametrize(
    "wrong", ["uniform", "one cell", "random", "negative", "nan", "length", "sum"]
)
def test_cache_forged_weights_do_not_change_plan(folder, wrong, monkeypatch):
    """Files with a valid checksum and wrong weights change neither error nor privacy cost."""
    cold = plan(workload(), BUDGET, cache=False)
    writer = SolveCache(folder)
    rng = np.random.default_rng(3)

    def forged(search: Search, solution) -> None:
        n = len(solution.dual)
        writer._save(
            search.key,
            {
                "uniform": np.full(n, 1.0 / n),
                "one cell": np.eye(n)[0],
                "random": rng.dirichlet(np.full(n, 0.1)),
                "negative": (
                    np.concatenate([[2.0, -1.0], np.zeros(n - 2)])
                    if n > 2
                    else np.array([2.0, -1.0][:n])
                ),
                "nan": np.full(n, np.nan),
                "length": np.full(n + 1, 1.0 / (n + 1)),
                "sum": np.full(n, 1.0),
            }[wrong],
        )

    with monkeypatch.context() as patch:
        patch.setattr(SolveCache, "keep", lambda self, search, solution: forged(search, solution))
        plan(workload(), BUDGET)
    assert files(folder)
    clear_memory()
    monkeypatch.setattr(solve_cache, "MIN_CACHED_COORDINATES_SQUARED", 0)
    result = plan(workload(), BUDGET)
    assert result.pcost <= BUDGET.pcost
    assert result.weighted_rmse == pytest.approx(cold.weighted_rmse, rel=2e-6)
    assert result.certificate.gap <= cold.certificate.gap + 2e-6
    rebuilt = load_plan(result.to_json())
    assert rebuilt.pcost == result.pcost


def test_cache_forged_centers_are_not_worse_than_uniform(folder):
    target = Workload.all_ways(shapes.numeric(6, 5), (1, 2))
    uniform = plan(target, BUDGET, cache=False).weighted_rmse
    tuned = plan(target, BUDGET, centers="tuned", cache=False).weighted_rmse
    plan(target, BUDGET, centers="tuned")
    rng, writer = np.random.default_rng(0), SolveCache(folder)
    for path in files(folder):
        if path.stem.endswith("centers"):
            bad = [rng.standard_normal(n) for n in (6, 5)]
            writer._save(path.stem, np.concatenate([b / b.sum() for b in bad]))
    clear_memory()
    rmse = plan(target, BUDGET, centers="tuned").weighted_rmse
    assert rmse <= uniform * (1 + 1e-4)
    assert rmse == pytest.approx(tuned, rel=2e-3)


def test_cache_off_writes_no_files(folder, monkeypatch):
    monkeypatch.setenv("DP_WORKBENCH_CACHE", "off")
    assert default_folder() is None
    gaps = record_evaluations(monkeypatch)
    plan(workload(), BUDGET)
    first = len(gaps)
    plan(workload(), BUDGET)
    assert len(gaps) == first > 0  # the cache in memory is used
    plan(workload(), BUDGET, cache=False)
    assert len(gaps) == 2 * first
    assert not folder.exists()


def test_default_folder_follows_environment_variable(monkeypatch):
    monkeypatch.setenv("DP_WORKBENCH_CACHE", "~/somewhere")
    assert default_folder() == Path("~/somewhere").expanduser()
    monkeypatch.delenv("DP_WORKBENCH_CACHE")
    assert default_folder().parent.name == "dp-query-workbench"


def test_plan_unwritable_cache_folder_is_equal(tmp_path, monkeypatch):
    cold = plan(workload(), BUDGET, cache=False).to_json()
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(blocked))
    assert plan(workload(), BUDGET).to_json() == cold
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(locked / "deeper"))
    assert plan(workload(), BUDGET).to_json() == cold
    locked.chmod(stat.S_IRWXU)


def test_cache_folder_respects_size_limit(tmp_path):
    cache = SolveCache(tmp_path, disk=80_000)
    (tmp_path / "other.txt").write_text("text")
    for i in range(60):
        cache._save(f"{i:04}", np.full(500, float(i)))
        os.utime(tmp_path / f"{i:04}.weights", ns=(i, i))
        assert sum(p.stat().st_size for p in files(tmp_path)) <= 90_000
    assert cache._read("0059") is not None
    assert cache._read("0000") is None
    assert (tmp_path / "other.txt").exists()
    assert not list(tmp_path.glob("*.part"))


def test_lru_cache_respects_size_limit():
    cache = solve_cache.LruCache(100)
    for key in "abcd":
        cache.put(key, key, 40)
    expected = (None, None, "c", "d", 80)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.get("d"), cache.used) == expected
    cache.get("c")
    cache.put("e", "e", 40)
    assert (cache.get("c"), cache.get("d")) == ("c", None)
    cache.put("f", "f", 101)
    assert (cache.get("f"), cache.used) == (None, 80)
    cache.put("e", "e", 10)
    assert cache.used == 50


def test_lru_cache_counts_shared_parts_once():
    cache = solve_cache.LruCache(100)
    for key in "abc":
        cache.put(key, key, {"both": 60, key: 10})
    assert cache.used == 90
    cache.put("d", "d", 15)
    assert (cache.get("a"), cache.used) == (None, 95)
    cache.put("c", "c", 10)  # the new entry does not use the shared part
    assert (cache.get("b"), cache.used) == ("b", 95)
    cache.put("e", "e", 100)
    assert (cache.get("b"), cache.get("c"), cache.get("d"), cache.used) == (None, None, None, 100)
    cache.put("f", "f", {"both": 60, "f": 50})
    assert (cache.get("f"), cache.get("e")) == (None, "e")


def _write_many(folder, number, rounds):
    cache = SolveCache(Path(folder), disk=200_000)
    for i in range(rounds):
        cache._save(f"key{i % 7}", np.full(1000, float(i % 7)))
        values = cache._read(f"key{(i * number) % 7}")
        assert values is None or (values == (i * number) % 7).all()


def test_cache_concurrent_writers_leave_complete_files(tmp_path):
    context = multiprocessing.get_context("fork")  # faster than spawn
    writers = [
        context.Process(target=_write_many, args=(str(tmp_path), k + 1, 40)) for k in range(3)
    ]
    for w in writers:
        w.start()
    for w in writers:
        w.join(CEILING)
    assert [w.exitcode for w in writers] == [0, 0, 0]
    for path in files(tmp_path):
        assert (SolveCache(tmp_path)._read(path.stem) == float(path.stem[-1])).all()


def test_cache_stopped_search_is_not_saved(folder, monkeypatch):
    stopped = plan(workload(n=14), BUDGET, time_limit=1e-9)
    assert "time limit" in stopped.statement
    assert not files(folder)
    finished = plan(workload(n=14), BUDGET)
    assert "time limit" not in finished.statement
    assert finished.certificate.gap < stopped.certificate.gap
    cold = plan(workload(n=14), BUDGET, cache=False)
    assert finished.weighted_rmse == pytest.approx(cold.weighted_rmse, rel=2e-6)


def test_cache_cancelled_plan_saves_finished_searches():
    messages = []

    def progress(fraction, text):
        messages.append(text)
        # cancel after 40 evaluations of searches
        return sum("gap" in t for t in messages) < 40

    with pytest.raises(Cancelled):
        plan(workload(), BUDGET, progress=progress, workers=1)
    assert default_cache()._solutions.snapshot()
    assert plan(workload(), BUDGET).to_json() == plan(workload(), BUDGET, cache=False).to_json()


def test_search_key_depends_on_request():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2, 12))
    pi = rng.dirichlet(np.ones(5))
    searches = [
        Search(
            factor=Factor(sizes=sizes, matrix=matrix, low_rank=low),
            centers=centers,
            method=method,
            options=options,
        )
        for sizes, matrix, low, centers, method, options in [
            ((4, 5), rows, True, (None, None), "optimal", Options()),
            ((5, 4), rows, True, (None, None), "optimal", Options()),
            ((4, 5), rows * (1 + 1e-15), True, (None, None), "optimal", Options()),
            ((4, 5), rows.T @ rows, False, (None, None), "optimal", Options()),
            ((4, 5), rows, True, (None, pi), "optimal", Options()),
            ((4, 5), rows, True, (None, None), "eigenbasis", Options()),
            ((4, 5), rows, True, (None, None), "optimal", Options(gap=1e-3)),
            ((4, 5), rows, True, (None, None), "optimal", Options(evaluations=7)),
        ]
    ]
    assert len({s.key for s in searches}) == len(searches)
    assert searches[0].shape == searches[2].shape == searches[6].shape
    later = Search(factor=searches[0].factor, centers=(None, None), options=Options(deadline=5.0))
    assert later.key == searches[0].key


def test_most_similar_returns_nearest_gram():
    cache = SolveCache()
    base = np.eye(3)
    for weight in (1.0, 2.0, 9.0):
        search = Search(
            factor=Factor(sizes=(4,), matrix=base + weight * np.diag([1.0, 0, 0])), centers=(None,)
        )
        cache.suggest(search, search.run())
    near = Search(
        factor=Factor(sizes=(4,), matrix=base + 2.1 * np.diag([1.0, 0, 0])), centers=(None,)
    )
    twin = Search(
        factor=Factor(sizes=(4,), matrix=base + 2.0 * np.diag([1.0, 0, 0])), centers=(None,)
    )
    np.testing.assert_array_equal(most_similar(cache.hints(), near), twin.run().dual)
    other = Search(factor=Factor(sizes=(5,), matrix=np.eye(4)), centers=(None,))
    assert most_similar(cache.hints(), other) is None


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
    before = {p: p.read_bytes() for p in files(folder)}
    assert before

    def refuse(*_):
        raise AssertionError("cache used")

    monkeypatch.setattr(SolveCache, "_save", refuse)
    monkeypatch.setattr(SolveCache, "recall", refuse)
    measured = measure(result, pd.DataFrame({"x": [1, 5, 59], "y": [0, 6, 3]}), rehearsal=True)
    measured.answers(0)
    assert {p: p.read_bytes() for p in files(folder)} == before


def test_subworkload_solver_without_cache_is_optimal():
    parts = decompose(workload())
    solver = SubworkloadSolver(
        factors=parts.factors, method="optimal", options=Options(), memory_limit=1e9
    )
    assert all(solver.solve(s).status == "optimal" for s in parts.subworkloads)
