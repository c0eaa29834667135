"""Worker pool: workers never re-import `__main__`, end with the parent and report failures.

A pool of the standard library that does not fork imports the caller's script again in every
process, which runs the script a second time unless its main part is guarded.  Here a server process
starts without that script.  It imports the engine once and forks one process per call, which takes
milliseconds.  Where the system cannot fork, every call gets a new Python process.  The caller and
the server share one connection: when the caller closes the connection or ends, the server and its
calls end as well.
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

Call = tuple[Callable[..., Any], tuple[Any, ...]]
# Modules that most plans use and that are slow to import.
PRELOADED = ("scipy.optimize", "scipy.sparse.linalg", "joblib")
# Environment variables of a process that forks. Such a process must not have other threads.
# OpenBLAS ends its threads before a fork; this variable keeps Arrow's allocator from starting one.
FORK_ENVIRONMENT = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
# Longest time between two progress messages in seconds. A cancellation takes effect at the next
# one.
PROGRESS_INTERVAL_S = 0.2
_KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Result of a call that failed; ``reason`` is a sentence that says why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class _Progress:
    """Message that the server sends while calls run; after the last call the server sends results.

    Attributes
    ----------
    fraction : fraction of finished calls.
    running : labels of the running calls.
    new_results : mapping from label to result for the calls that finished after the last message.
    """

    fraction: float
    running: list[str]
    new_results: dict[str, Any]


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
    """Server process that runs calls in forks of itself, and the caller's connection to it."""

    def __init__(self) -> None:
        # only the caller has the key, so no other process can connect
        key = secrets.token_bytes(_KEY_BYTES)
        code = (
            "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
            f" import sys; sys.path[:] = {sys.path!r};"
            " from engine._workers import _serve; _serve()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=FORK_ENVIRONMENT | os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        address = ""  # stays empty if the server ends before it prints an address
        with self.process.stdin, self.process.stdout, suppress(OSError):
            self.process.stdin.write(key)
            self.process.stdin.flush()
            address = self.process.stdout.readline().decode().strip()
        self.connection = Client(address, authkey=key) if address else None

    def receive(self, request: Any = None) -> Any:
        """Send ``request`` unless it is None; return the next message, or None if the server
        ended."""
        if self.connection is None:
            return None
        with suppress(EOFError, OSError):
            if request is not None:
                self.connection.send(request)
            return self.connection.recv()
        return None

    def end(self) -> None:
        """Close the connection, so that the server ends, and wait until it has ended."""
        if self.connection is not None:
            self.connection.close()
        self.process.wait()


# Servers that are not in use. Threads share the list: its append and pop are atomic.
_IDLE_SERVERS: list[_ForkServer] = []


@atexit.register
def _close_all() -> None:
    """Close the connections to idle servers when Python ends."""
    while _IDLE_SERVERS:
        _IDLE_SERVERS.pop().end()


def run_in_workers(
    calls: Mapping[str, Call],
    *,
    at_once: int,
    seconds: float,
    on_progress: Callable[[float, list[str]], object],
    on_result: Callable[[str, Any], object] = lambda label, result: None,
) -> dict[str, Any]:
    """Run calls in worker processes; return for each label the result of its call, or `Failed`.

    Parameters
    ----------
    calls : mapping from a label to a pair of function and arguments.  The function must be defined
        at the top level of a module, because it is pickled.
    at_once : largest number of calls that run at the same time.
    seconds : time limit of each call, in seconds of wall time.
    on_progress : called a few times per second with the fraction of finished calls and the labels
        of the running calls.  If it raises an exception, all calls are ended.
    on_result : called with the label and the result of each call that finishes while other calls
        still run.  The results of the last calls are only returned.

    >>> calls = {"five": (len, ("abcde",))}
    >>> run_in_workers(calls, at_once=1, seconds=60.0, on_progress=lambda fraction, labels: None)
    {'five': 5}
    """
    if not calls:
        return {}
    try:
        server = _IDLE_SERVERS.pop()
    except IndexError:
        server = _ForkServer()
    try:
        message = server.receive((calls, at_once, seconds))
        while isinstance(message, _Progress):
            for label, result in message.new_results.items():
                on_result(label, result)
            on_progress(message.fraction, message.running)
            message = server.receive()
    except BaseException:
        server.end()
        raise
    if message is None:
        server.end()
        failure = Failed(
            reason=f"The server of the worker processes {_ending(server.process.returncode)}."
        )
        return dict.fromkeys(calls, failure)
    _IDLE_SERVERS.append(server)
    results: dict[str, Any] = message
    return results


def _serve() -> None:
    """Receive calls and send their results until the caller closes the connection.

    This function runs in the server process.  It reads the key of the connection from standard
    input, and prints the address of the connection.
    """
    key = sys.stdin.buffer.read(_KEY_BYTES)
    with Listener(authkey=key) as listener:
        print(listener.address, flush=True)
        connection = listener.accept()
    # the caller reads only the address from standard output; all later output goes to standard
    # error
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # imported before the forks, because most strategy searches use this module
    import scipy.optimize  # noqa: F401

    with suppress(EOFError, OSError):
        while True:
            calls, at_once, seconds = connection.recv()
            connection.send(_run_calls(calls, at_once, seconds, connection))


def _run_calls(
    calls: Mapping[str, Call], at_once: int, seconds: float, caller: Connection
) -> dict[str, Any]:
    """Run the calls of one request, at most ``at_once`` at a time, and return their results by
    label.

    While calls run, messages of the type `_Progress` are sent to the caller.
    """
    forks = "fork" in multiprocessing.get_all_start_methods()
    # forked processes share the modules that their parent has imported
    if forks:
        for name in PRELOADED:
            import_module(name)
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    waiting = list(calls)
    # key: receiving end of the pipe from a process; value: label of its call, process, start time
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
            caller.send(
                _Progress(
                    fraction=n_sent / len(calls),
                    running=[label for label, _, _ in running.values()],
                    new_results=new_results,
                )
            )
            for ready in wait([*running, caller], timeout=PROGRESS_INTERVAL_S):
                if ready is caller:
                    # the caller sends nothing while it waits, so its connection is ready only if
                    # it was closed
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
    """Return the predicate of a sentence that says how a process with this exit code ended."""
    if code == -signal.SIGTERM or code is None or code >= 0:
        return f"ended with exit code {code} and without a result"
    is_killed = code == -getattr(signal, "SIGKILL", 9)
    cause = "; the system does this when memory runs out" if is_killed else ""
    return f"was ended by signal {-code} without a result{cause}"


def _run_call(sender: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Run one call in a worker process, and send its result, or `Failed` if it raised an
    exception."""
    try:
        result = function(*arguments)
    except Exception as error:
        result = Failed(reason=f"It failed with {type(error).__name__}: {error}")
    sender.send(result)
    sender.close()
