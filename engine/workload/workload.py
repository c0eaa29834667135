"""Workloads: weighted groups of linear counting queries.

A group has the queries of one or more families on a set of attributes. Its query matrix is the
Kronecker product of its parts, one part per family. Groups that are equal up to attribute names
form equivalence classes: many computations run once per class, because a workload can have 100,000
groups.
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
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index, unique_rows
from engine._format import number
from engine._untrusted import parse_json
from engine._validation import check_int, check_type
from engine._values import FrozenValue, cached_on_value
from engine.errors import EngineError, WorkloadError
from engine.workload.attribute import Attribute
from engine.workload.families import (
    CHUNK_ENTRIES,
    Family,
    default_family,
    family,
    spec_from_data,
    spec_to_data,
)
from engine.workload.schema import Schema

_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupClass:
    """Equivalence class of groups that are equal up to the names of their attributes.

    Attributes
    ----------
    numbers : indices of the groups in the workload, increasing, shape (groups,).
    ranks : permutation of the axes that sorts the attributes of a group by their positions in the
        schema; the same for all groups of the class.
    places : positions in the schema of the attributes of each group, shape (groups, attributes);
        increasing in each row.
    """

    numbers: Index
    ranks: tuple[int, ...]
    places: Index


def subsets(items: Sequence[_Item]) -> Iterator[tuple[_Item, ...]]:
    """Yield all subsets of the items by increasing size; each subset keeps the order of the items.

    >>> list(subsets("ab"))
    [(), ('a',), ('b',), ('a', 'b')]
    """
    return itertools.chain.from_iterable(
        itertools.combinations(items, k) for k in range(len(items) + 1)
    )


def group_classes(groups: Sequence[Group], order: Mapping[str, int]) -> list[GroupClass]:
    """Return the equivalence classes of groups, ordered by the first group of each class.

    ``order`` maps the name of each attribute to its position in the schema.
    """
    all_parts = [part for group in groups for part in group.parts]
    # Many groups share the same part (product factor), and its key is slow to compute, so the key
    # is computed once per object id. The groups hold references to all parts, so ids are unique.
    distinct_parts = {id(part): part for part in all_parts}
    # Key of a part (product factor), or of a group with query weights -> consecutive number.
    key_numbers: dict[Any, int] = {}
    number_of_part = {
        part_id: key_numbers.setdefault((part.axes, part.key), len(key_numbers))
        for part_id, part in distinct_parts.items()
    }
    # Indices of distinct parts (product factors): the parts of the first group, followed by the
    # parts of the second group, and so on. `attribute_positions` has the attributes of all groups
    # in the same order.
    part_numbers = np.fromiter(
        map(number_of_part.__getitem__, map(id, all_parts)), np.int64, len(all_parts)
    )
    names = itertools.chain.from_iterable([group.attributes for group in groups])
    attribute_positions = np.fromiter(map(order.__getitem__, names), np.int64)
    # One number per group: equal for groups with equal parts (product factors) and equal query
    # weights; 0 for groups without query weights.
    weight_numbers = np.zeros(len(groups), dtype=np.int64)
    for i, group in enumerate(groups):
        if group.query_weights is not None:
            weight_numbers[i] = 1 + key_numbers.setdefault(group.key, len(key_numbers))
    # Groups with equal numbers of attributes and of parts (product factors) are compared as rows of
    # one array.
    lengths = np.array(
        [(len(group.attributes), len(group.parts)) for group in groups], dtype=np.int64
    ).reshape(-1, 2)
    first_attribute, first_part = (np.cumsum(lengths, axis=0) - lengths).T
    classes = []
    length_examples, length_numbers = unique_rows(lengths)
    for length_number, (n_attributes, n_parts) in enumerate(lengths[length_examples].tolist()):
        members = np.flatnonzero(length_numbers == length_number)
        positions = attribute_positions[first_attribute[members, None] + np.arange(n_attributes)]
        ranks = np.argsort(positions, axis=1, kind="stable")
        parts_of_groups = part_numbers[first_part[members, None] + np.arange(n_parts)]
        examples, class_numbers = unique_rows(
            np.column_stack([parts_of_groups, ranks, weight_numbers[members]])
        )
        sorted_positions = np.take_along_axis(positions, ranks, axis=1)
        for class_number, example in enumerate(examples.tolist()):
            in_class = class_numbers == class_number
            classes.append(
                GroupClass(
                    numbers=members[in_class],
                    ranks=tuple(ranks[example].tolist()),
                    places=sorted_positions[in_class],
                )
            )
    return sorted(classes, key=lambda group_class: int(group_class.numbers[0]))


def classes_of_all_ways(kinds: Index, ways: Sequence[int]) -> list[GroupClass]:
    """Return the result of `group_classes` for the groups of `Workload.all_ways`, but faster.

    Parameters
    ----------
    kinds : number per attribute, shape (attributes,); attributes with equal numbers have the same
        family and the same number of cells.
    ways : numbers of attributes per group, all different.

    >>> [c.numbers.tolist() for c in classes_of_all_ways(np.array([0, 0, 1]), (1, 2))]
    [[0, 1], [2], [3], [4, 5]]
    """
    classes, first_group = [], 0
    for k in ways:
        n_groups = math.comb(len(kinds), k)
        combinations = itertools.chain.from_iterable(itertools.combinations(range(len(kinds)), k))
        places = np.fromiter(combinations, np.int64, n_groups * k).reshape(n_groups, k)
        examples, class_numbers = unique_rows(kinds[places])
        for class_number in range(len(examples)):
            members = np.flatnonzero(class_numbers == class_number)
            classes.append(
                GroupClass(
                    numbers=first_group + members, ranks=tuple(range(k)), places=places[members]
                )
            )
        first_group += n_groups
    return sorted(classes, key=lambda group_class: int(group_class.numbers[0]))


def groups_outside(group_classes: Sequence[GroupClass], spaces: Sequence[Sequence[int]]) -> Index:
    """Return the groups with a residual space that is not in a list of residual spaces.

    The residual spaces of a group are all subsets of its attributes.

    Parameters
    ----------
    group_classes : equivalence classes of the groups.
    spaces : residual spaces, each as increasing positions of its attributes in the schema.

    Returns
    -------
    indices of these groups in the workload, increasing, shape (groups,).
    """
    outside_groups: list[Index] = [np.zeros(0, dtype=np.int64)]
    largest = max((len(group_class.ranks) for group_class in group_classes), default=0)
    for size in range(1 + largest):
        spaces_of_size = [space for space in spaces if len(space) == size]
        listed = np.array(spaces_of_size, dtype=np.int64).reshape(len(spaces_of_size), size)
        # for each class and each subset of this size, the indices of the groups, and the positions
        # in the schema of the attributes in the subset of each group
        subsets_of_groups = [
            (group_class.numbers, group_class.places[:, list(positions)])
            for group_class in group_classes
            for positions in itertools.combinations(range(len(group_class.ranks)), size)
        ]
        # Number the distinct attribute sets. Each row of the array is one set: first the listed
        # spaces, then the subsets of all groups.
        _, set_numbers = unique_rows(
            np.concatenate([listed, *(places for _, places in subsets_of_groups)])
        )
        is_listed = np.zeros(int(set_numbers.max(initial=0)) + 1, dtype=bool)
        is_listed[set_numbers[: len(listed)]] = True
        groups = np.concatenate([numbers for numbers, _ in subsets_of_groups])
        outside_groups.append(groups[~is_listed[set_numbers[len(listed) :]]])
    return np.unique(np.concatenate(outside_groups))


_FORMAT = "workload/1"
MAX_GROUPS = 200_000  # groups of a workload
# The square of a weight and the square of its inverse must be finite, positive floats.
SMALLEST_WEIGHT = 1e-100
_MAX_QUERY_WEIGHTS = 50_000_000
FamilySpec = str | Family | Mapping[str, "str | Family"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One factor of the query matrix of a group: a query family on some attributes of the group.

    Attributes
    ----------
    axes : positions of these attributes among the attributes of the group.
    family : the query family.
    sizes : numbers of cells of these attributes.
    """

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
    """Queries of one family specification on one set of attributes.

    Attributes
    ----------
    attributes : names of the attributes.
    family : the specification: the name of a family, a family, or a mapping from each attribute to
        one of these.
    parts : factors of the query matrix. A query is the Kronecker product of one row of each part;
        the row of the last part varies fastest.
    weight : weight of the group in the objective, 0 or more.
    query_weights : weight of each query in the group, shape (count,). The weight of a query in the
        objective is this number times ``weight``. None is 1 for every query.
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
        """Number of cells of each attribute, in the order of ``attributes``."""
        by_axis = {axis: n for p in self.parts for axis, n in zip(p.axes, p.sizes, strict=True)}
        return tuple(by_axis[axis] for axis in range(len(self.attributes)))

    @cached_property
    def part_weights(self) -> tuple[Array | None, ...] | None:
        """Query weights of the family of each part; None for a family without weights.

        If ``query_weights`` is not the Kronecker product of these weights, the value is None.
        """
        weights = tuple(part.family.query_weights for part in self.parts)
        product = _product_weights(self.parts)
        if self.query_weights is None or product is None:
            return None
        return weights if np.array_equal(product, self.query_weights) else None

    @cached_property
    def is_weighted(self) -> bool:
        """Whether at least one query has a positive weight."""
        return self.weight > 0 and (self.query_weights is None or bool(self.query_weights.any()))

    def named(self, axes: Iterable[int]) -> tuple[str, ...]:
        """Return the names of the attributes in the positions ``axes`` of the group."""
        return tuple(map(self.attributes.__getitem__, axes))

    def ranks(self, schema: Schema) -> tuple[int, ...]:
        """Return the axes of the group, sorted by the positions of the attributes in the schema."""
        placed = [schema.order[name] for name in self.attributes]
        return tuple(sorted(range(len(placed)), key=placed.__getitem__))

    def spaces(self, schema: Schema) -> Iterator[tuple[int, ...]]:
        """Yield the residual spaces of the group: all subsets of its axes, smaller subsets first.

        The axes in a subset are sorted by the positions of their attributes in the schema.

        >>> schema = Schema([Attribute.of_size(name, 2) for name in "abc"])
        >>> list(Workload(schema).add(("c", "a")).groups[0].spaces(schema))
        [(), (1,), (0,), (1, 0)]
        """
        return subsets(self.ranks(schema))

    @property
    def family_text(self) -> str:
        """Names of the query families of the parts as one text, such as "prefix × marginal".

        It is a single name if all families have this name, and "total" without parts.
        """
        names = [p.family.name for p in self.parts]
        return " × ".join(names if len(set(names)) > 1 else names[:1]) or "total"

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Hashable key of the queries and their query weights.

        The names of the attributes and the weight of the group are not part of the key.
        """
        digest = (
            None
            if self.query_weights is None
            else hashlib.sha256(self.query_weights.tobytes()).hexdigest()
        )
        return (tuple((p.axes, p.key) for p in self.parts), digest)

    def to_dict(self) -> dict[str, Any]:
        """Return the group as JSON-ready data."""
        out: dict[str, Any] = {
            "attributes": list(self.attributes),
            "family": spec_to_data(self.family),
        }
        if self.weight != 1.0:
            out["weight"] = self.weight
        if self.query_weights is not None and self.part_weights is None:
            out["query_weights"] = base64.b64encode(
                zlib.compress(self.query_weights.astype("<f8").tobytes())
            ).decode()
        return out


@dataclass(frozen=True, eq=False, repr=False)
class Workload(FrozenValue):
    """Query groups on the attributes of one schema; `add` returns a new workload.

    ``len`` is the number of queries, which can be billions. Iteration yields the groups.
    Use ``groups`` for a sequence of the groups.

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
        check_type(
            "schema",
            self.schema,
            Schema,
            give="a Schema, such as Schema([Attribute.of_size('age', 5)])",
        )
        check_type(
            "groups",
            self.groups,
            tuple,
            give="no groups here, and add groups one by one with add()",
        )

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
        attributes : names of the attributes; an empty sequence denotes the total.
        family : a family for one attribute, which is used for each attribute; a family for several
            attributes, such as "affine"; or a mapping from attribute to family.
        weight : weight of the group in the objective, 0 or more.
        query_weights : weight of each query, shape (count,), in the order of `describe`.

        Raises
        ------
        WorkloadError : if an attribute is repeated, a family does not fit its attributes, a weight
            is invalid, or there are too many groups.
        SchemaError : if the schema does not have one of the attributes.
        """
        if len(self.groups) >= MAX_GROUPS:
            raise WorkloadError(
                f"The workload already has {len(self.groups):,} groups, the largest number allowed."
                " Leave some groups out."
            )
        return Workload(
            self.schema,
            (*self.groups, make_group(self.schema, attributes, family, weight, query_weights)),
        )

    def with_weights(self, weights: Mapping[int, float]) -> Workload:
        """Return the workload with other weights for some groups.

        Parameters
        ----------
        weights : index of a group -> its new weight, 0 or more.

        Raises
        ------
        WorkloadError : if a weight is invalid, or an index is not the index of a group.

        >>> workload = Workload(Schema([Attribute.of_size("age", 4)])).add("age").add("age", "range")
        >>> [group.weight for group in workload.with_weights({1: 2.5}).groups]
        [1.0, 2.5]
        """
        for i, weight in weights.items():
            if not 0 <= i < len(self.groups):
                raise WorkloadError(
                    f"There is no group {i}: the workload has {len(self.groups):,} groups, numbered"
                    " from 0. Give the number of a group."
                )
            _check_weight(weight)
        groups = tuple(
            replace(group, weight=float(weights[i])) if i in weights else group
            for i, group in enumerate(self.groups)
        )
        return Workload(self.schema, groups)

    @classmethod
    def all_ways(
        cls, schema: Schema, ways: Iterable[int] = (1, 2, 3), family: FamilySpec = "auto"
    ) -> Workload:
        """Return the workload with one group per set of k attributes, for every k in ``ways``.

        With ``family="auto"`` categorical attributes have the family "marginal" and numeric
        attributes the family "prefix". If ``family`` is a mapping from attribute to family, the
        attributes that it does not contain have the family of "auto".

        Raises
        ------
        WorkloadError : if k is larger than the number of attributes, a family does not fit its
            attributes, or there are too many groups.
        SchemaError : if the mapping contains a name that is not an attribute.

        >>> Workload.all_ways(Schema([Attribute.of_size(c, 3) for c in "abcd"]), ways=(1, 2)).queries
        66
        """
        check_type(
            "schema", schema, Schema, give="a Schema, such as Schema([Attribute.of_size('age', 5)])"
        )
        check_type("ways", ways, (int, Iterable), give="a number, or several, such as (1, 2)")
        ways = (ways,) if isinstance(ways, int) else tuple(ways)
        for k in ways:
            check_int("number of attributes per set", k, 0, len(schema))
        groups = sum(math.comb(len(schema), k) for k in ways)
        if groups > MAX_GROUPS:
            raise WorkloadError(
                f"All {', '.join(f'{k}-way' for k in ways)} sets of {len(schema)} attributes make"
                f" {groups:,} groups, more than the {MAX_GROUPS:,} allowed. Give fewer ways, or add"
                " attribute sets one by one."
            )
        default: dict[str, str | Family] = {
            a.name: default_family(a.kind) for a in schema.attributes
        }
        if isinstance(family, Mapping):
            for name in family:
                schema[name]
            default |= family
        sets = [names for k in ways for names in itertools.combinations(schema.names, k)]
        by_attribute = isinstance(family, Mapping) or family == "auto"
        if by_attribute or (max(ways, default=0) > 0 and _is_on_one_attribute(family)):
            # There can be 100,000 groups, so each family is bound once per attribute, not per
            # group.
            fitted = {
                name: make_group(schema, name, {name: spec} if by_attribute else family).parts[0]
                for name, spec in default.items()
            }
            parts_by_axis = [
                {n: replace(part, axes=(a,)) for n, part in fitted.items()}
                for a in range(max(ways, default=0))
            ]
            all_groups = [
                Group(
                    attributes=names,
                    family=(
                        MappingProxyType({name: default[name] for name in names})
                        if by_attribute
                        else family
                    ),
                    parts=tuple(map(dict.__getitem__, parts_by_axis, names)),
                )
                for names in sets
            ]
            if any(part.family.query_weights is not None for part in fitted.values()):
                all_groups = list(map(_with_family_weights, all_groups))
            elif len(set(ways)) == len(ways):
                # The classes of equal groups are computed from the kinds of attributes, which is
                # faster than comparing 100,000 groups.  Attributes with equal query families are of
                # one kind.
                numbers: dict[Any, int] = {}
                kinds = [numbers.setdefault(p.key, len(numbers)) for p in fitted.values()]
                workload = cls(schema, tuple(all_groups))
                vars(workload)["group_classes"] = classes_of_all_ways(np.array(kinds), ways)
                return workload
        else:
            all_groups = [make_group(schema, names, family) for names in sets]
        return cls(schema, tuple(all_groups))

    @cached_property
    def queries(self) -> int:
        """Exact number of queries; unlike ``len``, it can exceed 64 bits."""
        return sum(g.count for g in self.groups)

    @cached_property
    def group_classes(self) -> list[GroupClass]:
        """Equivalence classes of the groups, ordered by the first group of each class."""
        return group_classes(self.groups, self.schema.order)

    def __len__(self) -> int:
        return self.queries

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def headline(self) -> dict[str, str]:
        """Return the numbers of attributes, groups and queries as texts for display."""
        sizes = {
            "attributes": len(self.schema),
            "groups": len(self.groups),
            "queries": self.queries,
        }
        return {name: number(size) for name, size in sizes.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return Workload.from_json, (self.to_json(),)

    @cached_property
    def starts(self) -> list[int]:
        """Index of the first query of each group."""
        return [0, *itertools.accumulate(g.count for g in self.groups)][:-1]

    def describe(self, index: int) -> str:
        """Return the description of query ``index``, such as "age <= 1 and sex = M".

        The queries of all groups are numbered consecutively from 0, in the order of the groups.
        Raises WorkloadError if the workload has no query with this number.
        """
        if not self.queries:
            raise WorkloadError("The workload has no queries. Add at least one group.")
        if (
            isinstance(index, bool)
            or not isinstance(index, (int, np.integer))
            or not 0 <= index < self.queries
        ):
            raise WorkloadError(
                f"There is no query {index!r}. Give the number of a query, 0 to "
                f"{self.queries - 1:,}."
            )
        group = bisect.bisect_right(self.starts, int(index)) - 1
        return self.describe_in_group(group, int(index) - self.starts[group])

    def describe_in_group(self, group: int, index: int) -> str:
        """Return the description of query ``index`` of group ``group``, both numbered from 0."""
        parts, names = self.groups[group].parts, self.groups[group].attributes
        return parts_text(parts, [self.schema[name] for name in names], index) or "all records"

    def to_dict(self) -> dict[str, Any]:
        """Return the workload, with its schema, as JSON-ready data."""
        return {
            "format": _FORMAT,
            "schema": self.schema.to_dict(),
            "groups": [g.to_dict() for g in self.groups],
        }

    def to_json(self) -> str:
        """Return the workload, with its schema, as JSON text."""
        return zlib.decompress(self._packed).decode()

    @cached_property
    def _packed(self) -> bytes:
        """Compressed JSON text; cached, because it is used often and slow to write."""
        return zlib.compress(
            json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":")).encode(), 1
        )

    @classmethod
    def from_dict(cls, data: object) -> Workload:
        """Rebuild a workload from `to_dict`.

        Raises
        ------
        WorkloadError, SchemaError : if the data is not a workload, or its schema is not valid.
        """
        if (
            not isinstance(data, dict)
            or data.get("format") != _FORMAT
            or not isinstance(data.get("groups"), list)
        ):
            raise WorkloadError(
                f'The data is not a workload. Give JSON with "format": "{_FORMAT}" and "groups".'
            )
        schema = Schema.from_dict(data.get("schema"))
        if len(data["groups"]) > MAX_GROUPS:
            raise WorkloadError(
                f"The workload has {len(data['groups']):,} groups; at most {MAX_GROUPS:,} are"
                " allowed. Leave some groups out."
            )
        return cls(
            schema, tuple(_group_from_dict(schema, i, g) for i, g in enumerate(data["groups"]))
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Workload:
        """Rebuild a workload from `to_json`; errors are those of `from_dict`."""
        try:
            return cls.from_dict(parse_json(text))
        except EngineError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise WorkloadError(
                "The text is not a workload in JSON. Give the text of a workload file, as"
                " Workload.to_json returns it, not the name of the file."
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workload) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.schema, len(self.groups)))


def parts_text(parts: Sequence[Part], attributes: Sequence[Attribute], index: int) -> str:
    """Return the description of query ``index`` in the Kronecker product of parts.

    The query of the last part varies fastest. The text is empty if the query counts all records.
    """
    texts = []
    for part in reversed(parts):
        index, row = divmod(index, part.count)
        texts.append(part.family.text([attributes[a] for a in part.axes], row))
    return " and ".join(t for t in reversed(texts) if t)


def _is_on_one_attribute(spec: FamilySpec) -> bool:
    """Return whether a specification is one family of queries on single attributes."""
    return not isinstance(spec, Mapping) and family(spec).arity == 1


def make_group(
    schema: Schema,
    attributes: str | Sequence[str],
    spec: FamilySpec,
    weight: float = 1.0,
    query_weights: npt.ArrayLike | None = None,
) -> Group:
    """Return a query group of a schema; parameters and errors are those of `Workload.add`."""
    names = schema.named(attributes, error=WorkloadError)
    columns = [schema[name] for name in names]
    if isinstance(spec, Mapping):
        if set(spec) != set(names):
            raise WorkloadError(
                f"The mapping has families for {', '.join(map(str, spec)) or 'no attribute'}, but "
                f"the group is on {', '.join(names) or 'no attribute'}. Give one family for each"
                " attribute of the group."
            )
        spec = MappingProxyType({name: spec[name] for name in names})
        parts = [
            (
                _unparameterized_part(schema, axis, name, family_spec)
                if isinstance(family_spec := spec[name], str)
                else _part((axis,), family(family_spec), columns)
            )
            for axis, name in enumerate(names)
        ]
    else:
        parts = _parts_of_family(family(spec), columns)
    _check_weight(weight)
    group = Group(attributes=names, family=spec, parts=tuple(parts), weight=float(weight))
    if query_weights is None:
        return _with_family_weights(group)
    return replace(group, query_weights=_check_query_weights(query_weights, group.count))


def _parts_of_family(unbound: Family, columns: Sequence[Attribute]) -> list[Part]:
    """Return one part per attribute for a one-attribute family, otherwise one part on all."""
    if unbound.arity == 1:
        return [_part((axis,), unbound, columns) for axis in range(len(columns))]
    if not columns:
        raise WorkloadError(
            f"The family '{unbound.name}' needs at least one attribute. Name the attributes, or use"
            " the family 'total'."
        )
    return [_part(tuple(range(len(columns))), unbound, columns)]


def _product_weights(parts: Sequence[Part]) -> Array | None:
    """Return the Kronecker product of the query weights of the families of all parts.

    The result has shape (queries,), one weight per query of a group with these parts. A family
    without query weights has weight 1 for each query. If no family has any, the result is None.
    """
    if all(part.family.query_weights is None for part in parts):
        return None
    _check_weighted_count(math.prod(part.count for part in parts))
    weights: Array = np.ones(1)
    for part in parts:
        part_weights = part.family.query_weights
        part_weights = np.ones(part.count) if part_weights is None else part_weights
        weights = np.asarray(np.kron(weights, part_weights), dtype=float)
    weights.flags.writeable = False
    return weights


def _with_family_weights(group: Group) -> Group:
    """Return the group with the query weights that follow from its families.

    If no family has query weights, the group is returned unchanged.
    """
    weights = _product_weights(group.parts)
    return group if weights is None else replace(group, query_weights=weights)


def _check_weight(weight: object) -> None:
    """Raise WorkloadError unless a weight is 0, or from `SMALLEST_WEIGHT` to its inverse."""
    allowed = False
    if isinstance(weight, (int, float, np.integer, np.floating)) and not isinstance(weight, bool):
        allowed = bool(weight == 0 or SMALLEST_WEIGHT <= weight <= 1 / SMALLEST_WEIGHT)
    if not allowed:
        raise WorkloadError(
            f"The weight {str(weight)[:40]} is not allowed. Give 0, or a number from"
            f" {SMALLEST_WEIGHT:g} to {1 / SMALLEST_WEIGHT:g}."
        )


def new_groups(workload: Workload, groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return the groups among ``groups`` that the workload does not have, each of them once.

    Groups that differ only in their weight count as equal. So do groups without query weights that
    differ only in the order of their attributes.

    >>> workload = Workload(Schema([Attribute.of_size(name, 2) for name in "ab"])).add(("a", "b"))
    >>> reordered = workload.add(("b", "a")).add(("a", "b"), "prefix").add(("b", "a"), "prefix")
    >>> [group.attributes for group in new_groups(workload, reordered.groups)]
    [('a', 'b')]
    """
    listed = _query_keys(workload)
    new: dict[tuple[Any, ...], Group] = {}
    for group in groups:
        names, key = _query_key(group, workload.schema)
        if key not in listed.get(names, ()):
            new.setdefault((names, key), group)
    return tuple(new.values())


@cached_on_value
def _query_keys(workload: Workload) -> Mapping[tuple[str, ...], Set[Hashable]]:
    """Return attribute set -> keys of the groups on this set; attributes are in schema order.

    Equal sets of keys share one object, which saves memory in workloads of 100,000 groups.
    """
    keys: dict[tuple[str, ...], frozenset[Hashable]] = {}
    shared: dict[frozenset[Hashable], frozenset[Hashable]] = {}
    names_of_places = workload.schema.names.__getitem__
    for group_class in workload.group_classes:
        # groups of a class without query weights have the same key
        examples = group_class.numbers.tolist()
        if workload.groups[examples[0]].query_weights is None:
            examples = examples[:1]
        class_keys = [_query_key(workload.groups[i], workload.schema)[1] for i in examples]
        for places, key in zip(group_class.places.tolist(), itertools.cycle(class_keys)):
            names = tuple(map(names_of_places, places))
            extended = keys.get(names, frozenset()) | {key}
            keys[names] = shared.setdefault(extended, extended)
    return keys


def has_queries_on(workload: Workload, attributes: Iterable[str]) -> bool:
    """Return whether the workload has a group on exactly these attributes, in any order.

    >>> workload = Workload(Schema([Attribute.of_size(name, 2) for name in "ab"])).add(("a", "b"))
    >>> has_queries_on(workload, "ba"), has_queries_on(workload, "a")
    (True, False)
    """
    return workload.schema.ranked(attributes) in _query_keys(workload)


def _query_key(group: Group, schema: Schema) -> tuple[tuple[str, ...], Hashable]:
    """Return the attributes of a group in schema order, and a hashable key of its queries.

    Two groups with equal attributes and equal keys have the same queries, maybe in another order.
    """
    ranks = group.ranks(schema)
    names = group.attributes if ranks == tuple(range(len(ranks))) else group.named(ranks)
    if group.query_weights is not None:
        return names, (group.attributes, group.key)
    position = {axis: i for i, axis in enumerate(ranks)}
    parts = ((tuple(position[axis] for axis in part.axes), part.key) for part in group.parts)
    return names, frozenset(parts)


@cached_on_value
def _unparameterized_part(schema: Schema, axis: int, name: str, family_name: str) -> Part:
    """Return the part with the family ``family_name`` on one attribute.

    Parts are cached, because many groups have equal parts.
    """
    return Part(
        axes=(axis,), family=family(family_name).bind([schema[name]]), sizes=(schema[name].size,)
    )


def _part(axes: tuple[int, ...], unbound: Family, columns: Sequence[Attribute]) -> Part:
    attributes = [columns[a] for a in axes]
    return Part(axes=axes, family=unbound.bind(attributes), sizes=tuple(c.size for c in attributes))


def _check_weighted_count(count: int) -> None:
    if count > _MAX_QUERY_WEIGHTS:
        raise WorkloadError(
            f"The group has {count:,} queries, but weights of queries or levels are allowed for at"
            f" most {_MAX_QUERY_WEIGHTS:,} queries. Give the group no such weights."
        )


def _check_query_weights(values: npt.ArrayLike, count: int) -> npt.NDArray[np.float64]:
    """Return one weight per query as a read-only array; raise WorkloadError if one is invalid."""
    _check_weighted_count(count)
    try:
        weights = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise WorkloadError(
            "The query weights contain an entry that is not a number. Give one number per query."
        ) from None
    if weights.shape != (count,):
        raise WorkloadError(
            f"The query weights have shape {weights.shape}. Give one number per query, that is"
            f" {count:,} numbers."
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise WorkloadError(
            "Some query weights are negative or not finite. Give finite numbers, each 0 or more."
        )
    weights.flags.writeable = False
    return weights


def _group_from_dict(schema: Schema, number: int, data: object) -> Group:
    """Return the group that the entry ``data`` of a workload file describes.

    ``number`` is the position of the entry, for error messages.
    """
    if not isinstance(data, dict) or not isinstance(data.get("attributes"), list):
        raise WorkloadError(
            f'Group {number} of the file has no list of attributes. Write "attributes": [...].'
        )
    names = tuple(data["attributes"])
    if not all(isinstance(name, str) for name in names):
        raise WorkloadError(
            f"Group {number} of the file has an attribute that is not a text. Write names of "
            "attributes in quotes."
        )
    spec, packed = spec_from_data(data.get("family")), data.get("query_weights")
    group = make_group(schema, names, spec, data.get("weight", 1.0))
    if packed is None:
        return group
    try:
        # One byte more than the weights have, so that longer data is refused.
        max_bytes = 8 * min(group.count, _MAX_QUERY_WEIGHTS) + 1
        weights = np.frombuffer(
            zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), max_bytes),
            "<f8",
        )
    except (TypeError, ValueError, binascii.Error, zlib.error):
        raise WorkloadError(
            f"The query weights of group {number} of the file are damaged. Export the workload "
            "again."
        ) from None
    return make_group(schema, names, spec, group.weight, weights)


def joint_part(group: Group) -> Part:
    """Return one part with all queries of a group, for computations on the complete query matrix."""
    axes = tuple(a for p in group.parts for a in p.axes)
    return Part(
        axes=axes,
        family=_Product(group.parts),
        sizes=tuple(n for p in group.parts for n in p.sizes),
    )


class _Product(Family):
    """Family whose query matrix is a Kronecker product, generated in chunks of rows."""

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
        matrices = [p.family.rows(p.sizes) for p in self.parts]
        # ``tail`` is the Kronecker product of the last matrices. Matrices are added to ``tail`` as
        # long as a chunk of len(tail) rows has at most CHUNK_ENTRIES entries. Each chunk is the
        # Kronecker product of one row of each remaining matrix with ``tail``.
        tail = matrices.pop() if matrices else np.ones((1, 1))
        cells = math.prod(sizes)
        while matrices and len(tail) * len(matrices[-1]) * cells <= CHUNK_ENTRIES:
            tail = np.asarray(np.kron(matrices.pop(), tail), dtype=float)
        row_choices = itertools.product(*(range(len(matrix)) for matrix in matrices))
        for chunk, rows_of_parts in enumerate(row_choices):
            head: Array = np.ones(1)
            for matrix, row in zip(matrices, rows_of_parts, strict=True):
                head = np.asarray(np.kron(head, matrix[row]), dtype=float)
            yield chunk * len(tail), np.asarray(np.kron(head[None, :], tail), dtype=float)
