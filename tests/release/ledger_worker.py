"""Processes that spend, draw and save on one ledger, and a campaign that kills them at random moments.

python -m tests.release.ledger_worker --kills 1000
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import engine.release.ledger.ledger
from engine.errors import BudgetExceeded, ResultLost
from engine.privacy import Budget
from engine.release import Ledger, release_key
from engine.release.ledger.results import result_file

FORK = multiprocessing.get_context("fork")
DATASETS = tuple(f"set {i}" for i in range(8))
COSTS = (0.3, 0.07, 0.01)
ATTEMPTS = 60  # asks for 7.6 of a total of 1 per dataset
PHASES = ("reading", "spending", "spent, before the draw", "drawn, saving", "a row was in its commit")
KILLS_PER_LEDGER = 40


def make(path: Path) -> Ledger:
    ledger = Ledger.create(path)
    for dataset in DATASETS:
        ledger.add_dataset(dataset, total=Budget(pcost=1.0))
    return ledger


def content_of(key: str) -> bytes:
    """What is drawn under a key: known, so that a reader can tell a whole result."""
    return key.encode() * (1 + sum(key.encode()) % 2000)


def work(path: Path, draws: Path, phase, number: int, seed: int) -> None:
    """Ask for random keys for ever, as a server would; each draw leaves a line in the file `draws`."""
    rng, ledger, append = random.Random(seed), Ledger(path), engine.release.ledger.ledger.append

    def append_seen(*args, **fields):
        row = append(*args, **fields)
        phase[number] = 4
        return row

    engine.release.ledger.ledger.append = append_seen
    while True:
        dataset, attempt = rng.choice(DATASETS), rng.randrange(ATTEMPTS) + 1
        key = release_key(dataset=dataset, plan_hash="plan", attempt=attempt)
        phase[number] = 1
        try:
            receipt = ledger.spend(dataset=dataset, key=key, pcost=COSTS[attempt % 3], plan_hash="plan")
        except BudgetExceeded:
            time.sleep(0.005)
            continue
        finally:
            phase[number] = 0
        if receipt.fresh:
            phase[number] = 2
            mark(draws, key)
            phase[number] = 3
            ledger.save_result(receipt=receipt, content=content_of(key))
            phase[number] = 0
        else:
            with suppress(ResultLost):
                assert ledger.load_result(key) == content_of(key)


def mark(draws: Path, key: str) -> None:
    handle = os.open(draws, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{key}\n".encode())
    os.close(handle)


def check(path: Path, draws: Path) -> Counter:
    """What must hold at every moment; costs are added here in decimal, apart from the engine's own sums."""
    drawn = draws.read_text().split("\n")[:-1] if draws.exists() else []
    ledger = Ledger(path)
    assert ledger.verify() == ()
    spent, keys, saved, rows = Counter(), [], [], ledger.rows()
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
    return Counter(spends=len(keys), draws=len(drawn), saved=len(saved), full=sum(cost == 1 for cost in spent.values()))


def campaign(folder: Path, *, kills: int, workers: int = 4, seed: int = 0) -> Counter:
    """Kill a random worker `kills` times with SIGKILL, checking everything after each kill; counts of what was seen."""
    rng, counts, started = random.Random(seed), Counter(), time.monotonic()
    while counts["kills"] < kills:
        path, draws = folder / f"{counts['kills']}.ledger", folder / f"{counts['kills']}.draws"
        make(path)
        phase = FORK.RawArray("i", workers)

        def start(number: int, path=path, draws=draws, phase=phase):
            process = FORK.Process(target=work, args=(path, draws, phase, number, rng.getrandbits(60)), daemon=True)
            process.start()
            return process

        crew = [start(number) for number in range(workers)]
        try:
            for _ in range(min(KILLS_PER_LEDGER, kills - counts["kills"])):
                time.sleep(rng.uniform(0, 0.06))
                number = rng.randrange(workers)
                os.kill(crew[number].pid, signal.SIGKILL)
                crew[number].join()
                counts["kills"] += 1
                counts[f"killed while {PHASES[phase[number]]}"] += 1
                phase[number] = 0
                check(path, draws)
                assert all(other.is_alive() for other in crew if other is not crew[number]), "a worker failed by itself"
                crew[number] = start(number)
        finally:
            for process in crew:
                process.kill()
                process.join()
        counts += check(path, draws)
        counts["ledgers"] += 1
        counts["journals left behind"] += path.with_name(path.name + "-journal").exists()
    counts["seconds"] = round(time.monotonic() - started)
    return counts


def hammer(path: Path, seed: int, found) -> None:
    """Ask for every key of one dataset in random order; report which were fresh here and which were refused."""
    ledger, attempts = Ledger(path), list(range(1, ATTEMPTS + 1))
    random.Random(seed).shuffle(attempts)
    fresh, refused = [], []
    for attempt in attempts:
        key = release_key(dataset=DATASETS[0], plan_hash="plan", attempt=attempt)
        try:
            if ledger.spend(dataset=DATASETS[0], key=key, pcost=COSTS[attempt % 3], plan_hash="plan").fresh:
                fresh.append(key)
        except BudgetExceeded:
            refused.append(key)
    found.put((fresh, refused))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(campaign(Path(place), **vars(options)), indent=1))
