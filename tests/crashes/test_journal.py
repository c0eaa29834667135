"""Recovery of a killed release from its noise journal."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import engine.ledger.ledger as ledger_module
from demo_data.make_synthetic import synthetic
from engine.errors import DataError, LedgerError, ResultLost
from engine.ledger import Ledger, release_key
from engine.ledger.release_files import journal as open_journal
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import measure
from engine.release.ingest import fingerprint, maximal_sets
from engine.release.measure import is_unfinished, load_measurement
from engine.workload import Attribute, Schema, Workload
from tests.waiting import CEILING

measure_module = sys.modules["engine.release.measure"]
release_files = sys.modules["engine.ledger.release_files"]
FORK = multiprocessing.get_context("fork")
SCHEMA = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4)])
RECORDS = synthetic(SCHEMA, 300, seed=5)


@pytest.fixture(scope="module")
def release_plan() -> Plan:
    return plan(Workload.all_ways(SCHEMA, ways=(1, 2)), Budget(pcost=0.6))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    return book


def run_release(release_plan: Plan, ledger: Ledger, data: object = RECORDS):
    # the path makes `measure` open the ledger anew, as another program would
    return measure(release_plan, data, dataset="survey", ledger=ledger.path)


def journals(ledger: Ledger) -> list[Path]:
    return list(Path(f"{ledger.path}.results").glob("*.journal"))


def run_and_kill(work: Callable[[], object], owner: object, name: str, *, after: bool) -> None:
    """Run work in a process that kills itself before or after it calls the function ``name``."""

    def run() -> None:
        real = getattr(owner, name)

        def kill(*args: object, **options: object) -> object:
            if after:
                real(*args, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, kill)
        work()

    process = FORK.Process(target=run)
    process.start()
    process.join(CEILING)
    assert process.exitcode == -signal.SIGKILL


class Moment(NamedTuple):
    """Moment of a kill: before or after the call of a function, and the state on the disk."""

    owner: object
    name: str  # of the function
    after: bool
    is_spent: bool
    has_journal: bool
    is_saved: bool


MOMENTS = {
    "before the journal": Moment(os, "link", False, False, False, False),
    "journal written, nothing spent": Moment(Ledger, "spend", False, False, True, False),
    "spent, nothing drawn": Moment(Ledger, "spend", True, True, True, False),
    "drawn, not saved": Moment(measure_module, "estimate", False, True, True, False),
    "result named, not recorded": Moment(ledger_module.Draft, "rename_to", True, True, True, False),
    "saved, journal not removed": Moment(Ledger, "save_result", True, True, True, True),
    "journal removed": Moment(release_files.Journal, "remove", True, True, False, True),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_measure_after_kill_finishes_release_and_charges_once(
    release_plan: Plan, ledger: Ledger, moment: Moment
) -> None:
    key = release_key(dataset="survey", plan_hash=release_plan.hash, attempt=1)
    run_and_kill(
        lambda: run_release(release_plan, ledger), moment.owner, moment.name, after=moment.after
    )
    # `ledger` was opened before the kill and still reports the state after it
    assert ledger.status("survey").spent == (release_plan.pcost if moment.is_spent else 0.0)
    assert bool(journals(ledger)) is moment.has_journal
    if moment.is_spent:
        assert is_unfinished(ledger, key) is not moment.is_saved
    for journal in journals(ledger):
        assert journal.stat().st_mode & 0o777 == 0o600
    measurement = run_release(release_plan, ledger)
    assert ledger.status("survey").spent == release_plan.pcost
    assert [row.kind for row in ledger.rows()].count("spend") == 1
    assert not journals(ledger)
    assert load_measurement(ledger, key) == measurement
    assert run_release(release_plan, ledger, None) == measurement
    assert ledger.verify() == ()


def test_noise_of_spend_after_repeated_kills_is_equal(release_plan: Plan, ledger: Ledger) -> None:
    receiver, sender = FORK.Pipe(duplex=False)
    draw = measure_module.draw

    def draw_and_send(*args: object) -> None:
        sender.send({space: answers.tolist() for space, answers in draw(*args)})

    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measure_module, "draw", draw_and_send)
            run_and_kill(
                lambda: run_release(release_plan, ledger), measure_module, "draw", after=True
            )
    released_answers = run_release(release_plan, ledger).answers_on_grid
    expected = {space: answers.tolist() for space, answers in released_answers.items()}
    assert receiver.recv() == expected  # before the first kill
    assert receiver.recv() == expected  # before the second kill


def test_killed_release_with_other_records_is_refused(release_plan: Plan, ledger: Ledger) -> None:
    run_and_kill(lambda: run_release(release_plan, ledger), measure_module, "draw", after=False)
    changed = RECORDS.copy()
    changed.loc[0, "a"] = (changed.loc[0, "a"] + 1) % 5
    for data in (changed, RECORDS.iloc[1:]):
        with pytest.raises(DataError, match="other records"):
            run_release(release_plan, ledger, data)
    assert run_release(release_plan, ledger, RECORDS.sample(frac=1.0, random_state=1)).key
    assert ledger.status("survey").spent == release_plan.pcost


def test_journal_of_running_release_blocks_second_run(release_plan: Plan, ledger: Ledger) -> None:
    key = release_key(dataset="survey", plan_hash=release_plan.hash, attempt=1)
    opened = open_journal(
        ledger.path, key, seed=bytes(32), digest=lambda _: "d", spent=lambda: False
    )
    with opened as (journal, spent):
        assert not spent
        assert journals(Ledger(ledger.path)) == [journal.path]
        with pytest.raises(LedgerError, match="is active"):
            run_release(release_plan, ledger)
        assert ledger.status("survey").spent == 0.0
        sets = maximal_sets(release_plan)
        records = fingerprint(
            count_marginals(RECORDS, SCHEMA, sets), sets, ledger.secret("records")
        )
        ledger.spend(
            dataset="survey",
            key=key,
            pcost=release_plan.pcost,
            plan_hash=release_plan.hash,
            records=records,
        )
        with pytest.raises(ResultLost, match="not ended"):
            run_release(release_plan, ledger)
    assert is_unfinished(ledger, key)


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_text("{}")], ids=["missing", "damaged"]
)
def test_spend_with_lost_journal_raises_result_lost(
    release_plan: Plan, ledger: Ledger, damage: Callable[[Path], object]
) -> None:
    run_and_kill(lambda: run_release(release_plan, ledger), measure_module, "draw", after=False)
    key = release_key(dataset="survey", plan_hash=release_plan.hash, attempt=1)
    with pytest.raises(ResultLost, match="Repeat the release"):
        load_measurement(ledger, key)
    damage(*journals(ledger))
    with pytest.raises(ResultLost, match="missing or damaged") as caught:
        run_release(release_plan, ledger)
    assert "Repeat" not in str(caught.value)
    assert not is_unfinished(ledger, key)


def test_spend_with_unreadable_journal_is_not_lost(release_plan: Plan, ledger: Ledger) -> None:
    run_and_kill(lambda: run_release(release_plan, ledger), measure_module, "draw", after=False)
    key = release_key(dataset="survey", plan_hash=release_plan.hash, attempt=1)
    (path,) = journals(ledger)
    # a folder of this name cannot be opened as a file, even by a user who may read every file
    moved = path.rename(path.with_suffix(".moved"))
    path.mkdir()
    for call in (
        lambda: run_release(release_plan, ledger),
        lambda: load_measurement(ledger, key),
        lambda: is_unfinished(ledger, key),
    ):
        with pytest.raises(LedgerError, match="cannot be opened") as caught:
            call()
        assert not isinstance(caught.value, ResultLost)
    path.rmdir()
    moved.rename(path)
    assert run_release(release_plan, ledger).key == key
    assert ledger.status("survey").spent == release_plan.pcost
    path.mkdir()
    assert not is_unfinished(ledger, key)
    assert run_release(release_plan, ledger).key == key


def test_journal_that_cannot_be_opened_raises_ledger_error(ledger: Ledger) -> None:
    path = release_files._journal_path(ledger.path, "key")
    path.mkdir(parents=True)
    with (
        pytest.raises(LedgerError, match=path.name),
        open_journal(ledger.path, "key", seed=bytes(32), digest=str, spent=lambda: False),
    ):
        pass


def test_journal_after_spend_is_not_created(ledger: Ledger) -> None:
    opened = open_journal(
        ledger.path, "one|2|3", seed=bytes(32), digest=lambda _: "d", spent=lambda: True
    )
    with opened as (journal, spent):
        assert journal is None
        assert spent
        assert not journals(ledger)


def test_sweep_without_file_locks_is_noop(
    release_plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_and_kill(lambda: run_release(release_plan, ledger), measure_module, "draw", after=False)
    (stale,) = Path(f"{ledger.path}.results").glob("*.part")  # reserved space of the result
    monkeypatch.setattr("engine.ledger.release_files.fcntl", None)
    monkeypatch.setattr(release_files, "HAS_FILE_LOCKS", False)
    assert Ledger(ledger.path).status("survey").spent == release_plan.pcost
    assert stale.exists()
    draw, journals_during_draw = measure_module.draw, []

    def recorded_draw(*args: Any) -> Any:
        journals_during_draw.append(journals(ledger))
        return draw(*args)

    monkeypatch.setattr(measure_module, "draw", recorded_draw)
    journals_after_kill = journals(ledger)
    ledger.add_dataset("census", total=Budget(pcost=1.0))
    assert measure(release_plan, RECORDS, dataset="census", ledger=ledger.path).key
    assert journals_during_draw == [journals_after_kill]


def test_journal_without_spend_is_removed_on_open(release_plan: Plan, ledger: Ledger) -> None:
    run_and_kill(lambda: run_release(release_plan, ledger), Ledger, "spend", after=False)
    Ledger(ledger.path)
    assert not journals(ledger)


def test_noise_bits_of_different_spends_differ(tmp_path: Path) -> None:
    """A seed restored from a copy gives other noise for other counts, releases and rows."""
    seeds = bytes(32), bytes([1]) * 32
    combinations = list(
        itertools.product(seeds, ("digest 1", "digest 2"), ("file 1", "file 2"), ("row 1", "row 2"))
    )
    samples = set()
    for seed, digest, name, row in combinations:
        journal = release_files.Journal(seed=seed, digest=digest, path=tmp_path / name)
        read_bytes = journal.bits(row)
        samples.add(read_bytes(64))
    assert len(samples) == len(combinations)
    # the numbers of one row differ, too
    journal = release_files.Journal(seed=bytes(32), digest="digest 1", path=tmp_path)
    read_bytes = journal.bits("row 1")
    assert len({read_bytes(8) for _ in range(1000)}) == 1000


def test_journal_seed_of_each_release_is_new(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = plan(Workload.all_ways(SCHEMA, ways=(1,)), Budget(pcost=0.1))
    seeds = []
    spend = Ledger.spend

    def spend_and_record_seed(self: Ledger, **options: object) -> object:
        seeds.extend(json.loads(path.read_text())["seed"] for path in journals(self))
        return spend(self, **options)

    monkeypatch.setattr(Ledger, "spend", spend_and_record_seed)
    for attempt in (1, 2):
        measure(small, RECORDS, dataset="survey", ledger=ledger, attempt=attempt)
    first, second = (bytes.fromhex(seed) for seed in seeds)
    assert len(first) == len(second) == 32
    assert first != second


def test_journal_is_synced_to_disk_before_spend(
    release_plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    link, sync, spend = os.link, release_files.sync_folder, Ledger.spend

    def recorded_link(source: Path, target: Path) -> None:
        if Path(target).suffix == ".journal":
            order.append("link")
        link(source, target)

    def recorded_sync(folder: Path) -> None:
        order.append("sync")
        sync(folder)

    def recorded_spend(self: Ledger, **options: Any) -> Any:
        order.append("spend")
        return spend(self, **options)

    monkeypatch.setattr(os, "link", recorded_link)
    monkeypatch.setattr(release_files, "sync_folder", recorded_sync)
    monkeypatch.setattr(Ledger, "spend", recorded_spend)
    run_release(release_plan, ledger)
    reserved, saved, removed = ["sync", "sync"], ["sync"], ["sync"]
    assert order == [*reserved, "link", "sync", "spend", *saved, *removed]


def test_noise_bits_have_mean_one_half(tmp_path: Path) -> None:
    read_bytes = release_files.Journal(seed=bytes(32), digest="a", path=tmp_path).bits("e")
    bits = np.unpackbits(np.frombuffer(read_bytes(1 << 16) + read_bytes(1 << 16), np.uint8))
    standard_error = 0.5 / np.sqrt(len(bits))
    # the seed is fixed, so the mean is deterministic
    assert bits.mean() == pytest.approx(0.5, abs=5 * standard_error)


@pytest.mark.parametrize(
    "records", [RECORDS, RECORDS.iloc[1:]], ids=["same records", "other records"]
)
def test_leftover_journal_of_saved_release_draws_nothing(
    release_plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, records: pd.DataFrame
) -> None:
    """After a kill between the save and the removal of the journal, no records are drawn again."""
    with monkeypatch.context() as killed_before_removal:
        killed_before_removal.setattr(release_files.Journal, "remove", lambda self: None)
        first = run_release(release_plan, ledger)
    assert len(journals(ledger)) == 1
    draws = []
    monkeypatch.setattr(measure_module, "draw", lambda *args: draws.append(args))
    is_drawn = measure_module.spend_draw_save(
        release_plan,
        count_marginals(records, SCHEMA, maximal_sets(release_plan)),
        ledger=ledger,
        key=first.key,
        spend=lambda: ledger.spend(
            dataset="survey", key=first.key, pcost=release_plan.pcost, plan_hash=release_plan.hash
        ),
        write=lambda file, receipt, drawn: measure_module._write(
            file, release_plan, receipt, drawn
        ),
    )
    assert not is_drawn
    assert draws == []
    assert journals(ledger) == []
    assert load_measurement(ledger, first.key) == first
