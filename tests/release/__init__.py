"""Tests of engine.release."""
