"""Tests of the Preview page."""
