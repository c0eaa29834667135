"""Server that most server tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.serving import RunningServer, run_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run the app; fail at the end if it connected to another machine."""
    # sessions end one second after their page is closed
    with run_server(
        tmp_path_factory.mktemp("server"), "--server.disconnectedSessionTTL", "1"
    ) as running:
        yield running
    assert running.outside_hosts() == []
