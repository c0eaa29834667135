"""Invalid budgets, options, queries and plan files are refused."""

import base64
import json
import math

import numpy as np
import pytest

from engine.errors import BudgetError, EngineError, NotAnswerable, PlanError, SchemaError
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.workload import Custom, Width
from tests.plans.goals import packed
from tests.workload.refusals import EMPTY, GOOD, ONE, ORDERED, check_refused

pytestmark = pytest.mark.usefixtures("quick")


# ---- requests
# ---------------------------------------------------------------------------------------------------

WORKLOAD = EMPTY.add("a", "prefix")
BUDGETS = [0, -1, math.nan, math.inf, -math.inf, True, "1", None, [1.0], 1j, 10**400, 1e-400]


@pytest.mark.parametrize("pcost", BUDGETS, ids=lambda b: f"{type(b).__name__} {b!s:.8}")
def test_budget_with_invalid_pcost_is_refused(pcost):
    check_refused(BudgetError, ["pcost"], Budget, pcost=pcost)


@pytest.mark.parametrize("budget", [1.0, None, "1", {"pcost": 1.0}])
def test_plan_without_budget_or_workload_is_refused(budget):
    check_refused(PlanError, ["Budget"], plan, WORKLOAD, budget)
    check_refused(PlanError, ["Workload"], plan, ORDERED, ONE)
    check_refused(PlanError, ["no queries"], plan, EMPTY, ONE)


@pytest.mark.parametrize("pcost", [5e-324, 1e-200, 1.7e308])
def test_budget_that_needs_extreme_noise_is_refused(pcost):
    check_refused(EngineError, ["noise", "1e100"], plan, WORKLOAD, Budget(pcost=pcost))


@pytest.mark.parametrize("pcost", [1e-160, 1e-190])
def test_budget_whose_rounding_needs_extreme_noise_is_refused(pcost):
    check_refused(PlanError, ["rounding", "larger budget"], plan, WORKLOAD, Budget(pcost=pcost))


@pytest.mark.parametrize("pcost", [1e-150, 1e-20, 1e200])
def test_extreme_budget_has_larger_error_because_of_grid(pcost):
    """Rounding to the grid of the 64-bit answers costs budget, or the grid exceeds the noise."""
    result = plan(WORKLOAD, Budget(pcost=pcost))
    assert 0 < result.pcost <= pcost
    assert 10 * plan(WORKLOAD, ONE).rmse / math.sqrt(pcost) < result.rmse < math.inf


@pytest.mark.parametrize("pcost", [1e-6, 1e6])
def test_error_is_proportional_to_inverse_root_of_budget(pcost):
    result = plan(WORKLOAD, Budget(pcost=pcost))
    assert result.rmse == pytest.approx(plan(WORKLOAD, ONE).rmse / math.sqrt(pcost), rel=1e-5)


def test_plan_of_zero_workload_is_refused():
    zero_weights = EMPTY.add("a", weight=0.0).add("b", query_weights=[0, 0, 0])
    check_refused(PlanError, ["weight zero"], plan, zero_weights, ONE)
    for zero_queries in (
        EMPTY.add("a", Custom(np.zeros((2, 4)))),
        # only the query of zeros has a positive weight
        EMPTY.add("a", Custom([[1, 0, 0, 0], [0, 0, 0, 0]]), query_weights=[0, 1]),
    ):
        check_refused(PlanError, ["coefficients", "are 0"], plan, zero_queries, ONE)


OPTIONS = [
    {"mechanism": "magic"},
    {"mechanism": None},
    {"mechanism": ["querysmasher"]},
    {"colour": "red"},
    {"solver": "magic"},
    {"solver": None},
    {"solver": ["optimal"]},
    {"solver": {}},
    {"centers": "skewed"},
    {"centers": ["uniform"]},
    {"gap": 0},
    {"gap": math.nan},
    {"gap": "small"},
    {"gap": True},
    {"gap": 2},
    {"objective": "median"},
    {"objective": ["sum"]},
    {"max_records": 0},
    {"max_records": -1},
    {"max_records": 1.5},
    {"max_records": True},
    {"max_records": 2**60},
    {"time_limit": 0},
    {"time_limit": -1},
    {"time_limit": "1"},
    {"time_limit": math.nan},
    {"memory_limit": 0},
    {"memory_limit": math.nan},
    {"memory_limit": None},
    {"progress": 7},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_plan_with_invalid_option_is_refused(options):
    with pytest.raises(PlanError) as caught:
        plan(WORKLOAD, ONE, **options)
    ((name, value),) = options.items()
    message = str(caught.value)
    assert name in message
    assert repr(value) in message or name == "colour"  # an unknown option


def test_unknown_option_message_lists_options():
    check_refused(
        PlanError, ["colour", "solver", "gap", "time_limit"], plan, WORKLOAD, ONE, colour="red"
    )
    check_refused(PlanError, ["magic", "querysmasher"], plan, WORKLOAD, ONE, "magic")


PLAN = plan(EMPTY.add(("a", "b"), "prefix").add("c", Width(4)), ONE)


@pytest.mark.parametrize("group", [-1, 2, 0.0, True, None, "a", 10**30])
def test_variances_of_unknown_group_is_refused(group):
    check_refused(PlanError, ["0 to 1"], PLAN.variances, group)


QUERIES = {
    "shape": (("a", "b"), np.ones((3, 4))),
    "flat": (("a", "b"), np.ones(12)),
    "nan": (("a",), [1, math.nan, 0, 0]),
    "inf": (("a",), [1, math.inf, 0, 0]),
    "twice": (("a", "a"), np.ones((4, 4))),
    "text": (("a",), ["x", "y", "z", "w"]),
    "ragged": (("a", "b"), [[1], [1, 2]]),
    "complex": (("a",), [1j, 0, 0, 0]),
    "number for a table": (("a",), 1.0),
    "table for a number": ((), [1.0]),
    "huge": (("a",), [10**400, 0, 0, 0]),
}


@pytest.mark.parametrize("case", QUERIES)
def test_variance_of_invalid_query_is_refused(case):
    word = "twice" if case == "twice" else "shape"
    check_refused(PlanError, [word], PLAN.variance_of, *QUERIES[case])


def test_variance_of_unmeasured_query_is_refused():
    check_refused(NotAnswerable, ["c", "not measure"], PLAN.variance_of, ("c",), [0, 1, 0, 0, 0])
    check_refused(NotAnswerable, ["a x c"], PLAN.variance_of, ("a", "c"), np.eye(4, 5))
    check_refused(SchemaError, ["'z'"], PLAN.variance_of, ("z",), [1.0])


# ---- plan files
# -------------------------------------------------------------------------------------------------

TEXT = PLAN.to_json()


def replace_value(*path, value):
    """Return the text of a plan with one value replaced, or removed if it is `KeyError`."""
    document = json.loads(TEXT)
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(document)


PLAN_FILES = {
    "nothing": "",
    "bytes": b"\xff\xfe",
    "null": "null",
    "list": "[]",
    "object": "{}",
    "half": TEXT[:-30],
    "deep": "[" * 100_000,
    "a workload": GOOD.to_json(),
    "format": replace_value("format", value="plan/9"),
    **{f"no {key}": replace_value(key, value=KeyError) for key in json.loads(TEXT)},
    **{f"{key} null": replace_value(key, value=None) for key in json.loads(TEXT)},
    **{f"{key} a list": replace_value(key, value=[1, 2]) for key in json.loads(TEXT)},
    **{
        f"solved without {key}": replace_value("solved", key, value=KeyError)
        for key in json.loads(TEXT)["solved"]
    },
    **{
        f"solved with {key} of another kind": replace_value(
            "solved", key, value="7" if key == "memory_limit" else 7
        )
        for key in json.loads(TEXT)["solved"]
    },
    "mechanism unhashable": replace_value("mechanism", value={"a": 1}),
    "option unknown": replace_value("options", value={"time_limit": 1}),
    "option unhashable": replace_value("options", "solver", value=["optimal"]),
    "option object": replace_value("options", "centers", value={}),
    "gap text": replace_value("options", "gap", value="x"),
    "budget text": replace_value("budget", "pcost", value="1"),
    "budget zero": replace_value("budget", "pcost", value=0),
    "budget infinite": replace_value("budget", "pcost", value=math.inf),
    "budget of two": replace_value("budget", value={"pcost": 1.0, "pure_epsilon": 1.0}),
    "budget delta zero": replace_value("budget", value={"pcost": 1.0, "delta": 0.0}),
    "budget delta text": replace_value("budget", value={"pcost": 1.0, "delta": "0.1"}),
    "budget epsilon": replace_value("budget", value={"pcost": 1.0, "epsilon": 0.1}),
    "records float": replace_value("max_records", value=1e8),
    "cost an integer": replace_value("solved", "pcost", value=1),
    "cost nan": replace_value("solved", "pcost", value=math.nan),
    "error infinite": replace_value("solved", "weighted_rmse", value=math.inf),
    "duals empty": replace_value("solved", "duals", value=[]),
    "duals of other lengths": replace_value("solved", "duals", value=[packed(1.0, 2.0)] * 9),
    "duals of one cell": replace_value("solved", "duals", 0, value=packed(1.0, 0, 0, 0)),
    "duals tiny": replace_value("solved", "duals", 0, value=packed(5e-324, 5e-324, 5e-324, 5e-324)),
    "duals huge": replace_value("solved", "duals", 0, value=packed(1e308, 1e308, 1e308, 1e308)),
    "duals negative": replace_value("solved", "duals", 0, value=packed(-1.0, 1, 1, 1)),
    "duals nan": replace_value("solved", "duals", 0, value=packed(math.nan, 1, 1, 1)),
    "duals zero": replace_value("solved", "duals", 0, value=packed(0, 0, 0, 0)),
    "duals odd bytes": replace_value(
        "solved", "duals", 0, value=base64.b64encode(b"1234567").decode()
    ),
    "duals letters": replace_value("solved", "duals", 0, value="ä"),
    "center of nothing": replace_value("solved", "centers", value={"z": packed(1.0)}),
    "center of another size": replace_value("solved", "centers", value={"a": packed(0.5, 0.5)}),
    "center of another sum": replace_value("solved", "centers", value={"a": packed(1.0, 1, 1, 1)}),
    "center huge": replace_value("solved", "centers", value={"a": packed(1e308, -1e308, 1, 0)}),
    "center nan": replace_value("solved", "centers", value={"a": packed(math.nan, 1, 0, 0)}),
    "center moved": replace_value("solved", "centers", value={"a": packed(0.7, 0.1, 0.1, 0.1)}),
    "workload of another schema": replace_value(
        "workload", "schema", "attributes", 0, "size", value=7
    ),
    "workload enormous": replace_value("workload", "schema", "attributes", 0, "size", value=10**7),
    "workload damaged": replace_value("workload", "groups", value=[]),
    "workload hostile": replace_value(
        "workload",
        "groups",
        0,
        "family",
        value={"name": "custom", "predicates": ["__import__('os')"]},
    ),
}


@pytest.mark.parametrize("case", PLAN_FILES)
def test_load_plan_with_damaged_file_is_refused(case):
    check_refused(EngineError, [], load_plan, PLAN_FILES[case])


def test_load_plan_reads_unchanged_file():
    """The damaged files of this module differ from this valid file in one place."""
    assert load_plan(TEXT).to_json() == TEXT
    assert load_plan(json.dumps(json.loads(TEXT), indent=1)).to_json() == TEXT
