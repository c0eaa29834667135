"""A product group as one part, where weights of single queries or a complement do not factor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.arrays import Array
from engine.workload.attribute import Attribute
from engine.workload.family import CHUNK_ENTRIES, Family
from engine.workload.groups import Group, Part, parts_text


def whole_group(group: Group) -> Part:
    """Return a product group as one part, where weights of single queries or a complement do not factor."""
    axes = tuple(a for p in group.parts for a in p.axes)
    return Part(axes=axes, family=_Product(group.parts), sizes=tuple(n for p in group.parts for n in p.sizes))


class _Product(Family):
    """The rows of a product of parts, chunk by chunk; only used to weight single queries."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    @property
    def key(self) -> tuple[Any, ...]:
        return ("product", tuple(p.key for p in self.parts))

    def count(self, sizes: Sequence[int]) -> int:
        return math.prod(p.count for p in self.parts)

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        return np.concatenate([rows for _, rows in self.chunks(sizes)])[start:stop]

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        return parts_text(self.parts, attributes, index)

    def chunks(self, sizes: Sequence[int]) -> Iterator[tuple[int, Array]]:
        dense = [p.family.rows(p.sizes) for p in self.parts]
        tail, cells = dense.pop() if dense else np.ones((1, 1)), math.prod(sizes)
        while dense and len(tail) * len(dense[-1]) * cells <= CHUNK_ENTRIES:
            tail = np.asarray(np.kron(dense.pop(), tail), dtype=float)
        for start, combination in enumerate(itertools.product(*(range(len(d)) for d in dense))):
            head: Array = np.ones(1)
            for d, row in zip(dense, combination, strict=True):
                head = np.asarray(np.kron(head, d[row]), dtype=float)
            yield start * len(tail), np.asarray(np.kron(head[None, :], tail), dtype=float)
