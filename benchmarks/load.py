"""The running app under load: `python -m benchmarks.load [--quick] [--write]`, about five minutes.

A real server is driven over WebSocket by clients that think for no time.  Seconds are those a person would wait on this
machine; CPU seconds, of the server without its workers, depend less on what else the machine does.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import demo_data
from benchmarks import options, table
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.server.client import Client, open_client
from tests.server.serving import RunningServer, run_server

MB = 2**20
Row = tuple[object, ...]
COLUMNS = ["what", "times", "median", "p95", "most", "CPU s", "bar", "", "slowest"]


@dataclass(kw_only=True)
class Size:
    """How much of everything is done."""

    rounds: int = 5
    clients: int = 10
    owners: int = 20  # of a plan each
    idle: int = 50
    rehearsals: int = 100
    seconds: int = 3  # for each mechanism of a Compare
    minute: float = 60.0
    options: tuple[str, ...] = ()


# sessions end, and give back, after a second; what is left out is the time that people have to come back
QUICK = Size(
    rounds=2,
    clients=4,
    owners=10,
    idle=10,
    rehearsals=8,
    seconds=1,
    minute=30,
    options=("--server.disconnectedSessionTTL", "1"),
)


def query(name: str, ways: tuple[int, ...], pcost: float = 1.0, **options: Any) -> str:
    """The address of a plan of all k-way tables of a demo schema."""
    schema = Schema.from_json(demo_data.schemas()[name].read_bytes())
    made = Studio(workload=Workload.all_ways(schema, ways), budget=Budget(pcost=pcost), options=options)
    return "plan=" + link.packed(made)


@dataclass(kw_only=True)
class Times:
    """Seconds of named actions, heard from many clients."""

    found: list[tuple[float, str]] = field(default_factory=list)

    def note(self, name: str, page: Client) -> None:
        """Keep how long the last action of a page took."""
        self.found.append((page.seconds, name))

    def row(self, what: str, spent: float, bar: str, p95: float, most: float) -> Row:
        """One line of the table; `p95` and `most` are the seconds that are allowed."""
        ranked = sorted(self.found)
        seconds = [s for s, _ in ranked]
        high = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
        met = "met" if high <= p95 and seconds[-1] <= most else "MISSED"
        middle = statistics.median(seconds)
        return what, len(seconds), middle, high, seconds[-1], spent / len(seconds), bar, met, ranked[-1][1]


def tab(key: str, names: Iterable[str]) -> Iterator[tuple[str, Callable[[Client], Client]]]:
    """Open one tab after the other."""
    for name in names:
        yield name, lambda page, name=name: page.set(key, string_value=name)


def switch(key: str) -> Iterator[tuple[str, Callable[[Client], Client]]]:
    """Switch something off and on again."""
    for value in (False, True):
        yield f"{key} {value}", lambda page, value=value: page.set(key, bool_value=value)


def unfold(*names: str) -> Iterator[tuple[str, Callable[[Client], Client]]]:
    """Open one fold after the other, and close it again."""
    for name in names:
        for value in (True, False):
            yield (
                f"fold {name} {value}",
                lambda page, name=name, value=value: page.set(f"fold_{name}", bool_value=value),
            )


def look(*groups: int) -> Iterator[tuple[str, Callable[[Client], Client]]]:
    """Look at one group after the other."""
    for group in groups:
        yield f"group {group}", lambda page, group=group: page.set("group", string_value=offered(page, "group")[group])


def offered(page: Client, key: str) -> Sequence[str]:
    """What a list offers."""
    options: Sequence[str] = page.elements[page.id_of(key)].options
    return options


# what a person does on each page that plans nothing
ACTIONS: dict[str, Sequence[tuple[str, Callable[[Client], Client]]]] = {
    "schema": [*switch("tutorial"), *tab("domain", ("Bins", "Size", "Labels"))],
    "workload": [*switch("tutorial"), *tab("add_how", ("One set of attributes", "Drag a range", "Write SQL"))],
    "preview": [*look(20, 60, 0), *unfold("share", "shares", "probe", "limit", "promise", "mechanism")],
    "compare": [*tab("compare_view", ("Two plans", "Published numbers", "Ranking"))],
    "coarse": [*switch("tutorial"), *tab("coarse_step", ("Look for real", "Earlier looks", "Rehearse"))],
    "learn": [*switch("tutorial")],
    "guide": [*tab("guide", ("Release and verify",))],
    "release": [
        *tab("step", ("2. Release", "3. Paid releases", "1. Rehearse")),
        *tab(
            "rehearsal_view",
            ("Tables to publish", "Ask something else", "Download", "Do the intervals hold?", "Answers"),
        ),
    ],
}


def line(row: Sequence[object]) -> str:
    """A line of the table."""
    shown = [f"{x:.3f}" if isinstance(x, float) else str(x) for x in row]
    numbers = "".join(x.rjust(7) for x in shown[1:6])
    return f"{shown[0]:<62}{numbers}  {shown[6]:<13}{shown[7]:<8}{shown[8]}".rstrip()


def memory(server: RunningServer) -> float:
    """Megabytes of the server itself."""
    return psutil.Process(server.process.pid).memory_info().rss / MB


def cpu(server: RunningServer) -> float:
    """CPU seconds of the server itself."""
    times = psutil.Process(server.process.pid).cpu_times()
    return times.user + times.system


def at(server: RunningServer, name: str, asked: str) -> Client:
    """A session on a page that is drawn."""
    page = open_client(server, name, asked)
    if name == "preview":
        page.until("Typical error")
    if name == "release":
        page.press("rehearse").until("REHEARSAL on")
    return page


def alone(server: RunningServer, size: Size) -> Iterator[Row]:
    """One user on every page, with Adult's tables of two attributes, and of three where errors are predicted."""
    for name, ways in [*((name, (1, 2)) for name in ACTIONS), ("preview", (1, 2, 3))]:
        page, times = at(server, name, query("adult", ways)), Times()
        before, largest = cpu(server), page.size
        for _ in range(size.rounds):
            for word, act in ACTIONS[name]:
                times.note(word, act(page))
                largest = max(largest, page.size)
        yield times.row(f"alone: {name}, <={ways[-1]}-way", cpu(server) - before, "p95 0.2", 0.2, 60)
        yield sized(f"{name}, <={ways[-1]}-way", largest)
        if name == "preview":
            times, before = Times(), cpu(server)
            for k in range(2 * size.rounds):
                times.note("budget", page.set("budget_epsilon_0", double_value=1.5 + k / 7))
            yield times.row(f"alone: another budget, <={ways[-1]}-way", cpu(server) - before, "p95 1", 1, 2)
        page.close()


def user(server: RunningServer, number: int, rounds: int, times: Times) -> None:
    """Somebody on the Preview page, who changes the budget now and then."""
    page = at(server, "preview", query("adult", (1, 2), 1.0 + number))
    for k in range(rounds):
        for word, act in ACTIONS["preview"]:
            times.note(word, act(page))
        times.note("budget", page.set("budget_epsilon_0", double_value=2.0 + number + k / 7))
    page.close()


def together(server: RunningServer, size: Size) -> Iterator[Row]:
    """Several users at once, each with a budget of their own."""
    times, before = Times(), cpu(server)
    threads = [
        threading.Thread(target=user, args=(server, number, size.rounds, times)) for number in range(size.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield times.row(f"{size.clients} users at once", cpu(server) - before, "p95 1, max 2", 1, 2)


@contextmanager
def busy(server: RunningServer, what: str, size: Size) -> Iterator[Client]:
    """A session whose workers are at work: a plan for the largest variance, or a Compare."""
    if what == "a plan":
        page = open_client(server, "preview", query("adult", (1, 2, 3), objective="max"))
        page.press("plan_now")
    else:
        page = open_client(server, "compare", query("adult", (1, 2)))
        page.press("compare_all").set("compare_limit", int_value=size.seconds).press("compare_start")
    yield page
    page.close()


def beside(server: RunningServer, size: Size) -> Iterator[Row]:
    """Two users while the workers are busy for a third, and the bytes of the Compare when it is done."""
    for what in ("a plan", "a Compare"):
        with busy(server, what, size) as page:
            times, before = Times(), cpu(server)
            others = [threading.Thread(target=user, args=(server, n, size.rounds, times)) for n in range(2)]
            for other in others:
                other.start()
            for other in others:
                other.join()
            still = "cancel_" in page.run().text
            yield times.row(f"two users beside {what}", cpu(server) - before, "max 1", 60, 1)
            if not still:
                yield f"{what} was over before the others were", *[""] * (len(COLUMNS) - 1)
            elif what == "a Compare":
                yield from compared(server, page.until("Done: the results are below"), size)


def compared(server: RunningServer, page: Client, size: Size) -> Iterator[Row]:
    """The pictures of a Compare that is done: seconds, and bytes to the browser."""
    times, largest, before = Times(), page.size, cpu(server)
    views = (
        "Other budgets",
        "How errors spread",
        "A against B",
        "Strategies",
        "Two plans",
        "Published numbers",
        "Ranking",
    )
    for _ in range(size.rounds):
        for word, act in tab("compare_view", views):
            times.note(word, act(page))
            largest = max(largest, page.size)
    yield times.row("alone: compare, with results", cpu(server) - before, "p95 0.2", 0.2, 60)
    yield sized("Compare", largest)


def sized(name: str, largest: float) -> Row:
    """A line about the bytes of a page."""
    met = "met" if largest <= 200_000 else "MISSED"
    return f"{name}: {largest / 1000:.0f} KB to the browser at most", *[""] * 5, "200 KB", met, ""


def contents(server: RunningServer, _: Size) -> Iterator[Row]:
    """First content of a server that has just started and of a warm one."""
    for word, bar in (("cold", 2.5), ("warm", 0.6)):
        page = open_client(server)
        seconds = page.first_seconds
        met = "met" if seconds <= bar else "MISSED"
        yield f"first content, {word}", 1, seconds, seconds, seconds, "", f"{bar}", met, ""
        page.close()


def owners(server: RunningServer, size: Size) -> Iterator[Row]:
    """People with a workload each, who come back after all the others: their plans are still there."""
    asked = [query("adult", (1, 2, 3), 1 + k / 64) for k in range(size.owners)]
    spent = []
    for _ in range(2):
        before = cpu(server)
        for one in asked:
            at(server, "preview", one).close()
        spent.append((cpu(server) - before) / len(asked))
    met = "met" if spent[1] < 0.7 * spent[0] else "MISSED"
    words = f"{size.owners} users with a plan each come back: CPU s {spent[0]:.2f}, then {spent[1]:.2f}"
    yield words, *[""] * 5, "less", met, ""


def idle(server: RunningServer, size: Size) -> Iterator[Row]:
    """What many sessions cost while nobody does anything, once those before them have ended."""
    pages = [at(server, "preview", query("adult", (1, 2))) for _ in range(size.idle)]
    time.sleep(size.minute)
    held, before, begun = memory(server), cpu(server), time.monotonic()
    time.sleep(15)
    share = (cpu(server) - before) / (time.monotonic() - begun)
    for page in pages:
        page.close()
    met = "met" if held <= 400 and share <= 0.02 else "MISSED"
    yield f"{size.idle} idle sessions: {held:.0f} MB, {share:.1%} CPU", *[""] * 5, "400 MB, 2%", met, ""


def rehearsals(server: RunningServer, size: Size) -> Iterator[Row]:
    """Memory before and a minute after sessions that rehearsed Adult's tables of three attributes."""
    asked = query("adult", (1, 2, 3))
    at(server, "release", asked).close()
    time.sleep(size.minute)
    before, most, left = memory(server), [0.0], iter(range(size.rehearsals))

    def rehearse() -> None:
        for _ in left:  # an iterator of numbers is shared safely
            page = at(server, "release", asked)
            most.append(memory(server))
            page.close()

    threads = [threading.Thread(target=rehearse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(size.minute)
    after = memory(server)
    words = (
        f"{size.rehearsals} rehearsals: {before:.0f} MB, at most {max(most):.0f}, {size.minute:g} s later {after:.0f}"
    )
    yield words, *[""] * 5, "+10%", "met" if after <= 1.1 * before else "MISSED", ""


def strangers(server: RunningServer, size: Size) -> Iterator[Row]:
    """Whatever the server asked of other machines."""
    number = len(server.outside_hosts())
    yield f"asked of other hosts: {number}", *[""] * 5, "0", "MISSED" if number else "met", ""


def main() -> None:
    """Print the table."""
    parser = options(__file__, __doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, in about a minute")
    given = parser.parse_args()
    size, begun = QUICK if given.quick else Size(), time.monotonic()
    gc.freeze()  # nobody waits while the clients' own objects are looked through
    with table(__file__, write=given.write) as show:
        show(f"{os.cpu_count()} cores, load of the machine {os.getloadavg()[0]:.1f}; seconds that somebody waits", "")
        show(line(COLUMNS))
        with (
            tempfile.TemporaryDirectory() as folder,
            run_server(Path(folder), *size.options, DP_WORKBENCH_CACHE=f"{folder}/cache") as server,
        ):
            for part in (contents, alone, together, beside, owners, idle, rehearsals, strangers):
                for row in part(server, size):
                    show(line(row))
        show(f"{time.monotonic() - begun:.0f} s in all, load of the machine {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
