"""Weighted Fourier Factorizations: closed-form strategies in the Fourier basis.

With f_k the Fourier vectors of a residual space, the optimal variances are proportional to
(f_k^* G f_k)^(-1/2).  The strategy is optimal for marginals and circular ranges.  Prefixes and
suffixes can be embedded as half circles on twice as many cells (extended marginals), which is more
accurate from about twenty cells.

Source: Weighted Fourier Factorizations, sections 3 and 4; QuerySmasher, appendix C and theorem 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from engine._validation import check_choice
from engine.errors import PlanError
from engine.mechanisms.base import Limits
from engine.mechanisms.candidate import CandidatePlan
from engine.mechanisms.residual_base import ResidualMechanism, SpaceSolver
from engine.privacy import Budget
from engine.residuals import Options, Split
from engine.residuals.decomposition import Decomposition
from engine.residuals.split import UNIFORM
from engine.residuals.subworkload_solver import SubworkloadSolver
from engine.workload import Workload

EMBEDDINGS = ("cells", "circle")


@dataclass(frozen=True, kw_only=True)
class WeightedFourier(ResidualMechanism):
    """Weighted Fourier Factorizations.

    Options
    -------
    embedding : "cells" is the Fourier basis on the cells; "circle" embeds attributes with prefixes
        and suffixes only as half circles.
    """

    name: ClassVar[str] = "wff"
    title: ClassVar[str] = "Weighted Fourier Factorizations"
    meaning: ClassVar[str] = "Noise on Fourier coefficients: instant, and optimal for marginals and circular ranges."

    variants: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"embedding": "circle"})

    embedding: str = "cells"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("option embedding", self.embedding, EMBEDDINGS, error=PlanError, public=True)

    def best(self, workload: Workload, budget: Budget, limits: Limits, deadline: float) -> CandidatePlan:
        return self.candidate_plan(workload, budget, limits, deadline, self.split(workload))

    def split(self, workload: Workload) -> Split:
        """Return half-circle centers for attributes with prefixes and suffixes only."""
        if self.embedding == "cells":
            return UNIFORM
        half, other = set[str](), set[str]()
        for group in workload.groups:
            for part in group.parts if group.weight > 0 else ():
                one_sided = part.family.name in ("prefix", "suffix") and min(part.sizes) > 2
                (half if one_sided else other).update(group.attributes[a] for a in part.axes)
        centers = {}
        for name in workload.schema.ranked(half - other):
            centers[name] = np.zeros(workload.schema[name].size)
            centers[name][[0, -1]] = 0.5
        return Split(centers=centers)

    def space_solver(self, workload: Workload, parts: Decomposition, limits: Limits, deadline: float) -> SpaceSolver:
        return SubworkloadSolver(
            factors=parts.factors,
            method="fourier",
            options=Options(deadline=deadline),
            memory_limit=limits.memory_limit,
        )
