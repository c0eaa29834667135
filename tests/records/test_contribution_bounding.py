"""Contribution bounding, and rows that are impossible by the rules of the schema."""

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
    return pd.DataFrame(
        {name: rng.integers(0, n, rows) for name, n in (("a", 5), ("b", 3), ("pid", people))}
    )


def count_bounded(frame, cap, **options):
    return count_marginals(frame, SCHEMA, SETS, person="pid", rows_per_person=cap, **options)


@pytest.fixture(params=[1 << 20, 7], ids=["at once", "in parts"])
def batch_sizes(request, monkeypatch):
    monkeypatch.setattr(
        engine.records.contribution_bounding, "ROWS_BETWEEN_SELECTIONS", request.param
    )
    if request.param == 7:
        monkeypatch.setattr(engine.records.readers, "BATCH_BYTES", 1)


@pytest.mark.parametrize("cap", [1, 2, 5, 1_000])
def test_each_person_counts_up_to_cap(cap, batch_sizes):
    frame = records()
    counts = count_bounded(frame, cap)
    assert counts.records == frame.groupby("pid").size().clip(upper=cap).sum()
    assert counts.records == counts["a", "b"].sum()
    assert counts.people == frame["pid"].nunique()
    assert counts.rows_over_cap == len(frame) - counts.records
    assert counts.rows_in == len(frame)


@pytest.mark.parametrize("cap", [1, 3])
def test_removed_person_changes_only_their_rows(cap, batch_sizes):
    frame = records(people=40)
    all_persons = count_bounded(frame, cap)["a", "b"]
    for person in range(40):
        is_person = frame["pid"] == person
        difference = all_persons - count_bounded(frame[~is_person], cap)["a", "b"]
        assert difference.min() >= 0
        assert difference.sum() == min(cap, is_person.sum())
        rows_of_person = count_bounded(frame[is_person], cap)["a", "b"]
        np.testing.assert_array_equal(difference, rows_of_person)


def test_bounded_counts_ignore_row_order_and_columns(batch_sizes):
    frame = records()
    counts = count_bounded(frame, 2)
    shuffled = count_bounded(frame.sample(frac=1.0, random_state=1), 2)
    np.testing.assert_array_equal(counts["a", "b"], shuffled["a", "b"])
    # a later count of other tables selects the same rows
    later = count_marginals(frame, SCHEMA, [("b",)], person="pid", rows_per_person=2)
    np.testing.assert_array_equal(later["b",], counts["a", "b"].sum(axis=0))


def test_bounding_selects_rows_uniformly():
    # every person has one row in cell 0 and one in cell 4
    people = 20_000
    frame = pd.DataFrame({"a": [0, 4] * people, "b": 0, "pid": np.repeat(np.arange(people), 2)})
    selected_in_first_cell = count_bounded(frame, 1)["a",][0]
    # five standard deviations of a binomial count with 20,000 trials
    assert abs(selected_in_first_cell - people / 2) < 5 * people**0.5 / 2


@pytest.mark.parametrize("kind", ["int64", "int32", "uint64", "str", "category", "float"])
def test_identifiers_of_each_kind_have_equal_counts(kind):
    frame = records()
    expected = count_bounded(frame, 2).records
    assert count_bounded(frame.assign(pid=frame["pid"].astype(kind)), 2).records == expected


def test_long_identifiers_with_different_ends_are_distinct():
    frame = pd.DataFrame({"a": [0, 1], "b": 0, "pid": ["x" * 300 + "1", "x" * 300 + "2"]})
    assert count_bounded(frame, 1).people == 2
    large = pd.DataFrame({"a": [0, 1], "b": 0, "pid": [2**63 - 1, 2**63 - 2]})
    assert count_bounded(large, 1).people == 2


def test_rows_without_person_are_refused():
    frame = records()
    has_person = frame["pid"] > 9
    frame["pid"] = frame["pid"].astype(object).where(has_person, None)
    counts = count_bounded(frame, 2, on_refused="drop")
    assert counts.refused == {"pid": {"without a person": (~has_person).sum()}}
    assert counts.rows_in == len(frame)
    with pytest.raises(DataError):
        count_bounded(frame, 2)
    texts = frame.assign(pid=frame["pid"].astype(str).where(has_person, ""))
    assert count_bounded(texts, 2, on_refused="drop").refused == counts.refused


def test_refused_rows_are_dropped_after_bounding():
    frame = records(people=20)
    frame.loc[frame.index % 7 == 0, "a"] = 99
    counts = count_bounded(frame, 2, on_refused="drop")
    assert counts.records + counts.rows_refused + counts.rows_over_cap == len(frame)
    # Of each of the 20 persons, 2 rows are selected before rows are refused.
    assert counts.records + counts.rows_refused == 40


@pytest.mark.parametrize(
    "persons",
    [[1, "1"], [1.5, 2.0], [[1], [2]], [True, False], [pd.Timestamp("2020-01-01")] * 2],
    ids=str,
)
def test_invalid_identifiers_are_refused(persons):
    frame = pd.DataFrame({"a": [0, 1], "b": [0, 0], "pid": pd.Series(persons, dtype=object)})
    with pytest.raises(DataError, match="person column"):
        count_bounded(frame, 1)


def test_identifier_kinds_that_differ_between_batches_are_refused(monkeypatch):
    monkeypatch.setattr("engine.records.readers.BATCH_BYTES", 1)
    persons = pd.Series([5] * 2_000 + ["5"] * 2_000, dtype=object)
    with pytest.raises(DataError, match="person column"):
        count_bounded(pd.DataFrame({"a": 0, "b": 0, "pid": persons}), 1)


@pytest.mark.parametrize("rows", [0, 3])
def test_records_without_persons_give_empty_counts(rows):
    frame = pd.DataFrame(
        {"a": [0] * rows, "b": [0] * rows, "pid": pd.Series([None] * rows, dtype=object)}
    )
    counts = count_bounded(frame, 2, on_refused="drop")
    assert (counts.people, counts.records, counts.rows_refused) == (0, 0, rows)


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_counts_report_people_over_cap(cap, batch_sizes):
    frame = records()
    sizes = frame.groupby("pid").size()
    assert count_bounded(frame, cap).people_over_cap == (sizes > cap).sum()


def test_too_many_people_exceed_memory_limit():
    with pytest.raises(LimitExceeded, match="rows per person"):
        count_bounded(records(), 2, memory_limit=2_000)


def test_sum_of_capped_counts_is_refused():
    counts = count_bounded(records(), 2)
    with pytest.raises(DataError, match="together"):
        counts + counts


def test_release_counts_at_most_protected_rows(tmp_path):
    frame, ledger = records(people=50), Ledger.create(tmp_path / "ledger")
    workload = Workload(SCHEMA).add(("a",), "marginal")
    marginal_plan = plan(workload, Budget(pcost=1e6, rows_per_person=3))
    ledger.add_dataset("panel", total=Budget(pcost=1e6, rows_per_person=3))
    intakes = []
    measurement = measure(
        marginal_plan, frame, dataset="panel", ledger=ledger, person="pid", intake=intakes.append
    )
    expected = count_bounded(frame, 3)
    (intake,) = intakes
    assert intake.people == 50
    assert intake.over_cap == len(frame) - expected.records
    # with this budget the noise is below 0.2 counts
    assert abs(measurement.answers(0)["answer"] - expected["a",]).max() < 0.2


def test_release_of_other_privacy_unit_is_refused(tmp_path):
    frame, ledger = records(people=50), Ledger.create(tmp_path / "ledger")
    workload = Workload(SCHEMA).add(("a",), "marginal")
    three_rows_plan = plan(workload, Budget(pcost=1e6, rows_per_person=3))
    ledger.add_dataset("five rows", total=Budget(pcost=1e6, rows_per_person=5))
    with pytest.raises(LedgerError, match="rows_per_person="):
        measure(three_rows_plan, frame, dataset="five rows", ledger=ledger, person="pid")
    assert ledger.status("five rows").spent == 0
    with pytest.raises(DataError, match="no person column"):
        measure(three_rows_plan, count_bounded(frame, 3), rehearsal=True, person="pid")


DECLARED = Schema(SCHEMA.attributes, person="pid", rows_per_person=2)


def test_declared_person_column_is_used_by_default(tmp_path):
    frame = records(people=50)
    expected = count_bounded(frame, 2)
    counts = count_marginals(frame, DECLARED, SETS)
    assert (counts.cap, counts.people, counts.records) == (2, 50, expected.records)
    np.testing.assert_array_equal(counts["a", "b"], expected["a", "b"])
    assert count_marginals(frame, DECLARED, SETS, rows_per_person=3).cap == 3
    without_cap = Schema(SCHEMA.attributes, person="pid")
    assert count_marginals(frame, without_cap, SETS).cap == 1
    budget = Budget(pcost=1e6, rows_per_person=2)
    marginal_plan = plan(Workload(DECLARED).add(("a",), "marginal"), budget)
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("panel", total=budget)
    assert check_records(marginal_plan, frame).over_cap == len(frame) - expected.records
    measurement = measure(marginal_plan, frame, dataset="panel", ledger=ledger)
    # with this budget the noise is below 0.2 counts
    assert abs(measurement.answers(0)["answer"] - expected["a",]).max() < 0.2


def test_data_contradicting_declared_person_column_is_refused():
    frame = records(people=50)
    budget = Budget(pcost=1e6, rows_per_person=2)
    marginal_plan = plan(Workload(DECLARED).add(("a",), "marginal"), budget)
    with pytest.raises(SchemaError, match="declares 'pid'"):
        check_records(marginal_plan, frame, person="b")
    counts = count_marginals(frame, SCHEMA, SETS, ignore=["pid"])
    with pytest.raises(
        DataError, match="without a person column, but the schema declares the person column 'pid'"
    ):
        measure(marginal_plan, counts, rehearsal=True)
    with pytest.raises(DataError, match="has no person"):
        count_marginals(frame, DECLARED, SETS, count_column="n")


def test_public_records_are_recognized_after_bounding(tmp_path):
    frame, ledger = records(people=50), Ledger.create(tmp_path / "ledger")
    budget = Budget(pcost=1e6, rows_per_person=2)
    ledger.add_dataset("panel", total=budget)
    marginal_plan = plan(Workload(DECLARED).add(("a",), "marginal"), budget)
    declare_public(marginal_plan, frame, dataset="panel", ledger=ledger, why="in the yearbook")
    intakes = []
    measure(marginal_plan, frame, dataset="panel", ledger=ledger, intake=intakes.append)
    (intake,) = intakes
    assert "declared public for a rehearsal" in " ".join(intake.warnings)


@pytest.mark.parametrize("as_counts", [False, True], ids=["records", "counts"])
def test_release_below_declared_rows_without_person_is_refused(as_counts):
    schema, frame = Schema(SCHEMA.attributes, rows_per_person=3), records(people=50)
    workload = Workload(schema).add(("a",), "marginal")
    two_rows_plan, three_rows_plan = (
        plan(workload, Budget(1.0, rows_per_person=k)) for k in (2, 3)
    )
    data = count_marginals(frame, schema, SETS, ignore=["pid"]) if as_counts else frame
    with pytest.raises(DataError, match="the budget protects 2"):
        measure(two_rows_plan, data, rehearsal=True, ignore=["pid"])
    measure(three_rows_plan, data, rehearsal=True, ignore=["pid"])
    # with a person column, the budget determines the cap
    if as_counts:
        measure(two_rows_plan, count_bounded(frame, 2), rehearsal=True)
    else:
        measure(two_rows_plan, frame, rehearsal=True, person="pid")


RULES = ["code == 4 and zip in ['1', '2']", "sex == 'F' and age < 20"]


def survey_with_rules():
    """Return (schema with rules, records, mask of the records that obey the rules)."""
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
    has_impossible_code = (frame["code"] == 4) & frame["zip"].isin(["1", "2"])
    has_impossible_age = (frame["sex"] == "F") & (frame["age"] < 20)
    return schema, frame, ~(has_impossible_code | has_impossible_age)


def test_impossible_rows_are_refused_in_all_tables():
    schema, frame, is_possible = survey_with_rules()
    is_in_domain = frame["sex"] != "x"
    without_rules = schema.with_facts(impossible=())
    sets = [("sex", "age"), ("code", "zip"), ("age",), ()]
    counts = count_marginals(frame, schema, sets, on_refused="drop", ignore=["pid"])
    possible_rows = frame[is_in_domain & is_possible]
    expected = count_marginals(possible_rows, without_rules, sets, ignore=["pid"])
    assert all((counts[names] == expected[names]).all() for names in expected)
    assert counts.records == expected.records == len(possible_rows)
    assert counts.rows_refused == len(frame) - counts.records
    assert counts["sex", "age"][0, 0] == 0
    refused = [counts.refused[names]["impossible together"] for names in ("sex, age", "code, zip")]
    assert min(refused) > 0
    assert sum(refused) == (is_in_domain & ~is_possible).sum()
    with pytest.raises(DataError, match="impossible together"):
        count_marginals(frame[is_in_domain], schema, sets, ignore=["pid"])
    # rules apply only to attributes that are counted together
    separate = count_marginals(
        frame, schema, [("age",), ("code",)], on_refused="drop", ignore=["pid"]
    )
    assert separate.records == len(frame)


def test_impossible_rules_hold_in_all_sources():
    ibis = pytest.importorskip("ibis")
    schema, frame, is_possible = survey_with_rules()
    without_rules, sets = schema.with_facts(impossible=()), [("sex", "age"), ("code", "zip")]
    weighted = frame.drop(columns="pid").assign(n=2)
    for data, possible_rows, options in (
        (weighted, weighted[is_possible], {"count_column": "n"}),
        (ibis.memtable(weighted), weighted[is_possible], {"count_column": "n"}),
        (ibis.memtable(frame), frame[is_possible], {"ignore": ["pid"]}),
    ):
        options |= {"on_refused": "drop"}
        counts = count_marginals(data, schema, sets, **options)
        expected = count_marginals(possible_rows, without_rules, sets, **options)
        assert all((counts[names] == expected[names]).all() for names in expected)
        assert counts.rows_in == count_marginals(data, without_rules, sets, **options).rows_in
    # rows are selected before rules apply, so that the rules do not change which rows are counted
    options = {"on_refused": "drop", "person": "pid", "rows_per_person": 2}
    capped = count_marginals(frame, schema, sets, **options)
    all_names = tuple(schema)
    without_refusal = count_marginals(frame, without_rules, [all_names], **options)[all_names]
    possible_counts = np.where(schema.possible_share(schema) > 0.0, without_refusal, 0)
    assert (capped["sex", "age"] == possible_counts.sum(axis=(2, 3))).all()


def test_counts_without_schema_rules_are_refused():
    schema, frame, is_possible = survey_with_rules()
    without_rules, sets = schema.with_facts(impossible=()), [("sex", "age")]
    counts_without_rules = count_marginals(
        frame[is_possible], without_rules, sets, on_refused="drop", ignore=["pid"]
    )
    with pytest.raises(DataError, match="different rules"):
        count_marginals(counts_without_rules, schema, sets)
    with pytest.raises(DataError, match="declares impossible"):
        Counts.from_tables(schema, {("sex", "age"): np.ones((2, 2), int)})
    assert Counts.from_tables(schema, {("sex", "age"): np.array([[0, 1], [2, 3]])}).records == 6
