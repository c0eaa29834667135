"""The bound from weights on all cells at once, where the domain is small: nothing but the search's gap is lost."""

from __future__ import annotations

import math

import numpy as np

from engine.arrays import Array
from engine.spaces.bounds.norms import proved, root_trace
from engine.spaces.coordinates import WholeTable
from engine.spaces.decomposition import Factor
from engine.spaces.solvers import DualProblem, Options
from engine.spaces.split import Space
from engine.threads import threads_for
from engine.workload import Workload

SMALL = 512  # cells of a domain up to which the bound is searched on the domain itself


def exact_bound(workload: Workload, gap: float = 1e-4, law: str = "gaussian") -> float:
    """Return the best such bound of a small domain, from the dual of the whole problem; see `small_domain`."""
    problem = whole_problem(workload)
    with threads_for(problem.lift.cells):
        mass, _ = problem.maximise(Options(gap=gap))
        T = math.fsum(root_trace((W * mass) @ W.T, derivative=False)[0] for W in problem.projected)
    return proved(T, law) / float(mass.sum())


def whole_problem(workload: Workload) -> DualProblem:
    """Return the problem of the best strategy on all cells of the attributes that are asked about."""
    sizes = workload.schema.sizes(asked(workload))
    lift = WholeTable(sizes)
    gram = lift.classes(lift.classes(domain_gram(workload)).T)
    return DualProblem(lift=lift, factor=Factor(sizes=sizes, matrix=gram))


def asked(workload: Workload) -> Space:
    """Return the attributes that some group asks about, in schema order."""
    names = {name for g in workload.groups for name in g.attributes}
    return tuple(name for name in workload.schema.names if name in names)


def small_domain(workload: Workload, cells: int = SMALL) -> bool:
    """Return whether the attributes that are asked about have at most this many cells together."""
    return math.prod(workload.schema.sizes(asked(workload))) <= cells


def domain_gram(workload: Workload) -> Array:
    """Return W^T diag(weights) W on all cells of the attributes that are asked about; shape (cells, cells)."""
    names = asked(workload)
    sizes = workload.schema.sizes(names)
    cells = math.prod(sizes)
    out = np.zeros((cells, cells))
    for group in workload.groups:
        if not group.is_weighted:
            continue
        order = [names.index(n) for n in group.attributes]
        if group.query_weights is None:
            matrix, axes = np.ones((1, 1)), list[int]()
            for part in group.parts:
                matrix = np.asarray(np.kron(matrix, part.family.gram(part.sizes)), dtype=float)
                axes += [order[a] for a in part.axes]
        else:
            rows, axes = np.ones((1, 1)), []
            for part in group.parts:
                rows = np.asarray(np.kron(rows, part.family.rows(part.sizes)), dtype=float)
                axes += [order[a] for a in part.axes]
            matrix = (rows * group.query_weights[:, None]).T @ rows
        rest = [a for a in range(len(sizes)) if a not in axes]
        matrix = np.asarray(np.kron(matrix, np.ones((math.prod(sizes[a] for a in rest),) * 2)), dtype=float)
        place = [(axes + rest).index(a) for a in range(len(sizes))]
        shape = [sizes[a] for a in axes + rest]
        moved = matrix.reshape([*shape, *shape]).transpose(*place, *(len(sizes) + p for p in place))
        out += group.weight * moved.reshape(cells, cells)
    return out
