"""Context manager that runs the app on a free port."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.waiting import CEILING, until

ROOT = Path(__file__).resolve().parents[2]
START_COMMAND = (sys.executable, "-m", "streamlit", "run", str(ROOT / "app.py"))
# Code that Python runs at the start of the server and its workers. It writes every connection to
# another machine, and every look-up of its name, to the file SINK_FILE.
AUDIT_HOOK = """
import os, sys
def note(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0] if event.startswith("socket.geth") or event == "socket.getaddrinfo" else arguments[-1]
        host = host[0] if isinstance(host, tuple) else host
        if isinstance(host, str) and host not in ("127.0.0.1", "localhost", "::1", "") and not host.startswith("/"):
            with open(os.environ["SINK_FILE"], "a") as file:
                file.write(f"{event} {host}\\n")
sys.addaudithook(note)
"""


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """A running server of the app.

    Attributes
    ----------
    url : URL without the access key.
    address : printed address, which contains the access key.
    lines : output so far.
    sink : file to which `AUDIT_HOOK` writes connections to other machines and look-ups of names.
    """

    url: str
    address: str
    process: subprocess.Popen[str]
    lines: list[str]
    sink: Path

    @property
    def token(self) -> str:
        """Return the access key in the printed address."""
        return self.address.partition("token=")[2]

    @cached_property
    def cookie(self) -> str:
        """Return the cookie that the server sets for the printed address."""
        with urllib.request.urlopen(self.address, timeout=CEILING) as answer:
            return answer.headers["Set-Cookie"].partition(";")[0]

    def outside_hosts(self) -> list[str]:
        """Return one line per connection to another machine, or look-up of its name.

        A line contains the event and the host. The lines of the server's workers are included.
        """
        return self.sink.read_text(encoding="utf-8").splitlines() if self.sink.exists() else []


def free_port() -> int:
    """Return a port of this machine that no program uses at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def run_server(
    folder: Path, *options: str, start: Sequence[str] = START_COMMAND, **environment: str
) -> Iterator[RunningServer]:
    """Start the app with ``folder`` as working folder, wait until it serves, stop it at the end.

    Parameters
    ----------
    options : further options of the command.
    start : command that starts the app.
    environment : further environment variables.
    """
    port, sink = free_port(), folder / "sink.txt"
    (folder / "sitecustomize.py").write_text(AUDIT_HOOK, encoding="utf-8")
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith("STREAMLIT_")
    }
    paths = os.pathsep.join(
        [str(folder), *([variables["PYTHONPATH"]] if "PYTHONPATH" in variables else [])]
    )
    variables |= {
        "PYTHONPATH": paths,
        "SINK_FILE": str(sink),
        "DP_WORKBENCH_SETTINGS": str(folder / "settings"),
    }
    process = subprocess.Popen(
        [*start, "--server.port", str(port), *options],
        cwd=folder,
        env=variables | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []
    addresses: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in process.stdout:
            lines.append(line)
            if match := re.search(r"http\S+token=\S+", line):
                addresses.put(match[0])
        addresses.put("")

    threading.Thread(target=listen, daemon=True).start()
    try:
        address = addresses.get(timeout=CEILING)
        if not address:
            pytest.fail(f"the server ended: {''.join(lines)[-2000:]}")
        _wait_for(address)
        yield RunningServer(
            url=f"http://127.0.0.1:{port}", address=address, process=process, lines=lines, sink=sink
        )
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(address: str) -> None:
    def answers() -> bool:
        try:
            with urllib.request.urlopen(address, timeout=CEILING):
                return True
        except (URLError, OSError):
            return False

    until(answers, words=address)
