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
    A, B, v = rng.standard_normal((3, 5)), rng.standard_normal((2, 4)), rng.standard_normal(4)
    cases = ([A, v, B], [A, None, B], [None, v, None], [v[:3], v, v[:2]], [None, None, None])
    for matrices in cases:
        full = np.ones((1, 1))
        for matrix, n in zip(matrices, (3, 4, 2), strict=True):
            full = np.kron(full, np.eye(n) if matrix is None else matrix.reshape(n, -1))
        x = rng.standard_normal((6, 3, 4, 2))
        result = contract(x, matrices, 1)
        shape = [
            n if m is None else m.shape[1]
            for m, n in zip(matrices, (3, 4, 2), strict=True)
            if m is None or m.ndim > 1
        ]
        assert result.shape == (6, *shape)
        np.testing.assert_allclose(result.reshape(6, -1), x.reshape(6, -1) @ full, **EXACT)
        np.testing.assert_allclose(contract(x[0], matrices), result[0], **EXACT)


@pytest.mark.parametrize("first", [0, 1])
def test_contract_and_group_axes_pass_dot_test(first):
    rng = np.random.default_rng(2)
    head, sizes, sets = (3,) * first, (2, 3, 4), [(2, 0), (), (1,)]
    mats = [rng.standard_normal((8, 5)), rng.standard_normal((1, 2)), None]
    x, y = rng.standard_normal((*head, *sizes)), rng.standard_normal((*head, 5, 2, 3))
    forward = contract(group_axes(x, sets, first), mats, first)
    back = ungroup_axes(
        contract(y, [None if m is None else m.T for m in mats], first), sets, sizes, first
    )
    assert forward.shape == y.shape
    assert back.shape == x.shape
    assert np.sum(forward * y) == pytest.approx(np.sum(x * back), rel=1e-12)
    np.testing.assert_array_equal(ungroup_axes(group_axes(x, sets, first), sets, sizes, first), x)
    # The first set is (2, 0), so axis 2 varies more slowly than axis 0 in the grouped axis.
    np.testing.assert_array_equal(group_axes(x, sets, first)[..., 1, 0, 2], x[..., 1, 2, 0])


# ---- The matrix M and its inverse ----


@pytest.mark.parametrize("name", SPLITS)
def test_residual_coefficients_and_tables_match_definition(name):
    sizes, centers, complements = build_split(name)
    M = split_matrix(sizes, centers, complements)
    eye = np.eye(len(M))
    np.testing.assert_allclose(residual_coefficients(eye, sizes, centers, complements), M, **EXACT)
    np.testing.assert_allclose(tables(eye, sizes, centers, complements), M.T, **EXACT)
    for inside in subsets(range(len(sizes))):
        expected = M[:, coordinate_positions(sizes, [inside])]
        if not complements or len(sizes) == 2:
            complement = complements.get((0, 1))
            np.testing.assert_allclose(
                residual_rows(eye, sizes, inside, centers, complement), expected, **EXACT
            )
        block = np.arange(len(M)).reshape(1, *sizes)[space_index(len(sizes), inside)]
        assert block.shape == (1, *(sizes[a] - 1 for a in inside))
    np.testing.assert_array_equal(
        residual_rows(eye, sizes), residual_rows(eye, sizes, tuple(range(len(sizes))))
    )


@pytest.mark.parametrize("name", SPLITS)
def test_residual_coefficients_and_tables_pass_dot_test(name):
    sizes, centers, complements = build_split(name)
    n = math.prod(sizes)
    dot_test(
        lambda q: residual_coefficients(q, sizes, centers, complements),
        lambda y: tables(y, sizes, centers, complements),
        n,
        n,
    )
    (x,) = vectors(n)
    before = x.copy()
    for applied in (residual_coefficients, tables):
        applied(x, sizes, centers, complements)
    np.testing.assert_array_equal(x, before)
    assert residual_coefficients(np.zeros((0, n)), sizes, centers, complements).shape == (0, n)


@pytest.mark.parametrize("name", SPLITS)
def test_lifts_are_inverse_and_pass_dot_test(name):
    sizes, centers, complements = build_split(name)
    inverse = np.linalg.inv(split_matrix(sizes, centers, complements))
    every = tuple(range(len(sizes)))
    unions = [(every,), tuple(subsets(every)), *(UNIONS if len(sizes) == 2 else ())]
    for spaces in unions:
        columns = coordinate_positions(sizes, spaces)
        lift = SplitLift(sizes, centers, spaces, complements)
        assert lift.dimension == len(columns)
        assert lift.one_space == (spaces == (every,))
        np.testing.assert_allclose(lift.rows(np.eye(len(columns))), inverse[columns], **EXACT)
        np.testing.assert_allclose(
            lift.table_coordinates(np.eye(len(inverse))), inverse[columns].T, **EXACT
        )
        dot_test(lift.rows, lift.table_coordinates, len(columns), len(inverse))
    columns = coordinate_positions(sizes, [every])
    plain = np.linalg.inv(split_matrix(sizes, centers, {}))[columns]
    lift = Lift(sizes, centers)
    np.testing.assert_allclose(lift.rows(np.eye(len(columns))), plain, **EXACT)
    dot_test(lift.rows, lift.table_coordinates, len(columns), len(inverse))
    assert (lift.dimension, lift.coordinates) == (len(columns), tuple(n - 1 for n in sizes))


@pytest.mark.parametrize("name", SPLITS)
def test_lift_rows_have_coordinates_in_its_spaces(name):
    """Residual spaces are independent: other coordinates are zero."""
    sizes, centers, complements = build_split(name)
    for spaces in {(tuple(range(len(sizes))),), tuple(subsets(range(len(sizes))))}:
        columns = coordinate_positions(sizes, spaces)
        lift = SplitLift(sizes, centers, spaces, complements)
        (s,) = vectors(len(columns))
        coordinates = residual_coefficients(lift.rows(s), sizes, centers, complements)
        np.testing.assert_allclose(coordinates[:, columns], s, **EXACT)
        np.testing.assert_allclose(np.delete(coordinates, columns, axis=1), 0, **EXACT)
        y = np.zeros((1, math.prod(sizes)))
        y[:, columns] = s
        np.testing.assert_allclose(
            lift.table_coordinates(tables(y, sizes, centers, complements)), s, **EXACT
        )


@pytest.mark.parametrize("sizes", [(1,), (5,), (3, 1, 4)])
def test_full_lifts_are_orthogonal_and_pass_dot_test(sizes):
    n = math.prod(sizes)
    for lift in (FullTable(sizes), FullDomain(n)):
        dot_test(lift.rows, lift.table_coordinates, n, n)
        np.testing.assert_allclose(lift.table_coordinates(lift.rows(np.eye(n))), np.eye(n), **EXACT)
    flat = np.ones((1, 1))
    for m in sizes:
        flat = np.kron(flat, np.vstack([np.full((1, m), m**-0.5), basis(m).T]))
    np.testing.assert_allclose(FullTable(sizes).rows(np.eye(n)), flat, **EXACT)


@pytest.mark.parametrize("lift", [Lift((5, 4)), FullTable((5, 4))], ids=["lift", "full table"])
def test_lift_reversed_attribute_changes_signs_by_degree(lift):
    """The symmetry reduction relies on these signs."""
    (x,) = vectors(20)
    for axis in (0, 1):
        reverse = np.flip(x.reshape(5, 4), axis).reshape(1, -1)
        signs = ((-1.0) ** lift.degrees(axis)).reshape([-1 if a == axis else 1 for a in (0, 1)])
        expected = lift.table_coordinates(x).reshape(lift.coordinates) * signs
        np.testing.assert_allclose(
            lift.table_coordinates(reverse).reshape(lift.coordinates), expected, **EXACT
        )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_lift_traced_derivative_matches_difference(axis):
    """The lift is affine in one center, so a difference equals the derivative."""
    rng = np.random.default_rng(3)
    sizes, centers, _ = build_split("tuned")
    dimensions = [n - 1 for n in sizes]
    by_lift = rng.standard_normal((*dimensions, *sizes))

    def value(z):
        new_centers = [
            pi + basis(n) @ z if a == axis else pi
            for a, (n, pi) in enumerate(zip(sizes, centers, strict=True))
        ]
        rows = Lift(sizes, new_centers).rows(np.eye(math.prod(dimensions)))
        return float(np.sum(rows.ravel() * by_lift.ravel()))

    step = rng.standard_normal(dimensions[axis])
    slope = -Lift(sizes, centers).traced(by_lift, axis)
    assert slope.shape == (dimensions[axis],)
    assert value(step) - value(0 * step) == pytest.approx(slope @ step, rel=1e-9)


def test_complement_turned_matches_swapped_axes():
    sizes, centers, complements = build_split("a complement")
    (q,) = vectors(12)
    straight = residual_coefficients(q, sizes, centers, complements).reshape(sizes)
    other = residual_coefficients(
        q.reshape(sizes).T.reshape(1, -1),
        sizes[::-1],
        centers[::-1],
        {(0, 1): complements[0, 1].reversed_pair()},
    )
    np.testing.assert_allclose(other.reshape(sizes[::-1]).T, straight, **EXACT)


# ---- blocks ----


def some_strategy(rng, sizes, m=0):
    d = math.prod(n - 1 for n in sizes)
    M = rng.standard_normal((m or d, d))
    rows = Lift(sizes).rows(M)
    return Strategy(sizes=sizes, rows=rows, pinv=np.linalg.pinv(M), complete=True)


@pytest.mark.parametrize("weighted", [False, True])
def test_apply_and_undo_factors_match_explicit_rows(weighted):
    """Factors in another order than the attributes, one of them on two distant attributes."""
    rng = np.random.default_rng(6)
    factors = (((2, 0), some_strategy(rng, (4, 3), 9)), ((1,), some_strategy(rng, (2,))))
    weights = rng.uniform(0.5, 2.0, (9, 1)) if weighted else None
    block = Block(attributes=("a", "b", "c"), factors=factors, noise=1.0, grid=0.5, weights=weights)
    assert (block.sizes, block.coordinates, block.sets) == ((3, 2, 4), (2, 1, 3), [(2, 0), (1,)])
    table = rng.standard_normal((3, 2, 4))
    answers = apply_factors(block, table, lambda s: s.rows)
    back = rng.standard_normal(answers.shape)
    transposed = np.einsum(
        "pca,qb,pq->abc", factors[0][1].rows.reshape(9, 4, 3), factors[1][1].rows, back
    )
    assert np.sum(answers * back) == pytest.approx(np.sum(table * transposed), rel=1e-11)
    scaled = answers if weights is None else answers * weights
    expected = residual_rows(table.reshape(1, -1), (3, 2, 4)).reshape(2, 1, 3)
    np.testing.assert_allclose(undo_factors(block, scaled), expected, **EXACT)
    squares = transposed_squares(block)
    np.testing.assert_allclose(block.column_squares(), squares, **EXACT)


def test_undo_factors_of_union_returns_coordinates():
    spaces = ((), (0,), (0, 1))
    lift = SplitLift((2, 3), None, spaces)
    joined = Strategy(sizes=(2, 3), rows=lift.rows(np.eye(4)), pinv=np.eye(4), complete=True)
    names = tuple(tuple("ab"[a] for a in space) for space in spaces)
    block = Block(
        attributes=("a", "b"), factors=(((0, 1), joined),), noise=1.0, grid=0.5, union=names
    )
    assert block.coordinates == (4,)
    np.testing.assert_array_equal(undo_factors(block, np.arange(4.0)), np.arange(4.0))


def test_total_block_has_no_axes():
    block = Block(attributes=(), factors=(), noise=1.0, grid=0.5)
    seven = np.full((), 7.0)
    assert (block.sizes, block.coordinates) == ((), ())
    assert apply_factors(block, seven, lambda s: s.rows) == undo_factors(block, seven) == 7.0
    assert block.column_squares() == 1.0


def transposed_squares(block):
    """Return the squared column norms of a block on (a, b, c), computed from its dense rows.

    The first factor of the block is on the attributes (c, a), the second on b.
    """
    (_, s), (_, t) = block.factors
    weights = np.ones((9, 1)) if block.weights is None else block.weights
    rows = np.einsum("pca,qb,pq->pqabc", s.rows.reshape(9, 4, 3), t.rows, weights)
    return (rows**2).sum(axis=(0, 1))
