"""Selection rules and chains of the common mechanism on matrices of small domains.

The engine applies the same rules to plans; only benchmarks and tests use these.

Source: Xiao, Wang, Zhang and Kifer 2022, sections 6.2 and 7.5.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.general_rule import spread_of_mechanisms
from engine._arrays import Array
from engine.common_mechanism.common_mechanism import (
    CENSUS_AGES,
    CommonMechanism,
    LinearMechanism,
    Recreation,
    recreation,
    unchecked_residual,
)
from engine.common_mechanism.selection_rule import (
    Decision,
    check_nested_options,
    exceeds_noise,
    nested_decision,
)
from engine.errors import PlanError

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class NestedRule:
    """Take the fine analysis if enough coarse cells exceed its noise.

    A cell exceeds the noise if its count is at least `snr` standard errors of its answer in an
    analysis.

    Attributes
    ----------
    look, coarse, fine : mechanism that was run, coarse analysis, and fine analysis that refines it.
    share, snr : x and y of the paper: the share of cells, in (0, 1], and the least signal-to-noise
        ratio, above 0.
    sigmas : width of the confidence bounds in standard errors of the look; 0 decides by the
        estimate alone.

    Raises: PlanError for an option out of range, NotAnswerable unless look and fine analysis
    determine the coarse queries. Source: section 6.2; the experiments of section 7 use sigmas = 0.

    >>> coarse, fine = LinearMechanism(np.ones((1, 4))), LinearMechanism(np.eye(4))
    >>> rule = NestedRule(look=LinearMechanism(np.ones((1, 4)), [[4]]), coarse=coarse, fine=fine, share=0.5, snr=5)
    >>> rule.decide([100.0]).choice, rule.decide([11.0]).certain, rule.decide([-5.0]).choice
    (1, False, None)
    """

    look: LinearMechanism
    coarse: LinearMechanism
    fine: LinearMechanism
    share: float
    snr: float
    sigmas: float = 3.0

    def __post_init__(self) -> None:
        check_nested_options(share=self.share, snr=self.snr, sigmas=self.sigmas)
        _ = self.map, self.errors

    @cached_property
    def map(self) -> Array:
        """Map from the answers of the look to the coarse answers, shape (queries, rows of look)."""
        return self.look.estimates(self.coarse.B)

    @cached_property
    def errors(self) -> dict[str, Array]:
        """Standard errors in counts of the coarse answers from look, coarse and fine analysis.

        Each has shape (queries,). The answers are the best linear unbiased ones.
        """
        B = self.coarse.B
        by = {"look": self.look, "coarse": self.coarse, "fine": self.fine}
        return {name: np.sqrt(np.diag(mechanism.covariance(B))) for name, mechanism in by.items()}

    def bounds(self, answers: npt.ArrayLike) -> tuple[Array, Array]:
        """Lower and upper confidence bounds of the coarse answers, shape (..., queries), in counts."""
        if np.shape(answers)[-1:] != (len(self.look.B),):
            raise PlanError(
                f"answers has shape {np.shape(answers)}; a look has {len(self.look.B)} numbers."
            )
        estimate = np.asarray(answers, float) @ self.map.T
        width = self.sigmas * self.errors["look"]
        return estimate - width, estimate + width

    def fine_enough(self, counts: npt.ArrayLike) -> Flags:
        """Whether the share of coarse cells whose count exceeds the noise is large enough.

        For exact counts, shape (..., queries), this is the right choice. It has no privacy guarantee,
        so it may be used for simulated data only.
        """
        flags = exceeds_noise(np.asarray(counts, float), self.errors["fine"], self.snr)
        return np.asarray(flags.mean(axis=-1) >= self.share)

    def decide(self, answers: npt.ArrayLike) -> Decision:
        """Return the decision that follows from the answers of a look, shape (rows of the look,)."""
        low, high = self.bounds(answers)
        errors = [self.errors["coarse"], self.errors["fine"]]
        return nested_decision(
            low, high, errors, names=["Coarse", "Fine"], share=self.share, snr=self.snr
        )


def spread_rule(
    *,
    look: LinearMechanism,
    analyses: Sequence[LinearMechanism],
    answers: npt.ArrayLike,
    **options: Any,
) -> Decision:
    """The general rule of section 6.1, `spread_of_mechanisms`, on mechanisms."""
    noise = [float(np.trace(M.Sigma)) for M in analyses]
    return spread_of_mechanisms(
        look=look, queries=[M.B for M in analyses], noise=noise, answers=answers, **options
    )


def threshold_rule(noisy_total: float, thresholds: Sequence[float]) -> Decision:
    """The rival of section 7.5.2: the analysis whose range of totals holds the noisy number of
    records.

    >>> threshold_rule(250.0, [50, 200, 1000]).sentence
    'Take analysis 3: the noisy total of 250 is past 2 of 3 thresholds.'
    """
    if list(thresholds) != sorted(thresholds):
        raise PlanError(f"thresholds are {list(thresholds)}; they must not decrease.")
    passed = int(np.searchsorted(thresholds, noisy_total, side="right"))
    text = f"the noisy total of {noisy_total:g} is past {passed} of {len(thresholds)} thresholds"
    return Decision(
        choice=passed,
        certain=True,
        shares={"total": noisy_total},
        sentence=f"Take analysis {passed + 1}: {text}.",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One run on the way to an analysis: the mechanism and what it spends, in pcost."""

    mechanism: LinearMechanism
    pcost: float


@dataclass(frozen=True, init=False, eq=False)
class NestedChain:
    """Looks that are refined one by one, to choose between analyses from coarse to fine.

    looks[k] is common to analyses k, ..., n-1 and answerable from looks[k+1].  Analysis i ends
    path(i): the first look, increments between looks, and the residual of analysis i.

    Guarantee: the cost matrices of path(i) add up to that of analysis i, and the spends, as
    decimals, to its pcost. Raises: PlanError if a look does not follow from the next one, so that
    no such order exists.  Source: section 7.5.3.

    >>> chain = census_cascade(pcost=1.0)
    >>> [len(chain.path(i)) for i in range(4)], [step.pcost for step in chain.path(1)]
    ([2, 3, 4, 4], [0.0434782608696, 0.2065217391304, 0.75])
    """

    analyses: tuple[LinearMechanism, ...]
    names: tuple[str, ...]
    looks: tuple[LinearMechanism, ...]

    def __init__(self, *analyses: LinearMechanism, names: Sequence[str] | None = None) -> None:
        names = tuple(names or (f"analysis {i + 1}" for i in range(len(analyses))))
        if len(analyses) < 2 or len(names) != len(analyses):
            raise PlanError(
                f"{len(analyses)} analyses and {len(names)} names; give two or more of each."
            )
        looks = tuple(CommonMechanism(*analyses[k:]).common for k in range(len(analyses) - 1))
        for k, (look, finer) in enumerate(itertools.pairwise(looks)):
            if not finer.answers(look):
                raise PlanError(
                    f"What {names[k]} shares with the later analyses does not follow from what"
                    f" {names[k + 1]} shares with those after it; order the analyses from coarse to"
                    " fine, or compare them two at a time."
                )
        for name, value in (("analyses", analyses), ("names", names), ("looks", looks)):
            object.__setattr__(self, name, value)

    @cached_property
    def increments(self) -> tuple[LinearMechanism, ...]:
        """The first look, then the residual mechanism of each later look after the one before."""
        return self.looks[:1] + tuple(
            unchecked_residual(b, a) for a, b in itertools.pairwise(self.looks)
        )

    @cached_property
    def residuals(self) -> tuple[LinearMechanism, ...]:
        """Residual mechanism of each analysis after the last look on its path."""
        last = len(self.looks) - 1
        return tuple(
            unchecked_residual(M, self.looks[min(i, last)]) for i, M in enumerate(self.analyses)
        )

    @cached_property
    def spends(self) -> tuple[tuple[float, ...], ...]:
        """The spends of each path in pcost."""
        goals, levels = [Decimal(repr(M.pcost)) for M in self.analyses], [Decimal(0)]
        for k, look in enumerate(self.looks):
            # no path may exceed its total, not even because the cost of the look (first stage) is
            # rounded
            levels.append(min(Decimal(repr(look.pcost)), *goals[k:]))
        steps = [float(b - a) for a, b in itertools.pairwise(levels)]
        last = len(self.looks)
        return tuple(
            (*steps[: i + 1], float(goal - levels[min(i + 1, last)]))
            for i, goal in enumerate(goals)
        )

    def path(self, i: int) -> tuple[Step, ...]:
        """The steps that end with analysis i."""
        mechanisms = (*self.increments[: i + 1], self.residuals[i])
        return tuple(
            Step(mechanism=M, pcost=p) for M, p in zip(mechanisms, self.spends[i], strict=True)
        )

    def recreation(self, i: int) -> Recreation:
        """Matrices that rebuild the output of analysis i from the outputs of path(i)."""
        return recreation(self.analyses[i], *(step.mechanism for step in self.path(i)))


def census_cascade(*, pcost: float) -> NestedChain:
    """Total, Age4, Age9 and Age23 by sex on 103 ages x 2 sexes, each at the same cost.  Source:
    section 7.5.1.
    """
    bins = [
        np.repeat(np.eye(len(edges) - 1), np.diff(edges), axis=1) for edges in CENSUS_AGES.values()
    ]
    analyses = [
        LinearMechanism(np.kron(b, np.eye(2)).astype(np.float64), np.eye(2 * len(b)) / pcost)
        for b in bins
    ]
    return NestedChain(*analyses, names=tuple(CENSUS_AGES))
