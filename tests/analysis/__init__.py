"""Tests of engine.analysis."""
