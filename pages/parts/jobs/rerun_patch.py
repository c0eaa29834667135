"""Timers of a page are heard only while its script rests.

What follows a job on a page asks for its own run several times a second, whatever else the page
does.  Streamlit lets such a request in while another run is at work, or while the last messages of
one are still on their way, and then drops those messages, or takes the page for the one that was
left: whoever pressed "Next" while a job ran could see an empty page until the next click.  Here a
request that comes too early is left out; the timer asks again soon.
"""

from __future__ import annotations

import functools

from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.runtime.app_session import AppSession


def wait_for_rest() -> None:
    """From now on, leave out what a timer asks of a session whose script is at work."""
    ask = AppSession.request_rerun

    @functools.wraps(ask)
    def request_rerun(self: AppSession, client_state: ClientState | None) -> None:
        if client_state is None or not client_state.is_auto_rerun or self._scriptrunner is None:
            ask(self, client_state)

    AppSession.request_rerun = request_rerun  # type: ignore[method-assign]
