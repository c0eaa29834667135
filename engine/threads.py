"""How many threads linear algebra may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

SMALL = 2500  # matrices of this order and below stay on one thread
WORTH = 100  # arrays of this length and above are worth a thread of their own

_ALONE = ContextVar("alone", default=False)
_In = TypeVar("_In")
_Out = TypeVar("_Out")


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


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  what is loaded later, its own linear algebra included, would not be held back

    return ThreadpoolController().select(user_api="blas")


def threads_for(order: int) -> AbstractContextManager[Any]:
    """Return a context for linear algebra with matrices of this order.

    Small ones gain nothing from a second thread, and on a busy machine threads that wait for each other cost a
    hundredfold.  Where there is one thread anyway, as inside another such context, nothing is set: that costs more than
    a small product.

    >>> with threads_for(99):
    ...     pass
    """
    one = order > SMALL or all(library.num_threads == 1 for library in _blas().lib_controllers)
    limited: AbstractContextManager[Any] = nullcontext() if one else _blas().limit(limits=1)
    return limited
