"""Figures of strategy matrices and Gram matrices."""

from __future__ import annotations

import numpy as np

from engine.figures import block_names, factor_names, gram_picture, on_one_scale, rows_picture
from engine.figures.domain import SIDE, _drawn_cells
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from tests.figures.example import SCHEMA, check_picture


def test_rows_and_gram_pictures_match_strategies() -> None:
    workload = (
        Workload(SCHEMA)
        .add(("age", "x"), "range")
        .add(("age", "x"), Custom(predicates=["age <= x"]))
    )
    for name in ("querysmasher", "identity", "optimum"):
        result = plan(workload, Budget(pcost=1.0), name)
        for key, words in block_names(result).items():
            assert f"{result.blocks[key].measurements:,} number" in words
            factors = result.blocks[key].factors
            assert len(factor_names(result, key)) == len(factors)
            for factor in range(max(1, len(factors))):
                rows = np.ones((1, 1))
                if factors:
                    strategy = factors[factor][1]
                    rows = strategy.rows[:, _drawn_cells(strategy.sizes)]
                drawn = np.asarray(
                    check_picture(rows_picture(result, key, factor)).figure.data[0].z
                )
                np.testing.assert_allclose(drawn, rows)
                gram = np.asarray(check_picture(gram_picture(result, key, factor)).figure.data[0].z)
                np.testing.assert_allclose(gram, rows.T @ rows, atol=1e-12)
                assert gram.max() <= 1.0 + 1e-9


def test_large_strategy_pictures_are_thinned_with_note() -> None:
    schema = Schema([Attribute.of_size("y", 600)])
    result = plan(Workload(schema).add(("y",), "marginal"), Budget(pcost=1.0), "wff")
    key = ("y",)
    for picture in (rows_picture(result, key), gram_picture(result, key)):
        assert np.shape(picture.figure.data[0].z) == (SIDE, SIDE)
        # pages receive the numbers in base64, which is 4/3 times as long
        assert picture.figure.data[0].z.nbytes * 4 / 3 < 90_000
        assert "80 of 600 cells (1, 9, 16, …, 600)." in picture.note


def test_strategy_picture_with_few_rows_draws_all_of_them() -> None:
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
    gram = np.asarray(picture.figure.data[0].z)
    assert np.diagonal(gram, 1)[:39].min() > 2 * np.abs(gram[:40, 40:]).max()
    assert "Bright: both cells are counted" in picture.note


def test_on_one_scale_gives_pictures_common_limits() -> None:
    workload = Workload(Schema([Attribute.of_size("a", 6)])).add("a", "prefix")
    plans = [
        plan(workload, Budget(pcost=1.0), mechanism=name)
        for name in ("identity", "querysmasher", "wff")
    ]
    for draw in (rows_picture, gram_picture):
        pictures = [draw(each, next(iter(each.blocks))) for each in plans]
        ends = [(p.figure.data[0].zmin, p.figure.data[0].zmax) for p in pictures]
        on_one_scale(*pictures)
        ((low, high),) = {(p.figure.data[0].zmin, p.figure.data[0].zmax) for p in pictures}
        assert all(low <= bottom and top <= high for bottom, top in ends)
        # the common range is symmetric if the range of one picture was
        assert low == -high or all(bottom != -top for bottom, top in ends)
