"""Groups that ask the same of other attributes, as arrays: of a hundred thousand groups few have to be looked at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from engine.arrays import Index, numbered

if TYPE_CHECKING:
    from engine.workload.groups import Group

_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True, eq=False)
class AlikeGroups:
    """Groups whose queries and ranks are the same.

    Attributes
    ----------
    numbers : which groups of the workload, in order, shape (groups,).
    ranks : positions of their attributes, those first that come first in the schema.
    places : their attributes, as positions in the schema and in its order, shape (groups, attributes).
    """

    numbers: Index
    ranks: tuple[int, ...]
    places: Index


def subsets(items: Sequence[_Item]) -> Iterator[tuple[_Item, ...]]:
    """Yield all subsets in the order of the items, small ones first.

    >>> list(subsets("ab"))
    [(), ('a',), ('b',), ('a', 'b')]
    """
    return itertools.chain.from_iterable(itertools.combinations(items, k) for k in range(len(items) + 1))


def alike_groups(groups: Sequence[Group], order: Mapping[str, int]) -> list[AlikeGroups]:
    """Return the kinds of groups, in the order of their first ones; ``order`` has the positions of attributes."""
    flat = [part for group in groups for part in group.parts]
    unlike = {id(part): part for part in flat}  # the groups keep them alive
    known: dict[Any, int] = {}
    number = {i: known.setdefault((part.axes, part.key), len(known)) for i, part in unlike.items()}
    parts = np.fromiter(map(number.__getitem__, map(id, flat)), np.int64, len(flat))
    names = itertools.chain.from_iterable([group.attributes for group in groups])
    places = np.fromiter(map(order.__getitem__, names), np.int64)
    own = {i: known.setdefault(g.key, len(known)) for i, g in enumerate(groups) if g.query_weights is not None}
    # 0 is for no weights: `known` counts from 0 where no group has a part
    weights = np.array([1 + own.get(i, -1) for i in range(len(groups))] if own else [0] * len(groups), dtype=np.int64)
    shapes = np.array([(len(g.attributes), len(g.parts)) for g in groups], dtype=np.int64).reshape(-1, 2)
    start_of_places, start_of_parts = (np.cumsum(shapes, axis=0) - shapes).T
    out = []
    first, shape = numbered(shapes)
    for s, (k, count) in enumerate(shapes[first].tolist()):
        members = np.flatnonzero(shape == s)
        at = places[start_of_places[members, None] + np.arange(k)]
        ranks = np.argsort(at, axis=1, kind="stable")
        asked = parts[start_of_parts[members, None] + np.arange(count)]
        firsts, kind = numbered(np.column_stack([asked, ranks, weights[members]]))
        sorted_places = np.take_along_axis(at, ranks, axis=1)
        for number_of_kind, example in enumerate(firsts.tolist()):
            chosen = kind == number_of_kind
            out.append(
                AlikeGroups(numbers=members[chosen], ranks=tuple(ranks[example].tolist()), places=sorted_places[chosen])
            )
    return sorted(out, key=lambda alike: int(alike.numbers[0]))


def outside(alike: Sequence[AlikeGroups], spaces: Sequence[Sequence[int]]) -> Index:
    """Return the numbers, in order, of groups with attributes whose set is not among ``spaces``, of rising positions.

    That is of groups with at least one such set, of all sets of attributes inside the group; shape (numbers,).
    """
    out: list[Index] = [np.zeros(0, dtype=np.int64)]
    for size in range(1 + max((len(own.ranks) for own in alike), default=0)):
        own_size = [space for space in spaces if len(space) == size]
        known = np.array(own_size, dtype=np.int64).reshape(len(own_size), size)
        inside = [
            (own.numbers, own.places[:, list(positions)])
            for own in alike
            for positions in itertools.combinations(range(len(own.ranks)), size)
        ]
        _, kind = numbered(np.concatenate([known, *(places for _, places in inside)]))
        held = np.zeros(int(kind.max(initial=0)) + 1, dtype=bool)
        held[kind[: len(known)]] = True
        groups = np.concatenate([numbers for numbers, _ in inside])
        out.append(groups[~held[kind[len(known) :]]])
    return np.unique(np.concatenate(out))
