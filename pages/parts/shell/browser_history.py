"""Middleware with a script for history entries and SVG files, and a style sheet.

Streamlit adds a history entry for every change of the address, also for changes that a page makes
itself. A script in the head of the page replaces the current entry instead, unless the user made a
choice that is part of the address, such as a lesson. When Streamlit leaves a page, it first removes
that choice from the address; the script ignores this change, because the address of the next page
follows. The script also scrolls a new page to its top, and lets the button svg_KEY save the chart
chart_KEY by the button of the chart's toolbar. In course mode, marked by the container
for_a_class, the style sheet hides the sidebar and enlarges the text.
"""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.parts.shell import permalink
from pages.parts.shell.streamlit_internals import PAGE_TITLE

SCRIPT = """<script>
(() => {
  const push = history.pushState.bind(history), replace = history.replaceState.bind(history);
  const choices = (address) => {
    const params = new URLSearchParams(address.search);
    OURS.forEach((name) => params.delete(name));
    return params.toString();
  };
  history.pushState = (data, title, url) => {
    const now = new URL(location.href), next = new URL(url ?? "", now);
    const before = choices(now), after = choices(next), same = now.pathname === next.pathname;
    if (same && before && !after) return;
    if (!same) document.querySelector("[data-testid=stMain]")?.scrollTo(0, 0);
    (same && (!before || before === after) ? replace : push)(data, title, url);
  };
  document.addEventListener("click", (event) => {
    const place = event.target.closest("[class*=st-key-svg_]");
    const chart = place && [...place.classList].find((name) => name.startsWith("st-key-svg_"));
    if (chart) document.querySelector(
      `.${chart.replace("svg_", "chart_")} .modebar-btn[data-title^=Download]`)?.click();
  });
})();
</script>""".replace("OURS", json.dumps(permalink.OURS)).encode()
# A compact page: the title starts beside the toolbar, on a phone below it. Clicks beside the buttons
# of the transparent toolbar reach the page. #root outranks Streamlit's classes.
STYLE = b"""<style>
#root [data-testid=stMainBlockContainer] {padding: 1rem 2.5rem 3rem}
#root [data-testid=stMainBlockContainer] h1 {font-size: 1.5rem; padding: 0}
#root [data-testid=stMainBlockContainer] h2 {font-size: 1.25rem; padding: 0.5rem 0 0}
#root [data-testid=stHeader] {background: none}
#root :is([data-testid=stHeader], [data-testid=stToolbar]) {pointer-events: none}
#root [data-testid=stHeader] button {pointer-events: auto}
#root [data-testid=stSidebarHeader] {height: 2.5rem}
#root [data-testid=stSidebarNav] {margin-top: 0}
@media (min-width: 768px) {
  #root [data-testid=stSidebar][data-collapsed=false] {min-width: 15rem; max-width: 15rem}
}
@media (max-width: 767px) {
  #root [data-testid=stMainBlockContainer] {padding: 3.25rem 1rem 3rem}
}
#root:has(.st-key-for_a_class) :is([data-testid=stSidebar], [data-testid=stHeader],
  [data-testid=stExpandSidebarButton]) {display: none}
#root:has(.st-key-for_a_class) [data-testid=stMainBlockContainer] {padding: 1.5rem 3rem; max-width: 100%}
@media (min-width: 900px) {html:has(.st-key-for_a_class) {font-size: 22px !important}}
</style>"""
# request headers that allow a compressed, cached or partial response, in which no text can be
# inserted
PARTIAL_RESPONSE_HEADERS = (b"accept-encoding", b"if-none-match", b"if-modified-since", b"range")


class OneEntry:
    """ASGI middleware that adds the script and the style sheet to the head of the app."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or b"text/html" not in dict(scope["headers"]).get(
            b"accept", b""
        ):
            await self.app(scope, receive, send)
            return
        headers = [
            (name, value)
            for name, value in scope["headers"]
            if name.lower() not in PARTIAL_RESPONSE_HEADERS
        ]
        await self.app({**scope, "headers": headers}, receive, _add_script(send))


def _add_script(send: Send) -> Send:
    """Return a wrapper of ``send`` that inserts script and style sheet into HTML pages."""
    is_html = False

    async def answer(message: Message) -> None:
        nonlocal is_html
        if message["type"] == "http.response.start":
            content_type = dict(message["headers"]).get(b"content-type", b"")
            is_html = message["status"] == 200 and content_type.startswith(b"text/html")
            if is_html:  # the length of the page changes
                headers = [
                    header for header in message["headers"] if header[0] != b"content-length"
                ]
                message = {**message, "headers": headers}
        elif is_html:
            body = message.get("body", b"")
            body = body.replace(PAGE_TITLE, SCRIPT + STYLE + PAGE_TITLE, 1)
            message = {**message, "body": body}
        await send(message)

    return answer
