"""Who may talk to the server: asked before Streamlit sees a request, on every path, the WebSocket
included.

A request passes when its Host is exactly one of ours, its Origin, where a browser names one, is
that same host, and it brings the token of this start: as the strict cookie that the printed address
is exchanged for, or as ``Authorization: Bearer`` from a proxy.  Streamlit's own checks take any
port of localhost and any https page on it for friends, and look up this machine's address on the
internet before they refuse a stranger.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config

VARIABLE, SHORTEST = "DP_WORKBENCH_TOKEN", 32
LOOPBACK = ("127.0.0.1", "localhost")
BROWSER, YEAR = (
    "workbench-browser",
    365 * 24 * 3600,
)  # a name for each browser, to find again where it was
NO_KEY = (
    "The address of this workbench has a key in it. Open the one that was printed where the"
    " workbench was started."
)
HEADERS = {
    # every request of a page goes to its own server, so that no name or picture can make a browser
    # ask another host
    "content-security-policy": (
        "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; object-src 'none'; "
        "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """ASGI middleware that refuses everybody but the person who was given the printed address."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        told = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        answer = (
            send
            if scope["type"] == "websocket"
            else _sealed(send, named=f"{BROWSER}=" in told.get("cookie", ""))
        )
        reason = refusal(told, safe=scope.get("method") in ("GET", "HEAD"))
        if not reason and scope["type"] == "http" and (page := self._exchanged(scope)):
            await page(scope, receive, answer)
            return
        if not reason and not self._knows(told):
            reason = NO_KEY
        if not reason:
            # it is our own: Streamlit would compare it with addresses that it asks the internet for
            headers = [
                (name, value) for name, value in scope["headers"] if name.lower() != b"origin"
            ]
            await self.app({**scope, "headers": headers}, receive, answer)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await PlainTextResponse(reason, status_code=403)(scope, receive, answer)

    def _exchanged(self, scope: Scope) -> HTMLResponse | None:
        """The answer to an address with the right token: the cookie, and the same address without
        the token.
        """
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == "token" and self._same(value) for name, value in pairs):
            return None
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        place = quote("/" + scope["path"].lstrip("/\\")) + (f"?{rest}" if rest else "")
        # a redirect from a link elsewhere would not bring a strict cookie along; a page of our own
        # does
        shown = place.replace("&", "&amp;")
        page = HTMLResponse(
            '<!doctype html><title>Opening</title><meta http-equiv="refresh"'
            f' content="0;url={shown}">'
        )
        page.headers["cache-control"] = "no-store"
        secure = scope["scheme"] == "https"
        page.set_cookie(
            cookie_name(), self.token, path="/", httponly=True, samesite="strict", secure=secure
        )
        return page

    def _knows(self, headers: Mapping[str, str]) -> bool:
        # browsers send the cookies of every port along, and other programs write what strict
        # parsers stop at
        cookies = [pair.partition("=") for pair in headers.get("cookie", "").split(";")]
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        tokens = [value.strip() for name, _, value in cookies if name.strip() == cookie_name()]
        return any(map(self._same, [*tokens, bearer] if kind.lower() == "bearer" else tokens))

    def _same(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())


def refusal(headers: Mapping[str, str], *, safe: bool) -> str:
    """Why a request with these headers is refused whatever key it brings; empty when it is not.

    `safe` says that it changes nothing: a GET, where browsers need not name the page that asks.
    """
    host, origin = headers.get("host", "").lower(), headers.get("origin")
    if not _ours(host):
        return "This workbench does not answer under this host name."
    if origin is None:
        if not safe:
            return "A request that may change something has to name its origin."
    elif (
        urlsplit(origin).scheme not in ("http", "https")
        or origin.lower() != f"{urlsplit(origin).scheme}://{host}"
    ):
        return "Pages of other origins are not answered."
    if (
        headers.get("sec-fetch-site") in ("cross-site", "same-site")
        and headers.get("sec-fetch-dest") != "document"
    ):
        return "Pages of other origins are not answered."
    return ""


def cookie_name() -> str:
    """The name of the cookie; browsers send cookies to every port of a host, so it has the port in
    it.
    """
    return f"workbench-{config.get_option('server.port')}"


def start_token() -> str:
    """The token of this start; stops the start when strangers could reach it under any name.

    It is made anew at each start, or taken from the variable DP_WORKBENCH_TOKEN.
    """
    names, address = config.get_option("server.allowedHosts"), config.get_option("server.address")
    if not names or any("*" in name for name in names):
        raise SystemExit(
            "server.allowedHosts must name the hosts of the workbench one by one, without '*'."
        )
    if address not in LOOPBACK and not set(names) - set(LOOPBACK):
        raise SystemExit(
            f"The workbench was told to listen on {address}. Name the host that people will open,"
            " for instance --server.allowedHosts workbench.example.org, and put a proxy with"
            " log-in in front of it; see the guide 'Behind a proxy'."
        )
    token = os.environ.get(VARIABLE, "")
    if token and not (len(token) >= SHORTEST and re.fullmatch(r"[A-Za-z0-9_-]+", token)):
        raise SystemExit(f"{VARIABLE} must have {SHORTEST} or more letters and digits.")
    return token or secrets.token_urlsafe(32)


def _ours(host: str) -> bool:
    """Whether a Host header is one of ours: on this machine with our port, elsewhere with the port
    of any proxy.
    """
    name, _, port = host.partition(":")
    if name not in [known.lower() for known in config.get_option("server.allowedHosts")]:
        return False
    if name not in LOOPBACK:
        return not port or port.isdigit()
    ours = str(config.get_option("server.port"))
    return port == ours or (not port and ours in ("80", "443"))


def _sealed(send: Send, *, named: bool) -> Send:
    """Wrap ``send``: add the security headers to every response.

    An HTML page also gets a cookie that identifies the browser, unless the browser has one
    (``named``).
    """

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            sealed = {name.encode(): value.encode() for name, value in HEADERS.items()}
            headers = [
                (name, value) for name, value in message["headers"] if name.lower() not in sealed
            ]
            if (
                not named
                and message["status"] == 200
                and dict(headers).get(b"content-type", b"").startswith(b"text/html")
            ):
                cookie = (
                    f"{BROWSER}={secrets.token_urlsafe(24)}; HttpOnly; Path=/; SameSite=strict;"
                    f" Max-Age={YEAR}"
                )
                headers.append((b"set-cookie", cookie.encode()))
            message = {**message, "headers": [*headers, *sealed.items()]}
        await send(message)

    return answer
