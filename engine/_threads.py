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

SMALL = 2500  # matrices of this order and below stay on one thread
WORTH = 100  # arrays of this length and above are worth a thread of their own

_ALONE = ContextVar("alone", default=False)
_In = TypeVar("_In")
_Out = TypeVar("_Out")


def cores() -> int:
    """Return how many cores this process may use: in a container, or where it is pinned, fewer than there are.

    >>> cores() >= 1
    True
    """
    import loky  # which takes as long as many a command

    return int(loky.cpu_count())


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1)


def side_by_side(function: Callable[[_In], _Out], parts: Sequence[_In]) -> list[_Out]:
    """Return the function of every part, on all cores when there are several large parts, in their order.

    >>> side_by_side(len, ["ab", "c"])
    [2, 1]
    """
    if len(parts) > 1 and not _ALONE.get() and max(len(p) for p in parts) >= WORTH:  # type: ignore[arg-type]
        return list(_pool().map(function, parts))
    return [function(p) for p in parts]


@contextmanager
def alone() -> Iterator[None]:
    """Keep `side_by_side` on this thread, for work that has other cores busy already.

    >>> with alone():
    ...     side_by_side(len, ["ab", "c"])
    [2, 1]
    """
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


class _Shared:
    """How many threads linear algebra has, which all threads of a process share, from who is at work in it.

    Whoever has small matrices wants one; while somebody has large ones there are as many as there were at first, unless
    somebody has every core busy already.  Counted, not put back as found: threads come and go in any order.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.at_work: Counter[str] = Counter()
        self.usual: list[int] = []
        self.one = False

    @cached_property
    def libraries(self) -> list[Any]:
        import scipy.linalg  # noqa: F401  what is loaded later, its own linear algebra included, would not be held back

        return list(ThreadpoolController().select(user_api="blas").lib_controllers)

    @contextmanager
    def held(self, kind: str) -> Iterator[None]:
        """Count somebody at work in."""
        self._count(kind, 1)
        try:
            yield
        finally:
            self._count(kind, -1)

    def _count(self, kind: str, more: int) -> None:
        with self.lock:
            if not self.at_work.total():  # whoever calls the engine may have set something else since
                self.usual = [library.num_threads for library in self.libraries]
            self.at_work[kind] += more
            one = bool(self.at_work["every core"] or (self.at_work["small"] and not self.at_work["large"]))
            if one != self.one:
                self.one = one
                for library, threads in zip(self.libraries, self.usual, strict=True):
                    library.set_num_threads(1 if one else threads)

    def forked(self) -> None:
        """Give a child a lock of its own, which nobody who stayed behind holds."""
        self.lock = threading.Lock()


_SHARED = _Shared()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SHARED.forked)


def threads_for(order: int) -> AbstractContextManager[None]:
    """Return a context for linear algebra with matrices of this order.

    Small ones gain nothing from a second thread, and on a busy machine threads that wait for each other cost a
    hundredfold.  Large ones have their threads also inside the context of small ones.

    >>> with threads_for(99):
    ...     pass
    """
    return _SHARED.held("small" if order <= SMALL else "large")


def one_thread() -> AbstractContextManager[None]:
    """Return a context in which linear algebra has one thread whatever the matrices: every core is busy already.

    >>> with one_thread(), threads_for(9999):
    ...     pass
    """
    return _SHARED.held("every core")
