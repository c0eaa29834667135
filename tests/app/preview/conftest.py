"""Session fixture for tests of the Preview page."""

from __future__ import annotations

import pytest

from engine.workload import Workload
from tests.app.preview.sessions import open_preview
from tests.app.session import Session, demo_schema


@pytest.fixture
def session() -> Session:
    return open_preview(Workload.all_ways(demo_schema("cps"), (1, 2)))
