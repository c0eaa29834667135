"""Contribution bounding in both steps of a two-stage release."""

from decimal import Decimal

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
    for group in (0, 1):
        table = exact["a", "b"] if group else exact["a", "b"].sum(axis=1)
        np.testing.assert_allclose(final.answers(group)["answer"], table.ravel(), atol=0.1)
    sizes = frame.groupby("pid").size()
    expected = (len(sizes), int((sizes - CAP).clip(lower=0).sum()), int((sizes > CAP).sum()))
    assert [(s.people, s.over_cap, s.people_over_cap) for s in intakes] == [expected, expected]
    assert f"{expected[2]} of {expected[0]} persons" in intakes[0].describe()
    spent = [Decimal(row.pcost) for row in ledger.rows() if row.kind == "spend"]
    assert sum(spent) == Decimal(repr(common().options[1].pcost))


@pytest.mark.parametrize("person", [None, "other"])
def test_finish_with_another_person_column_is_refused(ledger, person):
    frame = panel()
    frame["other"] = [str(i) for i in range(len(frame))]
    key = look_and_decide(ledger, frame).key
    with pytest.raises(DataError, match="not the records"):
        finish(ledger, key, frame, person=person, ignore=["pid"])
    intakes = []
    finish(
        ledger,
        key,
        frame,
        person=person,
        ignore=["pid"],
        on_changed="charge",
        intake=intakes.append,
    )
    assert "charged alone" in intakes[0].warnings[-1]


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
    assert (table.cap, table.people, table.people_over_cap) == (
        CAP + 1,
        counts.people,
        counts.people_over_cap,
    )


def test_rehearsal_counts_the_same_rows_as_release():
    frame, both = panel(), common()
    rehearsed = look(both, frame, rehearsal=True, person="pid")
    final = rehearse_finish(both, rehearsed, frame, option="fine", person="pid")
    exact = count_marginals(frame, SCHEMA, [("a", "b")], person="pid", rows_per_person=CAP)
    np.testing.assert_allclose(final.answers(1)["answer"], exact["a", "b"].ravel(), atol=0.1)


def test_both_steps_read_a_count_column(ledger):
    cells = pd.DataFrame(
        [(a, b, c) for a in range(5) for b in range(3) for c in range(4)], columns=["a", "b", "c"]
    )
    counted = cells.assign(n=range(60))
    with pytest.raises(DataError, match="count_column='n'"):
        look_and_decide(ledger, counted, person=None)
    look_result = look_and_decide(ledger, counted, person=None, count_column="n")
    with pytest.raises(DataError, match="not the records"):
        finish(ledger, look_result.key, counted, ignore=["n"])
    final = finish(ledger, look_result.key, counted, count_column="n")
    np.testing.assert_allclose(
        final.answers(0)["answer"], counted.groupby("a")["n"].sum(), atol=0.1
    )
    left_out = look(common(), counted, rehearsal=True, ignore=["n"])
    rest = rehearse_finish(common(), left_out, counted, option="fine", ignore=["n"])
    # without the count column, each of the 3 x 4 rows of a value counts once
    np.testing.assert_allclose(rest.answers(0)["answer"], 12, atol=0.1)
