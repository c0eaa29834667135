"""Background jobs: queue, workers, cancellation, files, and the sessions that hold a job."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine._workers import PRELOADED
from engine.mechanisms import load_plan
from pages.parts.jobs import job_queue, private_tempdir, tasks
from pages.parts.jobs.status import Status
from tests.app.session import demo_plan
from tests.waiting import until
from tests.working import (
    broken,
    deaf,
    endless,
    killed,
    loaded,
    quick,
    reads,
    unreadable,
    unwritable,
)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    remove_jobs()
    yield
    remove_jobs()


def remove_jobs() -> None:
    jobs = list(job_queue._JOBS.values())
    for key in list(job_queue._JOBS):
        job_queue.cancel(key)
        wait_for_end(key)
        job_queue.forget(key)
    until(lambda: all(job.process is None for job in jobs))  # the process ends after its job


def wait_for_end(key: str) -> Status | None:
    until(lambda: job_queue.find(key) is None or not job_queue.find(key).running)
    return job_queue.find(key)


def processes() -> list[object]:
    return [job.process for job in job_queue._JOBS.values() if job.process is not None]


def test_worker_starts_with_slow_imports_loaded() -> None:
    slow = ["pandas", *PRELOADED]
    job_queue.start("loaded", loaded, *slow)
    assert wait_for_end("loaded").result == slow


def test_cancelled_job_ends_its_process() -> None:
    job_queue.start("deaf", deaf)
    job_queue.start("deaf", deaf)  # does not start a second process
    (process,) = processes()
    until(lambda: job_queue.find("deaf").text == "started")
    job_queue.cancel("deaf")
    assert wait_for_end("deaf").state == "cancelled"
    assert not process.is_alive()
    assert job_queue.start("deaf", endless).running


def test_cancelling_spending_job_does_not_kill_it() -> None:
    job_queue.start("spends", endless, spends=True)
    (process,) = processes()
    job_queue.cancel("spends")
    assert wait_for_end("spends").state == "done"
    until(lambda: process.exitcode == 0)


@pytest.mark.parametrize("spends", [True, False])
@pytest.mark.parametrize(
    ("function", "word"), [(broken, "exit code 1"), (killed, "killed"), (unwritable, "denied")]
)
def test_failed_worker_reports_error_without_traceback(
    function: Callable, word: str, spends: bool, capfd: pytest.CaptureFixture
) -> None:
    job_queue.start("fails", function, spends=spends)
    status = wait_for_end("fails")
    assert status.state in ("died", "failed")
    assert status.result is None
    assert word in status.error
    output = status.error + "".join(capfd.readouterr())
    assert "a value" not in output
    assert "secret" not in output
    assert "Traceback" not in output


def test_finished_job_always_has_result() -> None:
    finished: list[Status] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            status = job_queue.find("racing")
            if status is not None and status.done:
                finished.append(status)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(5):
        job_queue.start("racing", quick, number)
        assert wait_for_end("racing").result == number
        # On a busy machine, the thread `watcher` may find the result only now.
        until(lambda number=number: finished and finished[-1].result == number)
        job_queue.forget("racing")
    over.set()
    watcher.join()
    assert {status.result for status in finished} == set(range(5))


def test_jobs_above_core_count_wait_in_order() -> None:
    keys = [f"queue{i}" for i in range(job_queue.WORKERS + 3)]
    for key in keys:
        job_queue.start(key, endless)
    waiting = keys[job_queue.WORKERS :]
    assert len(processes()) == job_queue.WORKERS
    assert [job_queue.find(key).state for key in waiting] == ["waiting"] * 3
    assert [job_queue.before(key) for key in waiting] == [0, 1, 2]
    job_queue.start("spends", quick, 1, spends=True)
    assert job_queue.before("spends") == 0
    assert job_queue.before(waiting[0]) == 1
    job_queue.cancel(waiting[1])
    assert job_queue.find(waiting[1]).state == "cancelled"
    job_queue.cancel(keys[0])
    assert wait_for_end("spends").result == 1
    until(lambda: job_queue.find(waiting[0]).state == "running")
    assert job_queue.find(waiting[2]).state == "waiting"
    until(lambda: len(processes()) == job_queue.WORKERS)


def test_job_for_all_cores_is_not_overtaken() -> None:
    job_queue.start("one", endless)
    job_queue.start("wide", endless, gentle=True)
    job_queue.start("late", quick, 1)
    assert job_queue.find("wide").state == "waiting" or job_queue.WORKERS == 1
    assert job_queue.find("late").state == "waiting"
    job_queue.cancel("one")
    until(lambda: job_queue.find("wide").state == "running")
    assert job_queue.find("late").state == "waiting"
    job_queue.cancel("wide")
    assert wait_for_end("late").result == 1


class ManualTimer:
    """Timer that fires when the test calls `fire`."""

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        assert seconds == job_queue.RECONNECT_S
        self.fire = function

    def start(self) -> None:
        self.__class__.last = self


def test_job_is_removed_with_its_last_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue.threading, "Timer", ManualTimer)
    file = private_tempdir.new_file("rehearsal")
    job_queue.start("stays_until_end", quick, 7, holder="a", files=[file])
    job_queue.hold("stays_until_end", "b")
    wait_for_end("stays_until_end")
    job_queue.start("runs", deaf, holder="a")
    job_queue.leave("a")
    assert job_queue.find("runs") is not None
    ManualTimer.last.fire()
    until(lambda: job_queue.find("runs") is None)
    assert job_queue.find("stays_until_end").result == 7
    assert file.exists()
    job_queue.leave("b")
    job_queue.hold("stays_until_end", "c")  # a reload of the page
    ManualTimer.last.fire()
    assert job_queue.find("stays_until_end").result == 7
    job_queue.release_job("stays_until_end", "c")
    assert job_queue.find("stays_until_end") is None
    assert not file.exists()


def test_spending_job_outlives_its_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(job_queue, "RECONNECT_S", 0.0)
    gate = tmp_path / "gate"
    job_queue.start("spends", wait_for_gate, str(gate), holder="a", spends=True)
    until(lambda: job_queue.find("spends").text == "spending")
    (process,) = processes()
    job_queue.leave("a")
    until(lambda: job_queue._JOBS["spends"].abandoned)
    assert process.is_alive()
    gate.touch()
    until(lambda: job_queue.find("spends") is None)
    until(lambda: process.exitcode == 0)


def test_job_that_stays_ends_after_its_holder_leaves(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job_queue.start("stays", wait_for_gate, str(gate), holder="a", stays=True)
    until(lambda: job_queue.find("stays").text == "spending")
    (process,) = processes()
    job_queue.release_job("stays", "a")
    assert process.is_alive()
    assert job_queue.find("stays").running
    gate.touch()
    until(lambda: job_queue.find("stays") is None)
    until(lambda: process.exitcode == 0)


def test_worker_that_cannot_start_ends_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (BlockingIOError(11, "Resource temporarily unavailable"), EOFError()):
        copy = private_tempdir.new_file("records")
        with monkeypatch.context() as patch:
            patch.setattr(job_queue, "launch", lambda *_, error=error, **__: raise_error(error))
            assert job_queue.start("refused", quick, 1, copies=[copy]).state == "died"
        assert "could not be started" in job_queue.find("refused").error
        assert not copy.exists()
        # The job can be done before its state is read.
        assert job_queue.start("refused", quick, 1).state in ("running", "done")
        assert wait_for_end("refused").result == 1
        job_queue.forget("refused")


def raise_error(error: Exception) -> None:
    raise error


def test_unreadable_result_ends_job(monkeypatch: pytest.MonkeyPatch) -> None:
    thread_errors: list[type] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: thread_errors.append(args.exc_type))
    job_queue.start("unreadable", unreadable)
    assert wait_for_end("unreadable").state == "died"
    until(lambda: not processes() and thread_errors)  # the reading thread ends after the job
    assert thread_errors == [ValueError]


def wait_for_gate(gate: str, *, progress: Callable) -> None:
    progress(0.1, "spending")
    until(Path(gate).exists)


def test_copies_of_records_are_removed_with_job() -> None:
    for function in (reads, killed, broken, deaf, endless):
        copy = private_tempdir.new_file("records")
        copy.write_text("a record")
        arguments = [str(copy)] if function is reads else []
        job_queue.start("copies", function, *arguments, copies=[copy])
        if function in (deaf, endless):  # a running job is not started twice
            twice = private_tempdir.new_file("records")
            job_queue.start("copies", function, copies=[twice])
            assert not twice.exists()
            until(lambda: job_queue.find("copies").text in ("started", "working"))
            job_queue.cancel("copies")
        assert wait_for_end("copies").state in ("done", "died", "cancelled")
        until(lambda copy=copy: not copy.exists())
        job_queue.forget("copies")


def test_private_folder_is_protected_and_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE(private_tempdir.folder().stat().st_mode) == 0o700
    script = (
        "from pages.parts.jobs import private_tempdir; print(private_tempdir.new_file('records'),"
        " flush=True); input()"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    files = [Path(server.stdout.readline().strip()) for server in servers]
    servers[0].kill()
    servers[0].wait()
    stranger, elsewhere = tmp_path / "dp-workbench-link", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "stays_until_end").touch()
    stranger.symlink_to(elsewhere)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private_tempdir.sweep()
    assert [file.exists() for file in files] == [False, True, True]
    assert (elsewhere / "stays_until_end").exists()
    servers[1].communicate("\n")
    assert not files[1].parent.exists()
    servers[2].kill()
    servers[2].wait()


def test_worker_plan_equals_local_plan() -> None:
    reference = demo_plan("cps")
    job_queue.start(
        "same", tasks.make_plan, reference.workload.to_json(), {"pcost": 1.0}, "querysmasher", {}
    )
    assert load_plan(wait_for_end("same").result).hash == reference.hash


def test_oldest_checkpoints_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(private_tempdir, "folder", lambda: tmp_path)
    n_jobs = private_tempdir.MAX_CHECKPOINTS + 3
    for number in range(n_jobs):
        place = private_tempdir.checkpoint_folder(f"job {number}")
        (place / "state").write_text("")
        os.utime(place, (number, number))
    assert len(list((tmp_path / "reached").iterdir())) == private_tempdir.MAX_CHECKPOINTS
    assert not (private_tempdir.checkpoint_folder("job 0") / "state").exists()
    newest = f"job {n_jobs - 1}"
    assert (private_tempdir.checkpoint_folder(newest) / "state").exists()


@pytest.mark.parametrize(
    ("fraction", "expected_seconds", "text"),
    [
        (0.0, None, "30 s"),
        (0.0, 40.0, "30 s, about 10 s left"),
        (0.0, 5.6, "30 s, longer than expected"),
        (0.6, 5.6, "30 s, about 20 s left"),
    ],
)
def test_time_left_follows_progress(
    fraction: float, expected_seconds: float | None, text: str
) -> None:
    started = time.monotonic() - 30.0
    status = Status(state="running", spends=False, started=started, fraction=fraction)
    assert status.time_text(expected_seconds) == text
