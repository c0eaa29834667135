"""Choices on wide attributes and among many tables: by search instead of long lists."""

from __future__ import annotations

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.workload import Attribute, Schema, Workload
from pages.parts.workload import group_choice
from tests.app.preview.sessions import open_preview
from tests.app.session import demo_schema

ZIP = Attribute.categorical("zip", [f"Z{i:05}" for i in range(30_000)])


def most_options(app: AppTest) -> int:
    """Return the largest number of options in a list of the page."""
    lists: list[Any] = [*app.selectbox, *app.multiselect]
    return max(len(one.options) for one in lists)


def test_wide_attribute_is_chosen_by_search() -> None:
    workload = Workload(Schema([ZIP, Attribute.of_size("age", 5)])).add(
        ("age", "zip"), {"age": "prefix", "zip": "marginal"}
    )
    session = open_preview(workload).set(across_0=[0])
    assert most_options(session.app) <= group_choice.MAX_MATCHES
    session.set(fixed_0_1_find="29999")
    assert session.app.selectbox(key="fixed_0_1").options == ["Z29999"]
    session.set(fixed_0_1_find="no such value")
    assert "No value has this text" in session.text()
    session.set(fold_target=True, target_goal="One query", probe_names=["zip"])
    session.set(probe_zip_find="z00007")
    assert session.app.selectbox(key="probe_zip").value == 7
    assert most_options(session.app) <= group_choice.MAX_MATCHES
    assert not session.errors()


def test_one_of_many_tables_is_chosen_by_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_choice, "MAX_OPTIONS", 5)
    workload = Workload.all_ways(demo_schema("cps"), (1, 2), "marginal")
    session = open_preview(workload)
    worst = session.app.selectbox(key="group").value
    assert len(session.app.selectbox(key="group").options) == 1
    session.set(group_find="income age")
    assert len(session.app.selectbox(key="group").options) == 2
    assert session.app.selectbox(key="group").value == worst
    number = next(
        i for i, g in enumerate(workload.groups) if set(g.attributes) == {"income", "age"}
    )
    session.set(group=number)
    assert session.app.selectbox(key="group").value == number
    assert not session.errors()
