"""Tests of engine.release.records."""
