"""Workload page: range form and figures of the domain."""

from __future__ import annotations

import json

import numpy as np
import pytest

from engine.figures import domain as domain_figures
from engine.workload import Attribute, Custom, Schema, Workload
from engine.workload.conditions import box_workload
from tests.app.session import Session
from tests.app.workload.sessions import SURVEY, open_workload


def test_range_is_set_with_sliders() -> None:
    session = open_workload(add_how="Pick a range")
    ends = next(s for s in session.app.select_slider if s.key == "range_age_82_0")
    session.run(ends.set_value((2, 21)))
    assert "Range: 20 <= age < 40** (1 query, 20 of 82 cells)" in session.text()
    session.press("add_range")
    (group,) = session.studio.workload.groups
    assert group.to_dict() == box_workload(SURVEY, {"age": (2, 21)}).groups[0].to_dict()
    session.set(range_second_10="education")
    cells = SURVEY["education"].size
    assert f" of {82 * cells} cells)" in session.text()
    session.press("add_range")
    assert session.studio.workload.groups[-1].attributes == ("age", "education")


def test_range_attributes_can_be_exchanged() -> None:
    session = open_workload(add_how="Pick a range").set(range_second_10="education")
    session.set(range_first_10="education")
    assert not session.errors()
    session.set(range_second_10="age").press("add_range")
    assert session.studio.workload.groups[-1].attributes == ("education", "age")
    session.set(range_second_10=None)
    assert "Range: education" in session.text()


def test_range_form_supports_all_attribute_sizes() -> None:
    names = {"one": 1, "two": 2, "many": 5000, "huge": 1_000_000}
    session = Session()
    session.run(
        session.app.file_uploader(key="schema_file").upload(
            "s.json", json.dumps(names).encode(), "text/plain"
        )
    )
    session.press("next").set(add_how="Pick a range")
    for name in names:
        session.set(range_first_4=name)
        assert not session.errors()
    session.set(range_huge_1000000_0_first=999_999, range_huge_1000000_0_last=7).press("add_range")
    assert session.studio.workload.describe(0) == "huge >= 7"
    session.set(range_first_4="two", range_second_4="one")
    session.run(
        next(s for s in session.app.select_slider if s.key == "range_two_2_0").set_value((0, 1))
    )
    session.press("add_range")
    assert session.studio.workload.describe(1) == "all records"


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ({"x": [1.6, 4.4], "y": [0, 1]}, (2, 4)),
        ({"x": [4.4, 1.6], "y": [0, 1]}, (2, 4)),
        ({"x": [-50, 3.0]}, (0, 3)),
        ({"x": [2.1, 2.2]}, (2, 2)),
        ({"x": [2.6, 2.9]}, (3, 3)),
        ({"x": [200, 300]}, (8, 8)),
        ({"x": [float("nan"), 3]}, (3, 3)),
        ({}, (0, 8)),
    ],
)
def test_drawn_box_selects_range_of_cells(box: dict, expected: tuple[int, int]) -> None:
    schema = Schema([Attribute.of_size("age", 9), Attribute.of_size("sex", 2)])
    assert domain_figures.cells_in_box(schema, ["age"], box) == {"age": expected}


def test_range_figure_shows_selected_cells() -> None:
    picture = domain_figures.range_picture(SURVEY, {"age": (2, 21)})
    bars = picture.figure.data[0]
    assert set(bars.y) == {1.0}
    assert sum(shape == "" for shape in bars.marker.pattern.shape) == 20
    assert "20 of 82 cells chosen: 20 <= age < 40" in picture.alt
    picture = domain_figures.range_picture(SURVEY, {"age": (2, 21), "party": (1, 3)})
    assert picture.figure.data[0].z.sum() == 20 * 3
    assert picture.figure.data[0].z[2:22, 1:4].all()
    large = Schema([Attribute.of_size("x", 3000), Attribute.of_size("y", 2000)])
    for chosen in ({"x": (0, 9)}, {"x": (0, 999), "y": (5, 8)}):
        picture = domain_figures.range_picture(large, chosen)
        assert "evenly spaced" in picture.note
        assert all(
            len(side) <= 512 for side in (picture.figure.data[0].x, picture.figure.data[0].y)
        )


def test_plane_figure_equals_query_row() -> None:
    schema = Schema(
        [Attribute.of_size("a", 5), Attribute.of_size("b", 4), Attribute.of_size("c", 600)]
    )
    workload = (
        Workload(schema)
        .add(("a", "b"), {"a": "range", "b": "prefix"})
        .add(("b", "a"), "affine")
        .add(("a", "b"), Custom(matrix=np.arange(40.0).reshape(2, 20)))
    )
    for group in workload.groups:
        rows = np.ones((1, 1))
        for part in group.parts:
            rows = np.kron(rows, part.family.rows(part.sizes))
        for query in range(group.count):
            drawn = domain_figures.plane_picture(schema, group, query).figure.data[0].z
            np.testing.assert_array_equal(np.asarray(drawn).ravel(), rows[query])
    # the 600 cells of c are thinned to the largest number of columns
    (group,) = Workload(schema).add(("a", "c")).groups
    assert np.shape(domain_figures.plane_picture(schema, group, 0).figure.data[0].z) == (5, 512)
