"""Progress of long work: a fraction and words, told to a function or shown, the same in notebooks and terminals.

Every function that takes ``progress`` takes a function of (fraction, text), which may return False to cancel; True, to
be shown a bar; or nothing.  Ctrl-C, and the stop of a notebook, end the work like any other exception.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from engine.errors import Cancelled, PlanError

Listener = Callable[[float, str], object]
Progress = Listener | bool
TENTHS = 10


class Bar:
    """A listener that shows a bar, by tqdm, in a notebook or on a terminal, and elsewhere a line every tenth.

    All of it goes to standard error.  Work in several parts, whose fractions each begin at 0, has a bar for each.

    >>> import io
    >>> from contextlib import redirect_stderr
    >>> with redirect_stderr(io.StringIO()) as said, Bar() as bar:
    ...     for percent in (0, 4, 9, 12, 55, 100):
    ...         bar(percent / 100, "Counting")
    >>> print(said.getvalue(), end="")
      0%  Counting
     10%  Counting
     50%  Counting
    100%  Counting
    """

    def __init__(self) -> None:
        self._drawn: Any = None
        self._tenth = -1

    def __call__(self, fraction: float, text: str) -> None:
        if sys.stderr.isatty() or "ipykernel" in sys.modules:
            self._draw(100.0 * min(fraction, 1.0), text)
        else:
            tenth = int(TENTHS * min(fraction, 1.0) + 1e-9)
            if tenth != self._tenth:
                print(f"{100 // TENTHS * tenth:3d}%  {text}", file=sys.stderr, flush=True)
            self._tenth = tenth

    def _draw(self, percent: float, text: str) -> None:
        if self._drawn is not None and percent < self._drawn.n:
            self.close()
        if self._drawn is None:
            from tqdm.auto import tqdm

            self._drawn = tqdm(total=100, bar_format="{percentage:3.0f}%|{bar:30}| {elapsed} {desc}", miniters=0)
        self._drawn.set_description_str(text[:60], refresh=False)
        self._drawn.update(percent - self._drawn.n)
        if percent >= 100:
            self.close()

    def close(self) -> None:
        """Leave what is shown as it is; what is written next stands below it."""
        if self._drawn is not None:
            self._drawn.close()
            self._drawn = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def unbroken() -> Iterator[None]:
    """Hold Ctrl-C, and the stop of a notebook, back until the block has ended; then they are heard."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # only the main thread hears signals, and only a function of Python can be called later
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


def listener(progress: Progress | None) -> Listener | None:
    """Return who hears of progress; raise PlanError for what cannot hear.

    >>> listener(3)
    Traceback (most recent call last):
    engine.errors.PlanError: progress was 3. Give a function of (fraction, text), True for a bar, or leave it out.
    """
    if progress is None or progress is False:
        return None
    if progress is True:
        return Bar()
    if not callable(progress):
        raise PlanError(
            f"progress was {progress!r:.60}. Give a function of (fraction, text), True for a bar, or leave it out."
        )
    return progress


def told(progress: Progress | None, cancelled: str) -> Callable[[float, str], None]:
    """Return a function that tells progress, and raises Cancelled with these words when the listener says False.

    >>> told(lambda fraction, text: fraction < 0.5, "It was cancelled.")(0.7, "Counting")
    Traceback (most recent call last):
    engine.errors.Cancelled: It was cancelled.
    """
    heard = listener(progress)

    def tell(fraction: float, text: str) -> None:
        if heard is not None and heard(fraction, text) is False:
            raise Cancelled(cancelled)

    return tell


def rising(progress: Listener | None) -> Listener | None:
    """Return a listener that never hears a smaller fraction than before, whatever has to be done again."""
    if progress is None:
        return None
    highest = 0.0

    def heard(fraction: float, text: str) -> object:
        # a split that is tried again would let the bar go back
        nonlocal highest
        highest = max(highest, fraction)
        return progress(highest, text)

    return heard
