"""Query families: rows, products, Gram matrices and texts, against enumeration of cells."""

import importlib
import itertools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import WorkloadError
from engine.workload import (
    Attribute,
    Circular,
    Custom,
    Hierarchy,
    HierarchyLevel,
    Level,
    Levels,
    Marginal,
    Range,
    Width,
)
from engine.workload.families import (
    FAMILIES,
    Abs,
    Affine,
    Prefix,
    Random,
    Total,
    family,
    family_from_dict,
)
from tests import oracles

family_module = importlib.import_module("engine.workload.families")
quick = settings(max_examples=15, deadline=None, derandomize=True, database=None)


def codes(*sizes):
    """Return attributes of these sizes, each with a hierarchy of areas of four and of two cells."""
    return [
        replace(Attribute.of_size("xyz"[i], n), hierarchies=(areas_of(n),))
        for i, n in enumerate(sizes)
    ]


def areas_of(size):
    """Return a hierarchy with a level of areas of four cells and a level of areas of two cells."""
    levels = [
        HierarchyLevel(name=name, labels=labels, area_of_cell=np.arange(size) // width)
        for name, width in (("four", 4), ("two", 2))
        for labels in [[f"{name} {i}" for i in range(-(-size // width))]]
    ]
    return Hierarchy(name="areas", levels=levels)


numbers = st.integers(-5000, 5000).map(lambda v: v / 1000)


@st.composite
def sizes_for(draw, name):
    """Draw the sizes of the attributes of a family.

    Joint families have two attributes, random and custom queries one or two, all others one.
    """
    joint = name in ("affine", "abs") or (name in ("random", "custom") and draw(st.booleans()))
    return tuple(draw(st.integers(1, 8)) for _ in range(1 + joint))


@st.composite
def value(draw, name, sizes):
    """Draw a family with the given name and random parameters for attributes of these sizes."""
    if name == "width":
        return Width(draw(st.integers(1, sizes[0])))
    if name == "random":
        count, seed = draw(st.none() | st.integers(1, 9)), draw(st.integers(0, 3))
        return Random(p=draw(st.sampled_from([0.1, 0.5, 0.9])), count=count, seed=seed)
    if name == "level":
        return Level(draw(st.sampled_from(["four", "two"]))).bind(codes(*sizes))
    if name == "levels":
        levels = draw(st.permutations(["four", "two", "x"]))[: draw(st.integers(1, 3))]
        weights = draw(st.none() | st.just([2.0, 0.0, 0.5][: len(levels)]))
        return Levels(levels, weights).bind(codes(*sizes))
    if name == "custom":
        cells = math.prod(sizes)
        drawn = draw(st.lists(numbers, min_size=cells, max_size=min(5 * cells, 80)))
        return Custom(np.array(drawn[: len(drawn) // cells * cells]).reshape(-1, cells))
    return family(name)


@st.composite
def sized_family(draw, name):
    """Draw a family with the given name, and sizes of attributes that it accepts."""
    sizes = draw(sizes_for(name))
    return draw(value(name, sizes)), sizes


every_family = pytest.mark.parametrize("name", [f.name for f in FAMILIES])


def test_families_have_meanings_and_known_names():
    # the names in TEXTS have a test of their texts
    assert {f.name for f in FAMILIES} == {*TEXTS, "random", "custom", "level", "levels"}
    assert all(f.meaning and f.meaning[-1] in ".?" for f in FAMILIES)


@every_family
@quick
@given(data=st.data())
def test_family_rows_match_oracle(name, data):
    query_family, sizes = data.draw(sized_family(name))
    W = oracles.family_rows(query_family, codes(*sizes))
    assert query_family.name == name
    assert query_family.bind(codes(*sizes)) == query_family
    assert query_family.count(sizes) == len(W)
    np.testing.assert_array_equal(query_family.rows(sizes), W)
    start = data.draw(st.integers(0, len(W)))
    stop = data.draw(st.none() | st.integers(0, len(W) + 2))
    np.testing.assert_array_equal(query_family.rows(sizes, start, stop), W[start:stop])


@every_family
@quick
@given(data=st.data())
def test_family_products_match_rows(name, data):
    query_family, sizes = data.draw(sized_family(name))
    W = query_family.rows(sizes)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    cells = W.shape[1]
    exact = {"rtol": 1e-10, "atol": 1e-9}
    weights = rng.uniform(0, 3, len(W))
    weights[rng.random(len(W)) < 0.3] = 0.0
    np.testing.assert_allclose(query_family.gram(sizes), W.T @ W, **exact)
    weighted_gram = query_family.gram(sizes, weights)
    np.testing.assert_allclose(weighted_gram, W.T @ (weights[:, None] * W), **exact)
    for shape in ((cells,), (cells, 3), (cells, 2, 2)):
        table = rng.standard_normal(shape)
        answers = query_family.dot(sizes, table)
        np.testing.assert_allclose(answers, np.tensordot(W, table, axes=1), **exact)
    half = rng.standard_normal((cells, cells))
    symmetric = half + half.T
    variances = query_family.quadratic(sizes, symmetric)
    np.testing.assert_allclose(variances, np.diag(W @ symmetric @ W.T), **exact)


@every_family
@quick
@given(data=st.data())
def test_family_dot_is_adjoint_of_rows(name, data):
    """<W x, y> = <x, W^T y> and <W x, W z> = <x, G z>, with W from the oracle."""
    query_family, sizes = data.draw(sized_family(name))
    W = oracles.family_rows(query_family, codes(*sizes))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x = rng.standard_normal(W.shape[1])
    z = rng.standard_normal(W.shape[1])
    y = rng.standard_normal(len(W))
    assert query_family.dot(sizes, x) @ y == pytest.approx(x @ (W.T @ y), rel=1e-10, abs=1e-9)
    product_of_answers = query_family.dot(sizes, x) @ query_family.dot(sizes, z)
    expected = x @ query_family.gram(sizes) @ z
    assert product_of_answers == pytest.approx(expected, rel=1e-10, abs=1e-9)


@every_family
@quick
@given(data=st.data())
def test_family_chunks_concatenate_to_rows(name, data):
    query_family, sizes = data.draw(sized_family(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family_module, "CHUNK_ENTRIES", data.draw(st.integers(1, 40)))
        starts, chunks = zip(*query_family.chunks(sizes), strict=True)
    assert starts == (0, *itertools.accumulate(map(len, chunks[:-1])))
    np.testing.assert_array_equal(np.concatenate(chunks), query_family.rows(sizes))


@every_family
@quick
@given(data=st.data())
def test_family_json_round_trips(name, data):
    query_family, sizes = data.draw(sized_family(name))
    loaded = family_from_dict(json.loads(json.dumps(query_family.to_dict()))).bind(codes(*sizes))
    assert loaded == query_family
    assert hash(loaded) == hash(query_family)
    assert loaded.key == query_family.key
    np.testing.assert_array_equal(loaded.rows(sizes), query_family.rows(sizes))


@every_family
@quick
@given(data=st.data())
def test_family_key_identifies_rows(name, data):
    first, sizes = data.draw(sized_family(name))
    names_of_arity = [f.name for f in FAMILIES if f.arity in (None, len(sizes))]
    second = data.draw(value(data.draw(st.sampled_from(names_of_arity)), sizes))
    if first.key == second.key:
        np.testing.assert_array_equal(first.rows(sizes), second.rows(sizes))
    if first == second:
        assert first.key == second.key
    hash(first.key)  # raises a TypeError if a key is not hashable


def test_different_families_have_different_keys():
    eye = np.eye(6)
    families = [
        *(Width(w) for w in range(1, 7)),
        *(f() for f in (Marginal, Prefix, Range, Circular, Total)),
        *(Random(seed=s, count=c, p=p) for s in (0, 1) for c in (2, 3) for p in (0.3, 0.5)),
        Custom(eye),
        Custom(eye[::-1]),
        Custom(eye[:3]),
        Custom(2 * eye),
        Custom(eye, labels=list("abcdef")),
    ]
    assert len({f.key for f in families}) == len(families)
    assert Affine().key != Abs().key
    assert Custom(np.ones((2, 6))).key != Custom(np.ones((3, 4))).key


def test_custom_labels_with_predicates_are_refused():
    with pytest.raises(WorkloadError, match="Omit the labels"):
        Custom(predicates=["a == 1"], labels=["one"])


def test_custom_predicates_are_bound_to_attributes():
    attributes = [Attribute.numeric("age", [0, 20, 65]), Attribute.categorical("sex", ["F", "M"])]
    query_family = Custom(predicates=["age < 20 and sex == 'F'", "sex != 'F'"])
    bound = query_family.bind(attributes)
    np.testing.assert_array_equal(bound.rows((2, 2)), [[1, 0, 0, 0], [0, 1, 0, 1]])
    expected = {"name": "custom", "predicates": list(query_family.predicates)}
    assert bound.to_dict() == query_family.to_dict() == expected
    assert bound.text(attributes, 1) == "sex != 'F'"
    assert bound == query_family
    assert bound.bind(attributes).key == bound.key


def test_family_names_give_families():
    for f in FAMILIES:
        if f.name not in ("width", "custom", "level", "levels"):
            assert family(f.name) == f()
    assert family(Width(3)) == Width(3)


# ---- texts
# ------------------------------------------------------------------------------------------------------


def holds(text, values):
    """Return whether the text of a query, evaluated as Python, is true in a cell.

    ``values`` maps the name of each attribute to its value in the cell.
    """
    if text == "":
        return True
    if around := re.fullmatch(r"(\w+) from (\d+) around to (\d+)", text):
        name, first, last = around[1], int(around[2]), int(around[3])
        return values[name] >= first or values[name] <= last
    for word, value in sorted(values.items(), reverse=True):
        text = re.sub(rf"\b{word}\b", repr(value), text)
    text = re.sub(r"\|(.*)\|", r"abs(\1)", text)
    return bool(eval(re.sub(r"(?<![<>=])=(?!=)", "==", text), {"abs": abs}))


TEXTS = ["marginal", "prefix", "suffix", "range", "circular", "total", "width", "affine", "abs"]


@pytest.mark.parametrize("name", TEXTS)
@quick
@given(data=st.data())
def test_family_text_describes_counted_cells(name, data):
    query_family, sizes = data.draw(sized_family(name))
    attributes, W = codes(*sizes), query_family.rows(sizes)
    names = [a.name for a in attributes]
    for q in range(len(W)):
        text = query_family.text(attributes, q)
        cells = itertools.product(*map(range, sizes))
        described = [float(holds(text, dict(zip(names, cell, strict=True)))) for cell in cells]
        assert described == list(W[q]), text


@every_family
@quick
@given(data=st.data())
def test_family_texts_are_unique(name, data):
    query_family, sizes = data.draw(sized_family(name))
    texts = [query_family.text(codes(*sizes), q) for q in range(query_family.count(sizes))]
    assert len(set(texts)) == len(texts)


EDGES = {
    "plain": [0, 20, 30, 65, 120],
    "dates": [20240101, 20240102, 20240103, 20240104, 20240105],
    "large": [1e6, 1e6 + 1, 1e6 + 2, 1e6 + 3, 1e6 + 4],
    "fine": [0.1, 0.10000001, 0.10000002, 0.10000003, 0.10000004],
    "negative": [-40.5, -10, 0, 1e-9, 3],
}


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize(
    "query_family", [Marginal(), Prefix(), Range(), Circular(), Width(2)], ids=lambda f: f.name
)
def test_family_texts_contain_exact_edges(query_family, edges):
    attribute = Attribute.numeric("x", EDGES[edges])
    texts = [query_family.text([attribute], q) for q in range(query_family.count((4,)))]
    assert len(set(texts)) == len(texts)
    number = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
    for text in texts:
        numbers_in_text = [
            float(v.replace(",", "")) for v in number.findall(text.replace("x", " "))
        ]
        assert numbers_in_text, text
        assert set(numbers_in_text) <= set(map(float, EDGES[edges])), text


@pytest.mark.parametrize(
    "query_family", [Prefix(), Range(), Width(1), Circular()], ids=lambda f: f.name
)
@pytest.mark.parametrize("edges", [[0, 10], [0, 10, 20], [0, 10, 20, 30]], ids=len)
def test_family_text_closes_last_bin(query_family, edges):
    attribute = Attribute.numeric("x", edges)
    n = attribute.size
    for q, row in enumerate(query_family.rows((n,))):
        text = query_family.text([attribute], q)
        if row[-1] and "around" not in text:
            assert text.endswith(("]", f"<= {edges[-1]}")), text


def test_family_text_contains_labels():
    sex = Attribute.categorical("sex", ["F", "M"])
    assert [Marginal().text([sex], q) for q in range(2)] == ["sex = F", "sex = M"]
    assert Total().text([sex], 0) == ""
    assert (
        Random(seed=4).text([sex, *codes(3)], 2)
        == "random set 2 of cells of sex x x (p 0.3, seed 4)"
    )
    assert Custom(np.eye(2), labels=["women", "men"]).text([sex], 1) == "men"
    age = Attribute.numeric("age", [0, 20, 65])
    assert Affine().text([age, *codes(3)], 2) == "cell number of age + x <= 2"


def test_grams_of_many_intervals_equal_closed_forms():
    """Counts and Gram matrices of all ranges and circular ranges equal their closed forms."""
    n = 1000
    cells = np.arange(n)
    first, last = np.minimum.outer(cells, cells), np.maximum.outer(cells, cells)
    np.testing.assert_array_equal(Range().gram((n,)), (first + 1) * (n - last))
    assert Range().count((n,)) == n * (n + 1) // 2
    assert Circular().count((n,)) == n * n
    # Count the circular intervals of each length that contain cell 0 and cell ``offset``.  An
    # interval that contains both either goes up from cell 0 to ``offset``, or goes up from
    # ``offset`` past the last cell to cell 0.
    lengths, offsets = np.arange(1, 201)[:, None], np.arange(200)
    upwards = np.maximum(lengths - offsets, 0)
    past_last_cell = np.where(offsets > 0, np.maximum(lengths - (200 - offsets), 0), 0)
    expected = (upwards + past_last_cell).sum(axis=0)
    np.testing.assert_array_equal(Circular().gram((200,))[0], expected)


def test_random_family_is_reproducible():
    """The seed, the sizes and p determine the queries."""
    family_of_seed_9 = Random(p=0.3, count=50, seed=9)
    rows = family_of_seed_9.rows((4, 5))
    np.testing.assert_array_equal(rows, Random(p=0.3, count=50, seed=9).rows((4, 5)))
    assert not np.array_equal(rows, Random(p=0.3, count=50, seed=10).rows((4, 5)))
    assert not np.array_equal(rows, family_of_seed_9.rows((5, 4)))
    # The standard error of the mean of 20,000 entries is 0.003.
    assert abs(Random(p=0.3, count=2000, seed=1).rows((10,)).mean() - 0.3) < 0.02
    assert Random().count((4, 5)) == 60
