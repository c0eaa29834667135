"""Stored files of every format, and tests that they stay readable."""
