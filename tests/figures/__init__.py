"""Tests of engine.figures."""
