"""Optimum of all matrix mechanisms on small domains, and limits of unions."""

import numpy as np
import pytest

from engine.residuals import DualProblem, Factor, FullDomain, Options
from engine.workload import Workload
from tests.oracles import workload_rows


def full_domain_optimum(workload: Workload) -> float:
    """Return the smallest RMSE of all matrix mechanisms, from below within 1e-5.

    It comes from the dual problem on the full domain.
    """
    W = np.concatenate(workload_rows(workload))
    weights = np.concatenate([np.full(g.count, g.weight) for g in workload.groups])
    gram = Factor(sizes=(W.shape[1],), matrix=(W * weights[:, None]).T @ W)
    problem = DualProblem(lift=FullDomain(W.shape[1]), factor=gram)
    mass, _ = problem.maximise(Options(gap=1e-5))
    return float(np.sqrt(problem.bound(mass) / len(W)))


def limit_unions(patch: pytest.MonkeyPatch, work: float = 0) -> None:
    """Limit the search for unions to ``work`` multiplications per step.

    Strategies on the full domain are not allowed.
    """
    patch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", work)
    patch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_MULTIPLICATIONS", 0)
