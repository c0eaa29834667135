"""A release that was killed at any step: the same call ends it, with the same noise, and is charged once."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import engine.ledger.ledger as ledger_module
from demo_data.make_synthetic import synthetic
from engine.errors import DataError, LedgerError, ResultLost
from engine.ledger import Ledger, release_key
from engine.ledger.noise_journal import journal as opened
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import measure
from engine.release.ingest import maximal_sets
from engine.release.measure import is_unfinished, load_measurement
from engine.workload import Attribute, Schema, Workload
from tests.waiting import CEILING

measuring = sys.modules["engine.release.measure"]
keeping = sys.modules["engine.ledger.noise_journal"]
FORK = multiprocessing.get_context("fork")
SCHEMA = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)])
RECORDS = synthetic(SCHEMA, 300, seed=5)


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(Workload.all_ways(SCHEMA, ways=(1, 2)), Budget(pcost=0.6))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    return book


def released(made: Plan, ledger: Ledger, data: object = RECORDS):
    # opened anew, as the next program would
    return measure(made, data, dataset="survey", ledger=ledger.path)


def kept(ledger: Ledger) -> list[Path]:
    return list(Path(f"{ledger.path}.results").glob("*.journal"))


def killed(work: Callable[[], object], owner: object, name: str, *, after: bool) -> None:
    """Run in a process that kills itself at a function, before its call or after."""

    def run() -> None:
        real = getattr(owner, name)

        def dying(*given: object, **named: object) -> object:
            if after:
                real(*given, **named)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, dying)
        work()

    process = FORK.Process(target=run)
    process.start()
    process.join(CEILING)
    assert process.exitcode == -signal.SIGKILL


# whether the spend stands, and whether a journal does
MOMENTS = {
    "before the journal": (os, "link", False, False, False),
    "journal kept, nothing spent": (Ledger, "spend", False, False, True),
    "spent, nothing drawn": (Ledger, "spend", True, True, True),
    "drawn, not saved": (measuring, "estimate", False, True, True),
    "named, not recorded": (ledger_module.Draft, "publish", True, True, True),
    "saved, journal still there": (Ledger, "save_result", True, True, True),
    "journal gone": (keeping.Journal, "remove", True, True, False),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_after_a_kill_the_same_call_ends_the_release_and_is_charged_once(
    made: Plan, ledger: Ledger, moment: str
) -> None:
    owner, name, after, spent, journaled = MOMENTS[moment]
    killed(lambda: released(made, ledger), owner, name, after=after)
    assert ledger.status("survey").spent == (made.pcost if spent else 0.0)
    assert bool(kept(ledger)) is journaled
    # what the same records still end is told apart from what is saved, also by who opened the ledger before
    if spent:
        waits = name not in ("save_result", "remove")
        assert is_unfinished(ledger, release_key(dataset="survey", plan_hash=made.hash, attempt=1)) is waits
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in kept(ledger))
    found = released(made, ledger)
    assert ledger.status("survey").spent == made.pcost, "less than twice the cost is in the total"
    assert [row.kind for row in ledger.rows()].count("spend") == 1
    assert not kept(ledger)
    assert found == load_measurement(ledger, found.key) == released(made, ledger, None)
    assert ledger.verify() == ()


def test_the_noise_of_a_spend_is_the_same_however_often_its_run_is_killed(made: Plan, ledger: Ledger) -> None:
    drawn = []
    for _ in range(2):
        ours, theirs = FORK.Pipe(duplex=False)
        real = measuring.draw

        def told(*given: object, theirs=theirs, real=real) -> None:
            theirs.send({space: answers.tolist() for space, answers in real(*given)})

        measuring.draw = told
        try:
            killed(lambda: released(made, ledger), measuring, "draw", after=True)
        finally:
            measuring.draw = real
        drawn.append(ours.recv())
    found = released(made, ledger).answers_on_grid
    assert drawn[0] == drawn[1] == {space: answers.tolist() for space, answers in found.items()}


def test_other_records_do_not_end_a_release(made: Plan, ledger: Ledger) -> None:
    killed(lambda: released(made, ledger), measuring, "draw", after=False)
    other = RECORDS.copy()
    other.loc[0, "a"] = (other.loc[0, "a"] + 1) % 5
    for data in (other, RECORDS.iloc[1:]):
        with pytest.raises(DataError, match="other records"):
            released(made, ledger, data)
    assert released(made, ledger, RECORDS.sample(frac=1.0, random_state=1)).key
    assert ledger.status("survey").spent == made.pcost


def test_a_run_at_work_is_left_alone_and_the_dead_one_is_not(made: Plan, ledger: Ledger) -> None:
    key = release_key(dataset="survey", plan_hash=made.hash, attempt=1)
    with opened(ledger.path, key, seed=bytes(32), digest=lambda _: "d", spent=lambda: False) as (own, again):
        assert not again
        assert kept(Ledger(ledger.path)) == [own.place]
        with pytest.raises(LedgerError, match="at work"):
            released(made, ledger)
        assert ledger.status("survey").spent == 0.0
        ledger.spend(dataset="survey", key=key, pcost=made.pcost, plan_hash=made.hash)
        with pytest.raises(ResultLost, match="at work"):
            released(made, ledger)
    assert is_unfinished(ledger, key)


@pytest.mark.parametrize("damage", [Path.unlink, lambda place: place.write_text("{}")])
def test_without_its_journal_a_spend_is_never_drawn_for(
    made: Plan, ledger: Ledger, damage: Callable[[Path], object]
) -> None:
    killed(lambda: released(made, ledger), measuring, "draw", after=False)
    damage(*kept(ledger))
    with pytest.raises(ResultLost, match="new attempt"):
        released(made, ledger)


def test_a_spend_without_a_journal_gets_no_new_one(ledger: Ledger) -> None:
    with opened(ledger.path, "one|2|3", seed=bytes(32), digest=lambda _: "d", spent=lambda: True) as (own, again):
        assert own is None
        assert again
        assert not kept(ledger)


def test_where_no_lock_tells_the_living_from_the_dead_nothing_is_swept_up_or_kept(
    made: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(lambda: released(made, ledger), measuring, "draw", after=False)
    (stale,) = Path(f"{ledger.path}.results").glob("*.part")  # the space of its result
    monkeypatch.setattr("engine.ledger.result_store.fcntl", None)
    monkeypatch.setattr(keeping, "LOCKS", False)
    assert Ledger(ledger.path).status("survey").spent == made.pcost
    assert stale.exists()
    real, during = measuring.draw, []
    monkeypatch.setattr(measuring, "draw", lambda *given: during.append(kept(ledger)) or real(*given))
    before = kept(ledger)
    ledger.add_dataset("census", total=Budget(pcost=1.0))
    assert measure(made, RECORDS, dataset="census", ledger=ledger.path).key
    assert during == [before]


def test_what_was_kept_without_a_spend_goes_with_the_next_opening(made: Plan, ledger: Ledger) -> None:
    killed(lambda: released(made, ledger), Ledger, "spend", after=False)
    Ledger(ledger.path)
    assert not kept(ledger)


def test_no_two_spends_share_their_bits(tmp_path: Path) -> None:
    """One seed that came back from a copy of the folder makes other noise for other counts, releases and rows."""
    ways = [
        keeping.Journal(seed=bytes([seed]) * 32, digest=digest, place=tmp_path / name).bits(row)(64)
        for seed in (0, 1)
        for digest in "ab"
        for name in "cd"
        for row in "ef"
    ]
    assert len(set(ways)) == 16
    stream = keeping.Journal(seed=bytes(32), digest="a", place=tmp_path).bits("e")
    assert len({stream(8) for _ in range(1000)}) == 1000


def test_a_seed_is_new_for_every_release(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    small = plan(Workload.all_ways(SCHEMA, ways=(1,)), Budget(pcost=0.1))
    seeds = []
    spend = Ledger.spend

    def seen(self: Ledger, **given: object) -> object:
        seeds.extend(json.loads(place.read_text())["seed"] for place in kept(self))
        return spend(self, **given)

    monkeypatch.setattr(Ledger, "spend", seen)
    for attempt in (1, 2):
        measure(small, RECORDS, dataset="survey", ledger=ledger, attempt=attempt)
    assert [len(seed) for seed in seeds] == [64, 64]
    assert seeds[0] != seeds[1]


def test_a_journal_is_on_the_disk_before_the_spend(made: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    order, sync, spend = [], keeping.sync_folder, Ledger.spend
    link = os.link

    def linked(source: Path, target: Path) -> None:
        if Path(target).suffix == ".journal":
            order.append("link")
        link(source, target)

    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(keeping, "sync_folder", lambda place: order.append("sync") or sync(place))
    monkeypatch.setattr(Ledger, "spend", lambda self, **given: order.append("spend") or spend(self, **given))
    released(made, ledger)
    assert order == ["link", "sync", "spend", "sync"]


def test_bits_are_uniform_enough_for_the_noise(tmp_path: Path) -> None:
    stream = keeping.Journal(seed=bytes(32), digest="a", place=tmp_path).bits("e")
    bits = np.unpackbits(np.frombuffer(stream(1 << 16) + stream(1 << 16), np.uint8))
    # a fixed seed: this is one number, not a draw
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(bits))


@pytest.mark.parametrize("other", [False, True])
def test_leftover_journal_of_saved_release_draws_nothing(
    made: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    """Killed between the save and the removal of its journal: neither the same records nor others are drawn again."""
    with monkeypatch.context() as killed_before_removal:
        killed_before_removal.setattr(keeping.Journal, "remove", lambda self: None)
        first = released(made, ledger)
    assert len(kept(ledger)) == 1
    draws = []
    monkeypatch.setattr(measuring, "draw", lambda *given: draws.append(given))
    done = measuring.spend_draw_save(
        made,
        count_marginals(RECORDS.iloc[1:] if other else RECORDS, SCHEMA, maximal_sets(made)),
        ledger=ledger,
        key=first.key,
        spend=lambda: ledger.spend(dataset="survey", key=first.key, pcost=made.pcost, plan_hash=made.hash),
        write=lambda file, receipt, drawn: measuring._write(file, made, receipt, drawn),
    )
    assert (done, draws, kept(ledger)) == (False, [], [])
    assert load_measurement(ledger, first.key) == first
