"""Comparisons in worker processes: any calling script, missing `resource` module, failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine._workers import Failed, run_in_workers
from engine.analysis import partial_comparison
from engine.analysis.compare import comparison
from engine.errors import Cancelled
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
# a script without a main guard, on a system that has no module `resource`
SCRIPT = """
import sys
sys.modules["resource"] = None
from engine import Attribute, Budget, Schema, Workload, compare
print("this script runs")
workload = Workload.all_ways(Schema([Attribute.of_size("age", 4)]), ways=(1,))
found = compare(workload, Budget(pcost=1.0), ["wff", "nonsense"])
print(found["status"].str[:17].tolist())
"""


def test_a_plain_script_compares_and_runs_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["this script runs", "['ok', 'There is no mecha']"], done.stderr
    assert done.stderr == ""


def kill_itself(number: int) -> None:
    os.kill(os.getpid(), number)


def apart(*calls: object, seconds: float = 60.0, hear: object = lambda fraction, labels: None) -> list[object]:
    named = {str(i): call for i, call in enumerate(calls)}
    return list(dict(sorted(run_in_workers(named, at_once=2, seconds=seconds, hear=hear).items())).values())


def test_what_fails_says_why_and_the_others_go_on() -> None:
    found = apart((kill_itself, (signal.SIGKILL,)), (os._exit, (3,)), (len, (5,)), (len, ("abc",)))
    assert found.pop() == 3
    assert all(isinstance(one, Failed) for one in found)
    killed, ended, raised = (one.reason for one in found)
    assert killed == "Its process was ended by signal 9, which systems do when memory runs out; without a result."
    assert ended == "Its process ended with exit code 3 and without a result."
    assert raised == "It failed with TypeError: object of type 'int' has no len()"


def test_what_takes_too_long_is_ended() -> None:
    (found,) = apart((signal.pause, ()), seconds=0.3)
    assert found == Failed(reason="It took more than 0 s and was ended.")


def sleepers() -> list[psutil.Process]:
    """Running child processes of a worker pool."""
    keepers = [p for p in psutil.Process().children() if "loky" in " ".join(p.cmdline())]
    return [child for keeper in keepers for child in keeper.children() if child.is_running()]


def test_whoever_stops_leaves_no_process() -> None:
    kept: list[psutil.Process] = []
    others = sleepers()  # of keepers that worked for other tests

    def stop(fraction: float, labels: list[str]) -> None:
        kept.extend(one for one in sleepers() if one not in others)
        if len(kept) >= 2:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        apart((signal.pause, ()), (signal.pause, ()), hear=stop)
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in kept))


def test_an_asker_that_is_killed_leaves_no_process() -> None:
    script = (
        "import signal\nfrom engine._workers import call_apart\n"
        "call_apart({'a': (signal.pause, ())}, at_once=1, seconds=300.0, "
        "hear=lambda fraction, labels: print(*labels, flush=True))"
    )
    asker = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert asker.stdout is not None
    assert asker.stdout.readline() == "a\n"
    left = psutil.Process(asker.pid).children(recursive=True)
    assert left
    asker.kill()
    asker.communicate()
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in left))


def test_rows_are_there_before_the_comparison_is_done() -> None:
    asked = Workload.all_ways(Schema([Attribute.of_size(name, 3) for name in "ab"]), (1, 2))
    request = asked, Budget(pcost=0.123), ["wff", "identity", "laplace"]
    seen: list[tuple[list[str], bool] | None] = []

    def look(fraction: float, text: str) -> bool:
        found = partial_comparison(*request)
        seen.append(found and (list(found.frame["mechanism"]), found.bound > 0))
        return True

    done = comparison(*request, jobs=1, progress=look)
    assert seen[0] is None
    assert (["wff"], False) in seen
    best = list(done.frame["mechanism"][:2])
    assert seen[-1] == (best, False)  # the bound comes last
    known = partial_comparison(*request)
    assert known is not None
    assert (known.bound, known.plans) == (done.bound, done.plans)
