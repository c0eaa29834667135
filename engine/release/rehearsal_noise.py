"""Reproducible random bits for the noise of rehearsals; releases never use them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from engine._validation import check_int
from engine.errors import PlanError
from engine.release.noise import Entropy

MAX_SEED = 2**63 - 1


def rehearsal_bits(seed: int | None, *purpose: str) -> Entropy | None:
    """Return a function that takes a number n and returns n random bytes for a rehearsal.

    Without a seed the result is None, which means random bits of the operating system.  With a seed
    the bytes are SHAKE-256 of the seed, of ``purpose`` (such as the step and the hash of the plan)
    and of the running number of the call.  They are the same in every process, and differ between
    purposes.

    Raises
    ------
    PlanError
        The seed is not an integer from 0 to 2^63 - 1.

    >>> one, again, other = rehearsal_bits(1, "a"), rehearsal_bits(1, "a"), rehearsal_bits(1, "b")
    >>> first = one(8)
    >>> first == again(8), first == one(8), first == other(8)
    (True, False, False)
    """
    if seed is None:
        return None
    number = check_int("seed", seed, 0, MAX_SEED, error=PlanError)
    start = json.dumps(["rehearsal", number, *purpose]).encode()
    requests = 0

    def stream(size: int) -> bytes:
        nonlocal requests
        requests += 1
        return hashlib.shake_256(
            hashlib.sha256(start).digest() + requests.to_bytes(8, "big")
        ).digest(size)

    return stream


def refuse_seed(seed: Any) -> None:
    """Raise PlanError unless ``seed`` is None, because a release takes no seed."""
    if seed is not None:
        raise PlanError(
            "A release takes no seed, because noise from a known seed does not protect the records."
            " Leave out the seed, or use it in a rehearsal."
        )
