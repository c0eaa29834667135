"""Tests of the page "Coarse or fine"."""
