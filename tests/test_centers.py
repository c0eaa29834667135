"""Tuned centers: the gradient is right, no plan gets worse, and the figures that theory and search give are reached."""

from __future__ import annotations

import numpy as np
import pytest

from engine import Attribute, Budget, Schema, Workload, plan
from engine.centers import CenterProblem, tuned_centers
from engine.decomposition import Factor, basis
from engine.errors import Cancelled
from engine.solvers import DualProblem, Options, WholeDomain
from tests.oracles import workload_rows


def sizes(*numbers: int) -> Schema:
    return Schema([Attribute.of_size(f"n{i}", n) for i, n in enumerate(numbers)])


def quiet(fraction: float, text: str) -> None:
    """Watch nothing."""


def mixed_workload() -> Workload:
    schema = Schema([Attribute.of_size("c", 3, "categorical"), *sizes(5, 5, 4).attributes])
    workload = Workload.all_ways(schema, ways=(1, 2)).add(("n0", "n1"), "affine").add(("n2",), "range", weight=3.0)
    return workload.add(("n2", "n0", "c"), {"n2": "prefix", "n0": "range", "c": "marginal"}).add(("n1",), "range")


def test_gradient_matches_differences() -> None:
    problem = CenterProblem(mixed_workload(), quiet)
    problem.options = Options(gap=1e-9, evaluations=500)
    rng = np.random.default_rng(0)
    at = {r: 0.05 * rng.normal(size=problem.sizes[r] - 1) for r in problem.tuned}

    def centers(z: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        return {r: 1.0 / problem.sizes[r] + basis(problem.sizes[r]) @ v for r, v in z.items()}

    _, gradient = problem.evaluate(centers(at))
    for role in problem.tuned:
        for k in range(problem.sizes[role] - 1):
            step = np.zeros(problem.sizes[role] - 1)
            step[k] = 1e-5
            ends = [problem.evaluate(centers(at | {role: at[role] + s * step}))[0] for s in (1.0, -1.0)]
            assert gradient[role][k] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-5)


def test_marginal_and_circular_attributes_stay_uniform() -> None:
    schema = Schema(
        [Attribute.of_size("day", 7), Attribute.of_size("kind", 4, "categorical"), Attribute.of_size("x", 5)]
    )
    workload = (
        Workload(schema).add(("day", "kind"), {"day": "circular", "kind": "marginal"}).add(("day", "x"), "prefix")
    )
    assert set(tuned_centers(Workload(schema, workload.groups[:1]), quiet)) == set()
    assert "kind" not in tuned_centers(workload, quiet)


@pytest.mark.parametrize(
    ("schema", "ways", "uniform", "tuned"),
    [
        (sizes(10, 10), (1, 2), 2.6123, 2.4491),
        (sizes(8, 8, 8), (1, 2, 3), 3.7183, 3.4069),
        (sizes(*[10] * 40), (1, 2), 33.693, 32.69),
    ],
    ids=["[10]^2", "[8]^3", "[10]^40"],
)
def test_figures(schema: Schema, ways: tuple[int, ...], uniform: float, tuned: float) -> None:
    workload = Workload.all_ways(schema, ways=ways)
    assert plan(workload, Budget(pcost=1.0)).rmse == pytest.approx(uniform, rel=2e-4)
    assert plan(workload, Budget(pcost=1.0), centers="tuned").rmse <= tuned * (1.0 + 2e-4)


def full_domain_optimum(workload: Workload) -> float:
    """RMSE that no matrix mechanism at all can beat, proven by the dual on the full domain."""
    W = np.concatenate(workload_rows(workload))
    weights = np.concatenate([np.full(g.count, g.weight) for g in workload.groups])
    gram = Factor(sizes=(W.shape[1],), matrix=(W * weights[:, None]).T @ W)
    problem = DualProblem(lift=WholeDomain(W.shape[1]), factor=gram)
    mass, _ = problem.maximise(Options(gap=1e-5))
    return float(np.sqrt(problem.bound(mass) / len(W)))


def test_one_attribute_alone_reaches_the_global_optimum() -> None:
    workload = Workload(sizes(9)).add(("n0",), "prefix").add(("n0",), "range", weight=0.3)
    made = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert made.weighted_rmse == pytest.approx(full_domain_optimum(workload), rel=2e-4)


def test_random_workloads_come_near_the_global_optimum_and_never_pass_uniform() -> None:
    rng = np.random.default_rng(3)
    excess = []
    for _ in range(12):
        schema = sizes(*rng.integers(3, 6, size=3))
        workload = Workload(schema)
        for _ in range(int(rng.integers(2, 5))):
            names = rng.permutation(schema.names)[: int(rng.integers(1, 4))]
            families = {str(n): str(rng.choice(["prefix", "range", "marginal", "total"])) for n in names}
            workload = workload.add(tuple(families), families, weight=float(rng.choice([0.5, 1.0, 4.0])))
        uniform = plan(workload, Budget(pcost=1.0)).weighted_rmse
        tuned = plan(workload, Budget(pcost=1.0), centers="tuned").weighted_rmse
        assert tuned <= uniform * (1.0 + 1e-5)
        excess.append(tuned / full_domain_optimum(workload) - 1.0)
    assert min(excess) >= -1e-4, "a plan below the global bound would be a proof of an error"
    assert np.median(excess) <= 0.005


def test_tuning_can_be_cancelled() -> None:
    with pytest.raises(Cancelled):
        plan(mixed_workload(), Budget(pcost=1.0), centers="tuned", progress=lambda done, text: "centers" not in text)
