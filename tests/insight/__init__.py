"""Tests of engine.insight."""
