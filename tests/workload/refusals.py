"""Small workloads for tests of hostile input, and the check of a refusal."""

import numpy as np
import pytest

from engine.errors import EngineError
from engine.privacy import Budget
from engine.workload import Custom, Width, Workload
from tests.shapes import numeric

ORDERED = numeric(4, 3, 5)
EMPTY = Workload(ORDERED)
GOOD = EMPTY.add(("a", "b"), {"a": "prefix", "b": Width(2)}, query_weights=np.arange(8.0)).add(
    "c", Custom(np.eye(5))
)
ONE = Budget(pcost=1.0)


def check_refused(error, words, call, *args, **kwargs):
    """Check that a call raises ``error`` with a message of 20 to 1,000 characters and all words."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert isinstance(caught.value, EngineError)
    assert 20 <= len(message) <= 1000, message
    for word in words:
        assert word.lower() in message.lower(), message
