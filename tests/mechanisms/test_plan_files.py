"""Plan files: tampered files are refused, bytes are accepted."""

import base64
import json

import numpy as np
import pytest

from engine.errors import EngineError
from engine.mechanisms import load_plan
from tests.mechanisms.requests import planned
from tests.plans.tampering import changed

pytestmark = pytest.mark.usefixtures("toy_is_registered", "few_levels")


def _halved(packed):
    values = np.frombuffer(base64.b64decode(packed), "<f8").copy()
    values[: len(values) // 2 + 1] *= 0.5
    return base64.b64encode(values.tobytes()).decode()


TAMPERINGS = {
    "budget": changed("budget", "pcost", value=2.0),
    "stated cost": changed("solved", "pcost", value=0.5),
    "stated error": changed("solved", "weighted_rmse", value=lambda v: v * 0.99),
    "hash": changed("solved", "hash", value="0" * 64),
    "weight": changed("workload", "groups", 0, "weight", value=7.0),
    "family": changed("workload", "groups", 0, "family", value="circular"),
    "size": changed("workload", "schema", "attributes", 0, "size", value=5),
    "fewer groups": changed("workload", "groups", value=lambda groups: groups[:-1]),
    "records": changed("max_records", value=5),
    "mechanism": changed("mechanism", value="unknown"),
    "option": changed("options", value={"solver": ["optimal"]}),
    "unknown option": changed("options", value={"colour": "red"}),
    "format": changed("format", value="plan/0"),
    "duals": changed("solved", "duals", value=lambda duals: [_halved(d) for d in duals]),
    "missing dual": changed("solved", "duals", value=lambda duals: duals[:-1]),
    "repeated dual": changed("solved", "duals", value=lambda duals: [*duals, duals[-1]]),
    "negative dual": changed("solved", "duals", 0, value="AAAAAAAA8L8="),
    "infinite dual": changed("solved", "duals", 0, value="AAAAAAAA8H8="),
    "empty dual": changed("solved", "duals", 0, value=""),
    "dual as number": changed("solved", "duals", 0, value=[1.0]),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_load_plan_tampered_file_is_refused(tampering):
    result, _ = planned("querysmasher", {}, "mixed_three")
    document = json.loads(result.to_json())
    TAMPERINGS[tampering](document)
    assert document != json.loads(result.to_json())
    with pytest.raises(EngineError):
        load_plan(json.dumps(document))


def test_load_plan_bytes_has_same_hash():
    result, _ = planned("querysmasher", {}, "nested")
    assert load_plan(result.to_json().encode()).hash == result.hash
