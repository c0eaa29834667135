"""Hostile budgets, options, questions and plan files: served rightly, or refused quickly, in words."""

import base64
import json
import math

import numpy as np
import pytest

from engine.errors import BudgetError, EngineError, NotAnswerable, PlanError, SchemaError
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.workload import Custom, Width
from tests.workload.given import EMPTY, GOOD, ONE, ORDERED, refused

pytestmark = pytest.mark.usefixtures("quick")


# ---- requests ---------------------------------------------------------------------------------------------------

ASKED = EMPTY.add("a", "prefix")
BUDGETS = [0, -1, math.nan, math.inf, -math.inf, True, "1", None, [1.0], 1j, 10**400, 1e-400]


@pytest.mark.parametrize("pcost", BUDGETS, ids=lambda b: f"{type(b).__name__} {b!s:.8}")
def test_budgets(pcost):
    refused(BudgetError, ["pcost"], Budget, pcost=pcost)


@pytest.mark.parametrize("budget", [1.0, None, "1", {"pcost": 1.0}])
def test_plans_need_a_budget_and_a_workload(budget):
    refused(PlanError, ["Budget"], plan, ASKED, budget)
    refused(PlanError, ["Workload"], plan, ORDERED, ONE)
    refused(PlanError, ["no queries"], plan, EMPTY, ONE)


@pytest.mark.parametrize("pcost", [5e-324, 1e-200, 1e200, 1.7e308])
def test_extreme_budgets_are_kept_or_refused(pcost):
    try:
        made = plan(ASKED, Budget(pcost=pcost))
    except EngineError as refusal:
        assert "noise" in str(refusal) or "budget" in str(refusal)  # noqa: PT017
        return
    assert 0 < made.pcost <= pcost
    if pcost > 1e12:  # the grid of answers that 64 bits hold is what keeps them from being more exact
        assert plan(ASKED, ONE).rmse / math.sqrt(pcost) <= made.rmse <= 1e-6
    else:
        assert made.rmse == pytest.approx(plan(ASKED, ONE).rmse / math.sqrt(pcost), rel=1e-2)


def test_workloads_that_ask_nothing():
    refused(PlanError, ["weight zero"], plan, EMPTY.add("a", weight=0.0).add("b", query_weights=[0, 0, 0]), ONE)
    refused(PlanError, [], plan, EMPTY.add("a", Custom(np.zeros((2, 4)))), ONE)
    refused(PlanError, [], plan, EMPTY.add("a", Custom([[1, 0, 0, 0], [0, 0, 0, 0]]), query_weights=[0, 1]), ONE)


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
def test_options(options):
    with pytest.raises(PlanError) as caught:
        plan(ASKED, ONE, **options)
    (name, given) = next(iter(options.items()))
    message = str(caught.value)
    assert name in message
    assert repr(given) in message or name == "colour"


def test_the_message_of_an_unknown_option_names_the_known_ones():
    refused(PlanError, ["colour", "solver", "gap", "time_limit"], plan, ASKED, ONE, colour="red")
    refused(PlanError, ["magic", "querysmasher"], plan, ASKED, ONE, "magic")


MADE = plan(EMPTY.add(("a", "b"), "prefix").add("c", Width(4)), ONE)


@pytest.mark.parametrize("group", [-1, 2, 0.0, True, None, "a", 10**30])
def test_groups_of_a_plan(group):
    refused(PlanError, ["0 to 1"], MADE.variances, group)


QUESTIONS = {
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


@pytest.mark.parametrize("case", QUESTIONS)
def test_questions_to_a_plan(case):
    refused(PlanError, ["twice" if case == "twice" else "shape"], MADE.variance_of, *QUESTIONS[case])


def test_questions_that_were_not_measured():
    refused(NotAnswerable, ["c", "not measure"], MADE.variance_of, ("c",), [0, 1, 0, 0, 0])
    refused(NotAnswerable, ["a x c"], MADE.variance_of, ("a", "c"), np.eye(4, 5))
    refused(SchemaError, ["'z'"], MADE.variance_of, ("z",), [1.0])


# ---- plan files -------------------------------------------------------------------------------------------------

TEXT = MADE.to_json()


def replaced(*path, value):
    document = json.loads(TEXT)
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(document)


def weights(*values):
    return base64.b64encode(np.array(values, dtype="<f8").tobytes()).decode()


PLAN_FILES = {
    "nothing": "",
    "bytes": b"\xff\xfe",
    "null": "null",
    "list": "[]",
    "object": "{}",
    "half": TEXT[:-30],
    "deep": "[" * 100_000,
    "a workload": GOOD.to_json(),
    "format": replaced("format", value="plan/9"),
    **{f"no {key}": replaced(key, value=KeyError) for key in json.loads(TEXT)},
    **{f"{key} null": replaced(key, value=None) for key in json.loads(TEXT)},
    **{f"{key} a list": replaced(key, value=[1, 2]) for key in json.loads(TEXT)},
    **{f"solved without {key}": replaced("solved", key, value=KeyError) for key in json.loads(TEXT)["solved"]},
    **{
        f"solved with {key} of another kind": replaced("solved", key, value="7" if key == "memory_limit" else 7)
        for key in json.loads(TEXT)["solved"]
    },
    "mechanism unhashable": replaced("mechanism", value={"a": 1}),
    "option unknown": replaced("options", value={"time_limit": 1}),
    "option unhashable": replaced("options", "solver", value=["optimal"]),
    "option object": replaced("options", "centers", value={}),
    "gap text": replaced("options", "gap", value="x"),
    "budget text": replaced("budget", "pcost", value="1"),
    "budget zero": replaced("budget", "pcost", value=0),
    "budget infinite": replaced("budget", "pcost", value=math.inf),
    "budget of two": replaced("budget", value={"pcost": 1.0, "pure_epsilon": 1.0}),
    "budget delta zero": replaced("budget", value={"pcost": 1.0, "delta": 0.0}),
    "budget delta text": replaced("budget", value={"pcost": 1.0, "delta": "0.1"}),
    "budget epsilon": replaced("budget", value={"pcost": 1.0, "epsilon": 0.1}),
    "records float": replaced("max_records", value=1e8),
    "cost a whole number": replaced("solved", "pcost", value=1),
    "cost nan": replaced("solved", "pcost", value=math.nan),
    "error infinite": replaced("solved", "weighted_rmse", value=math.inf),
    "duals empty": replaced("solved", "duals", value=[]),
    "duals of other lengths": replaced("solved", "duals", value=[weights(1.0, 2.0)] * 9),
    "duals of one cell": replaced("solved", "duals", 0, value=weights(1.0, 0, 0, 0)),
    "duals tiny": replaced("solved", "duals", 0, value=weights(5e-324, 5e-324, 5e-324, 5e-324)),
    "duals huge": replaced("solved", "duals", 0, value=weights(1e308, 1e308, 1e308, 1e308)),
    "duals negative": replaced("solved", "duals", 0, value=weights(-1.0, 1, 1, 1)),
    "duals nan": replaced("solved", "duals", 0, value=weights(math.nan, 1, 1, 1)),
    "duals zero": replaced("solved", "duals", 0, value=weights(0, 0, 0, 0)),
    "duals odd bytes": replaced("solved", "duals", 0, value=base64.b64encode(b"1234567").decode()),
    "duals letters": replaced("solved", "duals", 0, value="ä"),
    "center of nothing": replaced("solved", "centers", value={"z": weights(1.0)}),
    "center of another size": replaced("solved", "centers", value={"a": weights(0.5, 0.5)}),
    "center of another sum": replaced("solved", "centers", value={"a": weights(1.0, 1, 1, 1)}),
    "center huge": replaced("solved", "centers", value={"a": weights(1e308, -1e308, 1, 0)}),
    "center nan": replaced("solved", "centers", value={"a": weights(math.nan, 1, 0, 0)}),
    "center moved": replaced("solved", "centers", value={"a": weights(0.7, 0.1, 0.1, 0.1)}),
    "workload of another schema": replaced("workload", "schema", "attributes", 0, "size", value=7),
    "workload enormous": replaced("workload", "schema", "attributes", 0, "size", value=10**7),
    "workload damaged": replaced("workload", "groups", value=[]),
    "workload hostile": replaced(
        "workload", "groups", 0, "family", value={"name": "custom", "predicates": ["__import__('os')"]}
    ),
}


@pytest.mark.parametrize("case", PLAN_FILES)
def test_plan_files(case):
    assert json.loads(PLAN_FILES[case] if case == "null" else TEXT) != 7
    refused(EngineError, [], load_plan, PLAN_FILES[case])


def test_the_good_file_is_read():
    """The files above differ from a good one in one place; without that place they are read."""
    assert load_plan(TEXT).to_json() == TEXT
    assert load_plan(json.dumps(json.loads(TEXT), indent=1)).to_json() == TEXT
