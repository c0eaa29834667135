"""Exact counts of records, under the name that other programs call."""
