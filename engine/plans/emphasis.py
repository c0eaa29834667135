"""Emphasis: weights that say which queries decide an objective, and the workload with those weights.

An objective such as the largest variance is a maximum over weighted sums of variances.  The weights that attain it
turn the problem back into a weighted sum, which every residual mechanism solves.  To keep a product group a product,
its queries are weighted by one vector for each part; a group of one part, or a small one, has a vector of its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.workload import Attribute, Family, Part, Workload


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
