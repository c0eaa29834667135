"""Plan files that were tampered with are refused, and those of bytes are read."""

import json

import numpy as np
import pytest

from engine import load_plan
from engine.errors import EngineError
from tests.mechanisms.requests import planned

pytestmark = pytest.mark.usefixtures("toy_is_known", "few_levels")


def _halved(packed):
    import base64

    values = np.frombuffer(base64.b64decode(packed), "<f8").copy()
    values[: len(values) // 2 + 1] *= 0.5
    return base64.b64encode(values.tobytes()).decode()


def _set(*path, value):
    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value(document[path[-1]]) if callable(value) else value

    return change


TAMPERINGS = {
    "budget": _set("budget", "pcost", value=2.0),
    "promised cost": _set("solved", "pcost", value=0.5),
    "promised error": _set("solved", "weighted_rmse", value=lambda v: v * 0.99),
    "hash": _set("solved", "hash", value="0" * 64),
    "weight": _set("workload", "groups", 0, "weight", value=7.0),
    "family": _set("workload", "groups", 0, "family", value="circular"),
    "size": _set("workload", "schema", "attributes", 0, "size", value=5),
    "fewer groups": _set("workload", "groups", value=lambda groups: groups[:-1]),
    "records": _set("max_records", value=5),
    "mechanism": _set("mechanism", value="unheard of"),
    "option": _set("options", value={"solver": ["optimal"]}),
    "unknown option": _set("options", value={"colour": "red"}),
    "format": _set("format", value="plan/0"),
    "duals": _set("solved", "duals", value=lambda duals: [_halved(d) for d in duals]),
    "one dual less": _set("solved", "duals", value=lambda duals: duals[:-1]),
    "one dual more": _set("solved", "duals", value=lambda duals: [*duals, duals[-1]]),
    "negative dual": _set("solved", "duals", 0, value="AAAAAAAA8L8="),
    "infinite dual": _set("solved", "duals", 0, value="AAAAAAAA8H8="),
    "dual of no bytes": _set("solved", "duals", 0, value=""),
    "dual that is no text": _set("solved", "duals", 0, value=[1.0]),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_tampered_plans_are_refused(tampering):
    made, _ = planned("querysmasher", {}, "mixed_three")
    document = json.loads(made.to_json())
    TAMPERINGS[tampering](document)
    assert document != json.loads(made.to_json())
    with pytest.raises(EngineError):
        load_plan(json.dumps(document))


def test_plan_of_another_version_of_the_same_numbers_is_read_from_bytes_too():
    made, _ = planned("querysmasher", {}, "nested")
    assert load_plan(made.to_json().encode()).hash == made.hash
