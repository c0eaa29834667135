"""Number of threads of linear algebra: one for small matrices."""

import contextlib
import subprocess
import sys

import pytest
import scipy.linalg  # noqa: F401  loads the second BLAS library
from threadpoolctl import ThreadpoolController, threadpool_limits

from engine._threads import MAX_SINGLE_THREAD_ORDER, one_thread, threads_for
from engine.bounds.lower_bounds import global_bound
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.residuals import DualProblem, Factor
from engine.residuals.basis import basis
from engine.residuals.search_cache import Search
from engine.workload import Attribute, Schema, Workload
from engine.workload.families import Prefix

MANY = 3


@pytest.fixture(autouse=True)
def three_threads():
    with threadpool_limits(MANY):
        yield


def output_of(code):
    """Return the output of a new Python process."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def thread_count():
    """Return the number of threads that all BLAS libraries of this process use."""
    counts = {
        library.num_threads
        for library in ThreadpoolController().select(user_api="blas").lib_controllers
    }
    assert len(counts) == 1
    return counts.pop()


def test_threads_for_small_size_is_one():
    with threads_for(MAX_SINGLE_THREAD_ORDER):
        assert thread_count() == 1
        with threads_for(MAX_SINGLE_THREAD_ORDER + 1):
            assert thread_count() == MANY
            # The context of a larger order decides.
            with threads_for(1):
                assert thread_count() == MANY
        assert thread_count() == 1
        # `one_thread` has precedence over all orders.
        with one_thread(), threads_for(MAX_SINGLE_THREAD_ORDER + 1):
            assert thread_count() == 1
    assert thread_count() == MANY


def test_threads_for_overlapping_contexts_restore_count():
    first, second, large = threads_for(1), threads_for(1), threads_for(MAX_SINGLE_THREAD_ORDER + 1)
    first.__enter__()
    large.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert thread_count() == MANY
    large.__exit__(None, None, None)
    assert thread_count() == 1
    second.__exit__(None, None, None)
    assert thread_count() == MANY


def test_threads_for_restores_count_after_error():
    with threadpool_limits(2):
        with pytest.raises(ZeroDivisionError), threads_for(1):
            1 / 0  # noqa: B018
        assert thread_count() == 2
    with threads_for(1):
        pass
    assert thread_count() == MANY


def test_threads_for_after_fork_has_new_lock():
    code = (
        "import os, threading\n"
        "from engine import _threads as threads\n"
        "with threads._THREAD_LIMIT.lock:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        with threads.threads_for(1):\n"
        "            os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert output_of(code) == "7\n"


def test_cores_respects_cpu_affinity():
    """A container may allow fewer cores than the machine has."""
    code = (
        "import os\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from engine._threads import cores\n"
        "from pages.parts.jobs.job_queue import WORKERS\n"
        "print(cores(), WORKERS)\n"
    )
    assert output_of(code) == "1 1\n"


def test_plan_and_bound_use_one_thread(monkeypatch):
    counts = set()
    evaluate = DualProblem.evaluate

    def record_threads(problem, mu):
        counts.add(thread_count())
        return evaluate(problem, mu)

    monkeypatch.setattr(DualProblem, "evaluate", record_threads)
    workload = Workload.all_ways(Schema([Attribute.of_size(c, 5) for c in "abc"]), (1, 2))
    result = plan(workload, Budget(pcost=1.0), centers="tuned", cache=False)
    load_plan(result.to_json())
    global_bound(workload)
    assert counts == {1}
    assert thread_count() == MANY


def test_search_with_symmetries_limits_threads_by_block_order(monkeypatch):
    orders = []

    def record_order(order):
        orders.append(order)
        return contextlib.nullcontext()

    monkeypatch.setattr("engine.residuals.search_cache.threads_for", record_order)
    n = 50
    gram = basis(n).T @ Prefix().gram((n,)) @ basis(n)
    search = Search(factor=Factor(sizes=(n,), matrix=gram), centers=(None,))
    solution = search.run()
    search.replay(solution.dual, solution.status)
    # The run and the replay each handle first the whole matrix and then its largest block.
    assert orders[0] == orders[2] == n - 1
    assert orders[1] == orders[3] == search.problem().largest_block < n - 1
