"""Exact totals as facts of a schema: what is read, what is refused, and what they leave possible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.optimize

from engine.errors import DataError, SchemaError
from engine.privacy import Budget
from engine.release.invariant_tables import public_table, public_tables, public_text
from engine.workload import Attribute, Schema

SCHEMA = Schema(
    [
        Attribute.categorical("region", ["north", "south|east", "=west"]),
        Attribute.numeric("age", [0, 15, 65, 99]),
        Attribute.of_size("job", 2),
        Attribute.of_size("one", 1),
    ]
)
REGION = (["region"], [5, 0, 7])
ODD = [(["a", "b"], [[4, 1], [1, 4]]), (["b", "c"], [[4, 1], [1, 4]])]
BITS = Schema([Attribute.of_size(name, 2) for name in "abc"])


def test_exact_totals_come_back_from_every_file() -> None:
    told = SCHEMA.with_facts(invariants=[REGION, (["job", "region"], [[1, 0, 6], [4, 0, 1]]), ([], 12)])
    assert Schema.from_json(told.to_json()) == Schema.from_csv(told.to_csv()) == told != SCHEMA
    assert told.exact_table(["region", "job"]).tolist() == [[1, 4], [0, 0], [6, 1]]
    assert told.exact_table(["one", "job"]).tolist() == [[7, 5]]
    assert told.is_exact(["one", "region"])
    assert not told.is_exact(["region", "age"])
    assert told.with_facts(impossible=["age < 15 and job == 1"]).invariants == told.invariants
    assert SCHEMA.with_facts(invariants=public_tables(public_text(told), SCHEMA)) == told
    assert "invariants" not in SCHEMA.to_dict()  # so that schemas of before keep their hashes


def test_a_table_is_read_as_an_office_prints_it(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("people,region\n1,=west\n2,north\n", encoding="utf-8")
    names, values = public_table(tmp_path / "t.csv", SCHEMA)
    assert (names, values.tolist()) == (("region",), [2, 0, 1])
    (found,) = public_tables("people;region\r\n1;=west\r\n2;north\r\n", SCHEMA)
    assert (found[0], list(found[1])) == (names, values.tolist())
    for text in ("region\nnorth", "region,n,m\nnorth,1,2", "region,n\nnorth", "region,n\nmars,1", "n,n\n1,1"):
        with pytest.raises(DataError):
            public_tables(text, SCHEMA)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"invariants": [(["county"], [1])]}, "county"),
        ({"invariants": [(["region"], [1, 2])]}, "shape"),
        ({"invariants": [(["region"], [1, -2, 3])]}, "whole numbers"),
        ({"invariants": [(["region"], [1, 2.5, 3])]}, "whole numbers"),
        ({"invariants": [(["region"], [1, float("nan"), 3])]}, "whole numbers"),
        ({"invariants": [(["region"], ["many", "more", "most"])]}, "shape|whole"),
        ({"invariants": [(["region"], [0, 0, 0])]}, "sum to"),
        ({"invariants": [(["region", "region"], np.ones((3, 3)))]}, "each once"),
        ({"invariants": [REGION, REGION]}, "twice"),
        ({"invariants": [7]}, "pair"),
        ({"invariants": [REGION, (["job"], [5, 6])]}, "contradict"),
        ({"invariants": [(["region", "job"], [[1, 1]] * 3), (["age", "region"], [6, 0, 0] + [0] * 6)]}, "differ"),
        ({"invariants": [REGION], "impossible": ["region == 'north'"]}, "no table of counts"),
    ],
)  # fmt: skip
def test_facts_that_cannot_be_are_refused_by_name(facts, words) -> None:
    with pytest.raises(SchemaError, match=words):
        SCHEMA.with_facts(**facts)


def test_totals_that_agree_in_pairs_and_not_together_are_refused() -> None:
    with pytest.raises(SchemaError, match="no table of counts"):
        BITS.with_facts(invariants=[*ODD, (["a", "c"], [[1, 4], [4, 1]])])


@pytest.mark.parametrize("rules", [[], ["a == 0 and b == 1 and c == 0"]])
def test_what_facts_leave_possible_is_what_a_linear_program_finds(rules) -> None:
    # two differ from their neighbour in 2 of 10, and the ends in 4 of 10: nobody may differ twice
    told = BITS.with_facts(invariants=[*ODD, (["a", "c"], [[3, 2], [2, 3]])], impossible=rules)
    share = told.even_share("abc")
    rows, aims = [], []
    for one in told.invariants:
        for cell in itertools.product(range(2), repeat=2):
            at = np.zeros((2, 2, 2))
            at[tuple(dict(zip(one.attributes, cell, strict=True)).get(name, slice(None)) for name in "abc")] = 1
            rows.append(at.ravel())
            aims.append(one.table(dict.fromkeys("abc", 2), one.attributes)[cell])
    room = [(0, 0 if told.possible_share("abc").flat[i] == 0 else None) for i in range(8)]
    most = [-scipy.optimize.linprog(-np.eye(8)[i], A_eq=rows, b_eq=aims, bounds=room).fun for i in range(8)]
    assert ((share.ravel() > 0) == (np.array(most) > 1e-9)).all()
    np.testing.assert_allclose(np.array(rows) @ share.ravel() * 10, aims, atol=1e-8)


def test_the_plain_promise_is_not_given_beside_exact_totals() -> None:
    told, budget = SCHEMA.with_facts(invariants=[REGION]), Budget(pcost=1.0, rows_per_person=2)
    assert SCHEMA.meaning(budget) == budget.describe()
    assert SCHEMA.promise(budget) == budget.promise
    assert told.meaning(budget).startswith("Subspace differential privacy: the exact totals on region")
    assert "rho 0.5" in told.meaning(budget)
    # whoever knows all others reads off the total who is there; what is left is a row in place of another, at mu 2
    assert "at most 84.2% of the time which is yours" in told.promise(budget)
    assert "whether you are in the records" not in told.promise(budget)
