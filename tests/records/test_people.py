"""Which rows count: no more of a person than the cap, and none that the rules of the schema make impossible."""

import numpy as np
import pandas as pd
import pytest

import engine.records.contribution_bounding
import engine.records.readers
from engine.errors import DataError, LedgerError, LimitExceeded, SchemaError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import Counts, count_marginals
from engine.release import measure
from engine.release.ingest import check_records, declare_public
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 3)])
SETS = [("a", "b"), ("a",), ()]


def records(people=300, rows=2_500, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({name: rng.integers(0, n, rows) for name, n in (("a", 5), ("b", 3), ("pid", people))})


def counted(frame, cap, **more):
    return count_marginals(frame, SCHEMA, SETS, person="pid", rows_per_person=cap, **more)


@pytest.fixture(params=[1 << 20, 7], ids=["at once", "in parts"])
def room(request, monkeypatch):
    monkeypatch.setattr(engine.records.contribution_bounding, "ROOM", request.param)
    if request.param == 7:
        monkeypatch.setattr(engine.records.readers, "BATCH_BYTES", 1)


@pytest.mark.parametrize("cap", [1, 2, 5, 1_000])
def test_every_person_counts_up_to_the_cap(cap, room):
    frame = records()
    found = counted(frame, cap)
    assert found.records == frame.groupby("pid").size().clip(upper=cap).sum() == found["a", "b"].sum()
    assert found.people == frame["pid"].nunique()
    assert found.rows_over_cap == len(frame) - found.records
    assert found.rows_in == len(frame)


@pytest.mark.parametrize("cap", [1, 3])
def test_a_person_moves_only_rows_of_their_own(cap, room):
    frame = records(people=40)
    everybody = counted(frame, cap)["a", "b"]
    for person in range(40):
        own = frame[frame["pid"] == person]
        moved = everybody - counted(frame[frame["pid"] != person], cap)["a", "b"]
        assert moved.min() >= 0
        assert moved.sum() == min(cap, len(own))
        np.testing.assert_array_equal(moved, counted(own, cap)["a", "b"])


def test_the_order_of_rows_and_the_columns_asked_for_change_nothing(room):
    frame = records()
    found = counted(frame, 2)
    shuffled = counted(frame.sample(frac=1.0, random_state=1), 2)
    np.testing.assert_array_equal(found["a", "b"], shuffled["a", "b"])
    # a later step on other tables keeps the same rows
    later = count_marginals(frame, SCHEMA, [("b",)], person="pid", rows_per_person=2)
    np.testing.assert_array_equal(later["b",], found["a", "b"].sum(axis=0))


def test_no_value_is_preferred():
    frame = pd.DataFrame({"a": [0, 4] * 20_000, "b": 0, "pid": np.repeat(np.arange(20_000), 2)})
    first = counted(frame, 1)["a",]
    assert abs(first[0] - 10_000) < 5 * 20_000**0.5 / 2


@pytest.mark.parametrize("kind", ["int64", "int32", "uint64", "str", "category", "float"])
def test_identifiers_of_any_one_kind(kind):
    frame = records()
    expected = counted(frame, 2).records
    assert counted(frame.assign(pid=frame["pid"].astype(kind)), 2).records == expected


def test_long_identifiers_that_differ_at_the_end_are_two_people():
    frame = pd.DataFrame({"a": [0, 1], "b": 0, "pid": ["x" * 300 + "1", "x" * 300 + "2"]})
    assert counted(frame, 1).people == 2
    large = pd.DataFrame({"a": [0, 1], "b": 0, "pid": [2**63 - 1, 2**63 - 2]})
    assert counted(large, 1).people == 2


def test_rows_without_a_person_are_refused_and_named():
    frame = records().assign(pid=lambda f: f["pid"].astype(object).where(f["pid"] > 9, None))
    without = int(frame["pid"].isna().sum())
    found = counted(frame, 2, on_refused="drop")
    assert found.refused == {"pid": {"without a person": without}}
    assert found.rows_in == len(frame)
    with pytest.raises(DataError):
        counted(frame, 2)
    texts = frame.assign(pid=frame["pid"].map(lambda p: "" if p is None or np.isnan(p) else str(p)))
    assert counted(texts, 2, on_refused="drop").refused == found.refused


def test_rows_that_do_not_fit_are_dropped_after_the_cap():
    frame = records(people=20)
    frame.loc[frame.index % 7 == 0, "a"] = 99
    found = counted(frame, 2, on_refused="drop")
    assert found.records + found.rows_refused + found.rows_over_cap == len(frame)
    assert found.records + found.rows_refused == 40


@pytest.mark.parametrize(
    "persons", [[1, "1"], [1.5, 2.0], [[1], [2]], [True, False], [pd.Timestamp("2020-01-01")] * 2], ids=str
)
def test_identifiers_that_are_none_are_refused(persons):
    with pytest.raises(DataError, match="person column"):
        counted(pd.DataFrame({"a": [0, 1], "b": [0, 0], "pid": pd.Series(persons, dtype=object)}), 1)


def test_kinds_that_change_between_batches_are_refused(monkeypatch):
    monkeypatch.setattr("engine.records.readers.BATCH_BYTES", 1)
    persons = pd.Series([5] * 2_000 + ["5"] * 2_000, dtype=object)
    with pytest.raises(DataError, match="person column"):
        counted(pd.DataFrame({"a": 0, "b": 0, "pid": persons}), 1)


@pytest.mark.parametrize("rows", [0, 3])
def test_records_of_nobody_are_no_error(rows):
    frame = pd.DataFrame({"a": [0] * rows, "b": [0] * rows, "pid": pd.Series([None] * rows, dtype=object)})
    found = counted(frame, 2, on_refused="drop")
    assert (found.people, found.records, found.rows_refused) == (0, 0, rows)


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_the_curator_is_told_what_the_cap_cost(cap, room):
    frame = records()
    sizes = frame.groupby("pid").size()
    assert counted(frame, cap).people_over_cap == (sizes > cap).sum()


def test_too_many_people_are_refused_by_size():
    with pytest.raises(LimitExceeded, match="rows a person"):
        counted(records(), 2, memory_limit=2_000)


def test_parts_with_a_cap_do_not_add_up():
    found = counted(records(), 2)
    with pytest.raises(DataError, match="together"):
        found + found


def test_a_release_counts_at_most_the_rows_that_its_budget_protects(tmp_path):
    frame, book = records(people=50), Ledger.create(tmp_path / "book")
    workload = Workload(SCHEMA).add(("a",), "marginal")
    made = plan(workload, Budget(pcost=1e6, rows_per_person=3))
    book.add_dataset("panel", total=Budget(pcost=1e6, rows_per_person=3))
    seen = []
    found = measure(made, frame, dataset="panel", ledger=book, person="pid", intake=seen.append)
    expected = counted(frame, 3)
    assert (seen[0].people, seen[0].over_cap) == (50, len(frame) - expected.records)
    assert abs(found.answers(0)["answer"] - expected["a",]).max() < 0.2
    book.add_dataset("more", total=Budget(pcost=1e6, rows_per_person=5))
    with pytest.raises(LedgerError, match="Plan with a budget for rows_per_person="):
        measure(made, frame, dataset="more", ledger=book, person="pid")
    assert book.status("more").spent == 0
    with pytest.raises(DataError, match="no persons"):
        measure(made, expected, rehearsal=True, person="pid")


DECLARED = Schema(SCHEMA.attributes, person="pid", rows_per_person=2)


def test_what_the_schema_declares_needs_no_word(tmp_path):
    frame = records(people=50)
    expected = counted(frame, 2)
    found = count_marginals(frame, DECLARED, SETS)
    assert (found.cap, found.people, found.records) == (2, 50, expected.records)
    np.testing.assert_array_equal(found["a", "b"], expected["a", "b"])
    assert count_marginals(frame, DECLARED, SETS, rows_per_person=3).cap == 3
    assert count_marginals(frame, Schema(SCHEMA.attributes, person="pid"), SETS).cap == 1
    made = plan(Workload(DECLARED).add(("a",), "marginal"), Budget(pcost=1e6, rows_per_person=2))
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("panel", total=Budget(pcost=1e6, rows_per_person=2))
    assert check_records(made, frame).over_cap == len(frame) - expected.records
    released = measure(made, frame, dataset="panel", ledger=book)
    assert abs(released.answers(0)["answer"] - expected["a",]).max() < 0.2
    with pytest.raises(SchemaError, match="declares 'pid'"):
        check_records(made, frame, person="b")
    with pytest.raises(DataError, match="no person column, but the schema declares 'pid'"):
        measure(made, count_marginals(frame, SCHEMA, SETS, ignore=["pid"]), rehearsal=True)
    with pytest.raises(DataError, match="tell no persons"):
        count_marginals(frame, DECLARED, SETS, count_column="n")


def test_public_records_are_known_again_with_the_cap(tmp_path):
    frame, book = records(people=50), Ledger.create(tmp_path / "book")
    book.add_dataset("panel", total=Budget(pcost=1e6, rows_per_person=2))
    made = plan(Workload(DECLARED).add(("a",), "marginal"), Budget(pcost=1e6, rows_per_person=2))
    declare_public(made, frame, dataset="panel", ledger=book, why="in the yearbook")
    seen = []
    measure(made, frame, dataset="panel", ledger=book, intake=seen.append)
    assert "rehearsed as public" in " ".join(seen[0].warnings)


@pytest.mark.parametrize("as_counts", [False, True])
def test_no_release_protects_fewer_rows_than_are_declared_where_no_column_keeps_to_it(as_counts):
    word, frame = Schema(SCHEMA.attributes, rows_per_person=3), records(people=50)
    few, many = (plan(Workload(word).add(("a",), "marginal"), Budget(1.0, rows_per_person=k)) for k in (2, 3))
    data = count_marginals(frame, word, SETS, ignore=["pid"]) if as_counts else frame
    with pytest.raises(DataError, match="the budget protects 2"):
        measure(few, data, rehearsal=True, ignore=["pid"])
    measure(many, data, rehearsal=True, ignore=["pid"])
    # a column keeps to whatever the budget protects
    measure(few, counted(frame, 2) if as_counts else frame, rehearsal=True, person=None if as_counts else "pid")


RULES = ["code == 4 and zip in ['1', '2']", "sex == 'F' and age < 20"]


def surveyed():
    """A schema with rules, records some of which break them, and which do not."""
    schema = Schema(
        [
            Attribute.categorical("sex", ["F", "M"]),
            Attribute.numeric("age", [0, 20, 120]),
            Attribute.of_size("code", 5),
            Attribute.categorical("zip", ["1", "2", "3"]),
        ],
        impossible=RULES,
    )
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["F", "M", "x"], 500),
            "age": rng.choice([5, 50], 500),
            "code": rng.integers(0, 5, 500),
            "zip": rng.choice(["1", "2", "3"], 500),
            "pid": rng.integers(0, 150, 500),
        }
    )
    broken = (frame["code"] == 4) & frame["zip"].isin(["1", "2"]) | (frame["sex"] == "F") & (frame["age"] < 20)
    return schema, frame, ~broken


def test_rows_whose_counted_values_are_impossible_together_count_nowhere():
    schema, frame, kept = surveyed()
    known = frame["sex"] != "x"
    plain, sets = schema.with_facts(impossible=()), [("sex", "age"), ("code", "zip"), ("age",), ()]
    found = count_marginals(frame, schema, sets, on_refused="drop", ignore=["pid"])
    clean = count_marginals(frame[known & kept], plain, sets, ignore=["pid"])
    assert all((found[names] == clean[names]).all() for names in clean)
    assert found.records == clean.records == (known & kept).sum()
    assert found.rows_refused == len(frame) - found.records
    assert found["sex", "age"][0, 0] == 0
    judged = [found.refused[names]["impossible together"] for names in ("sex, age", "code, zip")]
    assert min(judged) > 0
    assert sum(judged) == (known & ~kept).sum()
    with pytest.raises(DataError, match="impossible together"):
        count_marginals(frame[known], schema, sets, ignore=["pid"])
    # what is not counted judges nobody: each row by the values that count
    alone = count_marginals(frame, schema, [("age",), ("code",)], on_refused="drop", ignore=["pid"])
    assert alone.records == len(frame)


def test_rules_hold_for_persons_weights_and_databases_alike():
    ibis = pytest.importorskip("ibis")
    schema, frame, kept = surveyed()
    plain, sets = schema.with_facts(impossible=()), [("sex", "age"), ("code", "zip")]
    weighted = frame.drop(columns="pid").assign(n=2)
    for data, more in (
        (weighted, {"count_column": "n"}),
        (ibis.memtable(weighted), {"count_column": "n"}),
        (ibis.memtable(frame), {"ignore": ["pid"]}),
    ):
        clean = weighted[kept] if "count_column" in more else frame[kept]
        found = count_marginals(data, schema, sets, on_refused="drop", **more)
        wanted = count_marginals(clean, plain, sets, on_refused="drop", **more)
        assert all((found[names] == wanted[names]).all() for names in wanted)
        assert found.rows_in == count_marginals(data, plain, sets, on_refused="drop", **more).rows_in
    capped = count_marginals(frame, schema, sets, on_refused="drop", person="pid", rows_per_person=2)
    everyone = count_marginals(frame, plain, [tuple(plain)], on_refused="drop", person="pid", rows_per_person=2)
    inside = np.where(schema.possible_share(plain) > 0.0, everyone[tuple(plain)], 0)
    assert (capped["sex", "age"] == inside.sum(axis=(2, 3))).all()


def test_counts_made_without_the_rules_are_refused():
    schema, frame, kept = surveyed()
    plain, sets = schema.with_facts(impossible=()), [("sex", "age")]
    loose = count_marginals(frame[kept], plain, sets, on_refused="drop", ignore=["pid"])
    with pytest.raises(DataError, match="other rules"):
        count_marginals(loose, schema, sets)
    with pytest.raises(DataError, match="make impossible"):
        Counts.from_tables(schema, {("sex", "age"): np.ones((2, 2), int)})
    assert Counts.from_tables(schema, {("sex", "age"): np.array([[0, 1], [2, 3]])}).records == 6
