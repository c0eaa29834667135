"""Contribution bounding in both steps of a two-stage release."""

import itertools

import numpy as np
import pandas as pd
import pytest

from engine.common_mechanism.common_plan import coarse_or_fine
from engine.common_mechanism.stepwise import decide, finish, look, rehearse_finish
from engine.errors import DataError, LedgerError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Attribute, Schema, Workload
from tests.common_mechanism.steps import ledger_decimal, ledger_spends

SCHEMA = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 3), Attribute.of_size("c", 4)])
CAP = 3


def panel(people=120, seed=0):
    """Return records with one to eight rows per person, in random order.

    No table of the tests uses the column "c".
    """
    rng = np.random.default_rng(seed)
    persons = np.repeat(np.arange(people), rng.integers(1, 9, people))
    columns = {name: rng.integers(0, SCHEMA[name].size, len(persons)) for name in SCHEMA.names}
    return pd.DataFrame(columns | {"pid": persons}).sample(frac=1.0, random_state=seed)


def common(rows=CAP, pcost=1e7):
    workload = Workload(SCHEMA).add(("a",), "marginal")
    budget = Budget(pcost=pcost, rows_per_person=rows)
    plans = [plan(w, budget) for w in (workload, workload.add(("a", "b"), "marginal"))]
    return coarse_or_fine(*plans, names=["coarse", "fine"])


@pytest.fixture
def ledger(tmp_path):
    book = Ledger.create(tmp_path / "panel.ledger")
    book.add_dataset("panel", total=Budget(pcost=1e8, rows_per_person=CAP))
    return book


def look_and_decide(ledger, frame, person="pid", **more):
    look_result = look(common(), frame, dataset="panel", ledger=ledger, person=person, **more)
    decide(ledger, look_result.key, option="fine", by="A. Reader")
    return look_result


def test_both_steps_count_the_same_rows_per_person(ledger):
    frame, intakes = panel(), []
    look_result = look_and_decide(ledger, frame, intake=intakes.append)
    final = finish(
        ledger,
        look_result.key,
        frame.sample(frac=1.0, random_state=9),
        person="pid",
        intake=intakes.append,
    )
    exact = count_marginals(frame, SCHEMA, [("a", "b")], person="pid", rows_per_person=CAP)
    a_by_b = exact["a", "b"]
    np.testing.assert_allclose(final.answers(0)["answer"], a_by_b.sum(axis=1), atol=0.1)
    np.testing.assert_allclose(final.answers(1)["answer"], a_by_b.ravel(), atol=0.1)
    rows = frame.groupby("pid").size()
    people, people_over_cap = len(rows), (rows > CAP).sum()
    assert len(intakes) == 2
    for intake in intakes:
        assert intake.people == people
        assert intake.people_over_cap == people_over_cap
        assert intake.over_cap == (rows - CAP).clip(lower=0).sum()
        assert f"{people_over_cap} of {people} persons" in intake.describe()
    _, fine_plan = common().options
    assert sum(ledger_spends(ledger)) == ledger_decimal(fine_plan.pcost)


@pytest.mark.parametrize("person", [None, "other"])
def test_finish_with_another_person_column_is_refused(ledger, person):
    frame = panel()
    frame["other"] = [str(i) for i in range(len(frame))]
    key, intakes = look_and_decide(ledger, frame).key, []
    options = {"person": person, "ignore": ["pid"], "intake": intakes.append}
    with pytest.raises(DataError, match="not the records"):
        finish(ledger, key, frame, **options)
    finish(ledger, key, frame, on_changed="charge", **options)
    assert "charged alone" in intakes[-1].warnings[-1]


def test_declared_row_bound_needs_no_person_column(ledger):
    frame = panel()
    frame = frame[frame.groupby("pid").cumcount() < CAP]
    final = finish(
        ledger,
        look_and_decide(ledger, frame, person=None, ignore=["pid"]).key,
        frame.drop(columns="pid"),
    )
    np.testing.assert_allclose(final.answers(0)["answer"], np.bincount(frame["a"]), atol=0.1)


def test_look_with_smaller_row_bound_spends_nothing(ledger):
    with pytest.raises(LedgerError, match="rows_per_person=3"):
        look(common(rows=1), panel(), dataset="panel", ledger=ledger, person="pid")
    assert ledger.status("panel").spent == 0


def test_counts_above_the_row_bound_are_refused():
    sets = [("a", "b"), ("a",)]
    counts = count_marginals(panel(), SCHEMA, sets, person="pid", rows_per_person=CAP + 1)
    with pytest.raises(DataError, match="up to 4 rows per person"):
        look(common(), counts, rehearsal=True)
    table = count_marginals(counts, SCHEMA, [("a",)])
    assert table.cap == CAP + 1
    assert table.people == counts.people
    assert table.people_over_cap == counts.people_over_cap


def test_rehearsal_counts_the_same_rows_as_release():
    frame, common_plan = panel(), common()
    rehearsed = look(common_plan, frame, rehearsal=True, person="pid")
    final = rehearse_finish(common_plan, rehearsed, frame, option="fine", person="pid")
    exact = count_marginals(frame, SCHEMA, [("a", "b")], person="pid", rows_per_person=CAP)
    np.testing.assert_allclose(final.answers(1)["answer"], exact["a", "b"].ravel(), atol=0.1)


def test_both_steps_read_a_count_column(ledger):
    cells = list(itertools.product(range(5), range(3), range(4)))
    counted = pd.DataFrame(cells, columns=["a", "b", "c"]).assign(n=range(60))
    with pytest.raises(DataError, match="count_column='n'"):
        look_and_decide(ledger, counted, person=None)
    look_result = look_and_decide(ledger, counted, person=None, count_column="n")
    with pytest.raises(DataError, match="not the records"):
        finish(ledger, look_result.key, counted, ignore=["n"])
    final = finish(ledger, look_result.key, counted, count_column="n")
    np.testing.assert_allclose(
        final.answers(0)["answer"], counted.groupby("a")["n"].sum(), atol=0.1
    )
    look_at_rows = look(common(), counted, rehearsal=True, ignore=["n"])
    final = rehearse_finish(common(), look_at_rows, counted, option="fine", ignore=["n"])
    # without the count column, each of the 3 x 4 rows of a value counts once
    np.testing.assert_allclose(final.answers(0)["answer"], 3 * 4, atol=0.1)
