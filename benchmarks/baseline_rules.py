"""Baselines of the selection rule: separate look and exponential mechanism.

Unlike the shared look, a baseline that chooses between coarse and fine analyses has an additional
cost.

Source: Xiao, Wang, Zhang and Kifer 2022, sections 1 and 7.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, thin_svd
from engine.common_mechanism.common_mechanism import LinearMechanism
from engine.errors import PlanError


@dataclass(frozen=True, kw_only=True, eq=False)
class ReservedLook:
    """A separate look, as accurate as another one, at the least cost.

    Attributes
    ----------
    mechanism : answers the queries with at most the variances; its pcost is the upper bound.
    bound : lower bound of the pcost of all linear Gaussian mechanisms that do so.
    """

    mechanism: LinearMechanism
    bound: float


def reserved_look(
    queries: npt.ArrayLike, variances: npt.ArrayLike, *, evaluations: int = 300
) -> ReservedLook:
    """Return the cheapest mechanism that answers queries with at most some variances (section 7.2).

    Minimise the largest diagonal entry of X over X > 0 with q_i X^-1 q_i^T <= v_i.  Its dual is the
    largest |diag(a)^1/2 diag(v)^-1/2 Q diag(b)^1/2|_*^2 over weights a of queries and b of cells
    that each add up to 1, which L-BFGS solves in the roots of the weights; every iterate has a
    bound and a feasible mechanism.

    `queries` is Q, shape (queries, cells), and `variances` v, shape (queries,), in counts^2.

    >>> look = reserved_look(np.vstack([np.eye(2), np.ones((1, 2))]), [1, 1, 2])
    >>> round(look.mechanism.pcost, 6), round(look.bound, 6)
    (1.0, 1.0)
    """
    import scipy.optimize

    Q, v = LinearMechanism(np.asarray(queries, float)).B, np.asarray(variances, float)
    if v.shape != (len(Q),) or not (v > 0).all() or not np.isfinite(v).all():
        raise PlanError(
            f"variances has shape {v.shape}; give one finite number above 0 for each of {len(Q)}"
            " queries."
        )
    M = (Q / np.sqrt(v)[:, None])[np.any(Q != 0, axis=1)]
    upper, lower, best_rows = math.inf, 0.0, M

    def objective(point: Array) -> tuple[float, Array]:
        nonlocal upper, lower, best_rows
        a, b = np.split(point, [len(M)])
        U, sizes, V = thin_svd(a[:, None] * M * b)
        retained = sizes > 1e-12 * sizes[0]
        U, sizes, V = U[:, retained], sizes[retained], V[retained]
        errors = ((M * b @ V.T) ** 2 / sizes).sum(axis=1)
        rows = (U * a[:, None]).T @ M / np.sqrt(sizes)[:, None]
        costs, T = (rows**2).sum(axis=0), sizes.sum()
        lower = max(lower, float(T**2 / (a @ a) / (b @ b)))
        if errors.max() * costs.max() < upper:
            upper, best_rows = float(errors.max() * costs.max()), rows * math.sqrt(errors.max())
        gradient = np.r_[2 * a * (1 / (a @ a) - errors / T), 2 * b * (1 / (b @ b) - costs / T)]
        return float(math.log(a @ a) + math.log(b @ b) - 2 * math.log(T)), gradient

    scipy.optimize.minimize(
        objective,
        np.ones(sum(M.shape)),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": evaluations,
            "maxfun": evaluations,
            "maxcor": 30,
            "ftol": 0.0,
            "gtol": 1e-10,
        },
    )
    return ReservedLook(mechanism=LinearMechanism(best_rows), bound=lower)


def exponential_probabilities(scores: npt.ArrayLike, *, sensitivity: float, pcost: float) -> Array:
    """Return the probability of each analysis under the exponential mechanism (section 1).

    Parameters
    ----------
    scores : exact, private scores, shape (..., analyses), for rehearsals only.
    sensitivity : largest change of a score by one record.
    pcost : privacy cost of the choice.

    Guarantee: a choice drawn from these probabilities costs at most `pcost`; a bounded range of
    epsilon gives rho = epsilon^2 / 8.

    >>> exponential_probabilities([0.0, 1.0], sensitivity=1, pcost=1.0).round(3)
    array([0.269, 0.731])
    """
    if not (sensitivity > 0 and pcost > 0):
        raise PlanError(f"sensitivity {sensitivity!r} and pcost {pcost!r} must both be above 0.")
    # epsilon is 2 sqrt(pcost)
    exponents = np.asarray(scores, float) * math.sqrt(pcost) / sensitivity
    weights = np.exp(exponents - exponents.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
