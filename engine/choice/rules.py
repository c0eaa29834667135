"""Rules that turn a look into a choice between analyses, on arrays; `plan_rule` applies them to plans.

Everything here is post-processing of noisy answers, so it costs no privacy.

Source: Xiao, Wang, Zhang and Kifer 2022, section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.checks import positive
from engine.choice.linear import LinearMechanism
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


def spread_of_mechanisms(
    *,
    look: LinearMechanism,
    queries: Sequence[Array],
    noise: Sequence[float],
    answers: npt.ArrayLike,
    draws: int,
    seed: int,
    radius: float = 2.0,
    max_records: float | None = None,
) -> Decision:
    """Choose by how far the answers of each analysis can still vary, against the noise it would add.

    For each analysis, `draws` nonnegative tables that agree with the look are found by linear programs with random
    objectives.  Signal is the total variance of its answers over them; the largest ratio to the noise wins, and below 1
    for all, nothing would be learned.

    Parameters
    ----------
    queries, noise : of each analysis its query rows, shape (queries, cells), and total variance, in counts^2.
    answers : of the look, shape (rows of the look,).
    seed : of the random objectives; they meet no private value, and the same seed gives the same decision.
    radius : how far a table may be from the look, in the sum of absolute standard errors.  Where no table is that
        close, the closest distance is used and `shares["radius"]` shows it.
    max_records : public cap on the number of records; needed when the look says nothing about some cells.

    Raises: PlanError if there are no draws, or the look leaves the tables unbounded and no cap is given.
    Source: section 6.1, equation 2.
    """
    if draws < 2 or len(queries) < 2:
        raise PlanError(f"{draws} draws and {len(queries)} analyses were given; at least two of each are needed.")
    polytope = _Tables(look=look, answers=np.asarray(answers, float), max_records=max_records)
    reach = max(radius, polytope.closest() * (1 + 1e-9) + 1e-9)
    random = np.random.default_rng(seed)
    tables = np.array(
        [polytope.table(random.standard_normal(len(B)) @ B, reach) for B in queries for _ in range(draws)]
    )
    ratios = [
        float(np.var(tables @ B.T, axis=0, ddof=1).sum()) / total for B, total in zip(queries, noise, strict=True)
    ]
    shares = {f"analysis {i + 1}": ratio for i, ratio in enumerate(ratios)} | {"radius": reach}
    best = int(np.argmax(ratios))
    text = f"its answers can vary {ratios[best]:.3g} times as much as its noise, by {len(tables)} possible tables"
    if ratios[best] < 1:
        return Decision(
            choice=None, certain=True, shares=shares, sentence=f"Stop: even in analysis {best + 1}, {text}."
        )
    return Decision(choice=best, certain=True, shares=shares, sentence=f"Take analysis {best + 1}: {text}.")


class _Tables:
    """Nonnegative tables near a look: variables (x, t) with |S x - s| <= t after whitening."""

    def __init__(self, *, look: LinearMechanism, answers: Array, max_records: float | None) -> None:
        if answers.shape != (len(look.B),) or not np.isfinite(answers).all():
            raise PlanError(f"answers has shape {answers.shape}; the look has {len(look.B)} rows, all finite.")
        S, s, one = look.whiten(look.B), look.whiten(answers[:, None])[:, 0], np.eye(len(answers))
        self.cells, self.distance = look.cells, np.r_[np.zeros(look.cells), np.ones(len(answers))]
        self.rows, self.limits = np.block([[S, -one], [-S, -one]]), np.r_[s, -s]
        if max_records is not None:
            self.rows, self.limits = np.vstack([self.rows, 1 - self.distance]), np.r_[self.limits, max_records]

    def closest(self) -> float:
        """The least sum of absolute standard errors of a nonnegative table."""
        return float(self._solve(self.distance, self.rows, self.limits) @ self.distance)

    def table(self, objective: Array, reach: float) -> Array:
        """The table within reach that makes the objective smallest, shape (cells,)."""
        goal = np.r_[objective, np.zeros(len(self.distance) - self.cells)]
        found = self._solve(goal, np.vstack([self.rows, self.distance]), np.r_[self.limits, reach])
        return found[: self.cells]

    def _solve(self, goal: Array, rows: Array, limits: Array) -> Array:
        import scipy.optimize

        found = scipy.optimize.linprog(goal, A_ub=rows, b_ub=limits, method="highs")
        if found.x is None:
            raise PlanError("The look leaves some counts unbounded, or contradicts max_records; give a fitting cap.")
        return np.asarray(found.x)
