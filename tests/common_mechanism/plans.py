"""Plans of small workloads, and their blocks as rows on the full domain."""

import math

import numpy as np

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Workload
from tests.oracles import block_rows
from tests.shapes import numeric

RECORDS = 10_000  # small, so that rounding of dense blocks raises the noise by at most 1e-10


def ways(sizes, k, family="marginal"):
    return Workload.all_ways(numeric(*sizes), ways=k, family=family)


def make_plan(workload, pcost=1.0, mechanism="querysmasher", **options):
    return plan(
        workload, Budget(pcost=pcost), mechanism, max_records=RECORDS, cache=False, **options
    )


def rows_of(plan_schema, blocks):
    """Return the weighted strategy rows, each divided by the noise of its block.

    The shape is (measurements, cells of the domain).
    """
    rows = [np.zeros((0, math.prod(a.size for a in plan_schema.attributes)))]
    for block in blocks.values():
        weights = 1.0 if block.weights is None else block.weights.reshape(-1, 1)
        rows.append(weights * block_rows(plan_schema, block) / block.noise)
    return np.concatenate(rows)


def cost_of(plan_schema, blocks):
    rows = rows_of(plan_schema, blocks)
    return rows.T @ rows
