"""Tests of a running server over HTTP and WebSocket."""
