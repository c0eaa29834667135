"""The running app under load: `python -m benchmarks.load [--clients 10] [--rehearsals 100]`.

A real server is driven over WebSocket by clients that think for no time.  Seconds are those a person would wait on this
machine; CPU seconds, of the server without its workers, do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil

import demo_data
from engine import Budget, Schema, Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.server.client import Client, opened
from tests.server.serving import Served, serving

MB = 2**20
Rows = list[tuple[object, ...]]


def query(name: str, ways: tuple[int, ...], pcost: float = 1.0) -> str:
    """The address of a plan of all k-way tables of a demo schema."""
    schema = Schema.from_json(demo_data.schemas()[name].read_bytes())
    return "plan=" + link.packed(Studio(workload=Workload.all_ways(schema, ways), budget=Budget(pcost=pcost)))


def preview_actions(page: Client) -> list[tuple[str, Callable[[], Client]]]:
    """What a person does on the Preview page that plans nothing."""
    return [
        ("another group", lambda: page.set("view", string_value="Every query")),
        ("where the budget goes", lambda: page.set("view", string_value="Where the budget goes")),
        ("explanations off", lambda: page.set("tutorial", bool_value=False)),
        ("groups", lambda: page.set("view", string_value="Groups")),
    ]


def memory(server: Served) -> float:
    """Megabytes of the server itself."""
    return psutil.Process(server.process.pid).memory_info().rss / MB


def cpu(server: Served) -> float:
    """CPU seconds of the server itself."""
    times = psutil.Process(server.process.pid).cpu_times()
    return times.user + times.system


def row(what: str, seconds: list[float], spent: float, bar: str) -> tuple[object, ...]:
    """One line of the table."""
    ranked = sorted(seconds)
    high = ranked[min(len(ranked) - 1, int(0.95 * len(ranked)))]
    return what, len(ranked), statistics.median(ranked), high, ranked[-1], spent / len(ranked), bar


def alone(server: Served, rounds: int) -> Rows:
    """One user on the Preview page of Adult's tables of two attributes."""
    page, found = opened(server, "preview", query("adult", (1, 2))).until("Typical error"), []
    for name, act in preview_actions(page):
        act()
        before = cpu(server)
        found.append(row(f"alone: {name}", [act().seconds for _ in range(rounds)], cpu(server) - before, "p95 0.2"))
    budgets = [1.0 + k / 10 for k in range(rounds)]
    before = cpu(server)
    seconds = [page.set("budget_pcost_0", double_value=b).seconds for b in budgets]
    found.append(row("alone: another budget", seconds, cpu(server) - before, ""))
    page.close()
    return found


def together(server: Served, clients: int, rounds: int, what: str, bar: str) -> Rows:
    """Several users at once, each with actions that plan nothing and budgets of their own."""
    quiet: list[float] = []
    budgets: list[float] = []

    def user(number: int) -> None:
        page = opened(server, "preview", query("adult", (1, 2), 1.0 + number)).until("Typical error")
        for k in range(rounds):
            page.until("Typical error")
            quiet.extend(act().seconds for _, act in preview_actions(page))
            budgets.append(page.set("budget_pcost_0", double_value=2.0 + number + k / 7).seconds)
        page.close()

    before = cpu(server)
    threads = [threading.Thread(target=user, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent, all_of_them = cpu(server) - before, len(quiet) + len(budgets)
    share = spent / all_of_them
    return [
        row(f"{what}: plans nothing", quiet, share * len(quiet), bar),
        row(f"{what}: another budget", budgets, share * len(budgets), bar),
    ]


def beside(server: Served, rounds: int) -> Rows:
    """One user while a Compare of Adult runs in another session."""
    busy = opened(server, "compare", query("adult", (1, 2)))
    busy.press("compare_start")
    found = together(server, 1, rounds, "beside a Compare", "max 1")
    busy.close()
    return found


def idle(server: Served, sessions: int) -> list[str]:
    """What many sessions cost while nobody does anything."""
    pages = [opened(server, "preview", query("adult", (1, 2))) for _ in range(sessions)]
    held, before, begun = memory(server), cpu(server), time.monotonic()
    time.sleep(20)
    share = (cpu(server) - before) / (time.monotonic() - begun)
    for page in pages:
        page.close()
    return [f"{sessions} idle sessions: {held:.0f} MB (bar 400), {share:.1%} CPU (bar 2%)"]


def rehearsals(server: Served, number: int) -> list[str]:
    """Memory before and a minute after sessions that rehearsed Adult's tables of three attributes."""
    asked = query("adult", (1, 2, 3))
    opened(server, "release", asked).press("rehearse").until("REHEARSAL on").close()
    time.sleep(60)
    before, most = memory(server), 0.0
    for _ in range(number):
        page = opened(server, "release", asked)
        page.press("rehearse").until("REHEARSAL on")
        most = max(most, memory(server))
        page.close()
    time.sleep(70)
    after = memory(server)
    return [f"{number} rehearsals: {before:.0f} MB, at most {most:.0f}, a minute later {after:.0f} (bar +10%)"]


def contents(server: Served) -> list[str]:
    """First content of a new server and of a warm one, and bytes of the large pages."""
    cold = opened(server, "", "")
    warm = opened(server, "", "")
    sizes = [(name, opened(server, name, query("adult", (1, 2))).size / 1000) for name in ("preview", "compare")]
    return [
        f"first content: {cold.first:.2f} s cold (bar 2.5), {warm.first:.2f} s warm (bar 0.6)",
        *(f"{name}: {size:.0f} KB to the browser (bar 200)" for name, size in sizes),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=int, default=50)
    parser.add_argument("--rehearsals", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="keep the table in benchmarks/load.txt")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), DP_WORKBENCH_CACHE=f"{folder}/cache") as server,
    ):
        lines = contents(server)
        found = alone(server, 2 * given.rounds)
        found += together(server, given.clients, given.rounds, f"{given.clients} users", "p95 1, max 2")
        found += beside(server, given.rounds)
        lines += idle(server, given.idle) + rehearsals(server, given.rehearsals)
        lines.append(f"asked of other hosts: {len(server.strangers())} (bar 0)")
    columns = ["what", "times", "median s", "p95 s", "max s", "CPU s each", "bar"]
    shown = pd.DataFrame(found, columns=columns).to_string(index=False, float_format="%.3f")
    text = "\n".join([f"{os.cpu_count()} cores, load of the machine {os.getloadavg()[0]:.1f}", shown, *lines]) + "\n"
    print(text, end="")
    if given.write:
        Path(__file__).with_suffix(".txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
