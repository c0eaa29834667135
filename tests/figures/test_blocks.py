"""Figures of strategy matrices and Gram matrices."""

from __future__ import annotations

import numpy as np

from engine.figures import block_names, factor_names, gram_picture, on_one_scale, rows_picture
from engine.figures.domain import SIDE
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
                rows = factors[factor][1].rows if factors else np.ones((1, 1))
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
        assert picture.figure.data[0].z.nbytes * 4 / 3 < 90_000
        assert "80 of 600 cells (1, 9, 16, …, 600)." in picture.note
    schema = Schema([Attribute.of_size("y", 90)])
    few_queries = Custom(predicates=["y < 10", "y < 40"])
    result = plan(Workload(schema).add("y", few_queries), Budget(pcost=1.0), "optimum")
    assert "Drawn: all " in rows_picture(result, next(iter(block_names(result)))).note


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
        assert low == -high or all(bottom != -top for bottom, top in ends)
