"""Private parts of Streamlit: only one module uses them, and checks them when the app starts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from streamlit import runtime
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.memory_session_storage import MemorySessionStorage
from streamlit.runtime.scriptrunner import ScriptRunner
from streamlit.runtime.session_manager import SessionInfo
from streamlit.runtime.state.safe_session_state import SafeSessionState
from streamlit.runtime.uploaded_file_manager import UploadedFileManager

from pages.parts.shell import streamlit_internals

ROOT = Path(__file__).resolve().parents[3]
PRIVATE = re.compile(r"^(?:from|import) streamlit\.(?:proto|runtime|web|source_util)", re.MULTILINE)


def test_private_streamlit_is_used_in_one_module() -> None:
    files = [ROOT / "app.py", *(ROOT / "pages").rglob("*.py")]
    users = [path.stem for path in files if PRIVATE.search(path.read_text(encoding="utf-8"))]
    assert users == [Path(streamlit_internals.__file__).stem]


def test_check_installed_streamlit_passes() -> None:
    streamlit_internals.check()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (AppSession, "request_rerun"),
        (AppSession, "shutdown"),
        (SafeSessionState, "filtered_state"),
        (ScriptRunner, "_maybe_handle_execution_control_request"),
        (UploadedFileManager, "remove_session_files"),
    ],
)
def test_check_missing_method_is_refused(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(streamlit_internals.UnsupportedStreamlitError, match=name):
        streamlit_internals.check()


@pytest.mark.parametrize(
    ("owner", "attribute"),
    [
        ("AppSession", "_scriptrunner"),
        ("Runtime", "_session_mgr"),
        ("WebsocketSessionManager", "_session_storage"),
        ("MemorySessionStorage", "_cache"),
    ],
)
def test_check_missing_attribute_is_refused(
    monkeypatch: pytest.MonkeyPatch, owner: str, attribute: str
) -> None:
    monkeypatch.setattr(
        streamlit_internals, owner, type(owner, (), {"__init__": lambda self: None})
    )
    with pytest.raises(streamlit_internals.UnsupportedStreamlitError, match=attribute):
        streamlit_internals.check()


def test_check_other_page_title_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamlit_internals, "PAGE_TITLE", b"<title>Another</title>")
    with pytest.raises(streamlit_internals.UnsupportedStreamlitError, match="title"):
        streamlit_internals.check()


def test_expired_session_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamlit alone would keep its uploads until another session disconnects."""
    storage, session = MemorySessionStorage(ttl_seconds=0), Mock(id="expired")
    storage.save(SessionInfo(client=None, session=session))
    manager = SimpleNamespace(_session_storage=storage, list_sessions=storage.list)
    monkeypatch.setattr(runtime, "get_instance", lambda: SimpleNamespace(_session_mgr=manager))
    assert streamlit_internals.end_expired_sessions() == 0
    session.shutdown.assert_called_once_with()


def test_supported_versions_are_those_of_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"streamlit{streamlit_internals.SUPPORTED_VERSIONS}" in project["dependencies"]
