"""Several rows per person: person column, contribution bound and totals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from demo_data.make_synthetic import synthetic
from engine._format import deltas_as_powers
from engine.ledger import Ledger
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.jobs import job_queue
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.coarse.sessions import record_decision, run_finish, spent_pcosts
from tests.app.release.sessions import (
    FILE,
    PAYER,
    is_release_disabled,
    open_confirmation,
    open_result,
)
from tests.app.session import UNIFORM, Session, wait

SCHEMA = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3)])
BUDGET = Budget(pcost=0.4, rows_per_person=3)
PEOPLE, ROWS = 600, 3_000
INPUTS = ("text_input", "number_input")


@pytest.fixture
def panel(tmp_path: Path) -> Path:
    place = tmp_path / "panel.csv"
    synthetic(SCHEMA, ROWS, seed=3).assign(pid=[i % PEOPLE for i in range(ROWS)]).to_csv(
        place, index=False
    )
    return place


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    new_ledger = Ledger.create(tmp_path / "office.ledger")
    new_ledger.add_dataset("office", total=Budget(pcost=2.0, rows_per_person=3))
    return new_ledger


def open_page(page: str, budget: Budget = BUDGET, **fields: object) -> Session:
    workload = Workload(SCHEMA).add(("a", "b"), "marginal")
    return Session(
        plan=permalink.packed(RequestState(workload=workload, budget=budget, options=UNIFORM))
    ).go(page, **fields)


def fill_form(session: Session, **values: object) -> Session:
    """Fill in fields and run the page once."""
    app = session.app
    inputs = [*app.text_input, *app.number_input, *app.radio, *app.selectbox]
    for key, value in values.items():
        next(e for e in inputs if e.key == key).set_value(value)
    return session.run(app)


def open_release(
    ledger: Ledger, records: Path, budget: Budget = BUDGET, **fields: object
) -> Session:
    place = {"step": FILE, "ledger_path": str(ledger.path), "records_path": str(records)}
    return open_page("release", budget, **place, **fields)


def confirm_release(session: Session) -> Session:
    """Open the step of the confirmation and type the name of the dataset."""
    return open_confirmation(session, "office").set(confirmation="office")


def open_look(ledger: Ledger, records: Path, **fields: object) -> Session:
    place = {
        "coarse_step": "5. Who pays",
        "ledger_path": str(ledger.path),
        "records_path": str(records),
    }
    session = open_page("coarse", **place, **fields).set(dataset="office")
    return session.set(coarse_step="6. Measure").set(coarse_confirmation="office")


def test_release_caps_rows_and_reports_once(ledger: Ledger, panel: Path) -> None:
    session = open_release(ledger, panel)
    assert "enter the person ID column" in session.text()
    assert is_release_disabled(confirm_release(session))
    assert "enter the person ID column" in session.text()
    assert "up to 3 rows, is protected together" in session.text()
    assert not is_release_disabled(confirm_release(session.set(step=FILE).set(person_column="pid")))
    assert "person='pid'" in session.app.code[-1].value
    wait(session.press("release"))
    counted, over_cap = 3 * PEOPLE, ROWS - 3 * PEOPLE
    summary = (
        f"= counted {counted:,} + dropped 0 + over the cap {over_cap:,}"
        f" ({PEOPLE} of {PEOPLE} persons)."
    )
    assert summary in session.text()
    other = confirm_release(open_page("release", step=PAYER, ledger_path=str(ledger.path)))
    assert "Released for office" in open_result(other).text()
    assert "over the cap" not in other.text()
    assert abs(session.app.dataframe[0].value["answer"].sum() - counted) < 600


@pytest.mark.full
def test_check_caps_rows_like_the_release(ledger: Ledger, panel: Path) -> None:
    session = open_release(ledger, panel).set(person_column="pid")
    wait(session.press("check_records"))
    # 3 rows of each person are counted, and the others are over the cap
    over_cap = ROWS - 3 * PEOPLE
    counted = f"counted {3 * PEOPLE:,} + dropped 0 + over the cap {over_cap:,}"
    assert counted in session.text()


def test_declared_row_bound_is_accepted_per_unit(ledger: Ledger, panel: Path) -> None:
    session = confirm_release(open_release(ledger, panel).set(person_how=False))
    assert not is_release_disabled(session)
    assert ", person='" not in session.app.code[-1].value
    single = confirm_release(open_release(ledger, panel, Budget(pcost=0.4)))
    assert is_release_disabled(single)
    assert "cannot be charged" in single.text()


def test_schema_page_declares_person_column(ledger: Ledger, panel: Path) -> None:
    session = open_page("schema", Budget(pcost=0.4))
    box = {
        kind: next(e.key for e in session.app.get(kind) if str(e.key).startswith("unit_"))
        for kind in INPUTS
    }
    fill_form(session, **{box["text_input"]: "a"})
    assert "is also an attribute" in session.errors()
    fill_form(session, **{box["text_input"]: "pid", box["number_input"]: 3})
    declared = session.studio.schema
    assert (declared.person, declared.rows_per_person, declared.attributes) == (
        "pid",
        3,
        SCHEMA.attributes,
    )
    assert session.studio.budget == BUDGET
    assert "person='pid', rows_per_person=3)" in session.app.code[-1].value
    session.go("preview")
    rows = next(e for e in session.app.number_input if str(e.key).startswith("budget_rows"))
    assert rows.value == 3
    assert "will count" not in session.text()
    session.run(rows.set_value(2))
    assert "at most 2 of each person will be counted" in session.text().replace("\\", "")
    session.press("undo").go("release").set(step=FILE, ledger_path=str(ledger.path))
    session.set(records_how="File on the server").set(records_path=str(panel))
    assert "At most 3 rows per person will count" in session.text()
    assert not any(r.key == "person_how" for r in session.app.radio)
    assert not is_release_disabled(confirm_release(session))


def test_structural_zero_rules_are_checked_when_entered() -> None:
    session = open_page("schema")
    box = next(e.key for e in session.app.text_area if str(e.key).startswith("rules_"))
    session.set(**{box: "a == 9"})
    assert "holds for no cell" in session.errors()
    assert session.studio.schema == SCHEMA
    session.set(**{box: "a == 0 and b >= 1\n\n"})
    assert session.studio.schema == SCHEMA.with_facts(impossible=["a == 0 and b >= 1"])
    assert "impossible=['a == 0 and b >= 1'])" in session.app.code[-1].value
    assert not session.errors()


def test_invariants_are_entered_and_weaken_guarantee() -> None:
    session = open_page("schema")
    box = next(e.key for e in session.app.text_area if str(e.key).startswith("exact_"))
    session.set(**{box: "a,n\n0,-3"})
    assert session.errors()
    assert session.studio.schema == SCHEMA
    session.set(**{box: "n\n12\n"})
    assert session.studio.schema == SCHEMA.with_facts(invariants=[([], 12)])
    assert "subspace differential privacy" in session.text()
    assert "invariants=[([], [12])])" in session.app.code[-1].value


def test_invariants_are_read_from_spreadsheet_files() -> None:
    session = open_page("schema")

    def give(content: bytes) -> None:
        box = next(e for e in session.app.file_uploader if str(e.key).startswith("exact_file_"))
        session.run(box.upload("totals.csv", content, "text/csv"))

    give("n;größe\n12;1\n".encode("cp1252"))
    assert "is not UTF-8" in session.errors()
    assert session.studio.schema == SCHEMA
    give("b;n\n0;3\n1;4\n2;5\n".encode("utf-16"))
    assert session.studio.schema == SCHEMA.with_facts(invariants=[(["b"], [3, 4, 5])])


def test_look_requires_the_person_column(ledger: Ledger, panel: Path) -> None:
    session = open_look(ledger, panel)
    assert "enter the person ID column" in session.text()
    session.set(coarse_step="4. File").set(person_column="pid").set(coarse_step="6. Measure")
    assert "up to 3 rows, is protected together" in session.text()
    assert "person='pid'" in session.app.code[-1].value


@pytest.mark.full
def test_changed_records_are_charged_for_the_rest(ledger: Ledger, panel: Path) -> None:
    session = open_look(ledger, panel, person_column="pid")
    wait(session.press("coarse_look"))
    over_cap = ROWS - 3 * PEOPLE
    assert f"over the cap {over_cap:,}" in session.text()
    record_decision(session)
    frame = pd.read_csv(panel)
    frame[frame["pid"] > 0].to_csv(panel.with_name("corrected.csv"), index=False)
    run_finish(session.set(records_path=str(panel.with_name("corrected.csv"))))
    assert "not the records of the first measurement" in session.errors()
    assert len(spent_pcosts(ledger)) == 1
    run_finish(session.set(coarse_charge_1=True))
    assert "charged alone" in " ".join(w.value for w in session.app.warning)
    # person 0 had 2 rows over the cap
    assert f"over the cap {over_cap - 2:,}" in session.text(), (
        "the rest must use the row bound of the look"
    )
    assert len(spent_pcosts(ledger)) == 2
    # A new session reads the maximum number of rows per person from the ledger.
    for job in list(job_queue._JOBS):
        job_queue.forget(job)
    again = (
        Session().go("coarse").set(coarse_step="Past measurements", ledger_path=str(ledger.path))
    )
    again.press("coarse_show")
    assert any(r.key == "person_how" for r in again.app.radio)


@pytest.fixture
def count_table(tmp_path: Path) -> Path:
    place = tmp_path / "counted.csv"
    # 12 rows, whose counts sum to 510
    cells = [(a, b, 40 + a + b) for a in range(4) for b in range(3)]
    pd.DataFrame(cells, columns=["a", "b", "n"]).to_csv(place, index=False)
    return place


def test_release_reads_the_count_column(ledger: Ledger, count_table: Path) -> None:
    session = open_release(ledger, count_table, person_how=False)
    wait(session.press("check_records"))
    assert "if it is the number of records of each row" in session.errors()
    wait(confirm_release(session).press("release"))
    assert "“Yes, counts of records: n”" in session.errors()
    session.set(step=FILE).set(rows_are="counted")
    assert "enter the column of counts" in session.text()
    session.set(number_column="n", person_how=True, person_column="a")
    assert "no rows of single persons" in session.text()
    session.set(person_how=False, number_column="b")
    assert "also an attribute of the schema" in session.text()
    assert is_release_disabled(confirm_release(session))
    session.set(step=FILE).set(number_column="n")
    assert ", count_column='n'" in session.app.code[-1].value
    wait(session.press("check_records"))
    assert "Rows read 510 = counted 510" in session.text()
    assert "To keep such rows next time" not in session.text()
    wait(confirm_release(session).press("release"))
    assert abs(session.app.dataframe[0].value["answer"].sum() - 510) < 200
    left_out = open_release(ledger, count_table, person_how=False)
    left_out.set(rows_are="ignored", number_column="share, n")
    confirm_release(left_out).set(again_1=True).set(confirmation="office")
    assert ", ignore=['share', 'n']" in left_out.app.code[-1].value
    wait(left_out.press("release"))
    assert "Rows read 12 = counted 12" in left_out.text()


def test_look_and_rest_read_the_count_column(ledger: Ledger, count_table: Path) -> None:
    session = open_look(
        ledger, count_table, person_how=False, rows_are="counted", number_column="n"
    )
    assert session.app.code[-1].value.count(", count_column='n'") == 2
    wait(session.press("coarse_look"))
    assert "Rows read 510 = counted 510" in session.text()
    record_decision(session)
    run_finish(session)
    assert not session.errors()
    assert len(spent_pcosts(ledger)) == 2


Total = tuple[str, dict[str, object], str, float]
TOTALS: list[Total] = [
    ("rho", {}, "zcdp", Budget.zcdp(1.0).pcost),
    ("mu", {}, "gdp", 1.0),
    ("epsilon, delta", {"dataset_delta": 1e-5}, "gdp", Budget.approx(1.0, 1e-5).pcost),
    ("pure epsilon", {"dataset_neighbours": "replace_one"}, "pure", 1.0),
]


@pytest.mark.parametrize(
    "totals",
    [TOTALS[2:], pytest.param(TOTALS[:2], marks=pytest.mark.full)],
    ids=["approximate and pure", "rho and mu"],
)
def test_total_is_declared_in_each_unit(ledger: Ledger, totals: list[Total]) -> None:
    session = open_page("coarse", coarse_step="5. Who pays", ledger_path=str(ledger.path))
    for language, numbers, kind, total in totals:
        session.set(dataset_unit=language)
        fill_form(
            session, dataset_name=kind + language, dataset_total=1.0, dataset_rows=2, **numbers
        ).press("declare")
        assert not session.errors()
        status = Ledger(ledger.path).status(kind + language)
        assert (status.definition.kind, status.total, status.definition.rows_per_person) == (
            kind,
            total,
            2,
        )
        assert status.definition.neighbours == numbers.get("dataset_neighbours", "add_remove")
        # the chosen unit is epsilon, so the text does not name the unit of the ledger
        text = status.definition.describe().replace(" (pcost)", "")
        assert deltas_as_powers(text) in session.text()


def test_budget_takes_rows_per_person_of_dataset(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "budget.ledger")
    book.add_dataset("visits", total=Budget(pcost=1.0, rows_per_person=2))
    session = open_page("release", Budget(pcost=1.0), step=PAYER, ledger_path=str(book.path))
    open_confirmation(session, "visits")
    assert "Plan for adding or removing" in session.text()
    before = session.studio.budget
    assert before.rows_per_person == 1
    session.press("use_unit")
    assert session.studio.budget == replace(before, rows_per_person=2)
    assert not session.app.error
    assert all(button.key != "use_unit" for button in session.app.button)
