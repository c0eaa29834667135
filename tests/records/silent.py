"""Check that errors contain no value of the records."""

import traceback

from engine.errors import DataError, LimitExceeded

CANARY = "CANARY7391"


def assert_hides_values(error: BaseException) -> None:
    """Assert that an error of the engine and its traceback contain no value of the records.

    The error must have no cause, because the text of a cause could contain a value.
    """
    assert isinstance(error, (DataError, LimitExceeded))
    text = "".join(traceback.format_exception(error))
    assert CANARY not in text
    assert "7391" not in text
    assert error.__cause__ is None
    assert error.__context__ is None
    assert len(str(error)) < 600
