"""Figures of the two-stage release and nested analyses."""

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
from engine.workload import Attribute, Schema, Workload
from tests.oracles import workload_rows

SCHEMA = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.categorical("c", ["x", "<b>y</b>"])])


def common_of(found, pcost=0.5, split=coarse_or_fine):
    return split(*(plan(w, Budget(pcost=pcost)) for w in found.values()), names=list(found))


COMMON = common_of(analyses.workloads_by_way(SCHEMA, (1, 2, 3)))
RECORDS = synthetic(SCHEMA, 800, seed=4)
RULE = NestedPlanRule(common=COMMON, primary="1-way", share=0.5, snr=5.0)
LOOKED = stepwise.look(COMMON, RECORDS, rehearsal=True)


def checked(picture):
    assert picture.title
    assert picture.alt
    assert len(picture.table)
    assert "<b>" not in picture.figure.to_json()
    return picture


# --- analyses ---


def test_k_way_analyses_are_all_tables_of_k_attributes():
    found = analyses.workloads_by_way(SCHEMA, (2, 1, 2))
    assert list(found) == ["1-way", "2-way"]
    assert [g.attributes for g in found["2-way"].groups] == [("a", "b"), ("a", "c"), ("b", "c")]
    for ways in ((), (1,), (2, 2), (0, 1), (1, 4)):
        with pytest.raises(WorkloadError, match="from 1 to 3"):
            analyses.workloads_by_way(SCHEMA, ways)


def test_a_coarser_workload_is_told_by_the_finer_one():
    present = (
        Workload(SCHEMA)
        .add(("a", "b"), {"a": "range", "b": "marginal"})
        .add(("b", "c"), "marginal")
        .add(("c",), "marginal")
        .add((), "total")
    )
    found = analyses.coarse_and_fine(present)
    assert list(found) == [analyses.FEWER, analyses.PRESENT]
    coarse = found[analyses.FEWER]
    asked = [(g.attributes, g.family_text) for g in coarse.groups]
    assert asked == [(("a",), "range"), (("b",), "marginal"), (("c",), "marginal"), ((), "total")]
    fine_rows = np.concatenate(workload_rows(present))
    for rows in workload_rows(coarse):
        solution = np.linalg.lstsq(fine_rows.T, rows.T, rcond=None)[0]
        np.testing.assert_allclose(fine_rows.T @ solution, rows.T, atol=1e-9)
    NestedPlanRule(common=common_of(found), share=0.5, snr=5.0)
    for empty in (Workload(SCHEMA), Workload(SCHEMA).add((), "total")):
        with pytest.raises(WorkloadError, match="leave out"):
            analyses.coarse_and_fine(empty)


def test_the_census_cascade_counts_the_bins_of_the_paper():
    census = Schema.from_json(demo_data.schemas()["census"].read_bytes())
    found = analyses.census_ages(census)
    assert {name: w.queries for name, w in found.items()} == {"Total": 2, "Age4": 8, "Age9": 18, "Age23": 46}
    table = np.arange(206.0).reshape(103, 2)
    for name, edges in CENSUS_AGES.items():
        (group,) = found[name].groups
        expected = np.add.reduceat(table, edges[:-1], axis=0)
        given = table.sum(axis=0) if name == "Total" else table
        np.testing.assert_allclose(apply_group(group, given, 0, group.count), expected.ravel())
    assert "age 18 to 44" in found["Age4"].describe(2)
    assert "age 20 and" in found["Age23"].describe(10)
    assert "age 85 and over" in found["Age23"].describe(44)
    with pytest.raises(WorkloadError, match="103 cells"):
        analyses.census_ages(SCHEMA)


# --- what is shared ---


def test_bars_and_sentences_are_the_budget_shares():
    picture = checked(coarse_figures.shares_picture(COMMON, lambda budget: f"rho {budget.rho:g}"))
    pd.testing.assert_frame_equal(picture.table.drop(columns="budget"), COMMON.budget_shares())
    assert list(picture.table["budget"]) == ["rho 0.25"] * 3
    shared, own = picture.figure.data
    # what stands on the bars is said in the unit of whoever looks; the bars themselves add up
    assert set(own.text) == {"in all rho 0.25"}
    assert set(shared.text) == {f"rho {COMMON.look.budget.rho:g}"}
    assert f"share rho {COMMON.look.budget.rho:g}, {COMMON.saved:.2%}" in picture.alt
    assert len(set(shared.x)) == 1
    assert isinstance(own.marker.color, str)  # the legend shows one colour, so the bars have one
    assert isinstance(own.marker.pattern.shape, str)
    np.testing.assert_allclose(np.add(shared.x, own.x), [0.5] * 3)
    assert f"{cost(COMMON.look.budget.pcost)} pcost, {COMMON.saved:.2%}" in coarse_figures.saved_text(COMMON)
    spaces = coarse_figures.space_table(COMMON)
    assert spaces["cost (pcost)"].sum() == pytest.approx(sum(p.pcost for p in COMMON.options), rel=1e-4)
    assert set(spaces["attributes"]) == {"(total)", "a", "b", "c", "a × b", "a × c", "b × c", "a × b × c"}


def test_look_and_rest_are_printed_to_the_last_digit():
    chain = common_of(analyses.workloads_by_way(SCHEMA, (1, 2, 3)), pcost=0.1, split=nested_choices)
    for common in (COMMON, chain, chain.following):
        table = coarse_figures.spend_table(common)
        for look, rest, both, alone in zip(*(table[c] for c in table.columns[1:]), strict=True):
            assert Decimal(look) + Decimal(rest) == Decimal(alone)
            assert both.endswith(f" = {alone}")
    assert coarse_figures.exact_sum([1e-9, 0.3]) == "0.000000001 + 0.3 = 0.300000001"
    assert coarse_figures.exact_sum([0.7]) == "0.7"


# --- the rule and the look ---


def test_a_rule_in_words_has_its_numbers():
    text = coarse_figures.rule_text(RULE)
    assert "at least 5 standard errors" in text
    assert "off by 40% at most" in text
    assert "at least 50% of its 9 cells" in text
    assert "the finest of 2-way, 3-way" in text
    assert "3 standard errors of the look" in text
    chain = common_of(analyses.workloads_by_way(SCHEMA, (1, 2, 3)), split=nested_choices)
    words = coarse_figures.rule_text(NestedPlanRule(common=chain, share=0.5, snr=5.0))
    assert "the next analysis, '2-way', look closer. If not even '1-way'" in words
    assert "as they look." in coarse_figures.rule_text(NestedPlanRule(common=COMMON, share=0.5, snr=5.0, sigmas=0.0))


@pytest.mark.parametrize("primary", ["1-way", "2-way"])
def test_ratios_are_those_of_the_rule(primary):
    common = COMMON if primary == "1-way" else common_of(analyses.workloads_by_way(SCHEMA, (2, 3)))
    looked = stepwise.look(common, RECORDS, rehearsal=True)
    rule = NestedPlanRule(common=common, share=0.5, snr=5.0)
    for group in range(len(rule.groups)):
        picture = checked(coarse_figures.snr_picture(rule, looked, group, "3-way"))
        expected = rule.signal_to_noise(looked, group, "3-way")
        np.testing.assert_array_equal(picture.table["snr_low"], expected["snr_low"])
        assert f"{expected['stands_out'].sum()} of {len(expected)}" in picture.alt
        assert "REHEARSAL" in picture.figure.to_json()
        drawn = picture.figure.data
        if primary == "2-way":
            np.testing.assert_allclose(np.ravel(drawn[0].z), expected["snr_low"])
        else:
            assert len(drawn[0].x) == expected["stands_out"].sum()
            assert len(drawn[0].x) + len(drawn[1].x) == len(expected)


def test_shares_above_the_ratio_lead_to_the_verdict():
    picture = checked(coarse_figures.shares_above_picture(RULE, LOOKED))
    shares = RULE.decide(LOOKED).shares
    table = picture.table.set_index("option")
    assert table.loc["2-way", "share above, lowest"] == pytest.approx(shares["2-way, lower"])
    assert table.loc["3-way", "share above, highest"] == pytest.approx(shares["3-way, upper"])
    assert table.loc["1-way", "share above, highest"] == pytest.approx(shares["1-way, upper"])
    line = next(t for t in picture.figure.data if t.name == "2-way" and t.showlegend)
    estimate = RULE.estimates(LOOKED) / RULE.errors("2-way")
    for ratio, above in zip(line.x, line.y, strict=True):
        assert above == pytest.approx((estimate >= ratio).mean())


def test_a_released_look_has_no_mark():
    made = measure(COMMON.look, RECORDS, rehearsal=True)
    released = type(made)(**{**vars(made), "rehearsal": False})
    for picture in (
        coarse_figures.snr_picture(RULE, released, 0, 0),
        coarse_figures.shares_above_picture(RULE, released),
    ):
        assert "REHEARSAL" not in picture.figure.to_json()
        assert "ehearsal" not in picture.alt


def test_large_groups_are_thinned():
    schema = Schema([Attribute.of_size("a", 600), Attribute.of_size("b", 2)])
    common = common_of(
        {"a": Workload(schema).add(("a",), "marginal"), "ab": Workload.all_ways(schema, ways=2, family="marginal")}, 1.0
    )
    looked = stepwise.look(common, synthetic(schema, 100, seed=1), rehearsal=True)
    picture = coarse_figures.snr_picture(NestedPlanRule(common=common, share=0.5, snr=1.0), looked, 0, 1)
    assert sum(len(t.x) for t in picture.figure.data) == coarse_figures.MAX_POINTS
    assert len(picture.table) == 600
    assert "evenly spaced" in picture.note


def test_even_totals_just_meet_the_rule():
    totals = RULE.even_totals()
    assert totals == sorted(totals)
    for option, total in zip(RULE.finer, totals, strict=True):
        for factor, enough in ((1.0 + 1e-9, True), (1.0 - 1e-6, False)):
            table = np.full((4, 3, 2), total * factor / 24)
            exact = np.concatenate([table.sum(axis=axes) for axes in ((1, 2), (0, 2), (0, 1))])
            share = (exact / RULE.errors(option) >= RULE.snr).mean()
            assert (share >= RULE.share) == enough
