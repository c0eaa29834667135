"""Fixtures: time limit and no warnings for hostile input."""

import signal
import warnings

import pytest


@pytest.fixture
def quick():
    """Fail a test that takes more than a minute or emits a warning."""

    def too_long(*_):
        raise TimeoutError("the input kept the engine busy for a minute")

    previous = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, 60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)
