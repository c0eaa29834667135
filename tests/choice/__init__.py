"""Tests of engine.choice."""
