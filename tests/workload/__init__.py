"""Tests of engine.workload."""
