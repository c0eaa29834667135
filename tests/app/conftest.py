"""Fixtures of the app tests: shared server objects, no automatic jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.elements.widgets import button
from streamlit.runtime.pages_manager import PagesManager
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.testing.v1 import app_test, local_script_runner

from pages.parts.compare import run
from pages.parts.jobs import job_queue, plans
from pages.parts.preview import error_targets_view, hidden_table_view
from tests.waiting import CEILING


class SinglePagesManager(PagesManager):
    """Pages manager that does not detect the older kind of `pages` folder again."""


def wait_for_script(runner: local_script_runner.LocalScriptRunner, timeout: float) -> None:
    """Join the script thread instead of polling it, which would take time from the script."""
    assert runner._script_thread is not None
    runner._script_thread.join(timeout)
    assert runner.script_stopped(), f"the page was not finished after {timeout:g} s"


@pytest.fixture(scope="session", autouse=True)
def share_server_objects() -> Iterator[None]:
    """Scan packages, compile scripts and build the runtime once, as a server does."""
    scripts = ScriptCache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            manifest_scanner,
            "scan_component_manifests",
            functools.cache(manifest_scanner.scan_component_manifests),
        )
        patch.setattr(app_test, "ScriptCache", lambda: scripts)
        patch.setattr(local_script_runner, "ScriptCache", lambda: scripts)
        patch.setattr(app_test, "MagicMock", functools.cache(app_test.MagicMock))
        patch.setattr(app_test, "PagesManager", SinglePagesManager)
        patch.setattr(PagesManager, "uses_pages_directory", False)
        patch.setattr(local_script_runner, "require_widgets_deltas", wait_for_script)
        # without a time limit the results do not depend on the speed of the machine
        patch.setattr(plans, "PAGE_LIMIT_S", CEILING)
        yield


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], Any]]:
    """Return the contents of deferred downloads by file name, which AppTest does not provide."""
    contents: dict[str, Callable[[], Any]] = {}

    def record(_path: str, data: Any, _proto: Any, _type: Any, name: str, **_: Any) -> None:
        if callable(data):
            contents[name] = data

    monkeypatch.setattr(button, "marshall_file", record)
    return contents


@pytest.fixture
def keeps_bound_search() -> None:
    """Keep the background search for the lower bound on the Preview page."""


@pytest.fixture
def keeps_weight_search() -> None:
    """Keep the background search for better weights on the Preview page."""


@pytest.fixture
def keeps_forecasts() -> None:
    """Keep the forecast of errors in the form for new groups."""


@pytest.fixture
def keeps_comparisons() -> None:
    """Keep the automatic start of quick comparisons on the page Compare."""


# automatic actions of pages, and the fixture of tests that need them
AUTOMATIC_ACTIONS = {
    "keeps_bound_search": (error_targets_view, "_search"),
    "keeps_weight_search": (hidden_table_view, "_search"),
    "keeps_forecasts": (plans, "plan_of_form"),
    "keeps_comparisons": (run, "begin"),
}


@pytest.fixture(autouse=True)
def disable_automatic_actions(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disable automatic actions, which are slow and would run during other tests."""
    for fixture, (module, name) in AUTOMATIC_ACTIONS.items():
        if fixture not in request.fixturenames:
            monkeypatch.setattr(module, name, lambda *_: None)


@pytest.fixture(autouse=True)
def remove_interrupted_jobs() -> Iterator[None]:
    """Remove stopped and failed jobs, which pages of later tests would report."""
    yield
    for key in [key for key in list(job_queue._JOBS) if not job_queue.is_there(key)]:
        job_queue.forget(key)
