"""Invariants of a schema: files, refusals and the cells that remain possible."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.optimize

from engine.errors import DataError, SchemaError
from engine.privacy import Budget
from engine.release.public_draft import public_table, public_tables, public_text
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


def test_invariants_round_trip_in_schema_files() -> None:
    schema = SCHEMA.with_facts(
        invariants=[REGION, (["job", "region"], [[1, 0, 6], [4, 0, 1]]), ([], 12)]
    )
    assert schema != SCHEMA
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_csv(schema.to_csv()) == schema
    assert schema.exact_table(["region", "job"]).tolist() == [[1, 4], [0, 0], [6, 1]]
    assert schema.exact_table(["one", "job"]).tolist() == [[7, 5]]
    assert schema.is_exact(["one", "region"])
    assert not schema.is_exact(["region", "age"])
    assert schema.with_facts(impossible=["age < 15 and job == 1"]).invariants == schema.invariants
    assert SCHEMA.with_facts(invariants=public_tables(public_text(schema), SCHEMA)) == schema
    # a schema without invariants has no such key, so its file and hash are those of older versions
    assert "invariants" not in SCHEMA.to_dict()


def test_public_table_reads_csv_in_any_order(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("people,region\n1,=west\n2,north\n", encoding="utf-8")
    names, values = public_table(tmp_path / "t.csv", SCHEMA)
    assert (names, values.tolist()) == (("region",), [2, 0, 1])
    ((names, values),) = public_tables("people;region\r\n1;=west\r\n2;north\r\n", SCHEMA)
    assert (names, list(values)) == (("region",), [2, 0, 1])


def test_public_tables_from_damaged_csv_are_refused() -> None:
    for text in (
        "region\nnorth",
        "region,n,m\nnorth,1,2",
        "region,n\nnorth",
        "region,n\nmars,1",
        "n,n\n1,1",
    ):
        with pytest.raises(DataError):
            public_tables(text, SCHEMA)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"invariants": [(["county"], [1])]}, "county"),
        ({"invariants": [(["region"], [1, 2])]}, "shape"),
        ({"invariants": [(["region"], [1, -2, 3])]}, "whole"),
        ({"invariants": [(["region"], [1, 2.5, 3])]}, "whole"),
        ({"invariants": [(["region"], [1, float("nan"), 3])]}, "whole"),
        ({"invariants": [(["region"], ["many", "more", "most"])]}, "numbers"),
        ({"invariants": [(["region"], [0, 0, 0])]}, "sum"),
        ({"invariants": [(["region", "region"], np.ones((3, 3)))]}, "twice"),
        ({"invariants": [REGION, REGION]}, "same attributes"),
        ({"invariants": [7]}, "pair"),
        ({"invariants": [REGION, (["job"], [5, 6])]}, "contradict"),
        ({"invariants": [(["region", "job"], [[1, 1]] * 3), (["age", "region"], [6, 0, 0] + [0] * 6)]}, "differ"),
        ({"invariants": [REGION], "impossible": ["region == 'north'"]}, "no table of counts"),
    ],
)  # fmt: skip
def test_invalid_invariants_are_refused(facts, words) -> None:
    with pytest.raises(SchemaError, match=words):
        SCHEMA.with_facts(**facts)


def test_jointly_contradictory_invariants_are_refused() -> None:
    with pytest.raises(SchemaError, match="no table of counts"):
        BITS.with_facts(invariants=[*ODD, (["a", "c"], [[1, 4], [4, 1]])])


@pytest.mark.parametrize("rules", [[], ["a == 0 and b == 1 and c == 0"]])
def test_even_share_support_matches_linear_program(rules) -> None:
    # By the invariants, a and b differ in 2 of 10 records, b and c in 2, and a and c in 4.
    # Therefore no record has both a != b and b != c: these cells are 0 in every table with the
    # invariants.
    schema = BITS.with_facts(invariants=[*ODD, (["a", "c"], [[3, 2], [2, 3]])], impossible=rules)
    share = schema.even_share("abc")
    rows, targets = [], []
    for invariant in schema.invariants:
        for cell in itertools.product(range(2), repeat=2):
            row = np.zeros((2, 2, 2))
            index_of = dict(zip(invariant.attributes, cell, strict=True))
            row[tuple(index_of.get(name, slice(None)) for name in "abc")] = 1  # cells of the total
            rows.append(row.ravel())
            table = invariant.table(dict.fromkeys("abc", 2), invariant.attributes)
            targets.append(table[cell])
    bounds = [(0, 0 if possible == 0 else None) for possible in schema.possible_share("abc").flat]
    largest_values = [
        -scipy.optimize.linprog(-np.eye(8)[i], A_eq=rows, b_eq=targets, bounds=bounds).fun
        for i in range(8)
    ]
    assert ((share.ravel() > 0) == (np.array(largest_values) > 1e-9)).all()
    records = 10
    np.testing.assert_allclose(np.array(rows) @ share.ravel() * records, targets, atol=1e-8)


def test_promise_with_invariants_is_subspace_privacy() -> None:
    schema, budget = SCHEMA.with_facts(invariants=[REGION]), Budget(pcost=1.0, rows_per_person=2)
    assert SCHEMA.meaning(budget) == budget.describe()
    assert SCHEMA.promise(budget) == budget.promise
    assert schema.meaning(budget).startswith(
        "Subspace differential privacy: the exact totals on region"
    )
    assert "rho 0.5" in schema.meaning(budget)
    # From the exact total and all other rows, an adversary can tell whether a person is in the
    # records.  The text therefore only promises that the values of the person are protected.
    assert "at most 84.2%" in schema.promise(budget)  # Phi(mu) with mu = 1, rounded up
    assert "whether you are in the records" not in schema.promise(budget)
