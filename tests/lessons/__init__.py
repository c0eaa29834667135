"""Tests of engine.lessons."""
