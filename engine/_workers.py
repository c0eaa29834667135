"""Worker pool: workers never re-import `__main__`, end with the parent and report failures.

The usual pools run the caller's script once more in every process, unless it guards its main part.  Here loky starts a
keeper, without that script; it has the engine imported once, and forks for every call, so that a call starts in
milliseconds and its memory is its own.  Asker and keeper share one line: a hang-up ends the keeper and its calls.
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
PRELOADED = ("scipy.optimize", "scipy.sparse.linalg", "joblib")  # used by most plans, and slow to import
EVERY = 0.2  # seconds between two words of a keeper, which is also how fast a cancel is heard


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Why a call has no result, in words."""

    reason: str


def peak_megabytes() -> float:
    """Return the most memory that this process held so far, in MiB; not a number where the system does not tell.

    Linux hands the largest resident set of a process on to the programs that it starts, so it is asked for the peak of
    this address space instead.
    """
    status = Path("/proc/self/status")
    text = status.read_text(encoding="ascii", errors="replace") if status.exists() else ""
    if found := re.search(r"^VmHWM:\s*(\d+) kB$", text, flags=re.MULTILINE):
        return int(found[1]) / 2**10
    try:
        import resource
    except ImportError:  # only POSIX has it
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


class _Keeper:
    def __init__(self) -> None:
        from loky.backend import get_context

        context: Any = get_context("loky")
        self.line, other = context.Pipe()
        self.process = context.Process(target=_keep, args=(other,), name="keeper")
        self.process.start()
        other.close()

    def told(self, question: Any = None) -> Any:
        """What the keeper says next, after a question if there is one; nothing when it is gone."""
        with suppress(EOFError, OSError):
            if question is not None:
                self.line.send(question)
            return self.line.recv()
        return None

    def end(self) -> None:
        self.line.close()
        self.process.join()


_IDLE: list[_Keeper] = []  # keepers that wait for the next question; lists are safe to share among threads
_LEAVING = threading.Event()  # Python is about to wait for its children, also for keepers that threads still listen to


@atexit.register
def _end_all() -> None:
    """Hang up, before Python waits for its children; a thread that listens hangs up at the next word."""
    _LEAVING.set()
    while _IDLE:
        _IDLE.pop().end()


def call_apart(
    calls: Mapping[str, Call],
    *,
    at_once: int,
    seconds: float,
    hear: Callable[[float, list[str]], object],
    arrived: Callable[[str, Any], object] = lambda label, result: None,
) -> dict[str, Any]:
    """Return what each call returned, or `Failed`, by its label.

    Parameters
    ----------
    calls : functions of modules, with arguments that can be pickled.
    at_once : how many run at the same time.
    seconds : what one may take before it is ended.
    hear : called some times a second with the fraction that ended and the labels of those that run; what it raises
        ends all of them.
    arrived : called with a label and its result as soon as it is there, before the others are.

    Raises
    ------
    Cancelled : Python ends, while a thread waits here for results.

    >>> call_apart({"five": (len, ("abcde",))}, at_once=1, seconds=60.0, hear=lambda fraction, labels: None)
    {'five': 5}
    """
    if not calls:
        return {}
    _stay()
    try:
        keeper = _IDLE.pop()
    except IndexError:
        keeper = _Keeper()
    try:
        told = keeper.told((calls, at_once, seconds))
        while told and told[0] == "running":
            for label, result in told[3].items():
                arrived(label, result)
            hear(told[1], told[2])
            _stay()
            told = keeper.told()
    except BaseException:
        keeper.end()
        raise
    if not told:
        keeper.end()
        why = Failed(reason=f"The process that starts the others {_ending(keeper.process.exitcode)}.")
        return dict.fromkeys(calls, why)
    _IDLE.append(keeper)
    if _LEAVING.is_set():
        _end_all()
    found: dict[str, Any] = told[1]
    return found


def _stay() -> None:
    """Raise where Python is ending."""
    if _LEAVING.is_set():
        raise Cancelled("Python is ending.")


def _keep(line: Connection) -> None:
    """Answer questions until the asker hangs up; runs in the keeper."""
    import scipy.optimize  # noqa: F401  most searches need it: loaded here, it is there in every fork

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key press reaches every process; the asker decides
    with suppress(EOFError, OSError):
        while True:
            calls, at_once, seconds = line.recv()
            line.send(("done", _answered(calls, at_once, seconds, line)))


def _answered(calls: Mapping[str, Call], at_once: int, seconds: float, line: Connection) -> dict[str, Any]:
    from loky.backend import get_context

    forks = "fork" in multiprocessing.get_all_start_methods()
    if forks:  # once here, and not again in every process
        for name in PRELOADED:
            import_module(name)
    context: Any = multiprocessing.get_context("fork") if forks else get_context("loky")
    waiting = list(calls)
    running: dict[Any, tuple[str, Any, float]] = {}
    results: dict[str, Any] = {}
    told = 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                label = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_called, args=(sender, *calls[label]), daemon=True)
                process.start()
                sender.close()
                running[receiver] = label, process, time.monotonic()
            fresh = dict(list(results.items())[told:])
            told = len(results)
            line.send(("running", told / len(calls), [label for label, _, _ in running.values()], fresh))
            for ready in wait([*running, line], timeout=EVERY):
                if ready is line:
                    raise EOFError  # the asker says nothing while it waits, so this is its end
                label, process, _ = running.pop(ready)
                results[label] = _heard(ready, process)
            for receiver, (label, process, started) in list(running.items()):
                if time.monotonic() - started > seconds:
                    process.kill()
                    del running[receiver]
                    results[label] = Failed(reason=f"It took more than {seconds:.0f} s and was ended.")
    finally:
        for _, process, _ in running.values():
            process.kill()
            process.join()
    return results


def _heard(receiver: Any, process: Any) -> Any:
    try:
        found = receiver.recv()
    except (EOFError, OSError):
        process.join()
        return Failed(reason=f"Its process {_ending(process.exitcode)}.")
    process.join()
    return found


def _ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code == -signal.SIGTERM or code is None or code >= 0:
        return f"ended with exit code {code} and without a result"
    memory = " which systems do when memory runs out;" if code == -getattr(signal, "SIGKILL", 9) else ""
    return f"was ended by signal {-code},{memory} without a result"


def _called(sender: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Do one call and send what came of it; runs in a process of its own."""
    try:
        found = function(*arguments)
    except Exception as error:
        found = Failed(reason=f"It failed with {type(error).__name__}: {error}")
    sender.send(found)
    sender.close()
