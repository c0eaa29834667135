"""Tests of the app in a real browser."""
