"""Tests of engine.mechanisms."""
