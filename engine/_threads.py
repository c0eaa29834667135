"""Thread limits of linear-algebra libraries and a thread map."""

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
# Arrays from this length on are worth a separate thread.
MIN_LENGTH_PER_THREAD = 100

_ALONE = ContextVar("alone", default=False)
_In = TypeVar("_In")
_Out = TypeVar("_Out")


def cores() -> int:
    """Return the number of cores available to this process, for example in a container.

    >>> cores() >= 1
    True
    """
    # imported here because the import takes as long as many a command
    import loky

    return int(loky.cpu_count())


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1)


def map_in_threads(function: Callable[[_In], _Out], parts: Sequence[_In]) -> list[_Out]:
    """Return the function of every part, in order; on all cores if several parts are large.

    >>> map_in_threads(len, ["ab", "c"])
    [2, 1]
    """
    if len(parts) > 1 and not _ALONE.get() and max(len(p) for p in parts) >= MIN_LENGTH_PER_THREAD:  # type: ignore[arg-type]
        return list(_pool().map(function, parts))
    return [function(p) for p in parts]


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run `map_in_threads` on this thread only, for work that already uses the other cores.

    >>> with single_threaded():
    ...     map_in_threads(len, ["ab", "c"])
    [2, 1]
    """
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


class _Shared:
    """Thread limit of linear algebra, which all threads of a process share.

    The limit depends on the contexts in use.  While only small matrices are in use it is one
    thread; while large ones are in use it is the initial number; where all cores are busy it is one
    again. Contexts are counted, not restored, because threads enter and leave them in any order.
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
    def held(self, kind: str) -> Iterator[None]:
        """Count a context of this kind while it is in use."""
        self._count(kind, 1)
        try:
            yield
        finally:
            self._count(kind, -1)

    def _count(self, kind: str, change: int) -> None:
        with self.lock:
            # outside all contexts the caller may have set other limits
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

    def forked(self) -> None:
        """Create a new lock in a child process, because no thread of the child releases the old
        one.
        """
        self.lock = threading.Lock()


_SHARED = _Shared()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SHARED.forked)


def threads_for(order: int) -> AbstractContextManager[None]:
    """Return a context for linear algebra with matrices of this order.

    Small matrices gain nothing from a second thread, and on a busy machine threads that wait for
    each other can make them a hundred times slower.  Large matrices use all threads, also inside a
    context for small ones.

    >>> with threads_for(99):
    ...     pass
    """
    return _SHARED.held("small" if order <= MAX_SINGLE_THREAD_ORDER else "large")


def one_thread() -> AbstractContextManager[None]:
    """Return a context in which linear algebra uses one thread, because every core is busy already.

    >>> with one_thread(), threads_for(9999):
    ...     pass
    """
    return _SHARED.held("every core")
