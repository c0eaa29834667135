"""Canonical strategy rows, and recognition of rotated rows."""

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


@pytest.mark.parametrize(
    ("rank", "dimension"), [(1, 1), (1, 6), (2, 7), (7, 7), (12, 40), (150, 150)]
)
def test_canonical_rotation_depends_on_span_only(rank: int, dimension: int) -> None:
    directions = ortho_group.rvs(dimension, random_state=RNG)[:rank] if dimension > 1 else np.eye(1)
    rotated = (ortho_group.rvs(rank, random_state=RNG) if rank > 1 else -np.eye(1)) @ directions
    one, other = (canonical_rotation(d) @ d for d in (directions, rotated))
    np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-10)
    np.testing.assert_allclose(one @ one.T, np.eye(rank), rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(one.T @ one, directions.T @ directions, rtol=0.0, atol=1e-12)


def test_canonical_rotation_has_stored_values() -> None:
    """Other values would make stored plans differ between versions."""
    c, s = 0.9844170653927429, 0.1758494849680837
    np.testing.assert_allclose(
        canonical_rotation(np.eye(2, 3)), [[c, -s], [-s, -c]], rtol=0.0, atol=1e-12
    )


def strategy(family: str = "prefix", size: int = 6) -> Strategy:
    result = plan(
        Workload(Schema([Attribute.of_size("a", size)])).add("a", family),
        Budget(pcost=1.0),
        cache=False,
    )
    ((_, solution),) = next(block for space, block in result.blocks.items() if space).factors
    return solution


@pytest.mark.parametrize("family", ["circular", "marginal", "prefix"])
def test_strategy_rows_ignore_choice_of_eigenvectors(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, original = strategy(family), scipy.linalg.eigh

    def rotated_eigh(matrix: Array, **options: bool) -> tuple[Array, Array]:
        values, vectors = original(matrix, **options)
        for value in np.unique(values.round(9)):
            equal = np.abs(values - value) <= 1e-8
            if equal.sum() > 1:
                vectors[:, equal] = vectors[:, equal] @ ortho_group.rvs(
                    int(equal.sum()), random_state=RNG
                )
        return values, vectors * RNG.choice([-1.0, 1.0], len(values))

    monkeypatch.setattr(scipy.linalg, "eigh", rotated_eigh)
    np.testing.assert_allclose(strategy(family).rows, expected.rows, rtol=0.0, atol=1e-10)


def test_by_rows_rotated_rows_are_equivalent() -> None:
    original = strategy()
    rotation = ortho_group.rvs(len(original.rows), random_state=RNG)
    rotated = original.by_rows(rotation @ original.rows)
    assert rotated is not None
    assert rotated.column_norm == pytest.approx(original.column_norm, rel=1e-12)
    np.testing.assert_allclose(
        rotated.pinv @ rotated.rows, original.pinv @ original.rows, rtol=0.0, atol=1e-12
    )
    np.testing.assert_allclose(
        rotated.pinv @ rotated.pinv.T, original.pinv @ original.pinv.T, rtol=1e-12, atol=1e-12
    )
    assert original.by_rows(original.rows.copy()) is original


def test_by_rows_other_rows_is_none() -> None:
    original = strategy()
    rows = ortho_group.rvs(len(original.rows), random_state=RNG) @ original.rows
    other = rows.copy()
    other[0, 0] += 1e-3
    for wrong in (
        2.0 * rows,
        (1.0 + 1e-4) * rows,
        rows[1:],
        rows[:, 1:],
        other,
        rows * np.nan,
        rows - 1.0,
    ):
        assert original.by_rows(wrong) is None
    stretched = np.diag([2.0, *[1.0] * (len(rows) - 1)]) @ rows
    assert original.by_rows(stretched) is None
    part = replace(original, rows=original.rows[:2], pinv=original.pinv[:, :2])
    assert part.by_rows(original.rows[1:3]) is None
