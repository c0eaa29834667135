"""Page Compare: published numbers."""

from __future__ import annotations

import pytest

from pages.parts.jobs import job_queue
from tests.app.compare.sessions import data_frames, run_code
from tests.app.session import Session

pytestmark = pytest.mark.usefixtures("keeps_comparisons")


def test_published_numbers_are_reproduced() -> None:
    session = Session().go("compare").set(compare_view="Plans", plans_shown="Published results")
    published_rmse = 3.135
    session.set(book_row=4)  # CPS, 1-way marginals
    job_queue.forget("published|4")
    assert "Not computed yet" in session.run(session.app).text()
    session.press("book_start")
    session.until(lambda: "Ours" in session.metrics())
    assert float(session.metrics()["Ours / paper"]) == pytest.approx(1.0, abs=2e-3)
    table = next(f for f in data_frames(session) if "ours / paper" in f)
    assert table.loc[table["workload"] == "CPS 1-way", "ours"].tolist() == pytest.approx(
        [published_rmse], abs=1e-3
    )
    assert run_code(session)["row"].printed == published_rmse
