"""Parallel searches: identical plans on every backend, progress, cancellation."""

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

from engine.errors import Cancelled, PlanError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import Factor, Options, subworkload_solver
from engine.residuals.search_cache import Search
from engine.residuals.subworkload_solver import Task, is_configured, search_all, workers_for
from engine.workload import Workload
from tests import shapes
from tests.waiting import CEILING, until

BUDGET = Budget(pcost=1.0)


def workload():
    sizes = (6, 7, 8, 9, 10)
    singles = Workload.all_ways(shapes.numeric(*sizes), (1,), "range").groups
    return Workload(
        shapes.numeric(*sizes),
        singles + Workload.all_ways(shapes.numeric(*sizes), (2,), "affine").groups,
    )


@pytest.fixture(scope="module")
def serial():
    return plan(workload(), BUDGET, workers=1, cache=False).to_json()


@pytest.fixture
def sent_tasks(monkeypatch):
    """Return the list of the tasks sent to workers."""
    sent, original = [], subworkload_solver.search_all

    def recording(tasks, *others):
        tasks = list(tasks)
        sent.extend(tasks)
        return original(tasks, *others)

    monkeypatch.setattr("engine.residuals.subworkload_solver.search_all", recording)
    return sent


@pytest.fixture
def ray():
    cluster = importlib.import_module("ray")
    root = str(Path(subworkload_solver.__file__).parents[2])
    cluster.init(
        num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": root}}
    )
    importlib.import_module("ray.util.joblib").register_ray()
    yield
    cluster.shutdown()


BACKENDS = [
    "sequential",
    "threading",
    "loky",
    "multiprocessing",
    *(["ray"] if importlib.util.find_spec("ray") else []),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_plan_every_backend_is_equal(serial, backend, sent_tasks, request):
    if backend == "ray":  # optional, too large for the test dependencies
        request.getfixturevalue(backend)
    with joblib.parallel_config(backend, n_jobs=2):
        assert plan(workload(), BUDGET, cache=False).to_json() == serial
    assert len(sent_tasks) > 10


class WithoutEngine:
    """Import hook that hides the engine."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "engine":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide_engine():
    sys.meta_path.insert(0, WithoutEngine())
    for name in [name for name in sys.modules if name.split(".")[0] == "engine"]:
        del sys.modules[name]


@pytest.mark.parametrize("processes", [False, True])
def test_plan_dask_cluster_is_equal_or_refused(serial, processes, sent_tasks):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            processes=processes,
            n_workers=1 if processes else 2,
            threads_per_worker=1,
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
        joblib.parallel_config("dask"),
    ):
        assert plan(workload(), BUDGET, cache=False).to_json() == serial
        assert len(sent_tasks) > 10
        if processes:
            client.run(hide_engine)
            with pytest.raises(PlanError, match="engine"):
                plan(workload(), BUDGET, cache=False)


def test_engine_uses_public_joblib_names_only():
    for file in Path(subworkload_solver.__file__).parents[1].rglob("*.py"):
        assert not re.search(r"joblib\._|from joblib import _", file.read_text("utf-8")), file


def test_plan_with_two_workers_is_equal(serial, sent_tasks):
    assert plan(workload(), BUDGET, cache=False, workers=2).to_json() == serial
    assert len(sent_tasks) > 10


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2", 10**6])
def test_plan_invalid_workers_is_refused(workers):
    with pytest.raises(PlanError, match="workers"):
        plan(workload(), BUDGET, workers=workers)


def test_plan_small_workload_uses_no_workers(serial, sent_tasks):
    assert plan(workload(), BUDGET, cache=False).to_json() == serial
    assert sent_tasks == []


def test_plan_with_one_worker_collects_no_searches(monkeypatch):
    monkeypatch.setattr(
        "engine.residuals.subworkload_solver.SubworkloadSolver._worker_searches",
        lambda *_: pytest.fail("searches were collected"),
    )
    plan(shapes.nested(), Budget(1.0), cache=False, workers=1)


def test_plan_cached_searches_are_not_sent(sent_tasks, monkeypatch, tmp_path):
    monkeypatch.setenv("DP_WORKBENCH_CACHE", str(tmp_path))
    first = plan(workload(), BUDGET, workers=2)
    assert len(sent_tasks) > 10
    sent_tasks.clear()
    assert plan(workload(), BUDGET, workers=2).to_json() == first.to_json()
    assert not sent_tasks
    plan(workload().add(("a", "b"), "abs"), BUDGET, workers=2)
    assert 0 < len(sent_tasks) < 6


def test_workers_for_returns_number_of_workers():
    cores = joblib.cpu_count()

    def workers(seconds=100.0, tasks=50, bytes_per_worker=1.0, requested=None):
        return workers_for(seconds, tasks, bytes_per_worker, 1e9, requested)  # limit of 1 GB

    assert workers() == (cores if cores > 1 else 0)
    assert workers(tasks=1) == 0
    assert workers(seconds=1.0) == 0  # the tasks are too short to start workers
    assert workers(requested=1) == 0
    assert workers(seconds=0.0, requested=7) == 7
    assert workers(bytes_per_worker=0.6e9) == 0  # the memory suffices for only one worker
    assert not is_configured()
    for setting in ({"backend": "threading"}, {"n_jobs": 2}, {"backend": "loky", "n_jobs": 1}):
        with joblib.parallel_config(**setting):
            assert is_configured()
            assert workers(seconds=0.0) == (None if "n_jobs" in setting else -1)


def test_progress_is_reported_during_parallel_searches():
    reports = []

    def progress(fraction, text):
        reports.append((fraction, text))

    plan(workload(), BUDGET, cache=False, workers=2, progress=progress)
    parallel_fractions = [fraction for fraction, text in reports if "in parallel" in text]
    assert 0.0 < max(parallel_fractions) <= 0.9
    last_fraction, _ = reports[-1]
    assert last_fraction == 1.0


def endless_searches(count):
    """Yield searches with an unreachable gap on many cells, longer than any test."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        rows = rng.standard_normal((220, 59 * 59))
        factor = Factor(sizes=(60, 60), matrix=rows, low_rank=True)
        yield Task(
            search=Search(
                factor=factor, centers=(None, None), options=Options(gap=1e-9, evaluations=10**6)
            )
        )


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_search_all_cancelled_ends_searches_not_pool(backend):
    report_times = []

    def cancel_soon(done):
        report_times.append(time.monotonic())
        if report_times[-1] - report_times[0] > 0.3:
            raise Cancelled("enough")

    with joblib.parallel_config(backend, n_jobs=2):
        with pytest.raises(Cancelled, match="enough"):
            list(search_all(endless_searches(6), None, np.inf, cancel_soon))
        # The thread that listens to the workers ends only when no search runs or waits.
        until(
            lambda: all(
                getattr(thread, "_target", None) is not subworkload_solver._listen
                for thread in threading.enumerate()
            ),
            words="searches continue after the cancellation",
        )
        serial = plan(workload(), BUDGET, workers=1, cache=False).to_json()
        assert plan(workload(), BUDGET, cache=False).to_json() == serial


def test_plan_progress_false_cancels_searches():
    def progress(fraction, text):
        return "in parallel" not in text

    with pytest.raises(Cancelled):
        plan(workload(), BUDGET, cache=False, workers=2, progress=progress)


def test_workers_end_with_parent_process(tmp_path):
    import subprocess

    script = """
import numpy as np
from tests.residuals.test_parallel import endless_searches
from engine.residuals.subworkload_solver import search_all
list(search_all(endless_searches(4), 2, np.inf, lambda done: print('ready', flush=True)))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert process.stdout.readline() == b"ready\n"
    descendants: list[psutil.Process] = []
    while sum(child.cpu_times().user > 1.5 for child in descendants) < 2:  # both workers search
        time.sleep(0.05)
        descendants = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    until(lambda: not any(map(_is_running, descendants)), words=descendants)


def _is_running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _plan_in_a_child(sender):
    sender.send(plan(workload(), BUDGET, cache=False, workers=2).rmse)


def test_process_with_workers_exits():
    # If the engine did not end the idle workers of joblib, the child would exit minutes later.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_plan_in_a_child, args=(sender,))
    child.start()
    assert receiver.recv() > 0
    child.join(CEILING)
    assert child.exitcode == 0


def test_plan_time_limit_stops_workers():
    stopped = plan(workload(), BUDGET, cache=False, workers=2, time_limit=1e-9)
    assert "time limit" in stopped.statement


def test_search_all_worker_error_is_raised(monkeypatch):
    def fail(*args):
        raise ValueError("singular")

    monkeypatch.setattr(Search, "run", fail)
    search = Search(
        factor=Factor(sizes=(4, 4), matrix=np.ones((2, 9)), low_rank=True), centers=(None, None)
    )
    with joblib.parallel_config("threading", n_jobs=2), pytest.raises(ValueError, match="singular"):
        list(search_all([Task(search=search)], None, np.inf, lambda done: None))
