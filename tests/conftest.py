"""Settings of every test run, its noise, and tests that are left out."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType

import pytest

from tests import requirements

# what several test modules share tells its values, too, where it fails
ROOMS = {f"tests.{folder.name}" for folder in Path(__file__).parent.iterdir() if folder.is_dir()}
pytest.register_assert_rewrite(*(ROOMS - set(sys.modules)))
# a shell lets what runs in its background ignore Ctrl-C, which some tests press
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# or each of the many processes that tests start would compile the engine and its libraries anew
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
gc.disable()  # until everything is imported and collected, of which nothing is garbage
# before NumPy is imported: the tests are many and small, and threads that wait for each other cost more than they bring
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# before any test module is imported: no test reads or writes the cache of the person who runs it
CACHE = tempfile.TemporaryDirectory(prefix="test-cache-", ignore_cleanup_errors=True)  # gone with the run
os.environ["DP_WORKBENCH_CACHE"] = CACHE.name
# and the app, which may touch files below its own folder alone, may touch those of the tests
os.environ["DP_WORKBENCH_FOLDERS"] = os.pathsep.join([tempfile.gettempdir(), str(Path(__file__).resolve().parents[1])])
SETTINGS = tempfile.TemporaryDirectory(prefix="test-settings-", ignore_cleanup_errors=True)
os.environ["DP_WORKBENCH_SETTINGS"] = SETTINGS.name


# files in which few tests take long: side by side with the others they have to begin first, or a core waits for them
LONG = ("tests/browser/", "tests/server/", "tests/app/", "tests/residuals/")


MISSING = requirements.missing()
collect_ignore = [file for file, names in requirements.FILES.items() if MISSING & {*names}]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose requirements are missing; begin with the files that take longest."""
    for item in items:
        if names := {name for mark in item.iter_markers("needs") for name in mark.args} & MISSING:
            item.add_marker(pytest.mark.skip(reason=f"{', '.join(sorted(names))} not installed"))
    places = [*LONG, ""]
    items.sort(key=lambda item: next(i for i, place in enumerate(places) if item.nodeid.startswith(place)))


@pytest.fixture(scope="module", autouse=True)
def searches_begin_cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No module's strategies are warm from those of another: which modules a worker ran before must not be told."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_WORKBENCH_CACHE", str(tmp_path_factory.mktemp("searches")))
        yield


@pytest.fixture
def in_process_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read Excel, Stata, SPSS and SAS files without a subprocess per read."""
    from engine.records import subprocess_readers
    from tests.in_process_readers import messages

    monkeypatch.setattr(subprocess_readers, "worker_messages", messages)


def plant(place: str) -> None:
    """Let noise be drawn from bits that only depend on this test: none may pass by good luck or fail by bad luck."""
    if not place.startswith("tests/"):
        return
    import engine.release.noise

    engine.release.noise.os = Bits(place)


class Bits:
    """Bits that depend on a name alone; most tests draw none, and a generator takes as long as many a test."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def urandom(self) -> Callable[[int], bytes]:
        import numpy as np

        return np.random.default_rng(list(self.name.encode())).bytes


def unplant() -> None:
    """Give this process the bits of its own again that it would have outside the tests."""
    if noise := sys.modules.get("engine.release.noise"):
        noise.os = os


os.register_at_fork(after_in_child=unplant)  # two children must not draw the same


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):
        plant(collector.nodeid)  # some draw while they are imported


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays to the end: nobody need look through it for garbage again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(400_000, 10, 10)  # and less often through what tests make, of which little is garbage in cycles


def pytest_sessionfinish() -> None:
    """Let go of everything: it ends with the process, and nobody need look through it for garbage before."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    plant(item.nodeid)


class LeftOut:
    """Count the tests marked full that do not run, here or in the workers of a run side by side."""

    def __init__(self):
        self.count = 0

    def pytest_deselected(self, items):
        self.count += sum(item.get_closest_marker("full") is not None for item in items)

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self.count

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.count = max(self.count, getattr(node, "workeroutput", {}).get("left_out", 0))  # all collect the same

    def pytest_terminal_summary(self, terminalreporter):
        if self.count:
            terminalreporter.write_line(f"{self.count} tests were left out; python -m tests --full runs them, too")


def pytest_configure(config):
    config.pluginmanager.register(LeftOut())
    # as a plugin it reaches the examples in the engine's docstrings, too, which do not stand below this file
    everywhere = ModuleType("everywhere")
    everywhere.searches_begin_cold = searches_begin_cold
    config.pluginmanager.register(everywhere)
