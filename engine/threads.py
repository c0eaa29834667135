"""How many threads linear algebra may use."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

SMALL = 600  # matrices of this order and below stay on one thread


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def threads_for(order: int) -> AbstractContextManager[Any]:
    """Return a context for linear algebra with matrices of this order.

    Small ones gain nothing from a second thread, and on a busy machine threads that wait for each other cost a
    hundredfold.

    >>> with threads_for(99):
    ...     pass
    """
    return _blas().limit(limits=1, user_api="blas") if order <= SMALL else nullcontext()
