"""Temporary PostgreSQL server on the loopback interface for a test run."""

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

from tests.requirements import program_path

OWNER = "owner"
TRIES = 5
# the data are deleted after the tests, so nothing is synced
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_wal_size": "64MB",
}


@dataclass(frozen=True, kw_only=True)
class Server:
    """A database server; `user_options` are process options that avoid running as root."""

    folder: Path
    port: int
    user_options: dict[str, Any]

    def connect(self, user: str = OWNER, **options: Any) -> Any:
        return ibis.postgres.connect(
            host="127.0.0.1", port=self.port, user=user, database="postgres", **options
        )

    def control(self, *words: str) -> None:
        _run(
            self.folder, self.user_options, "pg_ctl", "-w", "-D", str(self.folder / "data"), *words
        )


@contextmanager
def server() -> Iterator[Server]:
    """Run a new PostgreSQL server on a temporary folder."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
    user_options: dict[str, Any] = {}
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
        user_options = {"user": "postgres", "group": "postgres", "extra_groups": []}
    try:
        options = (
            "--auth=trust",
            f"--username={OWNER}",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        )
        _run(folder, user_options, "initdb", "-D", str(folder / "data"), *options)
        yield from _start(folder, user_options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, user_options: dict[str, Any]) -> Iterator[Server]:
    """Start a server on a free port, yield it, and stop it at the end."""
    for tries_left in reversed(range(TRIES)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            server = Server(folder=folder, port=free.getsockname()[1], user_options=user_options)
        settings = SETTINGS | {"port": server.port, "unix_socket_directories": folder}
        try:
            server.control(
                "-o",
                " ".join(f"-c {n}={v}" for n, v in settings.items()),
                "-l",
                str(folder / "log"),
                "start",
            )
        except RuntimeError:  # another process took the port in the meantime
            if not tries_left:
                raise
            continue
        try:
            yield server
        finally:
            if (folder / "data" / "postmaster.pid").exists():
                server.control("-m", "immediate", "stop")
        return


def _run(folder: Path, user_options: dict[str, Any], program: str, *words: str) -> None:
    command = program_path(program)
    assert command, (
        f"{program} is missing; install PostgreSQL, on Debian with apt-get install postgresql"
    )
    # The output goes to a file, because the started server keeps it open.
    with open(folder / f"{program}.txt", "w+", encoding="utf-8") as output:
        done = subprocess.run(
            [command, *words], cwd=folder, stdout=output, stderr=output, check=False, **user_options
        )
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{program} failed: {output.read()}")
