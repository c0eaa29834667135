"""Canonical and rotated strategy rows, and the rounding errors of strategy answers."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from scipy.stats import ortho_group

from engine._arrays import Array
from engine.mechanisms import plan
from engine.plans import Block
from engine.privacy import Budget
from engine.release.measurement import strategy_answers
from engine.residuals import Strategy
from engine.residuals.operators import MIN_CHUNK_ROWS
from engine.residuals.strategy import canonical_rotation
from engine.workload import Attribute, Schema, Workload

RNG = np.random.default_rng(11)


@pytest.mark.parametrize(
    ("rank", "dimension"), [(1, 1), (1, 6), (2, 7), (7, 7), (12, 40), (150, 150)]
)
def test_canonical_rotation_depends_on_span_only(rank: int, dimension: int) -> None:
    def random_rotation(order: int) -> Array:
        return ortho_group.rvs(order, random_state=RNG) if order > 1 else -np.eye(1)

    directions = random_rotation(dimension)[:rank]
    rotated_directions = random_rotation(rank) @ directions
    canonical = canonical_rotation(directions) @ directions
    canonical_rotated = canonical_rotation(rotated_directions) @ rotated_directions
    np.testing.assert_allclose(canonical, canonical_rotated, rtol=0.0, atol=1e-10)
    np.testing.assert_allclose(canonical @ canonical.T, np.eye(rank), rtol=0.0, atol=1e-12)
    projection = directions.T @ directions
    np.testing.assert_allclose(canonical.T @ canonical, projection, rtol=0.0, atol=1e-12)


def test_canonical_rotation_has_stored_values() -> None:
    """Other values would make stored plans differ between versions."""
    c, s = 0.9844170653927429, 0.1758494849680837
    np.testing.assert_allclose(
        canonical_rotation(np.eye(2, 3)), [[c, -s], [-s, -c]], rtol=0.0, atol=1e-12
    )


def strategy(family: str = "prefix", size: int = 6) -> Strategy:
    """Return the solved strategy of one attribute."""
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
    expected = strategy(family)
    eigh = scipy.linalg.eigh

    def rotated_eigh(matrix: Array, **options: bool) -> tuple[Array, Array]:
        """Return other eigenvectors of equal eigenvalues, with random signs."""
        values, vectors = eigh(matrix, **options)
        for value in np.unique(values.round(9)):
            equal = np.abs(values - value) <= 1e-8
            multiplicity = int(equal.sum())
            if multiplicity > 1:
                vectors[:, equal] @= ortho_group.rvs(multiplicity, random_state=RNG)
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
    one_changed_entry = rows.copy()
    one_changed_entry[0, 0] += 1e-3
    for other_rows in (
        2.0 * rows,
        (1.0 + 1e-4) * rows,
        rows[1:],
        rows[:, 1:],
        one_changed_entry,
        rows * np.nan,
        rows - 1.0,
    ):
        assert original.by_rows(other_rows) is None
    stretched = np.diag([2.0, *[1.0] * (len(rows) - 1)]) @ rows
    assert original.by_rows(stretched) is None
    part = replace(original, rows=original.rows[:2], pinv=original.pinv[:, :2])
    assert part.by_rows(original.rows[1:3]) is None


def sums_one_by_one(matrix: Array, table: list[float]) -> Array:
    """Return table @ matrix in doubles, with the terms of every product added in their order."""
    # NumPy multiplies arrays of Python numbers itself, in a fixed order, and calls no linear
    # algebra library
    return np.array(table, object) @ matrix


def adverse_rows(cells: int) -> Array:
    """Return one strategy row whose answer to a table of ones has nearly the largest error.

    The engine adds the products in chunks of `MIN_CHUNK_ROWS`.  The first entry is 1.  All later
    entries of the first chunk, and the sum of each later chunk, are half of the distance of 1 to
    the next double, and are lost when they are added.
    """
    row = np.zeros(cells)
    row[:MIN_CHUNK_ROWS] = row[::MIN_CHUNK_ROWS] = 2.0**-53
    row[0] = 1.0
    return row[None]


@pytest.mark.parametrize("cells", [3, 64, 65, 128, 129, 945, 4_096])
def test_rounding_terms_bound_adverse_sums(cells: int) -> None:
    """The bound holds for terms in the worst order, and no bound three terms lower does."""
    row = adverse_rows(cells)
    strategy = Strategy(sizes=(cells,), rows=row.astype(object), pinv=row.T, complete=False)
    (answer,) = sums_one_by_one(strategy.answer_rows.T, [1.0] * cells)
    exact = sum(map(Fraction, row[0].tolist()))
    unit_roundoff = Fraction(1, 2**53)
    error = abs(Fraction(answer) - exact) / exact / unit_roundoff
    terms = strategy.rounding_terms
    assert terms - 3 < error <= terms / (1 - terms * unit_roundoff)


@pytest.mark.parametrize("cells", [65, 945, 4_096])
def test_rounding_terms_bound_sums_of_small_entries(cells: int) -> None:
    """A sum cell by cell loses every entry but the first, which is more than the bound."""
    unit_roundoff = Fraction(1, 2**53)
    row = np.full((1, cells), float(unit_roundoff))
    row[0, 0] = 1.0
    strategy = Strategy(sizes=(cells,), rows=row.astype(object), pinv=row.T, complete=False)
    exact = sum(map(Fraction, row[0].tolist()))
    block = Block(attributes=("a",), factors=(((0,), strategy),), noise=1.0, grid=1.0)
    # arrays of Python numbers are added in their order
    (answer,) = strategy_answers(block, np.array([1.0] * cells, object)).tolist()
    assert abs(Fraction(answer) - exact) <= exact * strategy.rounding_terms * unit_roundoff
    (cell_by_cell,) = sums_one_by_one(strategy.rows.T, [1.0] * cells)
    assert exact - Fraction(cell_by_cell) == (cells - 1) * unit_roundoff


def test_rounding_terms_of_wide_strategies_are_few() -> None:
    # The number of terms is the length of a chunk plus the number of chunks.
    for cells, terms in ((64, 64 + 1), (65, 64 + 2), (945, 64 + 15), (10_000, 100 + 100)):
        row = np.ones((1, cells))
        strategy = Strategy(sizes=(cells,), rows=row, pinv=row.T, complete=False)
        assert strategy.rounding_terms == terms <= cells + 1


@pytest.mark.parametrize("sizes", [(300,), (300, 3), (3, 300)])
def test_answers_are_within_the_charge_for_rounding(sizes: tuple[int, ...]) -> None:
    """The error of answers in doubles is at most half of the sensitivity charged for rounding."""
    rng = np.random.default_rng(0)
    factors = []
    for axis, n in enumerate(sizes):
        rows = rng.standard_normal((n - 1, n)) / math.sqrt(n)
        pinv = np.asarray(np.linalg.pinv(rows), np.float64)
        factors.append(((axis,), Strategy(sizes=(n,), rows=rows, pinv=pinv, complete=True)))
    block = Block(
        attributes=tuple("ab"[: len(sizes)]), factors=tuple(factors), noise=1.0, grid=2.0**-200
    )
    table = rng.integers(0, 10**9, sizes)
    records = int(table.sum())
    answers = strategy_answers(block, table)
    exact = np.array([Fraction(int(x)) for x in table.ravel()]).reshape(sizes)
    for axis, (_, strategy) in enumerate(factors):
        matrix = np.array([[Fraction(v) for v in row] for row in strategy.rows.tolist()])
        exact = np.moveaxis(np.tensordot(matrix, exact, (1, axis)), 0, axis)
    errors = [Fraction(float(a)) - b for a, b in zip(answers.flat, exact.flat, strict=True)]
    error_norm = math.sqrt(sum(error**2 for error in errors))
    charge = block.sensitivity(records) - block.sensitivity(0)
    assert 0.0 < error_norm <= charge / 2
