"""Invalid groups, weights and families, and sizes above the limits, are refused."""

import math

import numpy as np
import pytest

from engine.errors import LimitExceeded, SchemaError, WorkloadError
from engine.mechanisms import forecast, plan
from engine.workload import Attribute, Custom, Schema, Width, Workload
from engine.workload.families import Random
from tests.shapes import mixed, numeric
from tests.workload.refusals import EMPTY, ONE, check_refused

pytestmark = pytest.mark.usefixtures("quick")

FORTY = Schema([Attribute.of_size(f"x{i}", 10) for i in range(40)])


# ---- invalid groups
# ---------------------------------------------------------------------------------------------

UNSUITABLE_FAMILIES = {
    "affine on one": (("a",), "affine", ["affine", "2 attributes", "1 (a)"]),
    "affine on three": (("a", "b", "c"), "affine", ["2 attributes", "3 (a, b, c)"]),
    "abs on none": ((), "abs", ["abs", "attribute"]),
    "affine on none": ((), "affine", ["affine", "attribute"]),
    "two queries on none": ((), Custom([[1.0], [2.0]]), ["custom"]),
    "affine for one of two": (
        ("a", "b"),
        {"a": "affine", "b": "marginal"},
        ["affine", "2 attributes"],
    ),
    "width larger than the attribute": (("b",), Width(4), ["width 4", "3 cells", "'b'"]),
    "width larger than one of two": (("a", "b"), Width(4), ["width 4", "3 cells"]),
    "unknown name": (("a",), "median", ["'median'", "prefix", "range"]),
    "empty word": (("a",), "", ["''", "prefix"]),
    "number": (("a",), 7, ["7", "prefix"]),
    "nothing": (("a",), None, ["None", "prefix"]),
    "list": (("a",), ["prefix"], ["['prefix']"]),
    "class": (("a",), Width, ["Width"]),
    "width without a width": (("a",), "width", ["width", "parameters"]),
    "custom without queries": (("a",), "custom", ["custom", "matrix"]),
    "mapping that lacks one": (("a", "b"), {"a": "prefix"}, ["a", "a, b"]),
    "mapping with one too many": (("a",), {"a": "prefix", "b": "prefix"}, ["a, b"]),
    "mapping of no names": (("a", "b"), {}, ["no attribute", "a, b"]),
    "mapping for nothing": ((), {"a": "prefix"}, ["no attribute"]),
    "mapping to a mapping": (("a",), {"a": {"a": "prefix"}}, ["prefix"]),
    "columns too few": (("a", "b"), Custom(np.ones((2, 11))), ["11 columns", "12 cells"]),
    "columns too many": (("a",), Custom(np.ones((2, 5))), ["5 columns", "4 cells"]),
}


@pytest.mark.parametrize("case", UNSUITABLE_FAMILIES)
def test_add_with_unsuitable_family_is_refused(case):
    attributes, family, words = UNSUITABLE_FAMILIES[case]
    check_refused(WorkloadError, words, EMPTY.add, attributes, family)


@pytest.mark.parametrize(
    "family", ["prefix", "range", "circular", Width(2), "affine", "abs"], ids=str
)
def test_ordered_family_on_categorical_attribute_is_refused(family):
    attributes = ("sex", "age") if family in ("affine", "abs") else ("sex",)
    check_refused(
        WorkloadError,
        ["'sex'", "categorical", "marginal"],
        Workload(mixed()).add,
        attributes,
        family,
    )


@pytest.mark.parametrize(
    "names", [("d",), ("a", "d"), ("A",), ("",), (None,), (1,), (("a",),), (["a"],), ("a" * 10**6,)]
)
def test_add_with_unknown_attributes_is_refused(names):
    with pytest.raises((SchemaError, WorkloadError)) as caught:
        EMPTY.add(names)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "a")])
def test_add_with_repeated_attributes_is_refused(names):
    check_refused(WorkloadError, ["twice", "a"], EMPTY.add, names)


WEIGHTS = [
    -1,
    -1e-300,
    math.nan,
    math.inf,
    -math.inf,
    True,
    False,
    "1",
    None,
    [1.0],
    1j,
    np.complex128(1),
    10**400,
]


@pytest.mark.parametrize("weight", WEIGHTS, ids=lambda w: f"{type(w).__name__} {w!s:.8}")
def test_add_with_invalid_weight_is_refused(weight):
    check_refused(WorkloadError, ["weight", "not allowed"], EMPTY.add, "a", "prefix", weight)


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1e-101, 1.1e100, 1e300, 1.7e308])
def test_weight_outside_range_is_refused(weight):
    check_refused(WorkloadError, ["weight", "1e-100"], EMPTY.add, ("a", "b"), "prefix", weight)


@pytest.mark.parametrize("weight", [1e-100, 1e-30, 1e30, 1e100])
def test_extreme_weight_of_only_group_changes_no_error(weight):
    result = plan(EMPTY.add(("a", "b"), "prefix", weight=weight), ONE)
    reference = plan(EMPTY.add(("a", "b"), "prefix"), ONE)
    assert result.rmse == pytest.approx(reference.rmse, rel=1e-4)


QUERY_WEIGHTS = {
    "too few": [1, 2, 3],
    "too many": [1] * 5,
    "none": [],
    "table": [[1, 2, 3, 4]],
    "one number": 1.0,
    "negative": [1, 1, -1, 1],
    "nan": [1, 1, math.nan, 1],
    "inf": [1, 1, math.inf, 1],
    "text": ["a", "b", "c", "d"],
    "ragged": [[1], [1, 2], 3, 4],
    "complex": [1j, 1, 1, 1],
    "mapping": {"a": 1},
    "huge": [10**400, 1, 1, 1],
}


@pytest.mark.parametrize("case", QUERY_WEIGHTS)
def test_add_with_invalid_query_weights_is_refused(case):
    check_refused(
        WorkloadError,
        ["query weights"],
        EMPTY.add,
        "a",
        "prefix",
        query_weights=QUERY_WEIGHTS[case],
    )


def test_query_weights_of_too_many_queries_are_refused():
    big = Workload(FORTY)
    check_refused(
        WorkloadError,
        ["10,000,000,000", "at most"],
        big.add,
        FORTY.names[:10],
        "prefix",
        query_weights=[1.0],
    )


@pytest.mark.parametrize("ways", [(-1,), (41,), (1.5,), ("1",), (True,), (None,), -1, 41, (2, 99)])
def test_all_ways_with_invalid_ways_is_refused(ways):
    check_refused(WorkloadError, ["0 to 40"], Workload.all_ways, FORTY, ways)


INVALID_FAMILIES = [
    lambda: Width(0),
    lambda: Width(-1),
    lambda: Width(2.0),
    lambda: Width(True),
    lambda: Width("3"),
    lambda: Random(p=0),
    lambda: Random(p=1),
    lambda: Random(p=math.nan),
    lambda: Random(p="0.3"),
    lambda: Random(p=True),
    lambda: Random(count=0),
    lambda: Random(count=1.5),
    lambda: Random(seed=-1),
    lambda: Random(seed=2**63),
    lambda: Random(seed=None),
    lambda: Custom(),
    lambda: Custom([[1]], predicates=["a == 1"]),
    lambda: Custom([]),
    lambda: Custom([[]]),
    lambda: Custom([[1, math.nan]]),
    lambda: Custom([[1, math.inf]]),
    lambda: Custom([[1, 2], [3]]),
    lambda: Custom([["a"]]),
    lambda: Custom([[1j]]),
    lambda: Custom(np.ones((2, 2, 2))),
    lambda: Custom([[10**400]]),
    lambda: Custom([[1, 0]], labels=["one", "two"]),
    lambda: Custom([[1, 0]], labels=[7]),
    lambda: Custom(predicates=[]),
    lambda: Custom(predicates=[7]),
    lambda: Custom(predicates="a == 1"),
    lambda: Custom(predicates=7),
]


@pytest.mark.parametrize("build_family", INVALID_FAMILIES)
def test_family_with_invalid_parameters_is_refused(build_family):
    check_refused(WorkloadError, [], build_family)


# ---- sizes
# ------------------------------------------------------------------------------------------------------


def test_all_ways_with_too_many_groups_is_refused():
    # 40 attributes have 658,008 sets of 5
    check_refused(WorkloadError, ["658,008", "200,000"], Workload.all_ways, FORTY, 5)
    check_refused(WorkloadError, ["200,000 allowed"], Workload.all_ways, FORTY, range(1, 41))


def test_family_rows_above_memory_are_refused():
    add = Workload(FORTY).add
    check_refused(WorkloadError, ["random", "cells", "fewer"], add, FORTY.names[:8], Random())
    check_refused(WorkloadError, ["random"], add, FORTY.names, Random(count=1))
    predicate = Custom(predicates=["x0 == 1"])
    check_refused(WorkloadError, ["custom"], add, FORTY.names[:9], predicate)


@pytest.mark.parametrize(
    ("family", "queries", "limit"),
    [
        ("prefix", 10**6, "100,000"),
        ("range", 10**6 * (10**6 + 1) // 2, "memory"),
        ("circular", 10**12, "memory"),
    ],
)
def test_million_cell_attribute_exceeds_plan_limits(family, queries, limit):
    workload = Workload(Schema([Attribute.of_size("id", 10**6)])).add("id", family)
    assert workload.queries == queries
    check_refused(LimitExceeded, [limit], plan, workload, ONE)
    check_refused(LimitExceeded, ["merge cells"], plan, workload, ONE, "residualplanner")


def test_million_cell_marginal_is_planned():
    """Marginals have a closed form, so the limits of other families do not apply."""
    workload = Workload(Schema([Attribute.of_size("id", 10**6)])).add("id", "marginal")
    assert workload.queries == 10**6
    assert plan(workload, ONE).rmse == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("family", ["affine", "abs", {"x": "range", "y": "prefix"}], ids=str)
def test_pair_of_million_cells_exceeds_plan_memory(family):
    schema = Schema([Attribute.of_size("x", 10**6), Attribute.of_size("y", 10**6)])
    workload = Workload(schema).add(("x", "y"), family)
    assert workload.queries > 0
    check_refused(LimitExceeded, ["memory"], plan, workload, ONE)


@pytest.mark.parametrize("attributes", [25, 40])
def test_group_of_many_attributes_exceeds_space_limit(attributes):
    """A group on 40 attributes has 2^40 residual spaces."""
    workload = Workload(FORTY).add(FORTY.names[:attributes], "marginal")
    assert workload.queries == 10**attributes
    assert workload.describe(0).count(" and ") == attributes - 1
    check_refused(LimitExceeded, [str(attributes), "at most 14"], plan, workload, ONE)
    check_refused(LimitExceeded, ["at most 14"], forecast, workload)


def test_plan_above_memory_limit_is_refused():
    workload = (
        Workload(numeric(200, 200)).add(("a", "b"), "range").add(("a", "b"), Random(count=50))
    )
    check_refused(
        LimitExceeded,
        ["200 x 200", "0.0342 GB", "memory_limit"],
        plan,
        workload,
        ONE,
        memory_limit=1e7,
    )
