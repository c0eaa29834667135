"""Damaged and hostile workload files are refused."""

import base64
import json
import math
import zlib

import numpy as np
import pytest

from engine.errors import EngineError, WorkloadError
from engine.workload import Workload
from engine.workload.families import family_from_dict
from tests.workload.refusals import GOOD, check_refused

pytestmark = pytest.mark.usefixtures("quick")


def changed(*path, value):
    """Return the text of `GOOD` with one value replaced."""
    document = json.loads(GOOD.to_json())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(document)


def pack(raw):
    return base64.b64encode(zlib.compress(raw)).decode()


BOMB = pack(b"\0" * 50_000_000)
MATRIX = {"name": "custom", "shape": [1, 4], "matrix": pack(np.ones(4).tobytes())}
WORKLOAD_FILES = {
    "nothing": "",
    "bytes": b"\xff\xfe\x00",
    "null": "null",
    "number": "7",
    "list": "[]",
    "text": '"workload/1"',
    "object": "{}",
    "half": GOOD.to_json()[:-20],
    "deep": "[" * 100_000,
    "deep objects": '{"a":' * 50_000,
    "long number": '{"format": ' + "9" * 5_000 + "}",
    "other format": changed("format", value="workload/2"),
    "a plan": changed("format", value="plan/1"),
    "no groups": changed("groups", value=None),
    "groups as text": changed("groups", value="aaaa"),
    "groups as object": changed("groups", value={}),
    "too many groups": changed("groups", value=[{}] * 200_001),
    "a group that is a number": changed("groups", 0, value=1),
    "a group without attributes": changed("groups", 0, value={"family": "prefix"}),
    "attributes as text": changed("groups", 0, "attributes", value="ab"),
    "attributes as numbers": changed("groups", 0, "attributes", value=[1, 2]),
    "attributes unhashable": changed("groups", 0, "attributes", value=[["a"], {"b": 1}]),
    "attributes unknown": changed("groups", 0, "attributes", value=["a", "z"]),
    "attributes twice": changed("groups", 0, "attributes", value=["a", "a"]),
    "no schema": changed("schema", value=None),
    "schema of another kind": changed("schema", value={"format": "schema/9", "attributes": []}),
    "schema too small": changed("schema", "attributes", 0, "size", value=0),
    "no family": changed("groups", 0, "family", value=None),
    "family number": changed("groups", 0, "family", value=1),
    "family list": changed("groups", 0, "family", value=["prefix"]),
    "family unknown": changed("groups", 0, "family", value="median"),
    "family without a name": changed("groups", 0, "family", value={"width": 3}),
    "family name a list": changed("groups", 0, "family", value={"name": ["prefix"]}),
    "family with unknown key": changed(
        "groups", 0, "family", value={"name": "prefix", "colour": 1}
    ),
    "width missing": changed("groups", 0, "family", "each", "b", value={"name": "width"}),
    "width text": changed(
        "groups", 0, "family", "each", "b", value={"name": "width", "width": "2"}
    ),
    "each list": changed("groups", 0, "family", value={"each": ["prefix"]}),
    "each in each": changed(
        "groups", 0, "family", value={"each": {"a": {"each": {}}, "b": "prefix"}}
    ),
    "each lacks one": changed("groups", 0, "family", value={"each": {"a": "prefix"}}),
    "weight text": changed("groups", 0, "weight", value="1"),
    "weight null": changed("groups", 0, "weight", value=None),
    "weight bool": changed("groups", 0, "weight", value=True),
    "weight negative": changed("groups", 0, "weight", value=-1),
    "weight infinite": changed("groups", 0, "weight", value=math.inf),
    "weight nan": changed("groups", 0, "weight", value=math.nan),
    "weight of 400 digits": changed("groups", 0, "weight", value=10**400),
    "query weights number": changed("groups", 0, "query_weights", value=1),
    "query weights list": changed("groups", 0, "query_weights", value=[1.0] * 8),
    "query weights no base64": changed("groups", 0, "query_weights", value="!!!"),
    "query weights no zlib": changed("groups", 0, "query_weights", value="AAAA"),
    "query weights letters": changed("groups", 0, "query_weights", value="äöü"),
    "query weights too few": changed(
        "groups", 0, "query_weights", value=pack(np.ones(7).tobytes())
    ),
    "query weights odd bytes": changed("groups", 0, "query_weights", value=pack(b"1234567")),
    "query weights nan": changed(
        "groups", 0, "query_weights", value=pack(np.full(8, math.nan).tobytes())
    ),
    "query weights bomb": changed("groups", 0, "query_weights", value=BOMB),
    "matrix bomb": changed("groups", 1, "family", "matrix", value=BOMB),
    "matrix number": changed("groups", 1, "family", "matrix", value=5),
    "matrix missing": changed("groups", 1, "family", value={"name": "custom", "shape": [5, 5]}),
    "matrix cut": changed("groups", 1, "family", "matrix", value="AAAA"),
    "shape number": changed("groups", 1, "family", "shape", value=5),
    "shape of three": changed("groups", 1, "family", "shape", value=[5, 5, 1]),
    "shape negative": changed("groups", 1, "family", "shape", value=[-5, -5]),
    "shape zero": changed("groups", 1, "family", "shape", value=[0, 5]),
    "shape huge": changed("groups", 1, "family", "shape", value=[10**9, 10**9]),
    "shape infinite": changed("groups", 1, "family", "shape", value=[math.inf, 5]),
    "shape nan": changed("groups", 1, "family", "shape", value=[math.nan, 5]),
    "shape text": changed("groups", 1, "family", "shape", value=["x", 5]),
    "shape other": changed("groups", 1, "family", "shape", value=[1, 25]),
    "labels number": changed("groups", 1, "family", "labels", value=5),
    "labels numbers": changed("groups", 1, "family", "labels", value=[1, 2, 3, 4, 5]),
    "labels too few": changed("groups", 1, "family", "labels", value=["one"]),
    "predicates text": changed(
        "groups", 1, "family", value={"name": "custom", "predicates": "c == 1"}
    ),
    "predicates number": changed("groups", 1, "family", value={"name": "custom", "predicates": 1}),
    "predicates numbers": changed(
        "groups", 1, "family", value={"name": "custom", "predicates": [1]}
    ),
    "predicates hostile": changed(
        "groups", 1, "family", value={"name": "custom", "predicates": ["__import__('os')"]}
    ),
    "random count text": changed(
        "groups", 1, "family", value={"name": "random", "p": 0.5, "count": "9", "seed": 1}
    ),
    "random without end": changed(
        "groups", 1, "family", value={"name": "random", "p": 0.5, "count": 10**18, "seed": 1}
    ),
}


@pytest.mark.parametrize("case", WORKLOAD_FILES)
def test_damaged_workload_file_is_refused(case):
    text = WORKLOAD_FILES[case]
    assert Workload.from_json(GOOD.to_json()) == GOOD
    check_refused(EngineError, [], Workload.from_json, text)


@pytest.mark.parametrize(
    "data",
    [None, 7, "prefix", [], {}, {"name": None}, {"name": "x" * 10**6}, MATRIX | {"shape": None}],
)
def test_damaged_family_is_refused(data):
    check_refused(WorkloadError, [], family_from_dict, data)
