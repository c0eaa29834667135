"""Tests of engine.postprocess."""
