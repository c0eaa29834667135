"""Tests of engine.records."""
