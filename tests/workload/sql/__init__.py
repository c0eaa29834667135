"""Tests of engine.workload.sql."""
