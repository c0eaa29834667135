"""Figures of strategy matrices and Gram matrices."""

from __future__ import annotations

import numpy as np

from engine.figures import block_names, factor_names, gram_picture, on_one_scale, rows_picture
from engine.figures.domain import SIDE
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload
from tests.figures.given import SCHEMA, checked


def test_strategies_and_their_gram_matrices() -> None:
    asked = Workload(SCHEMA).add(("age", "x"), "range").add(("age", "x"), Custom(predicates=["age <= x"]))
    for name in ("querysmasher", "identity", "optimum"):
        made = plan(asked, Budget(pcost=1.0), name)
        for key, words in block_names(made).items():
            assert f"{made.blocks[key].measurements:,} number" in words
            factors = made.blocks[key].factors
            assert len(factor_names(made, key)) == len(factors)
            for factor in range(max(1, len(factors))):
                rows = factors[factor][1].rows if factors else np.ones((1, 1))
                drawn = np.asarray(checked(rows_picture(made, key, factor)).figure.data[0].z)
                np.testing.assert_allclose(drawn, rows)
                gram = np.asarray(checked(gram_picture(made, key, factor)).figure.data[0].z)
                np.testing.assert_allclose(gram, rows.T @ rows, atol=1e-12)
                assert gram.max() <= 1.0 + 1e-9


def test_large_strategies_are_thinned_and_say_so() -> None:
    schema = Schema([Attribute.of_size("y", 600)])
    made = plan(Workload(schema).add(("y",), "marginal"), Budget(pcost=1.0), "wff")
    key = ("y",)
    for picture in (rows_picture(made, key), gram_picture(made, key)):
        assert np.shape(picture.figure.data[0].z) == (SIDE, SIDE)
        assert picture.figure.data[0].z.nbytes * 4 / 3 < 90_000
        assert "are drawn of" in picture.note or "are drawn." in picture.note


def test_strategies_beside_each_other_have_one_scale_of_colours() -> None:
    asked = Workload(Schema([Attribute.of_size("a", 6)])).add("a", "prefix")
    plans = [plan(asked, Budget(pcost=1.0), mechanism=name) for name in ("identity", "querysmasher", "wff")]
    for draw in (rows_picture, gram_picture):
        pictures = [draw(made, next(iter(made.blocks))) for made in plans]
        ends = [(p.figure.data[0].zmin, p.figure.data[0].zmax) for p in pictures]
        on_one_scale(*pictures)
        ((low, high),) = {(p.figure.data[0].zmin, p.figure.data[0].zmax) for p in pictures}
        assert all(low <= bottom and top <= high for bottom, top in ends)
        assert low == -high or all(bottom != -top for bottom, top in ends)
