"""Rules that turn a look into a choice between analyses, and the rivals that they are compared with.

Everything here is post-processing of noisy answers, so it costs no privacy.  What takes exact counts, for
rehearsals on simulated data, says so.

Source: Xiao, Wang, Zhang and Kifer 2022, section 6 (rules) and sections 7.2 to 7.5 (rivals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.optimize

from engine.arrays import Array
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
    if not 0 < share <= 1:
        raise PlanError(f"share was given as {share!r}; it must be above 0 and at most 1.")
    if not 0 < snr < math.inf or not 0 <= sigmas < math.inf:
        raise PlanError(f"snr {snr!r} must be above 0 and sigmas {sigmas!r} at least 0, both finite.")


@dataclass(frozen=True, kw_only=True, eq=False)
class NestedRule:
    """Take the fine analysis if it still serves the coarse one: a share of its cells must stand out of the noise.

    A cell stands out when its count is at least `snr` standard errors of the answer that an analysis gives for it.

    Attributes
    ----------
    look, coarse, fine : what was run, the primary analysis and the secondary one that refines it.
    share, snr : x and y of the paper: the share of cells, in (0, 1], and the least signal-to-noise ratio, above 0.
    sigmas : width of the confidence bounds in standard errors of the look; 0 decides by the estimate alone.

    Raises: PlanError for an option out of range, NotAnswerable unless look and fine analysis tell the coarse queries.
    Source: section 6.2; the experiments of section 7 use sigmas = 0.

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
        """A_*, from the look's answers to those of the coarse analysis, shape (queries, rows of the look)."""
        return self.look.estimates(self.coarse.B)

    @cached_property
    def errors(self) -> dict[str, Array]:
        """Standard errors of the coarse answers by look, coarse and fine mechanism, each shape (queries,), in counts.

        These are those of the best unbiased answers: of equivalent mechanisms they are the same.
        """
        B = self.coarse.B
        by = {"look": self.look, "coarse": self.coarse, "fine": self.fine}
        return {name: np.sqrt(np.diag(mechanism.covariance(B))) for name, mechanism in by.items()}

    def bounds(self, answers: npt.ArrayLike) -> tuple[Array, Array]:
        """Lower and upper confidence bounds of the coarse answers, shape (..., queries), in counts."""
        if np.shape(answers)[-1:] != (len(self.look.B),):
            raise PlanError(f"answers has shape {np.shape(answers)}; a look has {len(self.look.B)} numbers.")
        estimate = np.asarray(answers, float) @ self.map.T
        width = self.sigmas * self.errors["look"]
        return estimate - width, estimate + width

    def fine_enough(self, counts: npt.ArrayLike) -> Flags:
        """Whether counts of the coarse cells, shape (..., queries), would stand out in enough cells of the fine one.

        For exact counts this is the right choice, and private: for rehearsals on simulated data only.
        """
        return np.asarray(self._share(np.asarray(counts, float), "fine") >= self.share)

    def decide(self, answers: npt.ArrayLike) -> Decision:
        """The verdict on one look, with answers of shape (rows of the look,)."""
        low, high = self.bounds(answers)
        shares = {
            "fine, lower": float(self._share(low, "fine")),
            "fine, upper": float(self._share(high, "fine")),
            "coarse, upper": float(self._share(high, "coarse")),
        }
        asked = f"the rule asks for {self.share:.1%} of {len(self.coarse.B)} cells above {self.snr:g} standard errors"
        surely, maybe, coarse = shares.values()
        if surely >= self.share:
            return _decision(1, True, shares, f"Fine: at least {surely:.1%} stand out even there; {asked}.")
        if coarse < self.share:
            return _decision(None, True, shares, f"Stop: at most {coarse:.1%} stand out even in the coarse; {asked}.")
        if maybe < self.share:
            return _decision(0, True, shares, f"Coarse: at most {maybe:.1%} would stand out in the fine; {asked}.")
        text = f"Coarse, to be safe: {surely:.1%} to {maybe:.1%} may stand out in the fine, too close to tell; {asked}."
        return _decision(0, False, shares, text)

    def _share(self, counts: Array, analysis: str) -> Array:
        return np.asarray((counts / self.errors[analysis] >= self.snr * (1 - ROUNDING)).mean(axis=-1))


def spread_rule(
    *,
    look: LinearMechanism,
    analyses: Sequence[LinearMechanism],
    answers: npt.ArrayLike,
    draws: int,
    seed: int,
    radius: float = 2.0,
    max_records: float | None = None,
) -> Decision:
    """Choose by how far the answers of each analysis can still vary, against the noise it would add.

    For each analysis, `draws` nonnegative tables that agree with the look are found by linear programs with random
    objectives.  Signal is the total variance of its answers over them, noise the trace of its covariance; the largest
    ratio wins, and below 1 for all, nothing would be learned.

    Parameters
    ----------
    answers : of the look, shape (rows of the look,).
    seed : of the random objectives; they meet no private value, and the same seed gives the same decision.
    radius : how far a table may be from the look, in the sum of absolute standard errors.  Where no table is that
        close, the closest distance is used and `shares["radius"]` shows it.
    max_records : public cap on the number of records; needed when the look says nothing about some cells.

    Raises: PlanError if there are no draws, or the look leaves the tables unbounded and no cap is given.
    Source: section 6.1, equation 2.

    >>> rows, pairs = np.kron(np.eye(2), np.ones(2)), np.eye(4)
    >>> options = LinearMechanism(rows, np.eye(2) * 2), LinearMechanism(pairs)
    >>> decision = spread_rule(look=options[0], analyses=options, answers=[50, 80], draws=8, seed=1)
    >>> decision.choice, decision.sentence.split(":")[0]
    (1, 'Take analysis 2')
    """
    return spread_of_mechanisms(
        look=look,
        queries=[M.B for M in analyses],
        noise=[float(np.trace(M.Sigma)) for M in analyses],
        answers=answers,
        draws=draws,
        seed=seed,
        radius=radius,
        max_records=max_records,
    )


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
    """Return the verdict of `spread_rule` for any analyses.

    ``queries`` holds the query rows of each, shape (queries, cells), ``noise`` its total variance, in counts^2.
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
        return _decision(None, True, shares, f"Stop: even in analysis {best + 1}, {text}.")
    return _decision(best, True, shares, f"Take analysis {best + 1}: {text}.")


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
        found = scipy.optimize.linprog(goal, A_ub=rows, b_ub=limits, method="highs")
        if found.x is None:
            raise PlanError("The look leaves some counts unbounded, or contradicts max_records; give a fitting cap.")
        return np.asarray(found.x)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReservedLook:
    """A separate look that is as exact as another one, at the least cost.

    Attributes
    ----------
    mechanism : answers the queries with at most the variances asked for; its pcost is the upper bound.
    bound : no linear Gaussian mechanism that does so costs less pcost.
    """

    mechanism: LinearMechanism
    bound: float


def reserved_look(queries: npt.ArrayLike, variances: npt.ArrayLike, *, evaluations: int = 300) -> ReservedLook:
    """The rival of section 7.2: reserve budget for the cheapest mechanism that answers with given variances.

    Minimise the largest diagonal entry of X over X > 0 with q_i X^-1 q_i^T <= v_i.  Its dual is the largest
    |diag(a)^1/2 diag(v)^-1/2 Q diag(b)^1/2|_*^2 over weights a of queries and b of cells that each add up to 1, which
    L-BFGS solves in the roots of the weights; every iterate has a bound and a feasible mechanism.

    `queries` is Q, shape (queries, cells), and `variances` v, shape (queries,), in counts^2.

    >>> look = reserved_look(np.vstack([np.eye(2), np.ones((1, 2))]), [1, 1, 2])
    >>> round(look.mechanism.pcost, 6), round(look.bound, 6)
    (1.0, 1.0)
    """
    Q, v = LinearMechanism(np.asarray(queries, float)).B, np.asarray(variances, float)
    if v.shape != (len(Q),) or not (v > 0).all() or not np.isfinite(v).all():
        raise PlanError(f"variances has shape {v.shape}; give one finite number above 0 for each of {len(Q)} queries.")
    M = (Q / np.sqrt(v)[:, None])[np.any(Q != 0, axis=1)]
    upper, lower, best = math.inf, 0.0, M

    def value(point: Array) -> tuple[float, Array]:
        nonlocal upper, lower, best
        a, b = np.split(point, [len(M)])
        U, sizes, V = np.linalg.svd(a[:, None] * M * b, full_matrices=False)
        kept = sizes > 1e-12 * sizes[0]
        U, sizes, V = U[:, kept], sizes[kept], V[kept]
        errors = ((M * b @ V.T) ** 2 / sizes).sum(axis=1)
        rows = (U * a[:, None]).T @ M / np.sqrt(sizes)[:, None]
        costs, T = (rows**2).sum(axis=0), sizes.sum()
        lower = max(lower, float(T**2 / (a @ a) / (b @ b)))
        if errors.max() * costs.max() < upper:
            upper, best = float(errors.max() * costs.max()), rows * math.sqrt(errors.max())
        slope = np.r_[2 * a * (1 / (a @ a) - errors / T), 2 * b * (1 / (b @ b) - costs / T)]
        return float(math.log(a @ a) + math.log(b @ b) - 2 * math.log(T)), slope

    scipy.optimize.minimize(
        value,
        np.ones(sum(M.shape)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": evaluations, "maxfun": evaluations, "maxcor": 30, "ftol": 0.0, "gtol": 1e-10},
    )
    return ReservedLook(mechanism=LinearMechanism(best), bound=lower)


def threshold_rule(noisy_total: float, thresholds: Sequence[float]) -> Decision:
    """The rival of section 7.5.2: the analysis whose range of totals holds the noisy number of records.

    >>> threshold_rule(250.0, [50, 200, 1000]).sentence
    'Take analysis 3: the noisy total of 250 is past 2 of 3 thresholds.'
    """
    if list(thresholds) != sorted(thresholds):
        raise PlanError(f"thresholds were given as {list(thresholds)}; they must not decrease.")
    passed = int(np.searchsorted(thresholds, noisy_total, side="right"))
    text = f"the noisy total of {noisy_total:g} is past {passed} of {len(thresholds)} thresholds"
    return _decision(passed, True, {"total": noisy_total}, f"Take analysis {passed + 1}: {text}.")


def exponential_probabilities(scores: npt.ArrayLike, *, sensitivity: float, pcost: float) -> Array:
    """The rival of section 1: the exponential mechanism's law over analyses, shape (..., analyses).

    `scores`, of that shape, are exact, private, for rehearsals only; a record changes each by at most `sensitivity`.
    Guarantee: a choice drawn from it costs at most `pcost`; a bounded range of epsilon gives rho = epsilon^2 / 8.

    >>> exponential_probabilities([0.0, 1.0], sensitivity=1, pcost=1.0).round(3)
    array([0.269, 0.731])
    """
    if not (sensitivity > 0 and pcost > 0):
        raise PlanError(f"sensitivity {sensitivity!r} and pcost {pcost!r} must both be above 0.")
    raised = np.asarray(scores, float) * math.sqrt(pcost) / sensitivity  # epsilon is 2 sqrt(pcost)
    weights = np.exp(raised - raised.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _decision(choice: int | None, certain: bool, shares: dict[str, float], sentence: str) -> Decision:
    return Decision(choice=choice, certain=certain, shares=shares, sentence=sentence)
