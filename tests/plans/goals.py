"""Cached plans for objectives other than the weighted sum, and their brute-force values."""

import base64
import functools
import math

import numpy as np

from engine.mechanisms import plan
from engine.mechanisms.registry import MECHANISMS
from engine.mechanisms.residual_base import ResidualMechanism
from engine.privacy import Budget
from tests import oracles, shapes

ONE = Budget(pcost=1.0)
SHAPES = (
    "nested",
    "query_weighted",
    "coupled",
    "zero_weight_covered",
    "total_only",
    "custom_matrix",
    "same_size",
)
GOALS = ({"objective": "max"}, {"objective": "lp", "power": 3.0})
SLACK = 1e-6

RESIDUAL = [m for m in MECHANISMS if issubclass(m, ResidualMechanism)]


@functools.cache
def cached_plan(mechanism, shape, objective, power=2.0, centers="uniform"):
    more = {} if centers == "uniform" else {"centers": centers}
    return plan(shapes.SHAPES[shape](), ONE, mechanism, objective=objective, power=power, **more)


def value_of(result, objective, power=2.0, targets=None):
    """Return the value of the objective, by brute force on the dense matrices of a plan."""
    workload, explicit = result.workload, oracles.Explicit(result)
    rows, weights = oracles.workload_rows(workload), oracles.query_weights(workload)
    total, largest = 0.0, 0.0
    for i, (W, w) in enumerate(zip(rows, weights, strict=True)):
        variances = explicit.variances(W)[w > 0]
        if len(variances):
            target = 1.0 if targets is None else targets[i]
            largest = max(largest, float(variances.max()) / target**2)
            total += float(np.sum(w[w > 0] * variances**power))
    if objective == "max":
        return math.sqrt(largest)
    return (total / workload.queries) ** (0.5 / power)


def packed(*values):
    return base64.b64encode(np.array(values, dtype="<f8").tobytes()).decode()
