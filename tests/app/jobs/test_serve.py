"""Server settings: logs without values, and return of freed memory."""

from __future__ import annotations

import logging
import threading
import weakref
from io import StringIO

import pytest

from pages.parts.jobs import server_lifecycle


def test_logs_name_error_type_and_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    factory, log = logging.getLogRecordFactory(), StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(log)])
    # Setting the hook to its present value makes pytest restore it after the test.
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    try:
        server_lifecycle.keep_values_out_of_logs()
        try:
            raise ValueError("a value of a record")
        except ValueError:
            logging.getLogger("streamlit.any").exception("Uncaught %s", "app execution")
        thread = threading.Thread(target=int, args=("a value of another record",))
        thread.start()
        thread.join()
    finally:
        logging.setLogRecordFactory(factory)
    assert "Uncaught app execution (ValueError at test_serve.py, line" in log.getvalue()
    assert "A thread ended (ValueError" in log.getvalue()
    assert "a value" not in log.getvalue()


def test_memory_of_unreachable_objects_is_returned() -> None:
    assert not server_lifecycle.allocator("no_such_function", 0)
    ring: list[object] = []
    ring.append(ring)
    reference = weakref.ref(member := type("Held", (), {})())
    ring.append(member)
    del ring, member
    server_lifecycle.release_memory()
    assert reference() is None
