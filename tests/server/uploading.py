"""Upload of a file by a WebSocket client."""

from __future__ import annotations

import http.client

from streamlit.proto.BackMsg_pb2 import BackMsg

from tests.server.client import Client
from tests.server.serving import RunningServer
from tests.waiting import CEILING


def upload(server: RunningServer, page: Client, content: bytes) -> None:
    """Upload a file named records.csv to the session of ``page``, as its browser would."""
    ask = BackMsg()
    ask.file_urls_request.request_id = "r"
    ask.file_urls_request.file_names.append("records.csv")
    page.connection.send(ask.SerializeToString())
    target = page.receive("file_urls_response").file_urls[0]
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=CEILING)
    connection.request("GET", "/_stcore/host-config", headers={"Cookie": server.cookie})
    connection.getresponse().read()
    # this response sets the cookie with the XSRF token that uploads require
    connection.request("GET", "/_stcore/health", headers={"Cookie": server.cookie})
    answer = connection.getresponse()
    answer.read()
    xsrf = next(c.partition(";")[0] for c in answer.headers.get_all("Set-Cookie") if "xsrf" in c)
    bound = "frontier"
    body = (
        f'--{bound}\r\nContent-Disposition: form-data; name="f"; filename="records.csv"\r\n'
        "Content-Type: text/csv\r\n\r\n"
    ).encode()
    body += content + f"\r\n--{bound}--\r\n".encode()
    headers = {
        "Cookie": f"{server.cookie}; {xsrf}",
        "Origin": server.url,
        "X-Xsrftoken": xsrf.partition("=")[2],
        "Content-Type": f"multipart/form-data; boundary={bound}",
    }
    connection.request("PUT", target.upload_url, body, headers)
    assert connection.getresponse().status == 204
