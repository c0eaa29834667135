"""Tuned splits, warm-started from earlier workloads.

What is remembered is a hint.  The same request in the same process gets the same split; anything else starts from what
is remembered, is compared with the published split, and is never worse than that.
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

FORMAT = "split/2"  # part of every key
SUM_SECONDS, SUM_STEPS = 0.2, 60  # of the search for centers, a space that is asked no product; for forecasts only
ROWS_SECONDS = 0.4  # more where rows on several attributes are made anew in every step
LONG_STEPS = 2_500  # of the same where complements would be searched for, and are not; for forecasts only
ALONE_STEPS = 40  # of the search for the center of an attribute that is asked in one way; for forecasts only


class SplitMemory:
    """The tuned splits of one workload and of those on the same attributes.

    Parameters
    ----------
    workload : what is asked.
    cache : where splits are kept, None for nowhere.
    allowance : what a search may take.
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
        """Identity of the request."""
        return _key("exact", self.similar, [(g.attributes, g.key, g.weight) for g in self.workload.groups])

    def centers(self, watch: Listener) -> Split:
        """Return tuned centers; see `centers`."""
        if cyclic(self.workload):
            return UNIFORM  # to name a hundred thousand groups for the cache takes longer than to plan them
        cuts = np.cumsum(self.sizes)
        known, own = self._recall(int(cuts[-1]) if len(cuts) else 0, "centers")
        start: dict[str, Array] = {}
        if known is not None:
            for name, pi in zip(self.workload.schema.names, np.split(known, cuts[:-1]), strict=True):
                # no number marks a center that stays uniform
                if np.isfinite(pi).all() and abs(float(pi.sum()) - 1.0) < 1e-9:
                    start[name] = pi
        if own:
            return Split(centers=start)
        found = tuned_centers(self.workload, watch, start, self.allowance)
        vectors = [found.get(a.name, np.full(a.size, np.nan)) for a in self.workload.schema.attributes]
        self._keep(np.concatenate(vectors), "centers")
        return Split(centers=found)

    def complements(self, watch: Listener) -> Split:
        """Return tuned complements and centers; see `engine.residuals.tuning.complements`."""
        known, own = self._recall(None, "complements")
        if own and known is not None:
            if not known.any():
                return UNIFORM
            centers, complements = split_of(ComplementProblem(self.workload, watch), known)
            return Split(centers=centers, complements=complements)

        def start(length: int) -> Array | None:
            fits = known is not None and len(known) == length and np.isfinite(known).all()
            return known if fits else None

        centers, complements, x = tuned_complements(self.workload, watch, start, self.allowance)
        self._keep(x, "complements")
        return Split(centers=centers, complements=complements)

    def _recall(self, length: int | None, kind: str) -> tuple[Array | None, bool]:
        """Return numbers of this request or of a similar one, and whether this process found them for this request."""
        if self.cache is None:
            return None, False
        for key, same in ((self.exact, True), (self.similar, False)):
            values, own = self.cache.numbers(key + kind)
            # a file, or a similar request, is a place to start from; only what was found here for this needs no search
            if values is not None and (length is None or len(values) == length):
                return values, own and same
        return None, False

    def _keep(self, values: Array, kind: str) -> None:
        # what a limit ended must not stand for the answer where there is more time
        if self.cache is not None and not self.allowance.stopped:
            self.cache.keep_numbers(self.exact + kind, values)
            self.cache.keep_numbers(self.similar + kind, values)


def ways_to_split(workload: Workload, allowance: Allowance) -> tuple[bool, bool]:
    """Return whether complements are searched for, and whether centers are."""
    joint = can_tune(workload) and affordable(workload, allowance)
    return joint, not joint or asks_products(workload)


def split_seconds(
    workload: Workload, subs: Sequence[Subworkload], factors: Sequence[Factor], allowance: Allowance
) -> float:
    """Return what the search for a split takes, in seconds on one idle core, for forecasts.

    Spaces asked by one product of single attributes have a short way; of the others, slow ones go term by term.
    """
    joint, products = ways_to_split(workload, allowance)
    seconds = complement_seconds(workload) if joint else 0.0
    long = not joint and can_tune(workload)
    for sub in subs if products else ():
        together = any(len(axes) > 1 for term in sub.terms for axes, _ in term.factors)
        if sub.mixed:
            seconds += SUM_SECONDS + (ROWS_SECONDS if together else 0.0)
            steps = LONG_STEPS if long and together else 0 if too_slow(sub.sizes) else SUM_STEPS
            seconds += steps * _step(sub, factors)
        elif len(sub.sizes) == 1:
            seconds += ALONE_STEPS * eigen_seconds(sub.dimension)
    return seconds


def _step(sub: Subworkload, factors: Sequence[Factor]) -> float:
    """Seconds of one evaluation: of every factor by itself where they are one product, of all rows where these are few.

    Factors that ask for every class coordinate have a Gram and no rows.
    """
    used = [(axes, factors[k]) for term in sub.terms for axes, k in term.factors]
    if len(sub.terms) == 1:
        return math.fsum(step_seconds(f.rank, math.prod(sub.sizes[a] for a in axes)) for axes, f in used)
    rank = sum(f.rank for _, f in used) if all(f.low_rank for _, f in used) else sub.dimension
    return step_seconds(min(rank, sub.dimension), math.prod(sub.sizes))


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
