"""One server for the tests that need none of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.serving import Served, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The app, which may not have asked for anything outside this machine at the end."""
    # a page that is closed is over after a second, not after the time that people need to come back
    with serving(tmp_path_factory.mktemp("server"), "--server.disconnectedSessionTTL", "1") as running:
        yield running
    assert running.strangers() == []
