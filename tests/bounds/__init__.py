"""Tests of engine.bounds."""
