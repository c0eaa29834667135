"""A word of records that no error may say."""

import traceback

from engine.errors import DataError, LimitExceeded

CANARY = "CANARY7391"


def assert_silent(error: BaseException) -> None:
    """The error says nothing that was read from records, not even in what it hides."""
    assert isinstance(error, (DataError, LimitExceeded))
    text = "".join(traceback.format_exception(error))
    assert CANARY not in text
    assert "7391" not in text
    assert error.__cause__ is None
    assert error.__context__ is None
    assert len(str(error)) < 600
