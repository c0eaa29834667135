"""Weighted Fourier Factorizations: every residual space is measured in the Fourier basis, in closed form.

With f_k the Fourier vectors of a space, the best variances are in proportion to (f_k^* G f_k)^(-1/2).  Optimal for
marginals and circular ranges.  Source: Weighted Fourier Factorizations; QuerySmasher, appendix C and theorem 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from engine.decomposition import Decomposition
from engine.mechanisms.base import Limits
from engine.mechanisms.residual import ResidualMechanism, SpaceSolver
from engine.solvers import Options
from engine.subworkload import SubworkloadSolver
from engine.workload import Workload


@dataclass(frozen=True, kw_only=True)
class WeightedFourier(ResidualMechanism):
    """Weighted Fourier Factorizations; it has no options of its own."""

    name: ClassVar[str] = "wff"
    title: ClassVar[str] = "Weighted Fourier Factorizations"
    meaning: ClassVar[str] = "Noise on Fourier coefficients: instant, and optimal for marginals and circular ranges."

    def space_solver(self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float) -> SpaceSolver:
        return SubworkloadSolver(
            factors=parts.factors,
            method="fourier",
            options=Options(deadline=deadline),
            memory_limit=limits.memory_limit,
        )
