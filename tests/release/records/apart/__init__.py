"""Tests of engine.release.records.apart."""
