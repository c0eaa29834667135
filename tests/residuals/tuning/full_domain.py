"""What no matrix mechanism can beat, on domains that are small enough for it."""

import numpy as np

from engine.residuals import DualProblem, Factor, FullDomain, Options
from engine.workload import Workload
from tests.oracles import workload_rows


def full_domain_optimum(workload: Workload) -> float:
    """RMSE that no matrix mechanism at all can beat, proven by the dual on the full domain."""
    W = np.concatenate(workload_rows(workload))
    weights = np.concatenate([np.full(g.count, g.weight) for g in workload.groups])
    gram = Factor(sizes=(W.shape[1],), matrix=(W * weights[:, None]).T @ W)
    problem = DualProblem(lift=FullDomain(W.shape[1]), factor=gram)
    mass, _ = problem.maximise(Options(gap=1e-5))
    return float(np.sqrt(problem.bound(mass) / len(W)))
