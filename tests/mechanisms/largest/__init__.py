"""Tests of engine.mechanisms.largest."""
