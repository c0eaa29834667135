"""Tests of the Compare page."""
