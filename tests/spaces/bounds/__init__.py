"""Tests of engine.spaces.bounds."""
