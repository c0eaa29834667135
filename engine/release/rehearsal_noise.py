"""Reproducible random bits for rehearsals, from a seed; no release uses them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from engine._validation import whole
from engine.errors import PlanError
from engine.release.noise import Entropy

MAX_SEED = 2**63 - 1


def rehearsal_bits(seed: int | None, *purpose: str) -> Entropy | None:
    """Return the source of bits of a rehearsal; None, for those of the operating system, without a seed.

    SHAKE-256 of the seed, of what is measured, and of the number of the request: the same in every process, and
    independent for every plan and step.

    Raises
    ------
    PlanError : the seed is no whole number from 0 to 2^63 - 1.

    >>> one, again, other = rehearsal_bits(1, "a"), rehearsal_bits(1, "a"), rehearsal_bits(1, "b")
    >>> first = one(8)
    >>> first == again(8), first == one(8), first == other(8)
    (True, False, False)
    """
    if seed is None:
        return None
    number = whole("seed", seed, 0, MAX_SEED, error=PlanError)
    start, requests = json.dumps(["rehearsal", number, *purpose]).encode(), 0

    def stream(size: int) -> bytes:
        nonlocal requests
        requests += 1
        return hashlib.shake_256(hashlib.sha256(start).digest() + requests.to_bytes(8, "big")).digest(size)

    return stream


def refuse_seed(seed: Any) -> None:
    """Raise PlanError for a release that is given a seed."""
    if seed is not None:
        raise PlanError(
            "A release was given a seed. Noise from a known seed protects nobody. Leave the seed out; it is for "
            "rehearsals."
        )
