"""Tests of the work beside the pages."""
