"""Figures of comparisons, against brute force on the plans."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from engine._format import format_number, latex_text
from engine.analysis import ROWS, NoiseScale, losses, results_table, within_text
from engine.analysis.certificates import published_rmse
from engine.analysis.compare import Comparison, comparison, expected_costs
from engine.analysis.error_distribution import error_distribution
from engine.analysis.quality import quality_text
from engine.figures import (
    Picture,
    all_tied,
    budgets_picture,
    comparison_caption,
    comparison_page,
    costs,
    effort_picture,
    family_picture,
    range_picture,
    ranking_note,
    ranking_picture,
    ratio_picture,
    refusals,
    spread_picture,
    spreads_picture,
    tied_mechanisms,
    where_picture,
)
from engine.figures.base import COLORS, mechanism_name, mechanism_style
from engine.figures.compare import gap_words, ranking
from engine.mechanisms import at_budget, label_of, load_plan, plan, title_of, variants
from engine.mechanisms.registry import MECHANISMS
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.shell.figure_view import with_gaps_rounded_up
from tests.figures.example import SCHEMA, check_picture, example_workload


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return comparison(
        example_workload(), Budget(pcost=0.7), ["identity", "querysmasher", "laplace", "nonsense"]
    )


def dots(picture: Picture) -> dict[str, float]:
    """Map the label of each marker in a ranking figure to its position on the x axis."""
    return {trace.meta: trace.x[0] for trace in picture.figure.data if trace.meta}


def test_ranking_picture_draws_mechanisms_near_bound(compared: Comparison) -> None:
    picture = check_picture(ranking_picture(compared))
    plans = compared.frame[compared.frame["status"] == "ok"].set_index("mechanism")
    near = plans[plans["gap"] <= 1.0]
    assert dots(picture) == pytest.approx(near["gap"].to_dict())
    assert min(dots(picture).values()) >= -1e-9
    low, high = picture.figure.layout.xaxis.range
    assert low < 0.0 < max(dots(picture).values()) < high
    for trace in picture.figure.data:
        if trace.meta:
            assert trace.marker.color == mechanism_style(trace.meta).color
            # text next to the markers would be cut off on narrow screens
            assert trace.text is None
    for label, text in zip(dots(picture), picture.figure.layout.yaxis.ticktext, strict=True):
        title, _, numbers = text.rpartition("<br>")
        assert title.replace("<br>", " ") == title_of(label)
        gap = gap_words(float(near["gap"][label])).replace(" over the bound", " over")
        assert numbers.endswith(f" counts, {gap}")
    assert gap_words(float(plans["gap"].iloc[0])) in picture.alt
    assert picture.alt.startswith("QuerySmasher is the most accurate of 2 mechanisms")
    assert refusals(compared)["mechanism"].tolist() == ["Laplace mechanism", "nonsense"]
    assert ranking(compared)["mechanism"].tolist() == ["querysmasher", "identity"]
    assert list(costs(compared)) == ["querysmasher", "identity"]


def test_ranking_picture_reports_ties() -> None:
    workload = Workload.all_ways(
        Schema([Attribute.of_size(name, 4) for name in "ab"]), (1, 2), "marginal"
    )
    equal = ["wff", "querysmasher", "residualplanner"]
    picture = ranking_picture(comparison(workload, Budget(pcost=1.0), equal))
    assert picture.alt.startswith("All 3 mechanisms are equally accurate with ")
    picture = ranking_picture(comparison(workload, Budget(pcost=1.0), [*equal, "identity"]))
    assert picture.alt.startswith("3 of 4 mechanisms are the most accurate with ")


def test_tied_mechanisms_are_drawn_once() -> None:
    workload = Workload.all_ways(
        Schema([Attribute.of_size(name, 4) for name in "ab"]), (1, 2), "marginal"
    )
    equal = ["wff", "querysmasher", "residualplanner"]
    tied = comparison(workload, Budget(pcost=1.0), equal)
    assert all_tied(tied)
    assert len(dots(ranking_picture(tied))) == 1
    compared = comparison(workload.add("a", "prefix"), Budget(pcost=1.0), [*equal, "identity"])
    assert not all_tied(compared)
    names = [title_of(label) for label in compared.plans]
    assert set(tied_mechanisms(tied)) == {title_of(label) for label in equal}
    assert tied_mechanisms(by_hand({"querysmasher": 0.01, "wff": 0.3})) == []
    # Two mechanisms with equal total errors, but different errors per table: the headline and the
    # list count both mechanisms.
    other_tables = by_hand({"querysmasher": 0.0, "wff": 0.0})
    other_tables = replace(other_tables, groups={"querysmasher": (1.0, 2.0), "wff": (2.0, 1.0)})
    assert not all_tied(other_tables)
    assert ranking_picture(other_tables).alt.startswith("All 2 mechanisms are equally accurate")
    assert len(tied_mechanisms(other_tables)) == 2
    budget_traces = budgets_picture(tied, Budget(pcost=1.0)).figure.data
    spread_traces = spreads_picture(tied.spreads).figure.data
    for texts in (
        ranking_picture(tied).figure.layout.yaxis.ticktext,
        where_picture(tied, workload).figure.layout.xaxis.ticktext,
        [trace.name for trace in budget_traces],
        [trace.name for trace in spread_traces if trace.showlegend is not False],
    ):
        (text,) = texts
        assert all(title_of(label) in text.replace("<br>", " ") for label in equal)
    # the table still lists every mechanism
    assert len(ranking_picture(tied).table) == len(equal) + 1
    assert set(where_picture(compared, workload.add("a", "prefix")).table) == {"attributes", *names}


def test_budget_ticks_state_the_privacy_unit_once() -> None:
    compared = by_hand({"querysmasher": 0.01, "wff": 0.3})
    budget = Budget(pcost=1.0, rows_per_person=3)
    picture = budgets_picture(
        compared, budget, lambda value: f"pcost {value.pcost:g}, for up to 3 rows per person"
    )
    axis = picture.figure.layout.xaxis
    assert axis.ticktext[:2] == ("pcost 0.1", "pcost 0.2")
    assert len(set(axis.ticktext)) == len(axis.ticktext)
    assert axis.title.text == "budget (for up to 3 rows per person)"


def test_weighted_ranking_uses_weighted_bound() -> None:
    heavy = comparison(example_workload(weight=50.0), Budget(pcost=1.0), ["wff", "identity"])
    picture = ranking_picture(heavy)
    errors = {label: load_plan(text).weighted_rmse for label, text in heavy.plans.items()}
    assert dots(picture) == pytest.approx(
        {
            label: error / heavy.bound - 1.0
            for label, error in errors.items()
            if error <= 2 * heavy.bound  # mechanisms with larger errors are not drawn
        }
    )
    assert format_number(min(errors.values())) in picture.alt


def by_hand(gaps: dict[str, float], bound: float = 1.0) -> Comparison:
    """Return a comparison of mechanisms with these gaps, without planning them.

    The RMSE of each mechanism is 1 + gap, and its largest standard error is 1.
    """
    rows = [(label, 1.0 + gap, 1.0, gap, 1.0, 1.0, "ok") for label, gap in gaps.items()]
    frame = pd.DataFrame(
        rows, columns=["mechanism", "rmse", "max_std", "gap", "seconds", "peak_mb", "status"]
    )
    groups = {label: (1.0 + gap, 2.0) for label, gap in gaps.items()}
    return Comparison(
        frame=frame, plans=dict.fromkeys(gaps, ""), bound=bound, statement=".", groups=groups
    )


def test_bound_is_in_note_table_and_caption(compared: Comparison) -> None:
    workload, budget = example_workload(), Budget(pcost=0.7)
    text = f"{format_number(compared.bound)} counts"
    assert ranking_note(compared).startswith(f"Dashed: the bound, {text}.")
    table = ranking_picture(compared).table
    assert table["mechanism"].iloc[-1] == "Lower bound"
    assert table["RMSE"].iloc[-1] == compared.bound
    assert "<td>Lower bound</td>" in comparison_page(compared, workload, budget)
    caption = comparison_caption(compared, workload, budget)
    assert f"{workload.queries} queries in {len(workload.groups)} tables. zCDP rho 0.35" in caption
    assert "at delta 1e-06" in caption
    assert caption.endswith(f"Lower bound: {text}.")
    assert f"\\caption{{{caption}}}" in latex_text(table, caption=caption)
    unknown = by_hand({"wff": 0.0}, bound=0.0)
    assert ranking_note(unknown) == "Dashed: the best."
    assert len(ranking_picture(unknown).table) == 1
    assert "bound" not in comparison_caption(unknown, workload, budget)
    weighted = comparison(example_workload(weight=50.0), Budget(pcost=1.0), ["wff", "identity"])
    assert ranking_picture(weighted).table["mechanism"].iloc[-1] == "Lower bound (weighted RMSE)"
    assert "a weighted RMSE of" in ranking_picture(weighted).alt
    pure = comparison_caption(unknown, workload, Budget.pure(1.0))
    assert "Pure epsilon 1: rho" in pure


def test_ranking_by_largest_error_has_no_bound() -> None:
    comparison = by_hand({"querysmasher": 0.0, "hdmm": 0.2})
    frame = comparison.frame.assign(max_std=[30.0, 20.0])
    picture = ranking_picture(replace(comparison, frame=frame), "max_std")
    assert dots(picture) == pytest.approx({"hdmm": 0.0, "querysmasher": 0.5})
    assert picture.title == "Gap to the best"
    assert (
        picture.alt
        == "HDMM is the most accurate of 2 mechanisms by largest error, with 20.00 counts."
    )
    assert picture.table["mechanism"].tolist() == ["HDMM", "QuerySmasher", "Lower bound"]
    assert any("50.00% over" in text for text in picture.figure.layout.yaxis.ticktext)


def test_largest_errors_of_several_mechanisms_are_drawn() -> None:
    compared = by_hand({"querysmasher": 0.0, "hdmm": 0.1, "wff": 0.2})
    frame = compared.frame.assign(max_std=[10.0, 23.5, 24.7])
    picture = ranking_picture(replace(compared, frame=frame), "max_std")
    assert dots(picture) == pytest.approx({"querysmasher": 0.0, "hdmm": 1.35, "wff": 1.47})


def test_gap_to_best_is_rounded_to_nearest() -> None:
    compared = by_hand({"querysmasher": 0.0, "hdmm": 0.06511})
    frame = compared.frame.assign(max_std=[10.0, 10.6511])
    picture = ranking_picture(replace(compared, frame=frame), "max_std")
    assert any("6.51% over" in text for text in picture.figure.layout.yaxis.ticktext)
    assert "rounded up" not in picture.note
    assert "6.52% over" in ranking_picture(compared).figure.layout.yaxis.ticktext[1]
    table = ranking_picture(compared).table
    assert with_gaps_rounded_up(table)["over the bound"].max() == pytest.approx(0.0652)
    assert r"6.52\%" in latex_text(table, percent=["over the bound"])
    assert "rounded up" in ranking_picture(compared).note


def test_labels_of_close_markers_do_not_overlap() -> None:
    seconds = {
        "querysmasher (centers=tuned)": 0.22,
        "hdmm": 1.07,
        "querysmasher": 0.16,
        "rpplus": 0.11,
        "wff": 0.022,
    }
    comparison = by_hand(dict(zip(seconds, (0.0, 0.0, 0.043, 0.057, 0.213), strict=True)))
    frame = comparison.frame.assign(seconds=list(seconds.values()))
    figure = effort_picture(replace(comparison, frame=frame)).figure
    positions = {trace.name: trace.textposition for trace in figure.data}
    # The two labels would share the space between their markers.
    assert positions["QuerySmasher (tuned)"] == "top center"
    assert positions["QuerySmasher"] != "bottom center"


def test_legend_names_mechanisms_with_one_marker() -> None:
    comparison = by_hand({"querysmasher (centers=tuned)": 0.0, "hdmm": 0.0, "wff": 0.3})
    figure = effort_picture(replace(comparison, frame=comparison.frame.assign(seconds=0.5))).figure
    assert figure.layout.showlegend
    assert [trace.name for trace in figure.data if trace.showlegend] == [
        "QuerySmasher (tuned)",
        "HDMM",
    ]


def test_mechanisms_far_from_bound_are_named() -> None:
    comparison = by_hand(
        {"querysmasher": 0.01, "hdmm": 0.2, "wff": 1.5, "identity": 899.0, "gaussian": math.inf}
    )
    for picture in (ranking_picture(comparison), effort_picture(comparison)):
        assert (
            "Not drawn: Weighted Fourier Factorizations, 2.50 times the bound; Identity, 900.0 "
            "times the bound; Gaussian mechanism, unbounded error." in picture.note
        )
        assert len(picture.table[picture.table["mechanism"] != "Lower bound"]) == 5
    assert "Not drawn" not in ranking_note(by_hand({"querysmasher": 0.01, "hdmm": 0.2}))
    assert dots(ranking_picture(comparison)) == pytest.approx({"querysmasher": 0.01, "hdmm": 0.2})
    # the best mechanism is drawn even if it is far from the bound
    assert list(dots(ranking_picture(by_hand({"wff": 3.0, "identity": 899.0})))) == ["wff"]
    unknown = ranking_picture(by_hand({"wff": math.nan, "identity": math.nan}, bound=0.0))
    assert "bound" not in unknown.alt
    assert unknown.title == "Gap to the best"


def test_where_picture_matches_group_errors(plans: dict[str, Plan]) -> None:
    workload = example_workload()
    compared = comparison(workload, Budget(pcost=0.7), list(plans))
    picture = check_picture(where_picture(compared, workload))
    errors = np.array([plans[label].by_group()["rmse"] for label in compared.groups])
    assert [picture.table[title_of(label)].tolist() for label in compared.groups] == [
        pytest.approx(row) for row in (errors / errors.min(axis=0)).tolist()
    ]
    assert np.nanmin(picture.figure.data[0].z) == pytest.approx(1.0)
    numbers = [int(name.split(":")[0]) for name in picture.table["attributes"]]
    assert numbers == list(range(1, len(workload.groups) + 1))


def test_comparison_page_has_only_tables_and_shows_budget(plans: dict[str, Plan]) -> None:
    workload = example_workload()
    compared = comparison(workload, Budget(pcost=0.7), list(plans))
    page = comparison_page(compared, workload, Budget(pcost=0.7))
    assert "<b>" not in page
    assert "http" not in page
    assert page.count("<table>") == 4
    assert "Relative error by table" in page
    assert "Error divided by that of the best mechanism" in page
    # the caption of a chart would contain this word, and the page has no chart
    assert "Darker" not in page
    assert "0.7 pcost" in page
    in_rho = comparison_page(
        compared, workload, Budget(pcost=0.7), lambda budget: f"rho {budget.pcost / 2:g}"
    )
    assert "rho 0.35" in in_rho


def test_budgets_picture_matches_plans_at_budgets(plans: dict[str, Plan]) -> None:
    compared = comparison(example_workload(), Budget(pcost=0.7), ["querysmasher"])
    table = budgets_picture(compared, Budget(pcost=0.7)).table
    for pcost, error in zip(table["pcost"], table["QuerySmasher"], strict=True):
        assert error == pytest.approx(
            at_budget(plans["querysmasher"], Budget(pcost=pcost)).rmse, rel=1e-6
        )


def test_pictures_with_infinite_errors_stay_finite() -> None:
    workload = Workload(SCHEMA).add(("age",), "total").add(("age",), "prefix", weight=0.0)
    compared = comparison(workload, Budget(pcost=1.0), ["querysmasher", "identity"])
    assert not np.isfinite(compared.frame["rmse"]).all()
    picture = check_picture(ranking_picture(compared))
    assert np.isfinite(picture.figure.layout.xaxis.range).all()
    check_picture(effort_picture(compared))
    check_picture(where_picture(compared, workload))
    plans = {name: load_plan(text) for name, text in compared.plans.items()}
    assert math.isinf(losses(plans["querysmasher"], plans["identity"]).worst)
    # two of seven queries: the total, and the prefix that equals it
    assert losses(plans["identity"], plans["querysmasher"]).worse == pytest.approx(2 / 7)
    check_picture(spreads_picture(compared.spreads))
    check_picture(ratio_picture(plans, 1))


def test_expected_costs_include_refusals() -> None:
    table = expected_costs(example_workload(), Budget(pcost=1.0))
    assert table["mechanism"].tolist() == list(variants())
    assert (table.loc[table["mechanism"] == "laplace", "status"] != "ok").all()
    ready = table[table["status"] == "ok"]
    assert (ready["seconds"] > 0).all()
    assert (ready["memory_mb"] > 0).all()
    small = expected_costs(
        example_workload(), Budget(pcost=1.0), ["querysmasher"], memory_limit=1e3
    )
    assert "more than the limit" in small["status"][0]


def test_mechanism_styles_are_unique() -> None:
    styles = {label: mechanism_style(label) for label in variants()}
    assert len(set(styles.values())) == len(styles)
    # variants have the color and the shape of their mechanism
    for label, style in styles.items():
        default = mechanism_style(mechanism_name(label))
        assert style.color == default.color
        assert style.color in COLORS
        assert style.symbol.removesuffix("-open") == default.symbol
    names = {mechanism_name(label) for label in styles}
    assert names == {mechanism.name for mechanism in MECHANISMS}
    assert len({mechanism_style(name).symbol for name in names}) == len(names)


def test_label_of_options_contains_mechanism_name() -> None:
    assert label_of("a", {"b": 1}) == "a (b=1)"
    assert mechanism_name("a (b=1)") == "a"


def test_spreads_picture_matches_error_quantiles(plans: dict[str, Plan]) -> None:
    picture = check_picture(
        spreads_picture({label: error_distribution(result) for label, result in plans.items()})
    )
    spreads = comparison(example_workload(), Budget(pcost=0.7), list(plans)).spreads
    assert check_picture(spreads_picture(spreads)).alt == picture.alt
    for label, result in plans.items():
        stds = np.concatenate(
            [np.sqrt(result.variances(i)) for i in range(len(result.workload.groups))]
        )
        exact = np.quantile(stds, [0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0], method="inverted_cdf")
        np.testing.assert_allclose(picture.table[title_of(label)], exact)
        line = next(t for t in picture.figure.data if t.legendgroup == label and t.mode == "lines")
        np.testing.assert_allclose(np.asarray(line.x), np.sort(stds)[: len(line.x)])
    names = [t.name for t in picture.figure.data if t.showlegend is not False]
    assert names == [title_of(label) for label in plans]


def test_results_table_lists_published_rows() -> None:
    table = results_table({"CPS 1-way": 3.0})
    assert len(table) == len(ROWS)
    assert table["ours"].notna().sum() == 1
    assert published_rmse("[50]^40", "abs") == 52.8
    assert all(row.optimum <= row.printed * (1 + 5e-4) for row in ROWS)


def test_texts_use_singular_for_one() -> None:
    schema = Schema([Attribute.of_size("only", 1)])
    workload = Workload(schema).add("only")
    result = plan(workload, Budget(pcost=1.0))
    compared = comparison(workload, Budget(pcost=1.0), ["identity"])
    pictures = [
        family_picture(schema, workload.groups[0]),
        range_picture(schema, {"only": (0, 0)}),
        spread_picture(result, 1.0),
        ranking_picture(compared),
    ]
    sentences = [f"{picture.title} {picture.alt} {picture.note}" for picture in pictures]
    sentences += [comparison_page(compared, workload, Budget(pcost=1.0))]
    sentences += [within_text(result, 1.0), quality_text(result, NoiseScale(records=1.0))]
    plural = re.compile(
        r"(?<![\d.,])1 (?:queries|cells|groups|attributes|mechanisms|records|rows|steps|counts)\b"
    )
    assert [(text, plural.findall(text)) for text in sentences if plural.search(text)] == []
