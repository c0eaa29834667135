"""Pictures of comparisons, pairs, strategies and differences say what the plans say, checked by brute force."""

from __future__ import annotations

import importlib
import math
import re

import numpy as np
import pandas as pd
import pytest

from engine import Attribute, Budget, Plan, Schema, Workload, load_plan, plan
from engine.errors import PlanError
from engine.figures import (
    Picture,
    block_names,
    budgets_picture,
    comparison_page,
    costs,
    domain_picture,
    effort_picture,
    factor_names,
    family_picture,
    gram_picture,
    has_map,
    on_one_scale,
    pairs_picture,
    range_picture,
    ranking_picture,
    ratio_picture,
    refused,
    rows_picture,
    spread_picture,
    spreads_picture,
    where_picture,
)
from engine.figures.blocks import SIDE
from engine.figures.compare import gap_words, ranked
from engine.figures.errors import error_grid
from engine.figures.looks import COLORS, mechanism_look, mechanism_name
from engine.insight import (
    ROWS,
    Comparison,
    NoiseScale,
    beside,
    comparison,
    expected,
    losses,
    plan_diff,
    quality_text,
    ratios,
    spread,
    summary,
    within_text,
)
from engine.insight.published import printed
from engine.mechanisms import MECHANISMS, at_budget, label_of, title_of, variants
from engine.texts import amount
from engine.workload import Custom

SCHEMA = Schema(
    [Attribute.of_size("age", 6), Attribute.categorical("sex", ["F", "<b>M</b>"]), Attribute.of_size("x", 5)]
)


def workload(weight: float = 1.0) -> Workload:
    return (
        Workload.all_ways(SCHEMA, (1, 2, 3))
        .add((), "total")
        .add(("age",), "range", weight=weight)
        .add(("x",), "circular")
        .add(("age", "x"), "affine")
    )


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    names = ("identity", "querysmasher", "wff")
    return {name: plan(workload(), Budget(pcost=0.7), name) for name in names}


@pytest.fixture(scope="module")
def found() -> Comparison:
    return comparison(workload(), Budget(pcost=0.7), ["identity", "querysmasher", "laplace", "nonsense"])


def checked(picture: Picture) -> Picture:
    assert picture.title
    assert picture.alt
    assert len(picture.table)
    assert "<b>" not in picture.figure.to_json().replace("\\u003c", "<")
    return picture


def dots(picture: Picture) -> dict[str, float]:
    """Where the marks of a ranking stand, by label."""
    return {trace.meta: trace.x[0] for trace in picture.figure.data if trace.meta}


def test_the_ranking_draws_what_is_near_the_bound_and_names_the_rest(found: Comparison) -> None:
    picture = checked(ranking_picture(found))
    done = found.frame[found.frame["status"] == "ok"].set_index("mechanism")
    near = done[done["gap"] <= 1.0]
    assert dots(picture) == pytest.approx((1.0 + near["gap"]).to_dict())
    assert min(dots(picture).values()) >= 1.0 - 1e-9
    low, high = picture.figure.layout.xaxis.range
    assert low < 1.0 < max(dots(picture).values()) < high
    for trace in picture.figure.data:
        if trace.meta:
            assert trace.marker.color == mechanism_look(trace.meta).color
            assert trace.text is None  # numbers beside marks are cut off on narrow screens
    rows = picture.figure.layout.yaxis.ticktext
    gaps = [gap_words(float(near["gap"][label])).replace(" over the bound", " over") for label in dots(picture)]
    assert [row.rpartition("<br>")[0].replace("<br>", " ") for row in rows] == list(map(title_of, dots(picture)))
    assert all(row.endswith(f" counts, {gap}") for row, gap in zip(rows, gaps, strict=True))
    assert gap_words(float(done["gap"].iloc[0])) in picture.alt
    assert picture.alt.startswith("QuerySmasher is the most exact of 2 mechanisms")
    assert refused(found)["mechanism"].tolist() == ["Laplace mechanism", "nonsense"]
    assert list(costs(found)) == ranked(found)["mechanism"].tolist() == ["querysmasher", "identity"]


def test_mechanisms_that_are_equally_exact_are_not_ranked() -> None:
    asked = Workload.all_ways(Schema([Attribute.of_size(name, 4) for name in "ab"]), (1, 2), "marginal")
    same = ["wff", "querysmasher", "residualplanner"]
    assert ranking_picture(comparison(asked, Budget(pcost=1.0), same)).alt.startswith(
        "All 3 mechanisms are equally exact with "
    )
    more = ranking_picture(comparison(asked, Budget(pcost=1.0), [*same, "identity"]))
    assert more.alt.startswith("3 of 4 mechanisms are the most exact with ")


def test_a_weighted_ranking_stands_against_its_own_bound() -> None:
    heavy = comparison(workload(weight=50.0), Budget(pcost=1.0), ["wff", "identity"])
    picture = ranking_picture(heavy)
    made = {label: load_plan(text).weighted_rmse for label, text in heavy.plans.items()}
    assert dots(picture) == pytest.approx({k: v / heavy.bound for k, v in made.items() if v <= 2 * heavy.bound})
    assert amount(min(made.values())) in picture.alt


def by_hand(gaps: dict[str, float], bound: float = 1.0) -> Comparison:
    rows = [(label, 1.0 + gap, 1.0, gap, 1.0, 1.0, "ok") for label, gap in gaps.items()]
    frame = pd.DataFrame(rows, columns=["mechanism", "rmse", "max_std", "gap", "seconds", "peak_mb", "status"])
    groups = {label: (1.0 + gap, 2.0) for label, gap in gaps.items()}
    return Comparison(frame=frame, plans=dict.fromkeys(gaps, ""), bound=bound, statement=".", groups=groups)


def test_far_mechanisms_are_folded() -> None:
    found = by_hand({"querysmasher": 0.01, "hdmm": 0.2, "wff": 1.5, "identity": 899.0, "gaussian": math.inf})
    for picture in (ranking_picture(found), effort_picture(found)):
        assert "Over 2 times: Weighted Fourier Factorizations. Over 5 times: 2." in picture.note
        assert len(picture.table) == 5
    assert dots(ranking_picture(found)) == pytest.approx({"querysmasher": 1.01, "hdmm": 1.2})
    # far from the bound the best is drawn all the same, with those that are near it
    assert list(dots(ranking_picture(by_hand({"wff": 3.0, "identity": 899.0})))) == ["wff"]
    unknown = ranking_picture(by_hand({"wff": math.nan, "identity": math.nan}, bound=0.0))
    assert "bound" not in unknown.alt
    assert unknown.figure.layout.xaxis.title.text == "times the best of these"


def test_the_map_shows_who_loses_where(found: Comparison, plans: dict[str, Plan]) -> None:
    asked = workload()
    compared = comparison(asked, Budget(pcost=0.7), list(plans))
    picture = checked(where_picture(compared, asked))
    errors = np.array([plans[label].by_group()["rmse"] for label in compared.groups])
    assert [picture.table[title_of(label)].tolist() for label in compared.groups] == [
        pytest.approx(row) for row in (errors / errors.min(axis=0)).tolist()
    ]
    assert np.nanmin(picture.figure.data[0].z) == pytest.approx(1.0)
    page = comparison_page(compared, asked, Budget(pcost=0.7))
    assert "<b>" not in page
    assert "http" not in page
    assert page.count("<table>") == 4
    assert "Who loses where" in page


def test_error_at_other_budgets_is_that_of_a_plan_there(plans: dict[str, Plan]) -> None:
    compared = comparison(workload(), Budget(pcost=0.7), ["querysmasher"])
    table = budgets_picture(compared, Budget(pcost=0.7)).table
    for pcost, error in zip(table["pcost"], table["QuerySmasher"], strict=True):
        assert error == pytest.approx(at_budget(plans["querysmasher"], Budget(pcost=pcost)).rmse, rel=1e-6)


def test_a_mechanism_that_leaves_a_query_out_does_not_spoil_the_picture() -> None:
    asked = Workload(SCHEMA).add(("age",), "total").add(("age",), "prefix", weight=0.0)
    made = comparison(asked, Budget(pcost=1.0), ["querysmasher", "identity"])
    assert not np.isfinite(made.frame["rmse"]).all()
    picture = checked(ranking_picture(made))
    assert np.isfinite(picture.figure.layout.xaxis.range).all()
    checked(effort_picture(made))
    checked(where_picture(made, asked))
    one, other = (load_plan(made.plans[name]) for name in ("querysmasher", "identity"))
    lost = losses(one, other)
    assert math.isinf(lost.worst)
    assert losses(other, one).worse == pytest.approx(2 / 7)  # the total, and the prefix that is the total
    checked(spreads_picture(made.spreads))
    checked(ratio_picture({"querysmasher": one, "identity": other}, 1))


def test_a_forecast_comes_before_the_start_with_its_refusals() -> None:
    table = expected(workload(), Budget(pcost=1.0))
    assert table["mechanism"].tolist() == list(variants())
    assert (table.loc[table["mechanism"] == "laplace", "status"] != "ok").all()
    ready = table[table["status"] == "ok"]
    assert (ready["seconds"] > 0).all()
    assert (ready["memory_mb"] > 0).all()
    small = expected(workload(), Budget(pcost=1.0), ["querysmasher"], memory_limit=1e3)
    assert "more than the limit" in small["status"][0]


def test_every_mechanism_has_one_colour_and_no_two_look_the_same() -> None:
    looks = {label: mechanism_look(label) for label in variants()}
    assert len(set(looks.values())) == len(looks)
    for label, seen in looks.items():
        assert seen.color == mechanism_look(mechanism_name(label)).color
        assert seen.color in COLORS
    assert label_of("a", {"b": 1}) == "a (b=1)"
    assert mechanism_name("a (b=1)") == "a"
    assert {mechanism_name(label) for label in looks} == {m.name for m in MECHANISMS}


def test_distributions_of_several_plans_share_an_axis(plans: dict[str, Plan]) -> None:
    picture = checked(spreads_picture({label: spread(made) for label, made in plans.items()}))
    told = comparison(workload(), Budget(pcost=0.7), list(plans)).spreads
    assert checked(spreads_picture(told)).alt == picture.alt
    for label, made in plans.items():
        stds = np.concatenate([np.sqrt(made.variances(i)) for i in range(len(made.workload.groups))])
        exact = np.quantile(stds, [0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0], method="inverted_cdf")
        np.testing.assert_allclose(picture.table[title_of(label)], exact)
        drawn = next(t for t in picture.figure.data if t.legendgroup == label and t.mode == "lines")
        np.testing.assert_allclose(np.asarray(drawn.x), np.sort(stds)[: len(drawn.x)])
    names = [t.name for t in picture.figure.data if t.showlegend is not False]
    assert names == [title_of(label) for label in plans]


def test_ratios_of_every_query_are_those_of_the_plans(plans: dict[str, Plan]) -> None:
    pair = {name: plans[name] for name in ("identity", "querysmasher")}
    for i, group in enumerate(workload().groups):
        ratio = np.sqrt(plans["identity"].variances(i) / plans["querysmasher"].variances(i))
        if len(group.parts) > 2:
            picture = checked(ratio_picture(pair, i, (0, 2), [0, 1, 0]))
            ratio = ratio.reshape([p.count for p in group.parts])[:, 1, :].ravel()
        else:
            picture = checked(ratio_picture(pair, i))
        np.testing.assert_allclose(picture.table["ratio"], ratio)
        trace = picture.figure.data[0]
        if trace.type == "heatmap":
            shown = np.asarray(trace.z, dtype=float)
            np.testing.assert_allclose(2.0 ** shown[~np.isnan(shown)], ratio)
            assert trace.zmin == -trace.zmax
    assert ratios(np.array([np.inf, 2.0]), np.array([np.inf, np.inf])).tolist() == [1.0, 0.0]


def brute(one: Plan, other: Plan) -> tuple[float, float, float, list[str]]:
    asked = one.workload
    found = [np.sqrt(one.variances(i) / other.variances(i)) for i in range(len(asked.groups))]
    ratio = np.concatenate(found)
    texts = [asked.describe(int(k)) for k in np.flatnonzero(ratio > ratio.max() * (1 - 1e-6))]
    return float((ratio > 1 + 1e-6).mean()), float((ratio < 1 - 1e-6).mean()), float(ratio.max()), texts


def test_where_a_loses_is_counted_query_by_query(plans: dict[str, Plan]) -> None:
    for one, other in (("identity", "wff"), ("wff", "identity"), ("querysmasher", "wff")):
        lost = losses(plans[one], plans[other])
        worse, better, worst, texts = brute(plans[one], plans[other])
        assert (lost.worse, lost.better) == pytest.approx((worse, better))
        assert lost.worst == pytest.approx(worst)
        assert lost.query in texts
        assert lost.exact
        assert lost.groups["queries"].sum() == workload().queries
    same = losses(plans["wff"], plans["wff"])
    assert (same.worse, same.better, same.worst) == (0.0, 0.0, 1.0)


def test_a_sample_of_many_queries_comes_close(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema([Attribute.of_size(c, 24) for c in "abc"])
    asked = Workload.all_ways(schema, (1, 2, 3))
    one, other = (plan(asked, Budget(pcost=1.0), name) for name in ("querysmasher", "wff"))
    exact = losses(one, other)
    monkeypatch.setattr(importlib.import_module("engine.insight.spread"), "EXACT_QUERIES", 1000)
    monkeypatch.setattr(importlib.import_module("engine.insight.spread"), "SAMPLE", 5000)
    sampled = losses(one, other)
    assert exact.exact
    assert not sampled.exact
    assert sampled.worse == pytest.approx(exact.worse, abs=0.02)
    assert sampled.worst <= exact.worst * (1 + 1e-12)
    assert sampled.worst >= 0.97 * exact.worst
    row = sampled.groups.iloc[0]
    position = next(
        k
        for k in range(asked.groups[row["group"]].count)
        if asked.describe_in_group(row["group"], k) == row["worst query"]
    )
    ratio = math.sqrt(one.variances(row["group"])[position] / other.variances(row["group"])[position])
    assert ratio == pytest.approx(row["worst ratio"])


def test_plans_of_different_queries_are_no_pair(plans: dict[str, Plan]) -> None:
    other = plan(Workload.all_ways(SCHEMA, (1,)), Budget(pcost=1.0))
    with pytest.raises(PlanError, match="different queries"):
        losses(plans["wff"], other)
    with pytest.raises(PlanError, match="different queries"):
        ratio_picture({"a": plans["wff"], "b": other}, 0)


def test_grids_hold_every_query_once() -> None:
    asked = workload()
    for i, group in enumerate(asked.groups):
        if len(group.parts) > 2:
            continue
        grid = error_grid(asked, i)
        counts = [p.count for p in group.parts]
        numbers = np.ravel_multi_index(grid.index, counts) if counts else np.zeros(1)
        assert sorted(numbers) == list(range(group.count))
        assert all(len(texts) == group.count for texts in grid.columns().values())


def test_strategies_and_their_gram_matrices() -> None:
    asked = Workload(SCHEMA).add(("age", "x"), "range").add(("age", "x"), Custom(predicates=["age <= x"]))
    for name in ("querysmasher", "identity", "optimum"):
        made = plan(asked, Budget(pcost=1.0), name)
        for key, words in block_names(made).items():
            assert f"{made.blocks[key].measurements:,} number" in words
            factors = made.blocks[key].factors
            assert len(factor_names(made, key)) == len(factors)
            for factor in range(max(1, len(factors))):
                rows = factors[factor][1].rows if factors else np.ones((1, 1))
                drawn = np.asarray(checked(rows_picture(made, key, factor)).figure.data[0].z)
                np.testing.assert_allclose(drawn, rows)
                gram = np.asarray(checked(gram_picture(made, key, factor)).figure.data[0].z)
                np.testing.assert_allclose(gram, rows.T @ rows, atol=1e-12)
                assert gram.max() <= 1.0 + 1e-9


def test_large_strategies_are_thinned_and_say_so() -> None:
    schema = Schema([Attribute.of_size("y", 600)])
    made = plan(Workload(schema).add(("y",), "marginal"), Budget(pcost=1.0), "wff")
    key = ("y",)
    for picture in (rows_picture(made, key), gram_picture(made, key)):
        assert np.shape(picture.figure.data[0].z) == (SIDE, SIDE)
        assert picture.figure.data[0].z.nbytes * 4 / 3 < 90_000
        assert "are drawn of" in picture.note or "are drawn." in picture.note


def test_what_differs_between_two_plans() -> None:
    first = plan(workload(), Budget(pcost=1.0))
    assert plan_diff(first, first).words == ()
    assert "same typical error" in summary(plan_diff(first, first), first, first)
    asked = Workload(SCHEMA, (*workload().groups[1:-2], *workload(weight=3.0).groups[-3:-2])).add(("x",), "total")
    second = plan(asked, Budget.zcdp(2.0), centers="tuned")
    different = plan_diff(first, second)
    request = different.request.set_index("what")
    assert request.loc["budget"].tolist() == ["pcost 1", "pcost 4"]
    assert request.loc["option centers"].tolist() == ["uniform", "tuned"]
    assert "Only" not in " ".join(different.words)
    groups = different.groups
    assert (groups["in"] == "only first").sum() + (groups["in"] == "both").sum() == len(first.workload.groups)
    assert (groups["in"] == "only second").sum() + (groups["in"] == "both").sum() == len(second.workload.groups)
    both = groups[groups["in"] == "both"]
    assert (both["ratio"] < 1).all()
    assert amount(second.rmse) in summary(different, first, second)
    for _, g in both.iterrows():
        i = next(
            i
            for i, one in enumerate(first.workload.groups)
            if (" × ".join(one.attributes) or "(total)") == g["attributes"] and one.family_text == g["family"]
        )
        assert g["RMSE, first"] == pytest.approx(first.by_group()["rmse"][i])


def test_weights_schemas_and_laws_are_told() -> None:
    base = Workload(SCHEMA).add(("age",), "range")
    heavy = plan(Workload(SCHEMA).add(("age",), "range", weight=2.0), Budget(pcost=1.0))
    assert plan_diff(plan(base, Budget(pcost=1.0)), heavy).words == ("1 group with another weight.",)
    coarse = Schema([Attribute.of_size("age", 3), *SCHEMA.attributes[1:]])
    other = plan(Workload(coarse).add(("age",), "range"), Budget.pure(1.0), "hierarchical", max_records=1000)
    different = plan_diff(plan(base, Budget(pcost=1.0)), other)
    assert "The budget differs: pcost 1 and pure epsilon 1." in different.words
    assert "The schemas differ in 1 attribute." in different.words
    assert "The cap on records differs: 100,000,000 and 1,000." in different.words
    renamed = Schema([Attribute.categorical("age", list("abcdef")), *SCHEMA.attributes[1:]])
    again = plan(Workload(renamed).add(("age",), "marginal"), Budget(pcost=1.0))
    texts = plan_diff(plan(base, Budget(pcost=1.0)), again).request.set_index("what").loc["attribute age"]
    assert texts.tolist() == ["numeric, 6 cells", "categorical, 6 cells"]


def test_published_rows() -> None:
    table = beside({"CPS 1-way": 3.0})
    assert len(table) == len(ROWS) == 42
    assert table["ours"].notna().sum() == 1
    assert printed("[50]^40", "abs") == 52.8
    assert all(row.optimum <= row.printed * (1 + 5e-4) for row in ROWS)


def test_one_is_never_said_in_the_plural() -> None:
    schema = Schema([Attribute.of_size("only", 1)])
    asked = Workload(schema).add("only")
    made = plan(asked, Budget(pcost=1.0))
    found = comparison(asked, Budget(pcost=1.0), ["identity"])
    pictures = [
        domain_picture(schema),
        family_picture(schema, asked.groups[0]),
        range_picture(schema, {"only": (0, 0)}),
        spread_picture(made, 1.0),
        ranking_picture(found),
    ]
    said = [f"{one.title} {one.alt} {one.note}" for one in pictures]
    said += [comparison_page(found, asked, Budget(pcost=1.0))]
    said += [within_text(made, 1.0), quality_text(made, NoiseScale(records=1.0))]
    plural = re.compile(r"(?<![\d.,])1 (?:queries|cells|groups|attributes|mechanisms|records|rows|steps|counts)\b")
    assert [(text, plural.findall(text)) for text in said if plural.search(text)] == []


def test_strategies_beside_each_other_have_one_scale_of_colours() -> None:
    asked = Workload(Schema([Attribute.of_size("a", 6)])).add("a", "prefix")
    plans = [plan(asked, Budget(pcost=1.0), mechanism=name) for name in ("identity", "querysmasher", "wff")]
    for draw in (rows_picture, gram_picture):
        pictures = [draw(made, next(iter(made.blocks))) for made in plans]
        ends = [(p.figure.data[0].zmin, p.figure.data[0].zmax) for p in pictures]
        on_one_scale(*pictures)
        ((low, high),) = {(p.figure.data[0].zmin, p.figure.data[0].zmax) for p in pictures}
        assert all(low <= bottom and top <= high for bottom, top in ends)
        assert low == -high or all(bottom != -top for bottom, top in ends)


def test_a_map_of_pairs_has_every_pair_twice_the_least_exact_first() -> None:
    schema = Schema([Attribute.of_size(name, n) for name, n in zip("abcd", (2, 9, 3, 5), strict=True)])
    asked = Workload.all_ways(schema, (1, 2), family="prefix").add(("a", "b", "c"))
    made = plan(asked, Budget(pcost=1.0))
    picture = checked(pairs_picture(made))
    drawn, dots = picture.figure.data
    grid, names = np.asarray(drawn.z, float), list(drawn.x)
    for column, row, (chosen, _) in zip(dots.x, dots.y, dots.customdata, strict=True):
        assert set(asked.groups[chosen].attributes) == {column, row}
    assert len(dots.x) == 16  # four attributes alone, and six pairs twice
    for number, group in enumerate(asked.groups[:-1]):
        places = [names.index(name) for name in group.attributes] * 2
        largest = made.by_group()["max_std"][number]
        assert grid[places[0], places[1]] == grid[places[1], places[0]] == pytest.approx(largest)
    assert grid[0].max() == np.nanmax(grid)
    assert not has_map(Workload(schema).add(("a", "b")))
    assert not has_map(Workload.all_ways(Schema([Attribute.of_size(f"x{i}", 2) for i in range(61)]), (2,)))
