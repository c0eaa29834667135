"""What every kind of group asks, as sums over residual spaces of products over attributes.

The variance of a query is the sum over the spaces inside its group of noise times a factor times one number an
attribute: (q . pi)^2 outside of the space, what its strategy leaves inside.  Attributes whose cells are asked alike
have one best strategy, whatever the weights, and are in the factor.  All others are lines.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.arrays import Array
from engine.mechanisms.query_weights import even
from engine.plans import Emphasis, Objective, Symmetry, symmetry
from engine.spaces import Space, Split, center, digest
from engine.workload import Group, Part, Workload

MOST_POINTS = 8_000_000  # queries of all kinds of groups, on lines alone
MOST_ROWS = 8_000_000  # numbers in the rows of all lines
APART = 40  # lines up to which every kind of space has its own: beyond, ...
PAIR = 2  # ... those on more attributes than this share with others on as many


def points(workload: Workload, goal: Objective, split: Split) -> int:
    """Return the queries on lines alone of all groups that differ, 0 where the search of this folder is not for them.

    It is for queries that are products over attributes.  Of groups with one line at most the factored weights of
    `reweighted` say all that there is to say.
    """
    if not math.isinf(goal.power) or split.complements or split.unions:
        return 0
    groups = {group.key: group for group in workload.groups if group.weight > 0}.values()
    if any(g.query_weights is not None or any(len(p.axes) > 1 for p in g.parts) for g in groups):
        return 0
    uneven = [[p for p in g.parts if not flat(p, split.centers.get(g.attributes[p.axes[0]]))] for g in groups]
    rows = {p.key: p.count * p.cells for own in uneven for p in own}
    found = sum(math.prod(p.count for p in own) for own in uneven)
    few = any(len(own) > 1 for own in uneven) and sum(rows.values()) <= MOST_ROWS and found <= MOST_POINTS
    return found if few else 0


def fits(workload: Workload, goal: Objective, split: Split) -> bool:
    """Return whether the search of this folder is for such a workload."""
    return points(workload, goal, split) > 0


def flat(part: Part, pi: Array | None) -> bool:
    """Return whether all queries of a part on one attribute are asked alike, and all its cells; pi has shape (n,)."""
    if pi is not None or part.count > part.cells or not even(part):
        return False
    rows = part.family.rows(part.sizes)
    return not np.ptp(rows.sum(axis=1)) and not np.ptp((rows**2).sum(axis=1))


def parts_of(workload: Workload) -> dict[str, tuple[Part, ...]]:
    """Return the different parts that weighted groups ask of every attribute, in an order of their own."""
    out: dict[str, dict[str, Part]] = {}
    for group in {g.attributes: g for g in workload.groups}.values():
        for name in group.attributes:
            out.setdefault(name, {})
    for group in workload.groups:
        for part in group.parts if group.weight > 0 else ():
            out[group.attributes[part.axes[0]]].setdefault(repr(part.key), part)
    return {name: tuple(parts[key] for key in sorted(parts)) for name, parts in out.items()}


class Arranged:
    """A workload whose groups have their parts in one order, so that those alike are told whatever the schema's order.

    Attributes
    ----------
    workload : the same groups, their parts arranged.
    orders : for every group where its parts stood before.
    same : kinds of groups and spaces.
    """

    def __init__(
        self, workload: Workload, spaces: Sequence[Space], goal: Objective, labels: Mapping[str, Hashable], split: Split
    ) -> None:
        looks = {n: (str(labels.get(n)), str(digest(split.centers.get(n)))) for n in workload.schema.names}
        kinds: Mapping[Space, int] = {}
        for _ in range(2):  # the second time, parts that are alike stand as what their attributes are asked elsewhere
            self.orders = [self._order(group, looks, kinds) for group in workload.groups]
            arranged = [_arranged(g, order) for g, order in zip(workload.groups, self.orders, strict=True)]
            self.workload = Workload(workload.schema, tuple(arranged))
            self.same: Symmetry = symmetry(self.workload, spaces, goal, labels, split, ordered=False)
            kinds = self.same.spaces

    @staticmethod
    def _order(group: Group, looks: Mapping[str, Hashable], kinds: Mapping[Space, int]) -> tuple[int, ...]:
        names = [group.attributes[part.axes[0]] for part in group.parts]
        keys = [
            (repr(part.key), looks[name], kinds.get((name,), -1)) for part, name in zip(group.parts, names, strict=True)
        ]
        return tuple(sorted(range(len(keys)), key=keys.__getitem__))

    def emphasis(self, found: Emphasis) -> Emphasis:
        """Return weights of the arranged workload as those of the one that was given."""
        numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        kinds = tuple(
            numbers.setdefault((kind, order), len(numbers)) if kind >= 0 else -1
            for kind, order in zip(found.kinds, self.orders, strict=True)
        )
        return Emphasis(
            kinds=kinds,
            weights=np.array([found.weights[kind] for kind, _ in numbers]),
            uses=tuple(tuple(found.uses[kind][order.index(p)] for p in range(len(order))) for kind, order in numbers),
            whole=tuple(found.whole[kind] for kind, _ in numbers),
            vectors=found.vectors,
        )


def _arranged(group: Group, order: tuple[int, ...]) -> Group:
    names = tuple(group.attributes[group.parts[p].axes[0]] for p in order)
    parts = tuple(replace(group.parts[p], axes=(axis,)) for axis, p in enumerate(order))
    return replace(group, attributes=names, parts=parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One kind of groups.

    Attributes
    ----------
    number : the kind.
    groups : how many there are.
    target : target variance of the queries.
    alike : queries of a group on its other attributes, which are asked alike.
    parts : positions of the parts that are lines.
    spaces : kind of every residual space inside.
    factors : what stands before the product over lines, shape (spaces,).
    lines : number of the line of every part in every space, -1 where the space has not its attribute.
    outside : (q . pi)^2 of the queries of every part, shape (queries,) each.
    windows : where the queries of every part stand among those of its line.
    """

    number: int
    groups: float
    target: float
    alike: int
    parts: tuple[int, ...]
    spaces: tuple[int, ...]
    factors: Array
    lines: tuple[tuple[int, ...], ...]
    outside: tuple[Array, ...]
    windows: tuple[slice, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Queries of every part that is a line."""
        return tuple(map(len, self.outside))


class Layout:
    """All kinds of groups of a workload, and the lines of their spaces.

    Attributes
    ----------
    kinds : kinds of groups.
    rows : for every line its rows on cells, shape (queries, cells).
    numbers : (space, attribute) -> number of its line, for all spaces with a line.
    """

    def __init__(self, workload: Workload, same: Symmetry, goal: Objective, split: Split) -> None:
        self.workload, self.same, self.goal, self.split = workload, same, goal, split
        self.parts = parts_of(workload)
        self._flat: dict[Hashable, bool] = {}
        self._rows: dict[Hashable, Array] = {}
        spaces = list(same.spaces)
        self.curved = {
            name: any(not self._is_flat(p, name) for p in parts) or len(parts) > 1 for name, parts in self.parts.items()
        }
        apart = {self._key(s, name, True): 0 for s in spaces for name in s if self.curved[name]}
        self.apart = len(apart) <= APART
        numbers: dict[Hashable, int] = {}
        self.numbers: dict[tuple[Space, str], int] = {}
        self.rows: list[Array] = []
        for s in spaces:
            for name in s:
                if self.curved[name]:
                    number = numbers.setdefault(self._key(s, name, self.apart), len(numbers))
                    self.numbers[s, name] = number
                    if number == len(self.rows):
                        self.rows.append(self._class_rows(name))
        self.kinds = [self._kind(k, workload.groups[i]) for k, i in enumerate(same.examples)]

    def _is_flat(self, part: Part, name: str) -> bool:
        key = (part.key, digest(self.split.centers.get(name)))
        if key not in self._flat:
            self._flat[key] = flat(part, self.split.centers.get(name))
        return self._flat[key]

    def _key(self, space: Space, name: str, apart: bool) -> Hashable:
        """Return what spaces share whose strategies on an attribute are one line."""
        roles = {n: self.same.spaces.get((n,), n) for n in space}
        own = (roles[name], tuple(p.key for p in self.parts[name]), digest(self.split.centers.get(name)))
        if apart or len(space) <= PAIR:
            return own, self.same.spaces[space]
        # the other attributes matter by their number alone: whatever the size, their cells are asked alike
        return own, tuple(sorted(str(roles[n]) for n in space if self.curved[n])), len(space)

    def _class_rows(self, name: str) -> Array:
        pi, parts = self.split.centers.get(name), self.parts[name]
        key = (tuple(p.key for p in parts), digest(pi))
        if key not in self._rows:
            rows = np.concatenate([p.family.rows(p.sizes) for p in parts])
            self._rows[key] = rows - (rows @ center(rows.shape[1], pi))[:, None]
        return self._rows[key]

    def _kind(self, number: int, group: Group) -> Kind:
        schema, same = self.workload.schema, self.same
        names = [group.attributes[p.axes[0]] for p in group.parts]
        lines = tuple(k for k, name in enumerate(names) if self.curved[name])
        outside, inside = [], []
        for part, name in zip(group.parts, names, strict=True):
            outside.append(part.family.dot(part.sizes, center(part.sizes[0], self.split.centers.get(name))) ** 2)
            # the identity is best for cells that are asked alike; at uniform centers it costs 1 - 1/n
            rows = part.family.rows(part.sizes) if not self.curved[name] else np.zeros((1, part.sizes[0]))
            classes = (rows - rows.mean(axis=1, keepdims=True))[0]
            inside.append(float(classes @ classes) * (1.0 - 1.0 / part.sizes[0]))
        spaces, factors, used = [], [], []
        for axes in group.spaces(schema):
            space = group.named(axes)
            if space not in same.spaces:
                continue
            spaces.append(same.spaces[space])
            others = [k for k in range(len(names)) if k not in lines]
            factors.append(math.prod(inside[k] if names[k] in space else float(outside[k][0]) for k in others))
            used.append(tuple(self.numbers[space, names[k]] if names[k] in space else -1 for k in lines))
        starts = []
        for k in lines:
            before = 0
            for part in self.parts[names[k]]:
                if part.key == group.parts[k].key:
                    break
                before += part.count
            starts.append(slice(before, before + group.parts[k].count))
        return Kind(
            number=number,
            groups=float(same.sizes[number]),
            target=self.goal.target(same.examples[number]),
            alike=math.prod(p.count for k, p in enumerate(group.parts) if k not in lines),
            parts=lines,
            spaces=tuple(spaces),
            factors=np.array(factors),
            lines=tuple(used),
            outside=tuple(outside[k] for k in lines),
            windows=tuple(starts),
        )
