"""Tests of engine.residuals."""
