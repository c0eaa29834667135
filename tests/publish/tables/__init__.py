"""Tests of engine.publish.tables."""
