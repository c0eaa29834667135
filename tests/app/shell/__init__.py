"""Tests of what all pages share: address, undo, clicks."""
