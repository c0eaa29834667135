"""Tests that drive the app in a real browser."""
