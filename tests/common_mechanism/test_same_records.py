"""Look and last step are of the same records, or the last step pays for itself alone."""

import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from demo_data.make_synthetic import synthetic
from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices
from engine.common_mechanism.stepwise import compare_records, decide, finish, look, resume
from engine.errors import DataError, OtherRecords, ResultLost
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.plans.blocks import joint_pcost
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Attribute, Schema, Workload

measuring = sys.modules["engine.release.measure"]
SCHEMA = Schema([Attribute.of_size("a", 6), Attribute.of_size("b", 5), Attribute.of_size("c", 3)])


def made(family, ways, pcost=0.4):
    return plan(Workload.all_ways(SCHEMA, ways=ways, family=family), Budget(pcost=pcost), centers="uniform")


def pairs(family):
    return plan(Workload(SCHEMA).add(("a", "b"), family), Budget(pcost=0.4), centers="uniform")


COMMON = coarse_or_fine(pairs("affine"), pairs("abs"), names=["sums", "fine"])
RECORDS = synthetic(SCHEMA, 3000, seed=3)
CORRECTED = RECORDS.assign(a=RECORDS["a"].where(RECORDS.index != 7, (RECORDS["a"] + 1) % 6))


@pytest.fixture
def ledger(tmp_path):
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=3.0))
    return book


def looked(ledger, records=RECORDS, option="fine"):
    key = look(COMMON, records, dataset="survey", ledger=ledger).key
    decide(ledger, key, option=option, by="A. Reader")
    return key


def spent(ledger):
    return [Decimal(row.pcost) for row in ledger.rows() if row.kind == "spend"]


def test_the_same_records_in_any_order_and_form_are_the_same(ledger, tmp_path):
    place = tmp_path / "again.parquet"
    RECORDS.sample(frac=1.0, random_state=2).to_parquet(place)
    finish(ledger, looked(ledger), place)
    assert sum(spent(ledger)) == Decimal(repr(COMMON.options[1].pcost))


def test_other_records_are_refused_and_spend_nothing(ledger):
    key = looked(ledger)
    for other in (CORRECTED, RECORDS.iloc[1:], RECORDS.iloc[:0]):
        with pytest.raises(DataError, match="not the records that were looked at"):
            finish(ledger, key, other)
    assert spent(ledger) == [Decimal(repr(COMMON.spends[1][0]))]


def test_other_records_pay_for_the_last_step_alone_when_that_was_asked_for(ledger):
    key, seen = looked(ledger), []
    done = finish(ledger, key, CORRECTED, on_changed="charge", intake=seen.append)
    alone = COMMON.residuals[1].pcost
    assert alone > 1.2 * COMMON.spends[1][1], "here the sum of the dearest cells is more than the dearest sum"
    assert spent(ledger) == [Decimal(repr(COMMON.spends[1][0])), Decimal(repr(alone))]
    assert "charged alone" in seen[0].warnings[-1]
    assert "charged alone" in ledger.notes(kind="records", key=key)[0].note
    assert resume(ledger, key).finished.key == done.key
    assert ledger.verify() == ()


def test_the_joint_cost_would_not_have_covered_it():
    """A record in the dearest cell of the look, moved to the dearest of the last step, costs more than was charged."""
    look_, left = COMMON.look, COMMON.residuals[1]
    parts = [look_.blocks, left.blocks]
    worst = sum(sum(b.pcost(look_.max_records) for b in part.values()) for part in parts)
    assert worst > 1.2 * joint_pcost(parts, look_.max_records)


def test_the_same_charge_is_taken_where_nothing_changed(ledger):
    finish(ledger, looked(ledger), RECORDS, on_changed="charge")
    assert sum(spent(ledger)) == Decimal(repr(COMMON.options[1].pcost))


def test_a_lost_last_step_is_repeated_at_its_full_cost(ledger, monkeypatch):
    """The look's cells and those of two last steps: only the first pair is covered by the plan's cost."""

    def dies(*_):
        raise KeyboardInterrupt

    key, left = looked(ledger), COMMON.residuals[1]
    with monkeypatch.context() as patched:
        patched.setattr(measuring, "draw", dies)
        with pytest.raises(KeyboardInterrupt):
            finish(ledger, key, RECORDS)
    for kept in Path(f"{ledger.path}.results").glob("*.journal"):
        kept.unlink()
    with pytest.raises(ResultLost):
        finish(ledger, key, RECORDS)
    finish(ledger, key, RECORDS, attempt=2)
    assert left.pcost > left.spend
    assert spent(ledger)[1:] == [Decimal(repr(left.spend)), Decimal(repr(left.pcost))]


def test_a_look_without_a_digest_is_finished_at_the_cost_of_both(ledger, monkeypatch):
    monkeypatch.setattr("engine.common_mechanism.stepwise.fingerprint_of", lambda *_: None)
    key = looked(ledger)
    monkeypatch.undo()
    with pytest.raises(DataError, match="not the records"):
        finish(ledger, key, RECORDS)
    finish(ledger, key, RECORDS, on_changed="charge")
    assert spent(ledger)[-1] == Decimal(repr(COMMON.residuals[1].pcost))


def test_after_a_changed_closer_look_every_later_step_pays_alone(ledger):
    chain = nested_choices(made("marginal", 1), made("marginal", 2), made("marginal", 3), names=["1", "2", "3"])
    key = look(chain, RECORDS, dataset="survey", ledger=ledger).key
    decide(ledger, key, option="look closer", by="A. Reader")
    closer = finish(ledger, key, CORRECTED, on_changed="charge").key
    decide(ledger, closer, option="3", by="A. Reader")
    with pytest.raises(DataError, match="the one before it"):
        finish(ledger, closer, CORRECTED)
    finish(ledger, closer, CORRECTED, on_changed="charge")
    assert float(spent(ledger)[-1]) >= chain.following.residuals[1].pcost


def test_counted_tables_will_do_for_records(ledger):
    sets = [space for plan_ in (COMMON.look, *COMMON.options) for space in measuring.maximal_sets(plan_)]
    counts = count_marginals(RECORDS, SCHEMA, sets)
    key = looked(ledger, counts)
    done = finish(ledger, key, counts)
    assert np.isfinite(done.values(0)).all()
    assert len(list(Path(f"{ledger.path}.results").glob("*.result"))) == 2


def test_compare_records_with_other_records_raises(ledger):
    key = looked(ledger)
    assert compare_records(ledger, key, RECORDS.sample(frac=1.0, random_state=2)).look.key == key
    with pytest.raises(OtherRecords, match="not the records"):
        compare_records(ledger, key, CORRECTED)
    finish(ledger, key, CORRECTED, on_changed="charge")
    for records in (RECORDS, CORRECTED):
        with pytest.raises(OtherRecords):
            compare_records(ledger, key, records)
    assert len(spent(ledger)) == 2


def test_compare_records_of_chain_checks_every_step(ledger):
    chain = nested_choices(*(made("marginal", ways) for ways in (1, 2, 3)), names=["1", "2", "3"])
    key = look(chain, RECORDS, dataset="survey", ledger=ledger).key
    decide(ledger, key, option=1, by="A. Reader")
    closer = finish(ledger, key, RECORDS)
    decide(ledger, closer.key, option=1, by="A. Reader")
    assert compare_records(ledger, key, RECORDS).finished.key == closer.key
    finish(ledger, closer.key, CORRECTED, on_changed="charge")
    with pytest.raises(OtherRecords):
        compare_records(ledger, key, RECORDS)
