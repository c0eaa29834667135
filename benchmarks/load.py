"""The running app under load: `python -m benchmarks.load [--quick] [--write]`, about five minutes.

Clients without think time drive a real server over WebSocket. Seconds are waiting times on this
machine; CPU seconds of the server, without its workers, depend less on other load.
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
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.server.client import Client, open_client
from tests.server.serving import RunningServer, run_server

MB = 2**20
Row = tuple[object, ...]
COLUMNS = ["what", "times", "median", "p95", "most", "CPU s", "bar", "", "slowest"]


@dataclass(kw_only=True)
class Size:
    """Numbers of rounds, clients and sessions."""

    rounds: int = 5
    clients: int = 10
    owners: int = 20  # of a plan each
    idle: int = 50
    rehearsals: int = 100
    seconds: int = 3  # for each mechanism of a Compare
    minute: float = 60.0
    options: tuple[str, ...] = ()


# sessions expire after a second instead of the time that users have to return
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
    studio = RequestState(
        workload=Workload.all_ways(schema, ways), budget=Budget(pcost=pcost), options=options
    )
    return "plan=" + permalink.packed(studio)


@dataclass(kw_only=True)
class Times:
    """Seconds of named actions of many clients."""

    durations: list[tuple[float, str]] = field(default_factory=list)

    def note(self, name: str, page: Client) -> None:
        """Record the duration of the last action of a page."""
        self.durations.append((page.seconds, name))

    def row(self, what: str, spent: float, bar: str, p95: float, most: float) -> Row:
        """One line of the table; `p95` and `most` are the seconds that are allowed."""
        ranked = sorted(self.durations)
        seconds = [s for s, _ in ranked]
        high = seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))]
        met = "met" if high <= p95 and seconds[-1] <= most else "MISSED"
        middle = statistics.median(seconds)
        return (
            what,
            len(seconds),
            middle,
            high,
            seconds[-1],
            spent / len(seconds),
            bar,
            met,
            ranked[-1][1],
        )


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
        yield (
            f"group {group}",
            lambda page, group=group: page.set(
                "group", string_value=options_of(page, "group")[group]
            ),
        )


def options_of(page: Client, key: str) -> Sequence[str]:
    """What a list offers."""
    options: Sequence[str] = page.elements[page.id_of(key)].options
    return options


# what a person does on each page that plans nothing
ACTIONS: dict[str, Sequence[tuple[str, Callable[[Client], Client]]]] = {
    "schema": [*switch("tutorial"), *tab("domain", ("Bins", "Size", "Labels"))],
    "workload": [*switch("tutorial"), *tab("add_how", ("One table", "Pick a range", "Write SQL"))],
    "preview": [
        *look(20, 60, 0),
        *unfold("share", "shares", "probe", "limit", "promise", "mechanism"),
    ],
    "compare": [*tab("compare_view", ("Two plans", "Published numbers", "Ranking"))],
    "coarse": [
        *switch("tutorial"),
        *tab("coarse_step", ("2. Rule", "Past measurements", "1. Analyses")),
    ],
    "learn": [*switch("tutorial")],
    "guide": [*tab("guide", ("Release and verify",))],
    "release": [
        *tab("step", ("2. File", "Past releases", "1. Rehearse")),
        *tab(
            "rehearsal_view",
            (
                "Tables to publish",
                "Ask something else",
                "Download",
                "Do the intervals hold?",
                "Answers",
            ),
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


def open_page(server: RunningServer, name: str, address_query: str) -> Client:
    """A session on a page that is drawn."""
    page = open_client(server, name, address_query)
    if name == "preview":
        page.until("Typical error")
    if name == "release":
        page.press("rehearse").until("REHEARSAL on")
    return page


def single_user(server: RunningServer, size: Size) -> Iterator[Row]:
    """One user on every page, with all two-way tables of Adult, or three-way for Preview."""
    for name, ways in [*((name, (1, 2)) for name in ACTIONS), ("preview", (1, 2, 3))]:
        page, times = open_page(server, name, query("adult", ways)), Times()
        before, largest = cpu(server), page.size
        for _ in range(size.rounds):
            for word, act in ACTIONS[name]:
                times.note(word, act(page))
                largest = max(largest, page.size)
        yield times.row(
            f"alone: {name}, <={ways[-1]}-way", cpu(server) - before, "p95 0.2", 0.2, 60
        )
        yield page_bytes(f"{name}, <={ways[-1]}-way", largest)
        if name == "preview":
            times, before = Times(), cpu(server)
            for k in range(2 * size.rounds):
                times.note("budget", page.set("budget_epsilon_0", double_value=1.5 + k / 7))
            yield times.row(
                f"alone: another budget, <={ways[-1]}-way", cpu(server) - before, "p95 1", 1, 2
            )
        page.close()


def user(server: RunningServer, number: int, rounds: int, times: Times) -> None:
    """A user of the Preview page who sometimes changes the budget."""
    page = open_page(server, "preview", query("adult", (1, 2), 1.0 + number))
    for k in range(rounds):
        for word, act in ACTIONS["preview"]:
            times.note(word, act(page))
        times.note("budget", page.set("budget_epsilon_0", double_value=2.0 + number + k / 7))
    page.close()


def several_users(server: RunningServer, size: Size) -> Iterator[Row]:
    """Several simultaneous users with different budgets."""
    times, before = Times(), cpu(server)
    threads = [
        threading.Thread(target=user, args=(server, number, size.rounds, times))
        for number in range(size.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield times.row(f"{size.clients} users at once", cpu(server) - before, "p95 1, max 2", 1, 2)


@contextmanager
def busy_session(server: RunningServer, what: str, size: Size) -> Iterator[Client]:
    """Yield a session while its workers compute a plan for the largest variance or a comparison."""
    if what == "a plan":
        page = open_client(server, "preview", query("adult", (1, 2, 3), objective="max"))
        page.press("plan_now")
    else:
        page = open_client(server, "compare", query("adult", (1, 2)))
        page.press("compare_all").set("compare_limit", int_value=size.seconds).press(
            "compare_start"
        )
    yield page
    page.close()


def during_work(server: RunningServer, size: Size) -> Iterator[Row]:
    """Two users while workers are busy for a third; bytes of the finished comparison."""
    for what in ("a plan", "a Compare"):
        with busy_session(server, what, size) as page:
            times, before = Times(), cpu(server)
            others = [
                threading.Thread(target=user, args=(server, n, size.rounds, times))
                for n in range(2)
            ]
            for other in others:
                other.start()
            for other in others:
                other.join()
            still = "cancel_" in page.run().text
            yield times.row(f"two users beside {what}", cpu(server) - before, "max 1", 60, 1)
            if not still:
                yield f"{what} was over before the others were", *[""] * (len(COLUMNS) - 1)
            elif what == "a Compare":
                yield from compare_views(server, page.until("Done: the results are below"), size)


def compare_views(server: RunningServer, page: Client, size: Size) -> Iterator[Row]:
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
    yield page_bytes("Compare", largest)


def page_bytes(name: str, largest: float) -> Row:
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
    """Users who return after all others: their plans are still cached."""
    queries = [query("adult", (1, 2, 3), 1 + k / 64) for k in range(size.owners)]
    spent = []
    for _ in range(2):
        before = cpu(server)
        for one in queries:
            open_page(server, "preview", one).close()
        spent.append((cpu(server) - before) / len(queries))
    met = "met" if spent[1] < 0.7 * spent[0] else "MISSED"
    words = (
        f"{size.owners} users with a plan each come back: CPU s {spent[0]:.2f}, then {spent[1]:.2f}"
    )
    yield words, *[""] * 5, "less", met, ""


def idle(server: RunningServer, size: Size) -> Iterator[Row]:
    """Memory and CPU of many idle sessions, after earlier sessions have ended."""
    pages = [open_page(server, "preview", query("adult", (1, 2))) for _ in range(size.idle)]
    time.sleep(size.minute)
    held, before, start = memory(server), cpu(server), time.monotonic()
    time.sleep(15)
    share = (cpu(server) - before) / (time.monotonic() - start)
    for page in pages:
        page.close()
    met = "met" if held <= 400 and share <= 0.02 else "MISSED"
    yield (
        f"{size.idle} idle sessions: {held:.0f} MB, {share:.1%} CPU",
        *[""] * 5,
        "400 MB, 2%",
        met,
        "",
    )


def rehearsals(server: RunningServer, size: Size) -> Iterator[Row]:
    """Memory before and a minute after sessions that rehearsed Adult's tables of three attributes."""
    address_query = query("adult", (1, 2, 3))
    open_page(server, "release", address_query).close()
    time.sleep(size.minute)
    before, most, left = memory(server), [0.0], iter(range(size.rehearsals))

    def rehearse() -> None:
        for _ in left:  # an iterator of numbers is shared safely
            page = open_page(server, "release", address_query)
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
        f"{size.rehearsals} rehearsals: {before:.0f} MB, at most {max(most):.0f}, {size.minute:g} s"
        f" later {after:.0f}"
    )
    yield words, *[""] * 5, "+10%", "met" if after <= 1.1 * before else "MISSED", ""


def other_hosts(server: RunningServer, size: Size) -> Iterator[Row]:
    """Requests of the server to other hosts."""
    number = len(server.strangers())
    yield f"asked of other hosts: {number}", *[""] * 5, "0", "MISSED" if number else "met", ""


def main() -> None:
    """Print the table."""
    parser = options(__file__, __doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of everything, in about a minute"
    )
    args = parser.parse_args()
    size, start = QUICK if args.quick else Size(), time.monotonic()
    # no garbage collection of the clients during the measurement
    gc.freeze()
    with table(__file__, write=args.write) as show:
        show(
            f"{os.cpu_count()} cores, load of the machine {os.getloadavg()[0]:.1f}; seconds that"
            " somebody waits",
            "",
        )
        show(line(COLUMNS))
        with (
            tempfile.TemporaryDirectory() as folder,
            run_server(Path(folder), *size.options, DP_WORKBENCH_CACHE=f"{folder}/cache") as server,
        ):
            for part in (
                contents,
                single_user,
                several_users,
                during_work,
                owners,
                idle,
                rehearsals,
                other_hosts,
            ):
                for row in part(server, size):
                    show(line(row))
        show(
            f"{time.monotonic() - start:.0f} s in all, load of the machine {os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    main()
