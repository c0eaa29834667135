"""Residual spaces: coordinates, one Gram matrix a space, optimal strategies with certified gaps, splits, lower bounds.

To touch: a solver is one class in `solvers` and one name in ``search.PROBLEMS``; `bounds` holds for all mechanisms.
Everything is a function of the workload alone, whatever the budget.
"""

from engine.spaces.bounds import (
    best_bound,
    domain_gram,
    exact_bound,
    global_bound,
    independent_bound,
    small_domain,
    whole_problem,
)
from engine.spaces.cache import Bounded, SolveCache, default_cache
from engine.spaces.coordinates import (
    Lift,
    SplitLift,
    WholeDomain,
    basis,
    center,
    class_rows,
    contract,
    grouped,
    part_of,
    pieces,
    positions,
    tables,
    ungrouped,
)
from engine.spaces.dearest import dearest_cell
from engine.spaces.decomposition import Decomposition, Factor, Subworkload, decompose
from engine.spaces.search import PROBLEMS, Cost, Search, dense_bytes
from engine.spaces.solvers import DualProblem, Options, Solution, Watch
from engine.spaces.split import UNIFORM, Axes, Complement, Space, Split, digest
from engine.spaces.splits import (
    Allowance,
    SplitMemory,
    choose_unions,
    fewer,
    split_seconds,
    strategy_seconds,
    union_bytes,
    union_seconds,
    unite,
    ways_to_split,
)
from engine.spaces.strategy import LEAVING, Strategy
from engine.spaces.subworkload import SpaceSolution, SubworkloadSolver
from engine.spaces.terms import merge

__all__ = [
    "LEAVING",
    "PROBLEMS",
    "UNIFORM",
    "Allowance",
    "Axes",
    "Bounded",
    "Complement",
    "Cost",
    "Decomposition",
    "DualProblem",
    "Factor",
    "Lift",
    "Options",
    "Search",
    "Solution",
    "SolveCache",
    "Space",
    "SpaceSolution",
    "Split",
    "SplitLift",
    "SplitMemory",
    "Strategy",
    "Subworkload",
    "SubworkloadSolver",
    "Watch",
    "WholeDomain",
    "basis",
    "best_bound",
    "center",
    "choose_unions",
    "class_rows",
    "contract",
    "dearest_cell",
    "decompose",
    "default_cache",
    "dense_bytes",
    "digest",
    "domain_gram",
    "exact_bound",
    "fewer",
    "global_bound",
    "grouped",
    "independent_bound",
    "merge",
    "part_of",
    "pieces",
    "positions",
    "small_domain",
    "split_seconds",
    "strategy_seconds",
    "tables",
    "ungrouped",
    "union_bytes",
    "union_seconds",
    "unite",
    "ways_to_split",
    "whole_problem",
]
