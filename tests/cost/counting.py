"""A plugin of pytest that counts what the tests of each file cost, and names the dearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

DEAREST = 10


def spent() -> float:
    """CPU seconds of this process, of what it waited for, and of what lives on below it."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            found = process.cpu_times()
            total += found.user + found.system + found.children_user + found.children_system
    return total


class Costs:
    """What the tests of each file added."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.last = 0.0

    def charge(self, place: str) -> None:
        before, self.last = self.last, spent()
        self.files[place] += self.last - before

    def pytest_collection_finish(self) -> None:
        self.charge("imports")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        found = yield
        if nextitem is None or nextitem.path != item.path:
            self.charge(item.location[0])
        return found

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for place, seconds in self.files.most_common(DEAREST):
            terminalreporter.write_line(f"{seconds:7.1f} CPU seconds  {place}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs())
