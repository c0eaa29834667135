"""Change of coordinates: maps against dense matrices, transposes and inverses."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from engine.plans import Block
from engine.plans.blocks import apply_factors, undo_factors
from engine.residuals import (
    Complement,
    FullDomain,
    Lift,
    SplitLift,
    Strategy,
    basis,
    contract,
    group_axes,
    residual_rows,
)
from engine.residuals.basis import (
    FullTable,
    coordinate_positions,
    residual_coefficients,
    space_index,
    tables,
    ungroup_axes,
)
from engine.workload import subsets

EXACT = {"rtol": 0, "atol": 1e-11}
# Maps a name to three tuples: the sizes of the attributes, the indices of attributes with a random
# center instead of a uniform one, and the pairs of attributes with a complement (a split of their
# queries that is not a product of centers).
SPLITS = {
    "total": ((), (), ()),
    "one cell": ((1,), (), ()),
    "one attribute": ((4,), (), ()),
    "one tuned attribute": ((4,), (0,), ()),
    "uniform": ((3, 4, 2), (), ()),
    "tuned": ((3, 4, 2), (0, 1, 2), ()),
    "one of them tuned": ((3, 4, 2), (1,), ()),
    "a complement": ((3, 4), (), ((0, 1),)),
    "a complement of distant axes": ((3, 2, 4), (0, 2), ((0, 2),)),
    "complements that share an attribute": ((3, 4, 2), (0, 1, 2), ((0, 1), (1, 2))),
    "an attribute of one cell": ((3, 1, 4), (0, 1, 2), ((0, 2),)),
    "a complement with one cell": ((1, 3), (), ((0, 1),)),
}
# Sets of residual spaces of two attributes that are measured jointly. A space is a tuple of the
# indices of its attributes.
UNIONS = [((0, 1),), ((), (0,), (0, 1)), ((1,), (0, 1)), ((0,), (1,)), tuple(subsets((0, 1)))]


def build_split(name):
    """Return the sizes, random centers and random complements of a split of `SPLITS`."""
    sizes, tuned, pairs = SPLITS[name]
    rng = np.random.default_rng(5)
    centers = []
    for axis, n in enumerate(sizes):
        raw = rng.uniform(-0.3, 1.0, n)  # a center may have negative entries
        centers.append(raw / raw.sum() if axis in tuned else None)
    complements = {}
    for a, b in pairs:
        m, k = sizes[a] - 1, sizes[b] - 1
        D = rng.standard_normal((m * k, m + k + 1))
        complements[a, b] = Complement(by_axis=(D[:, :m], D[:, m : m + k]), by_total=D[:, -1])
    return sizes, centers, complements


def split_matrix(sizes, centers, complements):
    """Return the matrix M of `residual_coefficients`, built from the definitions of centers and complements.

    It has one row per cell and one column per residual coordinate.
    """
    T = np.ones((1, 1))
    for n, pi in zip(sizes, centers, strict=True):
        T = np.kron(T, np.hstack([np.full((n, 1), 1 / n) if pi is None else pi[:, None], basis(n)]))
    # ``index`` has the position of a column of T by its factors: 0 is the center of an attribute,
    # and k > 0 is its residual coordinate k - 1.
    index = np.arange(T.shape[1]).reshape(sizes)
    U = np.eye(T.shape[1])
    total = (0,) * len(sizes)
    for (a, b), complement in complements.items():
        pair_coordinates = itertools.product(range(1, sizes[a]), range(1, sizes[b]))
        for c, (i, j) in enumerate(pair_coordinates):
            factors = list(total)
            factors[a], factors[b] = i, j
            source = index[tuple(factors)]
            U[source, index[total]] += complement.by_total[c]
            for axis, D in zip((a, b), complement.by_axis, strict=True):
                for k in range(1, sizes[axis]):
                    factors = list(total)
                    factors[axis] = k
                    U[source, index[tuple(factors)]] += D[c, k - 1]
    return T @ U


def vectors(*lengths):
    """Return one random vector per length, as an array of shape (1, length)."""
    rng = np.random.default_rng(8)
    return [rng.standard_normal((1, n)) for n in lengths]


def dot_test(forward, back, n, m):
    """Check that ``back`` (from m to n numbers) is the transpose of ``forward`` (from n to m)."""
    x, y = vectors(n, m)
    assert forward(x).shape == (1, m)
    assert back(y).shape == (1, n)
    assert forward(x)[0] @ y[0] == pytest.approx(x[0] @ back(y)[0], rel=1e-10, abs=1e-11)


# ---- Contraction along axes ----


def test_contract_matches_kronecker_product():
    rng = np.random.default_rng(1)
    sizes = (3, 4, 2)
    A, B, v = rng.standard_normal((3, 5)), rng.standard_normal((2, 4)), rng.standard_normal(4)
    # A vector sums over its axis, and None leaves its axis unchanged.
    cases = [
        ([A, v, B], (5, 4)),
        ([A, None, B], (5, 4, 4)),
        ([None, v, None], (3, 2)),
        ([v[:3], v, v[:2]], ()),
        ([None, None, None], (3, 4, 2)),
    ]
    for matrices, shape in cases:
        product = np.ones((1, 1))
        for matrix, n in zip(matrices, sizes, strict=True):
            product = np.kron(product, np.eye(n) if matrix is None else matrix.reshape(n, -1))
        x = rng.standard_normal((6, *sizes))
        result = contract(x, matrices, 1)
        assert result.shape == (6, *shape)
        np.testing.assert_allclose(result.reshape(6, -1), x.reshape(6, -1) @ product, **EXACT)
        np.testing.assert_allclose(contract(x[0], matrices), result[0], **EXACT)


@pytest.mark.parametrize("first", [0, 1], ids=["no batch axis", "batch axis"])
def test_contract_and_group_axes_pass_dot_test(first):
    rng = np.random.default_rng(2)
    batch_shape, sizes = (3,) * first, (2, 3, 4)
    sets = [(2, 0), (), (1,)]
    matrices = [rng.standard_normal((8, 5)), rng.standard_normal((1, 2)), None]
    transposes = [matrix if matrix is None else matrix.T for matrix in matrices]
    x = rng.standard_normal((*batch_shape, *sizes))
    y = rng.standard_normal((*batch_shape, 5, 2, 3))
    grouped = group_axes(x, sets, first)
    forward = contract(grouped, matrices, first)
    back = ungroup_axes(contract(y, transposes, first), sets, sizes, first)
    assert forward.shape == y.shape
    assert back.shape == x.shape
    assert np.sum(forward * y) == pytest.approx(np.sum(x * back), rel=1e-12)
    np.testing.assert_array_equal(ungroup_axes(grouped, sets, sizes, first), x)
    # The first set is (2, 0), so axis 2 varies more slowly than axis 0 in the grouped axis:
    # its position 1 has index 0 on axis 2 and index 1 on axis 0.
    np.testing.assert_array_equal(grouped[..., 1, 0, 2], x[..., 1, 2, 0])


# ---- The matrix M and its inverse ----


@pytest.mark.parametrize("name", SPLITS)
def test_residual_coefficients_and_tables_match_definition(name):
    sizes, centers, complements = build_split(name)
    M = split_matrix(sizes, centers, complements)
    eye = np.eye(len(M))
    np.testing.assert_allclose(residual_coefficients(eye, sizes, centers, complements), M, **EXACT)
    np.testing.assert_allclose(tables(eye, sizes, centers, complements), M.T, **EXACT)
    axes = tuple(range(len(sizes)))
    np.testing.assert_array_equal(residual_rows(eye, sizes), residual_rows(eye, sizes, axes))
    for space in subsets(axes):
        columns = coordinate_positions(sizes, [space])
        # `residual_rows` takes one complement, on its two attributes alone.
        if not complements or len(sizes) == 2:
            rows = residual_rows(eye, sizes, space, centers, complements.get((0, 1)))
            np.testing.assert_allclose(rows, M[:, columns], **EXACT)
        positions = np.arange(len(M)).reshape(1, *sizes)[space_index(len(sizes), space)]
        assert positions.shape == (1, *(sizes[axis] - 1 for axis in space))


@pytest.mark.parametrize("name", SPLITS)
def test_residual_coefficients_and_tables_pass_dot_test(name):
    sizes, centers, complements = build_split(name)
    cells = math.prod(sizes)
    dot_test(
        lambda q: residual_coefficients(q, sizes, centers, complements),
        lambda y: tables(y, sizes, centers, complements),
        cells,
        cells,
    )
    (x,) = vectors(cells)
    original = x.copy()
    residual_coefficients(x, sizes, centers, complements)
    tables(x, sizes, centers, complements)
    np.testing.assert_array_equal(x, original)
    no_rows = np.zeros((0, cells))
    assert residual_coefficients(no_rows, sizes, centers, complements).shape == (0, cells)


@pytest.mark.parametrize("name", SPLITS)
def test_lifts_are_inverse_and_pass_dot_test(name):
    sizes, centers, complements = build_split(name)
    inverse = np.linalg.inv(split_matrix(sizes, centers, complements))
    cells = len(inverse)
    axes = tuple(range(len(sizes)))
    unions = [(axes,), tuple(subsets(axes)), *(UNIONS if len(sizes) == 2 else ())]
    for spaces in unions:
        columns = coordinate_positions(sizes, spaces)
        lift = SplitLift(sizes, centers, spaces, complements)
        assert lift.dimension == len(columns)
        assert lift.one_space == (spaces == (axes,))
        np.testing.assert_allclose(lift.rows(np.eye(len(columns))), inverse[columns], **EXACT)
        np.testing.assert_allclose(
            lift.table_coordinates(np.eye(cells)), inverse[columns].T, **EXACT
        )
        dot_test(lift.rows, lift.table_coordinates, len(columns), cells)
    columns = coordinate_positions(sizes, [axes])
    inverse_without_complements = np.linalg.inv(split_matrix(sizes, centers, {}))
    lift = Lift(sizes, centers)
    np.testing.assert_allclose(
        lift.rows(np.eye(len(columns))), inverse_without_complements[columns], **EXACT
    )
    dot_test(lift.rows, lift.table_coordinates, len(columns), cells)
    assert (lift.dimension, lift.coordinates) == (len(columns), tuple(n - 1 for n in sizes))


@pytest.mark.parametrize("name", SPLITS)
def test_lift_rows_have_coordinates_in_its_spaces(name):
    """Residual spaces are independent: other coordinates are zero."""
    sizes, centers, complements = build_split(name)
    axes = tuple(range(len(sizes)))
    for spaces in {(axes,), tuple(subsets(axes))}:
        columns = coordinate_positions(sizes, spaces)
        lift = SplitLift(sizes, centers, spaces, complements)
        (vector,) = vectors(len(columns))
        expected = np.zeros((1, math.prod(sizes)))
        expected[:, columns] = vector
        coordinates = residual_coefficients(lift.rows(vector), sizes, centers, complements)
        np.testing.assert_allclose(coordinates, expected, **EXACT)
        table = tables(expected, sizes, centers, complements)
        np.testing.assert_allclose(lift.table_coordinates(table), vector, **EXACT)


@pytest.mark.parametrize("sizes", [(1,), (5,), (3, 1, 4)])
def test_full_lifts_are_orthogonal_and_pass_dot_test(sizes):
    cells = math.prod(sizes)
    for lift in (FullTable(sizes), FullDomain(cells)):
        dot_test(lift.rows, lift.table_coordinates, cells, cells)
        np.testing.assert_allclose(
            lift.table_coordinates(lift.rows(np.eye(cells))), np.eye(cells), **EXACT
        )
    expected = np.ones((1, 1))
    for n in sizes:
        expected = np.kron(expected, np.vstack([np.full((1, n), n**-0.5), basis(n).T]))
    np.testing.assert_allclose(FullTable(sizes).rows(np.eye(cells)), expected, **EXACT)


@pytest.mark.parametrize("lift", [Lift((5, 4)), FullTable((5, 4))], ids=["lift", "full table"])
def test_lift_reversed_attribute_changes_signs_by_degree(lift):
    """The symmetry reduction relies on these signs."""
    (x,) = vectors(20)
    coordinates = lift.table_coordinates(x).reshape(lift.coordinates)
    for axis, shape in ((0, (-1, 1)), (1, (1, -1))):
        reversed_table = np.flip(x.reshape(5, 4), axis).reshape(1, -1)
        reversed_coordinates = lift.table_coordinates(reversed_table).reshape(lift.coordinates)
        signs = ((-1.0) ** lift.degrees(axis)).reshape(shape)
        np.testing.assert_allclose(reversed_coordinates, coordinates * signs, **EXACT)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_lift_traced_derivative_matches_difference(axis):
    """The lift is affine in one center, so a difference equals the derivative."""
    rng = np.random.default_rng(3)
    sizes, centers, _ = build_split("tuned")
    dimensions = [n - 1 for n in sizes]
    derivative_by_rows = rng.standard_normal((*dimensions, *sizes))

    def value(step):
        """Return a linear function of the rows for a center that is moved by a step."""
        moved_centers = list(centers)
        moved_centers[axis] = centers[axis] + basis(sizes[axis]) @ step
        rows = Lift(sizes, moved_centers).rows(np.eye(math.prod(dimensions)))
        return float(np.sum(rows.ravel() * derivative_by_rows.ravel()))

    step = rng.standard_normal(dimensions[axis])
    derivative = -Lift(sizes, centers).traced(derivative_by_rows, axis)
    assert derivative.shape == (dimensions[axis],)
    assert value(step) - value(0 * step) == pytest.approx(derivative @ step, rel=1e-9)


def test_complement_reversed_pair_matches_swapped_axes():
    sizes, centers, complements = build_split("a complement")
    (query,) = vectors(12)
    expected = residual_coefficients(query, sizes, centers, complements).reshape(sizes)
    swapped = residual_coefficients(
        query.reshape(sizes).T.reshape(1, -1),
        sizes[::-1],
        centers[::-1],
        {(0, 1): complements[0, 1].reversed_pair()},
    )
    np.testing.assert_allclose(swapped.reshape(sizes[::-1]).T, expected, **EXACT)


# ---- blocks ----


def random_strategy(rng, sizes, m=0):
    d = math.prod(n - 1 for n in sizes)
    M = rng.standard_normal((m or d, d))
    rows = Lift(sizes).rows(M)
    return Strategy(sizes=sizes, rows=rows, pinv=np.linalg.pinv(M), complete=True)


@pytest.mark.parametrize("weighted", [False, True])
def test_apply_and_undo_factors_match_explicit_rows(weighted):
    """Factors in another order than the attributes, one of them on two distant attributes."""
    rng = np.random.default_rng(6)
    pair_strategy, single_strategy = random_strategy(rng, (4, 3), 9), random_strategy(rng, (2,))
    weights = rng.uniform(0.5, 2.0, (9, 1)) if weighted else None
    block = Block(
        attributes=("a", "b", "c"),
        factors=(((2, 0), pair_strategy), ((1,), single_strategy)),
        noise=1.0,
        grid=0.5,
        weights=weights,
    )
    assert (block.sizes, block.coordinates, block.sets) == ((3, 2, 4), (2, 1, 3), [(2, 0), (1,)])
    table = rng.standard_normal((3, 2, 4))
    answers = apply_factors(block, table, lambda strategy: strategy.rows)
    expected = np.einsum(
        "pca,qb,abc->pq", pair_strategy.rows.reshape(9, 4, 3), single_strategy.rows, table
    )
    np.testing.assert_allclose(answers, expected, **EXACT)
    weighted_answers = answers if weights is None else answers * weights
    coordinates = residual_rows(table.reshape(1, -1), (3, 2, 4)).reshape(2, 1, 3)
    np.testing.assert_allclose(undo_factors(block, weighted_answers), coordinates, **EXACT)
    np.testing.assert_allclose(block.column_squares(), squared_column_norms(block), **EXACT)


def test_undo_factors_of_union_returns_coordinates():
    spaces = ((), (0,), (0, 1))
    lift = SplitLift((2, 3), None, spaces)
    joint_strategy = Strategy(
        sizes=(2, 3), rows=lift.rows(np.eye(4)), pinv=np.eye(4), complete=True
    )
    names_of_spaces = tuple(tuple("ab"[a] for a in space) for space in spaces)
    block = Block(
        attributes=("a", "b"),
        factors=(((0, 1), joint_strategy),),
        noise=1.0,
        grid=0.5,
        union=names_of_spaces,
    )
    assert block.coordinates == (4,)
    np.testing.assert_array_equal(undo_factors(block, np.arange(4.0)), np.arange(4.0))


def test_total_block_has_no_axes():
    block = Block(attributes=(), factors=(), noise=1.0, grid=0.5)
    table = np.full((), 7.0)
    assert (block.sizes, block.coordinates) == ((), ())
    assert apply_factors(block, table, lambda s: s.rows) == undo_factors(block, table) == 7.0
    assert block.column_squares() == 1.0


def squared_column_norms(block):
    """Return the squared column norms of a block on (a, b, c), computed from its dense rows.

    The first factor of the block is on the attributes (c, a), the second on b.
    """
    (_, s), (_, t) = block.factors
    weights = np.ones((9, 1)) if block.weights is None else block.weights
    rows = np.einsum("pca,qb,pq->pqabc", s.rows.reshape(9, 4, 3), t.rows, weights)
    return (rows**2).sum(axis=(0, 1))
