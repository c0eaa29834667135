"""One product of strategies on the table of all asked attributes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from engine.errors import NotApplicable
from engine.mechanisms.explicit import Design
from engine.mechanisms.products.grams import GramBuilder, weighted_groups
from engine.mechanisms.products.kronecker import KroneckerSolver, Tell, product_component, search_seconds
from engine.workload import Workload

RESTARTS, GAP = 2, 1e-5  # as HDMM takes them where nothing is said
CELLS = 100_000  # most cells of the table


def table_seconds(workload: Workload) -> float:
    """Return what the search for the product takes, in seconds on one idle core; infinite where there is none.

    There is none where all attributes are coupled, or where the table or a factor is too large.

    >>> from engine import Attribute, Schema
    >>> pair = Workload(Schema([Attribute.of_size(c, 4) for c in "ab"])).add(("a", "b"), "affine")
    >>> table_seconds(pair), table_seconds(Workload(pair.schema).add(("a", "b"), "prefix")) < 0.1
    (inf, True)
    """
    asked = {place for alike in workload.alike for place in np.unique(alike.places).tolist()}
    if math.prod(workload.schema.attributes[place].size for place in asked) > CELLS:
        return math.inf
    try:
        problem = GramBuilder(workload).build(weighted_groups(workload))
    except NotApplicable:
        return math.inf
    return search_seconds(problem, RESTARTS) if len(problem.units) > 1 else math.inf


def table_design(workload: Workload, deadline: float, tell: Tell) -> Design:
    """Return the design of the product, for Gaussian noise; ``tell`` hears of every search, and may raise to cancel."""
    solver = KroneckerSolver("gaussian", restarts=RESTARTS, gap=GAP, deadline=deadline, tell=tell)
    problem = GramBuilder(workload).build(weighted_groups(workload))
    component = product_component(workload, problem, solver.solve(problem), 1.0)
    # groups without weight are asked, too
    able = (k for k, g in enumerate(workload.groups) if set(g.attributes) <= set(problem.attributes))
    component = replace(component, groups=tuple(able))
    arrays = Design(components=(component,)).arrays(workload.schema)
    return Design.from_arrays(arrays, workload, "gaussian")
