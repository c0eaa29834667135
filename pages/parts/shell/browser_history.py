"""Middleware that adds a script and a style sheet to the HTML page of the app.

The script has four purposes:

- History entries. Streamlit adds an entry to the browser's history whenever the address changes,
  even if the page itself wrote its settings into the address. The script replaces the current entry
  instead, unless the change is a choice of the user, such as another lesson. When the user opens
  another page, Streamlit first removes such choices from the address; the script ignores this
  change, because the address of the new page follows at once.
- Scrolling. A newly opened page or lesson is scrolled to its top.
- Sidebar. On a phone the sidebar covers the page; it is closed when a page is chosen in it. The
  script also removes the note that Streamlit stores in the browser about a closed sidebar, so that
  a wide window still opens with the sidebar.
- SVG files. A click on the button with key svg_KEY clicks the download button in the toolbar of the
  chart with key chart_KEY.

In course mode, recognized by the container for_a_class, the style sheet hides the sidebar and
enlarges the text.
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
    const [lesson, opened] = [now, next].map((address) => address.searchParams.get("lesson"));
    if (!same || (lesson && opened && lesson !== opened))
      document.querySelector("[data-testid=stMain]")?.scrollTo(0, 0);
    (same && (!before || before === after) ? replace : push)(data, title, url);
  };
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-testid=stSidebarNavLink]") && innerWidth < 768) {
      document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click();
      setTimeout(() => Object.keys(localStorage).filter((key) => key.startsWith("stSidebarCollapsed"))
        .forEach((key) => localStorage.removeItem(key)), 1000);
    }
    const place = event.target.closest("[class*=st-key-svg_]");
    const chart = place && [...place.classList].find((name) => name.startsWith("st-key-svg_"));
    if (chart) document.querySelector(
      `.${chart.replace("svg_", "chart_")} .modebar-btn[data-title^=Download]`)?.click();
  });
})();
</script>""".replace("OURS", json.dumps(permalink.OURS)).encode()
# The title of a page is at the height of Streamlit's toolbar, on a phone below it. The toolbar is
# transparent, and clicks between its buttons reach the page below. The selector #root gives these
# rules precedence over those of Streamlit. The tint of a chosen pill is removed, because its text
# has too little contrast on the tint in the dark theme. The list of file formats is wrapped,
# because Streamlit would cut it, and on a phone so are the choices of a list.
STYLE = b"""<style>
#root [data-testid=stMainBlockContainer] {padding: 1rem 2.5rem 3rem}
#root [data-testid=stMainBlockContainer] h1 {font-size: 1.5rem; padding: 0}
#root [data-testid=stMainBlockContainer] h2 {font-size: 1.25rem; padding: 0.5rem 0 0}
#root [data-testid=stHeader] {background: none}
#root :is([data-testid=stHeader], [data-testid=stToolbar]) {pointer-events: none}
#root [data-testid=stHeader] button {pointer-events: auto}
#root button[data-variant=pills][aria-pressed=true] {background: none}
#root [data-testid=stFileUploaderDropzoneInstructions] * {white-space: normal; overflow: visible}
#root .st-key-scale_records [data-testid^=stNumberInputStep],
#root .st-key-scale_records [aria-label="Clear value"] {display: none}
#root [data-testid=stSidebarHeader] {height: 2.5rem}
#root [data-testid=stSidebarNav] {margin-top: 0}
@media (min-width: 768px) {
  #root [data-testid=stSidebar][data-collapsed=false] {min-width: 15rem; max-width: 15rem}
}
@media (max-width: 767px) {
  #root [data-testid=stMainBlockContainer] {padding: 3.25rem 1rem 3rem}
  #root .st-key-start_example {display: none}
  #root [data-testid=stMultiSelect] [role=group] {max-height: none}
}
#root:has(.st-key-for_a_class) :is([data-testid=stSidebar], [data-testid=stHeader],
  [data-testid=stExpandSidebarButton]) {display: none}
#root:has(.st-key-for_a_class) [data-testid=stMainBlockContainer] {padding: 0.75rem 2rem; max-width: 100%}
@media (min-width: 900px) {
  html:has(.st-key-for_a_class) {font-size: min(22px, 2.45vh) !important}
  #root [class*=st-key-course_] [data-testid=stPlotlyChart] {height: calc(100vh - 17rem); min-height: 15rem}
  #root :is(.st-key-course_attack, .st-key-course_person, .st-key-course_caps,
      .st-key-course_neighbours)
    [data-testid=stPlotlyChart] {height: calc(100vh - 19rem)}
  #root :is(.st-key-course_clipped, .st-key-course_pieces, .st-key-course_center)
    [data-testid=stPlotlyChart] {height: calc(100vh - 21rem)}
}
</style>"""
# Request headers that allow a compressed, cached or partial response. They are removed, because
# text can only be inserted into a complete, uncompressed response.
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
