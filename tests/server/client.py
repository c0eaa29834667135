"""WebSocket client of the app, which exchanges the messages of a browser page."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

from tests.server.serving import RunningServer
from tests.waiting import CEILING, until


@dataclass(kw_only=True)
class Client:
    """One session of the app.

    Attributes
    ----------
    states : id of a widget -> value that was set.
    messages : messages of the server since the last action.
    elements : id of a drawn element -> its message.
    received : all messages as bytes.
    pages : name of a page -> hash of its script.
    seconds, first_seconds : duration of the last action, and time until its first element.
    size : bytes received during the last action.
    """

    connector: AbstractContextManager[ClientConnection]
    connection: ClientConnection
    page: str = ""
    query: str = ""
    session: str = ""
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: list[ForwardMsg] = field(default_factory=list)
    elements: dict[str, Any] = field(default_factory=dict)
    received: list[bytes] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    first_seconds: float = 0.0
    size: int = 0

    def run(self, **trigger: Any) -> Client:
        """Run the script of the page with the current widget values and receive its messages."""
        return self.send(self.message(**trigger))

    def message(self, **trigger: Any) -> BackMsg:
        """Return the message that requests a run with the current widget values.

        ``trigger`` maps the key of a button to its value for this run only.
        """
        message = BackMsg()
        state = message.rerun_script
        state.query_string, state.page_name = self.query, self.page
        state.page_script_hash = self.pages.get(self.page, "")
        for name, value in self.states.items():
            state.widget_states.widgets.add(id=name, **value)
        for name, value in trigger.items():
            state.widget_states.widgets.add(id=self.id_of(name), **value)
        return message

    def send(self, message: BackMsg, *at_once: BackMsg) -> Client:
        """Send messages without a pause, and receive messages until a run has finished."""
        start = time.monotonic()
        self.messages, self.size, self.first_seconds = [], 0, 0.0
        for one in (message, *at_once):
            self.connection.send(one.SerializeToString())
        finished = False
        while not finished:
            content = self.connection.recv(timeout=CEILING)
            self.size += len(content)
            self.received.append(content)
            reply = ForwardMsg.FromString(content)
            kind = reply.WhichOneof("type")
            if kind == "delta":
                self.first_seconds = self.first_seconds or time.monotonic() - start
                self._store_element(reply)
            elif kind == "navigation":
                self.pages = {
                    page.url_pathname: page.page_script_hash for page in reply.navigation.app_pages
                }
            elif kind == "new_session":
                self.session = reply.new_session.initialize.session_id
            elif kind == "page_info_changed":
                self.query = reply.page_info_changed.query_string
            elif (
                kind == "script_finished"
                and reply.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN
            ):
                finished = True
            self.messages.append(reply)
        self.seconds = time.monotonic() - start
        return self

    def receive(self, kind: str) -> Any:
        """Wait for a message of a kind and return its content; other messages are discarded."""
        while True:
            reply = ForwardMsg.FromString(self.connection.recv(timeout=CEILING))
            if reply.WhichOneof("type") == kind:
                return getattr(reply, kind)

    def file(self, key: str) -> str:
        """Return the address of the file of a download button, which is created on request."""
        request = BackMsg()
        request.backend_operation_request.request_id = key
        request.backend_operation_request.session_id = self.session
        request.backend_operation_request.deferred_file.file_id = self.elements[
            self.id_of(key)
        ].deferred_file_id
        self.connection.send(request.SerializeToString())
        return str(self.receive("backend_operation_response").deferred_file.url)

    @property
    def drawn_ids(self) -> list[str]:
        """Return the ids of elements that the last action drew."""
        return re.findall(r'id: "([^"]+)"', self.text)

    def _store_element(self, message: ForwardMsg) -> None:
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
        """Return the id of the widget with this key that was drawn last."""
        ids = [name for name in self.elements if name.endswith(f"-{key}")]
        assert ids, (key, sorted(self.elements))
        return ids[-1]

    def has(self, key: str) -> bool:
        """Return whether a widget with this key was drawn."""
        return any(name.endswith(f"-{key}") for name in self.elements)

    def wait_for_widget(self, key: str) -> Client:
        """Run the page repeatedly until it has a widget with this key.

        A page can be drawn before the jobs that its widgets need have finished.
        """
        if not self.has(key):
            until(lambda: self.has(key), step=self.run, words=lambda: self.text[-3000:])
        return self

    def set(self, key: str, **value: Any) -> Client:
        """Set a widget to a value, such as string_value="x", and run."""
        self.states[self.wait_for_widget(key).id_of(key)] = value
        return self.run()

    def press(self, key: str) -> Client:
        return self.wait_for_widget(key).run(**{key: {"trigger_value": True}})

    def go(self, page: str) -> Client:
        """Open another page of the same session."""
        self.page, self.elements, self.states = page, {}, {}
        return self.run()

    @property
    def text(self) -> str:
        """Return the elements that the last action drew, as text."""
        return " ".join(
            str(message.delta) for message in self.messages if message.WhichOneof("type") == "delta"
        ).replace("\\", "")

    def until(self, word: str, seconds: float = CEILING) -> Client:
        """Run the page repeatedly until its elements contain ``word``.

        Fail if this takes more than ``seconds``.
        """
        end = time.monotonic() + seconds
        while word not in self.text:
            assert time.monotonic() < end, self.text[-3000:]
            time.sleep(0.5)  # runs are slow
            self.run()
        return self

    def close(self) -> None:
        self.connector.__exit__(None, None, None)


def open_client(server: RunningServer, page: str = "", query: str = "", cookie: str = "") -> Client:
    """Open a new session on a page."""
    place = server.url.replace("http", "ws") + "/_stcore/stream"
    headers = {"Cookie": cookie or server.cookie}
    limits = {"max_size": None, "open_timeout": CEILING}
    way = connect(
        place, origin=server.url, additional_headers=headers, subprotocols=["streamlit"], **limits
    )
    return Client(connector=way, connection=way.__enter__(), page=page, query=query).run()
