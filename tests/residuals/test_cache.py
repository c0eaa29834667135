"""The cache of searches: equal plans with and without it, and nothing that a file says is believed."""

import json
import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import pytest

import engine.residuals.cache as solve_cache
from engine.errors import Cancelled
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.residuals.cache import SolveCache, default_cache, default_folder, most_similar
from engine.residuals.strategy_search import Search
from engine.residuals.subworkload_solver import SubworkloadSolver
from engine.workload import Attribute, Schema, Workload
from tests import shapes
from tests.waiting import CEILING

BUDGET = Budget(pcost=1.0)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of its own for every test, and a process that remembers nothing."""
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def forget():
    """Drop what is in memory, as a new process would."""
    solve_cache._cache.cache_clear()


def workload(weight=1.0, n=9):
    asked = Workload(shapes.numeric(n, n, n))
    return asked.add(("a", "b"), "affine").add(("a", "b"), "prefix", weight).add(("c",), "range").add(("b", "c"), "abs")


def counted(monkeypatch):
    """Count the evaluations of searches from now on."""
    from engine.residuals import DualProblem

    seen, honest = [], DualProblem.maximise

    def maximise(self, options, start=None, watch=None):
        def hear(gap):
            seen.append(gap)
            if watch is not None:
                watch(gap)

        return honest(self, options, start, hear)

    monkeypatch.setattr(DualProblem, "maximise", maximise)
    return seen


def files(folder):
    return sorted(folder.glob("*.weights"))


@pytest.mark.parametrize(
    "options", [{}, {"solver": "eigenbasis"}, {"solver": "fourier"}, {"centers": "tuned"}], ids=lambda o: str(o)
)
@pytest.mark.parametrize("joint", [True, False])
def test_a_plan_is_the_same_with_and_without_the_cache(options, joint):
    asked = Workload(shapes.numeric(5, 4)).add(("a", "b"), "affine").add(("a",), "range")
    if not joint:
        asked = Workload.all_ways(shapes.numeric(5, 4), (1, 2))
    cold = plan(asked, BUDGET, cache=False, **options).to_json()
    assert plan(asked, BUDGET, **options).to_json() == cold
    assert plan(asked, BUDGET, **options).to_json() == cold  # from memory


def test_a_new_process_finds_the_same_plan_in_the_files(folder, monkeypatch):
    cold = plan(workload(), BUDGET).to_json()
    assert files(folder)
    forget()
    for path in files(folder):
        assert json.loads(path.read_bytes().partition(b"\n")[0])["format"] == "weights/1"
    monkeypatch.setattr(solve_cache, "WORTH", 10**9)  # small searches have no file and are done again
    monkeypatch.setattr(solve_cache, "_worth_a_file", lambda s: (folder / (s.key + ".weights")).exists())
    seen = counted(monkeypatch)
    assert plan(workload(), BUDGET).to_json() == cold
    assert len(seen) < 60  # the searches on pairs, which take hundreds, were not repeated


def test_one_edit_solves_only_what_it_touches(monkeypatch):
    plan(workload(), BUDGET)
    seen = counted(monkeypatch)
    plan(workload().add((), "total"), BUDGET)
    assert seen == []
    edited = plan(workload(weight=1.1), BUDGET)
    warm = len(seen)
    cold = plan(workload(weight=1.1), BUDGET, cache=False)
    assert 0 < warm < len(seen) - warm
    assert edited.weighted_rmse == pytest.approx(cold.weighted_rmse, rel=2e-6)
    assert edited.certificate.gap < cold.certificate.gap + 2e-6


@pytest.mark.parametrize("harm", ["empty", "half", "text", "other format", "flipped", "other key", "short", "folder"])
def test_a_damaged_file_is_ignored_and_written_again(folder, harm):
    cold = plan(workload(), BUDGET).to_json()
    kept = {path: path.read_bytes() for path in files(folder)}
    others = list(kept.values())
    for i, (path, content) in enumerate(kept.items()):
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
    forget()
    assert plan(workload(), BUDGET).to_json() == cold
    if harm != "folder":
        assert {path: path.read_bytes() for path in files(folder)} == kept


@pytest.mark.parametrize("wrong", ["uniform", "one cell", "random", "negative", "nan", "length", "sum"])
def test_wrong_weights_cost_no_accuracy_and_no_privacy(folder, wrong, monkeypatch):
    """Files with a right checksum and wrong weights: the plan is as good, and its privacy cost is its own."""
    cold = plan(workload(), BUDGET, cache=False)
    forger = SolveCache(folder)
    rng = np.random.default_rng(3)

    def forged(search: Search, found) -> None:
        n = len(found.dual)
        forger._save(
            search.key,
            {
                "uniform": np.full(n, 1.0 / n),
                "one cell": np.eye(n)[0],
                "random": rng.dirichlet(np.full(n, 0.1)),
                "negative": np.concatenate([[2.0, -1.0], np.zeros(n - 2)]) if n > 2 else np.array([2.0, -1.0][:n]),
                "nan": np.full(n, np.nan),
                "length": np.full(n + 1, 1.0 / (n + 1)),
                "sum": np.full(n, 1.0),
            }[wrong],
        )

    with monkeypatch.context() as patch:
        patch.setattr(SolveCache, "keep", lambda self, search, found: forged(search, found))
        plan(workload(), BUDGET)
    assert files(folder)
    forget()
    monkeypatch.setattr(solve_cache, "WORTH", 0)
    found = plan(workload(), BUDGET)
    assert found.pcost <= BUDGET.pcost
    assert found.weighted_rmse == pytest.approx(cold.weighted_rmse, rel=2e-6)
    assert found.certificate.gap <= cold.certificate.gap + 2e-6
    rebuilt = load_plan(found.to_json())
    assert rebuilt.pcost == found.pcost


def test_wrong_centers_are_never_worse_than_uniform(folder):
    asked = Workload.all_ways(shapes.numeric(6, 5), (1, 2))
    uniform = plan(asked, BUDGET, cache=False).weighted_rmse
    tuned = plan(asked, BUDGET, centers="tuned", cache=False).weighted_rmse
    plan(asked, BUDGET, centers="tuned")
    rng, forger = np.random.default_rng(0), SolveCache(folder)
    for path in files(folder):
        if path.stem.endswith("centers"):
            bad = [rng.standard_normal(n) for n in (6, 5)]
            forger._save(path.stem, np.concatenate([b / b.sum() for b in bad]))
    forget()
    found = plan(asked, BUDGET, centers="tuned").weighted_rmse
    assert found <= uniform * (1 + 1e-4)
    assert found == pytest.approx(tuned, rel=2e-3)


def test_the_cache_can_be_switched_off(folder, monkeypatch):
    monkeypatch.setenv("DP_WORKBENCH_CACHE", "off")
    assert default_folder() is None
    seen = counted(monkeypatch)
    plan(workload(), BUDGET)
    first = len(seen)
    plan(workload(), BUDGET)
    assert len(seen) == first > 0  # memory goes on
    plan(workload(), BUDGET, cache=False)
    assert len(seen) == 2 * first
    assert not folder.exists()


def test_the_folder_is_the_users_or_the_one_that_is_named(monkeypatch):
    monkeypatch.setenv("DP_WORKBENCH_CACHE", "~/somewhere")
    assert default_folder() == Path("~/somewhere").expanduser()
    monkeypatch.delenv("DP_WORKBENCH_CACHE")
    assert default_folder().parent.name == "dp-query-workbench"


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    cold = plan(workload(), BUDGET, cache=False).to_json()
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(blocked))
    assert plan(workload(), BUDGET).to_json() == cold
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(locked / "deeper"))
    assert plan(workload(), BUDGET).to_json() == cold
    locked.chmod(stat.S_IRWXU)


def test_the_folder_stays_within_its_bound(tmp_path):
    cache = SolveCache(tmp_path, disk=80_000)
    (tmp_path / "not ours.txt").write_text("stays")
    for i in range(60):
        cache._save(f"{i:04}", np.full(500, float(i)))
        os.utime(tmp_path / f"{i:04}.weights", ns=(i, i))
        assert sum(p.stat().st_size for p in files(tmp_path)) <= 90_000
    assert cache._read("0059") is not None
    assert cache._read("0000") is None
    assert (tmp_path / "not ours.txt").exists()
    assert not list(tmp_path.glob("*.part"))


def test_memory_stays_within_its_bound():
    kept = solve_cache.LruCache(100)
    for key in "abcd":
        kept.put(key, key, 40)
    assert (kept.get("a"), kept.get("b"), kept.get("c"), kept.get("d"), kept.used) == (None, None, "c", "d", 80)
    kept.get("c")
    kept.put("e", "e", 40)
    assert (kept.get("c"), kept.get("d")) == ("c", None)
    kept.put("f", "f", 101)
    assert (kept.get("f"), kept.used) == (None, 80)
    kept.put("e", "e", 10)
    assert kept.used == 50


def test_what_several_values_are_made_of_counts_until_the_last_of_them_goes():
    kept = solve_cache.LruCache(100)
    for key in "abc":
        kept.put(key, key, {"both": 60, key: 10})
    assert kept.used == 90
    kept.put("d", "d", 15)
    assert (kept.get("a"), kept.used) == (None, 95)
    kept.put("c", "c", 10)  # it is put anew, and no longer made of what both share
    assert (kept.get("b"), kept.used) == ("b", 95)
    kept.put("e", "e", 100)
    assert (kept.get("b"), kept.get("c"), kept.get("d"), kept.used) == (None, None, None, 100)
    kept.put("f", "f", {"both": 60, "f": 50})
    assert (kept.get("f"), kept.get("e")) == (None, "e")


def _write_many(folder, number, rounds):
    cache = SolveCache(Path(folder), disk=200_000)
    for i in range(rounds):
        cache._save(f"key{i % 7}", np.full(1000, float(i % 7)))
        found = cache._read(f"key{(i * number) % 7}")
        assert found is None or (found == (i * number) % 7).all()


def test_writers_side_by_side_leave_whole_files(tmp_path):
    context = multiprocessing.get_context("fork")  # a fresh interpreter would write no other files
    writers = [context.Process(target=_write_many, args=(str(tmp_path), k + 1, 40)) for k in range(3)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(CEILING)
    assert [w.exitcode for w in writers] == [0, 0, 0]
    for path in files(tmp_path):
        assert (SolveCache(tmp_path)._read(path.stem) == float(path.stem[-1])).all()


def test_a_search_that_was_cut_short_is_not_kept(folder, monkeypatch):
    stopped = plan(workload(n=14), BUDGET, time_limit=1e-9)
    assert "time limit" in stopped.statement
    assert not files(folder)
    whole = plan(workload(n=14), BUDGET)
    assert "time limit" not in whole.statement
    assert whole.certificate.gap < stopped.certificate.gap
    cold = plan(workload(n=14), BUDGET, cache=False)
    assert whole.weighted_rmse == pytest.approx(cold.weighted_rmse, rel=2e-6)


def test_what_was_found_before_a_cancel_stays():
    heard = []

    def progress(fraction, text):
        heard.append(text)
        return sum("gap" in t for t in heard) < 40

    with pytest.raises(Cancelled):
        plan(workload(), BUDGET, progress=progress, workers=1)
    assert default_cache()._solutions.snapshot()
    assert plan(workload(), BUDGET).to_json() == plan(workload(), BUDGET, cache=False).to_json()


def test_different_requests_have_different_keys():
    from engine.residuals import Factor, Options

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2, 12))
    pi = rng.dirichlet(np.ones(5))
    searches = [
        Search(factor=Factor(sizes=sizes, matrix=matrix, low_rank=low), centers=centers, method=method, options=options)
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


def test_the_nearest_hint_is_the_one_with_the_most_similar_gram():
    from engine.residuals import Factor

    cache = SolveCache()
    base = np.eye(3)
    for weight in (1.0, 2.0, 9.0):
        search = Search(factor=Factor(sizes=(4,), matrix=base + weight * np.diag([1.0, 0, 0])), centers=(None,))
        cache.suggest(search, search.run())
    near = Search(factor=Factor(sizes=(4,), matrix=base + 2.1 * np.diag([1.0, 0, 0])), centers=(None,))
    twin = Search(factor=Factor(sizes=(4,), matrix=base + 2.0 * np.diag([1.0, 0, 0])), centers=(None,))
    np.testing.assert_array_equal(most_similar(cache.hints(), near), twin.run().dual)
    other = Search(factor=Factor(sizes=(5,), matrix=np.eye(4)), centers=(None,))
    assert most_similar(cache.hints(), other) is None


def test_rebuilding_a_plan_uses_no_cache(folder, monkeypatch):
    text = plan(workload(), BUDGET).to_json()
    forget()
    for path in files(folder):
        path.unlink()
    seen = counted(monkeypatch)
    assert load_plan(text).to_json() == text
    assert seen == []
    assert not files(folder)


def test_the_cache_knows_no_records(folder, monkeypatch):
    """Measuring and reconstructing write nothing into it."""
    import pandas as pd

    from engine.release import measure

    schema = Schema([Attribute.of_size("x", 60), Attribute.of_size("y", 7)])
    made = plan(Workload.all_ways(schema, (1, 2)), BUDGET)
    before = {p: p.read_bytes() for p in files(folder)}
    assert before

    def refuse(*_):
        raise AssertionError("a cache was used")

    monkeypatch.setattr(SolveCache, "_save", refuse)
    monkeypatch.setattr(SolveCache, "recall", refuse)
    measured = measure(made, pd.DataFrame({"x": [1, 5, 59], "y": [0, 6, 3]}), rehearsal=True)
    measured.answers(0)
    assert {p: p.read_bytes() for p in files(folder)} == before


def test_the_solver_works_without_any_cache():
    from engine.residuals import Options
    from engine.residuals.decomposition import decompose

    parts = decompose(workload())
    solver = SubworkloadSolver(factors=parts.factors, method="optimal", options=Options(), memory_limit=1e9)
    assert all(solver.solve(s).status == "optimal" for s in parts.subworkloads)
