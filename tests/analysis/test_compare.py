"""Comparisons in worker processes: scripts without a main guard, failures and cancellation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine._workers import FORK_ENVIRONMENT, Failed, run_in_workers
from engine.analysis import partial_comparison
from engine.analysis.compare import comparison
from engine.errors import Cancelled
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
# This script has no main guard.  It simulates a system without the module `resource`.
SCRIPT = """
import sys
sys.modules["resource"] = None
from engine import Attribute, Budget, Schema, Workload, compare
print("this script runs")
workload = Workload.all_ways(Schema([Attribute.of_size("age", 4)]), ways=(1,))
comparison = compare(workload, Budget(pcost=1.0), ["wff", "nonsense"])
print(comparison["status"].str[:24].tolist())
"""


def test_compare_in_script_without_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    # Since Python 3.12, forking a process that has threads emits this warning.
    fork_warning = {"PYTHONWARNINGS": "error:This process:DeprecationWarning"}
    inherited = {name: value for name, value in os.environ.items() if name not in FORK_ENVIRONMENT}
    environment = inherited | {"PYTHONPATH": str(ROOT)} | fork_warning
    script = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert script.stderr == ""
    assert script.stdout.splitlines() == [
        "this script runs",
        "['ok', \"The mechanism 'nonsense'\"]",
    ]


def kill_itself(number: int) -> None:
    os.kill(os.getpid(), number)


def run_calls(
    *calls: object, seconds: float = 60.0, on_progress: object = lambda fraction, labels: None
) -> list[object]:
    """Run calls in two worker processes and return their results in the order of the calls."""
    named = {str(i): call for i, call in enumerate(calls)}
    results = run_in_workers(named, at_once=2, seconds=seconds, on_progress=on_progress)
    return [results[name] for name in named]


def test_worker_failure_is_reported_and_others_finish() -> None:
    killed, ended, raised, length = run_calls(
        (kill_itself, (signal.SIGKILL,)), (os._exit, (3,)), (len, (5,)), (len, ("abc",))
    )
    assert isinstance(killed, Failed)
    assert "signal 9" in killed.reason
    assert isinstance(ended, Failed)
    assert "exit code 3" in ended.reason
    assert raised == Failed(reason="It failed with TypeError: object of type 'int' has no len()")
    assert length == 3


def test_worker_over_time_limit_is_ended() -> None:
    (failure,) = run_calls((signal.pause, ()), seconds=0.3)
    assert failure == Failed(reason="It took more than 0 s and was ended.")


def worker_processes() -> list[psutil.Process]:
    """Return the running processes of the worker pools that this process started."""
    servers = [p for p in psutil.Process().children() if "_workers" in " ".join(p.cmdline())]
    return [child for server in servers for child in server.children() if child.is_running()]


def test_cancelled_comparison_ends_worker_processes() -> None:
    workers: list[psutil.Process] = []
    # worker pools of other tests may still run
    unrelated = worker_processes()

    def stop(fraction: float, labels: list[str]) -> None:
        workers.extend(process for process in worker_processes() if process not in unrelated)
        if len(workers) >= 2:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        run_calls((signal.pause, ()), (signal.pause, ()), on_progress=stop)
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in workers))


def test_killed_parent_leaves_no_worker_process() -> None:
    script = (
        "import signal\nfrom engine._workers import run_in_workers\n"
        "run_in_workers({'a': (signal.pause, ())}, at_once=1, seconds=300.0, "
        "on_progress=lambda fraction, labels: print(*labels, flush=True))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "a\n"
    workers = psutil.Process(parent.pid).children(recursive=True)
    assert workers
    parent.kill()
    parent.communicate()
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in workers))


def test_partial_comparison_returns_finished_rows() -> None:
    workload = Workload.all_ways(Schema([Attribute.of_size(name, 3) for name in "ab"]), (1, 2))
    request = workload, Budget(pcost=0.123), ["wff", "identity", "laplace"]
    finished_mechanisms: list[list[str] | None] = []
    partial_bounds: list[float] = []
    progress_texts: set[str] = set()

    def record_partial(fraction: float, text: str) -> bool:
        progress_texts.add(text)
        partial = partial_comparison(*request)
        finished_mechanisms.append(partial and list(partial.frame["mechanism"]))
        if partial:
            partial_bounds.append(partial.bound)
        return True

    complete = comparison(*request, jobs=1, progress=record_partial)
    assert {"Running Identity", "Running lower bound"} <= progress_texts
    assert finished_mechanisms[0] is None
    assert ["wff"] in finished_mechanisms
    # Laplace is refused for this budget.  It is the last row of the comparison, so it is left out.
    assert finished_mechanisms[-1] == list(complete.frame["mechanism"][:2])
    # the bound is computed last
    assert not any(bound > 0 for bound in partial_bounds)
    partial = partial_comparison(*request)
    assert partial is not None
    assert (partial.bound, partial.plans) == (complete.bound, complete.plans)
