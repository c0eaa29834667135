"""Query families: the joint ones, and the tuple of all that the project knows."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from engine.arrays import Array
from engine.checks import positive, whole
from engine.errors import WorkloadError
from engine.texts import near_matches
from engine.workload.attribute import Attribute
from engine.workload.family import Family, dense_limit
from engine.workload.runs import Circular, Marginal, Prefix, Range, Suffix, Total, Width


@dataclass(frozen=True)
class Affine(Family):
    """Queries A_i + A_j <= c on cell numbers, for c = 0 to n_i + n_j - 2.

    >>> Affine().count((10, 10))
    19
    """

    name: ClassVar[str] = "affine"
    arity: ClassVar[int | None] = 2
    ordered: ClassVar[bool] = True
    meaning: ClassVar[str] = "How many records have a sum of the two values at or below each bound?"

    def count(self, sizes: Sequence[int]) -> int:
        return sizes[0] + sizes[1] - 1

    def statistic(self, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the number that is compared with c, shape ``sizes``."""
        return np.add.outer(np.arange(sizes[0]), np.arange(sizes[1]))

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        c = np.arange(self.count(sizes))[start:stop, None]
        return (self.statistic(sizes).reshape(1, -1) <= c).astype(float)

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        a, b = attributes
        return f"{_cell_number(a)} + {_cell_number(b)} <= {index}"


@dataclass(frozen=True)
class Abs(Affine):
    """Queries |A_i - A_j| <= c on cell numbers, for c = 0 to max(n_i, n_j) - 1.

    >>> Abs().count((10, 12))
    12
    """

    name: ClassVar[str] = "abs"
    meaning: ClassVar[str] = "How many records have two values that differ by at most each bound?"

    def count(self, sizes: Sequence[int]) -> int:
        return max(sizes)

    def statistic(self, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.abs(np.subtract.outer(np.arange(sizes[0]), np.arange(sizes[1])))

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        a, b = attributes
        return f"|{_cell_number(a)} - {_cell_number(b)}| <= {index}"


def _cell_number(attribute: Attribute) -> str:
    # with named or binned cells the sum is one of cell numbers, and the text has to say so
    return attribute.name if attribute.is_coded else f"cell number of {attribute.name}"


@dataclass(frozen=True, kw_only=True)
class Random(Family):
    """Random 0/1 queries: each cell belongs to a query with probability ``p``.

    Parameters
    ----------
    p : probability that a cell is counted, between 0 and 1.
    count : number of queries; three times the number of cells when left out.
    seed : the same seed on the same shape gives the same queries, everywhere; this is no privacy noise.

    >>> Random(p=0.3, seed=1).count((4, 5))
    60
    """

    p: float = 0.3
    queries: int | None = None
    seed: int = 0
    name: ClassVar[str] = "random"
    arity: ClassVar[int | None] = None
    meaning: ClassVar[str] = "Counts of randomly chosen sets of cells, a workload without structure."

    def __init__(self, *, p: float = 0.3, count: int | None = None, seed: int = 0) -> None:
        positive("probability p of random queries", p, below=1)
        if count is not None:
            whole("count", count)
        whole("seed of random queries", seed, 0, 2**63 - 1)
        object.__setattr__(self, "p", float(p))
        object.__setattr__(self, "queries", count)
        object.__setattr__(self, "seed", seed)

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        sizes = [a.size for a in attributes]
        dense_limit(self.name, self.count(sizes), math.prod(sizes))
        return self

    def count(self, sizes: Sequence[int]) -> int:
        return self.queries if self.queries is not None else 3 * math.prod(sizes)

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        return _random_rows(self.p, self.count(sizes), self.seed, tuple(sizes))[start:stop].astype(float)

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        return (
            f"random set {index} of cells of {' x '.join(a.name for a in attributes)} (p {self.p:g}, seed {self.seed})"
        )

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "p": self.p, "count": self.queries, "seed": self.seed}

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.name, self.p, self.queries, self.seed)


@lru_cache(maxsize=4)
def _random_rows(p: float, count: int, seed: int, sizes: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    return np.random.default_rng([seed, *sizes]).random((count, math.prod(sizes))) < p


class Custom(Family):
    """Queries given row by row, as a matrix or as predicates in words.

    Parameters
    ----------
    matrix : shape (queries, cells), cells in row-major order of the group's attributes; any finite real numbers.
    predicates : texts such as ``"age >= 30 and sex == 'F'"`` or ``"age + hours <= 60"``, one query each;
        names with signs go in backticks.
    labels : a text for each row of ``matrix``.

    >>> Custom(matrix=[[1, 0, 1], [0, 1, 1]]).count((3,))
    2
    """

    name: ClassVar[str] = "custom"
    arity: ClassVar[int | None] = None
    meaning: ClassVar[str] = "Your own queries, as a matrix or as conditions in words."

    def __init__(
        self,
        matrix: npt.ArrayLike | None = None,
        *,
        predicates: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        if (matrix is None) == (predicates is None):
            raise WorkloadError("Custom queries take either a matrix or predicates. Give exactly one of the two.")
        if predicates is not None and not isinstance(predicates, Sequence):
            raise WorkloadError('Predicates must be a list of at least one text such as "age >= 30".')
        self.predicates = tuple(predicates) if predicates is not None else None
        self.matrix: Array | None = None
        if predicates is not None:
            if (
                isinstance(predicates, str)
                or not self.predicates
                or not all(isinstance(p, str) for p in self.predicates)
            ):
                raise WorkloadError('Predicates must be a list of at least one text such as "age >= 30".')
            self.labels: tuple[str, ...] | None = self.predicates
            return
        try:
            rows = np.array(matrix, dtype=float, ndmin=2)
        except (TypeError, ValueError, OverflowError):
            raise WorkloadError("The custom matrix must be a table of numbers, one row a query.") from None
        if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
            raise WorkloadError(
                f"The custom matrix has shape {rows.shape}; it must have one row a query, one column a cell and finite "
                "numbers only."
            )
        rows.flags.writeable = False
        self.matrix, self.labels = rows, tuple(labels) if labels is not None else None
        if self.labels is not None and not all(isinstance(label, str) for label in self.labels):
            raise WorkloadError("The labels of custom queries must be texts, one a query.")
        if self.labels is not None and len(self.labels) != len(rows):
            raise WorkloadError(f"{len(self.labels)} labels were given for {len(rows)} queries. Give one a query.")

    def bind(self, attributes: Sequence[Attribute]) -> Family:
        cells = math.prod(a.size for a in attributes)
        dense_limit(self.name, len(self.predicates or self._rows), cells)
        if self.predicates is not None and self.matrix is None:
            from engine.workload.predicates import evaluate

            bound = Custom([evaluate(p, attributes) for p in self.predicates], labels=self.predicates)
            bound.predicates = self.predicates
            return bound
        if self._rows.shape[1] != cells:
            raise WorkloadError(
                f"The custom matrix has {self._rows.shape[1]} columns, but {' x '.join(a.name for a in attributes)} "
                f"has {cells:,} cells. Give one column a cell, the last attribute varying fastest."
            )
        return self

    @property
    def _rows(self) -> Array:
        if self.matrix is None:
            raise WorkloadError("These predicates are not yet fitted to attributes; add them to a workload first.")
        return self.matrix

    def count(self, sizes: Sequence[int]) -> int:
        return len(self._rows)

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        return self._rows[start:stop]

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        return self.labels[index] if self.labels is not None else f"custom query {index}"

    def to_dict(self) -> dict[str, Any]:
        if self.predicates is not None:
            return {"name": self.name, "predicates": list(self.predicates)}
        packed = base64.b64encode(zlib.compress(self._rows.astype("<f8").tobytes())).decode()
        out = {"name": self.name, "shape": list(self._rows.shape), "matrix": packed}
        return out if self.labels is None else out | {"labels": list(self.labels)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Family:
        if "predicates" in data:
            return cls(predicates=data["predicates"])
        try:
            queries, cells = (int(k) for k in data["shape"])
            dense_limit(cls.name, queries, cells)
            unpacker = zlib.decompressobj()
            raw = unpacker.decompress(base64.b64decode(data["matrix"], validate=True), 8 * queries * cells + 1)
            return cls(np.frombuffer(raw, "<f8").reshape(queries, cells), labels=data.get("labels"))
        except (KeyError, TypeError, ValueError, OverflowError, binascii.Error, zlib.error) as error:
            if isinstance(error, WorkloadError):
                raise
            raise WorkloadError("A custom matrix in the file is damaged. Export it again or give the matrix.") from None

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.name, self._rows.shape, hashlib.sha256(self._rows.tobytes()).hexdigest(), self.labels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.predicates or self.key)


FAMILIES: tuple[type[Family], ...] = (
    Marginal,
    Prefix,
    Suffix,
    Range,
    Circular,
    Total,
    Width,
    Affine,
    Abs,
    Random,
    Custom,
)


def family(value: str | Family) -> Family:
    """Return the family that a word or a family value stands for.

    >>> family("prefix")
    Prefix()
    """
    if isinstance(value, Family):
        return value
    by_name = {f.name: f for f in FAMILIES}
    if not isinstance(value, str) or value not in by_name:
        near = near_matches(value, by_name)
        raise WorkloadError(f"There is no query family {repr(value)[:60]}{near}. Choose one of {', '.join(by_name)}.")
    try:
        return by_name[value]()
    except TypeError:
        raise WorkloadError(
            f"The family '{value}' needs its parameters. Import {by_name[value].__name__} from engine."
        ) from None


def usual_family(kind: str) -> str:
    """Return the family that an attribute of this kind is asked by when nobody names one.

    >>> usual_family("categorical"), usual_family("numeric")
    ('marginal', 'prefix')
    """
    return "marginal" if kind == "categorical" else "prefix"


def family_from_dict(data: object) -> Family:
    """Rebuild a family from ``Family.to_dict``; raise WorkloadError when the data is not one."""
    if not isinstance(data, dict) or "name" not in data:
        raise WorkloadError('A query family in the file has no name. Write it as {"name": "prefix"}.')
    cls = {f.name: f for f in FAMILIES}.get(data["name"] if isinstance(data["name"], str) else "")
    if cls is None:
        raise WorkloadError(f"There is no query family {str(data['name'])[:60]!r}.")
    try:
        return cls.from_dict(data)
    except TypeError:
        raise WorkloadError(f"The parameters of the query family '{cls.name}' in the file do not fit.") from None


def spec_to_data(spec: str | Family | Mapping[str, str | Family]) -> Any:
    """Return the families of a group as JSON-ready data."""
    if isinstance(spec, str):  # first: to tell a mapping takes long, and there may be a hundred thousand groups
        return spec
    if isinstance(spec, (MappingProxyType, Mapping)):
        return {"each": {name: f if isinstance(f, str) else f.to_dict() for name, f in spec.items()}}
    return spec.to_dict()


def spec_from_data(data: Any) -> str | Family | Mapping[str, str | Family]:
    """Inverse of `spec_to_data`; raises WorkloadError."""
    if isinstance(data, str):
        return data
    if isinstance(data, dict) and isinstance(data.get("each"), dict):
        return {
            name: data_ if isinstance(data_, str) else family_from_dict(data_) for name, data_ in data["each"].items()
        }
    return family_from_dict(data)
