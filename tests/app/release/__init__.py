"""Tests of the Release page."""
