"""What-if changes of a request, compared with the changed request."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from engine.analysis import table_names, what_if
from engine.analysis.change_effects import helpful_changes
from engine.analysis.what_if import CHANGES, Request
from engine.errors import NotApplicable, SchemaError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Attribute, Custom, Schema, Width, Workload
from engine.workload.families import Random

SCHEMA = Schema(
    [
        Attribute.numeric("age", [0, 10, 20, 30, 40, 50, 60, 70, 80, 90], clip=True, missing=5.0),
        Attribute.categorical("sex", ["F", "M"]),
        Attribute.of_size("code", 7),
    ]
)
WORKLOAD = (
    Workload.all_ways(SCHEMA, ways=(1, 2))
    .add(("age",), "range", weight=2.0)
    .add(("code",), Width(4))
    .add(("age", "sex"), {"age": "circular", "sex": "total"})
    .add(("age", "sex"), Custom(predicates=["age >= 20 and sex == 'F'", "age < 60"]))
)
REQUEST = Request(workload=WORKLOAD, budget=Budget(pcost=0.5))
EXACT = Workload(SCHEMA.with_facts(invariants=[("code", [1, 2, 3, 4, 5, 6, 7])])).add("age")
RULED = Workload(SCHEMA.with_facts(impossible=["code == 3"])).add("age")
# positions in WORKLOAD
AGE_SEX_TABLE, AGE_RANGES, CODE_WINDOWS = 3, 6, 7
BY_NAME = {change.name: change for change in CHANGES}


def test_merge_bins_equals_manual_coarser_schema() -> None:
    schema = Schema(
        [
            Attribute.numeric("age", [0, 20, 40, 60, 90], clip=True, missing=5.0),
            *SCHEMA.attributes[1:],
        ]
    )
    by_hand = (
        Workload.all_ways(schema, ways=(1, 2))
        .add(("age",), "range", weight=2.0)
        .add(("code",), Width(4))
        .add(("age", "sex"), {"age": "circular", "sex": "total"})
        .add(("age", "sex"), Custom(predicates=["age >= 20 and sex == 'F'", "age < 60"]))
    )
    change = what_if.merge_bins(REQUEST, AGE_RANGES, "age")
    assert change.request.workload == by_hand
    assert change.group == AGE_RANGES
    budget = REQUEST.budget
    assert plan(change.request.workload, budget).hash == plan(by_hand, budget).hash


def test_coarser_counts_are_sums_of_fine_counts() -> None:
    rng = np.random.default_rng(3)
    records = pd.DataFrame(
        {
            "age": rng.integers(0, 91, 400).astype(float),
            "sex": rng.choice(["F", "M"], 400),
            "code": np.concatenate([np.arange(7), rng.integers(0, 7, 393)]),
        }
    )
    for name in ("age", "code"):
        coarse_schema = what_if.coarser(WORKLOAD, name).schema
        fine = count_marginals(records, SCHEMA, [(name, "sex")])[name, "sex"]
        coarse = count_marginals(records, coarse_schema, [(name, "sex")])[name, "sex"]
        assert len(coarse) == len(fine) // 2
        # each coarse cell merges two fine cells, and the last one also an odd last fine cell
        starts = np.arange(len(coarse)) * 2
        np.testing.assert_array_equal(coarse, np.add.reduceat(fine, starts, axis=0))


def test_coarser_keeps_person_declaration() -> None:
    declared = Schema(SCHEMA.attributes, person="pid", rows_per_person=3)
    coarse = what_if.coarser(Workload(declared).add("code"), "code").schema
    assert (coarse.person, coarse.rows_per_person) == ("pid", 3)


def test_coarser_halves_window_cells() -> None:
    coarse = what_if.coarser(WORKLOAD, "code")
    # windows of 4 of the 7 cells become windows of 2 of the 3 merged cells
    assert coarse.groups[CODE_WINDOWS].parts[0].family.rows((3,)).tolist() == [[1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("workload", "attribute", "words"),
    [
        (WORKLOAD, "sex", "no order"),
        (WORKLOAD.add("code", Width(3)), "code", "windows of 3 cells"),
        (WORKLOAD.add(("age", "code"), "affine"), "code", "'affine'"),
        (WORKLOAD.add(("age", "code"), Random(count=3)), "age", "'random'"),
        (WORKLOAD.add("code", Custom(matrix=np.eye(7))), "code", "'custom'"),
        (WORKLOAD.add("code", Custom(predicates=["code >= 3"])), "code", "cuts through the bin"),
        (
            WORKLOAD.add("code", "marginal", query_weights=np.ones(7)),
            "code",
            "one weight per query",
        ),
        (Workload(Schema([Attribute.of_size("x", 3)])).add("x", "prefix"), "x", "too few"),
        (EXACT, "code", "invariant on code"),
        (RULED, "code", "cuts through the bin"),
    ],
)
def test_coarser_with_unmergeable_cells_is_refused(
    workload: Workload, attribute: str, words: str
) -> None:
    with pytest.raises(NotApplicable, match=words):
        what_if.coarser(workload, attribute)
    assert bool(what_if.merge_obstacle(workload.schema[attribute])) == (
        words in ("no order", "too few")
    )


@pytest.mark.parametrize(
    ("unit", "word"),
    [("day", "month"), ("month", "quarter"), ("quarter", "year"), ("year", "longest")],
)
def test_merging_dates_is_refused_and_names_longer_unit(unit: str, word: str) -> None:
    attribute = Attribute.dates("born", "1990-01-01", "2019-12-31", unit)
    assert word in what_if.merge_obstacle(attribute)
    with pytest.raises(NotApplicable, match=word):
        what_if.coarser_attribute(attribute)


def test_coarser_with_unknown_attribute_is_refused() -> None:
    with pytest.raises(SchemaError, match="no attribute"):
        what_if.coarser(WORKLOAD, "height")


def test_raise_weight_reduces_error_of_group() -> None:
    change = what_if.raise_weight(REQUEST, AGE_RANGES)
    assert change.text.startswith("Weight of age (range) ")
    # the weight of the age ranges was 2
    assert change.request.workload == WORKLOAD.with_weights({AGE_RANGES: 8.0})
    before = plan(WORKLOAD, REQUEST.budget).by_group()["rmse"]
    after = plan(change.request.workload, REQUEST.budget).by_group()["rmse"]
    assert after[AGE_RANGES] < before[AGE_RANGES]


def test_raise_weight_without_effect_is_refused() -> None:
    single = Workload(SCHEMA).add("age", "prefix").add("sex", "marginal", weight=0.0)
    for group, words in ((0, "No other group"), (1, "weight 0")):
        with pytest.raises(NotApplicable, match=words):
            what_if.raise_weight(Request(workload=single, budget=Budget(pcost=1.0)), group)
    heavy = Workload(SCHEMA).add("age", weight=1e100).add("sex")
    with pytest.raises(NotApplicable, match="raised further"):
        what_if.raise_weight(Request(workload=heavy, budget=Budget(pcost=1.0)), 0)


def test_drop_largest_renumbers_groups() -> None:
    assert BY_NAME["drop"].label(REQUEST) == "Drop 2-way tables"
    change = what_if.drop_largest(REQUEST, AGE_RANGES)
    one_way = Workload.all_ways(SCHEMA, ways=(1,))
    expected = one_way.add(("age",), "range", weight=2.0).add(("code",), Width(4))
    assert change.request.workload == expected
    assert change.group == len(one_way.groups)
    assert what_if.drop_largest(REQUEST, AGE_SEX_TABLE).group is None


def test_drop_largest_again_is_refused() -> None:
    change = what_if.drop_largest(REQUEST, AGE_RANGES)
    with pytest.raises(NotApplicable, match="positive weight"):
        what_if.drop_largest(change.request, 0)


@pytest.mark.parametrize(
    ("budget", "doubled"),
    [(Budget(pcost=0.5), Budget(pcost=1.0)), (Budget.pure(0.5), Budget.pure(1.0))],
    ids=["pcost", "pure epsilon"],
)
def test_twice_budget_doubles_privacy_parameter(budget: Budget, doubled: Budget) -> None:
    change = what_if.twice_budget(Request(workload=WORKLOAD, budget=budget), 0)
    assert change.request.budget == doubled


def test_tune_centers_sets_option_once() -> None:
    request = what_if.tune_centers(REQUEST, 0).request
    assert request.options == {"centers": "tuned"}
    with pytest.raises(NotApplicable, match="already"):
        what_if.tune_centers(request, 0)
    without_centers = Request(workload=WORKLOAD, budget=Budget(pcost=1.0), mechanism="wff")
    with pytest.raises(NotApplicable, match="no centers"):
        what_if.tune_centers(without_centers, 0)


def test_error_table_matches_plan_errors() -> None:
    workload = Workload.all_ways(SCHEMA, ways=(1, 2, 3))
    request = Request(workload=workload, budget=Budget(pcost=1.0))
    before = plan(workload, request.budget)
    group = 2
    for change in CHANGES:
        changed = change.apply(request, group, "age")
        new = changed.request
        after = plan(new.workload, new.budget, new.mechanism, **new.options)
        table = what_if.error_table(before, after, group, changed)
        for column, shown, number in (
            ("before", before, group),
            ("after", after, changed.group),
        ):
            variances = [shown.variances(i) for i in range(len(shown.workload.groups))]
            all_variances = np.concatenate(variances)
            expected_squares = [
                variances[number].mean(),
                variances[number].max(),
                all_variances.mean(),
                all_variances.max(),
            ]
            expected = np.sqrt(expected_squares).tolist()
            assert table[column].tolist()[:4] == pytest.approx(expected, rel=1e-9)
        ratio = table["after"].iloc[0] / table["before"].iloc[0] - 1
        assert table["change"].iloc[0] == f"{ratio:+.1%}".replace("-", "−")


def test_error_table_of_unchanged_request_has_no_change() -> None:
    workload = Workload.all_ways(SCHEMA, ways=(1, 2, 3))
    request = Request(workload=workload, budget=Budget(pcost=1.0))
    before = plan(workload, request.budget)
    unchanged = what_if.ChangedRequest(request=request, group=2, text="")
    assert what_if.error_table(before, before, 2, unchanged)["change"].tolist() == ["none"] * 4
    assert what_if.query_count_text(before, before) == f"Both answer {workload.queries:,} queries."


def test_error_table_of_dropped_tables_says_removed() -> None:
    workload = Workload.all_ways(SCHEMA, ways=(1, 2, 3))
    request = Request(workload=workload, budget=Budget(pcost=1.0))
    before = plan(workload, request.budget)
    three_way = len(workload.groups) - 1
    dropped = what_if.drop_largest(request, three_way)
    after = plan(dropped.request.workload, request.budget)
    table = what_if.error_table(before, after, three_way, dropped)
    assert math.isnan(table["after"][0])
    assert table["change"][0] == "removed"
    expected = f"{after.workload.queries:,} queries instead of {workload.queries:,}."
    assert what_if.query_count_text(before, after) == expected


def test_error_table_names_most_increased_table() -> None:
    workload = Workload.all_ways(SCHEMA, ways=(1, 2))
    request = Request(workload=workload, budget=Budget(pcost=1.0))
    before, changed = plan(workload, request.budget), what_if.raise_weight(request, 0)
    after = plan(changed.request.workload, request.budget)
    table = what_if.error_table(before, after, 0, changed)
    ratios = after.by_group()["rmse"] / before.by_group()["rmse"]
    worst = int(ratios.argmax())
    assert table["errors in counts"].iloc[-1] == f"{table_names(workload)[worst]}, typical"
    assert table["change"].iloc[-1] == f"{ratios[worst] - 1.0:+.1%}".replace("-", "−")


@pytest.mark.parametrize("group", range(len(WORKLOAD.groups)))
def test_helpful_changes_lower_the_error_of_the_group(group: int) -> None:
    before = plan(WORKLOAD, REQUEST.budget)
    effects = helpful_changes(REQUEST, group)
    assert "budget" in {effect.name for effect in effects}
    for effect in effects:
        changed = BY_NAME[effect.name].apply(REQUEST, group, effect.attribute)
        assert changed.group is not None
        request = changed.request
        after = plan(request.workload, request.budget, **request.options)
        old, new = before.by_group(), after.by_group()
        assert effect.before == pytest.approx(old["rmse"][group])
        assert effect.after == pytest.approx(new["rmse"][changed.group])
        assert effect.after < effect.before
        assert new["max_std"][changed.group] <= old["max_std"][group] * 1.001
        assert effect.removed == len(old) - len(new)
        others = (new["rmse"] / old["rmse"].to_numpy()[changed.numbers]).drop(changed.group)
        assert 1.0 + effect.rise == pytest.approx(max(others.max(), 1.0), abs=6e-4)
        assert bool(effect.risen) == (effect.rise > 0.0)


def test_helpful_changes_never_remove_the_group() -> None:
    # dropping the two-way tables helps one-way groups, but removes two-way groups
    assert "drop" in {effect.name for effect in helpful_changes(REQUEST, AGE_RANGES)}
    assert "drop" not in {effect.name for effect in helpful_changes(REQUEST, AGE_SEX_TABLE)}


def test_merging_bins_that_raises_error_is_not_offered() -> None:
    schema = Schema([Attribute.of_size("a", 9), Attribute.of_size("b", 9)])
    workload = Workload.all_ways(schema, (1, 2), "marginal")
    request = Request(workload=workload, budget=Budget(pcost=1.0))
    before = plan(workload, request.budget)
    changes_that_raise = 0
    for group in range(3):
        for name in workload.groups[group].attributes:
            after = plan(what_if.coarser(workload, name), request.budget)
            if after.by_group()["rmse"][group] >= before.by_group()["rmse"][group]:
                changes_that_raise += 1
                offered = {(e.name, e.attribute) for e in helpful_changes(request, group)}
                assert ("coarser", name) not in offered
    assert changes_that_raise


def test_budget_change_names_its_unit() -> None:
    change = BY_NAME["budget"]
    assert "privacy cost" in change.label(REQUEST)
    assert "pcost 1 instead of pcost 0.5" in change.apply(REQUEST, 0).text
    pure = Request(
        workload=Workload.all_ways(SCHEMA, ways=(1,)), budget=Budget.pure(0.5), mechanism="laplace"
    )
    assert "epsilon" in change.label(pure)
    assert "epsilon 1 instead of epsilon 0.5" in change.apply(pure, 0).text
