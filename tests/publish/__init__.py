"""Tests of engine.publish."""
