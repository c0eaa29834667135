"""One entry of the browser's history a page, so that back and forward go from page to page.

Streamlit makes an entry for every change of an address, also for those that a page makes by itself.
A script in the head of the page lets what changes in an address take the place of its entry, unless
a person chose something that the address says, such as a lesson.  When a page is left Streamlit
forgets that choice first, in an entry of its own; that is left out, since the entry of the next
page follows at once.
"""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.parts.shell import permalink
from pages.parts.shell.streamlit_internals import PAGE_TITLE

SCRIPT = """<script>
(() => {
  const push = history.pushState.bind(history), replace = history.replaceState.bind(history);
  const chosen = (address) => {
    const said = new URLSearchParams(address.search);
    OURS.forEach((name) => said.delete(name));
    return said.toString();
  };
  history.pushState = (data, title, url) => {
    const now = new URL(location.href), next = new URL(url ?? "", now);
    const before = chosen(now), after = chosen(next), same = now.pathname === next.pathname;
    if (same && before && !after) return;
    (same && (!before || before === after) ? replace : push)(data, title, url);
  };
})();
</script>""".replace("OURS", json.dumps(permalink.OURS)).encode()
# what a browser says to be sent less than the whole page as it is
LESS = (b"accept-encoding", b"if-none-match", b"if-modified-since", b"range")


class OneEntry:
    """ASGI middleware that writes the script into the head of the page of the app."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or b"text/html" not in dict(scope["headers"]).get(
            b"accept", b""
        ):
            await self.app(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in LESS]
        await self.app({**scope, "headers": headers}, receive, _written(send))


def _written(send: Send) -> Send:
    """Add the script to a page, which is then longer than it was said to be."""
    page = False

    async def answer(message: Message) -> None:
        nonlocal page
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            page = message["status"] == 200 and headers.get(b"content-type", b"").startswith(
                b"text/html"
            )
            if page:
                message = {
                    **message,
                    "headers": [one for one in message["headers"] if one[0] != b"content-length"],
                }
        elif page:
            message = {
                **message,
                "body": message.get("body", b"").replace(PAGE_TITLE, SCRIPT + PAGE_TITLE, 1),
            }
        await send(message)

    return answer
