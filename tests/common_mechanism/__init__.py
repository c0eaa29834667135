"""Tests of engine.common_mechanism."""
