"""Dual weights that the searches of one planning call share as initial weights.

A plan with tuned centers solves the same windows several times: for uniform centers, in every round
of the search for centers, and for the plan with these centers.  The optimal dual weights of these
problems are close, so that each search starts at the weights of the last one.  Weights are not
shared between planning calls, so that a plan does not depend on earlier plans.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from contextvars import ContextVar

from engine._arrays import Array

_RECENT: ContextVar[dict[Hashable, Array] | None] = ContextVar("recent weights", default=None)


@contextlib.contextmanager
def shared_weights() -> Iterator[None]:
    """Return a context in which all calls of `recent_weights` return the same dictionary.

    >>> with shared_weights():
    ...     recent_weights()["windows"] = [0.5, 0.5]
    ...     recent_weights()
    {'windows': [0.5, 0.5]}
    >>> recent_weights()
    {}
    """
    token = _RECENT.set({})
    try:
        yield
    finally:
        _RECENT.reset(token)


def recent_weights() -> dict[Hashable, Array]:
    """Return the mapping from queries to the last dual weights of their search.

    Outside the context of `shared_weights`, the mapping is new and empty.
    """
    weights = _RECENT.get()
    return {} if weights is None else weights
