"""Preview page: warning about tables that the typical error hides."""

from __future__ import annotations

import pytest

from engine import analysis
from engine._format import format_number
from engine.analysis.what_if import Request
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.preview import hidden_table_view
from tests.app.preview.sessions import open_preview
from tests.app.session import demo_schema

PAIRS = Workload.all_ways(demo_schema("cps"), (1, 2), "marginal")


@pytest.mark.usefixtures("keeps_weight_search")
def test_hidden_table_is_named_and_weights_are_applied() -> None:
    session = open_preview(PAIRS)
    before = plan(PAIRS, Budget(pcost=1.0))
    hidden = analysis.hidden_groups(before)
    assert analysis.hidden_text(before, hidden) in session.text()
    session.until(lambda: any(b.key == "hidden_apply" for b in session.app.button))
    proposal = analysis.propose_weights(Request(workload=PAIRS, budget=Budget(pcost=1.0)), hidden)
    assert proposal is not None
    assert analysis.proposal_text(proposal, len(hidden)) in session.text()
    session.press("hidden_apply")
    changed = session.studio.required_workload
    assert [i for i, g in enumerate(changed.groups) if g.weight > 1.0] == sorted(hidden)
    assert session.metrics()["Typical error (counts)"] == format_number(proposal.typical)
    assert session.press("undo").studio.required_workload == PAIRS


def test_even_errors_give_no_warning() -> None:
    session = open_preview(Workload.all_ways(demo_schema("cps"), (1,), "marginal"))
    assert not session.app.warning
    assert not any(b.key == "hidden_apply" for b in session.app.button)


def test_slow_plan_is_warned_of_without_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[str] = []
    monkeypatch.setattr(hidden_table_view, "_search", lambda key, *_: searches.append(key))
    monkeypatch.setattr(hidden_table_view, "SEARCH_S", -1.0)
    assert "2 queries on sex have" in open_preview(PAIRS).text()
    assert searches == []
