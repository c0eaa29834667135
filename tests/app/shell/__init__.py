"""Tests of addresses, undo and clicks."""
