"""Exact decimal budgets, repeated keys, dataset names and changes of totals."""

import math
import tempfile
import unicodedata
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import BudgetError, BudgetExceeded, LedgerError
from engine.ledger import Ledger, release_key, verify_ledger
from engine.ledger.balance import JointCharge, TotalDefinition, balance, exact
from engine.ledger.ledger import total_history
from engine.ledger.sqlite_file import Row
from engine.privacy import Budget
from tests.ledger.helpers import spend


def test_spend_is_durable_and_visible_in_reopened_ledger(ledger):
    receipt = spend(ledger)
    reopened = Ledger(ledger.path)
    status = reopened.status("adult")
    assert (status.total, status.spent, status.left) == (1.0, 0.25, 0.75)
    assert status.note == "a first test"
    assert reopened.datasets() == [status]
    assert reopened.find(receipt.key).hash == receipt.hash
    assert reopened.find("never") is None
    assert [row.kind for row in reopened.rows()] == ["ledger", "dataset", "spend"]


def test_spend_with_repeated_key_is_charged_once(ledger):
    first, repeated = spend(ledger), spend(Ledger(ledger.path))
    assert first.fresh
    assert not repeated.fresh
    assert (repeated.seq, repeated.hash) == (first.seq, first.hash)
    assert ledger.status("adult").spent == 0.25
    # a repeated key succeeds even when no budget is left
    spend(ledger, attempt=2, pcost=0.75)
    assert not spend(ledger).fresh


@pytest.mark.parametrize("other", [{"pcost": 0.26}, {"plan_hash": "ffff"}, {"dataset": "census"}])
def test_spend_key_with_other_content_is_refused(ledger, other):
    ledger.add_dataset("census", total=Budget(pcost=1.0))
    key = spend(ledger).key
    with pytest.raises(LedgerError, match="another dataset, plan or cost"):
        ledger.spend(
            **{"dataset": "adult", "key": key, "pcost": 0.25, "plan_hash": "1f3a", **other}
        )
    assert [status.spent for status in ledger.datasets()] == [0.25, 0.0]


@pytest.mark.parametrize("direction", [0.0, 1.0])
def test_spend_cost_with_other_last_digit_is_repeat(ledger, direction):
    first = spend(ledger, pcost=0.3)
    repeated = spend(ledger, pcost=math.nextafter(0.3, direction))
    assert not repeated.fresh
    assert (repeated.seq, repeated.pcost) == (first.seq, 0.3)
    with pytest.raises(LedgerError, match="another dataset, plan or cost"):
        spend(ledger, pcost=0.3 * (1.0 + 1e-9))
    assert ledger.status("adult").spent == 0.3


def test_overspend_is_refused_and_writes_nothing(ledger):
    spend(ledger, pcost=0.9)
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetExceeded, match=r"left of"):
        spend(ledger, attempt=2, pcost=0.11)
    assert ledger.path.read_bytes() == before
    assert spend(ledger, attempt=2, pcost=0.1).fresh


def test_ten_spends_of_one_tenth_exhaust_unit_total(ledger):
    for attempt in range(10):
        spend(ledger, attempt=attempt + 1, pcost=0.1)
    assert ledger.status("adult").spent == 1.0
    assert ledger.status("adult").left == 0.0
    with pytest.raises(BudgetExceeded):
        spend(ledger, attempt=11, pcost=5e-324)  # the smallest positive float


@pytest.mark.parametrize(("cost", "releases"), [(0.3, 1), (0.1, 3), (0.11, 2)])
def test_pays_for_counts_decimal_costs_exactly(ledger, cost, releases):
    spend(ledger, pcost=0.7)
    assert ledger.status("adult").pays_for(cost) == releases


def test_overspend_below_float_resolution_is_refused(ledger):
    spend(ledger, pcost=1e-18)
    spend(ledger, attempt=2, pcost=0.9)
    with pytest.raises(BudgetExceeded):
        spend(ledger, attempt=3, pcost=0.1)
    assert ledger.status("adult").left < 0.1


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.floats(min_value=1e-12, max_value=0.3), min_size=1, max_size=8),
    st.floats(min_value=0.1, max_value=3),
)
def test_remaining_budget_can_be_spent_exactly(costs, total):
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "a")
        ledger.add_dataset("adult", total=Budget(pcost=total))
        spent = Decimal(0)
        for attempt, cost in enumerate(costs, start=1):
            if spent + Decimal(repr(cost)) <= Decimal(repr(total)):
                spend(ledger, attempt=attempt, pcost=cost)
                spent += Decimal(repr(cost))
            else:
                with pytest.raises(BudgetExceeded):
                    spend(ledger, attempt=attempt, pcost=cost)
        status = ledger.status("adult")
        # the float is the smallest one that is not below the exact sum
        assert exact(repr(math.nextafter(status.spent, 0))) <= exact(str(spent))
        assert exact(str(spent)) <= exact(repr(status.spent))
        if status.left > 0:
            with pytest.raises(BudgetExceeded):
                spend(ledger, attempt=98, pcost=math.nextafter(status.left, math.inf))
            spend(ledger, attempt=99, pcost=status.left)
        assert ledger.verify() == ()


@pytest.mark.parametrize("pcost", [0, -1.0, math.nan, math.inf, True, "0.1", None])
def test_spend_invalid_cost_is_refused(ledger, pcost):
    with pytest.raises(BudgetError):
        spend(ledger, pcost=pcost)
    assert [row.kind for row in ledger.rows()] == ["ledger", "dataset"]


def test_unknown_dataset_is_refused(ledger):
    for use in (lambda: spend(ledger, dataset="census"), lambda: ledger.status("census")):
        with pytest.raises(LedgerError, match=r"'census' is not in the ledger.*'adult'"):
            use()


@pytest.mark.parametrize("name", ["adult", "Adult", "ADULT", "ａdult"])
def test_add_dataset_equivalent_name_is_refused(ledger, name):
    with pytest.raises(LedgerError, match="in the ledger already"):
        ledger.add_dataset(name, total=Budget(pcost=5.0))
    assert ledger.status("adult").total == 1.0


def test_dataset_name_is_unicode_normalized(ledger):
    ledger.add_dataset("santé", total=Budget(pcost=2.0))
    assert ledger.status(unicodedata.normalize("NFD", "santé")).total == 2.0


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        " a",
        "a ",
        "a\nb",
        "a\x00b",
        "a\u202eb",
        "a\u2028b",
        "\ud800",
        "x" * 201,
        None,
        5,
        b"a",
    ],
)
def test_hostile_names_are_refused_everywhere(ledger, name):
    uses = [
        lambda: ledger.add_dataset(name, total=Budget(pcost=1.0)),
        lambda: ledger.status(name),
        lambda: release_key(dataset=name, plan_hash="1f3a", attempt=1),
        lambda: ledger.spend(dataset=name, key="k", pcost=0.1, plan_hash="1f3a"),
    ]
    for use in uses:
        with pytest.raises(LedgerError, match="printable characters"):
            use()
    assert [row.kind for row in ledger.rows()] == ["ledger", "dataset"]


@pytest.mark.parametrize("plan_hash", ["", "a b", "../a", "a|1", "x" * 129, None])
def test_hostile_plan_hashes_are_refused(ledger, plan_hash):
    for use in (
        lambda: release_key(dataset="a", plan_hash=plan_hash, attempt=1),
        lambda: spend(ledger, plan_hash=plan_hash),
    ):
        with pytest.raises(LedgerError, match="plan hash"):
            use()


def test_release_key_invalid_attempt_is_refused():
    for attempt in (0, -1, 1.0, True, "1", None):
        with pytest.raises(LedgerError, match="whole number from 1"):
            release_key(dataset="adult", plan_hash="1f3a", attempt=attempt)


@pytest.mark.parametrize(
    "fields", [{"kind": "rho"}, {"rows_per_person": 0}, {"neighbours": "either"}]
)
def test_total_definition_invalid_field_is_refused(fields):
    with pytest.raises(LedgerError, match="of the total"):
        TotalDefinition(**fields)


def test_note_is_stored_in_chain_and_costs_nothing(ledger):
    ledger.note(dataset="adult", kind="decision", text="coarser ages were chosen")
    assert ledger.rows()[-1].kind == "note:decision"
    assert ledger.status("adult").spent == 0.0
    assert ledger.verify() == ()
    for kind, text in (
        ("spend", ""),
        ("Decision", "x"),
        ("", "x"),
        ("decision", "two\nlines"),
        (None, "x"),
    ):
        with pytest.raises(LedgerError):
            ledger.note(dataset="adult", kind=kind, text=text)


def test_change_total_stores_person_and_reason(ledger):
    ledger.spend(dataset="adult", key="a", pcost=0.75, plan_hash="p")
    with pytest.raises(BudgetExceeded):
        ledger.spend(dataset="adult", key="b", pcost=0.5, plan_hash="p")
    ledger.change_total("adult", total=Budget(pcost=2.0), by="R. Office", reason="a second wave")
    assert ledger.status("adult").left == 1.25
    assert ledger.spend(dataset="adult", key="b", pcost=0.5, plan_hash="p").fresh
    ledger.change_total("adult", total=Budget(pcost=1.25), by="R. Office", reason="closed")
    status = Ledger(ledger.path).status("adult")
    assert (status.total, status.spent, status.left) == (1.25, 1.25, 0.0)
    assert status.note == "a first test"
    with pytest.raises(BudgetExceeded):
        ledger.spend(dataset="adult", key="c", pcost=1e-9, plan_hash="p")
    changes = total_history(ledger.rows(), "adult")
    assert [(c.total, c.by, c.reason) for c in changes] == [
        (1.0, "", ""),
        (2.0, "R. Office", "a second wave"),
        (1.25, "R. Office", "closed"),
    ]
    assert verify_ledger(ledger.path) == ()
    kinds = [row.kind for row in ledger.rows()]
    assert kinds == ["ledger", "dataset", "spend", "total", "spend", "total"]


def test_change_total_to_inadmissible_total_is_refused(ledger):
    ledger.spend(dataset="adult", key="a", pcost=0.75, plan_hash="p")
    ledger.add_dataset("pure", total=Budget.pure(1.0))
    before = ledger.rows()
    authorization = {"by": "R. Office", "reason": "try"}
    for dataset, total, words in (
        ("adult", Budget(pcost=0.7499999999999999), "amount spent"),
        ("adult", Budget(pcost=1.0), "already"),
        ("adult", Budget.pure(2.0), "converted"),
        ("adult", Budget(pcost=2.0, rows_per_person=2), "cannot change"),
        ("adult", Budget(pcost=2.0, neighbours="replace_one"), "cannot change"),
        ("pure", Budget(pcost=2.0), "converted"),
        ("absent", Budget(pcost=2.0), "not in the ledger"),
    ):
        with pytest.raises(LedgerError, match=words):
            ledger.change_total(dataset, total=total, **authorization)
    for by, reason in (("", "x"), ("x", ""), ("x", "a\nb")):
        with pytest.raises(LedgerError):
            ledger.change_total("adult", total=Budget(pcost=2.0), by=by, reason=reason)
    assert ledger.rows() == before


def test_change_total_does_not_hide_overspend(ledger):
    # Another program could have written these rows.
    opened, declared = ledger.rows()
    total = {"kind": "total", "dataset": "adult", "utc": "", "note": "{}"}
    total["plan_hash"] = declared.plan_hash  # column with the unit of the total
    spend = {"kind": "spend", "dataset": "adult", "utc": ""}
    rows = [
        opened,
        declared,
        Row(seq=3, key="a", pcost="1.5", **spend),  # exceeds the total that was valid at this row
        Row(seq=4, pcost="3.0", **total),  # a later, larger total does not make the spend valid
        Row(seq=5, pcost="1.25", **total),
        Row(seq=6, pcost="epsilon 9.0", **total),
        Row(seq=7, pcost="9.0", **(total | {"plan_hash": ""})),
        Row(seq=8, pcost="9.0", **(total | {"note": ""})),
        Row(seq=9, pcost="9.0", **(total | {"dataset": "absent"})),
    ]
    book, problems = balance(rows)
    rows_with_problems = [problem.split()[1] for problem in problems]  # "row 3 ..."
    assert rows_with_problems == ["3", "5", "6", "7", "8", "9"]
    assert "more than the remaining budget" in problems[0]
    assert "below the amount spent" in problems[1]
    assert book.left("adult") == Decimal("1.5")


def test_joint_charge_covers_releases_up_to_key(tmp_path):
    ledger = Ledger.create(tmp_path / "budget.ledger")
    for dataset in ("adult", "census"):
        ledger.add_dataset(dataset, total=Budget(pcost=1.0), kind="gdp")
    first = spend(ledger, pcost=0.25)
    spend(ledger, dataset="census", pcost=0.5)
    predicted_charge = ledger.status("adult").joint_charge(0.25)
    second = spend(ledger, attempt=2, pcost=0.25)
    charge_of_one = ledger.joint_charge(first.key)
    assert (charge_of_one.releases, charge_of_one.spent) == (1, 0.25)
    assert charge_of_one.guess == Budget(pcost=0.25).guess
    assert "no earlier release" in charge_of_one.text
    charge = ledger.joint_charge(second.key)
    assert (charge.releases, charge.spent) == (2, 0.5)
    assert charge.guess == Budget(pcost=0.5).guess
    assert charge.text == predicted_charge.text
    assert f"sees all 2 releases guesses right at most {charge.guess:g}%" in charge.text
    assert JointCharge.from_dict(charge.to_dict()) == charge
    # charges of the kind zcdp may be for Gaussian or Laplace noise
    mixed = JointCharge(releases=2, spent=0.5)
    assert mixed.guess == Budget(pcost=0.5).guess_zcdp > charge.guess
    # exact totals show who is present; two contributions cost 4 times as much
    exact_totals = JointCharge(
        releases=2, spent=0.5, definition=charge.definition, exact=("the x",)
    )
    assert exact_totals.guess == Budget(pcost=2.0).guess
    pure = JointCharge(releases=2, spent=0.5, definition=TotalDefinition(kind="pure"))
    assert pure.guess == Budget.pure(0.5).guess
    with pytest.raises(LedgerError, match="never"):
        ledger.joint_charge("never")
    for name, value in {"releases": 0, "spent": math.inf, "definition": None, "exact": "x"}.items():
        with pytest.raises(LedgerError):
            JointCharge.from_dict(charge.to_dict() | {name: value})
    with pytest.raises(LedgerError):
        JointCharge.from_dict({})


def test_overspend_advice_fits_what_is_left(ledger):
    spend(ledger, pcost=0.75)
    with pytest.raises(BudgetExceeded, match="Plan with at most the remaining budget, or change"):
        spend(ledger, attempt=2, pcost=0.5)
    spend(ledger, attempt=3, pcost=0.25)
    with pytest.raises(BudgetExceeded, match=r"spent\. Change the total by `budget change`"):
        spend(ledger, attempt=4, pcost=0.25)
