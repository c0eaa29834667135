"""Searches side by side: the same plan bit for bit everywhere, progress, and a cancel that leaves nothing."""

import importlib.util
import multiprocessing
import os
import re
import sys
import threading
import time
from pathlib import Path

import joblib
import numpy as np
import psutil
import pytest

import engine.residuals.parallel as parallel
from engine.errors import Cancelled, PlanError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import Factor, Options
from engine.residuals.parallel import Task, is_configured, search_all, workers_for
from engine.residuals.strategy_search import Search
from engine.workload import Workload
from tests import shapes
from tests.waiting import CEILING, until

BUDGET = Budget(pcost=1.0)


def workload():
    sizes = (6, 7, 8, 9, 10)
    asked = Workload.all_ways(shapes.numeric(*sizes), (1,), "range").groups
    return Workload(shapes.numeric(*sizes), asked + Workload.all_ways(shapes.numeric(*sizes), (2,), "affine").groups)


@pytest.fixture(scope="module")
def serial():
    return plan(workload(), BUDGET, workers=1, cache=False).to_json()


@pytest.fixture
def used(monkeypatch):
    """The tasks that were sent out."""
    sent, honest = [], parallel.search_all

    def listed(tasks, *others):
        tasks = list(tasks)
        sent.extend(tasks)
        return honest(tasks, *others)

    monkeypatch.setattr("engine.residuals.subworkload_solver.search_all", listed)
    return sent


@pytest.fixture
def ray():
    cluster = importlib.import_module("ray")
    root = str(Path(parallel.__file__).parents[2])
    cluster.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": root}})
    importlib.import_module("ray.util.joblib").register_ray()
    yield
    cluster.shutdown()


PLACES = ["sequential", "threading", "loky", "multiprocessing", *(["ray"] if importlib.util.find_spec("ray") else [])]


@pytest.mark.parametrize("backend", PLACES)
def test_every_place_makes_the_same_plan(serial, backend, used, request):
    if backend == "ray":  # which is too large to be installed for tests alone
        request.getfixturevalue(backend)
    with joblib.parallel_config(backend, n_jobs=2):
        assert plan(workload(), BUDGET, cache=False).to_json() == serial
    assert len(used) > 10


class Nowhere:
    """An installation without the engine."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "engine":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def forget_the_engine():
    sys.meta_path.insert(0, Nowhere())
    for name in [name for name in sys.modules if name.split(".")[0] == "engine"]:
        del sys.modules[name]


@pytest.mark.parametrize("processes", [False, True])
def test_a_dask_cluster_makes_the_same_plan_or_says_that_it_lacks_the_engine(serial, processes, used):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            processes=processes, n_workers=1 if processes else 2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
        joblib.parallel_config("dask"),
    ):
        assert plan(workload(), BUDGET, cache=False).to_json() == serial
        assert len(used) > 10
        if processes:
            client.run(forget_the_engine)
            with pytest.raises(PlanError, match="1 of 1 workers of the cluster cannot import the engine"):
                plan(workload(), BUDGET, cache=False)


def test_of_joblib_only_what_is_public_is_used():
    engine_files = Path(parallel.__file__).parents[1].rglob("*.py")
    assert not [path for path in engine_files if re.search(r"joblib\._|from joblib import _", path.read_text("utf-8"))]


def test_workers_are_an_option(serial, used):
    assert plan(workload(), BUDGET, cache=False, workers=2).to_json() == serial
    assert len(used) > 10


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2", 10**6])
def test_impossible_workers_are_refused(workers):
    with pytest.raises(PlanError, match="workers was"):
        plan(workload(), BUDGET, workers=workers)


def test_small_work_stays_in_this_process(serial, used):
    assert plan(workload(), BUDGET, cache=False).to_json() == serial
    assert used == []


def test_what_is_known_is_not_sent_out(used, monkeypatch, tmp_path):
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(tmp_path))
    first = plan(workload(), BUDGET, workers=2)
    sent = len(used)
    assert sent > 10
    assert plan(workload(), BUDGET, workers=2).to_json() == first.to_json()
    assert len(used) == sent
    plan(workload().add(("a", "b"), "abs"), BUDGET, workers=2)
    assert 0 < len(used) - sent < 6


def test_the_number_of_workers():
    cores = joblib.cpu_count()
    assert workers_for(100.0, 1, 1.0, 1e9, None) == 0  # nothing to do side by side
    assert workers_for(1.0, 50, 1.0, 1e9, None) == 0  # too quick to pay
    assert workers_for(100.0, 50, 1.0, 1e9, 1) == 0
    assert workers_for(0.0, 50, 1.0, 1e9, 7) == 7
    assert workers_for(100.0, 50, 0.6e9, 1e9, None) == 0  # memory for one only
    assert workers_for(100.0, 50, 1.0, 1e9, None) == (cores if cores > 1 else 0)
    assert not is_configured()
    for setting in ({"backend": "threading"}, {"n_jobs": 2}, {"backend": "loky", "n_jobs": 1}):
        with joblib.parallel_config(**setting):
            assert is_configured()
            assert workers_for(0.0, 50, 1.0, 1e9, None) == (None if "n_jobs" in setting else -1)


def test_progress_is_told_while_searches_run():
    heard = []

    def progress(fraction, text):
        heard.append((fraction, text))

    plan(workload(), BUDGET, cache=False, workers=2, progress=progress)
    fractions = [f for f, _ in heard]
    assert any("side by side" in text for _, text in heard)
    assert fractions[-1] == 1.0
    assert 0.0 < max(f for f, text in heard if "side by side" in text) <= 0.9


def endless(count):
    """Searches that take far longer than any test: a gap that cannot be reached, on many cells."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        rows = rng.standard_normal((220, 59 * 59))
        factor = Factor(sizes=(60, 60), matrix=rows, low_rank=True)
        yield Task(search=Search(factor=factor, centers=(None, None), options=Options(gap=1e-9, evaluations=10**6)))


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_a_cancel_ends_the_searches_and_the_pool_lives_on(backend):
    started = []

    def hear(done):
        started.append(time.monotonic())
        if started[-1] - started[0] > 0.3:
            raise Cancelled("enough")

    with joblib.parallel_config(backend, n_jobs=2):
        with pytest.raises(Cancelled, match="enough"):
            list(search_all(endless(6), None, np.inf, hear))
        # the listener ends when the last search has ended: none goes on, and none that waited was begun
        for thread in threading.enumerate():
            if getattr(thread, "_target", None) is parallel._listen:
                thread.join(CEILING)
                assert not thread.is_alive()
        serial = plan(workload(), BUDGET, workers=1, cache=False).to_json()
        assert plan(workload(), BUDGET, cache=False).to_json() == serial


def test_a_cancelled_plan_raises_cancelled():
    def progress(fraction, text):
        return "side by side" not in text

    with pytest.raises(Cancelled):
        plan(workload(), BUDGET, cache=False, workers=2, progress=progress)


def test_searches_end_with_the_process_that_asked(tmp_path):
    """Killing the main process leaves no worker behind."""
    import subprocess

    script = (
        "import numpy as np\n"
        "from tests.residuals.test_parallel import endless\n"
        "from engine.residuals.parallel import search_all\n"
        "list(search_all(endless(4), 2, np.inf, lambda done: print('ready', flush=True)))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert process.stdout.readline() == b"ready\n"
    family: list[psutil.Process] = []
    while sum(child.cpu_times().user > 1.5 for child in family) < 2:  # both workers search
        time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    until(lambda: not any(map(_lives, family)), words=family)


def _lives(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _plan_in_a_child(sender):
    sender.send(plan(workload(), BUDGET, cache=False, workers=2).rmse)


def test_a_process_that_planned_side_by_side_comes_to_its_end():
    # a process joins its children when it ends, and idle loky workers stay for five minutes
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_plan_in_a_child, args=(sender,))
    child.start()
    assert receiver.recv() > 0
    child.join(CEILING)
    assert child.exitcode == 0


def test_a_deadline_reaches_the_workers():
    stopped = plan(workload(), BUDGET, cache=False, workers=2, time_limit=1e-9)
    assert "time limit" in stopped.statement


def test_an_error_in_a_worker_is_raised_here(monkeypatch):
    def broken(*given):
        raise ValueError("singular")

    monkeypatch.setattr(Search, "run", broken)
    search = Search(factor=Factor(sizes=(4, 4), matrix=np.ones((2, 9)), low_rank=True), centers=(None, None))
    with joblib.parallel_config("threading", n_jobs=2), pytest.raises(ValueError, match="singular"):
        list(search_all([Task(search=search)], None, np.inf, lambda done: None))
