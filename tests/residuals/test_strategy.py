"""What is measured is the same on every machine, and rows that measure the same are known as such."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
from scipy.stats import ortho_group

from engine._arrays import Array
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import Strategy
from engine.residuals.strategy import canonical_rotation
from engine.workload import Attribute, Schema, Workload

RNG = np.random.default_rng(11)


@pytest.mark.parametrize(("rank", "dimension"), [(1, 1), (1, 6), (2, 7), (7, 7), (12, 40), (150, 150)])
def test_settled_rows_depend_on_their_span_alone(rank: int, dimension: int) -> None:
    directions = ortho_group.rvs(dimension, random_state=RNG)[:rank] if dimension > 1 else np.eye(1)
    turned = (ortho_group.rvs(rank, random_state=RNG) if rank > 1 else -np.eye(1)) @ directions
    one, other = (canonical_rotation(d) @ d for d in (directions, turned))
    np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-10)
    np.testing.assert_allclose(one @ one.T, np.eye(rank), rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(one.T @ one, directions.T @ directions, rtol=0.0, atol=1e-12)


def test_the_vectors_that_settle_rows_stay_as_they_are() -> None:
    """Others would turn what earlier versions measured, and files of both would differ."""
    c, s = 0.9844170653927429, 0.1758494849680837
    np.testing.assert_allclose(canonical_rotation(np.eye(2, 3)), [[c, -s], [-s, -c]], rtol=0.0, atol=1e-12)


def strategy(family: str = "prefix", size: int = 6) -> Strategy:
    made = plan(Workload(Schema([Attribute.of_size("a", size)])).add("a", family), Budget(pcost=1.0), cache=False)
    ((_, found),) = next(block for space, block in made.blocks.items() if space).factors
    return found


@pytest.mark.parametrize("family", ["circular", "marginal", "prefix"])
def test_another_choice_of_eigenvectors_measures_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, honest = strategy(family), scipy.linalg.eigh

    def turned(matrix: Array, **options: bool) -> tuple[Array, Array]:
        values, vectors = honest(matrix, **options)
        for value in np.unique(values.round(9)):
            alike = np.abs(values - value) <= 1e-8
            if alike.sum() > 1:
                vectors[:, alike] = vectors[:, alike] @ ortho_group.rvs(int(alike.sum()), random_state=RNG)
        return values, vectors * RNG.choice([-1.0, 1.0], len(values))

    monkeypatch.setattr(scipy.linalg, "eigh", turned)
    np.testing.assert_allclose(strategy(family).rows, own.rows, rtol=0.0, atol=1e-10)


def test_turned_rows_say_the_same_at_the_same_cost() -> None:
    own = strategy()
    turn = ortho_group.rvs(len(own.rows), random_state=RNG)
    found = own.by_rows(turn @ own.rows)
    assert found is not None
    assert found.column_norm == pytest.approx(own.column_norm, rel=1e-12)
    np.testing.assert_allclose(found.pinv @ found.rows, own.pinv @ own.rows, rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(found.pinv @ found.pinv.T, own.pinv @ own.pinv.T, rtol=1e-12, atol=1e-12)
    assert own.by_rows(own.rows.copy()) is own


def test_other_rows_are_of_another_strategy() -> None:
    own = strategy()
    rows = ortho_group.rvs(len(own.rows), random_state=RNG) @ own.rows
    other = rows.copy()
    other[0, 0] += 1e-3
    for wrong in (2.0 * rows, (1.0 + 1e-4) * rows, rows[1:], rows[:, 1:], other, rows * np.nan, rows - 1.0):
        assert own.by_rows(wrong) is None
    stretched = np.diag([2.0, *[1.0] * (len(rows) - 1)]) @ rows
    assert own.by_rows(stretched) is None
    part = replace(own, rows=own.rows[:2], pinv=own.pinv[:, :2])
    assert part.by_rows(own.rows[1:3]) is None
