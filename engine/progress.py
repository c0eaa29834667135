"""Progress of long computations: a callback, or a progress bar in notebooks and terminals.

The argument ``progress`` of a function is one of

- a function of (fraction, text).  If it raises an exception, the computation stops.  If it returns
  False, functions that document `Cancelled` stop and raise that error,
- True for a progress bar,
- None or False for no reports.

Ctrl-C and the stop button of a notebook raise KeyboardInterrupt as usual.
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
PROGRESS_STEPS = 10  # where no bar is drawn, a line is printed at each step


class Bar:
    """Progress callback that draws a tqdm bar in a notebook or terminal, and else writes lines.

    Lines are written once per tenth of the work.  All output goes to standard error.  If the
    fraction decreases, another stage of the work has started, and a new bar is drawn for it.

    >>> import io
    >>> from contextlib import redirect_stderr
    >>> with redirect_stderr(io.StringIO()) as output, Bar() as bar:
    ...     for percent in (0, 4, 9, 12, 55, 100):
    ...         bar(percent / 100, "Counting")
    >>> print(output.getvalue(), end="")
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
            tenth = int(PROGRESS_STEPS * min(fraction, 1.0) + 1e-9)
            if tenth != self._tenth:
                print(f"{100 // PROGRESS_STEPS * tenth:3d}%  {text}", file=sys.stderr, flush=True)
            self._tenth = tenth

    def _draw(self, percent: float, text: str) -> None:
        if self._drawn is not None and percent < self._drawn.n:
            self.close()
        if self._drawn is None:
            from tqdm.auto import tqdm

            self._drawn = tqdm(
                total=100, bar_format="{percentage:3.0f}%|{bar:30}| {elapsed} {desc}", miniters=0
            )
        self._drawn.set_description_str(text[:60], refresh=False)
        self._drawn.update(percent - self._drawn.n)
        if percent >= 100:
            self.close()

    def close(self) -> None:
        """Close the bar and leave it visible; later output starts on the line below."""
        if self._drawn is not None:
            self._drawn.close()
            self._drawn = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Delay an interrupt (Ctrl-C, or the stop button of a notebook) until the block has ended."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        # Python runs signal handlers in the main thread only, so no interrupt can occur in another
        # thread.  A handler that is not a Python function (SIG_IGN, SIG_DFL, or set in C) cannot be
        # called after the block, so the interrupt is not delayed.
        yield
        return
    delayed: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: delayed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if delayed:
            handler(*delayed[0])


def check_callback(progress: Progress | None) -> Listener | None:
    """Return the callback that an argument ``progress`` selects, or None for no reports.

    None and False give None, True gives a `Bar`, and a function is returned unchanged.
    Raises: PlanError for any other value.

    >>> check_callback(3)  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    engine.errors.PlanError: progress was 3. Give a function of (fraction, text), True for a bar, or
    leave it out.
    """
    if progress is None or progress is False:
        return None
    if progress is True:
        return Bar()
    if not callable(progress):
        raise PlanError(
            f"progress was {progress!r:.60}. Give a function of (fraction, text), True for a bar,"
            " or leave it out."
        )
    return progress


def progress_reporter(progress: Progress | None, cancelled: str) -> Callable[[float, str], None]:
    """Return a function of (fraction, text) that reports to ``progress``.

    The function raises Cancelled, with the message ``cancelled``, if the callback returns False.

    >>> progress_reporter(lambda fraction, text: fraction < 0.5, "It was cancelled.")(0.7, "Counting")
    Traceback (most recent call last):
    engine.errors.Cancelled: It was cancelled.
    """
    callback = check_callback(progress)

    def report_progress(fraction: float, text: str) -> None:
        if callback is not None and callback(fraction, text) is False:
            raise Cancelled(cancelled)

    return report_progress


def monotone(progress: Listener | None) -> Listener | None:
    """Wrap a progress callback so that the reported fraction never decreases; None gives None."""
    if progress is None:
        return None
    highest = 0.0

    def report(fraction: float, text: str) -> object:
        # a computation that is repeated reports its fractions from 0 again
        nonlocal highest
        highest = max(highest, fraction)
        return progress(highest, text)

    return report
