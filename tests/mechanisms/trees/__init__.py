"""Tests of engine.mechanisms.trees."""
