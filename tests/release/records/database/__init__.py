"""Tests of engine.release.records.database."""
