"""What tests of all mechanisms are made with: one mechanism more, and few levels."""

import functools
import sys

import pytest

import engine.mechanisms.registry
from engine.mechanisms.hierarchical import LevelOptions
from tests.mechanisms.requests import SUITE, planned_once


@pytest.fixture
def toy_is_known(monkeypatch):
    monkeypatch.setattr(engine.mechanisms.registry, "MECHANISMS", SUITE)


@pytest.fixture
def few_levels(request, monkeypatch):
    """What a plan says of its levels is as true of six as of sixty; what many are good for has tests of its own."""
    if request.node.get_closest_marker("full"):
        planned_once.cache_clear()
        return
    few = functools.partial(LevelOptions, levels=6)
    monkeypatch.setattr(sys.modules["engine.mechanisms.hierarchical"], "LevelOptions", few)
