"""The server of these tests."""

from tests.server.conftest import server

__all__ = ["server"]
