"""Worker processes of comparisons end when the parent process ends."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import CEILING

LEAVING = """
import threading, time
from engine._workers import call_apart

heard = threading.Event()

def asked():
    call_apart({"long": (time.sleep, (86400,))}, at_once=1, seconds=86400.0, hear=lambda fraction, labels: heard.set())

threading.Thread(target=asked, daemon=True).start()
heard.wait()
"""


def test_a_program_ends_while_a_thread_of_it_compares() -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVING], timeout=CEILING, check=False)
    assert ended.returncode == 0
