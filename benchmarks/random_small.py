"""Tuned plans of random small workloads, compared with the bound of all mechanisms.

    python -m benchmarks.random_small [--write]

Numbers are the weighted RMSE at privacy cost 1. "uniform" is the published split, "tuned" the tuned
split, "bound" a certified lower bound for every matrix mechanism from the dual on the full domain.
"apart" is the tuned plan without unions of spaces, as on domains that are too large for unions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from unittest import mock

import numpy as np

from benchmarks import options, table
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import DualProblem, Factor, FullDomain, Options
from engine.residuals.decomposition import part_rows
from engine.workload import Attribute, Custom, Schema, Workload

ROWS = 36
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
ONE_WAY = ("prefix", "range", "marginal", "circular", "total")


def schema_of(sizes: np.ndarray) -> Schema:
    """Schema of numeric attributes a, b, ... of these sizes."""
    return Schema([Attribute.of_size("abcdefgh"[i], int(n)) for i, n in enumerate(sizes)])


def product_workload(rng: np.random.Generator) -> Workload:
    """Two to five groups with a random family per attribute, weights from 1/4 to 4."""
    workload = Workload(schema_of(rng.integers(3, 9, size=int(rng.integers(2, 4)))))
    for _ in range(int(rng.integers(2, 6))):
        names = rng.permutation(workload.schema.names)[
            : int(rng.integers(1, len(workload.schema.names) + 1))
        ]
        families = {str(name): str(rng.choice(ONE_WAY)) for name in names}
        workload = workload.add(
            tuple(families), families, weight=float(rng.choice([0.25, 0.5, 1.0, 2.0, 4.0]))
        )
    return workload


def joint_workload(rng: np.random.Generator) -> Workload:
    """One to four pairs with sums, differences or custom queries, and some single attributes."""
    n, d = int(rng.integers(3, 7)), int(rng.integers(2, 5))
    workload = Workload(schema_of(np.full(d, n)))
    for _ in range(int(rng.integers(1, 5))):
        pair = tuple(str(name) for name in rng.permutation(workload.schema.names)[:2])
        kind = str(rng.choice(["affine", "abs", "custom", "prefix"], p=[0.4, 0.3, 0.2, 0.1]))
        query_family = (
            Custom((rng.random((int(rng.integers(3, 9)), n * n)) < 0.4).astype(float))
            if kind == "custom"
            else kind
        )
        workload = workload.add(pair, query_family, weight=float(rng.choice([0.5, 1.0, 2.0])))
    for name in workload.schema.names:
        if rng.random() < 0.5:
            workload = workload.add(name, str(rng.choice(["prefix", "range"])))
    return workload


def global_bound(workload: Workload) -> float:
    """Return a lower bound on the weighted RMSE of every matrix mechanism at privacy cost 1."""
    order = workload.schema.names
    gram = np.zeros((workload.schema.size,) * 2)
    for group in workload.groups:
        rows = np.ones((1, 1))
        placed: list[str] = []
        for part in group.parts:
            rows = np.kron(rows, part_rows(part))
            placed += [group.attributes[a] for a in part.axes]
        rest = [name for name in order if name not in placed]
        full = np.kron(rows, np.ones((1, workload.schema.cells(rest))))
        table = full.reshape(len(rows), *workload.schema.sizes([*placed, *rest]))
        table = table.transpose(0, *(1 + [*placed, *rest].index(name) for name in order)).reshape(
            len(rows), -1
        )
        gram += group.weight * table.T @ table
    problem = DualProblem(
        lift=FullDomain(len(gram)), factor=Factor(sizes=(len(gram),), matrix=gram)
    )
    mass, _ = problem.maximise(Options(gap=1e-5))
    return math.sqrt(problem.bound(mass) / workload.queries)


def describe(workload: Workload) -> str:
    """Return sizes and groups as text."""
    sizes = "x".join(str(a.size) for a in workload.schema.attributes)
    groups = (f"{g.weight:g} {''.join(g.attributes)}:{g.family_text}" for g in workload.groups)
    return f"[{sizes}] " + ", ".join(groups)


def compare(
    title: str,
    draw: Callable[[np.random.Generator], Workload],
    seed: int,
    show: Callable[..., None],
) -> None:
    """Show the lines of one distribution, every row and the quantiles of its excess over the bound."""
    rng, excess, separate_excess, worse, seconds = np.random.default_rng(seed), [], [], 0, []
    show(
        f"{title}, seed {seed}",
        f"{'uniform':>9} {'tuned':>9} {'apart':>9} {'bound':>9} {'excess':>8}  workload",
    )
    for _ in range(ROWS):
        workload = draw(rng)
        uniform = plan(workload, Budget(pcost=1.0)).weighted_rmse
        start = time.perf_counter()
        tuned = plan(workload, Budget(pcost=1.0), centers="tuned").weighted_rmse
        seconds.append(time.perf_counter() - start)
        with mock.patch("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", 0):
            separate = plan(workload, Budget(pcost=1.0), centers="tuned").weighted_rmse
        bound = global_bound(workload)
        excess.append(tuned / bound - 1.0)
        separate_excess.append(separate / bound - 1.0)
        worse += max(tuned, separate) > uniform * (1.0 + 1e-5)
        show(
            f"{uniform:>9.4f} {tuned:>9.4f} {separate:>9.4f} {bound:>9.4f} {excess[-1]:>8.3%} "
            f" {describe(workload)}"
        )
    for name, values in (("tuned", excess), ("apart", separate_excess)):
        quantiles = ", ".join(
            f"{q:.0%}: {v:.3%}"
            for q, v in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)
        )
        show(f"excess of {name} over the bound, quantiles  {quantiles}")
    show(f"{ROWS} workloads, above uniform: {worse}, slowest plan {max(seconds):.1f} s")


def main() -> None:
    """Print one row per workload."""
    parser = options(__file__, __doc__)
    args = parser.parse_args()
    with table(__file__, write=args.write) as show:
        compare("Product groups, 2-3 attributes of 3-8 cells", product_workload, 1, show)
        show("")
        compare("Joint groups, 2-4 attributes of 3-6 cells", joint_workload, 2, show)


if __name__ == "__main__":
    main()
