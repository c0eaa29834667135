"""The rule that turns a look into a choice between analyses, on arrays; `plan_rule` applies it to plans.

Everything here is post-processing of noisy answers, so it costs no privacy.

Source: Xiao, Wang, Zhang and Kifer 2022, section 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.checks import positive
from engine.errors import PlanError

ROUNDING = 1e-9  # a whole count can meet the ratio exactly
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a rule says.

    Attributes
    ----------
    choice : position of the analysis to run, or None to stop here.
    certain : whether the look leaves no doubt at the rule's confidence; if not, `choice` is the safe one.
    shares : the numbers that the verdict rests on, by name.
    sentence : the verdict for people.
    """

    choice: int | None
    certain: bool
    shares: dict[str, float]
    sentence: str


def check_nested_options(*, share: float, snr: float, sigmas: float) -> None:
    """Raise PlanError unless the numbers of a nested rule make sense."""
    positive("share", share, most=1, error=PlanError)
    positive("snr", snr, error=PlanError)
    if sigmas != 0:
        positive("sigmas", sigmas, error=PlanError)


def stands_out(counts: Array, errors: Array, snr: float) -> Flags:
    """Whether counts are at least ``snr`` standard errors, all of one shape, in counts."""
    return np.asarray(counts / errors >= snr * (1 - ROUNDING))


def nested_decision(
    low: Array, high: Array, errors: Sequence[Array], *, names: Sequence[str], share: float, snr: float
) -> Decision:
    """Take the finest analysis that still serves the first: a share of its cells must stand out of the noise.

    Parameters
    ----------
    low, high : confidence bounds of the cells of the first analysis by a look, shape (cells,), in counts.
    errors : standard errors of these cells by each analysis, from coarse to fine, each shape (cells,), in counts.
    names : of the analyses.
    share, snr : x and y of the paper: the share of cells, in (0, 1], and the least signal-to-noise ratio, above 0.

    `choice` counts from the first analysis; `shares` holds, for every finer one, the shares of cells that stand out by
    the lower and the upper bound.

    Source: section 6.2; the experiments of section 7 have low = high.

    >>> one = np.ones(2)
    >>> nested_decision(9 * one, 15 * one, [one, 2 * one], names=["Coarse", "Fine"], share=0.5, snr=5).sentence[:68]
    'Coarse, to be safe: 0.0% to 100.0% may stand out in Fine; the rule a'
    """
    surely = [float(stands_out(low, e, snr).mean()) for e in errors]
    maybe = [float(stands_out(high, e, snr).mean()) for e in errors]
    shares = {f"{names[0]}, upper": maybe[0]}
    for name, least, most in zip(names[1:], surely[1:], maybe[1:], strict=True):
        shares |= {f"{name}, lower": least, f"{name}, upper": most}
    served = [i for i, least in enumerate(surely) if i and least >= share]
    possible = [i for i, most in enumerate(maybe) if i and most >= share]
    asked = f"the rule asks for {share:.1%} of {len(low):,} cells above {snr:g} standard errors."

    def decision(choice: int | None, certain: bool, sentence: str) -> Decision:
        return Decision(choice=choice, certain=certain, shares=shares, sentence=f"{sentence}; {asked}")

    if served:
        best, finest = served[-1], possible[-1]
        doubt = "" if finest == best else f"; {names[finest]} may do as well, too close to tell"
        text = f"{names[best]}: at least {surely[best]:.1%} stand out even there{doubt}"
        return decision(best, finest == best, text)
    if maybe[0] < share:
        return decision(None, True, f"Stop: at most {maybe[0]:.1%} stand out even in {names[0]}")
    if not possible:
        return decision(0, True, f"{names[0]}: at most {max(maybe[1:]):.1%} would stand out in a finer one")
    text = f"{names[0]}, to be safe: {surely[1]:.1%} to {maybe[1]:.1%} may stand out in {names[1]}"
    return decision(0, False, text)
