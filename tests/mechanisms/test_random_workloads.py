"""Every mechanism on random workloads, and queries with very small weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError, NotApplicable, PlanError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Custom, Width, Workload
from engine.workload.families import Random
from tests import oracles, shapes
from tests.mechanisms.checks import (
    check_any_query,
    check_certificate,
    check_optimal,
    check_privacy,
    check_round_trip,
    check_summary,
    check_variances,
)
from tests.mechanisms.requests import CASES, budget_for

pytestmark = pytest.mark.usefixtures("toy_is_registered", "few_levels")


@st.composite
def workloads(draw):
    """Draw up to four groups of any family on up to three attributes of at most five cells."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    workload = Workload(shapes.numeric(*sizes))
    for _ in range(draw(st.integers(1, 4))):
        names = draw(st.permutations(workload.schema.names))[: draw(st.integers(0, len(sizes)))]
        cells = workload.schema.cells(names)
        choices = ["each", "random", "custom"]
        if len(names) == 2:
            choices += ["affine", "abs"]
        kind = draw(st.sampled_from(choices)) if names else "total"
        weight = draw(st.sampled_from([1.0, 1.0, 0.25, 6.0, 0.0]))
        if kind == "random":
            families = Random(p=0.5, count=draw(st.integers(1, 8)), seed=draw(st.integers(0, 99)))
        elif kind == "custom":
            entries = st.lists(st.integers(-2, 3), min_size=cells, max_size=cells)
            families = Custom(draw(st.lists(entries, min_size=1, max_size=4)))
        elif kind == "each":
            family = st.sampled_from(["marginal", "prefix", "range", "circular", "total", Width(1)])
            families = {name: draw(family) for name in names}
        else:
            families = kind
        workload = workload.add(names, families, weight=weight)
        count = workload.groups[-1].count
        if draw(st.integers(0, 4)) == 0:
            query_weights = draw(
                st.lists(st.sampled_from([1.0, 0.0, 3.0]), min_size=count, max_size=count)
            )
            without_last = Workload(workload.schema, workload.groups[:-1])
            workload = without_last.add(names, families, weight=weight, query_weights=query_weights)
    return workload


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(workload=workloads(), case=st.sampled_from([c.values for c in CASES]))
def test_plan_random_workload_matches_explicit_matrices(workload, case):
    mechanism, options = case
    rows, weights = oracles.workload_rows(workload), oracles.query_weights(workload)
    if not any(np.any(W[w > 0]) for W, w in zip(rows, weights, strict=True)):
        with pytest.raises(EngineError):
            plan(workload, budget_for(mechanism, 1.0), mechanism, **options)
        return
    try:
        result = plan(workload, budget_for(mechanism, 1.0), mechanism, **options)
    except NotApplicable:
        return
    explicit = oracles.explicit(result)
    check_privacy(result, explicit)
    check_summary(result, check_variances(result, explicit, rows))
    check_any_query(result, explicit, rows)
    check_certificate(result)
    check_round_trip(result)
    if (mechanism, options) == ("querysmasher", {}):
        check_optimal(result, oracles.class_optimum(workload, 1.0, 1e-5))


@pytest.mark.parametrize("scale", [1e-15, 1e-13, 1e-11, 1e-9, 1e-6])
def test_plan_light_queries_are_exact_or_refused(scale):
    schema = shapes.numeric(4, 3)
    light_group = Workload(schema).add(("a", "b"), "affine")
    light_group = light_group.add(("a", "b"), "marginal", weight=scale)
    heavy_cell = Workload(schema).add(
        "a", Custom([[1 / scale, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1]])
    )
    heavy_total = Workload(schema).add("b", Custom([[1 / scale] * 3, [1, 0, 0]]))
    for workload in (light_group, heavy_cell, heavy_total):
        try:
            result = plan(workload, Budget(pcost=1.0))
        except PlanError as error:
            assert scale < 1e-5
            assert "1e" in str(error) or "weight" in str(error)  # noqa: PT017
            continue
        explicit = oracles.explicit(result)
        for i, W in enumerate(oracles.workload_rows(workload)):
            np.testing.assert_allclose(
                result.variances(i), explicit.variances(W), rtol=1e-6, atol=1e-9
            )
