"""Comparison of two plans: error ratios, losses and differences, against brute force."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest

from engine._format import format_number
from engine.analysis import losses, plan_diff, summary
from engine.analysis.plan_comparison import ratios
from engine.errors import PlanError
from engine.figures import ratio_picture
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.figures.given import SCHEMA, checked, workload


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
    monkeypatch.setattr(importlib.import_module("engine.analysis.error_distribution"), "EXACT_QUERIES", 1000)
    monkeypatch.setattr(importlib.import_module("engine.analysis.error_distribution"), "SAMPLE", 5000)
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


def test_what_differs_between_two_plans() -> None:
    first = plan(workload(), Budget(pcost=1.0))
    assert plan_diff(first, first).words == ()
    assert "same typical error" in summary(first, first)
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
    assert format_number(second.rmse) in summary(first, second)
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
