"""Middleware that checks the access of every HTTP and WebSocket request before Streamlit.

A request is allowed if its Host is an allowed host, its Origin, if any, is the same host, and it
contains the access token of this server start: as the cookie that the printed address sets, or as
``Authorization: Bearer`` from a proxy. Streamlit's own checks are not sufficient: they also accept
requests from pages on any port of localhost.
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

VARIABLE, MIN_TOKEN_LENGTH = "DP_WORKBENCH_TOKEN", 32
LOOPBACK = ("127.0.0.1", "localhost")
BROWSER = "workbench-browser"  # cookie that identifies the browser, for `session_restore`
COOKIE_LIFETIME_S = 365 * 24 * 3600
NO_KEY = (
    "This address lacks the access key. Open the address printed when the app was started, then "
    "open this address again."
)
HEADERS = {
    # A page may load resources from its own server only, so that text on a page cannot make the
    # browser contact another host.
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
    """ASGI middleware that refuses requests without the access token.

    The token is in the address that the app prints at its start, and then in a cookie.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request_headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        answer = (
            send
            if scope["type"] == "websocket"
            else _add_headers(send, has_cookie=f"{BROWSER}=" in request_headers.get("cookie", ""))
        )
        reason = refusal(request_headers, safe=scope.get("method") in ("GET", "HEAD"))
        if not reason and scope["type"] == "http" and (page := self._set_cookie_page(scope)):
            await page(scope, receive, answer)
            return
        if not reason and not self._has_token(request_headers):
            reason = NO_KEY
        if not reason:
            # `refusal` has checked the Origin header. Streamlit would check it again, and would
            # request the external address of the machine for this check, so the header is removed.
            headers = [
                (name, value) for name, value in scope["headers"] if name.lower() != b"origin"
            ]
            await self.app({**scope, "headers": headers}, receive, answer)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await PlainTextResponse(reason, status_code=403)(scope, receive, answer)

    def _set_cookie_page(self, scope: Scope) -> HTMLResponse | None:
        """Return a page that sets the cookie, if the address contains the token; otherwise None.

        The page forwards to the same address without the token.
        """
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == "token" and self._is_token(value) for name, value in pairs):
            return None
        parameters = urlencode([(name, value) for name, value in pairs if name != "token"])
        path = quote("/" + scope["path"].lstrip("/\\"))
        address = f"{path}?{parameters}" if parameters else path
        # A page is used instead of an HTTP redirect: if a link on another site led to this address,
        # browsers would follow the redirect without the cookie, which has SameSite=strict.
        html_address = address.replace("&", "&amp;")
        page = HTMLResponse(
            '<!doctype html><title>Opening</title><meta http-equiv="refresh"'
            f' content="0;url={html_address}">'
        )
        page.headers["cache-control"] = "no-store"
        secure = scope["scheme"] == "https"
        page.set_cookie(
            cookie_name(), self.token, path="/", httponly=True, samesite="strict", secure=secure
        )
        return page

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        # Cookies are split by hand. Browsers also send cookies of programs on other ports of the
        # host; a strict parser would refuse all cookies if one of these is invalid.
        cookies = [pair.partition("=") for pair in headers.get("cookie", "").split(";")]
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        tokens = [value.strip() for name, _, value in cookies if name.strip() == cookie_name()]
        return any(map(self._is_token, [*tokens, bearer] if kind.lower() == "bearer" else tokens))

    def _is_token(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.token.encode())


def refusal(headers: Mapping[str, str], *, safe: bool) -> str:
    """Return why a request is refused even with a valid token; empty if it is not refused.

    Parameters
    ----------
    headers : request headers, names in lower case.
    safe : whether the method is GET or HEAD, for which browsers may omit the Origin header.
    """
    host = headers.get("host", "").lower()
    origin = headers.get("origin")
    if not _is_allowed(host):
        return "The app does not accept this host name. Open the address printed at its start."
    if origin is None:
        if not safe:
            return "This request needs an Origin header, because it may change data."
    elif (
        urlsplit(origin).scheme not in ("http", "https")
        or origin.lower() != f"{urlsplit(origin).scheme}://{host}"
    ):
        return "Requests from pages of other origins are refused."
    if (
        headers.get("sec-fetch-site") in ("cross-site", "same-site")
        and headers.get("sec-fetch-dest") != "document"
    ):
        return "Requests from pages of other origins are refused."
    return ""


def cookie_name() -> str:
    """Return the name of the cookie with the access token; it contains the port of the server.

    Browsers send a cookie to all ports of a host.
    """
    return f"workbench-{config.get_option('server.port')}"


def start_token() -> str:
    """Return the access token: the environment variable DP_WORKBENCH_TOKEN, or a random text.

    Raises
    ------
    SystemExit
        The setting server.allowedHosts is empty or has a wildcard; the app listens on a public
        address, but the setting names only localhost; or the variable is too short or has other
        characters than A-Z, a-z, 0-9, _ and -.
    """
    names, address = config.get_option("server.allowedHosts"), config.get_option("server.address")
    if not names or any("*" in name for name in names):
        raise SystemExit(
            "The setting server.allowedHosts is empty or contains '*'. List every host name of the"
            " app, such as --server.allowedHosts dp.example.org."
        )
    if address not in LOOPBACK and not set(names) - set(LOOPBACK):
        raise SystemExit(
            f"The app listens on {address or 'every network address'}. Give the host name that"
            " people open, such as --server.allowedHosts dp.example.org, and put a proxy with"
            " log-in in front of the app; see the guide 'Behind a proxy'."
        )
    token = os.environ.get(VARIABLE, "")
    if token and not (len(token) >= MIN_TOKEN_LENGTH and re.fullmatch(r"[A-Za-z0-9_-]+", token)):
        raise SystemExit(
            f"{VARIABLE} is too short or has a character that is not allowed. Use at least"
            f" {MIN_TOKEN_LENGTH} letters, digits, '-' or '_'."
        )
    return token or secrets.token_urlsafe(32)


def _is_allowed(host: str) -> bool:
    """Return whether a Host header names an allowed host.

    On a loopback host, the header must also have the port of the server, unless this is 80 or 443.
    On any other host, the port is arbitrary, because of proxies.
    """
    name, _, port = host.partition(":")
    if name not in [allowed.lower() for allowed in config.get_option("server.allowedHosts")]:
        return False
    if name not in LOOPBACK:
        return not port or port.isdigit()
    server_port = str(config.get_option("server.port"))
    return port == server_port or (not port and server_port in ("80", "443"))


def _add_headers(send: Send, *, has_cookie: bool) -> Send:
    """Return a wrapper of ``send`` that adds the security headers to every response.

    An HTML page also gets a cookie that identifies the browser, unless the request has this cookie.
    """

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            security_headers = {name.encode(): value.encode() for name, value in HEADERS.items()}
            headers = [
                (name, value)
                for name, value in message["headers"]
                if name.lower() not in security_headers
            ]
            if (
                not has_cookie
                and message["status"] == 200
                and dict(headers).get(b"content-type", b"").startswith(b"text/html")
            ):
                cookie = (
                    f"{BROWSER}={secrets.token_urlsafe(24)}; HttpOnly; Path=/; SameSite=strict;"
                    f" Max-Age={COOKIE_LIFETIME_S}"
                )
                headers.append((b"set-cookie", cookie.encode()))
            message = {**message, "headers": [*headers, *security_headers.items()]}
        await send(message)

    return answer
