"""Release page: creation of ledgers, declaration and change of totals."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.ledger import Ledger
from engine.ledger.signing import key_fingerprint
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.shell import permalink
from pages.parts.shell.budgets import SUM_NOTE
from pages.parts.shell.history import RequestState
from tests.app.release.sessions import PAYER, SURVEY, open_confirmation, open_step
from tests.app.session import UNIFORM, Session, demo_schema, wait


def test_ledger_and_dataset_are_created_by_buttons(tmp_path: Path) -> None:
    place = tmp_path / "new.ledger"
    session = open_step(place)
    assert f"There is no ledger {place}" in session.text()
    assert not place.exists()
    assert "choose or create the dataset" in session.text()
    assert next(b for b in session.app.button if b.key == "declare").disabled
    assert "enter the dataset name" in session.text()
    session.set(dataset_unit="pcost")
    session.set(dataset_name="a", dataset_total=0.0).press("declare")
    assert "pcost was given as 0.0" in session.errors()
    session.set(dataset_total=0.5).press("declare")
    assert not session.errors()
    assert Ledger(place).status("a").total == 0.5
    assert "Release now?" in session.text()  # the next step opens
    assert f"Created the ledger {place} with the dataset a, whose total is" in session.text()
    assert key_fingerprint(Ledger(place).public_key()) in session.text()


def test_proposed_total_pays_for_one_release(tmp_path: Path) -> None:
    session = open_step(tmp_path / "new.ledger")
    planned = session.studio.budget
    for unit, total in {"mu": planned.mu, "rho": planned.rho, "pcost": planned.pcost}.items():
        (box,) = (
            n for n in session.set(dataset_unit=unit).app.number_input if n.key == "dataset_total"
        )
        assert total <= box.value <= 1.001 * total
        assert "Enough for 1 release" in session.text()
        assert " each)" not in session.text()
    # the unit is pcost, and the plan costs 1
    assert "Enough for 3 releases" in session.set(dataset_total=3.2).text()


def test_total_and_spent_amount_are_shown_in_chosen_unit(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("a", total=Budget(pcost=0.5))
    session = open_step(book.path).set(dataset="a")
    # Epsilon is the default unit. Epsilons of several releases cannot be added, as `SUM_NOTE` says.
    assert f"{SUM_NOTE} The bar shows privacy costs." in session.text()
    assert SUM_NOTE not in session.set(budget_unit="rho").text()
    session.set(budget_unit="epsilon, delta")
    assert "ε 0 of ε 3.308 spent" in session.text()
    # In the narrow sidebar, a line does not end between unit and number.
    bar = next(p.text for p in session.app.get("progress"))
    assert ": ε\N{NO-BREAK SPACE}0 of ε\N{NO-BREAK SPACE}3.308 spent" in bar


def test_second_dataset_needs_another_name(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("a", total=Budget(pcost=0.5))
    session = open_step(book.path)
    session.set(dataset_name="A", dataset_total=9.0).press("declare")
    assert "already" in session.errors()
    session.set(dataset_name="b").press("declare")
    assert "Registered the dataset b with a total of" in session.text()
    assert "Registered" not in session.set(dataset="a").text()


def test_declared_total_starts_at_requested_delta(tmp_path: Path) -> None:
    workload = Workload.all_ways(demo_schema("survey"), (1,))
    studio = RequestState(workload=workload, budget=Budget.approx(1.0, 1e-9), options=UNIFORM)
    path = str(tmp_path / "new.ledger")
    session = wait(
        Session(plan=permalink.packed(studio)).go("release", step=PAYER, ledger_path=path)
    )
    session.set(dataset_unit="epsilon, delta", dataset_name="a")
    assert "Enough for 1 release" in session.text()
    session.press("declare")
    assert not session.errors()
    status = Ledger(tmp_path / "new.ledger").status("a")
    assert status.definition.delta == 1e-9
    assert status.pays_for(Budget.approx(1.0, 1e-9).pcost) == 1


@pytest.mark.parametrize("content", [b"", b"not a ledger", b"SQLite format 3\x00" + b"\x00" * 4000])
def test_damaged_ledger_offers_no_new_budget(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "bad.ledger"
    place.write_bytes(content)
    session = open_step(place)
    assert session.errors()
    assert not any(b.key in ("release", "declare") for b in session.app.button)
    assert place.read_bytes() == content


def test_rounding_rest_of_total_is_nothing_left(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    book.spend(dataset="survey", key="a", pcost=1.0 - 1e-10, plan_hash="p")
    text = open_confirmation(open_step(book.path, records_path=SURVEY)).text()
    assert "nothing is left of the total, and the plan costs ε 4.887" in text


def test_total_change_requires_name_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "office.ledger"
    book = Ledger.create(path)
    book.add_dataset("people", total=Budget(pcost=1.0))
    book.spend(dataset="people", key="a", pcost=0.75, plan_hash="p")
    session = open_step(path).set(budget_unit="rho", dataset="people")
    (box,) = (n for n in session.app.number_input if n.key.startswith("new_people_"))
    # The box shows rho, which is half of pcost: the total is pcost 1.0, of which 0.75 is spent.
    assert (box.value, box.min) == (0.5, 0.375)
    session.run(box.set_value(1.25))
    assert "name" in session.press("change_total").errors()  # no name of the person was entered
    session.set(total_by="R. Office", total_reason="a second wave").press("change_total")
    assert not session.errors()
    assert book.status("people").left == 2 * 1.25 - 0.75
    assert "rho 1.25, changed by R. Office: a second wave" in session.text()


def test_declare_confusable_name_warns_before_the_press(tmp_path: Path) -> None:
    path = tmp_path / "office.ledger"
    Ledger.create(path).add_dataset("adult", total=Budget(pcost=1.0))
    session = open_step(path).set(dataset_name="\u0430dult")
    assert any("looks like" in warning.value for warning in session.app.warning)
    assert not any("looks like" in w.value for w in session.set(dataset_name="people").app.warning)
    assert "invisible" in session.set(dataset_name="adult\ufe0f").press("declare").errors()
    assert [status.dataset for status in Ledger(path).datasets()] == ["adult"]
