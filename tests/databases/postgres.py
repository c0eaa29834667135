"""A PostgreSQL of its own for a test run: in a temporary folder, on the loopback, gone when it ends."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ibis

OWNER = "keeper"
TRIES = 5
# nothing of it outlives the tests, so that nothing is synced
SETTINGS = {"listen_addresses": "127.0.0.1", "fsync": "off", "shared_buffers": "16MB", "max_wal_size": "64MB"}


@dataclass(frozen=True, kw_only=True)
class Server:
    """A database server; `as_whom` are options of a process that is not root's, under which it refuses to run."""

    folder: Path
    port: int
    as_whom: dict[str, Any]

    def connect(self, user: str = OWNER, **options: Any) -> Any:
        return ibis.postgres.connect(host="127.0.0.1", port=self.port, user=user, database="postgres", **options)

    def control(self, *words: str) -> None:
        _run(self.folder, self.as_whom, "pg_ctl", "-w", "-D", str(self.folder / "data"), *words)


@contextmanager
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
    as_whom: dict[str, Any] = {}
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
        as_whom = {"user": "postgres", "group": "postgres", "extra_groups": []}
    try:
        made = ("--auth=trust", f"--username={OWNER}", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8")
        _run(folder, as_whom, "initdb", "-D", str(folder / "data"), *made)
        yield from _started(folder, as_whom)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path, as_whom: dict[str, Any]) -> Iterator[Server]:
    for left in reversed(range(TRIES)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            found = Server(folder=folder, port=free.getsockname()[1], as_whom=as_whom)
        settings = SETTINGS | {"port": found.port, "unix_socket_directories": folder}
        try:
            found.control(
                "-o", " ".join(f"-c {n}={v}" for n, v in settings.items()), "-l", str(folder / "log"), "start"
            )
        except RuntimeError:  # somebody else took the port in between
            if not left:
                raise
            continue
        try:
            yield found
        finally:
            if (folder / "data" / "postmaster.pid").exists():
                found.control("-m", "immediate", "stop")
        return


def _run(folder: Path, as_whom: dict[str, Any], program: str, *words: str) -> None:
    path = os.pathsep.join([os.environ["PATH"], *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))])
    command = shutil.which(program, path=path)
    assert command, f"{program} is not there; install PostgreSQL, on Debian with apt-get install postgresql"
    # to a file, because the server that is started keeps what it was given open
    with open(folder / f"{program}.txt", "w+", encoding="utf-8") as output:
        done = subprocess.run([command, *words], cwd=folder, stdout=output, stderr=output, check=False, **as_whom)
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{program} failed: {output.read()}")
