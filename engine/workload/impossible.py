"""Structural zeros: cells that no record can have, told by rules such as "age < 15 and married == 'yes'".

A rule is a predicate in the language of `predicates`.  Rules that share attributes are read together, on all of their
attributes, so that what follows from several of them is known exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import SchemaError, WorkloadError
from engine.texts import set_name, shown
from engine.workload.attribute import Attribute, sequence
from engine.workload.predicates import evaluate, named_in
from engine.workload.schema_text import MAX_LABEL, check_text

MOST_RULES = 100
MOST_CELLS = 2**20  # of the attributes of rules that are read together


@dataclass(frozen=True, kw_only=True, eq=False)
class Impossible:
    """What facts that share attributes say: the share of the records in every cell, of shape (n_1, ..., n_k).

    The shares sum to 1 and are even as far as the facts allow; 0 is a cell that none may have.
    """

    names: tuple[str, ...]
    share: npt.NDArray[np.float64] = field(repr=False)

    def possible(self, names: Iterable[str]) -> npt.NDArray[np.float64]:
        """Return the share of the records in every cell of some of the attributes, in the order of ``names``.

        Shape as the sizes of those; 0 exactly where a cell is impossible.
        """
        own = [self.names.index(name) for name in names]
        kept = self.share.sum(axis=tuple(a for a in range(self.share.ndim) if a not in own))
        return np.asarray(kept).transpose([sorted(own).index(a) for a in own])


def checked_rules(rules: Any) -> tuple[str, ...]:
    """Return rules as distinct texts.  Raises: SchemaError."""
    found = tuple(
        sequence((rules,) if isinstance(rules, str) else rules, "rules of impossible cells", "a list of texts")
    )
    if len(found) > MOST_RULES:
        raise SchemaError(f"{len(found):,} rules of impossible cells; at most {MOST_RULES} are read")
    for rule in found:
        check_text(rule, "rule of impossible cells", MAX_LABEL)
    if len(set(found)) < len(found):
        raise SchemaError("a rule of impossible cells is there twice; give each once")
    return found


def read_rules(rules: Sequence[str], attributes: Sequence[Attribute]) -> tuple[Impossible, ...]:
    """Return what rules say, those that share attributes together.

    Raises: SchemaError for a rule that cannot be read, or holds nowhere; for rules that leave no cell possible, and for
    rules that together are about too many cells.
    """
    together: list[tuple[set[int], list[str]]] = []
    for rule in rules:
        try:
            own = set(named_in(rule, attributes))
        except WorkloadError as error:
            raise SchemaError(f"a rule of impossible cells: {error}") from None
        members = [rule]
        for other in [found for found in together if found[0] & own]:
            together.remove(other)
            own, members = own | other[0], other[1] + members
        together.append((own, members))
    return tuple(_read(members, [attributes[i] for i in sorted(own)]) for own, members in together)


def _read(rules: Sequence[str], attributes: Sequence[Attribute]) -> Impossible:
    names, shape = tuple(a.name for a in attributes), tuple(a.size for a in attributes)
    if math.prod(shape) > MOST_CELLS:
        raise SchemaError(
            f"the rules of impossible cells on {set_name(names)} are about {math.prod(shape):,} cells together; at "
            f"most {MOST_CELLS:,} are read. Use fewer attributes in rules that share one"
        )
    cells = np.zeros(shape, dtype=bool)
    for rule in rules:
        try:
            held = evaluate(rule, attributes).reshape(shape) > 0.0
        except WorkloadError as error:
            raise SchemaError(f"a rule of impossible cells: {error}") from None
        if not held.any():
            raise SchemaError(
                f"the rule of impossible cells {shown(rule)} holds for no cell; correct it, or leave it out"
            )
        cells |= held
    if cells.all():
        raise SchemaError(f"the rules of impossible cells leave nothing possible on {set_name(names)}; correct one")
    return Impossible(names=names, share=~cells / np.count_nonzero(~cells))
