"""Additional mechanism that the contract tests run like those of the engine."""

import dataclasses
import functools
import math

import numpy as np

import engine.mechanisms.registry
from engine.errors import LimitExceeded
from engine.mechanisms.base import Mechanism, check_request
from engine.plans import Plan
from engine.plans.blocks import calibrate
from engine.residuals import Strategy
from engine.residuals.decomposition import decompose, gram_on_axes, merge_terms


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualIdentity(Mechanism):
    """Measure every residual space with equal noise on its cells."""

    name = "toy"
    title = "Toy"
    meaning = "Equal noise on every cell of a residual space."

    def plan(self, workload, budget, limits):
        """Return the plan that minimises the sum of variances with this strategy in every space."""
        check_request(workload, budget)
        limits.tell(0.0, "Decomposing the workload")
        parts = decompose(workload)
        # ``variances`` has the summed variances of the queries at privacy cost 1, by space.
        variances, bounds, strategies = {}, {}, {}
        for i, (space, (number, scale)) in enumerate(parts.spaces.items()):
            limits.tell((i + 1) / (len(parts.spaces) + 1), "Next residual space")
            sizes = workload.schema.sizes(space)
            if 8 * math.prod(sizes) ** 2 > limits.memory_limit:
                raise LimitExceeded(
                    f"{math.prod(sizes)} cells are more than the memory limit allows."
                )
            sub = parts.subworkloads[number]
            axes = tuple(range(len(sizes)))
            gram = (
                gram_on_axes(merge_terms(sub, parts.factors), axes, sizes).dense()
                if axes
                else sub.terms[0].coefficient
            )
            # squared column norm of the projection on the residual space
            column_norm_squared = math.prod(1 - 1 / n for n in sizes)
            strategies[space] = tuple(((axis,), self._strategy(n)) for axis, n in enumerate(sizes))
            variances[space] = scale * float(np.trace(np.atleast_2d(gram))) * column_norm_squared
            roots = np.sqrt(np.maximum(np.linalg.eigvalsh(np.atleast_2d(gram)), 0.0))
            bounds[space] = scale * float(roots.sum()) ** 2 / math.prod(sizes)
        # The sum of variances is minimal if the cost of a space is proportional to sqrt(variance).
        total = sum(math.sqrt(v) for v in variances.values())
        noises = {s: math.sqrt(total / (budget.pcost * math.sqrt(v))) for s, v in variances.items()}
        limits.tell(1.0, "Planned")
        return Plan(
            workload=workload,
            budget=budget,
            mechanism=self.name,
            options=self.options(),
            blocks=calibrate(strategies, noises, budget.pcost, self.max_records),
            bound=sum(math.sqrt(b) for b in bounds.values()) ** 2,
            statement=(
                "No strategy that measures the residual spaces separately beats the singular value"
                " bound."
            ),
            duals=(),
            max_records=self.max_records,
        )

    def rebuild(self, workload, budget, *solved, **more):
        return self.plan(workload, budget, engine.mechanisms.registry.Limits())

    @staticmethod
    @functools.cache
    def _strategy(n):
        from engine.residuals import basis

        norm = math.sqrt(1 - 1 / n)
        return Strategy(
            sizes=(n,), rows=basis(n).T / norm, pinv=np.eye(n - 1) * norm, complete=True
        )
