"""A workload for figures, and checks that apply to every figure."""

from __future__ import annotations

from engine.figures import Picture
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema(
    [
        Attribute.of_size("age", 6),
        Attribute.categorical("sex", ["F", "<b>M</b>"]),
        Attribute.of_size("x", 5),
    ]
)


def example_workload(weight: float = 1.0) -> Workload:
    return (
        Workload.all_ways(SCHEMA, (1, 2, 3))
        .add((), "total")
        .add(("age",), "range", weight=weight)
        .add(("x",), "circular")
        .add(("age", "x"), "affine")
    )


def check_picture(picture: Picture) -> Picture:
    """Check that a picture has a title, a description, a table and no markup; return it."""
    assert picture.title
    assert picture.alt.endswith(".")
    assert len(picture.table)
    assert "<b>" not in picture.figure.to_json().replace("\\u003c", "<")
    return picture
