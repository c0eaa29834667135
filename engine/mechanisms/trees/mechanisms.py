"""Classic strategies: a fixed set of rows for every attribute, their Kronecker product measured on the whole table.

Source: HDMM, section 8 (the strategies it is compared with), and the papers named in `hierarchies`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from engine.arrays import Array
from engine.errors import PlanError
from engine.mechanisms.base import Forecast, Limits
from engine.mechanisms.explicit import (
    Design,
    ExplicitMechanism,
    asked_attributes,
    check_dense,
    identity_strategy,
    one_component,
)
from engine.mechanisms.trees import hierarchies
from engine.mechanisms.trees.level_selection import level_selection
from engine.mechanisms.trees.levels import LevelOptions
from engine.plans import explicit_strategy
from engine.spaces import Strategy, domain_gram
from engine.workload import Marginal, Total, Workload

LOOKS = 600  # at splits, in a search by levels on one attribute
MARGINALS = 1 / 15  # share of these where only marginals are asked
PER_AXIS, PER_PAIR = 8e-4, 3e-8  # seconds that a look takes, for every attribute and every pair of cells
SMALL = 4  # attributes with fewer cells are measured cell by cell, as categorical ones are


@dataclass(frozen=True, kw_only=True)
class PerAttribute(ExplicitMechanism):
    """Base of the strategies that are a product of rows for each attribute."""

    @abstractmethod
    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        """Return the strategy of a numeric attribute with n cells; ``gram`` is what is asked of it alone.

        Its shape is (n, n).
        """

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        attributes = asked_attributes(workload)
        factors = []
        for axis, name in enumerate(attributes):
            n = workload.schema[name].size
            whole = workload.schema[name].kind == "categorical" or n < SMALL
            factors.append(((axis,), identity_strategy(n) if whole else self.strategy(n, _asked(workload, name), law)))
        return one_component(workload, attributes, tuple(factors))


@dataclass(frozen=True, kw_only=True)
class Hierarchical(PerAttribute):
    """A tree of intervals on every numeric attribute.

    LevelOptions
    -------
    branching : parts of a node, from 2; "best" takes the number with the smallest mean variance (HB).
    """

    name: ClassVar[str] = "hierarchical"
    title: ClassVar[str] = "Hierarchical"
    meaning: ClassVar[str] = "Measures a tree of intervals; a range is then a sum of few noisy numbers."
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"branching": "best"})
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"branching": (2, 4, 8, 16, "best")}

    branching: int | str = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.branching
        if given != "best" and (isinstance(given, bool) or not isinstance(given, int) or given < 2):
            raise PlanError(f"branching was {given!r}. Give a whole number from 2, or 'best'.")

    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        return _tree(n, self.branching, law)


@dataclass(frozen=True, kw_only=True)
class Wavelet(PerAttribute):
    """Haar wavelets on every numeric attribute."""

    name: ClassVar[str] = "wavelet"
    title: ClassVar[str] = "Wavelet (Privelet)"
    meaning: ClassVar[str] = "Measures differences between halves at every scale."

    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        return _wavelet(n, law)


@dataclass(frozen=True, kw_only=True)
class GreedyHierarchical(PerAttribute):
    """A binary tree on every numeric attribute, its nodes weighted for what is asked of the attribute."""

    name: ClassVar[str] = "greedyh"
    title: ClassVar[str] = "GreedyH"
    meaning: ClassVar[str] = "A binary tree of intervals whose nodes are weighted for the workload."

    def strategy(self, n: int, gram: Array, law: str) -> Strategy:
        noise = "laplace" if law == "laplace" else "gaussian"
        return explicit_strategy(hierarchies.greedy_hierarchy(gram, noise), (n,), law)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class LevelSelection(ExplicitMechanism):
    """Boxes of cells added level by level while that pays, on all cells at once."""

    name: ClassVar[str] = "lsa"
    title: ClassVar[str] = "Level selection (LSA)"
    meaning: ClassVar[str] = "Adds levels of boxes greedily while they pay, for domains of a few thousand cells."
    laws: ClassVar[tuple[str, ...]] = ("gaussian",)

    def forecast(self, workload: Workload, limits: Limits) -> Forecast:
        attributes = asked_attributes(workload)
        cells = check_dense(workload, attributes, "Level selection")
        text = f"one problem on {cells:,} cells"
        seconds = 0.1 + looks_at_splits(workload, cells) * (PER_AXIS * len(attributes) + PER_PAIR * cells**2)
        return Forecast(seconds=seconds, memory=120e6 + 80.0 * cells**2, text=text)

    def design(self, workload: Workload, law: str, limits: Limits, found: tuple[Array, ...]) -> Design:
        attributes = asked_attributes(workload)
        cells, sizes = check_dense(workload, attributes, "Level selection"), workload.schema.sizes(attributes)
        if found:
            rows = found[0]
            if rows.ndim != 2 or rows.shape[1] != cells:
                raise ValueError("the recorded rows do not fit")
        else:

            def watch(levels: int, gap: float) -> None:
                limits.tell(1.0 - 1.0 / (1.0 + levels / 10.0), f"Level {levels}, {gap:.0%} above the bound")

            options = LevelOptions(deadline=limits.deadline(), watch=watch)
            rows = level_selection(domain_gram(workload), sizes or (1,), options).square_rows
        factors = ((tuple(range(len(sizes))), explicit_strategy(rows, sizes)),) if sizes else ()
        design = one_component(workload, attributes, factors)
        return Design(components=design.components, matrices=(rows,))


def looks_at_splits(workload: Workload, cells: int) -> float:
    """Return about how often level selection looks at all splits of a level, as counted on a dozen workloads.

    Few queries leave little to split for, and marginals next to nothing.
    """
    asked = [group for group in workload.groups if group.weight > 0.0]
    families = {type(part.family) for group in asked for part in group.parts}
    queries = sum(group.count for group in asked)
    share = MARGINALS if families <= {Marginal, Total} else min(1.0, math.sqrt(queries / cells))
    return LOOKS * share * math.sqrt(max((len(group.attributes) for group in asked), default=1))


def _asked(workload: Workload, name: str) -> Array:
    """Return what is asked of one attribute, whatever the others: its Grams, each with its group's weight, added up."""
    n = workload.schema[name].size
    total = np.zeros((n, n))
    for group in workload.groups:
        for part in group.parts:
            if len(part.axes) == 1 and group.attributes[part.axes[0]] == name and group.weight > 0:
                total += group.weight * part.family.gram(part.sizes)
    return total if total.any() else np.eye(n)


@lru_cache(maxsize=64)
def _tree(n: int, branching: int | str, law: str) -> Strategy:
    if branching == "best":
        rows = hierarchies.hb(n, "laplace" if law == "laplace" else "gaussian")
    else:
        rows = hierarchies.hierarchy(n, int(branching))
    return explicit_strategy(rows, (n,), law)


@lru_cache(maxsize=64)
def _wavelet(n: int, law: str) -> Strategy:
    return explicit_strategy(hierarchies.wavelet(n), (n,), law)
