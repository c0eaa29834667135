"""Cost of the second stage of a release on the same records as the first, or on other records."""

import sys
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
from tests.common_mechanism.steps import ledger_decimal, ledger_spends

measuring = sys.modules["engine.release.measure"]
SCHEMA = Schema([Attribute.of_size("a", 6), Attribute.of_size("b", 5), Attribute.of_size("c", 3)])


def all_ways_plan(family, ways, pcost=0.4):
    return plan(
        Workload.all_ways(SCHEMA, ways=ways, family=family), Budget(pcost=pcost), centers="uniform"
    )


def pairs(family):
    return plan(Workload(SCHEMA).add(("a", "b"), family), Budget(pcost=0.4), centers="uniform")


COMMON = coarse_or_fine(pairs("affine"), pairs("abs"), names=["sums", "fine"])
FINE_PLAN, SECOND_STAGE = COMMON.options[1], COMMON.residuals[1]
LOOK_COST, REST_COST = COMMON.spends[1]  # of the option "fine"
RECORDS = synthetic(SCHEMA, 3000, seed=3)
CORRECTED = RECORDS.assign(a=RECORDS["a"].where(RECORDS.index != 7, (RECORDS["a"] + 1) % 6))


@pytest.fixture
def ledger(tmp_path):
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=3.0))
    return book


def look_and_decide(ledger, records=RECORDS, option="fine"):
    key = look(COMMON, records, dataset="survey", ledger=ledger).key
    decide(ledger, key, option=option, by="A. Reader")
    return key


def test_finish_accepts_shuffled_records_in_another_format(ledger, tmp_path):
    path = tmp_path / "shuffled.parquet"
    RECORDS.sample(frac=1.0, random_state=2).to_parquet(path)
    finish(ledger, look_and_decide(ledger), path)
    assert sum(ledger_spends(ledger)) == ledger_decimal(FINE_PLAN.pcost)


def test_finish_with_other_records_spends_nothing(ledger):
    key = look_and_decide(ledger)
    for records in (CORRECTED, RECORDS.iloc[1:], RECORDS.iloc[:0]):
        with pytest.raises(DataError, match="not the records"):
            finish(ledger, key, records)
    assert ledger_spends(ledger) == [ledger_decimal(LOOK_COST)]


def test_finish_charges_other_records_the_full_residual(ledger):
    key, intakes = look_and_decide(ledger), []
    final = finish(ledger, key, CORRECTED, on_changed="charge", intake=intakes.append)
    alone = SECOND_STAGE.pcost
    assert alone > 1.2 * REST_COST, "the sum of the maxima is above the maximum of the sums"
    assert ledger_spends(ledger) == [ledger_decimal(LOOK_COST), ledger_decimal(alone)]
    assert "charged alone" in intakes[0].warnings[-1]
    assert "charged alone" in ledger.notes(kind="records", key=key)[0].note
    assert resume(ledger, key).finished.key == final.key
    assert ledger.verify() == ()


def test_joint_cost_is_below_sum_of_costs():
    """The costliest cells of the two steps differ, so no record has the costs of both."""
    common_part, second_stage = COMMON.look, SECOND_STAGE
    parts = [common_part.blocks, second_stage.blocks]
    sum_of_costs = sum(
        sum(b.pcost(common_part.max_records) for b in blocks.values()) for blocks in parts
    )
    assert sum_of_costs > 1.2 * joint_pcost(parts, common_part.max_records)


def test_finish_charges_equal_records_the_joint_cost(ledger):
    finish(ledger, look_and_decide(ledger), RECORDS, on_changed="charge")
    assert sum(ledger_spends(ledger)) == ledger_decimal(FINE_PLAN.pcost)


def test_lost_finish_is_repeated_at_full_cost(ledger, monkeypatch):
    """The plan's cost covers both stages once; repeating the second stage costs its full amount."""

    def interrupt(*_):
        raise KeyboardInterrupt

    key, second_stage = look_and_decide(ledger), SECOND_STAGE
    with monkeypatch.context() as patched:
        patched.setattr(measuring, "draw", interrupt)
        with pytest.raises(KeyboardInterrupt):
            finish(ledger, key, RECORDS)
    for journal in Path(f"{ledger.path}.results").glob("*.journal"):
        journal.unlink()
    with pytest.raises(ResultLost):
        finish(ledger, key, RECORDS)
    finish(ledger, key, RECORDS, attempt=2)
    assert second_stage.pcost > second_stage.spend
    assert ledger_spends(ledger)[1:] == [
        ledger_decimal(second_stage.spend),
        ledger_decimal(second_stage.pcost),
    ]


def test_finish_after_look_without_digest_costs_both(ledger, monkeypatch):
    monkeypatch.setattr("engine.common_mechanism.stepwise.fingerprint_of", lambda *_: None)
    key = look_and_decide(ledger)
    monkeypatch.undo()
    with pytest.raises(DataError, match="not the records"):
        finish(ledger, key, RECORDS)
    finish(ledger, key, RECORDS, on_changed="charge")
    assert ledger_spends(ledger)[-1] == ledger_decimal(SECOND_STAGE.pcost)


def test_steps_after_changed_records_are_charged_alone(ledger):
    chain = nested_choices(
        all_ways_plan("marginal", 1),
        all_ways_plan("marginal", 2),
        all_ways_plan("marginal", 3),
        names=["1", "2", "3"],
    )
    key = look(chain, RECORDS, dataset="survey", ledger=ledger).key
    decide(ledger, key, option="look closer", by="A. Reader")
    closer = finish(ledger, key, CORRECTED, on_changed="charge").key
    decide(ledger, closer, option="3", by="A. Reader")
    with pytest.raises(DataError, match="of the choice before it"):
        finish(ledger, closer, CORRECTED)
    finish(ledger, closer, CORRECTED, on_changed="charge")
    # the residual alone, not the smaller cost of the residual on the same records
    assert ledger_spends(ledger)[-1] >= ledger_decimal(chain.following.residuals[1].pcost)


def test_look_and_finish_accept_counts(ledger):
    sets = [
        space for plan_ in (COMMON.look, *COMMON.options) for space in measuring.maximal_sets(plan_)
    ]
    counts = count_marginals(RECORDS, SCHEMA, sets)
    key = look_and_decide(ledger, counts)
    final = finish(ledger, key, counts)
    assert np.isfinite(final.values(0)).all()
    assert len(list(Path(f"{ledger.path}.results").glob("*.result"))) == 2


def test_compare_records_with_other_records_raises(ledger):
    key = look_and_decide(ledger)
    assert compare_records(ledger, key, RECORDS.sample(frac=1.0, random_state=2)).look.key == key
    with pytest.raises(OtherRecords, match="not the records"):
        compare_records(ledger, key, CORRECTED)
    finish(ledger, key, CORRECTED, on_changed="charge")
    for records in (RECORDS, CORRECTED):
        with pytest.raises(OtherRecords):
            compare_records(ledger, key, records)
    assert len(ledger_spends(ledger)) == 2


def test_compare_records_of_chain_checks_every_step(ledger):
    chain = nested_choices(
        *(all_ways_plan("marginal", ways) for ways in (1, 2, 3)), names=["1", "2", "3"]
    )
    key = look(chain, RECORDS, dataset="survey", ledger=ledger).key
    decide(ledger, key, option=1, by="A. Reader")
    closer = finish(ledger, key, RECORDS)
    decide(ledger, closer.key, option=1, by="A. Reader")
    assert compare_records(ledger, key, RECORDS).finished.key == closer.key
    finish(ledger, closer.key, CORRECTED, on_changed="charge")
    with pytest.raises(OtherRecords):
        compare_records(ledger, key, RECORDS)
