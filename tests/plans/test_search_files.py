"""Plan files with the search for another objective, and rejection of modified files."""

import base64
import json
import math

import numpy as np
import pytest

from engine.errors import EngineError
from engine.mechanisms import load_plan
from tests.plans.goals import GOALS, cached_plan, packed
from tests.plans.tampering import changed


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
@pytest.mark.parametrize("goal", GOALS, ids=lambda g: g["objective"])
@pytest.mark.parametrize(
    "shape",
    [
        "query_weighted",
        *(pytest.param(s, marks=pytest.mark.full) for s in ("custom_matrix", "nested")),
    ],
)
def test_load_plan_objective_search_round_trips(shape, goal, centers):
    result = cached_plan("querysmasher", shape, **goal, centers=centers)
    text = result.to_json()
    loaded = load_plan(text)
    assert loaded.to_json() == text
    assert loaded.certificate == result.certificate
    for i in range(len(result.workload.groups)):
        np.testing.assert_array_equal(loaded.variances(i), result.variances(i))
    for space, block in result.blocks.items():
        assert (loaded.blocks[space].noise, loaded.blocks[space].grid) == (block.noise, block.grid)


def test_to_json_sum_objective_has_no_tradeoff():
    document = json.loads(cached_plan("querysmasher", "nested", "sum").to_json())
    assert "tradeoff" not in document["solved"]
    assert "achieved" not in document["solved"]
    assert not {"power", "targets"} & set(document["options"])
    assert load_plan(json.dumps(document)).tradeoff is None


def _doubled(text):
    values = np.frombuffer(base64.b64decode(text), "<f8").copy()
    values[0] *= 2
    return packed(*values)


TRADEOFF = ("solved", "tradeoff")
TAMPERINGS = {
    "no search": changed(*TRADEOFF, value=None),
    "no shares": changed(*TRADEOFF, "shares", value=packed()),
    "negative shares": changed(*TRADEOFF, "shares", value=packed(-1.0)),
    "other shares": changed(*TRADEOFF, "shares", value=_doubled),
    "other weights": changed(*TRADEOFF, "emphasis", "weights", value=packed(1.0)),
    "infinite weights": changed(*TRADEOFF, "emphasis", "weights", value=packed(math.inf)),
    "no vectors": changed(*TRADEOFF, "emphasis", "vectors", value=[]),
    "unknown kinds": changed(*TRADEOFF, "emphasis", "kinds", value=lambda kinds: [99] * len(kinds)),
    "no kinds": changed(*TRADEOFF, "emphasis", "kinds", value=[]),
    "no emphasis": changed(*TRADEOFF, "emphasis", value=None),
    "stated error": changed("solved", "achieved", value=lambda v: v * 0.99),
    "objective": changed("options", "objective", value="sum"),
    "targets": changed("options", "targets", value=1.0),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_load_plan_tampered_search_is_refused(tampering):
    document = json.loads(cached_plan("querysmasher", "nested", "max").to_json())
    TAMPERINGS[tampering](document)
    with pytest.raises(EngineError):
        load_plan(json.dumps(document))
