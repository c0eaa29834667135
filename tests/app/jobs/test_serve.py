"""The server around the pages: no value in its logs, and memory that goes back to the machine."""

from __future__ import annotations

import logging
import threading
import weakref
from io import StringIO

import pytest

from pages.parts.jobs import serve


def test_logs_name_the_kind_and_the_place_of_an_error_and_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    made, log = logging.getLogRecordFactory(), StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(log)])
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # as it is now, when this test is over
    try:
        serve.keep_values_out_of_logs()
        try:
            raise ValueError("a value of a record")
        except ValueError:
            logging.getLogger("streamlit.any").exception("Uncaught %s", "app execution")
        beside = threading.Thread(target=int, args=("a value of another record",))
        beside.start()
        beside.join()
    finally:
        logging.setLogRecordFactory(made)
    assert "Uncaught app execution (ValueError at test_serve.py, line" in log.getvalue()
    assert "A thread ended (ValueError" in log.getvalue()
    assert "a value" not in log.getvalue()


def test_what_nobody_reaches_goes_back_to_the_machine_where_its_allocator_can() -> None:
    assert not serve.allocator("no_such_function", 0)
    ring: list[object] = []
    ring.append(ring)
    gone = weakref.ref(made := type("Held", (), {})())
    ring.append(made)
    del ring, made
    serve.give_back()
    assert gone() is None
