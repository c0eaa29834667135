"""Release page: rehearsals on simulated records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from engine.postprocess.uncertainty import REASONS
from engine.workload import Attribute, Schema, Workload
from pages.parts.jobs import tasks
from pages.parts.release import download_view
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from pages.parts.workload import record_count_form
from tests.app.release.sessions import (
    FILE,
    SURVEY,
    answers_of_first_group,
    answers_on_page,
)
from tests.app.session import Session, open_demo, wait


def test_release_page_starts_with_rehearsal_of_plan() -> None:
    session = Session().go("release")
    assert "A new release needs a plan" in session.text()
    assert any(box.key == "ledger_path" for box in session.app.text_input)
    session.app.session_state["history"] = open_demo("survey", (1,)).app.session_state["history"]
    assert "Not rehearsed yet" in session.go("preview").go("release").text()


def test_rehearsal_names_the_number_of_records_an_example_until_one_is_entered() -> None:
    schema = Schema([Attribute.categorical("sex", ["F", "M"])])
    studio = RequestState(workload=Workload(schema).add("sex"))
    session = wait(Session(plan=permalink.packed(studio)).go("release"))
    wait(session.press("rehearse"))
    assert session.app.session_state["rows"] == 10_000
    assert "10,000 records are assumed: enter your own number" in session.text()
    wait(session.set(rows=9_000).press("rehearse"))
    assert "are assumed" not in session.text()
    survey = open_demo("survey", (1,), page="release")
    assert "are assumed" not in wait(survey.set(seed=7).press("rehearse")).text()


def test_file_step_proposes_records_of_demo() -> None:
    session = open_demo("survey", (1,), page="release", step=FILE)
    session.press("use_demo_records")
    assert session.app.session_state["records_path"] == SURVEY
    assert not any(b.key == "use_demo_records" for b in session.app.button)
    wait(session.press("check_records"))
    assert "944" in session.text()
    session = open_demo("cps", (1,), page="release", step=FILE)
    assert not any(b.key == "use_demo_records" for b in session.app.button)


def test_question_to_rehearsal_outlives_visit_to_other_page() -> None:
    session = open_demo("survey", (1,), page="release")
    wait(session.set(rows=500).press("rehearse"))
    session.set(
        rehearsal_view="Ask a question",
        rehearsal_ask_how="Write a condition",
        rehearsal_ask_names=["age"],
        rehearsal_ask_text="age >= 30",
    )
    answer = session.metrics()["Answer (counts)"]
    session.go("start").go("release", rehearsal_view="Ask a question")
    assert session.metrics()["Answer (counts)"] == answer
    # A name that is not in the schema is dropped.
    session.go("start").go("release", rehearsal_ask_names=["age", "removed"])
    assert session.app.multiselect(key="rehearsal_ask_names").value == ["age"]


def test_answers_of_long_table_are_searched_by_attribute() -> None:
    schema = Schema(
        [
            Attribute.dates("day", "2023-01-01", "2023-03-31", unit="day"),
            Attribute.numeric("age", range(31), integer=True),
        ]
    )
    workload = Workload(schema).add(("day", "age"), {"day": "prefix", "age": "range"})
    studio = RequestState(workload=workload)
    session = wait(Session(plan=permalink.packed(studio)).go("release"))
    wait(session.set(rows=500).press("rehearse"))
    n_age_ranges = 30 * 31 // 2  # of 30 cells
    session.set(rehearsal_find_0_0="02-07")
    assert f"Answers 1 to 100 of {n_age_ranges}." in session.text()
    table = answers_on_page(session)
    assert table["query"].str.startswith("day <= 2023-02-07 and").all()
    session.set(rehearsal_find_0_0="", rehearsal_find_0_1="7 <= AGE < 10")
    table = answers_on_page(session)
    assert len(table) == 31 + 28 + 31  # days from January to March
    assert table["query"].str.endswith("and 7 <= age < 10").all()
    session.set(rehearsal_find_0_0="02-07")
    (answer,) = answers_on_page(session)["answer"]
    assert answer == table["answer"][31 + 7 - 1]
    session.set(rehearsal_find_0_0="1999")
    assert "No query has this text" in session.text()


def test_cells_of_long_range_are_chosen_by_their_names() -> None:
    schema = Schema([Attribute.dates("day", "2023-01-01", "2023-03-31", unit="day")])
    studio = RequestState(workload=Workload(schema).add("day"))
    session = wait(Session(plan=permalink.packed(studio)).go("release"))
    wait(session.set(rows=500).press("rehearse"))
    session.set(rehearsal_view="Ask a question", rehearsal_ask_names=["day"])
    session.set(rehearsal_ask_day_first=31, rehearsal_ask_day_last=58)
    assert "day in 2023-02-01..2023-02-28" in session.text()
    # If the last day is before the first day, the two are exchanged.
    session.set(rehearsal_ask_day_last=0)
    assert "day in 2023-01-01..2023-02-01" in session.text()


def open_rehearsal(**fields: object) -> Session:
    """Rehearse a release on 500 simulated records, and set fields on the page of the result."""
    session = open_demo("survey", (1,), page="release")
    wait(session.set(rows=500).press("rehearse"))
    return session.set(**fields)


def test_rehearsal_shows_true_counts_beside_answers() -> None:
    session = open_demo("survey", (1,), page="release")
    assert "Not rehearsed yet" in session.text()
    wait(session.set(rows=500).press("rehearse"))
    assert "REHEARSAL on simulated records" in session.text()
    assert "so the share on one page can differ from 95%" in session.text()
    table = answers_on_page(session)
    assert list(table) == ["query", "answer", "std", "low", "high", "truth"]
    records = tasks.synthetic(session.studio.schema, 500, 1)
    assert table["truth"].iloc[-1] == (records["age"] < 100).sum()
    assert (abs(table["answer"] - table["truth"]) < 6 * table["std"]).all()
    assert "rehearsal=True" in session.app.code[-1].value


def test_question_to_rehearsal_shows_interval_or_difference() -> None:
    session = open_rehearsal(rehearsal_view="Ask a question", rehearsal_ask_names=["vote"])
    assert "(rehearsal)" in session.text()
    assert "95% interval:" in session.text()
    # A narrow page would cut off values of more than 12 characters.
    assert max(map(len, session.metrics().values())) <= 12
    session.set(rehearsal_together="minus", rehearsal_other_names=["vote"])
    assert ") minus (" in session.text()
    # both questions are equal, so their difference has no error
    assert next(m.value for m in session.app.metric if m.label == "Standard error").startswith("0")


def test_coverage_of_rehearsal_stays_shown_for_other_number() -> None:
    session = open_rehearsal(rehearsal_view="Check interval coverage", coverage_rehearsals=20)
    wait(session.press("coverage_start"))
    assert "In 20 rehearsals" in session.text()
    assert "In 20 rehearsals" in session.set(coverage_rehearsals=30).text()


def test_suppression_in_published_tables_of_rehearsal_is_explained() -> None:
    session = open_rehearsal(rehearsal_view="Published tables", rehearsal_simulate=True)
    assert not session.app.get("download_button")
    assert "cells to fit, with subtotals and the total: about" in session.text()
    assert "Suppressed: counts with a CV above 30%" in session.text()
    wait(session.press("rehearsal_publish"))
    suppressed = int((session.app.dataframe[0].value["flag"] == "suppressed").sum())
    assert "are suppressed (CV above 30%) and" in session.text()
    all_suppressed = int(re.search(r"answers, ([0-9,]+) are", session.text())[1])
    assert suppressed <= all_suppressed
    explanation = "It does not protect people; the noise does."
    assert (explanation in session.text()) == (all_suppressed > 0)
    session.set(**{record_count_form.PUBLISHABLE: 1.0, record_count_form.DOUBTFUL: 2.0})
    wait(session.press("rehearsal_publish"))
    assert explanation in session.text()


def test_published_tables_of_rehearsal_are_shown_and_offered_as_files() -> None:
    session = open_rehearsal()
    table = answers_on_page(session)
    session.set(rehearsal_view="Published tables", rehearsal_simulate=True)
    wait(session.press("rehearsal_publish"))
    sides = session.app.dataframe[0].value
    # the column is left out if all reasons are empty
    reasons = set(sides["reason"].dropna()) if "reason" in sides else set()
    assert reasons <= {"", *REASONS.values()}
    assert not reasons & {*REASONS} - {""}
    np.testing.assert_array_equal(sides["answer"], table["answer"])
    assert (sides["published"].dropna() >= 0).all()
    assert any("criterion" in frame.value for frame in session.app.dataframe)
    assert "cost no budget" in session.text()
    files = {b.label for b in session.app.get("download_button") if not b.disabled}
    assert files >= {
        "Package with tables (zip)",
        "Tables (zip)",
        "Workbook (xlsx)",
        "Published (CSV)",
        "Published (Parquet)",
        "Simulated records",
    }
    summary = session.app.dataframe[2].value
    assert list(summary)[:3] == ["table", "type", "answers"]
    unmeasured = set(summary.loc[summary["measured"] == 0, "table"])
    assert all(name in session.text() for name in unmeasured)
    assert ("No signal above the noise" in session.text()) == bool(unmeasured)
    published = session.set(rehearsal_shown="Published").app.dataframe[0].value
    assert set(sides) - set(published) == {"answer", "std", "low", "high"}
    # After a visit to another view, the options are the same, so the same tables are shown.
    session.set(rehearsal_view="Answers").set(rehearsal_view="Published tables")
    assert session.app.session_state["rehearsal_simulate"]
    assert files <= {b.label for b in session.app.get("download_button") if not b.disabled}


def test_other_rule_needs_another_publication_of_rehearsal() -> None:
    session = open_rehearsal(rehearsal_view="Published tables")
    wait(session.press("rehearsal_publish"))
    session.set(rehearsal_least=100.0)
    assert "These tables have the former options" in session.text()
    wait(session.press("rehearsal_publish"))
    session.set(rehearsal_shown="Both", rehearsal_published_group=5)
    counts = session.app.dataframe[0].value["published"]
    assert counts.isna().any()
    assert f"In this table, {counts.isna().sum()} of {len(counts)} counts are" in session.text()
    assert f"the counts shown sum to {counts.sum():,.1f}" in session.text()
    session.set(rehearsal_least=1e6)
    session.set(scale_publishable=50.0)  # above the limit of doubtful counts
    assert "publishable" in session.errors()
    assert not any(b.key == "rehearsal_publish" for b in session.app.button)


def test_download_of_many_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_view, "MAX_DOWNLOAD_ANSWERS", 1)
    session = open_rehearsal(rehearsal_view="Download")
    assert "More than 1 answers" in session.text()


def test_former_rehearsal_is_shown_until_next_one() -> None:
    session = open_rehearsal()
    table = answers_on_page(session)
    session.set(rows=501)
    assert "Not rehearsed yet" not in session.text()
    assert "former rehearsal, with 500 records and seed 1" in session.text()
    pd.testing.assert_frame_equal(answers_on_page(session), table)
    wait(session.press("rehearse"))
    assert "former rehearsal" not in session.text()
    assert "501 records, seed 1" in session.text()


def sex_by_age() -> Workload:
    """Return a workload of the table of sex and of the table of sex and age."""
    schema = Schema(
        [
            Attribute.categorical("sex", ["F", "M"]),
            Attribute.numeric("age", [0, 10, 20, 120], integer=True),
        ]
    )
    return Workload(schema).add("sex", "marginal").add(("sex", "age"), "marginal")


def open_rehearsal_of(workload: Workload) -> Session:
    """Rehearse the release of a workload on 500 simulated records."""
    session = Session(plan=permalink.packed(RequestState(workload=workload))).go("release")
    return wait(session.set(rows=500).press("rehearse"))


def test_two_attributes_are_shown_as_cross_table(
    downloads: dict[str, Callable[[], bytes]],
) -> None:
    session = open_rehearsal_of(sex_by_age())
    assert "Cross table" not in str(session.app.expander)
    session.set(rehearsal_group=1)
    cells = answers_on_page(session)["answer"].to_numpy().reshape(2, 3)
    crossed = session.app.dataframe[1].value
    assert list(crossed) == ["age \\ sex", "F", "M"]
    assert crossed["age \\ sex"].tolist() == ["0–9", "10–19", "20–120"]
    np.testing.assert_array_equal(crossed[["F", "M"]].to_numpy(), cells.T)
    (name,) = (name for name in downloads if name.endswith("answers_page_crosstab.csv"))
    assert downloads[name]().decode().startswith("age \\ sex,F,M\n0 to 9,")
    session.set(rehearsal_view="Published tables", rehearsal_whole=True)
    wait(session.press("rehearsal_publish")).set(rehearsal_published_group=1)
    published = session.app.dataframe[0].value["published"].to_numpy().reshape(2, 3)
    crossed = session.app.dataframe[1].value
    np.testing.assert_array_equal(crossed[["F", "M"]].to_numpy(), published.T)


def test_published_tables_state_total_and_bias_of_cells() -> None:
    session = open_rehearsal_of(sex_by_age())
    session.set(rehearsal_view="Published tables", rehearsal_whole=True)
    wait(session.press("rehearsal_publish")).set(rehearsal_published_group=1)
    published = session.app.dataframe[0].value["published"]
    total = re.search(r"All tables sum to (\d+) records, the unbiased answers", session.text())
    assert total is not None
    assert int(total[1]) >= np.nansum(published)
    bias = session.set(rehearsal_published_group=0).app.dataframe[1].value
    assert (bias["cells"] > 0).all()
    assert "No cells of 0 to 1" in session.text()
    assert "from 30 simulations" in session.text()


def test_bins_of_integers_are_integers_on_screen_and_in_files(
    downloads: dict[str, Callable[[], bytes]],
) -> None:
    age = Attribute.numeric("age", [0, 10, 20, 120], integer=True)
    request = RequestState(workload=Workload(Schema([age])).add("age", "marginal"))
    session = Session(plan=permalink.packed(request)).go("release", rows=100)
    table = answers_on_page(wait(session.press("rehearse")))
    assert list(table["query"]) == ["age in 0–9", "age in 10–19", "age in 20–120"]
    (page,) = (name for name in downloads if name.endswith("answers_page.csv"))
    assert "age in 0 to 9" in downloads[page]().decode()


def test_rehearsal_has_numbers_of_its_python_code() -> None:
    # Records and noise depend only on the plan, the number of records and the seed, so code that
    # runs outside the session gives the same numbers.
    session = open_demo("survey", (1,), page="release")
    table = answers_on_page(wait(session.set(seed=2).press("rehearse")))
    names: dict = {}
    exec(session.app.code[-1].value, names)
    expected = answers_of_first_group(names["measurement"])
    np.testing.assert_array_equal(table["answer"], expected["answer"])
    # Noise depends on all digits of the plan, so the page shows a digest of the plan.
    digest = hashlib.sha256(names["workload_plan"].to_json().encode()).hexdigest()
    assert f"Plan {digest[:8]}, 944 records, seed 2." in session.text()


def test_rehearsal_has_records_of_demo_or_expected_records() -> None:
    session = open_demo("survey", (1,), page="release")
    rows = session.app.number_input(key="rows")
    assert rows.value == 944
    first, following = (
        next(b for b in session.app.button if b.key == key) for key in ("rehearse", "step_next")
    )
    assert (first.proto.type, following.proto.type) == ("primary", "secondary")
    session.go("release", scale_records=3_000)
    assert session.app.number_input(key="rows").value == 3_000
    session.set(rows=500).go("release", scale_records=4_000)
    assert session.app.number_input(key="rows").value == 500
    wait(session.press("rehearse"))
    following = next(b for b in session.app.button if b.key == "step_next")
    assert following.proto.type == "primary"


def test_limits_of_answers_are_changed_beside_answers() -> None:
    session = open_demo("survey", (1,), page="release")
    wait(session.press("rehearse"))
    assert "CV at most 15%" in session.text()
    assert "Change these limits in Confidence and limits." in session.text()
    session.set(rehearsal_limits_scale_publishable=20.0)
    assert "CV at most 20%" in session.text()
    session.set(rehearsal_view="Published tables")
    assert session.app.number_input(key="scale_publishable").value == 20.0
