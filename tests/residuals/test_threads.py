"""How many threads linear algebra has: one for small matrices, its own for large ones, whoever comes and goes."""

import subprocess
import sys

import pytest
import scipy.linalg  # noqa: F401  its linear algebra is to be set, too
from threadpoolctl import ThreadpoolController, threadpool_limits

from engine._threads import SMALL, one_thread, threads_for
from engine.bounds.lower_bounds import global_bound
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.residuals import DualProblem
from engine.workload import Attribute, Schema, Workload

MANY = 3


@pytest.fixture(autouse=True)
def several():
    with threadpool_limits(MANY):  # tests have one
        yield


def now():
    found = {library.num_threads for library in ThreadpoolController().select(user_api="blas").lib_controllers}
    assert len(found) == 1
    return found.pop()


def test_small_matrices_have_one_thread_and_large_ones_their_own():
    with threads_for(SMALL):
        assert now() == 1
        with threads_for(SMALL + 1):
            assert now() == MANY
            with threads_for(1):
                assert now() == MANY
        assert now() == 1
        with one_thread(), threads_for(SMALL + 1):
            assert now() == 1
    assert now() == MANY


def test_who_comes_first_need_not_go_last():
    first, second, large = threads_for(1), threads_for(1), threads_for(SMALL + 1)
    first.__enter__()
    large.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert now() == MANY
    large.__exit__(None, None, None)
    assert now() == 1
    second.__exit__(None, None, None)
    assert now() == MANY


def test_what_the_caller_sets_stays_and_errors_leave_nothing_behind():
    with threadpool_limits(2):
        with pytest.raises(ZeroDivisionError), threads_for(1):
            1 / 0  # noqa: B018
        assert now() == 2
    with threads_for(1):
        pass
    assert now() == MANY


def test_a_fork_has_a_lock_of_its_own():
    code = (
        "import os, threading\n"
        "from engine import _threads as threads\n"
        "with threads._SHARED.lock:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        with threads.threads_for(1):\n"
        "            os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "7\n"


def test_cores_are_those_that_a_process_may_use():
    """Helpers were as many as the machine has cores, also where a container has few of them."""
    code = (
        "import os\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from engine._threads import cores\n"
        "from pages.parts.jobs.work import WORKERS\n"
        "print(cores(), WORKERS)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1 1\n"


def test_plans_and_bounds_are_searched_on_one_thread(monkeypatch):
    """Threads that wait for each other took twice the time of processors for the same plans."""
    seen, honest = set(), DualProblem.evaluate
    monkeypatch.setattr(DualProblem, "evaluate", lambda self, mu: seen.add(now()) or honest(self, mu))
    workload = Workload.all_ways(Schema([Attribute.of_size(c, 5) for c in "abc"]), (1, 2))
    made = plan(workload, Budget(pcost=1.0), centers="tuned", cache=False)
    load_plan(made.to_json())
    global_bound(workload)
    assert seen == {1}
    assert now() == MANY
