"""Planted bugs in releases, and a lower bound on rho from answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.special import betaincinv, ndtri

from engine._arrays import Array
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.records.marginals import _Tally
from engine.release import Measurement
from engine.release import add_noise as grid
from engine.workload import Attribute, Schema, Workload

CONFIDENCE = 0.999
SCHEMA = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 2)])
WITHOUT = pd.DataFrame({"a": [0, 1, 2, 2, 1, 0, 0], "b": [0, 0, 1, 0, 1, 1, 0]})
WITH = pd.concat([WITHOUT, pd.DataFrame({"a": [2], "b": [1]})], ignore_index=True)
Release = Callable[[pd.DataFrame], Measurement]


def audited_plan(workload: Workload) -> Plan:
    """Return a plan for the workload with mu = 2."""
    return plan(workload, Budget(pcost=4.0))


@contextmanager
def halve_noise_scale() -> Iterator[None]:
    """Plant a bug: releases draw noise of half the stated scale."""
    real = grid.discrete_gaussian
    with patch.object(
        grid,
        "discrete_gaussian",
        lambda *, variance, **options: real(variance=variance // 4, **options),
    ):
        yield


@contextmanager
def reuse_noise_of_block() -> Iterator[None]:
    """Plant a bug: two blocks of measurements of equal size get the same noise, rescaled."""
    # ``earlier`` maps a number of measurements to (variance, noise) of a block.  The entry is
    # removed when another block with this number of measurements has used its noise.
    real, earlier = grid.discrete_gaussian, dict[int, tuple[float, Array]]()

    def draw_or_reuse(*, variance: int, size: int, **options: Any) -> Array:
        if size in earlier:
            earlier_variance, noise = earlier.pop(size)
            return np.rint(noise * (variance / earlier_variance) ** 0.5).astype(np.int64)
        earlier[size] = (float(variance), real(variance=variance, size=size, **options))
        return earlier[size][1]

    with patch.object(grid, "discrete_gaussian", draw_or_reuse):
        yield


@contextmanager
def count_last_record_twice() -> Iterator[None]:
    """Plant a bug: the last record of every batch of records is counted twice."""
    real = _Tally._accepted

    def repeat_last(self: _Tally, columns: list[Array], rows: int) -> list[Array]:
        return [np.append(codes, codes[-1:]) for codes in real(self, columns, rows)]

    with patch.object(_Tally, "_accepted", repeat_last):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "no bug": nullcontext,
    "noise of half the scale": halve_noise_scale,
    "noise of a block used again": reuse_noise_of_block,
    "a record counted twice": count_last_record_twice,
}


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Stated rho of a release, and the lower bound that its answers show."""

    stated: float
    shown: float

    @property
    def exceeded(self) -> bool:
        """Return whether the lower bound exceeds the stated rho."""
        return self.shown > self.stated


def audit(audited: Plan, release: Release, *, runs: int, confidence: float = CONFIDENCE) -> Audit:
    """Release two neighbouring tables ``runs`` times each and bound rho by their answers."""
    answers = [
        np.array([_answers(release(table)) for _ in range(runs)]) for table in (WITHOUT, WITH)
    ]
    return Audit(stated=audited.pcost / 2, shown=shown_rho(*answers, confidence=confidence))


def _answers(measurement: Measurement) -> Array:
    """Return the answers to all queries of the workload, shape (queries,)."""
    return np.concatenate(
        [measurement.values(i) for i in range(len(measurement.plan.workload.groups))]
    )


def shown_rho(without: Array, with_: Array, *, confidence: float = CONFIDENCE) -> float:
    """Return a lower bound on rho from released answers of two neighbouring tables.

    Parameters
    ----------
    without, with_ : answers of the table without and with one record, shape (runs, queries).
    confidence : probability with which the bound holds.
    """
    # The first half of the releases trains a linear test; the second half estimates its errors.
    half = len(without) // 2
    gap = with_[:half].mean(axis=0) - without[:half].mean(axis=0)
    spread = np.cov(without[:half].T) + np.cov(with_[:half].T)
    # The small ridge makes the covariance invertible also if some answers have no noise.
    ridge = 1e-9 * np.trace(spread) / len(spread) * np.eye(len(spread))
    weights = np.linalg.solve(spread + ridge, gap)
    train_scores = [scores[:half] @ weights for scores in (without, with_)]
    limits = np.quantile(np.concatenate(train_scores), np.linspace(0.02, 0.98, 49))
    # Use the limit that gives the largest bound in the training half.
    limit = max(limits, key=partial(_mu, *train_scores, confidence))
    return (
        max(0.0, _mu(without[half:] @ weights, with_[half:] @ weights, confidence, limit)) ** 2 / 2
    )


def _mu(without: Array, with_: Array, confidence: float, limit: float) -> float:
    """Return a lower bound on mu from a test that says "with the record" for scores above a limit.

    ``without`` and ``with_`` are the scores of releases of the two tables, shape (runs,).
    """
    risk = (1 - confidence) / 2
    alarms, hits = int((without > limit).sum()), int((with_ > limit).sum())
    highest = (
        1.0
        if alarms == len(without)
        else float(betaincinv(alarms + 1, len(without) - alarms, 1 - risk))
    )
    lowest = 0.0 if hits == 0 else float(betaincinv(hits, len(with_) - hits + 1, risk))
    return float(ndtri(lowest) - ndtri(highest)) if lowest > 0 and highest < 1 else 0.0
