"""Page Compare: views of a comparison and their code."""

from __future__ import annotations

import json
import math

import pytest

from engine._format import cost, format_number
from engine.analysis.compare import comparison
from engine.mechanisms import plan, title_of, variants
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.compare import run, views
from pages.parts.shell import budgets, permalink
from pages.parts.shell.history import RequestState
from tests.app.compare.sessions import (
    MECHANISMS,
    SCHEMA,
    WORKLOAD,
    mechanism_choice,
    open_small_workload,
    run_code,
    run_comparison,
)
from tests.app.session import UNIFORM, Session

pytestmark = pytest.mark.usefixtures("keeps_comparisons")


@pytest.fixture(scope="module")
def small() -> Session:
    return run_comparison(open_small_workload())


def test_ranking_view_shows_all_figures(small: Session) -> None:
    text = small.set(compare_view="Ranking").text()
    for title in ("Gap to the bound", "Error and planning time"):
        assert title in text
    bound = comparison(WORKLOAD, Budget(pcost=1.0), MECHANISMS).bound
    assert f"Dashed: the bound, {format_number(bound)} counts." in text
    assert "Smallest publishable count" not in text
    small.app.session_state["scale_records"] = 50_000
    best = comparison(WORKLOAD, Budget(pcost=1.0), MECHANISMS).frame["rmse"].min()
    assert (
        f"Smallest publishable count at the typical error: QuerySmasher {math.ceil(best / 0.15)}"
        in small.run(small.app).text()
    )
    small.set(compare_quality=True)
    (table,) = (t.value for t in small.app.dataframe if "attributes" in t.value)
    assert table["QuerySmasher"].between(0.0, 1.0).all()
    assert (
        "Four times the privacy cost (pcost) halves"
        in small.set(compare_view="Other budgets").app.get("plotly_chart")[-1].proto.alt
    )
    assert "Relative error by table" in small.set(compare_view="Differences").text()
    assert "Most accurate, of 3 tables" in small.text()


def test_residual_planner_on_other_counts_has_note() -> None:
    chosen = ["querysmasher", "residualplanner"]
    session = run_comparison(open_small_workload(), chosen)
    assert any(part.family.name != "marginal" for g in WORKLOAD.groups for part in g.parts)
    assert views.MARGINALS_NOTE in session.text()
    plain = RequestState(workload=Workload.all_ways(SCHEMA, (1, 2), "marginal"), options=UNIFORM)
    session = run_comparison(Session(plan=permalink.packed(plain)).go("preview"), chosen)
    assert views.MARGINALS_NOTE not in session.text()


def test_ranking_equals_engine_and_offers_all_variants(small: Session) -> None:
    small.set(compare_view="Ranking")
    offered = next(m for m in small.app.multiselect if m.key == "compare_chosen")
    assert offered.options == [title_of(label) for label in variants()]
    result = comparison(WORKLOAD, Budget(pcost=1.0), MECHANISMS)
    best = result.frame.iloc[0]
    assert (
        f"{title_of(best['mechanism'])} is the most accurate of 3 mechanisms with"
        f" {format_number(best['rmse'])} counts" in small.text()
    )
    (reason,) = (
        m.value for m in small.app.markdown if m.value.startswith("**Laplace mechanism:**")
    )
    assert "Laplace noise" in reason
    assert sorted(run_code(small)["results"].plans) == sorted(result.plans)


def test_cached_comparison_is_shown_at_once(small: Session) -> None:
    again = open_small_workload(page="compare").set(compare_chosen=MECHANISMS)
    assert "Done: the results are below" in again.text()
    # After another choice, the page shows the previous results until the comparison is run.
    assert "previous selection" in again.set(compare_chosen=MECHANISMS[:2]).text()
    assert "is the most accurate of 3 mechanisms" in again.text()
    fresh = open_small_workload(page="compare").set(compare_chosen=MECHANISMS[:2])
    assert "is the most accurate of 3" not in fresh.text()  # that was compared in the other session


def test_mechanism_choice_is_copied_to_studio(small: Session) -> None:
    small.set(compare_view="Ranking")
    choice = mechanism_choice(small)
    assert choice.value == "querysmasher"
    # The list starts with the compared mechanisms and their errors.
    costs = format_number(comparison(WORKLOAD, Budget(pcost=1.0), MECHANISMS).frame["rmse"][0])
    assert choice.options[0].startswith(f"QuerySmasher · {costs} counts")
    assert choice.options[-1].endswith("· not compared")
    small.set(**{choice.key: "wff"})
    assert small.studio.mechanism == "wff"
    assert mechanism_choice(small).value == "wff"
    assert small.press("undo").studio.mechanism == "querysmasher"
    version = small.app.session_state["history"].version
    assert version > 0


def test_spread_view_shows_selected_mechanisms(small: Session) -> None:
    small.set(compare_view="Differences", differences_shown="By query")
    small.set(spread_of=["wff", "identity"])
    assert "Smallest 95% quantile" in small.text()
    assert "wff" in small.app.code[-1].value
    assert set(run_code(small)["spreads"]) == {"wff", "identity"}
    assert "Choose at least one mechanism" in small.set(spread_of=[]).text()


def test_pair_view_shows_share_and_ratio(small: Session) -> None:
    small.set(compare_view="Differences", differences_shown="Two mechanisms")
    small.set(pair_a="identity", pair_b="wff")
    metrics = small.metrics()
    one, other = (plan(WORKLOAD, Budget(pcost=1.0), name) for name in ("identity", "wff"))
    worse = worst = 0.0
    for i in range(len(WORKLOAD.groups)):
        ratio = (one.variances(i) / other.variances(i)) ** 0.5
        worse += float((ratio > 1.000001).sum())
        worst = max(worst, float(ratio.max()))
    assert metrics["Queries less accurate under A"] == f"{worse / WORKLOAD.queries:.1%}"
    assert metrics["Worst ratio A / B"] == format_number(worst)
    small.set(pair_group=2)
    # The chart of a group on two attributes has one axis per attribute.
    chart = json.loads(small.app.get("plotly_chart")[-1].proto.spec)
    assert chart["data"][0]["type"] == "heatmap"
    assert not small.errors()
    assert run_code(small)["difference"].worst == pytest.approx(worst, rel=1e-6)


def test_strategy_view_shows_selected_mechanism(small: Session) -> None:
    small.set(compare_view="Strategies", strategy_of_0="identity")
    factor = next(s for s in small.app.selectbox if s.label == "Factor")
    assert "Kronecker product of its factors" in factor.help
    assert "Bright: both cells" in small.text()
    assert "Gram matrix of the strategy" in small.text()
    small.set(strategy_of_0="querysmasher", strategies_shown="Strategy matrix")
    assert not small.errors()
    texts = [m.value.replace("\\", "") for m in small.app.markdown]
    lines = [text for text in texts if "; a record changes up to " in text]
    assert len(lines) == 2  # each picture has its own line
    assert lines[0].startswith("**QuerySmasher:** ")
    code = small.app.code[-1].value
    assert "comparison(" not in code  # only the plans of the two mechanisms are computed
    assert code.count("plan(workload, ") == 2
    assert isinstance(run_code(small)["chosen_plan"], Plan)


def test_two_plans_view_lists_differences(small: Session) -> None:
    small.set(compare_view="Plans", plans_shown="Two plans")
    small.set(diff_first="querysmasher", diff_second_False="identity")
    assert "The mechanism differs: querysmasher and identity." in small.text()
    other = plan(Workload.all_ways(SCHEMA, (1,)), Budget(pcost=4.0))
    small.run(
        small.app.file_uploader(key="diff_file").upload(
            "p.json", other.to_json().encode(), "text/plain"
        )
    )
    small.set(diff_first="current plan", diff_second_True="uploaded file")
    assert "The budget differs: pcost 1 and pcost 4." in small.text()
    assert "1 table is only in the first plan." in small.text()
    assert 'Path("plan.json")' in small.app.code[-1].value
    small.run(small.app.file_uploader(key="diff_file").upload("p.json", b"{}", "text/plain"))
    assert "not a plan file" in small.errors()
    small.set(compare_view="Ranking")


def test_export_menu_offers_every_format(small: Session) -> None:
    small.set(compare_view="Ranking")
    files = [button.proto.label for button in small.app.get("download_button")]
    assert files.count("Download CSV") == files.count("LaTeX") >= 2
    assert "HTML report" in files
    assert [b.label for b in small.app.button].count("SVG") == 2


def test_tied_mechanisms_are_described_without_figure() -> None:
    plain = Workload.all_ways(SCHEMA, (1, 2), "marginal")
    session = Session(plan=permalink.packed(RequestState(workload=plain, options=UNIFORM)))
    run_comparison(session.go("compare"), ["querysmasher", "wff"])
    assert "All 2 mechanisms are equally accurate" in session.text()
    assert "Nothing to choose here" in session.text()
    session.app.session_state["scale_records"] = 1_000
    assert session.run(session.app).text().count("for all mechanisms") == 1
    assert not session.app.get("plotly_chart")
    session.set(compare_view="Differences")
    assert "the same error for every table" in session.text()
    assert not session.app.get("plotly_chart")
    session.set(differences_shown="Two mechanisms")
    assert "the same error for every query" in session.text()
    assert not session.app.get("plotly_chart")
    session.set(compare_view="Ranking").press("use_cumulative")
    cumulative = Workload.all_ways(SCHEMA, (1, 2))
    assert [g.key for g in session.studio.workload.groups] == [g.key for g in cumulative.groups]
    assert session.press("undo").studio.workload == plain


def test_present_plan_has_label_and_bound(small: Session) -> None:
    label, (name, options) = run.current_choice(small.studio)
    assert (label, name, dict(options)) == ("querysmasher", "querysmasher", {})
    assert math.isfinite(comparison(small.studio.workload, Budget(pcost=1.0), MECHANISMS).bound)


def test_selected_budget_sets_mechanism_and_budget(small: Session) -> None:
    before = small.studio
    small.set(compare_view="Other budgets")
    assert "Choose a point" in small.text()
    # AppTest cannot click on a figure. This is the page state after a click on one of its points.
    pcost = budgets.nearby_pcosts(before.budget)[-1]
    small.app.session_state["only_here"][views.POINT] = (before.key, "wff", 10.0)
    # The chart has no such point, for example after the budget unit was changed.
    assert "Choose a point" in small.run(small.app).text()
    small.app.session_state["only_here"][views.POINT] = (before.key, "wff", pcost)
    small.run(small.app)
    result = plan(before.required_workload, Budget(pcost=pcost), "wff")
    epsilon, error = cost(result.budget.epsilon(1e-6)), format_number(result.rmse)
    text = f"{title_of('wff')} at ε {epsilon}: typical error {error} counts"
    assert text in small.text().replace("*", "")
    small.press("use_dot")
    assert (small.studio.mechanism, small.studio.budget) == ("wff", Budget(pcost=pcost))
    assert "typical error" not in small.text()  # the point belonged to the previous budget
    assert small.press("undo").studio is before
