"""Rules for structural zeros: consequences, files and invalid rules."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest

from engine.errors import SchemaError
from engine.workload import Attribute, Schema, Workload
from engine.workload.schema import MOST_CELLS, MOST_RULES

AGE = Attribute.numeric("age", [0, 15, 30, 99])
MARRIED = Attribute.categorical("married", ["no", "yes"])
CODE, OTHER = Attribute.of_size("code", 4), Attribute.of_size("other", 3)
PLAIN = Schema([AGE, MARRIED, CODE, OTHER])
CHILDREN, JOINT = "age < 15 and married == 'yes'", "married == 'no' and code + other >= 5"


def test_possible_share_matches_enumeration() -> None:
    for rules in (
        [CHILDREN],
        [CHILDREN, "code == 3"],
        [CHILDREN, JOINT],
        [CHILDREN, "age < 15 and married == 'no'"],
    ):
        schema = PLAIN.with_facts(impossible=rules)
        age, married, code, other = np.indices(PLAIN.sizes(PLAIN))
        broken = {
            CHILDREN: (age == 0) & (married == 1),
            JOINT: (married == 0) & (code + other >= 5),
            "code == 3": code == 3,
            "age < 15 and married == 'no'": (age == 0) & (married == 0),
        }
        possible = ~np.logical_or.reduce([broken[rule] for rule in rules])
        for k in range(5):
            for names in itertools.permutations(PLAIN.names, k):
                axes = [PLAIN.order[name] for name in names]
                counts = possible.sum(axis=tuple(a for a in range(4) if a not in axes))
                # `counts` has the axes in the order of the schema
                expected = counts.transpose([sorted(axes).index(a) for a in axes]) / possible.sum()
                share = schema.possible_share(names)
                np.testing.assert_allclose(share, expected, rtol=1e-12)
                assert ((share == 0.0) == (expected == 0.0)).all()


def test_rules_round_trip_in_schema_files() -> None:
    schema = Schema(
        PLAIN.attributes,
        person="pid",
        impossible=[CHILDREN, "code == 3 and married in ['no', 'yes']"],
    )
    for loaded in (Schema.from_json(schema.to_json()), Schema.from_csv(schema.to_csv())):
        assert loaded == schema
        assert loaded.impossible == schema.impossible
    assert schema != Schema(PLAIN.attributes, person="pid")
    assert Workload.from_json(Workload(schema).add("age").to_json()).schema == schema
    assert "impossible" not in PLAIN.to_dict()
    assert schema.with_facts(impossible=()) == Schema(PLAIN.attributes, person="pid")


WRONG: dict[str, Callable[[], object]] = {
    "an unknown attribute": lambda: PLAIN.with_facts(impossible=["salary == 1"]),
    "an unknown label": lambda: PLAIN.with_facts(impossible=["married == 'maybe'"]),
    "a cut through a bin": lambda: PLAIN.with_facts(impossible=["age < 20"]),
    "no condition": lambda: PLAIN.with_facts(impossible=["age"]),
    "no attribute": lambda: PLAIN.with_facts(impossible=["True"]),
    "code": lambda: PLAIN.with_facts(impossible=["__import__('os').system('true')"]),
    "no text": lambda: PLAIN.with_facts(impossible=[3]),  # type: ignore[list-item]
    "twice": lambda: PLAIN.with_facts(impossible=[CHILDREN, CHILDREN]),
    "holds nowhere": lambda: PLAIN.with_facts(impossible=["code < 1 and code > 2"]),
    "nothing possible": lambda: PLAIN.with_facts(
        impossible=["code >= 1", "code < 3 and married in ['no', 'yes']"]
    ),
    "too many rules": lambda: PLAIN.with_facts(
        impossible=[f"code + {i} > 1" for i in range(MOST_RULES + 1)]
    ),
    "too many cells": lambda: Schema(
        [Attribute.of_size("a", MOST_CELLS // 2), Attribute.of_size("b", 3)],
        impossible=["a < 3 and b < 1"],
    ),
    "a removed attribute": lambda: Schema([AGE], impossible=[CHILDREN]),
    "JSON of a number": lambda: Schema.from_dict(PLAIN.to_dict() | {"impossible": 3}),
    "JSON of null": lambda: Schema.from_json(json.dumps(PLAIN.to_dict() | {"impossible": None})),
    "CSV with a size": lambda: Schema.from_csv(
        "name,kind,size\nage,numeric,5\nage == 1,impossible,3\n"
    ),
    "CSV without a rule": lambda: Schema.from_csv("name,kind,size\nage,numeric,5\n,impossible,\n"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_rules_are_refused(case: str) -> None:
    with pytest.raises(SchemaError) as caught:
        WRONG[case]()
    assert len(str(caught.value)) < 500


def test_single_rule_may_be_text() -> None:
    assert PLAIN.with_facts(impossible=CHILDREN).impossible == (CHILDREN,)
