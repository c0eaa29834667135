"""Thread limits for linear-algebra libraries, and a map over threads."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

# Matrices up to this order use one thread.
MAX_SINGLE_THREAD_ORDER = 2500
# `map_in_threads` uses several threads if the longest argument has at least this length.
MIN_LENGTH_FOR_THREADS = 100

_SINGLE_THREADED = ContextVar("single_threaded", default=False)
_In = TypeVar("_In")
_Out = TypeVar("_Out")


def cores() -> int:
    """Return the number of cores that this process may use, which a container may limit.

    >>> cores() >= 1
    True
    """
    # imported here because the import takes longer than a short command
    import joblib

    return int(joblib.cpu_count())


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1)


def map_in_threads(function: Callable[[_In], _Out], arguments: Sequence[_In]) -> list[_Out]:
    """Return the results of a function for each of several arguments, in order.

    The calls run in several threads if there are several arguments and the longest of them has at
    least `MIN_LENGTH_FOR_THREADS` elements, except inside `single_threaded`.

    >>> map_in_threads(len, ["ab", "c"])
    [2, 1]
    """
    if len(arguments) > 1 and not _SINGLE_THREADED.get():
        longest = max(len(argument) for argument in arguments)  # type: ignore[arg-type]
        if longest >= MIN_LENGTH_FOR_THREADS:
            return list(_pool().map(function, arguments))
    return [function(argument) for argument in arguments]


@contextmanager
def single_threaded() -> Iterator[None]:
    """Make `map_in_threads` run its calls one after the other inside the ``with`` block.

    Use this context while other work occupies all cores.

    >>> with single_threaded():
    ...     map_in_threads(len, ["ab", "c"])
    [2, 1]
    """
    token = _SINGLE_THREADED.set(True)
    try:
        yield
    finally:
        _SINGLE_THREADED.reset(token)


class _ThreadLimit:
    """Contexts that limit the threads of the linear-algebra libraries of this process.

    `active` opens a context of one of three kinds.  The libraries use one thread while a context
    "every core" is open.  They also use one thread while a context "small" and no context "large"
    is open.  Otherwise they use as many threads as before the first context was opened.  Open
    contexts are counted by kind, because several Python threads open and close contexts in any
    order.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.in_use: Counter[str] = Counter()
        self.initial_threads: list[int] = []
        self.is_single = False

    @cached_property
    def libraries(self) -> list[Any]:
        # libraries that are loaded later would not be limited, so SciPy's linear algebra is loaded
        # first
        import scipy.linalg  # noqa: F401

        return list(ThreadpoolController().select(user_api="blas").lib_controllers)

    @contextmanager
    def active(self, kind: str) -> Iterator[None]:
        """Count one more active context of a kind, and set the number of threads accordingly.

        Parameters
        ----------
        kind : "small" or "large" for the order of the matrices in the block, or "every core" if
            the caller uses all cores by other means.
        """
        self._count(kind, 1)
        try:
            yield
        finally:
            self._count(kind, -1)

    def _count(self, kind: str, change: int) -> None:
        with self.lock:
            # The first context stores the present numbers of threads.  They are restored whenever
            # the open contexts no longer require a single thread.
            if not self.in_use.total():
                self.initial_threads = [library.num_threads for library in self.libraries]
            self.in_use[kind] += change
            is_single = bool(
                self.in_use["every core"] or (self.in_use["small"] and not self.in_use["large"])
            )
            if is_single != self.is_single:
                self.is_single = is_single
                for library, threads in zip(self.libraries, self.initial_threads, strict=True):
                    library.set_num_threads(1 if is_single else threads)

    def renew_lock(self) -> None:
        """Create a new lock after a fork: the thread that held the old one is not in the child."""
        self.lock = threading.Lock()


_THREAD_LIMIT = _ThreadLimit()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_THREAD_LIMIT.renew_lock)


def threads_for(order: int) -> AbstractContextManager[None]:
    """Return a context that sets the number of threads for matrices of this order.

    Matrices up to the order `MAX_SINGLE_THREAD_ORDER` get one thread: more threads gain nothing,
    and on a busy machine threads that wait for each other can be a hundred times slower.  Larger
    matrices get all threads, also inside a context for smaller matrices, but not inside
    `one_thread`.

    >>> with threads_for(99):
    ...     pass
    """
    return _THREAD_LIMIT.active("small" if order <= MAX_SINGLE_THREAD_ORDER else "large")


def one_thread() -> AbstractContextManager[None]:
    """Return a context in which linear algebra uses one thread, for callers that use every core.

    >>> with one_thread(), threads_for(9999):
    ...     pass
    """
    return _THREAD_LIMIT.active("every core")
