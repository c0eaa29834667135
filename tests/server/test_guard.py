"""Access control: hosts, origins, keys, cookies, frames and connections."""

from __future__ import annotations

import http.client
import itertools
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit import config
from websockets.exceptions import InvalidHandshake
from websockets.sync.client import connect

from pages.parts.shell.auth_middleware import LOOPBACK, start_token
from pages.parts.shell.page_layout import PAGES
from tests.server.serving import ROOT, RunningServer, free_port
from tests.waiting import CEILING, until

STREAMLIT_PATHS = (
    "/",
    "/_stcore/health",
    "/_stcore/metrics",
    "/_stcore/host-config",
    "/static/x.js",
    "/media/x",
)
PATHS = (*STREAMLIT_PATHS, *(f"/{Path(page.file).stem}" for page in PAGES))
START = [sys.executable, "-m", "streamlit", "run", "app.py", "--server.port"]
FOREIGN_ORIGINS = (
    "http://127.0.0.1:9",
    "http://localhost:9",
    "https://localhost",
    "https://127.0.0.1",
    "http://example.com",
    "null",
)


def send_request(
    server: RunningServer, path: str, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    """Send a request with exactly these headers; the default Host is that of the server.

    An underscore in the name of a header is sent as a hyphen.
    """
    fields = {"Host": server.url.removeprefix("http://")} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    line = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=CEILING)
    line.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in fields.items():
        line.putheader(name, value)
    line.endheaders()
    return line.getresponse()


def opens_websocket(
    server: RunningServer, *, origin: str | None, cookie: str = "", host: str = ""
) -> bool:
    """Return whether the server accepts a WebSocket with these headers."""
    place = server.url.replace("http", "ws") + "/_stcore/stream"
    headers = {"Cookie": cookie} if cookie else {}
    if host:  # `connect` cannot send another Host header than that of the address
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
        key = {
            "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Origin": f"http://{host}",
            "Cookie": cookie,
        }
        return send_request(server, "/_stcore/stream", Host=host, **upgrade, **key).status == 101
    try:
        options = {
            "additional_headers": headers,
            "subprotocols": ["streamlit"],
            "open_timeout": CEILING,
        }
        with connect(place, origin=origin, **options):
            return True
    except InvalidHandshake:
        return False


@pytest.mark.parametrize("path", PATHS)
def test_requests_without_key_are_refused(server: RunningServer, path: str) -> None:
    for headers in ({}, {"Cookie": f"{server.cookie}x"}, {"Authorization": "Bearer x"}):
        response = send_request(server, path, **headers)
        assert response.status == 403
        assert server.token not in response.read().decode()
    assert send_request(server, f"{path}?token={server.token}x").status == 403


@pytest.mark.parametrize("path", PATHS)
def test_foreign_host_or_origin_is_refused_with_key(server: RunningServer, path: str) -> None:
    headers = {"Cookie": server.cookie}
    port = server.url.rpartition(":")[2]
    for host in (
        "example.com",
        f"example.com:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost",
        f"x@127.0.0.1:{port}",
        f"localhost.:{port}",
        f"[::1]:{port}",
        f"127.1:{port}",
        f"127.0.0.1:{port}:{port}",
        f"127.0.0.1:0{port}",
        "",
    ):
        assert send_request(server, path, Host=host, **headers).status in (400, 403)
    for origin in FOREIGN_ORIGINS:
        assert send_request(server, path, Origin=origin, **headers).status == 403
    for site, target in itertools.product(("cross-site", "same-site"), ("iframe", "script")):
        fetch_headers = {"Sec_Fetch_Site": site, "Sec_Fetch_Dest": target}
        assert send_request(server, path, **fetch_headers, **headers).status == 403
    assert send_request(server, path, "POST", **headers).status == 403


def test_printed_address_is_exchanged_for_strict_cookie(server: RunningServer) -> None:
    response = send_request(server, f"/release?plan=x%22y&token={server.token}")
    cookie_parts = {part.strip() for part in response.headers["Set-Cookie"].split(";")}
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= cookie_parts
    page = response.read().decode()
    assert 'url=/release?plan=x%22y"' in page
    assert server.token not in page
    assert send_request(server, "/", Cookie=server.cookie).status == 200
    bearer = f"Bearer {server.token}"
    assert send_request(server, "/_stcore/health", Authorization=bearer).status == 200
    # an address of another host is exchanged for one of this server
    other_host = send_request(server, f"//example.com/%0d%0aX:1?token={server.token}")
    assert "url=/example.com/%0D%0AX%3A1" in other_host.read().decode()


@pytest.mark.parametrize(
    "other_cookie",
    ['a={"b": 1}', "two words=1", "\xe9=\xfc", "=", "workbench=x, y", "{name}=another"],
)
def test_cookies_of_other_programs_do_not_block_access(
    server: RunningServer, other_cookie: str
) -> None:
    other_cookie = other_cookie.replace("{name}", server.cookie.partition("=")[0])
    for cookies in (f"{other_cookie}; {server.cookie}", f"{server.cookie}; {other_cookie}"):
        assert send_request(server, "/_stcore/health", Cookie=cookies).status == 200
    assert send_request(server, "/_stcore/health", Cookie=other_cookie).status == 403


@pytest.mark.parametrize("path", PATHS)
def test_responses_forbid_frames_and_type_guessing(server: RunningServer, path: str) -> None:
    for headers in ({}, {"Cookie": server.cookie}):
        response = send_request(server, path, **headers).headers
        assert "frame-ancestors 'none'" in response["Content-Security-Policy"]
        assert "default-src 'self'" in response["Content-Security-Policy"]
        assert response.get_all("X-Content-Type-Options") == ["nosniff"]
        assert response.get_all("Referrer-Policy") == ["no-referrer"]


def test_websocket_opens_only_for_its_origin(server: RunningServer) -> None:
    assert opens_websocket(server, origin=server.url, cookie=server.cookie)
    assert not opens_websocket(server, origin=server.url)
    assert not opens_websocket(server, origin=server.url, cookie=f"{server.cookie}x")
    assert not opens_websocket(server, origin=None, cookie=server.cookie)
    assert not opens_websocket(server, origin=None, cookie=server.cookie, host="example.com")
    for origin in FOREIGN_ORIGINS:
        assert not opens_websocket(server, origin=origin, cookie=server.cookie)


def test_foreign_origins_cause_no_outside_requests(server: RunningServer) -> None:
    for origin in FOREIGN_ORIGINS * 3:
        for cookie in ("", server.cookie):
            opens_websocket(server, origin=origin, cookie=cookie)
            send_request(server, "/_stcore/host-config", Origin=origin, Cookie=cookie)
            send_request(server, "/_stcore/upload_file/a/b", "PUT", Origin=origin, Cookie=cookie)
    send_request(server, "/_stcore/upload_file/a/b", "PUT", Origin=server.url, Cookie=server.cookie)
    assert server.outside_hosts() == []


def test_network_log_records_outside_connections(server: RunningServer, tmp_path: Path) -> None:
    process_log = replace(server, sink=tmp_path / "sink.txt")
    environment = {"PYTHONPATH": str(server.sink.parent), "SINK_FILE": str(process_log.sink)}
    script = (
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"
    )
    subprocess.run(
        [sys.executable, "-c", script], env=environment, check=False, capture_output=True
    )
    assert process_log.outside_hosts() == ["socket.connect 192.0.2.1"]


UNNAMED_HOSTS = (
    ["--server.address", "0.0.0.0"],
    ["--server.address", "0.0.0.0", "--server.allowedHosts", "*"],
    ["--server.allowedHosts", "*.example.org"],
)


@pytest.mark.parametrize("options", UNNAMED_HOSTS)
def test_start_without_named_hosts_is_refused(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(LOOPBACK) == set(config.get_option("server.allowedHosts"))
    settings = {"server.address": "127.0.0.1", "server.allowedHosts": list(LOOPBACK)}
    for name, value in zip(options[::2], options[1::2], strict=True):
        settings[name.removeprefix("--")] = [value] if name.endswith("Hosts") else value
    monkeypatch.setattr(config, "get_option", settings.__getitem__)
    with pytest.raises(SystemExit, match=r"server\.allowedHosts"):
        start_token()


@pytest.mark.parametrize(
    "options",
    [UNNAMED_HOSTS[0], *(pytest.param(more, marks=pytest.mark.full) for more in UNNAMED_HOSTS[1:])],
)
def test_server_without_named_hosts_does_not_start(options: list[str]) -> None:
    run = subprocess.run(
        [*START, str(free_port()), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=CEILING,
        check=False,
    )
    assert run.returncode != 0
    assert "server.allowedHosts" in run.stderr
    assert "Traceback" not in run.stderr


def test_proxy_access_needs_named_host_and_key(tmp_path: Path) -> None:
    token, host_name = "k" * 40, "workbench.example.org"
    options = ["--server.address", "127.0.0.2", "--server.allowedHosts", host_name.title()]
    # run_server would wait for the printed address, which is that of the proxy
    port = free_port()
    command = [*START, str(port), *options]
    environment = {"DP_WORKBENCH_TOKEN": token, "PATH": "", "HOME": str(tmp_path)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        line = next(line for line in process.stdout if "token=" in line)
        assert f"https://{host_name.title()}/?token={token}" in line
        for host, bearer, status in (
            (host_name, token, 200),
            (host_name, "", 403),
            (f"127.0.0.2:{port}", token, 403),
        ):
            request = urllib.request.Request(
                f"http://127.0.0.2:{port}/_stcore/health", headers={"Host": host}
            )
            request.add_header("Authorization", f"Bearer {bearer}")
            statuses: list[int] = []

            def record_status(
                request: urllib.request.Request = request, statuses: list[int] = statuses
            ) -> bool:
                try:
                    with urllib.request.urlopen(request, timeout=CEILING) as answer:
                        statuses.append(answer.status)
                except urllib.error.HTTPError as error:
                    statuses.append(error.code)
                # the server has not started yet
                except OSError:
                    return False
                return True

            until(record_status)
            assert statuses == [status]
    finally:
        process.terminate()
        process.wait(timeout=CEILING)
