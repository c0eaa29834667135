"""Worker processes of comparisons end when the parent process ends."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import CEILING

LEAVING = """
import threading, time
from engine._workers import run_in_workers

started = threading.Event()

def call_workers():
    calls = {"long": (time.sleep, (86400,))}
    run_in_workers(calls, at_once=1, seconds=86400.0, on_progress=lambda fraction, labels: started.set())

threading.Thread(target=call_workers, daemon=True).start()
started.wait()
"""


def test_program_ends_while_thread_uses_workers() -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVING], timeout=CEILING, check=False)
    assert ended.returncode == 0
