"""Fixtures of the tests of all mechanisms: an additional mechanism, few levels, wide attributes."""

import functools
import sys

import pytest

import engine.mechanisms.registry
from engine.mechanisms.hierarchical import LevelOptions
from engine.residuals import operators
from tests.mechanisms.requests import SUITE, planned_once


@pytest.fixture
def toy_is_registered(monkeypatch):
    monkeypatch.setattr(engine.mechanisms.registry, "MECHANISMS", SUITE)


@pytest.fixture
def few_levels(request, monkeypatch):
    """Limit level selection to six levels to save time, except in tests marked full."""
    if request.node.get_closest_marker("full"):
        planned_once.cache_clear()
        return
    few = functools.partial(LevelOptions, levels=6)
    monkeypatch.setattr(sys.modules["engine.mechanisms.hierarchical"], "LevelOptions", few)


@pytest.fixture
def wide_from_ten_cells(monkeypatch):
    """Treat attributes with ten or more cells as wide."""
    monkeypatch.setattr(operators, "MIN_WIDE_CELLS", 10)
