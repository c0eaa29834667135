"""Settings of the tests of the app."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from streamlit.components.v2 import manifest_scanner


@pytest.fixture(scope="session", autouse=True)
def packages_are_looked_through_once() -> Iterator[None]:
    """Every session would look through all installed packages for components again, half the time of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        scan = functools.cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        yield
