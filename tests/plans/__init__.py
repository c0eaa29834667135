"""Tests of engine.plans."""
