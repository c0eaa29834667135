"""No module's strategies are warm from those of another: which modules a worker ran before must not be told."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def searches_begin_cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give every module of tests or of examples a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_WORKBENCH_CACHE", str(tmp_path_factory.mktemp("searches")))
        yield
