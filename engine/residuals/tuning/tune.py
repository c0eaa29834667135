"""Tuned splits with a cache, warm-started from similar workloads.

An equal workload in the same process gets the cached split.  For all others cached numbers are
initial values: the result is compared with the published split and is never worse.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from engine._arrays import Array
from engine.progress import Listener
from engine.residuals.cache import SolveCache
from engine.residuals.decomposition import Factor, Subworkload
from engine.residuals.split import UNIFORM, Split
from engine.residuals.strategy_search import eigen_seconds, step_seconds
from engine.residuals.tuning.center_objective import too_slow
from engine.residuals.tuning.centers import tuned_centers
from engine.residuals.tuning.complements import (
    ComplementProblem,
    affordable,
    asks_products,
    can_tune,
    complement_seconds,
    cyclic,
    split_of,
    tuned_complements,
)
from engine.residuals.tuning.limits import Allowance
from engine.workload import Workload

# part of every key
FORMAT = "split/2"
# expected seconds and steps of the search for centers, per space with a Gram that is not a product
# of single attributes
MIXED_SPACE_SECONDS, MIXED_SPACE_STEPS = 0.2, 60
# additional seconds per space if every step recomputes rows on several attributes
JOINT_ROWS_SECONDS = 0.4
# expected steps of the same search for workloads whose complements cannot be tuned within the
# limits
UNTUNED_PAIR_STEPS = 2_500
# expected steps of the search for the center of an attribute of a separable workload
SEPARABLE_STEPS = 40


class SplitMemory:
    """Cached tuned splits of one workload, and of workloads on the same attributes.

    Parameters
    ----------
    workload : the workload.
    cache : storage of the splits, None for no storage.
    allowance : limits of memory and time of a search.
    """

    def __init__(self, workload: Workload, cache: SolveCache | None, allowance: Allowance) -> None:
        self.workload, self.cache, self.allowance = workload, cache, allowance
        self.sizes = [a.size for a in workload.schema.attributes]

    @cached_property
    def similar(self) -> str:
        """Identity of the attributes."""
        exact = tuple(one.attributes for one in self.workload.schema.invariants)
        return _key("similar", (FORMAT, self.workload.schema.names, tuple(self.sizes), *exact))

    @cached_property
    def exact(self) -> str:
        """Identity of the workload."""
        return _key("exact", self.similar, [(g.attributes, g.key, g.weight) for g in self.workload.groups])

    def centers(self, watch: Listener) -> Split:
        """Return the split of tuned centers; see `engine.residuals.tuning.centers`."""
        if cyclic(self.workload):
            return UNIFORM  # hashing a hundred thousand groups for the cache takes longer than planning
        cuts = np.cumsum(self.sizes)
        cached_values, is_exact = self._recall(int(cuts[-1]) if len(cuts) else 0, "centers")
        start: dict[str, Array] = {}
        if cached_values is not None:
            for name, pi in zip(self.workload.schema.names, np.split(cached_values, cuts[:-1]), strict=True):
                # NaN marks a uniform center
                if np.isfinite(pi).all() and abs(float(pi.sum()) - 1.0) < 1e-9:
                    start[name] = pi
        if is_exact:
            return Split(centers=start)
        tuned = tuned_centers(self.workload, watch, start, self.allowance)
        vectors = [tuned.get(a.name, np.full(a.size, np.nan)) for a in self.workload.schema.attributes]
        self._store(np.concatenate(vectors), "centers")
        return Split(centers=tuned)

    def complements(self, watch: Listener) -> Split:
        """Return the split of tuned complements and centers; see `complements`."""
        cached_values, is_exact = self._recall(None, "complements")
        if is_exact and cached_values is not None:
            if not cached_values.any():
                return UNIFORM
            centers, complements = split_of(ComplementProblem(self.workload, watch), cached_values)
            return Split(centers=centers, complements=complements)

        def start(length: int) -> Array | None:
            fits = cached_values is not None and len(cached_values) == length and np.isfinite(cached_values).all()
            return cached_values if fits else None

        centers, complements, x = tuned_complements(self.workload, watch, start, self.allowance)
        self._store(x, "complements")
        return Split(centers=centers, complements=complements)

    def _recall(self, length: int | None, kind: str) -> tuple[Array | None, bool]:
        """Return cached numbers, and whether this process computed them for this workload.

        The numbers are those of this workload or else of a similar one.
        """
        if self.cache is None:
            return None, False
        for key, is_same_workload in ((self.exact, True), (self.similar, False)):
            values, is_from_process = self.cache.numbers(key + kind)
            # numbers from a file or of a similar workload are initial values; only this process's
            # result needs no search
            if values is not None and (length is None or len(values) == length):
                return values, is_from_process and is_same_workload
        return None, False

    def _store(self, values: Array, kind: str) -> None:
        # a result that a limit cut short must not replace a search with more time
        if self.cache is not None and not self.allowance.stopped:
            self.cache.keep_numbers(self.exact + kind, values)
            self.cache.keep_numbers(self.similar + kind, values)


def ways_to_split(workload: Workload, allowance: Allowance) -> tuple[bool, bool]:
    """Return whether complements are tuned, and whether centers are."""
    tunes_complements = can_tune(workload) and affordable(workload, allowance)
    return tunes_complements, not tunes_complements or asks_products(workload)


def split_seconds(
    workload: Workload, subs: Sequence[Subworkload], factors: Sequence[Factor], allowance: Allowance
) -> float:
    """Return the expected time of the search for a split, in seconds on one idle core.

    Spaces with one product of single attributes have a closed-form iteration; large spaces with
    other Grams are solved term by term.
    """
    joint, products = ways_to_split(workload, allowance)
    seconds = complement_seconds(workload) if joint else 0.0
    is_untuned_pair = not joint and can_tune(workload)
    for sub in subs if products else ():
        has_joint_factor = any(len(axes) > 1 for term in sub.terms for axes, _ in term.factors)
        if sub.mixed:
            seconds += MIXED_SPACE_SECONDS + (JOINT_ROWS_SECONDS if has_joint_factor else 0.0)
            steps = (
                UNTUNED_PAIR_STEPS
                if is_untuned_pair and has_joint_factor
                else 0
                if too_slow(sub.sizes)
                else MIXED_SPACE_STEPS
            )
            seconds += steps * _step(sub, factors)
        elif len(sub.sizes) == 1:
            seconds += SEPARABLE_STEPS * eigen_seconds(sub.dimension)
    return seconds


def _step(sub: Subworkload, factors: Sequence[Factor]) -> float:
    """Return the expected time of one evaluation, in seconds.

    It solves every factor of a product, or all rows if these are few.

    Factors of full rank are stored as a Gram without rows.
    """
    used = [(axes, factors[k]) for term in sub.terms for axes, k in term.factors]
    if len(sub.terms) == 1:
        return math.fsum(step_seconds(f.rank, math.prod(sub.sizes[a] for a in axes)) for axes, f in used)
    rank = sum(f.rank for _, f in used) if all(f.low_rank for _, f in used) else sub.dimension
    return step_seconds(min(rank, sub.dimension), math.prod(sub.sizes))


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
