"""Tests of the room `engine.cli`."""
