"""A page of the app without a browser: the messages that a browser would send over the WebSocket, and what comes back.

Widgets are found by their keys, which Streamlit puts at the end of their ids.
"""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

from tests.server.serving import Served
from tests.waiting import CEILING, until


@dataclass(kw_only=True)
class Client:
    """One session, its state of widgets, and what it was told since its last action."""

    way: AbstractContextManager[ClientConnection]
    line: ClientConnection
    page: str = ""
    query: str = ""
    session: str = ""
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: list[ForwardMsg] = field(default_factory=list)
    elements: dict[str, Any] = field(default_factory=dict)
    everything: list[bytes] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)  # the script of every page
    seconds: float = 0.0
    first: float = 0.0  # seconds until something was drawn
    size: int = 0  # bytes that came back

    def run(self, **trigger: Any) -> Client:
        """Ask for a run with the present widgets, and hear what comes of it until the script is at rest."""
        return self.ask(self.message(**trigger))

    def message(self, **trigger: Any) -> BackMsg:
        """What asks for a run with the present widgets."""
        message = BackMsg()
        state = message.rerun_script
        state.query_string, state.page_name = self.query, self.page
        state.page_script_hash = self.pages.get(self.page, "")
        for name, value in self.states.items():
            state.widget_states.widgets.add(id=name, **value)
        for name, value in trigger.items():
            state.widget_states.widgets.add(id=self.id_of(name), **value)
        return message

    def ask(self, message: BackMsg, *at_once: BackMsg) -> Client:
        """Send a message, and others right behind it, and hear what comes of it."""
        start = time.monotonic()
        self.told, self.size, self.first = [], 0, 0.0
        for one in (message, *at_once):
            self.line.send(one.SerializeToString())
        running = 1
        while running:
            content = self.line.recv(timeout=CEILING)
            self.size += len(content)
            self.everything.append(content)
            reply = ForwardMsg.FromString(content)
            kind = reply.WhichOneof("type")
            if kind == "delta":
                self.first = self.first or time.monotonic() - start
                self._note(reply)
            elif kind == "navigation":
                self.pages = {page.url_pathname: page.page_script_hash for page in reply.navigation.app_pages}
            elif kind == "new_session":
                self.session = reply.new_session.initialize.session_id
            elif kind == "page_info_changed":
                self.query = reply.page_info_changed.query_string
            elif kind == "script_finished" and reply.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                running -= 1
            self.told.append(reply)
        self.seconds = time.monotonic() - start
        return self

    def hear(self, kind: str) -> Any:
        """Wait for one kind of message."""
        while True:
            reply = ForwardMsg.FromString(self.line.recv(timeout=CEILING))
            if reply.WhichOneof("type") == kind:
                return getattr(reply, kind)

    def file(self, key: str) -> str:
        """The address of the file behind a download button, which is made when this session asks for it."""
        request = BackMsg()
        request.backend_operation_request.request_id = key
        request.backend_operation_request.session_id = self.session
        request.backend_operation_request.deferred_file.file_id = self.elements[self.id_of(key)].deferred_file_id
        self.line.send(request.SerializeToString())
        return str(self.hear("backend_operation_response").deferred_file.url)

    @property
    def drawn(self) -> list[str]:
        """The ids of what the last action drew."""
        return re.findall(r'id: "([^"]+)"', self.text)

    def _note(self, message: ForwardMsg) -> None:
        kind = message.delta.WhichOneof("type")
        if kind == "new_element":
            name = message.delta.new_element.WhichOneof("type")
            assert name != "exception", message.delta.new_element.exception
            element = getattr(message.delta.new_element, name)
        elif kind == "add_block":
            element = message.delta.add_block
        else:
            return
        name = getattr(element, "id", "")
        if name:
            self.elements[name] = element

    def id_of(self, key: str) -> str:
        """The id of the widget with this key that was drawn last."""
        ids = [name for name in self.elements if name.endswith(f"-{key}")]
        assert ids, (key, sorted(self.elements))
        return ids[-1]

    def has(self, key: str) -> bool:
        """Whether a widget of this key was drawn."""
        return any(name.endswith(f"-{key}") for name in self.elements)

    def awaited(self, key: str) -> Client:
        """Run until a widget of this key was drawn: on a busy machine a plan comes later than its page."""
        if not self.has(key):
            until(lambda: self.has(key), step=self.run, words=lambda: self.text[-3000:])
        return self

    def set(self, key: str, **value: Any) -> Client:
        """Give a widget a value, such as string_value="x", and run."""
        self.states[self.awaited(key).id_of(key)] = value
        return self.run()

    def press(self, key: str) -> Client:
        """Press a button."""
        return self.awaited(key).run(**{key: {"trigger_value": True}})

    def go(self, page: str) -> Client:
        """Open another page of the same session."""
        self.page, self.elements, self.states = page, {}, {}
        return self.run()

    @property
    def text(self) -> str:
        """Everything that the last action drew, as text."""
        return " ".join(str(message.delta) for message in self.told if message.WhichOneof("type") == "delta").replace(
            "\\", ""
        )

    def until(self, word: str, seconds: float = CEILING) -> Client:
        """Run until a text is drawn."""
        end = time.monotonic() + seconds
        while word not in self.text:
            assert time.monotonic() < end, self.text[-3000:]
            time.sleep(0.5)  # a run costs more than most of what is waited for
            self.run()
        return self

    def close(self) -> None:
        """Close the page."""
        self.way.__exit__(None, None, None)


def opened(server: Served, page: str = "", query: str = "", cookie: str = "") -> Client:
    """A new session on a page."""
    place = server.url.replace("http", "ws") + "/_stcore/stream"
    headers = {"Cookie": cookie or server.cookie}
    limits = {"max_size": None, "open_timeout": CEILING}
    way = connect(place, origin=server.url, additional_headers=headers, subprotocols=["streamlit"], **limits)
    return Client(way=way, line=way.__enter__(), page=page, query=query).run()
