"""Tuned centers: choose the vectors pi_i that split a query between a residual space and the smaller ones.

For any pi_i with sum 1 the identity I = (I - pi_i 1^T) + pi_i 1^T splits every query exactly, and the spaces stay
linearly independent, so a release is unbiased, its privacy cost is the sum of the blocks' costs, and the best shares of
the budget have the same closed form.  Only the value changes:

    S(pi) = sum over B of sqrt(L_B(pi)),   RMSE proportional to S.

pi_i = 1 / n_i is the published choice.  Here S is minimised: first along a family with one scalar c, pi_i in proportion
to V_i^-1 1 with V_i optimal for G_i + c 1 1^T (for one attribute alone some c gives the best of all mechanisms), then
by L-BFGS on all centers with the gradient of the envelope theorem.  The start is kept when nothing is better, so a
tuned plan is never worse than a uniform one.

Attributes that play the same role in the workload share a center; where the Gram of an attribute does not change when
its cells are shifted around (marginals, circular ranges, totals), uniform is optimal by symmetry and stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import scipy.optimize

from engine.arrays import Array
from engine.spaces.decomposition import basis
from engine.spaces.solvers import Options
from engine.spaces.splits.center_problem import CenterProblem, Role, Watch
from engine.workload import Workload

POLISH = Options(gap=2e-6, evaluations=200)
STEPS = 60
SCALARS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)


def tuned_centers(workload: Workload, watch: Watch, start: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Return centers, by attribute, that lower S; attributes that keep uniform centers are absent. Shapes (n_i,).

    ``start`` holds centers of a similar workload; the search goes on from them when they are better than uniform ones.

    Guarantee: S at the result is at most S at uniform centers, up to the gap of the inner solver.
    """
    problem = CenterProblem(workload, watch)
    if not problem.tuned or any(g.query_weights is not None for g in workload.groups):
        return {}
    best: dict[Role, Array] = {}
    lowest = problem.evaluate(best)[0]
    start = start or {}
    given = {role: start[name] for name, role in problem.roles.items() if role in problem.tuned and name in start}
    if given and (value := problem.evaluate(given)[0]) < lowest:
        lowest, best = value, given
    else:
        for c in SCALARS:
            candidate = {role: problem.one_scalar(role, c) for role in problem.tuned}
            value = problem.evaluate(candidate)[0]
            watch(0.1, f"Tuning centers with c = {c:g}")
            if value < lowest:
                lowest, best = value, candidate
    found = polish(problem, best, lowest)
    return {name: found[role] for name, role in problem.roles.items() if role in found}


def polish(problem: CenterProblem, start: Mapping[Role, Array], value: float) -> dict[Role, Array]:
    """Return centers that L-BFGS reaches from ``start``, or the start when they are no better. Shapes (n,)."""
    problem.options = POLISH
    lengths = [problem.sizes[r] - 1 for r in problem.tuned]
    cuts = np.cumsum([0, *lengths])

    def centers(x: Array) -> dict[Role, Array]:
        return {
            r: 1.0 / problem.sizes[r] + basis(problem.sizes[r]) @ x[a:b]
            for r, a, b in zip(problem.tuned, cuts[:-1], cuts[1:], strict=True)
        }

    done = 0

    def log_value(x: Array) -> tuple[float, Array]:
        nonlocal done
        S, by_role = problem.evaluate(centers(x))
        done += 1
        problem.watch(0.1 + 0.9 * min(1.0, done / STEPS), f"Tuning centers, step {done}")
        gradient = np.concatenate([by_role.get(r, np.zeros(n)) for r, n in zip(problem.tuned, lengths, strict=True)])
        return math.log(S), gradient / S

    first = np.concatenate([basis(n := problem.sizes[r]).T @ start.get(r, np.full(n, 1.0 / n)) for r in problem.tuned])
    found = scipy.optimize.minimize(
        log_value,
        first,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": STEPS, "maxfun": STEPS, "ftol": 1e-7, "gtol": 0.0},
    )
    return centers(found.x) if math.exp(found.fun) < value else dict(start)
