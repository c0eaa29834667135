"""Settings of the tests of the app."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.testing.v1 import app_test, local_script_runner

from pages.parts.compare import run
from pages.parts.jobs import plans, work
from pages.parts.preview import target_views
from tests.waiting import CEILING


class OnePages(PagesManager):
    """Pages of a session of a server that has run before: a new runner would take the folder for the older kind."""


def ended(runner: local_script_runner.LocalScriptRunner, timeout: float) -> None:
    """Sleep until the page is there; what is patched here looks every millisecond, in the page's own time."""
    assert runner._script_thread is not None
    runner._script_thread.join(timeout)
    assert runner.script_stopped(), f"the page was not there after {timeout:g} s"


@pytest.fixture(scope="session", autouse=True)
def runs_share_what_a_server_shares() -> Iterator[None]:
    """A server looks through packages, compiles scripts and makes its runtime once; a run here would each time."""
    scripts = ScriptCache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            manifest_scanner, "scan_component_manifests", functools.cache(manifest_scanner.scan_component_manifests)
        )
        patch.setattr(app_test, "ScriptCache", lambda: scripts)
        patch.setattr(local_script_runner, "ScriptCache", lambda: scripts)
        patch.setattr(app_test, "MagicMock", functools.cache(app_test.MagicMock))
        patch.setattr(app_test, "PagesManager", OnePages)
        patch.setattr(PagesManager, "uses_pages_directory", False)
        patch.setattr(local_script_runner, "require_widgets_deltas", ended)
        # a page waits as long as a plan takes: how fast the machine is today must not decide what a test sees
        patch.setattr(plans, "PATIENCE", CEILING)
        yield


@pytest.fixture
def searching() -> None:
    """In this test a page that shows a plan has the best possible searched for beside it, as it has everywhere else."""


@pytest.fixture
def foretelling() -> None:
    """In this test the form for new groups says how exact they would be, as it does everywhere else."""


@pytest.fixture
def comparing() -> None:
    """In this test a visit to the page Compare begins what is quick to compare, as it does everywhere else."""


# what pages do of their own accord, each by the fixture of the tests that look at it
UNASKED = {"searching": (target_views, "_search"), "foretelling": (plans, "foreseen"), "comparing": (run, "begin")}


@pytest.fixture(autouse=True)
def pages_do_unasked_what_a_test_looks_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs more than the page that begins it, most tests do not wait for it, and it would go on beside others."""
    for fixture, (module, name) in UNASKED.items():
        if fixture not in request.fixturenames:
            monkeypatch.setattr(module, name, lambda *_: None)


@pytest.fixture(autouse=True)
def nothing_that_broke_off_is_left() -> Iterator[None]:
    """Pages tell of work that was stopped or failed until it is asked for again: another test would find it so."""
    yield
    for key in [key for key in list(work._JOBS) if not work.is_there(key)]:
        work.forget(key)
