"""Tests of engine.spaces."""
