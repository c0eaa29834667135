"""Workloads: weighted groups of linear counting queries.

Groups that ask the same of other attributes, as arrays: of a hundred thousand groups few have to be looked at.

Workloads: groups of linear counting queries, each group on a set of attributes, with weights.

A product group as one part, where weights of single queries or a complement do not factor.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import hashlib
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index, numbered
from engine._format import number
from engine._untrusted import parse_json
from engine._validation import instance, whole
from engine._values import Value, kept_with
from engine.errors import EngineError, WorkloadError
from engine.workload.attribute import Attribute
from engine.workload.families import CHUNK_ENTRIES, Family, family, spec_from_data, spec_to_data, usual_family
from engine.workload.schema import Schema

if TYPE_CHECKING:
    pass

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


FORMAT = "workload/1"
MAX_GROUPS = 200_000
SMALLEST_WEIGHT = 1e-100  # squares of weights and their inverses must stay numbers
MAX_QUERY_WEIGHTS = 50_000_000
FamilySpec = str | Family | Mapping[str, "str | Family"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One factor of a group: a family on some of the group's attributes; queries of a group are products of parts."""

    axes: tuple[int, ...]
    family: Family
    sizes: tuple[int, ...]

    @cached_property
    def count(self) -> int:
        return self.family.count(self.sizes)

    @cached_property
    def cells(self) -> int:
        return math.prod(self.sizes)

    @cached_property
    def key(self) -> tuple[Any, ...]:
        return (self.sizes, self.family.key)


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Queries on one set of attributes.

    Attributes
    ----------
    attributes : the attribute names, in the order given.
    family : what was asked for: a word, a family value, or a mapping from attribute to either.
    parts : the same as factors; a query of the group is one row of every part, the last part varying fastest.
    weight : importance of every query of the group in the weighted objective; zero is legal.
    query_weights : importance of each query on top of ``weight``, shape (count,), or None for one each.
    """

    attributes: tuple[str, ...]
    family: FamilySpec
    parts: tuple[Part, ...]
    weight: float = 1.0
    query_weights: npt.NDArray[np.float64] | None = None

    @cached_property
    def count(self) -> int:
        """Exact number of queries."""
        return math.prod(p.count for p in self.parts)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Domain sizes in the order of ``attributes``."""
        by_axis = {axis: n for p in self.parts for axis, n in zip(p.axes, p.sizes, strict=True)}
        return tuple(by_axis[axis] for axis in range(len(self.attributes)))

    @cached_property
    def is_weighted(self) -> bool:
        """Whether any of its queries has a positive weight."""
        return self.weight > 0 and (self.query_weights is None or bool(self.query_weights.any()))

    def named(self, axes: Iterable[int]) -> tuple[str, ...]:
        """Return the names of the attributes at some positions."""
        return tuple(map(self.attributes.__getitem__, axes))

    def ranks(self, schema: Schema) -> tuple[int, ...]:
        """Return the positions of the attributes, those first that come first in the schema."""
        placed = [schema.order[name] for name in self.attributes]
        return tuple(sorted(range(len(placed)), key=placed.__getitem__))

    def spaces(self, schema: Schema) -> Iterator[tuple[int, ...]]:
        """Yield the residual spaces inside, small ones first: positions of their attributes, as `ranks` orders them.

        >>> schema = Schema([Attribute.of_size(name, 2) for name in "abc"])
        >>> list(Workload(schema).add(("c", "a")).groups[0].spaces(schema))
        [(), (1,), (0,), (1, 0)]
        """
        return subsets(self.ranks(schema))

    @property
    def family_text(self) -> str:
        """The family in one word per part, for tables."""
        names = [p.family.name for p in self.parts]
        return " × ".join(names if len(set(names)) > 1 else names[:1]) or "total"

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Hashable identity of the queries and their relative weights, whatever the attributes are called."""
        digest = None if self.query_weights is None else hashlib.sha256(self.query_weights.tobytes()).hexdigest()
        return (tuple((p.axes, p.key) for p in self.parts), digest)

    def to_dict(self) -> dict[str, Any]:
        """Return the group as JSON-ready data."""
        out: dict[str, Any] = {"attributes": list(self.attributes), "family": spec_to_data(self.family)}
        if self.weight != 1.0:
            out["weight"] = self.weight
        if self.query_weights is not None:
            out["query_weights"] = base64.b64encode(zlib.compress(self.query_weights.astype("<f8").tobytes())).decode()
        return out


@dataclass(frozen=True, eq=False, repr=False)
class Workload(Value):
    """Query groups over one schema; adding a group returns a new workload.

    It iterates over its groups, while its length counts queries, which may be billions: where a list of the groups is
    wanted, take ``groups``.

    >>> schema = Schema([Attribute.of_size("age", 5), Attribute.categorical("sex", ["F", "M"])])
    >>> workload = Workload(schema).add(("age",), "range").add(("age", "sex"), {"age": "prefix", "sex": "marginal"})
    >>> len(workload)
    25
    >>> workload.describe(18)
    'age <= 1 and sex = M'
    >>> workload, [group.count for group in workload]
    (Workload(attributes 2, groups 2, queries 25), [15, 10])
    """

    schema: Schema
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        instance("schema", self.schema, Schema, give="a Schema, such as Schema([Attribute.of_size('age', 5)])")
        instance("groups", self.groups, tuple, give="none here, and add them one by one with add()")

    def add(
        self,
        attributes: str | Sequence[str],
        family: FamilySpec = "marginal",
        weight: float = 1.0,
        query_weights: npt.ArrayLike | None = None,
    ) -> Workload:
        """Return this workload with one more group.

        Parameters
        ----------
        attributes : names of the attributes; no name at all asks for the total.
        family : one family for every attribute, a joint family, or a mapping from each attribute to its family.
        weight : importance of the group's queries, 0 or more.
        query_weights : importance of each query, shape (count,), in the order of `describe`.

        Raises
        ------
        WorkloadError : unknown or repeated attribute, a family that does not fit, or a weight that is no number.
        """
        if len(self.groups) >= MAX_GROUPS:
            raise WorkloadError(
                f"A workload holds at most {MAX_GROUPS:,} groups. Leave out groups that you do not need."
            )
        return Workload(self.schema, (*self.groups, make_group(self.schema, attributes, family, weight, query_weights)))

    @classmethod
    def all_ways(cls, schema: Schema, ways: Iterable[int] = (1, 2, 3), family: FamilySpec = "auto") -> Workload:
        """Return one group for every set of ``ways`` attributes.

        ``family="auto"`` asks marginals of categorical attributes and prefixes of numeric ones; a mapping may name the
        family of some attributes and leaves the others to "auto".

        >>> Workload.all_ways(Schema([Attribute.of_size(c, 3) for c in "abcd"]), ways=(1, 2)).queries
        66
        """
        instance("schema", schema, Schema, give="a Schema, such as Schema([Attribute.of_size('age', 5)])")
        instance("ways", ways, (int, Iterable), give="a number, or several, such as (1, 2)")
        ways = (ways,) if isinstance(ways, int) else tuple(ways)
        for k in ways:
            whole(f"way of {len(schema)} attributes", k, 0, len(schema))
        groups = sum(math.comb(len(schema), k) for k in ways)
        if groups > MAX_GROUPS:
            raise WorkloadError(
                f"All {', '.join(f'{k}-way' for k in ways)} sets of {len(schema)} attributes make {groups:,} groups, "
                f"more than the {MAX_GROUPS:,} allowed. Ask for fewer ways, or pick the attribute sets that matter."
            )
        default: dict[str, str | Family] = {a.name: usual_family(a.kind) for a in schema.attributes}
        if isinstance(family, Mapping):
            for name in family:
                schema[name]
            default |= family
        sets = [names for k in ways for names in itertools.combinations(schema.names, k)]
        if isinstance(family, Mapping) or family == "auto":  # every attribute is fitted once, not once a group
            fitted = {name: make_group(schema, name, {name: one}).parts[0] for name, one in default.items()}
            at = [{n: replace(part, axes=(a,)) for n, part in fitted.items()} for a in range(max(ways, default=0))]
            made = [
                Group(
                    attributes=names,
                    family=MappingProxyType({name: default[name] for name in names}),
                    parts=tuple(map(dict.__getitem__, at, names)),
                )
                for names in sets
            ]
        else:
            made = [make_group(schema, names, family) for names in sets]
        return cls(schema, tuple(made))

    @cached_property
    def queries(self) -> int:
        """Exact number of queries, however large."""
        return sum(g.count for g in self.groups)

    @cached_property
    def alike(self) -> list[AlikeGroups]:
        """The kinds of groups, in the order of their first ones."""
        return alike_groups(self.groups, self.schema.order)

    def __len__(self) -> int:
        return self.queries

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def headline(self) -> dict[str, str]:
        """Return how much is asked."""
        sizes = {"attributes": len(self.schema), "groups": len(self.groups), "queries": self.queries}
        return {name: number(size) for name, size in sizes.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return Workload.from_json, (self.to_json(),)

    @cached_property
    def starts(self) -> list[int]:
        """Index of the first query of every group."""
        return [0, *itertools.accumulate(g.count for g in self.groups)][:-1]

    def describe(self, index: int) -> str:
        """Return query ``index`` in words; queries are numbered group after group."""
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not 0 <= index < self.queries:
            raise WorkloadError(f"There is no query {index!r}; this workload has queries 0 to {self.queries - 1:,}.")
        which = bisect.bisect_right(self.starts, int(index)) - 1
        return self.describe_in_group(which, int(index) - self.starts[which])

    def describe_in_group(self, group: int, index: int) -> str:
        """Return query ``index`` of group number ``group`` in words."""
        asked = self.groups[group]
        return parts_text(asked.parts, [self.schema[name] for name in asked.attributes], index) or "all records"

    def to_dict(self) -> dict[str, Any]:
        """Return the workload, with its schema, as JSON-ready data."""
        return {"format": FORMAT, "schema": self.schema.to_dict(), "groups": [g.to_dict() for g in self.groups]}

    def to_json(self) -> str:
        """Return the workload, with its schema, as JSON text."""
        return zlib.decompress(self._packed).decode()

    @cached_property
    def _packed(self) -> bytes:
        """The text, which several ask for and which takes long to write, in a few bytes a group."""
        return zlib.compress(json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":")).encode(), 1)

    @classmethod
    def from_dict(cls, data: object) -> Workload:
        """Rebuild a workload from `to_dict`; raise WorkloadError when the data is not one."""
        if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("groups"), list):
            raise WorkloadError(f'This is not a workload file. Give JSON with "format": "{FORMAT}" and "groups".')
        schema = Schema.from_dict(data.get("schema"))
        if len(data["groups"]) > MAX_GROUPS:
            raise WorkloadError(f"The file has {len(data['groups']):,} groups; at most {MAX_GROUPS:,} are allowed.")
        return cls(schema, tuple(_group_from_dict(schema, i, g) for i, g in enumerate(data["groups"])))

    @classmethod
    def from_json(cls, text: str | bytes) -> Workload:
        """Rebuild a workload from `to_json`; raise WorkloadError when the text is not one."""
        try:
            return cls.from_dict(parse_json(text))
        except EngineError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise WorkloadError(
                "The workload is not valid JSON. Give the text that to_json wrote, not the name of a file."
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workload) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.schema, len(self.groups)))


def parts_text(parts: Sequence[Part], attributes: Sequence[Attribute], index: int) -> str:
    """Return one query of a product of parts in words, the last part varying fastest; empty for all records."""
    texts = []
    for part in reversed(parts):
        index, row = divmod(index, part.count)
        texts.append(part.family.text([attributes[a] for a in part.axes], row))
    return " and ".join(t for t in reversed(texts) if t)


def make_group(
    schema: Schema,
    attributes: str | Sequence[str],
    spec: FamilySpec,
    weight: float = 1.0,
    query_weights: npt.ArrayLike | None = None,
) -> Group:
    """Return a checked group; see `Workload.add`. ``query_weights`` has shape (queries,)."""
    names = schema.named(attributes, error=WorkloadError)
    columns = [schema[name] for name in names]
    if isinstance(spec, Mapping):
        if set(spec) != set(names):
            raise WorkloadError(
                f"The families are given for {', '.join(map(str, spec)) or 'no attribute'}, but the group is on "
                f"{', '.join(names) or 'no attribute'}. Give one family for each attribute of the group."
            )
        spec = MappingProxyType({name: spec[name] for name in names})
        parts = [
            _usual_part(schema, axis, name, one)
            if isinstance(one := spec[name], str)
            else _part((axis,), family(one), columns)
            for axis, name in enumerate(names)
        ]
    elif not names:
        if (asked := family(spec)).arity != 1:
            raise WorkloadError(
                f"The family '{asked.name}' was asked of no attribute. Name the attributes, or ask for the 'total'."
            )
        parts = []
    else:
        asked = family(spec)
        sets = [(axis,) for axis in range(len(names))] if asked.arity == 1 else [tuple(range(len(names)))]
        parts = [_part(axes, asked, columns) for axes in sets]
    real = isinstance(weight, (int, float, np.integer, np.floating)) and not isinstance(weight, bool)
    if not real or not (weight == 0 or SMALLEST_WEIGHT <= weight <= 1 / SMALLEST_WEIGHT):
        raise WorkloadError(
            f"The weight was {str(weight)[:40]}. Give a number, 0 or more; above 0 from {SMALLEST_WEIGHT:g} to "
            f"{1 / SMALLEST_WEIGHT:g}."
        )
    group = Group(attributes=names, family=spec, parts=tuple(parts), weight=float(weight))
    if query_weights is None:
        return group
    return replace(group, query_weights=_check_query_weights(query_weights, group.count))


@kept_with
def _usual_part(schema: Schema, axis: int, name: str, asked: str) -> Part:
    """A family without parameters on one attribute: a hundred thousand groups share a few hundred of them."""
    return Part(axes=(axis,), family=family(asked).bind([schema[name]]), sizes=(schema[name].size,))


def _part(axes: tuple[int, ...], asked: Family, columns: Sequence[Attribute]) -> Part:
    chosen = [columns[a] for a in axes]
    return Part(axes=axes, family=asked.bind(chosen), sizes=tuple(c.size for c in chosen))


def _check_query_weights(values: npt.ArrayLike, count: int) -> npt.NDArray[np.float64]:
    if count > MAX_QUERY_WEIGHTS:
        raise WorkloadError(f"Weights for {count:,} queries are too many; at most {MAX_QUERY_WEIGHTS:,} are allowed.")
    try:
        weights = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise WorkloadError("The query weights must be numbers, one a query.") from None
    if weights.shape != (count,) or not np.isfinite(weights).all() or (weights < 0).any():
        raise WorkloadError(
            f"The query weights have shape {weights.shape}; give {count:,} finite numbers, each 0 or more, one a query."
        )
    weights.flags.writeable = False
    return weights


def _group_from_dict(schema: Schema, number: int, data: object) -> Group:
    if not isinstance(data, dict) or not isinstance(data.get("attributes"), list):
        raise WorkloadError(f'Group {number} of the file names no attributes. Write "attributes": [...].')
    names = tuple(data["attributes"])
    if not all(isinstance(name, str) for name in names):
        raise WorkloadError(f"Group {number} of the file has an attribute that is no text.")
    spec, packed = spec_from_data(data.get("family")), data.get("query_weights")
    group = make_group(schema, names, spec, data.get("weight", 1.0))
    if packed is None:
        return group
    try:
        most = 8 * min(group.count, MAX_QUERY_WEIGHTS) + 1
        weights = np.frombuffer(zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), most), "<f8")
    except (TypeError, ValueError, binascii.Error, zlib.error):
        raise WorkloadError(f"The query weights of group {number} of the file are damaged. Export it again.") from None
    return make_group(schema, names, spec, group.weight, weights)


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
