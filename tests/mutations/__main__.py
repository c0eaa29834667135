"""Command that plants every bug and prints the test that detects it."""

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
    """Run the campaign of the selected options and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="some of the bugs, by parts of their names"
    )
    parser.add_argument(
        "--exactly", nargs="+", metavar="NAME", help="some of the bugs, by their full names"
    )
    parser.add_argument(
        "--sample", type=int, metavar="NUMBER", help="number of bugs to draw with --seed"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--jobs", type=int, default=1, help="number of copies that are tested in parallel"
    )
    parser.add_argument(
        "--trust", action="store_true", help="do not first run the tests without any bug"
    )
    parser.add_argument(
        "--list", action="store_true", help="print names and files, and run nothing"
    )
    args = parser.parse_args(arguments)
    for name in args.only or ():
        if not any(name in b.name for b in BUGS):
            parser.error(_unknown("has in its name", name))
    for name in args.exactly or ():
        if not any(name == b.name for b in BUGS):
            parser.error(_unknown("is named", name))
    chosen = [b for b in BUGS if not args.only or any(part in b.name for part in args.only)]
    if args.exactly:
        chosen = [b for b in chosen if b.name in args.exactly]
    if not chosen:
        parser.error("no bug fits both --only and --exactly; give one of them")
    if args.sample is not None:
        chosen = random.Random(args.seed).sample(chosen, min(args.sample, len(chosen)))
    if args.list:
        print("\n".join(f"{b.name:55} {b.file}" for b in chosen))
        return 0
    load_libraries()
    if not args.trust:
        with copied() as place:
            result = verdict(place, sorted({test for b in chosen for test in b.tests}))
        if not result.sound:
            print(f"Without any bug a test fails already: {result.failed}\n{result.output}")
            return 2
        print(f"without any bug all named tests pass ({result.seconds:.0f} s)", flush=True)
    missed = _campaign(chosen, max(1, args.jobs))
    print(
        f"{len(chosen)} bugs planted, {len(chosen) - len(missed)} caught, {len(missed)} missed",
        flush=True,
    )
    return 1 if missed or not chosen else 0


def _unknown(criterion: str, name: str) -> str:
    """Return the error message for a name that matches no bug by the criterion, a verb phrase."""
    near = difflib.get_close_matches(name, [b.name for b in BUGS], n=3, cutoff=0.3)
    hint = f"; near: {', '.join(map(repr, near))}" if near else ""
    return f"no bug {criterion} {name!r}{hint}; --list names all"


def _campaign(chosen: list[Bug], jobs: int) -> list[str]:
    """Plant bugs in copies of the project and return the names of those that no test detects."""
    waiting: queue.SimpleQueue[Bug] = queue.SimpleQueue()
    for mutation in chosen:
        waiting.put(mutation)
    missed: list[str] = []

    def work() -> None:
        """Plant the waiting bugs one by one, and print whether a test detects each of them."""
        with copied() as place:
            while not waiting.empty():
                try:
                    mutation = waiting.get_nowait()
                except queue.Empty:
                    return
                with planted(mutation, place):
                    result = verdict(place, mutation.tests)
                words = f"{mutation.name:55} {result.seconds:5.1f} s"
                if result.failed:
                    print(f"caught  {words}  {result.failed}", flush=True)
                else:
                    missed.append(mutation.name)
                    outcome = "passed" if result.sound else "neither passed nor failed"
                    print(
                        f"MISSED  {words}  {', '.join(mutation.tests)}\n"
                        f"        {outcome}: {result.output[-2000:]}",
                        flush=True,
                    )

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return missed


if __name__ == "__main__":
    sys.exit(main())
