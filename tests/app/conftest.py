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
    """Pages manager for AppTest that keeps sessions from searching for a `pages` folder.

    Streamlit searches if `PagesManager.uses_pages_directory` is not False.  AppTest resets the
    attribute of the class that it uses; because that is this subclass, `PagesManager` keeps False.
    """


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
    """Return a dictionary from file name to the function that creates the download.

    Pages fill the dictionary while they run.  AppTest itself has no access to these functions.
    """
    contents: dict[str, Callable[[], Any]] = {}

    def record(_path: str, data: Any, _proto: Any, _type: Any, name: str, **_: Any) -> None:
        if callable(data):
            contents[name] = data

    monkeypatch.setattr(button, "marshall_file", record)
    return contents


@pytest.fixture
def keeps_bound_search() -> None:
    """With this fixture, the Preview page searches for the lower bound in the background."""


@pytest.fixture
def keeps_weight_search() -> None:
    """With this fixture, the Preview page searches for better weights in the background."""


@pytest.fixture
def keeps_forecasts() -> None:
    """With this fixture, the form for new groups forecasts their errors."""


@pytest.fixture
def keeps_comparisons() -> None:
    """With this fixture, the page Compare starts quick comparisons automatically."""


# A test that needs one of these automatic actions of a page requests the fixture of this name. In
# all other tests, `disable_automatic_actions` replaces the function (module, name).
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
    """Disable every automatic action whose fixture in `AUTOMATIC_ACTIONS` a test does not request.

    The actions are slow and would still run during later tests.
    """
    for fixture, (module, name) in AUTOMATIC_ACTIONS.items():
        if fixture not in request.fixturenames:
            monkeypatch.setattr(module, name, lambda *_: None)


@pytest.fixture(autouse=True)
def remove_interrupted_jobs() -> Iterator[None]:
    """Remove stopped and failed jobs, which pages of later tests would report."""
    yield
    for key in [key for key in list(job_queue._JOBS) if not job_queue.is_there(key)]:
        job_queue.forget(key)
