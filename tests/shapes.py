"""Small workloads of many shapes, each on a domain of a few hundred cells.

Every mechanism and stage is tested on all of them, which exposes errors of order, weights, shared
strategies or missing parts.
"""

import numpy as np

from engine.workload import (
    Attribute,
    Circular,
    CodeList,
    Custom,
    Level,
    Levels,
    Schema,
    Width,
    Workload,
)
from engine.workload.families import Random, Total


def numeric(*sizes):
    """Return a schema of ordered attributes a, b, c, ... with these sizes."""
    return Schema([Attribute.of_size("abcdefgh"[i], n) for i, n in enumerate(sizes)])


def mixed():
    """Return a schema with 4 bins of unequal width, 3 labels and 2 codes."""
    return Schema(
        [
            Attribute.numeric("age", [0, 20, 30, 65, 120]),
            Attribute.categorical("sex", ["F", "M", "X"]),
            Attribute.of_size("wave", 2),
        ]
    )


def nested():
    """Return queries on the attribute sets a, ab and abc."""
    w = (
        Workload(numeric(4, 3, 3))
        .add("a", "prefix")
        .add(("a", "b"), {"a": "prefix", "b": "marginal"})
    )
    return w.add(("a", "b", "c"), {"a": "range", "b": "marginal", "c": "prefix"})


def disjoint():
    """Return queries on two pairs without a common attribute."""
    w = Workload(numeric(3, 3, 2, 4)).add(("a", "b"), {"a": "prefix", "b": "range"})
    return w.add(("c", "d"), {"c": "marginal", "d": "circular"})


def cyclic():
    """Return queries on all three pairs of three attributes."""
    w = (
        Workload(numeric(4, 3, 4))
        .add(("a", "b"), "prefix")
        .add(("b", "c"), {"b": "range", "c": "marginal"})
    )
    return w.add(("c", "a"), "affine")


def duplicate_groups():
    """Return groups that occur two or three times, some with other weights."""
    w = Workload(numeric(4, 3)).add(("a", "b"), "prefix").add(("a", "b"), "prefix", weight=3.0)
    return w.add("a", "range").add("a", "range").add(("a", "b"), "prefix", weight=0.5)


def permuted_group():
    """Return groups whose attributes are not in the order of the schema."""
    w = Workload(numeric(4, 2, 3)).add(
        ("c", "a", "b"), {"a": "prefix", "b": "marginal", "c": "range"}
    )
    return w.add(("b", "a"), {"b": "prefix", "a": Width(3)})


def single_value():
    """Return queries on a domain with an attribute of one cell."""
    w = (
        Workload(numeric(1, 5, 3))
        .add(("a", "b"), "prefix")
        .add(("b", "c", "a"), "range")
        .add("a", "marginal")
    )
    return w.add(("a", "c"), "affine")


def zero_weight_covered():
    """Return groups of weight 0 whose queries other groups measure."""
    w = Workload(numeric(4, 3)).add(("a", "b"), "range").add(("a", "b"), "prefix", weight=0.0)
    return w.add("b", "circular", weight=0.0).add((), weight=0.0)


def zero_weight_uncovered():
    """Return groups of weight 0, some with queries that no other group measures."""
    w = Workload(numeric(4, 3, 2)).add(("a", "b"), "prefix").add(("b", "c"), "marginal", weight=0.0)
    return w.add("c", "total", weight=0.0).add(
        "a", Custom([[1, 0, 0, 0], [1, 1, 1, 1]]), weight=0.0
    )


def zero_weight_partly_measured():
    """Return groups of weight 0; other groups measure only some of their queries."""
    windows, ends = Width(2), Custom([[1, 0, 0, 0], [1, 0, 0, -1], [1, 1, 0, 0]])
    w = Workload(numeric(4, 3)).add(("a", "b"), {"a": windows, "b": "prefix"})
    return w.add("a", ends, weight=0.0).add(("b", "a"), {"a": ends, "b": "marginal"}, weight=0.0)


def query_weighted():
    rng = np.random.default_rng(5)
    w = Workload(numeric(5, 4)).add("a", "prefix", query_weights=[1, 0.25, 4, 2, 1])
    w = w.add(
        ("b", "a"),
        {"a": "range", "b": "prefix"},
        weight=2.0,
        query_weights=rng.uniform(0.1, 3.0, 60),
    )
    return w.add(("a", "b"), "affine", query_weights=rng.uniform(0.5, 1.5, 8))


def query_weights_with_zeros():
    w = Workload(numeric(3, 3)).add(("a", "b"), "prefix", query_weights=[0, 1, 2, 0, 0, 1, 0, 0, 3])
    return w.add("a", "range", query_weights=[1, 0, 0, 0, 2, 0])


def one_weighted_query():
    """Return a marginal in which only one query has a weight."""
    return Workload(numeric(3, 4)).add(("a", "b"), "marginal", query_weights=np.eye(12)[5])


def total_only():
    return Workload(numeric(3, 2)).add((), "total")


def empty_set():
    """Return groups with the family total, one of them without attributes."""
    w = Workload(numeric(4, 3)).add((), weight=2.0).add(("a", "b"), {"a": "marginal", "b": "total"})
    return w.add("b", "total").add("a", "prefix")


def same_size():
    """Return queries of different families on attributes of equal size.

    A cache that is keyed by the size alone would return a wrong strategy.
    """
    w = (
        Workload(numeric(5, 5))
        .add("a", "prefix")
        .add("b", "circular")
        .add(("a", "b"), {"a": "prefix", "b": "marginal"})
    )
    return w.add(("b", "a"), {"a": "range", "b": Width(2)})


def same_size_alone():
    """Return queries of two families on attributes of equal size, without a pair."""
    return (
        Workload(numeric(6, 6))
        .add("a", "prefix")
        .add("b", Custom([[1, 0, 0, 0, 0, 9], [0, 5, 0, 0, 1, 0], np.arange(6)]))
    )


def mixed_three():
    """Return affine queries on a pair, prefixes of three attributes and ranges of one."""
    w = Workload(numeric(4, 5, 3)).add(("a", "b"), "affine").add(("a", "b", "c"), "prefix")
    return w.add("c", "range", weight=0.2)


def custom_matrix():
    rng = np.random.default_rng(11)
    w = Workload(numeric(3, 4)).add(("a", "b"), Custom(rng.standard_normal((5, 12))))
    return w.add("b", Custom([[1, -1, 0, 0], [2, -2, 0, 0], [0.5, 0.5, 0.5, 0.5]])).add(
        ("b", "a"), Custom(rng.random((2, 12)))
    )


def contrasts_only():
    """Return queries whose coefficients sum to 0 along each of two attributes.

    Only the residual space of the pair is measured.
    """
    return Workload(numeric(3, 2)).add(
        ("a", "b"), {"a": Custom([[1, 0, -1], [1, -2, 1]]), "b": Custom([[1, -1]])}
    )


def predicates():
    conditions = Custom(
        predicates=[
            "age >= 30 and sex == 'F'",
            "age < 65 or wave == 1",
            "not (sex in ['M', 'X'])",
            "20 <= age < 65 and sex != 'X' and wave != 0",
        ]
    )
    w = (
        Workload(mixed())
        .add(("age", "sex", "wave"), conditions)
        .add(("sex", "age"), {"age": "prefix", "sex": "marginal"})
    )
    return w.add(("wave", "age"), Custom(predicates=["age < 20 and wave == 1", "wave == 0"]))


def arithmetic_predicates():
    conditions = Custom(
        predicates=[
            "a + b <= 3",
            "abs(a - b) == 1",
            "2 * a > b + 1 and not a == 3",
            "a in (0, 2) or -b < -1",
        ]
    )
    return (
        Workload(numeric(4, 3))
        .add(("a", "b"), conditions)
        .add(("b", "a"), Custom(predicates=["a - b >= 0"]), weight=4.0)
    )


def random_sets():
    w = (
        Workload(numeric(3, 4, 2))
        .add(("a", "b"), Random(p=0.3, count=9, seed=1))
        .add("b", Random(seed=2))
    )
    return w.add(("c", "b", "a"), Random(p=0.5, count=30, seed=3))


def circular():
    return (
        Workload(numeric(5, 4))
        .add(("a", "b"), "circular")
        .add("a", "circular")
        .add("b", "marginal")
    )


def windows():
    """Return sliding windows of three widths."""
    w = Workload(numeric(7, 3)).add(("a", "b"), {"a": Width(3), "b": "marginal"}).add("a", Width(7))
    return w.add("a", Width(2), weight=2.0)


def windows_coupled():
    """Return sliding windows on two attributes that do not span the space of all cells.

    The dual problem is large enough for the solver to use its symmetries.
    """
    return (
        Workload(numeric(8, 8))
        .add(("a", "b"), Width(4))
        .add(("a", "b"), Width(6), weight=2.0)
        .add("a", Width(4))
    )


def mapping_families():
    """Return groups that have another family for each attribute."""
    w = Workload(numeric(4, 3, 3)).add(
        ("a", "b", "c"), {"a": Width(2), "b": Circular(), "c": Total()}
    )
    return w.add(("c", "b"), {"b": Random(count=4, seed=8), "c": Custom([[1, 2, 3]])})


def levels():
    """Return queries on levels of an attribute with two hierarchies.

    One branch ends before the lowest level.  In a product with sex, the levels have weights.
    """
    tree = {"A": {"a": ["1", "2"], "b": ["3", "4", "5"]}, "B": {"c": ["6"], "d": ["7", "8"]}}
    regions = CodeList.from_labels(
        {**tree, "C": ["9"]}, name="regions", levels=["region", "district"]
    )
    zones = CodeList.from_labels(
        {"north": ["1", "9", "3", "8"], "south": list("24567")}, name="zones", levels=["zone"]
    )
    place = Attribute.hierarchy("place", regions, missing="unknown").with_hierarchy(zones)
    workload = Workload(Schema([Attribute.categorical("sex", ["F", "M"]), place]))
    weighted_levels = Levels(["district", "region"], weights=[1, 3])
    workload = workload.add(("place", "sex"), {"place": weighted_levels, "sex": "marginal"})
    zones_by_sex = {"place": Level("zone"), "sex": "marginal"}
    workload = workload.add(("sex", "place"), zones_by_sex, weight=2.0)
    workload = workload.add("place", Levels(["region", "place"]))
    return workload.add("place", Level("place"), weight=0.5)


def suffixes():
    w = (
        Workload(numeric(5, 4, 2))
        .add("a", "suffix")
        .add(("a", "b"), {"a": "suffix", "b": "prefix"})
    )
    return w.add(("b", "c"), {"b": "suffix", "c": "marginal"}).add("a", "prefix", weight=2.0)


def weights_ratio():
    """Return groups whose weights differ by factors of up to 1e10."""
    w = Workload(numeric(5, 4)).add("a", "prefix", weight=1e5).add("a", "range", weight=1e-5)
    return w.add(("a", "b"), "affine", weight=1e-4).add(("a", "b"), "prefix", weight=1e4)


def reversed_pair():
    """Return queries on a pair in both orders of its attributes."""
    w = (
        Workload(numeric(4, 6))
        .add(("b", "a"), "affine")
        .add(("a", "b"), "abs")
        .add(("b", "a"), Random(count=5, seed=4))
    )
    return w.add("b", "prefix")


def coupled():
    """Return ranges and prefixes of a pair: their Gram matrix is a sum of two Kronecker products.

    It is not a single Kronecker product, so the pair is solved jointly.
    """
    return Workload(numeric(5, 4)).add(("a", "b"), "range").add(("a", "b"), "prefix", weight=3.0)


def coupled_three():
    """Return ranges and prefixes of three attributes, and affine queries on a pair."""
    w = Workload(numeric(3, 4, 3)).add(("a", "b", "c"), "range").add(("b", "c", "a"), "prefix")
    return w.add(("a", "c"), "affine")


def all_affine_pairs():
    w = Workload.all_ways(numeric(4, 4, 4), ways=(2,), family="affine")
    for name in "abc":
        w = w.add(name, "prefix")
    return w


def symmetric():
    """Return pair queries that stay the same when attributes are swapped or both reversed.

    The dual problem of the pair is large enough for symmetry reduction.
    """
    return (
        Workload(numeric(8, 8)).add(("a", "b"), "abs").add(("a", "b"), "range").add("a", "prefix")
    )


def half_symmetric():
    """Return queries on two equal-sized attributes that change when the attributes are swapped."""
    w = (
        Workload(numeric(8, 8))
        .add(("a", "b"), {"a": "range", "b": "prefix"})
        .add(("a", "b"), "affine")
    )
    return w.add(("b", "a"), {"a": "marginal", "b": Width(5)})


def wide():
    """Return prefixes of the attributes and pairs of a domain of 196 cells."""
    return Workload.all_ways(numeric(7, 7, 4), ways=(1, 2), family="prefix")


SHAPES = {
    f.__name__: f
    for f in (
        nested,
        disjoint,
        cyclic,
        duplicate_groups,
        permuted_group,
        single_value,
        zero_weight_covered,
        zero_weight_uncovered,
        zero_weight_partly_measured,
        query_weighted,
        query_weights_with_zeros,
        one_weighted_query,
        total_only,
        empty_set,
        same_size,
        same_size_alone,
        mixed_three,
        custom_matrix,
        contrasts_only,
        predicates,
        arithmetic_predicates,
        random_sets,
        circular,
        windows,
        windows_coupled,
        mapping_families,
        levels,
        suffixes,
        weights_ratio,
        reversed_pair,
        coupled,
        coupled_three,
        all_affine_pairs,
        symmetric,
        half_symmetric,
        wide,
    )
}
