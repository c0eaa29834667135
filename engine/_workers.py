"""Worker pool: workers never re-import `__main__`, end with the parent and report failures.

The pools of the standard library import the caller's script again in every process, which runs it a
second time unless its main part is guarded.  Here loky starts a server process without that script.
It imports the engine once and forks one process per call, which takes milliseconds.  The caller and
the server share one pipe: when the caller closes it or ends, the server and its calls end as well.
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from engine.errors import Cancelled

Call = tuple[Callable[..., Any], tuple[Any, ...]]
# Modules that most plans use and that are slow to import.
PRELOADED = ("scipy.optimize", "scipy.sparse.linalg", "joblib")
# Interval of progress messages, which also limits the delay of a cancellation.
PROGRESS_INTERVAL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Failed call; ``reason`` is a sentence that says why it has no result."""

    reason: str


def peak_megabytes() -> float:
    """Return the peak memory of this process, in MiB; NaN where the system does not report it.

    On Linux the peak that `resource` reports includes that of the program which started this
    process, so the peak resident set is read from /proc instead.
    """
    status = Path("/proc/self/status")
    text = status.read_text(encoding="ascii", errors="replace") if status.exists() else ""
    if match := re.search(r"^VmHWM:\s*(\d+) kB$", text, flags=re.MULTILINE):
        return int(match[1]) / 2**10
    try:
        import resource
    # only POSIX systems have this module
    except ImportError:
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        2**20 if sys.platform == "darwin" else 2**10
    )


class _ForkServer:
    """Server process that runs calls in forks of itself, and the caller's end of the pipe to it."""

    def __init__(self) -> None:
        from loky.backend import get_context

        context: Any = get_context("loky")
        self.pipe, server_pipe = context.Pipe()
        self.process = context.Process(target=_serve, args=(server_pipe,), name="fork-server")
        self.process.start()
        server_pipe.close()

    def receive(self, request: Any = None) -> Any:
        """Send a request, if any, and return the next message of the server; None if it ended."""
        with suppress(EOFError, OSError):
            if request is not None:
                self.pipe.send(request)
            return self.pipe.recv()
        return None

    def end(self) -> None:
        self.pipe.close()
        self.process.join()


# Servers without a request; append and pop of a list are safe among threads.
_IDLE_SERVERS: list[_ForkServer] = []
# Set when Python is about to wait for its child processes, which include servers in use by threads.
_PYTHON_ENDING = threading.Event()


@atexit.register
def _close_all() -> None:
    """Close idle servers before Python waits for its children; threads close theirs soon after."""
    _PYTHON_ENDING.set()
    while _IDLE_SERVERS:
        _IDLE_SERVERS.pop().end()


def run_in_workers(
    calls: Mapping[str, Call],
    *,
    at_once: int,
    seconds: float,
    on_progress: Callable[[float, list[str]], object],
    arrived: Callable[[str, Any], object] = lambda label, result: None,
) -> dict[str, Any]:
    """Run calls in worker processes; return a mapping from their labels to result or `Failed`.

    Parameters
    ----------
    calls : mapping from a label to a function of a module and its arguments; both are pickled.
    at_once : number of calls that run at the same time.
    seconds : time limit of a call.
    on_progress : called a few times per second with the fraction of finished calls and
        the labels of the running ones; an exception from it ends all calls.
    arrived : called with the label and the result of a call when it finishes.

    Raises
    ------
    Cancelled
        Python ends while a thread waits for results.

    >>> calls = {"five": (len, ("abcde",))}
    >>> run_in_workers(calls, at_once=1, seconds=60.0, on_progress=lambda fraction, labels: None)
    {'five': 5}
    """
    if not calls:
        return {}
    _check_not_ending()
    try:
        server = _IDLE_SERVERS.pop()
    except IndexError:
        server = _ForkServer()
    try:
        message = server.receive((calls, at_once, seconds))
        while message and message[0] == "running":
            for label, result in message[3].items():
                arrived(label, result)
            on_progress(message[1], message[2])
            _check_not_ending()
            message = server.receive()
    except BaseException:
        server.end()
        raise
    if not message:
        server.end()
        failure = Failed(
            reason=f"The server of the worker processes {_ending(server.process.exitcode)}."
        )
        return dict.fromkeys(calls, failure)
    _IDLE_SERVERS.append(server)
    if _PYTHON_ENDING.is_set():
        _close_all()
    results: dict[str, Any] = message[1]
    return results


def _check_not_ending() -> None:
    """Raise Cancelled if Python is ending."""
    if _PYTHON_ENDING.is_set():
        raise Cancelled("Python is ending.")


def _serve(pipe: Connection) -> None:
    """Receive calls from the pipe and send their results, until the caller closes the pipe.

    This function runs in the server process.
    """
    # imported before the forks, because most strategy searches use this module
    import scipy.optimize  # noqa: F401

    # Ctrl-C reaches every process, but only the caller handles it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            calls, at_once, seconds = pipe.recv()
            pipe.send(("done", _run_calls(calls, at_once, seconds, pipe)))


def _run_calls(
    calls: Mapping[str, Call], at_once: int, seconds: float, pipe: Connection
) -> dict[str, Any]:
    """Run the calls of one request, at most ``at_once`` at a time, and return their results.

    Progress and the results since the last message are sent through ``pipe``.
    """
    from loky.backend import get_context

    forks = "fork" in multiprocessing.get_all_start_methods()
    # forked processes share the modules that their parent has imported
    if forks:
        for name in PRELOADED:
            import_module(name)
    context: Any = multiprocessing.get_context("fork") if forks else get_context("loky")
    waiting = list(calls)
    running: dict[Any, tuple[str, Any, float]] = {}
    results: dict[str, Any] = {}
    n_sent = 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                label = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run_call, args=(sender, *calls[label]), daemon=True
                )
                process.start()
                sender.close()
                running[receiver] = label, process, time.monotonic()
            new_results = dict(list(results.items())[n_sent:])
            n_sent = len(results)
            pipe.send(
                (
                    "running",
                    n_sent / len(calls),
                    [label for label, _, _ in running.values()],
                    new_results,
                )
            )
            for ready in wait([*running, pipe], timeout=PROGRESS_INTERVAL_S):
                if ready is pipe:
                    # the caller sends nothing while it waits, so a readable pipe is a closed one
                    raise EOFError
                label, process, _ = running.pop(ready)
                results[label] = _result_of(ready, process)
            for receiver, (label, process, started) in list(running.items()):
                if time.monotonic() - started > seconds:
                    process.kill()
                    del running[receiver]
                    results[label] = Failed(
                        reason=f"It took more than {seconds:.0f} s and was ended."
                    )
    finally:
        for _, process, _ in running.values():
            process.kill()
            process.join()
    return results


def _result_of(receiver: Any, process: Any) -> Any:
    """Return the result that a process has sent, or `Failed` if it ended without one."""
    try:
        result = receiver.recv()
    except (EOFError, OSError):
        process.join()
        return Failed(reason=f"Its process {_ending(process.exitcode)}.")
    process.join()
    return result


def _ending(code: int | None) -> str:
    """Return the end of a sentence that says how a process with this exit code ended."""
    if code == -signal.SIGTERM or code is None or code >= 0:
        return f"ended with exit code {code} and without a result"
    is_killed = code == -getattr(signal, "SIGKILL", 9)
    cause = "; the system does this when memory runs out" if is_killed else ""
    return f"was ended by signal {-code} without a result{cause}"


def _run_call(sender: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Run one call and send its result or failure; runs in a separate process."""
    try:
        result = function(*arguments)
    except Exception as error:
        result = Failed(reason=f"It failed with {type(error).__name__}: {error}")
    sender.send(result)
    sender.close()
