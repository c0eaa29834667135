"""Objectives of plans and their linearised query weights.

Objectives beyond the weighted sum: the largest variance, and norms between the two.

    name    minimised, over the queries of weight w above 0           p
    sum     sum of w Var                                              1
    lp      (sum of w Var^p)^(1/p)                                    option ``power``, from 1
    max     largest Var / target^2, targets 1 unless given            infinite; weights only choose the queries

Every one is a norm of the variances, so it is the largest weighted sum  sum of u Var  over weights u whose dual norm
is 1.  So any u gives a lower bound: the best weighted sum for u over the dual norm of u.

Source: Weighted Fourier Factorizations, lemma 3.9 (largest variance) and remark 3.12 (norms between).

Emphasis: weights that say which queries decide an objective, and the workload with those weights.

An objective such as the largest variance is a maximum over weighted sums of variances.  The weights that attain it
turn the problem back into a weighted sum, which every residual mechanism solves.  To keep a product group a product,
its queries are weighted by one vector for each part; a group of one part, or a small one, has a vector of its own.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from engine._arrays import Array
from engine.errors import PlanError
from engine.plans.blocks import Block
from engine.plans.variance import Footprint, GroupVariance, VarianceBuilder, footprint
from engine.residuals import Space, Split, digest
from engine.workload import Attribute, Family, Group, Part, Workload

OBJECTIVES = ("sum", "max", "lp")
LARGEST_POWER = 100.0


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A norm of the variances.

    Attributes
    ----------
    power : p from 1, infinite for the largest variance.
    targets : target variance of the queries of every group, in counts^2, shape (groups,); None for 1 each.
    """

    power: float
    targets: tuple[float, ...] | None = None

    @property
    def linear(self) -> bool:
        """Whether this is the weighted sum, which has a closed form."""
        return self.power == 1.0

    @property
    def conjugate(self) -> float:
        """The power of the dual norm, 1 / power + 1 / conjugate = 1."""
        return 1.0 if math.isinf(self.power) else self.power / (self.power - 1.0)

    def target(self, group: int) -> float:
        """Target variance of a group's queries."""
        return 1.0 if self.targets is None else self.targets[group]

    def mean(self, total: float, queries: int) -> float:
        """Return a norm of the variances as a standard error in counts (or a share of the target)."""
        # the norm is a sum of p-th powers under a p-th root: per query, and as a root of a variance, it is a standard
        # error
        return math.sqrt(total) / (1.0 if math.isinf(self.power) else queries ** (0.5 / self.power))


def objective(name: str, power: float = 2.0, targets: Any = None, workload: Workload | None = None) -> Objective:
    """Return the objective of this name; ``targets`` are standard errors, one for all groups or one a group.

    >>> objective("lp", power=4.0).power
    4.0
    """
    if targets is None or workload is None:
        return Objective(power={"sum": 1.0, "max": math.inf}.get(name, power))
    values = (targets,) * len(workload.groups) if isinstance(targets, float) else tuple(targets)
    if len(values) != len(workload.groups):
        raise PlanError(
            f"There are {len(values)} targets for {len(workload.groups)} groups. Give one for each group, or one "
            "number for all."
        )
    # targets are standard errors to people, and everything inside is a variance
    return Objective(power=math.inf, targets=tuple(v * v for v in values))


def check_targets(targets: Any) -> float | tuple[float, ...]:
    """Return targets as a number, or a tuple with one number a group; raise PlanError when they are none."""
    several = isinstance(targets, (Sequence, np.ndarray)) and not isinstance(targets, (str, bytes))
    values = list(targets) if several else [targets]
    real = (int, float, np.integer, np.floating)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, real) or not 1e-50 < value < 1e50:
            raise PlanError(
                f"targets was {str(targets)[:60]}. Give the largest standard error that is fine, in counts and "
                "above 0: one number, or one a group."
            )
    return tuple(float(v) for v in values) if several else float(values[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Symmetry:
    """Groups and residual spaces that play the same role; by convexity they may share noise and weights.

    Attributes
    ----------
    kinds : kind of every group, -1 for groups that have no say.
    examples : one group of each kind.
    sizes : number of groups of each kind, shape (kinds,).
    spaces : kind of every residual space.
    counts : number of spaces of each kind, shape (space kinds,).
    """

    kinds: tuple[int, ...]
    examples: tuple[int, ...]
    sizes: Array
    spaces: Mapping[Space, int]
    counts: Array


def symmetry(
    workload: Workload,
    spaces: Sequence[Space],
    goal: Objective,
    labels: Mapping[str, Hashable],
    split: Split,
    ordered: bool = True,
) -> Symmetry:
    """Return the coarsest equitable partition of groups and residual spaces, by colour refinement.

    Centers have shape (n_i,).
    Groups start with their queries, weight and target, spaces with their attributes' sizes, labels and centers; each
    round tells apart what touches different colours.  Unless ``ordered``, the schema's order tells no spaces apart.
    """
    # a complement is part of what a space looks like: with it, two pairs that are asked alike may differ
    tuned = {space: c.key for space, c in split.complements.items()}
    touching: dict[Space, list[tuple[int, int]]] = {space: [] for space in spaces}
    inside: dict[int, list[tuple[int, Space]]] = {}
    numbers: dict[Any, int] = {}
    for i, group in enumerate(workload.groups):
        if group.is_weighted:
            roles = _roles(group)
            named = [(axes, group.named(axes)) for axes in group.spaces(workload.schema)]
            found = [(tuple(roles[a] for a in axes), s) for axes, s in named if s in touching]
            if not found and workload.schema.invariants:
                continue  # public tables answer it
            found = found if ordered else [(tuple(sorted(role, key=repr)), s) for role, s in found]
            inside[i] = [(numbers.setdefault(role, len(numbers)), s) for role, s in found]
            for role, space in inside[i]:
                touching[space].append((i, role))
    groups = _numbers(
        {
            i: (workload.groups[i].key, workload.groups[i].weight, goal.target(i), tuned_key(i, workload, tuned))
            for i in inside
        }
    )
    looks = {s: [(workload.schema[n].size, labels.get(n), digest(split.centers.get(n))) for n in s] for s in spaces}
    own = _numbers({s: (tuned.get(s), *(look if ordered else sorted(look, key=repr))) for s, look in looks.items()})
    # colour refinement: the first round that tells nothing new apart has found the coarsest equitable partition, and a
    # convex problem has an optimum that is constant on its classes
    while True:
        finer = _numbers({i: (groups[i], tuple(sorted((role, own[s]) for role, s in inside[i]))) for i in inside})
        finest = _numbers({s: (own[s], tuple(sorted((finer[i], role) for i, role in touching[s]))) for s in spaces})
        done = len(set(finer.values())) == len(set(groups.values())) and len(set(finest.values())) == len(
            set(own.values())
        )
        groups, own = finer, finest
        if done:
            break
    examples: dict[int, int] = {}
    for i, kind in groups.items():
        examples.setdefault(kind, i)
    return Symmetry(
        kinds=tuple(groups.get(i, -1) for i in range(len(workload.groups))),
        examples=tuple(examples[k] for k in range(len(examples))),
        sizes=np.bincount(list(groups.values()), minlength=len(examples)).astype(float),
        spaces=own,
        counts=np.bincount(list(own.values())).astype(float),
    )


def _roles(group: Group) -> list[Hashable]:
    """Return what is asked of every attribute of a group; attributes of one role may be swapped."""
    out: list[Hashable] = list(range(len(group.attributes)))
    # a weight belongs to one query, and a swap of attributes would carry it to another
    if group.query_weights is None:
        for part in group.parts:
            for position, axis in enumerate(part.axes):
                out[axis] = (part.key, position)
    return out


def tuned_key(number: int, workload: Workload, tuned: Mapping[Space, bytes]) -> bytes | None:
    """Return the identity of the complement of a pair, if the group is on one."""
    names = workload.groups[number].attributes
    return tuned.get(names, tuned.get(names[::-1])) if len(names) == 2 else None


def _numbers(colours: Mapping[Any, Any]) -> dict[Any, int]:
    known: dict[Any, int] = {}
    return {key: known.setdefault(colour, len(known)) for key, colour in colours.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Asked:
    """The queries of one kind of group.

    Attributes
    ----------
    queries : their footprint.
    spaces : kind of the residual space of every row of it.
    groups : how many groups there are of the kind.
    weight : weight of their queries.
    target : their target variance.
    """

    queries: Footprint
    spaces: tuple[int, ...]
    groups: float
    weight: float
    target: float


def footprints(
    workload: Workload, blocks: Mapping[Space, Block], builder: VarianceBuilder, same: Symmetry, goal: Objective
) -> list[Asked] | None:
    """Return the queries of every kind of group, or None when one of positive weight cannot be answered."""
    out = []
    for example, groups in zip(same.examples, same.sizes, strict=True):
        group = workload.groups[example]
        own = deciding_weights(group, goal)
        found = builder.group(group)
        # the sum is known without listing queries; only where it is infinite does it matter which ones are lost
        if found.unmeasured and not np.isfinite(found.total()):
            deciding = np.ones(group.count) > 0 if own is None else own > 0
            if not np.isfinite(found.values(0, group.count)[deciding]).all():
                return None
        asked = footprint(found, own)
        spaces = tuple(same.spaces[tuple(group.attributes[a] for a in s.axes)] for s in found.summands)
        out.append(
            Asked(queries=asked, spaces=spaces, groups=float(groups), weight=group.weight, target=goal.target(example))
        )
    return out


def deciding_weights(group: Group, goal: Objective) -> Array | None:
    """Return the weights of single queries where they matter: for the largest variance only whether they are 0.

    Shape (queries,).
    """
    own = group.query_weights
    if own is None or not math.isinf(goal.power):
        return own
    return None if (own > 0).all() else (own > 0).astype(float)


def norm(asked: Sequence[Footprint], weights: Sequence[float], targets: Sequence[float], goal: Objective) -> float:
    """Return the norm of the variances of some groups at their present noise, in counts^2 (or shares of targets)."""
    largest = [f.largest(f.noises)[0] for f in asked]
    if math.isinf(goal.power):
        return max(v / t for v, t in zip(largest, targets, strict=True))
    # as shares of the largest, high powers of variances neither overflow nor vanish
    scale = max(largest)
    total = math.fsum(w * f.power_sum(f.noises, goal.power, scale)[0] for w, f in zip(weights, asked, strict=True))
    return scale * float(total ** (1.0 / goal.power))


def achieved_norm(workload: Workload, variance: Callable[[int], GroupVariance], goal: Objective) -> float:
    """Return the norm of the variances of all queries of positive weight, in counts^2 (or shares of targets).

    ``variance`` gives the variances of a group by its number.
    """
    queries: list[Footprint] = []
    weights: list[float] = []
    targets: list[float] = []
    kinds: dict[tuple[GroupVariance, bytes | None, float, float], int] = {}
    for i, group in enumerate(workload.groups):
        if group.is_weighted and (found := variance(i)).summands:  # others follow from public tables
            key = (found, digest(group.query_weights), group.weight, goal.target(i))
            if key not in kinds:
                kinds[key] = len(queries)
                queries.append(footprint(found, deciding_weights(group, goal)))
                weights.append(0.0)
                targets.append(goal.target(i))
            weights[kinds[key]] += group.weight
    return norm(queries, weights, targets, goal)


@dataclass(frozen=True, eq=False)
class WeightedRows(Family):
    """The rows of a family, each times the root of its weight."""

    inner: Family
    weights: Array

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return ("weighted", self.inner.key, hashlib.sha256(self.weights.tobytes()).hexdigest())

    @property
    def key(self) -> tuple[Any, ...]:
        return self._key

    def count(self, sizes: Sequence[int]) -> int:
        return self.inner.count(sizes)

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        return self.inner.rows(sizes, start, stop) * np.sqrt(self.weights[start:stop, None])

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        return self.inner.text(attributes, index)

    def chunks(self, sizes: Sequence[int]) -> Iterator[tuple[int, Array]]:
        for start, rows in self.inner.chunks(sizes):
            yield start, rows * np.sqrt(self.weights[start : start + len(rows), None])

    def gram(self, sizes: Sequence[int], weights: Array | None = None) -> Array:
        return self.inner.gram(sizes, self.weights if weights is None else weights * self.weights)

    def dot(self, sizes: Sequence[int], table: Array) -> Array:
        found = self.inner.dot(sizes, table)
        return found * np.sqrt(self.weights).reshape(-1, *[1] * (found.ndim - 1))

    def quadratic(self, sizes: Sequence[int], matrix: Array) -> Array:
        return self.inner.quadratic(sizes, matrix) * self.weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Emphasis:
    """A weight for every query of a workload, in factored form.

    Attributes
    ----------
    kinds : number of the kind of every group, shape (groups,); -1 for groups without weighted queries.
    weights : weight of a group of each kind, shape (kinds,).
    uses : for each kind the numbers of the vectors of its parts, or one number when ``whole``.
    whole : for each kind, whether its one vector runs over all queries of a group.
    vectors : weights of queries, each of shape (queries of a part or of a group,).
    """

    kinds: tuple[int, ...]
    weights: Array
    uses: tuple[tuple[int, ...], ...]
    whole: tuple[bool, ...]
    vectors: tuple[Array, ...]

    @classmethod
    def of_groups(cls, workload: Workload, weights: Sequence[float]) -> Emphasis:
        """Return one weight a group, in place of its own and above 0 where that is; single queries keep theirs."""
        kinds: dict[Any, int] = {}
        places: dict[Any, int] = {}
        uses, whole, vectors, numbers = [], list[bool](), list[Array](), []

        def place(key: Any, vector: Array) -> int:
            if key not in places:
                places[key] = len(vectors)
                vectors.append(vector)
            return places[key]

        for group, weight in zip(workload.groups, weights, strict=True):
            key = (group.key, float(weight))
            if group.weight > 0.0 and key not in kinds:
                kinds[key], own = len(kinds), group.query_weights
                parts = [(p.key, np.ones(p.count)) for p in group.parts] if own is None else [(group.key, own)]
                uses.append(tuple(place(*part) for part in parts))
                whole.append(own is not None)
            numbers.append(kinds[key] if group.weight > 0.0 else -1)
        return cls(
            kinds=tuple(numbers),
            weights=np.array([weight for _, weight in kinds]),
            uses=tuple(uses),
            whole=tuple(whole),
            vectors=tuple(vectors),
        )

    def apply(self, workload: Workload) -> Workload:
        """Return the workload whose weighted sum of variances is the one with these weights."""
        groups, made = [], dict[tuple[Any, int], Part]()
        for group, kind in zip(workload.groups, self.kinds, strict=True):
            if kind < 0:
                continue
            weight, numbers = float(self.weights[kind]), self.uses[kind]
            if self.whole[kind]:
                own = self.vectors[numbers[0]]
                groups.append(replace(group, weight=weight, query_weights=own))
                continue
            parts = []
            for part, number in zip(group.parts, numbers, strict=True):
                vector = self.vectors[number]
                if np.all(vector == 1.0):
                    parts.append(part)
                    continue
                key = ((part.axes, part.key), number)
                if key not in made:
                    made[key] = replace(part, family=WeightedRows(part.family, vector))
                parts.append(made[key])
            groups.append(replace(group, weight=weight, parts=tuple(parts), query_weights=None))
        return Workload(workload.schema, tuple(groups))

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as JSON-ready data."""
        return {
            "kinds": list(self.kinds),
            "weights": pack(self.weights),
            "uses": [list(u) for u in self.uses],
            "whole": list(self.whole),
            "vectors": [pack(v) for v in self.vectors],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Emphasis:
        """Rebuild from `to_dict`; raise ValueError when the data is none."""
        found = cls(
            kinds=tuple(data["kinds"]),
            weights=unpack(data["weights"]),
            uses=tuple(tuple(u) for u in data["uses"]),
            whole=tuple(data["whole"]),
            vectors=tuple(unpack(v) for v in data["vectors"]),
        )
        count = len(found.weights)
        numbers = [*found.kinds, *(n for u in found.uses for n in u)]
        if (
            not len(found.uses) == len(found.whole) == count
            or not all(type(n) is int for n in numbers)
            or not all(-1 <= k < count for k in found.kinds)
            or not all(0 <= n < len(found.vectors) for u in found.uses for n in u)
            or not all(np.isfinite(v).all() and (v >= 0).all() for v in (found.weights, *found.vectors))
        ):
            raise ValueError("not an emphasis")
        return found

    def check(self, workload: Workload) -> Workload:
        """Return the workload; raise ValueError unless the vectors fit its groups."""
        for group, kind in zip(workload.groups, self.kinds, strict=True):
            # public tables may answer a weighted group
            left_out = kind < 0 and group.is_weighted and not workload.schema.invariants
            if left_out or (kind >= 0 and group.weight == 0):
                raise ValueError("an emphasis on other groups")
            if kind >= 0:
                wanted = [group.count] if self.whole[kind] else [p.count for p in group.parts]
                if [len(self.vectors[n]) for n in self.uses[kind]] != wanted:
                    raise ValueError("an emphasis on other queries")
        return workload


def pack(vector: Array) -> str:
    """Return numbers as text, exactly. Shape (n,)."""
    return base64.b64encode(vector.astype("<f8").tobytes()).decode()


def unpack(text: str) -> Array:
    """Return the numbers that `pack` wrote. Shape (n,)."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8")
