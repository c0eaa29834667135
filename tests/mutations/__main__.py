"""Plant every bug, one at a time, and print which test notices it; exit code 1 when one is missed."""

from __future__ import annotations

import argparse
import difflib
import queue
import random
import sys
import threading

from tests.mutations.bugs import BUGS
from tests.mutations.planting import Bug, copied, load_libraries, planted, verdict


def main(arguments: list[str] | None = None) -> int:
    """Run what the options ask for and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the bugs, by parts of their names")
    parser.add_argument("--exactly", nargs="+", metavar="NAME", help="some of the bugs, by their whole names")
    parser.add_argument("--sample", type=int, metavar="NUMBER", help="so many of them, drawn with --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested side by side")
    parser.add_argument("--trust", action="store_true", help="do not first see that the tests pass without any bug")
    parser.add_argument("--list", action="store_true", help="print names and files, and run nothing")
    given = parser.parse_args(arguments)
    for name in given.only or ():
        if not any(name in b.name for b in BUGS):
            parser.error(_unknown("has in its name", name))
    for name in given.exactly or ():
        if not any(name == b.name for b in BUGS):
            parser.error(_unknown("is named", name))
    chosen = [b for b in BUGS if not given.only or any(part in b.name for part in given.only)]
    if given.exactly:
        chosen = [b for b in chosen if b.name in given.exactly]
    if not chosen:
        parser.error("no bug fits both --only and --exactly; give one of them")
    if given.sample is not None:
        chosen = random.Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    if given.list:
        print("\n".join(f"{b.name:55} {b.file}" for b in chosen))
        return 0
    load_libraries()
    if not given.trust:
        with copied() as place:
            found = verdict(place, sorted({test for b in chosen for test in b.tests}))
        if not found.sound:
            print(f"Without any bug a test fails already: {found.failed}\n{found.output}")
            return 2
        print(f"without any bug all named tests pass ({found.seconds:.0f} s)", flush=True)
    missed = _campaign(chosen, max(1, given.jobs))
    print(f"{len(chosen)} bugs planted, {len(chosen) - len(missed)} caught, {len(missed)} missed", flush=True)
    return 1 if missed or not chosen else 0


def _unknown(does: str, name: str) -> str:
    """What to say of a name that fits no bug."""
    near = difflib.get_close_matches(name, [b.name for b in BUGS], n=3, cutoff=0.3)
    hint = f"; near: {', '.join(map(repr, near))}" if near else ""
    return f"no bug {does} {name!r}{hint}; --list names all"


def _campaign(chosen: list[Bug], jobs: int) -> list[str]:
    """Names of the bugs that nobody noticed."""
    waiting: queue.SimpleQueue[Bug] = queue.SimpleQueue()
    for mutation in chosen:
        waiting.put(mutation)
    missed: list[str] = []

    def work() -> None:
        with copied() as place:
            while not waiting.empty():
                try:
                    mutation = waiting.get_nowait()
                except queue.Empty:
                    return
                with planted(mutation, place):
                    found = verdict(place, mutation.tests)
                if not found.failed:
                    missed.append(mutation.name)
                word, who = ("caught", found.failed) if found.failed else ("MISSED", ", ".join(mutation.tests))
                print(f"{word}  {mutation.name:55} {found.seconds:5.1f} s  {who}", flush=True)
                if not found.failed:
                    print(f"        {'passed' if found.sound else 'neither passed nor failed'}: {found.output[-2000:]}")

    crew = [threading.Thread(target=work) for _ in range(jobs)]
    for worker in crew:
        worker.start()
    for worker in crew:
        worker.join()
    return missed


if __name__ == "__main__":
    sys.exit(main())
