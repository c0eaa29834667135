"""Numbers of papers beside ours, and errors of published tables, rehearsed."""

from __future__ import annotations

import pytest

from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.compare import published
from pages.parts.jobs import work
from pages.parts.shell import budgets as say
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from pages.parts.workload import reference_form
from tests.app.compare.given import frames, ran
from tests.app.session import Session

pytestmark = pytest.mark.usefixtures("comparing")


def test_published_numbers() -> None:
    session = Session().go("compare").set(compare_view="Published numbers", book_row=4)
    work.forget("published|4")
    assert "has not been computed yet" in session.run(session.app).said()
    session.press("book_start")
    session.until(lambda: "Ours" in session.metrics())
    assert float(session.metrics()["Ours / paper"]) == pytest.approx(1.0, abs=2e-3)
    table = next(f for f in frames(session) if "ours / paper" in f)
    assert table.loc[table["workload"] == "CPS 1-way", "ours"].tolist() == pytest.approx([3.135], abs=1e-3)
    assert ran(session)["row"].printed == 3.135


def test_published_errors_are_rehearsed_in_a_worker_and_told_with_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "adaptive_missing", lambda: "AIM and MST need a package.")
    asked = Workload.all_ways(Schema.from_json('{"a": 9, "b": 8}'), (1, 2), "marginal")
    session = Session(plan=link.packed(Studio(workload=asked))).go("compare")
    session.set(compare_view="Published error, simulated")
    assert "AIM and MST need a package." in session.said()
    assert "never the records that are to be protected" in session.said()
    assert next(m for m in session.app.multiselect if m.key == "standing_adaptive").disabled
    session.set(standing_of=["querysmasher", "identity"], standing_rows=2_000, standing_rehearsals=2)
    session.press("standing_start")
    session.until(lambda: "Without a result" in " ".join(h.value for h in session.app.subheader))
    assert session.app.button(key="standing_start").disabled
    found = ran(session)["found"]  # what the page offers as Python makes the same
    session.set(twin_standing=True)
    drawn = next(f for f in frames(session) if "QuerySmasher, published (simulated, biased)" in f)
    own = found.frame[found.frame["way"] == "QuerySmasher, published"]
    assert drawn["QuerySmasher, published (simulated, biased)"].tolist() == pytest.approx(own["error"].tolist())
    reasons = next(f for f in frames(session) if "reason" in f)
    assert set(reasons["way"]) == {"Identity, published"}
    assert all(words in session.said() for words in found.words(lambda p: say.said(Budget(pcost=p))))
    session.set(standing_reference=reference_form.PUBLIC)
    assert session.app.button(key="standing_start").disabled
    assert "nothing to compare yet" in Session().go("compare").set(compare_view="Published error, simulated").said()
