"""Tests of the Workload page."""
