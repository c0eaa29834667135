"""Tests of files that are read in a subprocess."""
