"""Decomposition into residual spaces: pieces, Gram matrices, shared subworkloads."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import Split, basis, decomposition, residual_rows
from engine.residuals.decomposition import (
    attributes_in,
    axis_partition,
    decompose,
    gram_on_axes,
    merge_terms,
    merged_factors,
)
from engine.residuals.operators import CosineMatrix
from engine.workload import Attribute, Custom, Schema, Width, Workload
from tests import oracles, shapes
from tests.shapes import SHAPES

RNG = np.random.default_rng(3)


def subsets(names):
    return itertools.chain.from_iterable(
        itertools.combinations(names, k) for k in range(len(names) + 1)
    )


def space_matrix(schema, space, centers=None):
    """Return the matrix that maps query rows on the full domain to residual rows of one space.

    It has the shape (N, residual coordinates) and is a Kronecker product: of the cosine basis for
    attributes of the space, and of the center for all other attributes.
    """
    out = np.ones((1, 1))
    for name in schema.names:
        n = schema[name].size
        pi = np.full(n, 1 / n) if centers is None or name not in centers else centers[name]
        out = np.kron(out, basis(n) if name in space else pi[:, None])
    return out


def expected_gram(workload, space, centers=None):
    """Return the weighted Gram matrix of all queries in a residual space, from explicit rows."""
    T = space_matrix(workload.schema, space, centers)
    total = 0.0
    for group, W, w in zip(
        workload.groups,
        oracles.workload_rows(workload),
        oracles.query_weights(workload),
        strict=True,
    ):
        if set(space) <= set(group.attributes):
            total = total + (W @ T).T @ (w[:, None] * (W @ T))
    return total


def dense(term, factors, sizes):
    """Return the Kronecker product of the factors of a term, with axes in the order of ``sizes``."""
    letters, axes_of, arrays = itertools.count(), {}, []
    for axes, number in term.factors:
        indexed_axes = [(axis, next(letters), next(letters)) for axis in axes]
        axes_of |= {axis: (left, right) for axis, left, right in indexed_axes}
        shape = [sizes[axis] - 1 for axis in axes]
        arrays += [
            factors[number].dense().reshape(shape * 2),
            [o[1] for o in indexed_axes] + [o[2] for o in indexed_axes],
        ]
    order = [axes_of[a][0] for a in range(len(sizes))] + [axes_of[a][1] for a in range(len(sizes))]
    dimension = math.prod(n - 1 for n in sizes)
    product = np.einsum(*arrays, order) if arrays else np.ones((1, 1))
    return term.coefficient * product.reshape(dimension, dimension)


# ---- basis ----


@pytest.mark.parametrize("n", [1, 2, 3, 7, 50])
def test_basis_is_orthonormal_with_zero_sums_and_parity(n):
    N = basis(n)
    assert N.shape == (n, n - 1)
    np.testing.assert_allclose(N.T @ N, np.eye(n - 1), atol=1e-12)
    np.testing.assert_allclose(N.sum(axis=0), 0, atol=1e-12)
    signs = (-1.0) ** np.arange(1, n)
    np.testing.assert_allclose(N[::-1], N * signs, atol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        N[...] = 0


# ---- pieces ----


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_pieces_of_all_spaces_sum_to_query(sizes, seed):
    rng = np.random.default_rng(seed)
    schema = shapes.numeric(*sizes)
    result = plan(Workload(schema).add(()), Budget(pcost=1.0))
    names = tuple(rng.permutation(schema.names))
    query = rng.standard_normal(schema.sizes(names))
    pieces = result.query_pieces(names, query)
    assert set(pieces) == set(subsets(schema.names))
    total = np.zeros(sizes)
    for space, piece in pieces.items():
        assert piece.shape == tuple(n - 1 for n in schema.sizes(space))
        matrix = np.ones((1, 1))  # maps the coordinates of the space to the cells
        for name, n in zip(schema.names, sizes, strict=True):
            matrix = np.kron(matrix, basis(n) if name in space else np.ones((n, 1)))
        total += (matrix @ piece.ravel()).reshape(sizes)
    expected = query.transpose([names.index(name) for name in schema.names])
    np.testing.assert_allclose(total, expected, atol=1e-12)


def test_residual_rows_with_centers_match_definition():
    workload = Workload(shapes.numeric(3, 4)).add(("b", "a"), "affine")
    (part,) = workload.groups[0].parts
    centers = {"a": np.array([0.5, 0.2, 0.3]), "b": np.array([0.7, -0.1, 0.3, 0.1])}
    centers_by_axis = [centers["b"], centers["a"]]
    rows = part.family.rows(part.sizes)
    query_rows = oracles.group_rows(workload.schema, workload.groups[0])
    for axes in subsets((0, 1)):
        space = tuple(sorted(("b", "a")[axis] for axis in axes))
        result = residual_rows(rows, part.sizes, axes, centers_by_axis)
        if len(axes) == 2:  # the part has b first, the schema has a first
            result = result.reshape(len(rows), 3, 2).transpose(0, 2, 1).reshape(len(rows), 6)
        expected = query_rows @ space_matrix(workload.schema, space, centers)
        np.testing.assert_allclose(result, expected, atol=1e-12)


# ---- Gram matrices ----


@pytest.mark.parametrize("shape", SHAPES)
def test_decompose_terms_sum_to_space_gram(shape):
    workload = SHAPES[shape]()
    parts = decompose(workload)
    for space in subsets(workload.schema.names):
        expected = np.atleast_2d(expected_gram(workload, space))
        if space not in parts.spaces:
            assert np.trace(expected) <= 1e-12, space
            continue
        number, scale = parts.spaces[space]
        sub = parts.subworkloads[number]
        assert sub.sizes == workload.schema.sizes(space)
        assert max(t.coefficient for t in sub.terms) == pytest.approx(1.0)
        for term in sub.terms:
            axes_of_factors = sorted(axis for axes, _ in term.factors for axis in axes)
            assert axes_of_factors == list(range(len(space)))
        gram = scale * sum(dense(t, parts.factors, sub.sizes) for t in sub.terms)
        np.testing.assert_allclose(gram, expected, rtol=1e-9, atol=1e-10 * np.trace(expected))


@pytest.mark.parametrize(
    "shape", ["nested", "mixed_three", "query_weighted", "custom_matrix", "reversed_pair"]
)
def test_decompose_with_centers_matches_explicit_gram(shape):
    workload = SHAPES[shape]()
    centers = {}
    for name in workload.schema.names[:2]:
        weights = RNG.random(workload.schema[name].size) + 0.1
        centers[name] = weights / weights.sum()
    parts = decompose(workload, Split(centers=centers))
    for space, (number, scale) in parts.spaces.items():
        sub = parts.subworkloads[number]
        gram = scale * sum(dense(t, parts.factors, sub.sizes) for t in sub.terms)
        expected = expected_gram(workload, space, centers)
        np.testing.assert_allclose(gram, expected, rtol=1e-9, atol=1e-10 * np.trace(expected))


def test_decompose_zero_grams_are_omitted():
    def spaces(workload):
        return set(decompose(workload).spaces)

    schema = shapes.numeric(3, 4, 1)
    assert spaces(Workload(schema).add(("a", "b"), "total")) == {()}
    assert spaces(Workload(schema).add(("a", "b"), {"a": "total", "b": "prefix"})) == {(), ("b",)}
    assert spaces(Workload(schema).add(("a", "c"), "prefix")) == {(), ("a",)}
    assert spaces(Workload(schema).add("a", Custom([[1, -1, 0]]))) == {("a",)}
    assert spaces(Workload(schema).add("a").add(("a", "b"), weight=0.0)) == {(), ("a",)}
    assert spaces(Workload(schema).add("a", query_weights=[0, 0, 0]).add("b")) == {(), ("b",)}
    assert spaces(Workload(schema).add(("a", "b"), Custom(np.ones((2, 12))))) == {()}


def test_decompose_without_weights_has_no_spaces_and_attributes():
    workload = Workload(shapes.numeric(3, 4)).add(("a", "b"), "prefix", weight=0.0)
    parts = decompose(workload)
    assert not parts.spaces
    assert attributes_in(parts.spaces, workload.schema) == ()


def test_decompose_rounding_errors_are_omitted():
    """0.1 + 0.2 - 0.3 is not exactly zero in floating point."""
    rows = Custom([[0.1, 0.2, -0.3], [0.7, -0.6, -0.1]])
    schema = shapes.numeric(3, 3)
    assert set(decompose(Workload(schema).add("a", rows)).spaces) == {("a",)}
    product = Workload(schema).add(("a", "b"), {"a": rows, "b": "marginal"})
    assert set(decompose(product).spaces) == {("a",), ("a", "b")}
    joint = Custom(np.kron(rows.matrix, np.ones((1, 3))))
    assert set(decompose(Workload(schema).add(("a", "b"), joint)).spaces) == {("a",)}


# ---- Shared subworkloads ----


def test_decompose_equal_spaces_share_subworkload():
    schema = Schema([Attribute.of_size(f"x{i}", 6) for i in range(10)])
    parts = decompose(Workload.all_ways(schema, (1, 2, 3), "prefix"))
    assert len(parts.spaces) == 1 + 10 + 45 + 120
    assert len(parts.subworkloads) == 4
    assert len(parts.factors) == 1
    scales = {(len(space), round(scale, 9)) for space, (_, scale) in parts.spaces.items()}
    assert len(scales) == 4  # one scale per number of attributes


def test_decompose_different_families_share_no_factor():
    schema = shapes.numeric(5, 5, 5)
    parts = decompose(Workload(schema).add("a", "prefix").add("b", "range").add("c", Width(2)))
    subworkloads = {number for space, (number, _) in parts.spaces.items() if space}
    assert len(subworkloads) == 3
    assert len(parts.factors) == 3


def test_decompose_proportional_grams_share_factor():
    eye = np.eye(4)
    schema = shapes.numeric(4, 4, 4)
    workload = Workload(schema).add("a", Custom(3 * eye)).add("b")
    parts = decompose(workload.add("c", "marginal", weight=5.0))
    assert len(parts.factors) == 1
    (number_a, scale_a), (number_b, scale_b), (number_c, scale_c) = (
        parts.spaces[name,] for name in "abc"
    )
    assert number_a == number_b == number_c
    # a factor of the rows enters as its square, and a weight once
    assert scale_a == pytest.approx(9 * scale_b)
    assert scale_c == pytest.approx(5 * scale_b)
    low_rank = np.eye(16)[:2]
    workload = Workload(schema).add(("a", "b"), Custom(low_rank))
    parts = decompose(workload.add(("b", "c"), Custom(7 * low_rank)))
    number_ab, scale_ab = parts.spaces["a", "b"]
    number_bc, scale_bc = parts.spaces["b", "c"]
    assert number_ab == number_bc
    assert scale_bc == pytest.approx(49 * scale_ab)


def test_merge_terms_joins_terms_on_equal_axes():
    workload = Workload(shapes.numeric(4, 3)).add(("a", "b"), {"a": "prefix", "b": "marginal"})
    workload = workload.add(("a", "b"), {"a": "range", "b": "marginal"}, weight=2.0)
    parts = decompose(workload)
    number, scale = parts.spaces[("a", "b")]
    sub = parts.subworkloads[number]
    assert len(sub.terms) == 2
    merged = merge_terms(sub, parts.factors)
    assert len(merged) == 1
    gram = scale * gram_on_axes(merged, (0, 1), sub.sizes).dense()
    np.testing.assert_allclose(gram, expected_gram(workload, ("a", "b")), atol=1e-10)


FAMILIES = ("marginal", "prefix", "range", "circular")


def test_merged_factors_merges_like_merge_terms() -> None:
    rng = np.random.default_rng(7)
    partly_merged = 0
    for _ in range(30):
        workload = Workload(shapes.numeric(5, 4, 3))
        for _ in range(4):
            families = {name: str(rng.choice(FAMILIES)) for name in "abc"}
            workload = workload.add(("a", "b", "c"), families)
        parts = decompose(workload)
        for sub in parts.subworkloads:
            expected = [
                [axes for axes, _ in factors] for _, factors in merge_terms(sub, parts.factors)
            ]
            assert [[axes for axes, _ in factors] for factors in merged_factors(sub)] == expected
            partly_merged += 1 < len(expected) < len(sub.terms)
    assert partly_merged  # otherwise the workloads are too simple for this test


@pytest.mark.parametrize(
    "shape", ["coupled", "coupled_three", "reversed_pair", "mixed_three", "query_weighted"]
)
def test_merge_terms_preserves_gram_of_all_terms(shape):
    workload = SHAPES[shape]()
    parts = decompose(workload)
    for space, (number, scale) in parts.spaces.items():
        if not space:
            continue
        sub = parts.subworkloads[number]
        axes = tuple(range(len(space)))
        merged = merge_terms(sub, parts.factors)
        gram = scale * gram_on_axes(merged, axes, sub.sizes).dense()
        expected = expected_gram(workload, space)
        np.testing.assert_allclose(gram, expected, rtol=1e-9, atol=1e-10 * np.trace(expected))
        partition = axis_partition(merged, len(space))
        assert tuple(sorted(axis for unit in partition for axis in unit)) == axes


def test_decompose_forty_attributes_has_one_factor():
    schema = Schema([Attribute.of_size(f"x{i}", 100) for i in range(40)])
    parts = decompose(Workload.all_ways(schema, (1, 2), "range"))
    # one space per set of at most two attributes, one subworkload per number of attributes
    spaces = 1 + 40 + math.comb(40, 2)
    assert (len(parts.spaces), len(parts.subworkloads), len(parts.factors)) == (spaces, 3, 1)


def test_plan_rmse_ignores_order_of_groups():
    schema, families = shapes.numeric(4, 3, 2), {"a": "prefix", "b": "range"}
    workload = Workload(schema).add(("a", "b"), families).add(("b", "c"), "affine")
    reordered = Workload(schema).add(("c", "b"), "affine").add(("b", "a"), families)
    budget = Budget(pcost=1.0)
    assert plan(workload, budget).rmse == pytest.approx(plan(reordered, budget).rmse, rel=1e-6)


def test_decompose_other_center_or_label_has_own_subworkload():
    workload = Workload.all_ways(shapes.numeric(4, 4, 4), (1,), "prefix")
    center = np.array([0.4, 0.3, 0.2, 0.1])
    with_center = decompose(workload, split=Split(centers={"b": center}))
    with_label = decompose(workload, labels={"b": "label"})
    for parts, expected in (
        (with_center, ((center,), (None,))),
        (with_label, ((None,), ("label",))),
    ):
        number_a, number_b, number_c = (parts.spaces[name,][0] for name in "abc")
        assert number_a == number_c != number_b
        separate = parts.subworkloads[number_b]
        assert (separate.centers, separate.labels) == expected


def test_decompose_reordered_families_match_explicit_gram():
    workload = Workload(shapes.numeric(4, 4, 4))
    workload = workload.add(("a", "b"), {"a": "prefix", "b": "range"})
    workload = workload.add(("c", "b"), {"c": "prefix", "b": "range"})
    parts = decompose(workload)
    assert set(parts.spaces) == {(), ("a",), ("b",), ("c",), ("a", "b"), ("b", "c")}
    for space, (number, scale) in parts.spaces.items():
        terms = parts.subworkloads[number].terms
        gram = sum(t.coefficient * dense(t, parts.factors, (4,) * len(space)) for t in terms)
        expected = expected_gram(workload, space)
        np.testing.assert_allclose(
            scale * gram, expected, rtol=1e-9, atol=1e-10 * np.trace(expected)
        )


def test_forecast_compares_wide_grams_without_transforms(monkeypatch):
    monkeypatch.setattr(CosineMatrix, "_apply", lambda *_: pytest.fail("transformed"))
    schema = Schema([Attribute.of_size("a", 300), Attribute.of_size("b", 1_000)])
    workload = Workload(schema)
    for name in schema.names:
        workload = workload.add(name, Width(7)).add(name, "prefix").add(name, "suffix")
    parts = decompose(workload, forecast=True)
    # on 300 cells, the windows have a Gram of their own; prefixes and suffixes share one
    grams = [f for f in parts.factors if f.sizes == (300,)]
    assert len(grams) == 2


def test_grams_of_other_layouts_are_not_compared(monkeypatch):
    layout = decomposition._layout
    calls = []
    monkeypatch.setattr(
        decomposition, "_layout", lambda factor: calls.append(factor) or layout(factor)
    )
    schema = Schema([Attribute.of_size(f"a{n}", n) for n in range(4, 16)])
    workload = Workload(schema)
    for name in schema.names:
        workload = workload.add(name, "prefix").add(name, "range")
    # One residual Gram per group. Every size has another layout, so a Gram is compared with at most
    # one other.
    assert len(decompose(workload).factors) == len(workload.groups) == 24
    assert len(calls) == 24


def test_decompose_order_of_attributes_is_irrelevant():
    schema = shapes.numeric(3, 4, 5)
    families = {"a": "prefix", "b": "range", "c": "marginal"}
    in_order, reordered = (
        decompose(Workload(schema).add(tuple(names), families)) for names in ("abc", "cab")
    )
    assert list(in_order.spaces) == list(reordered.spaces)

    def space_gram(parts, space):
        number, scale = parts.spaces[space]
        sub = parts.subworkloads[number]
        merged = merge_terms(sub, parts.factors)
        return scale * gram_on_axes(merged, tuple(range(len(space))), sub.sizes).dense()

    for space in filter(None, in_order.spaces):
        np.testing.assert_allclose(
            space_gram(in_order, space), space_gram(reordered, space), rtol=1e-12
        )


def test_classification_ends_when_every_class_has_one_space(monkeypatch):
    calls = []
    original = decomposition.unique_rows
    monkeypatch.setattr(
        decomposition, "unique_rows", lambda rows: calls.append(len(rows)) or original(rows)
    )
    schema = Schema([Attribute.of_size(f"x{i}", 2 + i) for i in range(9)])
    decompose(Workload.all_ways(schema, (1, 2), family="prefix"))
    # Every space has a class of its own, so seven calls are enough for each of the sizes 0, 1 and 2.
    # The total has 45 terms.
    assert len(calls) <= 21
