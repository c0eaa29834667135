"""Isolation of two users on one server.

`python -m tests.isolation --actions 1000`
"""
