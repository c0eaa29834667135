"""Isolation of two users on one server: no private value reaches the other user or a shared place.

`python -m tests.isolation --actions 1000`
"""
