"""Figures of strategy matrices and Gram matrices."""

from __future__ import annotations

import numpy as np

from engine.figures import (
    Picture,
    block_names,
    factor_names,
    gram_picture,
    on_one_scale,
    rows_picture,
)
from engine.figures.domain import SIDE, _drawn_cells
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from tests.figures.example import SCHEMA, check_picture


def heatmap(picture: Picture) -> np.ndarray:
    """Return the matrix that a picture draws."""
    return np.asarray(picture.figure.data[0].z)


def test_rows_and_gram_pictures_match_strategies() -> None:
    workload = (
        Workload(SCHEMA)
        .add(("age", "x"), "range")
        .add(("age", "x"), Custom(predicates=["age <= x"]))
    )
    for name in ("querysmasher", "identity", "optimum"):
        result = plan(workload, Budget(pcost=1.0), name)
        for key, block_name in block_names(result).items():
            assert f"{result.blocks[key].measurements:,} number" in block_name
            strategies = [strategy for _, strategy in result.blocks[key].factors]
            assert len(factor_names(result, key)) == len(strategies)
            rows_by_factor = [s.rows[:, _drawn_cells(s.sizes)] for s in strategies]
            if not strategies:  # the block of the total
                rows_by_factor = [np.ones((1, 1))]
            for factor, rows in enumerate(rows_by_factor):
                drawn_rows = heatmap(check_picture(rows_picture(result, key, factor)))
                np.testing.assert_allclose(drawn_rows, rows)
                gram = heatmap(check_picture(gram_picture(result, key, factor)))
                np.testing.assert_allclose(gram, rows.T @ rows, atol=1e-12)
                assert gram.max() <= 1.0 + 1e-9


def test_large_strategy_pictures_are_thinned_with_note() -> None:
    schema = Schema([Attribute.of_size("y", 600)])
    result = plan(Workload(schema).add(("y",), "marginal"), Budget(pcost=1.0), "wff")
    key = ("y",)
    for picture in (rows_picture(result, key), gram_picture(result, key)):
        assert heatmap(picture).shape == (SIDE, SIDE)
        # pages receive the numbers in base64, which is 4/3 times as long
        assert heatmap(picture).nbytes * 4 / 3 < 90_000
        assert "80 of 600 cells (1, 9, 16, …, 600)." in picture.note


def test_strategy_picture_with_few_rows_draws_all() -> None:
    schema = Schema([Attribute.of_size("y", 90)])
    few_queries = Custom(predicates=["y < 10", "y < 40"])
    result = plan(Workload(schema).add("y", few_queries), Budget(pcost=1.0), "optimum")
    assert "Drawn: all " in rows_picture(result, next(iter(block_names(result)))).note


def test_gram_picture_groups_cells_by_smaller_attribute() -> None:
    age, sex = Attribute.of_size("age", 100), Attribute.of_size("sex", 2, kind="categorical")
    workload = Workload(Schema([age, sex])).add(
        ("age", "sex"), {"age": "prefix", "sex": "marginal"}
    )
    result = plan(workload, Budget(pcost=1.0), "optimum")
    picture = gram_picture(result, next(iter(result.blocks)))
    cells = list(picture.figure.data[0].x)
    assert len(cells) == SIDE
    assert [cell.split(", ")[1] for cell in cells] == ["0"] * 40 + ["1"] * 40
    # Neighbouring ages are measured together, and the two sexes are not.
    gram = heatmap(picture)
    within_one_sex, between_sexes = gram[:40, :40], gram[:40, 40:]
    assert np.diagonal(within_one_sex, 1).min() > 2 * np.abs(between_sexes).max()
    assert "Bright: both cells are counted" in picture.note


def color_limits(picture: Picture) -> tuple[float, float]:
    trace = picture.figure.data[0]
    return trace.zmin, trace.zmax


def test_on_one_scale_gives_pictures_common_limits() -> None:
    workload = Workload(Schema([Attribute.of_size("a", 6)])).add("a", "prefix")
    plans = [
        plan(workload, Budget(pcost=1.0), mechanism=name)
        for name in ("identity", "querysmasher", "wff")
    ]
    for draw in (rows_picture, gram_picture):
        pictures = [draw(result, next(iter(result.blocks))) for result in plans]
        limits_before = [color_limits(picture) for picture in pictures]
        on_one_scale(*pictures)
        ((low, high),) = {color_limits(picture) for picture in pictures}
        assert all(low <= minimum and maximum <= high for minimum, maximum in limits_before)
        # the common limits are symmetric if those of one picture were
        if any(minimum == -maximum for minimum, maximum in limits_before):
            assert low == -high
