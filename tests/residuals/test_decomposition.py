"""The pieces add up to the query, the Grams are those of the pieces, and nothing is kept or solved twice."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import Split, basis, class_rows
from engine.residuals.decomposition import assemble, axis_partition, decompose, merge_terms
from engine.workload import Attribute, Custom, Schema, Width, Workload
from tests import oracles, shapes
from tests.shapes import SHAPES

RNG = np.random.default_rng(3)


def subsets(names):
    return itertools.chain.from_iterable(itertools.combinations(names, k) for k in range(len(names) + 1))


def class_matrix(schema, space, centers=None):
    """Query rows on the full domain -> class rows of one space, shape (N, class coordinates), straight from its text.

    On an attribute of the space the cosine basis, on any other its center; both are spread over the cells by hand.
    """
    out = np.ones((1, 1))
    for name in schema.names:
        n = schema[name].size
        pi = np.full(n, 1 / n) if centers is None or name not in centers else centers[name]
        out = np.kron(out, basis(n) if name in space else pi[:, None])
    return out


def expected_gram(workload, space, centers=None):
    T = class_matrix(workload.schema, space, centers)
    total = 0.0
    for group, W, w in zip(
        workload.groups, oracles.workload_rows(workload), oracles.query_weights(workload), strict=True
    ):
        if set(space) <= set(group.attributes):
            # what does not depend on an attribute is averaged with any center to the same number
            total = total + (W @ T).T @ (w[:, None] * (W @ T))
    return total


def dense(term, factors, sizes):
    """Kronecker product of the factors of one term, class coordinates in the order of the space."""
    letters, axes_of, arrays = itertools.count(), {}, []
    for axes, number in term.factors:
        own = [(axis, next(letters), next(letters)) for axis in axes]
        axes_of |= {axis: (left, right) for axis, left, right in own}
        shape = [sizes[axis] - 1 for axis in axes]
        arrays += [factors[number].dense().reshape(shape * 2), [o[1] for o in own] + [o[2] for o in own]]
    order = [axes_of[a][0] for a in range(len(sizes))] + [axes_of[a][1] for a in range(len(sizes))]
    dimension = math.prod(n - 1 for n in sizes)
    product = np.einsum(*arrays, order) if arrays else np.ones((1, 1))
    return term.coefficient * product.reshape(dimension, dimension)


# ---- the basis --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 7, 50])
def test_basis_is_orthonormal_with_sum_zero_and_a_parity(n):
    N = basis(n)
    assert N.shape == (n, n - 1)
    np.testing.assert_allclose(N.T @ N, np.eye(n - 1), atol=1e-12)
    np.testing.assert_allclose(N.sum(axis=0), 0, atol=1e-12)
    signs = (-1.0) ** np.arange(1, n)
    np.testing.assert_allclose(N[::-1], N * signs, atol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        N[...] = 0


# ---- pieces -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 999))
def test_pieces_add_up_to_the_query(sizes, seed):
    rng = np.random.default_rng(seed)
    schema = shapes.numeric(*sizes)
    made = plan(Workload(schema).add(()), Budget(pcost=1.0))
    names = tuple(rng.permutation(schema.names))
    query = rng.standard_normal(schema.sizes(names))
    pieces = made.class_pieces(names, query)
    assert set(pieces) == set(subsets(schema.names))
    total = np.zeros(sizes)
    for space, piece in pieces.items():
        assert piece.shape == tuple(n - 1 for n in schema.sizes(space))
        table = piece
        for axis, name in enumerate(schema.names):
            if name in space:
                table = np.moveaxis(np.tensordot(table, basis(schema[name].size), axes=(axis, 1)), -1, axis)
            else:
                table = np.repeat(np.expand_dims(table, axis), schema[name].size, axis=axis)
        total += table
    np.testing.assert_allclose(total, query.transpose([names.index(n) for n in schema.names]), atol=1e-12)


def test_class_rows_are_the_pieces_with_any_centers():
    workload = Workload(shapes.numeric(3, 4)).add(("b", "a"), "affine")
    (part,) = workload.groups[0].parts
    centers = {"a": np.array([0.5, 0.2, 0.3]), "b": np.array([0.7, -0.1, 0.3, 0.1])}
    given_centers = [centers["b"], centers["a"]]
    rows = part.family.rows(part.sizes)
    full = oracles.group_rows(workload.schema, workload.groups[0])
    for inside in subsets((0, 1)):
        space = tuple(sorted(("b", "a")[i] for i in inside))
        found = class_rows(rows, part.sizes, inside, given_centers)
        if len(inside) == 2:  # coordinates of b come first here, of a in the schema
            found = found.reshape(len(rows), 3, 2).transpose(0, 2, 1).reshape(len(rows), 6)
        np.testing.assert_allclose(found, full @ class_matrix(workload.schema, space, centers), atol=1e-12)


# ---- Grams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_terms_add_up_to_the_gram_of_every_space(shape):
    if shape == "wide":
        return
    workload = SHAPES[shape]()
    parts = decompose(workload)
    for space in subsets(workload.schema.names):
        expected = expected_gram(workload, space)
        expected = expected if np.ndim(expected) else np.zeros((1, 1))
        if space not in parts.spaces:
            assert np.trace(expected) <= 1e-12, space
            continue
        number, scale = parts.spaces[space]
        sub = parts.subworkloads[number]
        assert sub.sizes == workload.schema.sizes(space)
        assert max(t.coefficient for t in sub.terms) == pytest.approx(1.0)
        assert all(sorted(a for axes, _ in t.factors for a in axes) == list(range(len(space))) for t in sub.terms)
        found = scale * sum(dense(t, parts.factors, sub.sizes) for t in sub.terms)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * np.trace(expected))


@pytest.mark.parametrize("shape", ["nested", "mixed_three", "query_weighted", "custom_matrix", "reversed_pair"])
def test_grams_with_other_centers(shape):
    workload = SHAPES[shape]()
    centers = {}
    for name in workload.schema.names[:2]:
        raw = RNG.random(workload.schema[name].size) + 0.1
        centers[name] = raw / raw.sum()
    parts = decompose(workload, Split(centers=centers))
    for space, (number, scale) in parts.spaces.items():
        sub = parts.subworkloads[number]
        found = scale * sum(dense(t, parts.factors, sub.sizes) for t in sub.terms)
        expected = expected_gram(workload, space, centers)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * np.trace(expected))


def test_zero_grams_are_left_out():
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


def test_zero_up_to_rounding_is_left_out_too():
    """0.1 + 0.2 - 0.3 is no zero in floating point, but the query says nothing about the total."""
    rows = Custom([[0.1, 0.2, -0.3], [0.7, -0.6, -0.1]])
    schema = shapes.numeric(3, 3)
    assert set(decompose(Workload(schema).add("a", rows)).spaces) == {("a",)}
    product = Workload(schema).add(("a", "b"), {"a": rows, "b": "marginal"})
    assert set(decompose(product).spaces) == {("a",), ("a", "b")}
    joint = Custom(np.kron(rows.matrix, np.ones((1, 3))))
    assert set(decompose(Workload(schema).add(("a", "b"), joint)).spaces) == {("a",)}


# ---- sharing ----------------------------------------------------------------------------------------------------


def test_alike_spaces_share_one_subworkload():
    schema = Schema([Attribute.of_size(f"x{i}", 6) for i in range(10)])
    parts = decompose(Workload.all_ways(schema, (1, 2, 3), "prefix"))
    assert len(parts.spaces) == 1 + 10 + 45 + 120
    assert len(parts.subworkloads) == 4
    assert len(parts.factors) == 1
    scales = {len(space): set() for space in parts.spaces}
    for space, (_, scale) in parts.spaces.items():
        scales[len(space)].add(round(scale, 9))
    assert [len(s) for s in scales.values()] == [1, 1, 1, 1]


def test_other_families_of_the_same_size_share_nothing():
    schema = shapes.numeric(5, 5, 5)
    parts = decompose(Workload(schema).add("a", "prefix").add("b", "range").add("c", Width(2)))
    assert len({parts.spaces[(name,)][0] for name in "abc"}) == 3
    assert len(parts.factors) == 3


def test_proportional_grams_are_one_factor():
    eye = np.eye(4)
    schema = shapes.numeric(4, 4, 4)
    parts = decompose(Workload(schema).add("a", Custom(3 * eye)).add("b").add("c", "marginal", weight=5.0))
    assert len(parts.factors) == 1
    assert len({parts.spaces[(name,)][0] for name in "abc"}) == 1
    base = parts.spaces[("b",)][1]
    assert parts.spaces[("a",)][1] == pytest.approx(9 * base)
    assert parts.spaces[("c",)][1] == pytest.approx(5 * base)
    low = Custom(np.eye(16)[:2]), Custom(7 * np.eye(16)[:2])
    parts = decompose(Workload(schema).add(("a", "b"), low[0]).add(("b", "c"), low[1]))
    assert parts.spaces[("a", "b")][0] == parts.spaces[("b", "c")][0]
    assert parts.spaces[("b", "c")][1] == pytest.approx(49 * parts.spaces[("a", "b")][1])


def test_terms_on_the_same_axes_are_merged():
    workload = Workload(shapes.numeric(4, 3)).add(("a", "b"), {"a": "prefix", "b": "marginal"})
    workload = workload.add(("a", "b"), {"a": "range", "b": "marginal"}, weight=2.0)
    parts = decompose(workload)
    number, scale = parts.spaces[("a", "b")]
    sub = parts.subworkloads[number]
    assert len(sub.terms) == 2
    merged = merge_terms(sub, parts.factors)
    assert len(merged) == 1
    whole = scale * assemble(merged, (0, 1), sub.sizes).dense()
    np.testing.assert_allclose(whole, expected_gram(workload, ("a", "b")), atol=1e-10)


@pytest.mark.parametrize("shape", ["coupled", "coupled_three", "reversed_pair", "mixed_three", "query_weighted"])
def test_merging_and_assembling_change_nothing(shape):
    workload = SHAPES[shape]()
    parts = decompose(workload)
    for space, (number, scale) in parts.spaces.items():
        if space:
            sub = parts.subworkloads[number]
            merged, axes = merge_terms(sub, parts.factors), tuple(range(len(space)))
            found = scale * assemble(merged, axes, sub.sizes).dense()
            expected = expected_gram(workload, space)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * np.trace(expected))
            assert sorted(a for unit in axis_partition(merged, len(space)) for a in unit) == list(axes)


def test_forty_attributes_take_no_time_and_one_factor():
    schema = Schema([Attribute.of_size(f"x{i}", 100) for i in range(40)])
    parts = decompose(Workload.all_ways(schema, (1, 2), "range"))
    assert (len(parts.spaces), len(parts.subworkloads), len(parts.factors)) == (821, 3, 1)


def test_order_of_groups_and_of_attributes_within_does_not_matter():
    one = Workload(shapes.numeric(4, 3, 2)).add(("a", "b"), {"a": "prefix", "b": "range"}).add(("b", "c"), "affine")
    other = Workload(one.schema).add(("c", "b"), "affine").add(("b", "a"), {"a": "prefix", "b": "range"})
    budget = Budget(pcost=1.0)
    assert plan(one, budget).rmse == pytest.approx(plan(other, budget).rmse, rel=1e-6)


def test_spaces_alike_keep_their_own_centers_and_labels():
    workload = Workload.all_ways(shapes.numeric(4, 4, 4), (1,), "prefix")
    own = {"b": np.array([0.4, 0.3, 0.2, 0.1])}
    for told in ({"split": Split(centers=own)}, {"labels": {"b": "b"}}):
        parts = decompose(workload, **told)
        numbers = [parts.spaces[name,][0] for name in "abc"]
        assert numbers[0] == numbers[2] != numbers[1]
        found = parts.subworkloads[numbers[1]]
        assert (found.centers, found.labels) == (
            (own["b"] if "split" in told else None,),
            (told.get("labels", {}).get("b"),),
        )


def test_groups_that_ask_alike_in_another_order_are_not_mixed_up():
    families = ("prefix", "range")
    workload = Workload(shapes.numeric(4, 4, 4))
    for names in (("a", "b"), ("c", "b")):
        workload = workload.add(names, dict(zip(names, families, strict=True)))
    parts = decompose(workload)
    for space in (("a",), ("b",), ("c",), ("a", "b"), ("b", "c")):
        number, scale = parts.spaces[space]
        terms = parts.subworkloads[number].terms
        found = sum(t.coefficient * dense(t, parts.factors, (4,) * len(space)) for t in terms)
        expected = expected_gram(workload, space)
        np.testing.assert_allclose(scale * found, expected, rtol=1e-9, atol=1e-10 * np.trace(expected))
