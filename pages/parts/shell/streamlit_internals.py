"""All uses of Streamlit's private interface in the app, and a check that it exists.

Streamlit may rename private objects in any release. `check` looks up each name when the server
starts, so that a missing name stops the server instead of silently disabling a function of the app.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import streamlit
from streamlit import runtime
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.memory_session_storage import MemorySessionStorage
from streamlit.runtime.runtime import Runtime
from streamlit.runtime.scriptrunner import RerunException as RerunException
from streamlit.runtime.scriptrunner import ScriptRunner, get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_run_context import (
    RunLocation,
    ScriptRunContext,
    ThreadState,
)
from streamlit.runtime.state import get_session_state
from streamlit.runtime.state.safe_session_state import SafeSessionState
from streamlit.runtime.uploaded_file_manager import UploadedFileManager
from streamlit.runtime.websocket_session_manager import WebsocketSessionManager

SUPPORTED_VERSIONS = ">=1.67,<1.68"  # as in pyproject.toml
# This text identifies the HTML page of the app; downloaded HTML reports do not contain it.
PAGE_TITLE = b"<title>Streamlit</title>"


class UnsupportedStreamlitError(ImportError):
    """The installed Streamlit lacks a private name that the app needs."""


def check() -> None:
    """Raise UnsupportedStreamlitError if Streamlit lacks a name that this module uses."""
    missing = [name for name, is_present in _CHECKS.items() if not is_present()]
    if missing:
        raise UnsupportedStreamlitError(
            f"Streamlit {streamlit.__version__} lacks {', '.join(missing)}, which the app needs."
            f' Install a supported version: pip install "streamlit{SUPPORTED_VERSIONS}".'
        )


def _has_fields(kind: type, *names: str) -> bool:
    """Return whether all names are attributes of a class, or are set in its ``__init__``."""
    code = kind.__init__.__code__  # type: ignore[misc]
    fields = {*code.co_names, *inspect.get_annotations(kind)}
    return all(name in fields or hasattr(kind, name) for name in names)


def _page() -> bytes:
    path = Path(streamlit.__file__).parent / "static" / "index.html"
    return path.read_bytes() if path.is_file() else b""


_CHECKS: dict[str, Callable[[], bool]] = {
    "Runtime._session_mgr": lambda: _has_fields(Runtime, "_session_mgr"),
    "WebsocketSessionManager._session_storage": lambda: _has_fields(
        WebsocketSessionManager, "_session_storage", "list_sessions"
    ),
    "MemorySessionStorage._cache.expire": lambda: callable(
        getattr(getattr(MemorySessionStorage(), "_cache", None), "expire", None)
    ),
    "AppSession.shutdown": lambda: _has_fields(AppSession, "shutdown"),
    "AppSession.request_rerun": lambda: _has_fields(AppSession, "request_rerun"),
    "AppSession._scriptrunner": lambda: _has_fields(AppSession, "_scriptrunner"),
    "ScriptRunner._maybe_handle_execution_control_request": lambda: hasattr(
        ScriptRunner, "_maybe_handle_execution_control_request"
    ),
    "ScriptRunner._is_in_script_thread": lambda: hasattr(ScriptRunner, "_is_in_script_thread"),
    "ClientState.is_auto_rerun": lambda: "is_auto_rerun" in ClientState.DESCRIPTOR.fields_by_name,
    "ScriptRunContext": lambda: _has_fields(
        ScriptRunContext, "is_history_navigation", "session_id", "uploaded_file_mgr"
    ),
    "UploadedFileManager.remove_session_files": lambda: hasattr(
        UploadedFileManager, "remove_session_files"
    ),
    "SafeSessionState.filtered_state": lambda: hasattr(SafeSessionState, "filtered_state"),
    "the title in static/index.html": lambda: PAGE_TITLE in _page(),
}


def skip_timer_reruns_of_running_scripts() -> None:
    """Make Streamlit ignore reruns requested by a timer while the script of the session runs.

    While a job runs, the page requests a rerun several times per second. If such a request arrives
    during another run, Streamlit can drop messages of that run, or draw the page that the user has
    just left: a click on "Next" then shows an empty page. Ignoring the request is harmless, because
    the timer repeats it.
    """
    original = AppSession.request_rerun

    @functools.wraps(original)
    def request_rerun(self: AppSession, client_state: ClientState | None) -> None:
        if client_state is None or not client_state.is_auto_rerun or self._scriptrunner is None:
            original(self, client_state)

    AppSession.request_rerun = request_rerun  # type: ignore[method-assign]


def complete_callbacks() -> None:
    """Make Streamlit finish the callback of a widget before it starts the next requested run.

    Streamlit ends a run at its next access to the session state as soon as another run is requested,
    for example by the second click of a double click. The next run repeats the page, but not the
    callback: everything after the interrupted line of the callback would be lost.
    """
    original = ScriptRunner._maybe_handle_execution_control_request

    @functools.wraps(original)
    def handle_request(self: ScriptRunner) -> None:
        in_script = self._is_in_script_thread()  # other threads have no thread state
        if not (in_script and ThreadState.get().run_location is RunLocation.CALLBACK):
            original(self)

    ScriptRunner._maybe_handle_execution_control_request = handle_request  # type: ignore[method-assign]


@contextmanager
def as_callback() -> Iterator[None]:
    """Treat the code in the `with` block as the callback of a widget; see `complete_callbacks`."""
    with ThreadState.scoped(run_location=RunLocation.CALLBACK):
        yield


def end_expired_sessions() -> int:
    """End disconnected sessions whose time limit has passed; return the number of remaining ones.

    Streamlit itself only checks the time limit when another session disconnects. Until then an
    expired session would hold its uploaded records.
    """
    manager: Any = runtime.get_instance()._session_mgr
    for _, info in manager._session_storage._cache.expire():
        info.session.shutdown()
    return len(manager.list_sessions())


def is_history_navigation() -> bool:
    """Return whether the browser's back or forward button started this run."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def remove_uploads() -> None:
    """Remove the uploaded files of this session from memory."""
    if (context := get_script_run_ctx()) is not None:
        context.uploaded_file_mgr.remove_session_files(context.session_id)


def field_values() -> dict[str, Any]:
    """Return the session state and the values of all widgets with keys, read in one step."""
    return get_session_state().filtered_state
