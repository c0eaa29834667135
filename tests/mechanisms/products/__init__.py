"""Tests of engine.mechanisms.products."""
