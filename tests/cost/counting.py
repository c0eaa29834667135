"""Pytest plugin that prints CPU seconds of the slowest test files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

N_SLOWEST = 10


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, its ended children and its running descendants."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class Costs:
    """CPU seconds added by the tests of each file."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.last = 0.0

    def charge(self, place: str) -> None:
        before, self.last = self.last, cpu_seconds()
        self.files[place] += self.last - before

    def pytest_collection_finish(self) -> None:
        self.charge("imports")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self.charge(item.location[0])
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for place, seconds in self.files.most_common(N_SLOWEST):
            terminalreporter.write_line(f"{seconds:7.1f} CPU seconds  {place}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs())
