"""Splits of queries into residual spaces: centers and complements."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from engine._arrays import Array

Space = tuple[str, ...]
Axes = tuple[int, ...]
# attributes with the same role occur in the same way in the workload
Role = int


def digest(vector: Array | None) -> bytes | None:
    """Return a hashable identity of a center vector, shape (n,); None for uniform."""
    return None if vector is None else hashlib.sha256(vector.tobytes()).digest()


def swap_pair(values: Array, m: int, k: int) -> Array:
    """Return values by class coordinates of a pair for the pair in reverse order.

    Shape (m k, ...).
    """
    return np.swapaxes(values.reshape(m, k, -1), 0, 1).reshape(values.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Complement:
    """Matrices that pass a pair's class coordinates down to its attributes and the total.

    Coordinates c become c D_i and c D_j on the attributes and c D_0 on the total.

    Shapes (class coordinates of the pair, n_i - 1), (..., n_j - 1) and (...,); see
    `engine.residuals.tuning.complements`.
    """

    by_axis: tuple[Array, Array]
    by_total: Array

    @cached_property
    def key(self) -> bytes:
        """Hashable identity."""
        return hashlib.sha256(b"".join(a.tobytes() for a in (*self.by_axis, self.by_total))).digest()

    def turned(self) -> Complement:
        """Return the complement of the pair in reverse order."""
        m, k = self.by_axis[0].shape[1], self.by_axis[1].shape[1]
        first, second, total = (swap_pair(D, m, k) for D in (*self.by_axis, self.by_total))
        return Complement(by_axis=(second, first), by_total=total)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Split of queries over residual spaces; without entries, the published split.

    Attributes
    ----------
    centers : vector with sum 1 for every attribute with a non-uniform center.
    complements : tuned complement of every pair, attributes in schema order, that is not split as a
        product.
    unions : the attributes of one table -> the residual spaces that one strategy measures together.
    stopped : the limits, of "memory", "time" and "work", that ended or prevented the search for the
        split.

    >>> Split(centers={"a": np.array([1.0, 0.0])}).given(("b", "a"))
    [None, array([1., 0.])]
    """

    centers: Mapping[str, Array] = field(default_factory=dict)
    complements: Mapping[Space, Complement] = field(default_factory=dict)
    unions: Mapping[Space, tuple[Space, ...]] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()

    def towards_uniform(self, share: float) -> Split:
        """Return the interpolation between the uniform split (share 0) and this one (share 1).

        >>> Split(centers={"a": np.array([1.0, 0.0])}).towards_uniform(0.5).centers["a"]
        array([0.75, 0.25])
        """
        complements = {
            key: Complement(by_axis=(share * c.by_axis[0], share * c.by_axis[1]), by_total=share * c.by_total)
            for key, c in {c.key: c for c in self.complements.values()}.items()
        }
        return replace(
            self,
            centers={name: share * pi + (1.0 - share) / len(pi) for name, pi in self.centers.items()},
            complements={pair: complements[c.key] for pair, c in self.complements.items()},
        )

    def centers_of(self, names: Sequence[str]) -> list[Array | None]:
        """Return the centers of some attributes, shape (n_i,) each, None for uniform ones."""
        return [self.centers.get(name) for name in names]

    def complement(self, names: Space) -> Complement | None:
        """Return the complement of a pair in the order of ``names``, or None."""
        if names in self.complements or names[::-1] not in self.complements:
            return self.complements.get(names)
        return self.complements[names[::-1]].turned()

    def inside(self, names: Space) -> dict[Axes, Complement]:
        """Return the complements of pairs inside ``names``, in schema order, by positions."""
        at = {name: i for i, name in enumerate(names)}
        return {(at[a], at[b]): c for (a, b), c in self.complements.items() if a in at and b in at}


UNIFORM = Split()
