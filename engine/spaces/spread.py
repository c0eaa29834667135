"""What groups ask of every residual space, as arrays: of many spaces that are asked alike, one is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.arrays import Array, Index, numbered
from engine.spaces.split import Axes


@dataclass(frozen=True, kw_only=True, eq=False)
class Spreading:
    """Groups that spread alike over the spaces inside them.

    Attributes
    ----------
    numbers : which groups of the workload, in order, shape (groups,).
    places : their attributes, as positions in the schema and in its order, shape (groups, attributes).
    weights : of the groups, shape (groups,).
    pattern : for every space inside a group the positions of its attributes, what is asked of it, by a number, and how
        often.
    """

    numbers: Index
    places: Index
    weights: Array
    pattern: Sequence[tuple[Axes, int, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class AskedSpaces:
    """All spaces on so many attributes, in the order in which the groups come to them.

    Attributes
    ----------
    places : their attributes, as positions in the schema, shape (spaces, attributes).
    kinds : the number of their kind, shape (spaces,); spaces of one kind are asked the same, of attributes alike.
    asked : for every kind what is asked, by number, with the sum of weights times how often.
    reached : for every kind a number that is smaller where the groups come to it earlier, sizes compared; (kinds,).
    """

    places: Index
    kinds: Index
    asked: list[dict[int, float]]
    reached: Index


def asked_spaces(
    spreading: Sequence[Spreading], looks: Index, exact: Sequence[Sequence[int]] = ()
) -> list[AskedSpaces]:
    """Return what the groups ask of all spaces, by the number of attributes.

    ``looks`` tells attributes apart, by numbers from 0 on, shape (attributes,).  Sums are taken in the order of groups.
    Spaces inside ``exact`` sets of attributes are left out.

    >>> one = Spreading(
    ...     numbers=np.array([0, 1]),
    ...     places=np.array([[0, 1], [1, 2]]),
    ...     weights=np.ones(2),
    ...     pattern=[((), 0, 4.0), ((0,), 1, 2.0), ((1,), 1, 2.0)],
    ... )
    >>> total, single = asked_spaces([one], np.array([0, 0, 0]))
    >>> total.asked, single.places.tolist(), single.kinds.tolist(), single.asked
    ([{0: 8.0}], [[0], [1], [2]], [0, 1, 0], [{1: 2.0}, {1: 4.0}])
    """
    longest = max((len(own.pattern) for own in spreading), default=1)
    # of many groups of one size those with pieces at the same positions are taken together
    alike: dict[tuple[int, Axes], list[tuple[Spreading, int, int, float]]] = {}
    for own in spreading:
        for i, (positions, number, often) in enumerate(own.pattern):
            alike.setdefault((own.places.shape[1], positions), []).append((own, i, number, often))
    by_size: dict[int, list[tuple[Index, Index, Index, Array]]] = {}
    for (_, positions), pieces in alike.items():
        owns, ranks, numbers, times = zip(*pieces, strict=True)
        counts = [len(own.numbers) for own in owns]
        when = np.concatenate([own.numbers for own in owns]) * longest + np.repeat(ranks, counts)
        places = np.concatenate([own.places for own in owns])[:, list(positions)]
        weights = np.concatenate([own.weights for own in owns]) * np.repeat(times, counts)
        asked = np.repeat(numbers, counts)
        for known in exact:
            left = ~np.isin(places, known).all(axis=1)
            when, places, weights, asked = when[left], places[left], weights[left], asked[left]
        if len(when):
            by_size.setdefault(len(positions), []).append((when, places, asked, weights))
    return [_of_one_size(by_size[k], looks) for k in sorted(by_size)]


def _of_one_size(found: Sequence[tuple[Index, Index, Index, Array]], looks: Index) -> AskedSpaces:
    when, places, asked, weights = (np.concatenate(own) for own in zip(*found, strict=True))
    order = np.argsort(when, kind="stable")
    when, places, asked = when[order], places[order], asked[order]
    firsts, space = numbered(places)
    by_time = np.argsort(firsts, kind="stable")  # spaces in the order in which the groups come to them
    firsts, space = firsts[by_time], np.argsort(by_time, kind="stable")[space]
    # what a space is asked, sorted by space and number, with sums in the order of the groups
    of_pair, pair = numbered(np.column_stack([space, asked]))
    sums = np.bincount(pair, weights[order], minlength=len(of_pair))
    _, value = np.unique(sums, return_inverse=True)
    _, look = numbered(np.column_stack([asked[of_pair], value]))
    counts = np.bincount(space[of_pair], minlength=len(firsts))
    starts = np.cumsum(counts) - counts
    _, kind = numbered(looks[places[firsts]])
    for r in range(int(counts.max(initial=0))):
        has = counts > r
        more = np.zeros(len(firsts), dtype=np.int64)
        more[has] = 1 + look[starts[has] + r]
        _, kind = numbered(np.column_stack([kind, more]))
    examples, kind = numbered(kind[:, None])
    by_time = np.argsort(examples, kind="stable")
    examples, kind = examples[by_time], np.argsort(by_time, kind="stable")[kind]
    told = []
    for k in examples.tolist():
        own = np.arange(starts[k], starts[k] + counts[k])
        own = own[np.argsort(when[of_pair[own]], kind="stable")]
        told.append(dict(zip(asked[of_pair[own]].tolist(), sums[own].tolist(), strict=True)))
    return AskedSpaces(places=places[firsts], kinds=kind, asked=told, reached=when[firsts[examples]])
