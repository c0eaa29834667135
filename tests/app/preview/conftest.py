"""The session that tests of the Preview page begin with."""

from __future__ import annotations

import pytest

from engine.workload import Workload
from tests.app.preview.given import opened
from tests.app.session import Session, demo


@pytest.fixture
def session() -> Session:
    return opened(Workload.all_ways(demo("cps"), (1, 2)))
