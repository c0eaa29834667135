"""Figures: tables equal the numbers of the plan, large figures are thinned."""

from __future__ import annotations

import html

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from engine.analysis import ad_hoc_queries as ask
from engine.analysis import error_distribution, group_table
from engine.figures import domain as questions
from engine.figures import plans as plan_figures
from engine.figures import release as figures
from engine.figures.base import MAX_SIDE
from engine.figures.domain import MAX_ROWS
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import measure
from engine.workload import Attribute, Schema, Width, Workload
from pages.parts.shell import budgets
from tests.figures.example import check_picture

SCHEMA = Schema(
    [
        Attribute.numeric("age", [0, 18, 65, 90, 120]),
        Attribute.categorical("sex", ["F", "<b>M</b>"]),
        Attribute.of_size("code", 6),
        Attribute.of_size("hour", 5),
    ]
)


RECORDS = {"age": [3, 20, 70], "sex": ["F", "F", "<b>M</b>"], "code": [0, 1, 5], "hour": [0, 0, 4]}


@pytest.fixture(scope="module")
def example() -> Plan:
    workload = (
        Workload.all_ways(SCHEMA, ways=(1, 2, 3))
        .add((), "total")
        .add(("code",), "range")
        .add(("hour",), "circular")
        .add(("code", "hour"), "affine")
        .add(("code", "sex"), {"code": "range", "sex": "marginal"}, weight=3.0)
        .add(("code",), Width(2))
    )
    return plan(workload, Budget(pcost=0.5))


def test_error_figure_equals_plan_variances(example: Plan) -> None:
    for i, group in enumerate(example.workload.groups):
        stds = np.sqrt(example.variances(i))
        if len(group.parts) > 2:
            picture = check_picture(plan_figures.error_picture(example, i, (0, 2), [0, 1, 0]))
            shape = [p.count for p in group.parts]
            expected = stds.reshape(shape)[:, 1, :].ravel()
        else:
            picture, expected = check_picture(plan_figures.error_picture(example, i)), stds
        np.testing.assert_allclose(picture.table["standard error"], expected, rtol=1e-12)


def test_error_figure_of_one_part_with_ranges(example: Plan) -> None:
    number = next(i for i, g in enumerate(example.workload.groups) if g.weight == 3.0)
    picture = check_picture(plan_figures.error_picture(example, number, (0,), [0, 1]))
    np.testing.assert_allclose(
        picture.table["standard error"], np.sqrt(example.variances(number)).reshape(-1, 2)[:, 1]
    )
    assert "sex = " in picture.title


def test_spread_figure_counts_all_queries(example: Plan) -> None:
    stds = np.concatenate(
        [np.sqrt(example.variances(i)) for i in range(len(example.workload.groups))]
    )
    for tolerance in (0.001, float(np.median(stds)), float(stds.max()), 1e6):
        share = (stds <= tolerance).mean()
        assert check_picture(plan_figures.spread_picture(example, tolerance)).alt.startswith(
            f"{share:.1%} of"
        )
    table = plan_figures.spread_picture(example, 1.0).table
    assert table["standard error at most"].iloc[-1] == stds.max()
    assert table["standard error at most"].iloc[2] == pytest.approx(
        np.quantile(stds, 0.5, method="inverted_cdf")
    )


def test_sampled_spread_is_close_to_exact(example: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema([Attribute.of_size(c, 30) for c in "abc"])
    large = plan(Workload.all_ways(schema, ways=(1, 2, 3)), Budget(pcost=1.0))
    stds = np.sort(
        np.concatenate([np.sqrt(large.variances(i)) for i in range(len(large.workload.groups))])
    )
    monkeypatch.setattr(error_distribution, "MAX_UNSAMPLED_QUERIES", 1000)
    monkeypatch.setattr(error_distribution, "SAMPLED_QUERIES", 4000)
    error_distribution.error_distribution.cache_clear()
    table = plan_figures.spread_picture(large, 1.0).table
    exact = np.quantile(stds, [0.05, 0.25, 0.5, 0.75, 0.95])
    np.testing.assert_allclose(table["standard error at most"][:5], exact, rtol=0.01)
    error_distribution.error_distribution.cache_clear()


def test_group_tables_count_queries_and_cells(example: Plan) -> None:
    table = group_table(example)
    assert table["queries"].sum() == example.workload.queries
    assert ask.workload_table(example.workload)["queries"].sum() == example.workload.queries
    assert table["attributes"].iloc[-6] == "(total)"
    cells = {frozenset(g.attributes) for g in example.workload.groups}
    assert ask.count_cells(example.workload) == sum(SCHEMA.cells(names) for names in cells)


def test_budget_figure_shares_sum_to_one(example: Plan) -> None:
    assert check_picture(plan_figures.budget_picture(example)).table[
        "share"
    ].sum() == pytest.approx(1.0)


def test_family_figure_shows_query_rows(example: Plan) -> None:
    for group in example.workload.groups:
        for part, piece in enumerate(group.parts):
            picture = check_picture(questions.family_picture(SCHEMA, group, part, piece.count - 1))
            drawn = picture.figure.data[0].z
            rows = piece.family.rows(piece.sizes)
            expected = rows[-1].reshape(piece.sizes) if len(piece.axes) == 2 else rows
            np.testing.assert_array_equal(drawn, expected)


def test_large_figures_are_thinned_with_note() -> None:
    schema = Schema([Attribute.of_size("x", 530), Attribute.of_size("y", 520)])
    workload = (
        Workload(schema).add(("x", "y"), "marginal").add(("x",), "marginal").add(("y",), "range")
    )
    large = plan(workload, Budget(pcost=1.0), solver="fourier")
    for number, side in ((0, MAX_SIDE), (2, MAX_SIDE)):
        picture = plan_figures.error_picture(large, number)
        assert np.shape(picture.figure.data[0].z) == (side, side)
        assert "evenly spaced" in picture.note
    picture = questions.family_picture(schema, workload.groups[1])
    assert np.shape(picture.figure.data[0].z) == (MAX_ROWS, MAX_SIDE)
    assert "evenly spaced" in picture.note


def test_figure_labels_are_escaped(example: Plan) -> None:
    number = next(i for i, g in enumerate(example.workload.groups) if g.attributes == ("sex",))
    assert "<b>" not in plan_figures.error_picture(example, number).figure.to_json().replace(
        "\\u003c", "<"
    )


def test_ad_hoc_queries_have_text_and_variance(example: Plan) -> None:
    box = ask.box_query(SCHEMA, {"code": [2, 3, 4], "sex": [0]})
    assert box.text == "code in 2..4 and sex = F"
    written = ask.parse_query(SCHEMA, ["code", "sex"], "code >= 2 and code <= 4 and sex == 'F'")
    np.testing.assert_array_equal(box.tensor, written.tensor)
    assert example.variance_of(box.attributes, box.tensor) > 0
    assert ask.box_query(SCHEMA, {}).text == "all records"
    assert ask.box_query(SCHEMA, {"sex": []}).tensor.sum() == 0


def test_rehearsal_answers_include_true_counts(example: Plan) -> None:
    records = pd.DataFrame(RECORDS)
    measurement = measure(example, records, rehearsal=True)
    number = next(
        i for i, g in enumerate(example.workload.groups) if g.attributes == ("sex", "code")
    )
    table = ask.add_truth(measurement.answers(number, 2, 9), example, number, 2, records)
    assert table["truth"].tolist() == [2, 2, 2, 2, 0, 0, 0]
    picture = check_picture(figures.answers_picture(table, rehearsal=True))
    assert [a.text for a in picture.figure.layout.annotations] == ["REHEARSAL"]
    # The mark of a rehearsal is a ribbon above the plot. It must not cover points.
    (ribbon,) = picture.figure.layout.shapes
    assert (ribbon.yref, ribbon.yanchor, ribbon.ysizemode) == ("paper", 1, "pixel")
    assert ribbon.y0 > 0
    assert picture.figure.layout.legend.yanchor == "bottom"
    assert picture.figure.layout.legend.y > 1.0
    # The page does not have all combinations of values, so the chart has no panels. Each label then
    # has one line per attribute.
    assert all(
        label.count("<br>") == 1 and " and " not in label for label in picture.figure.data[1].x
    )
    assert picture.figure.layout.xaxis.nticks == 8
    bars = picture.figure.data[0].error_y
    np.testing.assert_allclose(bars.array, table["high"] - table["answer"])
    np.testing.assert_allclose(bars.arrayminus, table["answer"] - table["low"])
    released = check_picture(figures.answers_picture(measurement.answers(number), rehearsal=False))
    assert "REHEARSAL" not in released.figure.to_json()
    assert not released.figure.layout.shapes
    single = next(i for i, g in enumerate(example.workload.groups) if g.attributes == ("sex",))
    axis = check_picture(
        figures.answers_picture(measurement.answers(single), rehearsal=False)
    ).figure
    assert (axis.layout.xaxis.title.text, axis.data[0].x) == ("sex", ("F", "&lt;b&gt;M&lt;/b&gt;"))


def test_answers_on_pairs_are_drawn_in_panels(example: Plan) -> None:
    measurement = measure(example, pd.DataFrame(RECORDS), rehearsal=True)
    number = next(
        i for i, g in enumerate(example.workload.groups) if g.attributes == ("sex", "code")
    )
    answers = measurement.answers(number)
    picture = check_picture(figures.answers_picture(answers, rehearsal=True))
    panels = picture.figure.data
    assert [len(panel.x) for panel in panels] == [6, 6]
    np.testing.assert_allclose(np.concatenate([panel.y for panel in panels]), answers["answer"])
    assert [a.text for a in picture.figure.layout.annotations] == [
        "sex = F",
        "sex = &lt;b&gt;M&lt;/b&gt;",
        "REHEARSAL",
    ]
    assert "Intervals: ± " in picture.alt
    assert picture.figure.layout.yaxis.exponentformat == "none"
    assert picture.figure.layout.yaxis.rangemode == "tozero"
    one_answer = figures.answers_picture(answers.head(1), rehearsal=True)
    assert one_answer.figure.layout.yaxis.rangemode == "tozero"


def test_panels_of_cumulative_answers_have_no_equals_sign() -> None:
    schema = Schema([Attribute.of_size("x", 2), Attribute.of_size("y", 9, kind="categorical")])
    result = plan(
        Workload(schema).add(("x", "y"), {"x": "prefix", "y": "marginal"}), Budget(pcost=1.0)
    )
    answers = measure(result, pd.DataFrame({"x": [1], "y": [2]}), rehearsal=True).answers(0)
    drawn = figures.answers_picture(answers, rehearsal=False).figure
    assert [html.unescape(a.text) for a in drawn.layout.annotations] == ["x ≤ 0", "x ≤ 1"]


def test_answers_on_large_pairs_are_a_map() -> None:
    schema = Schema([Attribute.of_size("x", 8), Attribute.of_size("y", 9)])
    result = plan(Workload(schema).add(("x", "y"), "prefix"), Budget(pcost=1.0))
    answers = measure(result, pd.DataFrame({"x": [1], "y": [2]}), rehearsal=True).answers(0)
    (heat,) = figures.answers_picture(answers, rehearsal=False).figure.data
    np.testing.assert_allclose(np.ravel(heat.z), answers["answer"])
    np.testing.assert_allclose(heat.customdata[..., 0].ravel(), answers["low"])
    assert heat.x[0] == "≤ 0"


def test_map_margin_leaves_room_for_buttons(example: Plan) -> None:
    number = next(i for i, g in enumerate(example.workload.groups) if len(g.attributes) == 2)
    for drawn in (
        plan_figures.error_picture(example, number, (0, 1), [0, 0]),
        questions.plane_picture(example.schema, example.workload.groups[number], 0),
    ):
        assert any(isinstance(trace, go.Heatmap) for trace in drawn.figure.data)
        assert drawn.figure.layout.margin.t >= 40


@pytest.mark.parametrize(
    ("pcost", "words"), [(0.25, "0.25 will be left"), (2.0, "more than what is left")]
)
def test_spending_figure_shows_remaining_budget(pcost: float, words: str) -> None:
    picture = check_picture(figures.spending_picture(1.0, 0.5, pcost))
    assert words in picture.alt
    assert picture.figure.data[1].name.startswith(f"this release: {pcost:g}")
    fits = pcost <= 0.5  # the spent half leaves 0.5; a release that needs more is refused
    assert picture.figure.data[2].name == ("left after it: 0.25" if fits else "left: 0.5")
    assert picture.figure.data[1].x == ((pcost if fits else 0.0),)


def test_spending_table_has_no_total_after_remaining_budget() -> None:
    picture = check_picture(figures.spending_picture(1.0, 0.5, 0.25, format_amount="{:g}".format))
    assert picture.table is not None
    assert list(picture.table["spent in total after it"]) == ["0.5", "0.75", ""]


def test_nearby_budgets_are_round_in_chosen_unit() -> None:
    budget = Budget.approx(1.0, 1e-6)
    epsilons = [budget.at(pcost).epsilon(1e-6) for pcost in budgets.nearby_pcosts(budget)]
    assert epsilons == pytest.approx(budgets.NEARBY_FACTORS, rel=1e-3)
    texts = [budgets.in_words(budget.at(pcost)) for pcost in budgets.nearby_pcosts(budget)]
    assert texts == [f"ε {factor:g}" for factor in budgets.NEARBY_FACTORS]
    pure = Budget.pure(1.0)
    assert budgets.nearby_pcosts(pure) == list(budgets.NEARBY_FACTORS)
