"""Questions to a database that somebody may stop while they run, however long they take.

Whoever hears of progress is asked again and again, in a thread beside the question, whether it shall go on; if not, the
database is told to let go of it, and what was said is raised where the question was asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from engine.progress import Listener

EVERY = 0.2  # seconds between two signs of life, and between two tries to stop
ASKING = "counting in the database"


@contextmanager
def stoppable(backend: Any, heard: Listener | None) -> Iterator[Heard | None]:
    """Tell progress while a database works, by what is given here, and raise what the listener raises.

    The listener is called from a thread of its own until the block ends, and after that from the caller's.
    """
    if heard is None:
        yield None
        return
    watch = Heard(heard)
    with _stopper(backend) as stop:
        thread = threading.Thread(target=watch.run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield watch
        except Exception:
            if watch.said is None:
                raise
        finally:
            watch.ended.set()
            thread.join()
    if watch.said is not None:
        raise watch.said
    heard(*watch.latest)


class Heard:
    """Who hears of progress, what was told last, how many signs of life were given since the start, and what was said.

    Called like a listener, with what is to be told from now on.
    """

    def __init__(self, heard: Listener) -> None:
        self.heard = heard
        self.latest, self.signs = (0.0, ASKING), 0
        self.said: BaseException | None = None
        self.ended = threading.Event()

    def __call__(self, fraction: float, text: str) -> None:
        self.latest = (fraction, text)
        if self.said is not None:
            raise self.said

    def run(self, stop: Callable[[], object]) -> None:
        while not self.ended.wait(EVERY):
            self.signs += 1
            if self.said is None:
                try:
                    self.heard(*self.latest)
                except BaseException as said:
                    self.said = said
            if self.said is not None:
                # again and again: what comes between two questions stops neither
                with suppress(Exception):
                    stop()


@contextmanager
def _stopper(backend: Any) -> Iterator[Callable[[], object]]:
    """What makes a database let go of what this thread asks it; nothing does for those that have no such call."""
    if backend.name == "pyspark":
        context, tag = backend._session.sparkContext, f"counted-{threading.get_ident()}"
        with suppress(Exception):  # a session that has ended says so when it is asked
            context.addJobTag(tag)
        try:
            yield lambda: context.cancelJobsWithTag(tag)
        finally:
            with suppress(Exception):
                context.removeJobTag(tag)
    elif backend.name == "postgres":
        yield backend.con.cancel_safe
    else:
        yield getattr(getattr(backend, "con", None), "interrupt", lambda: None)
