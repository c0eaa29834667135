"""Tests of engine.residuals.tuning."""
