"""Workloads: exact counts, texts by index, groups in any order, and JSON round trips."""

import itertools
import json
import math

import numpy as np
import pytest

from engine._arrays import unique_rows
from engine.errors import SchemaError, WorkloadError
from engine.workload import (
    Attribute,
    Custom,
    Schema,
    Width,
    Workload,
    has_queries_on,
    new_groups,
)
from engine.workload import workload as workload_module
from engine.workload.families import Prefix, Random
from engine.workload.workload import group_classes, groups_outside
from tests import oracles, shapes
from tests.shapes import SHAPES

ADULT = {"categorical": (42, 16, 15, 9, 7, 6, 5, 2, 2), "numeric": (100, 100, 100, 99, 85)}


def schema_of(categorical, numeric):
    kinds = [("categorical", n) for n in categorical] + [("numeric", n) for n in numeric]
    return Schema([Attribute.of_size(f"x{i}", n, kind) for i, (kind, n) in enumerate(kinds)])


def forty(n):
    return Schema([Attribute.of_size(f"x{i}", n) for i in range(40)])


@pytest.mark.parametrize("shape", SHAPES)
def test_workload_counts_and_texts_match_rows(shape):
    workload = SHAPES[shape]()
    rows = oracles.workload_rows(workload)
    assert [g.count for g in workload.groups] == [len(W) for W in rows]
    assert workload.queries == len(workload) == sum(map(len, rows))
    assert workload.starts == [0, *itertools.accumulate(map(len, rows[:-1]))]
    for number, (group, start) in enumerate(zip(workload.groups, workload.starts, strict=True)):
        assert group.sizes == workload.schema.sizes(group.attributes)
        for index in {0, group.count // 2, group.count - 1}:
            assert workload.describe(start + index) == workload.describe_in_group(number, index)


def test_describe_lists_parts_in_group_order():
    schema = Schema(
        [Attribute.numeric("age", [0, 20, 65, 120]), Attribute.categorical("sex", ["F", "M"])]
    )
    workload = (
        Workload(schema).add(("sex", "age"), {"age": "prefix", "sex": "marginal"}).add((), "total")
    )
    workload = workload.add(("age", "sex"), {"age": "total", "sex": "marginal"}).add(
        ("age", "sex"), "total"
    )
    assert [workload.describe(q) for q in range(len(workload))] == [
        "sex = F and age < 20",
        "sex = F and age < 65",
        "sex = F and age <= 120",
        "sex = M and age < 20",
        "sex = M and age < 65",
        "sex = M and age <= 120",
        "all records",
        "sex = F",
        "sex = M",
        "all records",
    ]


def test_describe_of_product_follows_row_order():
    workload = Workload(shapes.numeric(3, 4)).add(("b", "a"), {"a": "marginal", "b": Width(2)})
    texts = [workload.describe(q) for q in range(9)]
    expected = ["b <= 1 and a = 0", "b <= 1 and a = 1", "b <= 1 and a = 2", "1 <= b <= 2 and a = 0"]
    assert texts[:4] == expected
    assert len(set(texts)) == 9


@pytest.mark.parametrize("index", [-1, 12, 10**30, 1.0, True, "0", None])
def test_describe_with_unknown_index_is_refused(index):
    workload = Workload(shapes.numeric(3, 4)).add(("a", "b"), "marginal")
    with pytest.raises(WorkloadError, match="0 to 11"):
        workload.describe(index)
    assert workload.describe(np.int64(11)) == "a = 2 and b = 3"
    with pytest.raises(WorkloadError, match="no queries"):
        Workload(shapes.numeric(3, 4)).describe(0)


# ---- all k-way sets
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ways", "queries"),
    [((1,), 588), ((2,), 148_137), ((3,), 20_894_536), ((1, 2, 3), 21_043_261), ((0,), 1)],
)
def test_all_ways_of_adult_counts_queries(ways, queries):
    workload = Workload.all_ways(schema_of(**ADULT), ways)
    assert workload.queries == queries
    assert len(workload.groups) == sum(math.comb(14, k) for k in ways)
    assert {f for g in workload.groups for f in g.family.values()} <= {"marginal", "prefix"}


@pytest.mark.parametrize(
    ("family", "queries"),
    [("marginal", 78_400), ("prefix", 78_400), ("range", 2_361_700), ("circular", 7_804_000)],
)
def test_all_ways_of_forty_attributes_counts_queries(family, queries):
    assert Workload.all_ways(forty(10), (1, 2), family).queries == queries


def test_all_ways_accepts_number_family_or_mapping():
    schema = shapes.mixed()
    assert Workload.all_ways(schema, 2) == Workload.all_ways(schema, (2,))
    mapped = Workload.all_ways(schema, (1, 2), {"age": "range"})
    families = {group.attributes: group.family for group in mapped.groups}
    assert families["age",] == {"age": "range"}
    assert families["sex",] == {"sex": "marginal"}
    assert families["age", "sex"] == {"age": "range", "sex": "marginal"}
    pairs = Workload.all_ways(shapes.numeric(3, 4, 5), 2, "affine")
    assert [g.attributes for g in pairs.groups] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [g.count for g in pairs.groups] == [3 + 4 - 1, 3 + 5 - 1, 4 + 5 - 1]
    assert Workload.all_ways(shapes.numeric(3, 4, 5), 3, Random(count=7)).queries == 7


def test_workload_counts_are_exact_integers():
    workload = Workload.all_ways(forty(1000), 3, "range")
    ranges = 1000 * 1001 // 2
    assert workload.queries == math.comb(40, 3) * ranges**3
    last = workload.describe(workload.queries - 1)
    assert last == "x37 = 999 and x38 = 999 and x39 = 999"
    assert workload.describe(ranges**3 * 5000).count(" and ") == 2
    circular = Workload(forty(2000))
    for k in range(30):
        circular = circular.add(circular.schema.names[k : k + 4], "circular")
    assert circular.queries == 30 * 2000**8
    assert forty(1000).size == 1000**40


def test_add_handles_ten_thousand_groups():
    schema = forty(20)
    workload = Workload(schema)
    pairs = list(itertools.islice(itertools.cycle(itertools.combinations(schema.names, 2)), 10_000))
    for pair in pairs:
        workload = workload.add(pair, "prefix")
    assert len(workload.groups) == 10_000
    assert workload.queries == 10_000 * 400
    assert workload.groups[-1].attributes == pairs[-1]


# ---- order, weights, values
# -------------------------------------------------------------------------------------


def test_add_returns_new_unchangeable_workload():
    first = Workload(shapes.numeric(3, 4)).add("a")
    second = first.add("b", "range")
    assert [g.attributes for g in first.groups] == [("a",)]
    assert [g.attributes for g in second.groups] == [("a",), ("b",)]
    with pytest.raises(AttributeError):
        second.groups = ()
    with pytest.raises(AttributeError):
        second.groups[0].weight = 2.0


def test_family_mapping_is_copied_and_unordered():
    families = {"b": "prefix", "a": "marginal"}
    workload = Workload(shapes.numeric(3, 4)).add(("a", "b"), families)
    families["a"] = "range"
    assert [p.family.name for p in workload.groups[0].parts] == ["marginal", "prefix"]
    assert workload.groups[0].family_text == "marginal × prefix"
    assert workload.groups[0].sizes == (3, 4)
    assert workload == Workload(shapes.numeric(3, 4)).add(
        ("a", "b"), {"a": "marginal", "b": Prefix().name}
    )


def test_query_weights_are_copied_in_describe_order():
    weights = np.arange(12.0)
    workload = Workload(shapes.numeric(3, 4)).add(("b", "a"), "marginal", query_weights=weights)
    weights[:] = 0
    np.testing.assert_array_equal(workload.groups[0].query_weights, np.arange(12.0))
    with pytest.raises(ValueError, match="read-only"):
        workload.groups[0].query_weights[0] = 1
    assert workload.describe(5) == "b = 1 and a = 2"
    (total,) = Workload(shapes.numeric(3, 4)).add((), query_weights=[2.0]).groups
    assert total.query_weights.tolist() == [2.0]


def test_group_key_ignores_attribute_names():
    workload = (
        Workload(shapes.numeric(3, 3, 4))
        .add(("a", "c"), "prefix")
        .add(("b", "c"), "prefix", weight=9.0)
        .add(("a", "b"), "prefix")
        .add(("c", "a"), "prefix")
        .add(("a", "c"), "prefix", query_weights=np.ones(12))
        .add(("a", "c"), "range")
    )
    key, key_of_other_names, *other_keys = (group.key for group in workload.groups)
    assert key == key_of_other_names
    # other sizes, another order, query weights, another family
    assert len({key, *other_keys}) == 5


def test_workload_equality_and_hash_use_content():
    build = SHAPES["query_weighted"]
    workload, equal_workload = build(), build()
    assert workload == equal_workload
    assert hash(workload) == hash(equal_workload)
    assert workload != workload.add("a")
    assert workload != Workload(workload.schema, workload.groups[::-1])
    assert workload != "workload"


# ---- JSON
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_workload_json_round_trips(shape):
    workload = SHAPES[shape]()
    text = workload.to_json()
    loaded = Workload.from_json(text)
    assert loaded == workload
    assert loaded.to_json() == text
    assert Workload.from_json(text.encode()) == workload
    assert Workload.from_dict(json.loads(text)) == workload
    for group, loaded_group in zip(workload.groups, loaded.groups, strict=True):
        assert loaded_group.key == group.key
        assert loaded_group.weight == group.weight
        assert loaded_group.attributes == group.attributes
    rows, loaded_rows = oracles.workload_rows(workload), oracles.workload_rows(loaded)
    for rows_of_group, loaded_rows_of_group in zip(rows, loaded_rows, strict=True):
        np.testing.assert_array_equal(loaded_rows_of_group, rows_of_group)
    for query in range(0, len(workload), 7):
        assert loaded.describe(query) == workload.describe(query)


def test_workload_json_keeps_exact_weights_and_matrices():
    weights = np.random.default_rng(1).random(4) * 10.0 ** np.arange(-8, 8, 4)
    workload = Workload(shapes.numeric(4)).add("a", "prefix", weight=math.pi, query_weights=weights)
    loaded = Workload.from_json(workload.to_json())
    assert loaded.groups[0].weight == math.pi
    np.testing.assert_array_equal(loaded.groups[0].query_weights, weights)
    matrix = np.random.default_rng(2).standard_normal((3, 4))
    loaded = Workload.from_json(Workload(shapes.numeric(4)).add("a", Custom(matrix)).to_json())
    np.testing.assert_array_equal(loaded.groups[0].parts[0].family.matrix, matrix)


def test_workload_json_states_format():
    document = json.loads(SHAPES["permuted_group"]().to_json())
    assert document["format"] == "workload/1"
    assert document["groups"][0] == {
        "attributes": ["c", "a", "b"],
        "family": {"each": {"c": "range", "a": "prefix", "b": "marginal"}},
    }


def test_workload_json_keeps_unicode_names():
    schema = Schema([Attribute.categorical("Größe", ["klein", "groß"]), Attribute.of_size("年", 3)])
    workload = Workload(schema).add(("年", "Größe"), {"年": "prefix", "Größe": "marginal"})
    assert Workload.from_json(workload.to_json()) == workload
    assert workload.describe(1) == "年 <= 0 and Größe = groß"


def test_unknown_attribute_message_suggests_name():
    with pytest.raises(SchemaError, match=r"'agee'.*'age'"):
        Workload(Schema([Attribute.of_size("age", 3)])).add("agee")


def random_groups(seed):
    """Return a workload of 25 random groups.

    Attributes have any order, attribute sets can occur repeatedly, group weights can be 0, and some
    groups have query weights.
    """
    rng = np.random.default_rng(seed)
    workload = Workload(Schema([Attribute.of_size(f"x{i}", 3) for i in (4, 0, 3, 1, 2)]))
    for _ in range(25):
        names = [str(n) for n in rng.permutation(workload.schema.names)[: rng.integers(0, 4)]]
        families = {name: str(rng.choice(["prefix", "marginal"])) for name in names} or "total"
        weights = rng.random(3 ** len(names)) if rng.random() < 0.2 else None
        workload = workload.add(names, families, float(rng.integers(0, 3)), weights)
    return workload


def test_all_ways_group_classes_match_comparison():
    sizes = (3, 4, 3, 4, 3)
    schema = Schema([Attribute.of_size(f"x{i}", n) for i, n in enumerate(sizes)])
    for ways, family in (((0, 1, 3), "auto"), ((3, 1), {"x2": "marginal"}), ((2, 2), "range")):
        workload = Workload.all_ways(schema, ways, family)
        expected = group_classes(workload.groups, schema.order)
        assert [c.ranks for c in workload.group_classes] == [c.ranks for c in expected]
        for group_class, expected_class in zip(workload.group_classes, expected, strict=True):
            assert group_class.numbers.tolist() == expected_class.numbers.tolist()
            assert group_class.places.tolist() == expected_class.places.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_group_classes_match_key_and_ranks(seed):
    workload = random_groups(seed)
    kinds = {}
    for i, group in enumerate(workload.groups):
        ranks = group.ranks(workload.schema)
        places = [workload.schema.order[name] for name in group.named(ranks)]
        kinds.setdefault((group.key, ranks), []).append((i, places))
    classes = [
        (a.ranks, list(zip(a.numbers.tolist(), a.places.tolist(), strict=True)))
        for a in workload.group_classes
    ]
    assert classes == [(ranks, members) for (_, ranks), members in kinds.items()]


def test_has_queries_on_many_groups_compares_one_per_class(monkeypatch):
    workload = Workload.all_ways(shapes.numeric(*[3] * 8), (1, 2, 3)).add(
        ("b", "a"), "marginal", query_weights=np.arange(1.0, 10.0)
    )
    calls = []
    query_key = workload_module._query_key

    def record_call(*args):
        calls.append(args)
        return query_key(*args)

    monkeypatch.setattr(workload_module, "_query_key", record_call)
    assert has_queries_on(workload, ("c", "a"))
    assert not has_queries_on(workload, "abcd")
    # one call each for groups of one, two and three attributes, and for that with query weights
    assert len(calls) == 4


def test_new_groups_with_other_query_weights_are_new():
    workload = Workload.all_ways(shapes.numeric(3, 3, 3), (1, 2, 3)).add(
        ("b", "a"), "marginal", query_weights=np.arange(1.0, 10.0)
    )
    assert new_groups(workload, workload.groups) == ()
    other = Workload(workload.schema).add(("b", "a"), "marginal", query_weights=np.ones(9))
    assert new_groups(workload, other.groups) == other.groups


@pytest.mark.parametrize("seed", range(3))
def test_groups_outside_matches_enumeration(seed):
    workload = random_groups(seed)
    order = workload.schema.order
    spaces_of_groups = [
        {group.named(axes) for axes in group.spaces(workload.schema)} for group in workload.groups
    ]
    all_spaces = sorted(set().union(*spaces_of_groups))
    for left_out in (None, *all_spaces):
        spaces = [tuple(order[name] for name in space) for space in all_spaces if space != left_out]
        expected = [
            i for i, spaces_of_group in enumerate(spaces_of_groups) if left_out in spaces_of_group
        ]
        assert groups_outside(workload.group_classes, spaces).tolist() == expected


def test_unique_rows_matches_numpy_unique():
    rng = np.random.default_rng(2)
    # These ranges of values exercise all branches of `unique_rows`.
    for most in (3, 10**6, 2**40):
        rows = rng.integers(0, most, size=(50, 4))[rng.integers(0, 50, size=200)]
        first_indices, numbers = unique_rows(rows)
        distinct, expected = np.unique(rows, axis=0, return_inverse=True)
        assert np.array_equal(numbers, expected.ravel())
        assert np.array_equal(rows[first_indices], distinct)
        for i in first_indices:
            earlier_rows = rows[:i]
            assert not (earlier_rows == rows[i]).all(axis=1).any()


def test_all_ways_family_shares_parts_between_groups() -> None:
    """Shared parts make the classes of 100,000 groups fast to compute."""
    schema = Schema([Attribute.of_size(name, 4) for name in "abc"])
    workload = Workload.all_ways(schema, ways=(0, 1, 2), family="prefix")
    single = Workload(schema)
    for group in workload:
        single = single.add(group.attributes, "prefix")
    assert [(g.attributes, g.family, g.key) for g in workload] == [
        (g.attributes, g.family, g.key) for g in single
    ]
    distinct = {id(part) for group in workload for part in group.parts}
    assert len(distinct) == 5  # three attributes in two positions, but the first is never second


def test_all_ways_joint_family_without_attributes_is_refused() -> None:
    schema = Schema([Attribute.of_size(name, 4) for name in "abc"])
    with pytest.raises(WorkloadError, match="at least one attribute"):
        Workload.all_ways(schema, ways=0, family="affine")
