"""Tests of engine.spaces.splits."""
