"""Ledger campaigns: random kills, random edits of the file, and the fault tests.

python -m tests.release.ledger_worker --kills 1000 --edits 1000
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path

import engine.ledger.ledger
from engine.errors import BudgetExceeded, LedgerError, ResultLost
from engine.ledger import Ledger, release_key
from engine.ledger.release_files import result_file
from engine.privacy import Budget
from tests.waiting import CEILING, until

FORK = multiprocessing.get_context("fork")
DATASETS = tuple(f"set {i}" for i in range(8))
COSTS = (0.3, 0.07, 0.01)
ATTEMPTS = 60  # together they cost 7.6, more than the total of a dataset, which is 1
PHASES = ("reading", "spending", "spent, before the draw", "drawn, saving", "committing a row")
READING, SPENDING, SPENT, DRAWN, COMMITTING = range(len(PHASES))
KILLS_PER_LEDGER = 40


def create_ledger(path: Path) -> Ledger:
    ledger = Ledger.create(path)
    for dataset in DATASETS:
        ledger.add_dataset(dataset, total=Budget(pcost=1.0))
    return ledger


def content_of(key: str) -> bytes:
    """Return the result of a key; a reader recognises from it whether it is complete."""
    return key.encode() * (1 + sum(key.encode()) % 2000)


def work(path: Path, draws: Path, phase, number: int, seed: int) -> None:
    """Spend, draw and read results of random keys in an endless loop.

    Each draw appends its key to the file ``draws``.  ``phase[number]`` always holds the current
    step of this worker, so that the campaign knows at which step it was killed.
    """
    rng = random.Random(seed)
    ledger = Ledger(path, wait=CEILING)
    append = engine.ledger.ledger.append

    def append_and_note_phase(*args, **fields):
        row = append(*args, **fields)
        phase[number] = COMMITTING
        return row

    engine.ledger.ledger.append = append_and_note_phase
    while True:
        dataset = rng.choice(DATASETS)
        attempt = rng.randrange(ATTEMPTS) + 1
        key = release_key(dataset=dataset, plan_hash="plan", attempt=attempt)
        phase[number] = SPENDING
        try:
            receipt = ledger.spend(
                dataset=dataset, key=key, pcost=COSTS[attempt % 3], plan_hash="plan"
            )
        except BudgetExceeded:
            time.sleep(0.005)
            continue
        finally:
            phase[number] = READING
        if receipt.fresh:
            phase[number] = SPENT
            mark(draws, key)
            phase[number] = DRAWN
            ledger.save_result(receipt=receipt, content=content_of(key))
            phase[number] = READING
        else:
            with suppress(ResultLost):
                assert ledger.load_result(key) == content_of(key)


def mark(draws: Path, key: str) -> None:
    """Append the key to a file by one system call, which a kill cannot interrupt."""
    handle = os.open(draws, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{key}\n".encode())
    os.close(handle)


def check(path: Path, draws: Path) -> Counter:
    """Assert the invariants of a ledger, and return its numbers of spends, draws and results.

    Costs are summed here as decimals, independently of the engine.
    """
    drawn = draws.read_text().split("\n")[:-1] if draws.exists() else []
    ledger = Ledger(path, wait=CEILING)
    assert ledger.verify() == ()
    spent = Counter()
    keys = []
    saved = []
    rows = ledger.rows()
    for row in rows:
        if row.kind == "spend":
            spent[row.dataset] += Decimal(row.pcost)
            keys.append(row.key)
        elif row.kind == "saved":
            saved.append(row.key)
    assert all(cost <= 1 for cost in spent.values()), f"overspent: {spent}"
    assert len(set(keys)) == len(keys), "a key was spent twice"
    assert len(set(drawn)) == len(drawn), "a key was drawn twice"
    assert set(drawn) <= set(keys), "a draw without a spend"
    assert set(saved) <= set(keys), "a result without a spend"
    for key in saved:
        assert result_file(path, key).read_bytes() == content_of(key)
    for key in saved[-1:]:
        assert ledger.load_result(key) == content_of(key)
    return Counter(
        spends=len(keys),
        draws=len(drawn),
        saved=len(saved),
        full=sum(cost == 1 for cost in spent.values()),
    )


def campaign(folder: Path, *, kills: int, workers: int = 4, seed: int = 0) -> Counter:
    """Kill a random worker `kills` times and check the ledger after each kill.

    Returns the number of events of each kind, and the seconds that the campaign took.
    """
    rng = random.Random(seed)
    counts = Counter()
    started = time.monotonic()
    while counts["kills"] < kills:
        path, draws = folder / f"{counts['kills']}.ledger", folder / f"{counts['kills']}.draws"
        create_ledger(path)
        phase = FORK.RawArray("i", workers)

        def start(number: int, path=path, draws=draws, phase=phase):
            process = FORK.Process(
                target=work, args=(path, draws, phase, number, rng.getrandbits(60)), daemon=True
            )
            process.start()
            return process

        processes = [start(number) for number in range(workers)]
        try:
            # On a busy machine, all workers could be killed before one saves a result.
            if not counts["ledgers"]:
                until(
                    lambda path=path: any(
                        row.kind == "saved" for row in Ledger(path, wait=CEILING).rows()
                    ),
                    pause=0.1,
                )
            for _ in range(min(KILLS_PER_LEDGER, kills - counts["kills"])):
                time.sleep(rng.uniform(0, 0.06))
                number = rng.randrange(workers)
                os.kill(processes[number].pid, signal.SIGKILL)
                processes[number].join()
                counts["kills"] += 1
                counts[f"killed while {PHASES[phase[number]]}"] += 1
                phase[number] = READING
                check(path, draws)
                assert all(
                    other.is_alive() for other in processes if other is not processes[number]
                ), "a worker failed by itself"
                processes[number] = start(number)
        finally:
            for process in processes:
                process.kill()
                process.join()
        counts += check(path, draws)
        counts["ledgers"] += 1
        counts["journals left behind"] += path.with_name(path.name + "-journal").exists()
    counts["seconds"] = round(time.monotonic() - started)
    return counts


def spend_every_key(path: Path, seed: int, results) -> None:
    """Spend every key of one dataset in random order; report the fresh and the refused keys."""
    ledger, attempts = Ledger(path, wait=CEILING), list(range(1, ATTEMPTS + 1))
    random.Random(seed).shuffle(attempts)
    fresh, refused = [], []
    for attempt in attempts:
        key = release_key(dataset=DATASETS[0], plan_hash="plan", attempt=attempt)
        try:
            if ledger.spend(
                dataset=DATASETS[0], key=key, pcost=COSTS[attempt % 3], plan_hash="plan"
            ).fresh:
                fresh.append(key)
        except BudgetExceeded:
            refused.append(key)
    results.put((fresh, refused))


def tamper(path: Path, *statements: str) -> None:
    """Edit the file and restore its triggers, so that only the hash chain shows the edit."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        triggers = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        for _, sql in triggers:
            connection.execute(sql)


def random_edit(path: Path, rows: int, rng: random.Random) -> None:
    """Edit a ledger at random.

    The edit changes a byte or a cell, deletes a row or the last rows, or swaps the numbers of two
    rows.  A swap of a row with itself changes nothing.
    """
    seq = rng.randint(1, rows)
    other = rng.randint(1, rows)
    kind = rng.randrange(5)
    column = rng.choice(
        ("utc", "kind", "dataset", "key", "pcost", "plan_hash", "sha256", "note", "hash")
    )
    if kind == 0:
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= rng.randint(1, 255)
        path.write_bytes(content)
    elif kind == 1:
        tamper(path, f"UPDATE rows SET {column} = {column} || '0' WHERE seq = {seq}")
    elif kind == 2:
        tamper(path, f"DELETE FROM rows WHERE seq = {seq}")
    elif kind == 3:
        tamper(path, f"DELETE FROM rows WHERE seq >= {seq}")
    elif seq != other:
        swaps = ((seq, -1), (other, seq), (-1, other))
        tamper(path, *(f"UPDATE rows SET seq = {to} WHERE seq = {at}" for at, to in swaps))


def edits(folder: Path, *, count: int, seed: int = 0) -> Counter:
    """Edit copies of a ledger at random; return the numbers of edits and of detected edits.

    A program that opens the ledger later, and one that has opened it before, must both refuse to
    spend unless the edit changed no row.
    """
    rng = random.Random(seed)
    counts = Counter()
    path = folder / "edited.ledger"
    ledger = create_ledger(path)
    for attempt in range(4):
        receipt = ledger.spend(
            dataset=DATASETS[0], key=f"key {attempt}", pcost=0.2, plan_hash="plan"
        )
        ledger.save_result(receipt=receipt, content=content_of(receipt.key))
    content, rows = path.read_bytes(), ledger.rows()
    for attempt in range(count):
        path.write_bytes(content)
        in_use = Ledger(path)
        random_edit(path, len(rows), rng)
        refusals = 0
        for open_ledger in (lambda: Ledger(path, wait=0.1), lambda book=in_use: book):
            try:
                open_ledger().spend(
                    dataset=DATASETS[0], key=f"new {attempt}", pcost=0.1, plan_hash="plan"
                )
            except LedgerError:
                refusals += 1
            else:  # a flipped byte in unused space, or in an index, changes no row
                assert ledger.rows()[: len(rows)] == rows, "an edit that was not noticed"
        counts["edits"] += 1
        counts["noticed"] += refusals == 2
    return counts


def faults() -> str:
    """Run the ledger tests (full disks, locks, damage, lost files); return the last line.

    If a test fails, print the output and exit.
    """
    tests = Path(__file__).parents[1] / "ledger"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", tests], capture_output=True, text=True, check=False
    )
    if run.returncode:
        sys.exit(run.stdout)
    return run.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--edits", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        counts = campaign(
            Path(place), kills=options.kills, workers=options.workers, seed=options.seed
        )
        print(json.dumps(counts, indent=1), flush=True)
        print(
            json.dumps(edits(Path(place), count=options.edits, seed=options.seed), indent=1),
            flush=True,
        )
    print(f"faults: {faults()}")
