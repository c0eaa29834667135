"""Figures of the two-stage release and nested analyses."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import demo_data
from demo_data.make_synthetic import synthetic
from engine._format import cost
from engine.common_mechanism import NestedPlanRule, stepwise
from engine.common_mechanism import selection_rule as analyses
from engine.common_mechanism.common_mechanism import CENSUS_AGES
from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices
from engine.errors import WorkloadError
from engine.figures import two_stage as coarse_figures
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.release import apply_group, measure
from engine.workload import Attribute, Custom, Schema, Workload
from tests import code_lists
from tests.figures.example import check_picture
from tests.oracles import workload_rows

SCHEMA = Schema(
    [
        Attribute.of_size("a", 4),
        Attribute.of_size("b", 3),
        Attribute.categorical("c", ["x", "<b>y</b>"]),
    ]
)


def common_of(workloads, pcost=0.5, split=coarse_or_fine):
    return split(*(plan(w, Budget(pcost=pcost)) for w in workloads.values()), names=list(workloads))


COMMON = common_of(analyses.workloads_by_way(SCHEMA, (1, 2, 3)))
RECORDS = synthetic(SCHEMA, 800, seed=4)
RULE = NestedPlanRule(common=COMMON, primary="1-way", share=0.5, snr=5.0)
FIRST_STAGE = stepwise.look(COMMON, RECORDS, rehearsal=True)


# --- analyses ---


def test_workloads_by_way_contain_all_k_way_tables():
    workloads = analyses.workloads_by_way(SCHEMA, (2, 1, 2))
    assert list(workloads) == ["1-way", "2-way"]
    assert [g.attributes for g in workloads["2-way"].groups] == [("a", "b"), ("a", "c"), ("b", "c")]


def test_workloads_by_way_with_invalid_ways_are_refused():
    for ways in ((), (1,), (2, 2), (0, 1), (1, 4)):
        with pytest.raises(WorkloadError, match="from 1 to 3"):
            analyses.workloads_by_way(SCHEMA, ways)


def test_coarse_workload_is_determined_by_fine_workload():
    present = (
        Workload(SCHEMA)
        .add(("a", "b"), {"a": "range", "b": "marginal"})
        .add(("b", "c"), "marginal")
        .add(("c",), "marginal")
        .add((), "total")
    )
    workloads = analyses.coarse_and_fine(present)
    assert list(workloads) == [analyses.FEWER, analyses.PRESENT]
    coarse = workloads[analyses.FEWER]
    groups = [(g.attributes, g.family_text) for g in coarse.groups]
    assert groups == [(("a",), "range"), (("b",), "marginal"), (("c",), "marginal"), ((), "total")]
    fine_rows = np.concatenate(workload_rows(present))
    for rows in workload_rows(coarse):
        solution = np.linalg.lstsq(fine_rows.T, rows.T, rcond=None)[0]
        np.testing.assert_allclose(fine_rows.T @ solution, rows.T, atol=1e-9)
    NestedPlanRule(common=common_of(workloads), share=0.5, snr=5.0)


def test_workload_without_attributes_has_no_coarser_one():
    for empty in (Workload(SCHEMA), Workload(SCHEMA).add((), "total")):
        with pytest.raises(WorkloadError, match="coarser"):
            analyses.coarse_and_fine(empty)


def test_workloads_by_level_replace_queries_on_attribute():
    workload = code_lists.WORKLOAD.add(("age",), "prefix").add(("place",), "marginal")
    workloads = analyses.workloads_by_level(workload, "place")
    assert list(workloads) == ["region", "county", "place"]
    groups = [(g.attributes, g.family_text, g.count) for g in workloads["county"].groups]
    assert groups == [
        (("sex", "place", "age"), "marginal × level × prefix", 2 * 3 * 3),
        (("age",), "prefix", 3),
        (("place",), "level", 3),
    ]
    assert workloads["place"].groups[2].family_text == "marginal"


def test_workloads_by_level_without_two_levels_are_refused():
    workload = code_lists.WORKLOAD.add(("age",), "prefix").add(("place",), "marginal")
    for attribute, levels, words in (
        ("age", None, "level"),
        ("work", None, "No group"),
        ("place", ["region"], "level"),  # a single level leaves no choice
    ):
        with pytest.raises(WorkloadError, match=words):
            analyses.workloads_by_level(workload, attribute, levels)


def test_census_ages_match_bins_of_paper():
    census = Schema.from_json(demo_data.schemas()["census"].read_bytes())
    workloads = analyses.census_ages(census)
    assert {name: w.queries for name, w in workloads.items()} == {
        "Total": 2,
        "Age4": 8,
        "Age9": 18,
        "Age23": 46,
    }
    table = np.arange(206.0).reshape(103, 2)
    for name, edges in CENSUS_AGES.items():
        (group,) = workloads[name].groups
        expected = np.add.reduceat(table, edges[:-1], axis=0)
        expected_input = table.sum(axis=0) if name == "Total" else table
        np.testing.assert_allclose(
            apply_group(group, expected_input, 0, group.count), expected.ravel()
        )
    assert "age 18 to 44" in workloads["Age4"].describe(2)
    assert "age 20 and" in workloads["Age23"].describe(10)
    assert "age 85 and over" in workloads["Age23"].describe(44)


def test_census_ages_of_other_schema_are_refused():
    with pytest.raises(WorkloadError, match="103 cells"):
        analyses.census_ages(SCHEMA)


# --- budget shares ---


def test_shares_picture_matches_budget_shares():
    picture = check_picture(
        coarse_figures.shares_picture(COMMON, lambda budget: f"rho {budget.rho:g}")
    )
    pd.testing.assert_frame_equal(picture.table.drop(columns="budget"), COMMON.budget_shares())
    assert list(picture.table["budget"]) == ["rho 0.25"] * 3
    shared, rest = picture.figure.data
    # The texts on the bars use the unit that the caller chose, here rho.  The lengths of the bars
    # are in pcost.
    assert set(rest.text) == {"total rho 0.25"}
    assert set(shared.text) == {f"rho {COMMON.look.budget.rho:g}"}
    assert f"share rho {COMMON.look.budget.rho:g}, {COMMON.saved:.2%}" in picture.alt
    assert len(set(shared.x)) == 1
    # one colour per trace, so that the legend matches the bars
    assert isinstance(rest.marker.color, str)
    assert isinstance(rest.marker.pattern.shape, str)
    np.testing.assert_allclose(np.add(shared.x, rest.x), 0.5)  # pcost of every option
    assert (
        f"{cost(COMMON.look.budget.pcost)} pcost, {COMMON.saved:.2%}"
        in coarse_figures.saved_text(COMMON)
    )
    spaces = coarse_figures.space_table(COMMON)
    assert spaces["cost (pcost)"].sum() == pytest.approx(
        sum(p.pcost for p in COMMON.options), rel=1e-4
    )
    expected = {"(total)", "a", "b", "c", "a × b", "a × c", "b × c", "a × b × c"}
    assert set(spaces["attributes"]) == expected
    # texts are horizontal; those that are too wide for their bar are hidden
    assert picture.figure.data[0].textangle == 0
    assert picture.figure.layout.uniformtext.mode == "hide"


def test_spend_table_prints_exact_sums():
    chain = common_of(analyses.workloads_by_way(SCHEMA, (1, 2, 3)), pcost=0.1, split=nested_choices)
    for common in (COMMON, chain, chain.following):
        table = coarse_figures.spend_table(common)
        for _, look, remainder, sum_text, total in table.itertuples(index=False):
            assert Decimal(look) + Decimal(remainder) == Decimal(total)
            assert sum_text.endswith(f" = {total}")
    assert coarse_figures.exact_sum([1e-9, 0.3]) == "0.000000001 + 0.3 = 0.300000001"
    assert coarse_figures.exact_sum([0.7]) == "0.7"


# --- selection rule and first stage ---


def test_rule_text_contains_rule_numbers():
    text = coarse_figures.rule_text(RULE)
    for words in (
        "5 standard errors",
        "40%",
        "50% of the 9 cells",
        "2-way, 3-way",
        "3 standard errors",
    ):
        assert words in text
    chain = common_of(analyses.workloads_by_way(SCHEMA, (1, 2, 3)), split=nested_choices)
    text = coarse_figures.rule_text(NestedPlanRule(common=chain, share=0.5, snr=5.0))
    assert (
        "Continue with '2-way' if at least 50% of the 9 cells of '1-way' are reliable with the noise"
        " of '2-way'. Stop if too few are reliable with the noise of '1-way'." in text
    )
    without_margin = NestedPlanRule(common=COMMON, share=0.5, snr=5.0, sigmas=0.0)
    assert "No safety margin." in coarse_figures.rule_text(without_margin)


@pytest.mark.parametrize("primary", ["1-way", "2-way"])
def test_snr_picture_matches_rule(primary):
    common = COMMON if primary == "1-way" else common_of(analyses.workloads_by_way(SCHEMA, (2, 3)))
    first_stage = stepwise.look(common, RECORDS, rehearsal=True)
    rule = NestedPlanRule(common=common, share=0.5, snr=5.0)
    for group in range(len(rule.groups)):
        picture = check_picture(coarse_figures.snr_picture(rule, first_stage, group, "3-way"))
        expected = rule.signal_to_noise(first_stage, group, "3-way")
        np.testing.assert_array_equal(picture.table["snr_low"], expected["snr_low"])
        assert f"{expected['stands_out'].sum()} of {len(expected)}" in picture.alt
        assert "REHEARSAL" in picture.figure.to_json()
        if primary == "2-way":
            heatmap = picture.figure.data[0]
            np.testing.assert_allclose(np.ravel(heatmap.z), expected["snr_low"])
        else:
            reliable, unreliable = picture.figure.data[:2]
            assert len(reliable.x) == expected["stands_out"].sum()
            assert len(reliable.x) + len(unreliable.x) == len(expected)


def test_snr_picture_shows_bins_of_integers():
    age = Attribute.numeric("age", [0, 1, 2, 4], integer=True)
    schema = Schema([age, Attribute.categorical("sex", ["F", "M"])])
    common = common_of(analyses.workloads_by_way(schema, (1, 2)))
    records = pd.DataFrame({"age": [0, 1, 3], "sex": ["F", "M", "F"]})
    first_stage = stepwise.look(common, records, rehearsal=True)
    rule = NestedPlanRule(common=common, share=0.5, snr=5.0)
    group = next(i for i, g in enumerate(rule.groups) if g.attributes == ("age",))
    picture = coarse_figures.snr_picture(rule, first_stage, group, "2-way")
    assert picture.table["query"].tolist() == ["age = 0", "age = 1", "age in 2–4"]


def test_group_text_names_conditions() -> None:
    coarse = Workload(SCHEMA).add("a")
    for condition in ("a <= 1", "a == 3"):
        coarse = coarse.add("a", Custom(predicates=[condition]))
    common = common_of({"coarse": coarse, "fine": coarse.add(("a", "b"))})
    rule = NestedPlanRule(common=common, share=0.5, snr=5.0)
    texts = [coarse_figures.group_text(rule, group) for group in range(3)]
    assert texts == ["a, marginal (4 cells)", "a <= 1 (1 cell)", "a == 3 (1 cell)"]


def test_shares_above_picture_matches_verdict():
    picture = check_picture(coarse_figures.shares_above_picture(RULE, FIRST_STAGE))
    shares = RULE.decide(FIRST_STAGE).shares
    table = picture.table.set_index("option")
    assert table.loc["2-way", "share above, lowest"] == pytest.approx(shares["2-way, lower"])
    assert table.loc["3-way", "share above, highest"] == pytest.approx(shares["3-way, upper"])
    assert table.loc["1-way", "share above, highest"] == pytest.approx(shares["1-way, upper"])
    line = next(t for t in picture.figure.data if t.name == "2-way" and t.showlegend)
    estimate = RULE.estimates(FIRST_STAGE) / RULE.errors("2-way")
    for ratio, above in zip(line.x, line.y, strict=True):
        assert above == pytest.approx((estimate >= ratio).mean())


def test_pictures_of_released_look_have_no_rehearsal_mark():
    first_stage = measure(COMMON.look, RECORDS, rehearsal=True)
    released = replace(first_stage, rehearsal=False)
    for picture in (
        coarse_figures.snr_picture(RULE, released, 0, 0),
        coarse_figures.shares_above_picture(RULE, released),
    ):
        assert "REHEARSAL" not in picture.figure.to_json()
        assert "ehearsal" not in picture.alt


def test_snr_picture_of_large_group_is_thinned():
    schema = Schema([Attribute.of_size("a", 600), Attribute.of_size("b", 2)])
    workloads = {
        "a": Workload(schema).add(("a",), "marginal"),
        "ab": Workload.all_ways(schema, ways=2, family="marginal"),
    }
    common = common_of(workloads, pcost=1.0)
    first_stage = stepwise.look(common, synthetic(schema, 100, seed=1), rehearsal=True)
    rule = NestedPlanRule(common=common, share=0.5, snr=1.0)
    (group,) = range(len(rule.groups))
    picture = coarse_figures.snr_picture(rule, first_stage, group, "ab")
    assert sum(len(t.x) for t in picture.figure.data) == coarse_figures.MAX_POINTS
    assert len(picture.table) == 600
    assert "evenly spaced" in picture.note


def test_even_totals_are_threshold_of_rule():
    totals = RULE.even_totals()
    assert totals == sorted(totals)
    for option, total in zip(RULE.finer, totals, strict=True):
        for factor, enough in ((1.0 + 1e-9, True), (1.0 - 1e-6, False)):
            table = np.full((4, 3, 2), total * factor / (4 * 3 * 2))
            one_way = np.concatenate([table.sum(axis=axes) for axes in ((1, 2), (0, 2), (0, 1))])
            share = (one_way / RULE.errors(option) >= RULE.snr).mean()
            assert (share >= RULE.share) == enough
