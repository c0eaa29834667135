"""Settings of a test session: environment, seeded noise, order of tests and their requirements."""

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
from _pytest.doctest import DoctestModule
from hypothesis import settings

from engine._workers import FORK_ENVIRONMENT
from tests import requirements

try:
    import fcntl
except ImportError:  # a system without POSIX locks
    fcntl = None

# pytest rewrites assertions, so that a failure shows the compared values, also in helper modules
HELPER_PACKAGES = {
    f"tests.{folder.name}" for folder in Path(__file__).parent.iterdir() if folder.is_dir()
}
pytest.register_assert_rewrite(*(HELPER_PACKAGES - set(sys.modules)))
# background jobs of a shell ignore SIGINT, which some tests send
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# on a busy machine an example of a property test can take longer than any deadline
settings.register_profile("no deadline", parent=settings.default, deadline=None)
settings.load_profile("no deadline")
# without bytecode files every process of a test would compile the engine and its libraries
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# collecting tests creates no garbage; `pytest_collection_finish` enables the collector again
gc.disable()
# set before NumPy and Arrow are imported: in many small tests several threads cost more than they
# save, and tests that fork need a process without threads
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **FORK_ENVIRONMENT}
# set before any test module is imported, so that no test uses the user's cache
CACHE = tempfile.TemporaryDirectory(prefix="test-cache-", ignore_cleanup_errors=True)
os.environ["DP_WORKBENCH_CACHE"] = CACHE.name
# the app may also access the files of the tests
os.environ["DP_WORKBENCH_FOLDERS"] = os.pathsep.join(
    [tempfile.gettempdir(), str(Path(__file__).resolve().parents[1])]
)
SETTINGS = tempfile.TemporaryDirectory(prefix="test-settings-", ignore_cleanup_errors=True)
os.environ["DP_WORKBENCH_SETTINGS"] = SETTINGS.name


# folders with slow tests start first, so that parallel workers finish at about the same time
SLOW_FOLDERS = ("tests/browser/", "tests/server/", "tests/app/", "tests/residuals/")
MISSING = requirements.missing()
collect_ignore = [file for file, names in requirements.FILES.items() if MISSING & {*names}]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose requirements are missing; run the slowest folders first."""
    for item in items:
        if names := {name for mark in item.iter_markers("needs") for name in mark.args} & MISSING:
            item.add_marker(pytest.mark.skip(reason=f"{', '.join(sorted(names))} not installed"))
    places = [*SLOW_FOLDERS, ""]
    items.sort(
        key=lambda item: next(i for i, place in enumerate(places) if item.nodeid.startswith(place))
    )


@pytest.fixture(scope="module", autouse=True)
def separate_search_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give each test module an empty search cache, independent of modules that ran before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_WORKBENCH_CACHE", str(tmp_path_factory.mktemp("searches")))
        yield


@pytest.fixture
def in_process_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read Excel, Stata, SPSS and SAS files without a subprocess per read."""
    from engine.records import subprocess_readers
    from tests.in_process_readers import messages

    monkeypatch.setattr(subprocess_readers, "worker_messages", messages)


def seed_noise(name: str) -> None:
    """Let releases draw noise from random bits that depend only on the name of a test or file.

    A name outside the folder tests, such as that of a doctest of the engine, changes nothing.
    """
    if not name.startswith("tests/"):
        return
    import engine.release.noise

    engine.release.noise.os = Bits(name)


class Bits:
    """Replacement of the module `os` in `engine.release.noise`: random bits seeded by a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def urandom(self) -> Callable[[int], bytes]:
        import numpy as np

        return np.random.default_rng(list(self.name.encode())).bytes


def restore_noise() -> None:
    """Let releases draw noise from the operating system again."""
    if noise := sys.modules.get("engine.release.noise"):
        noise.os = os


# forked processes must not all draw the noise of their parent
os.register_at_fork(after_in_child=restore_noise)


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):
        # some test modules draw noise when they are imported
        seed_noise(collector.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Iterator[list[pytest.Collector]]:
    """Skip the doctest collector for test modules that contain no doctest, to save time."""
    collectors = yield
    if b">>>" in file_path.read_bytes():
        return collectors
    return [c for c in collectors if not isinstance(c, DoctestModule)]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """If CI is set, let one worker collect first, so that the others read its bytecode.

    Otherwise all workers would compile the modules of the fresh clone at the same time.
    """
    if not (os.environ.get("CI") and hasattr(session.config, "workerinput") and fcntl):
        return (yield)
    with open(__file__, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # wait until the first worker has collected; then all waiting workers collect at once
            fcntl.flock(file, fcntl.LOCK_SH)
            fcntl.flock(file, fcntl.LOCK_UN)
        return (yield)


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collection; collect rarely."""
    gc.freeze()
    gc.enable()
    # tests create few reference cycles
    gc.set_threshold(400_000, 10, 10)


def pytest_sessionfinish() -> None:
    """Exclude all objects from garbage collection, which would delay the exit of the process."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    seed_noise(item.nodeid)


class DeselectedFullTests:
    """Plugin that counts the tests marked full that were left out, and prints their number."""

    def __init__(self):
        self.count = 0

    def pytest_deselected(self, items):
        self.count += sum(item.get_closest_marker("full") is not None for item in items)

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self.count

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        # every worker collects all tests, so the counts are equal and are not added
        self.count = max(self.count, getattr(node, "workeroutput", {}).get("left_out", 0))

    def pytest_terminal_summary(self, terminalreporter):
        if self.count:
            tests = "1 test was" if self.count == 1 else f"{self.count} tests were"
            terminalreporter.write_line(f"{tests} left out; python -m tests --full runs them, too")


def pytest_configure(config):
    config.pluginmanager.register(DeselectedFullTests())
    # a fixture of a plugin, unlike one of this file, also applies to doctests of the engine
    plugin = ModuleType("separate_search_cache")
    plugin.separate_search_cache = separate_search_cache
    config.pluginmanager.register(plugin)
