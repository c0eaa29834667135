"""Areas of nested levels: time and memory, errors against TopDown, coverage.

    python -m benchmarks.levels [--write]

The first rows are complete plans: 3,143 counties in 51 states with levels, beside all subsets of sex
and age, and 240,000 block groups in four levels, alone and beside sex. Every row is a new process on
one thread; "s" is wall time. "MB" is the peak memory of the process.

The second table compares the weighted RMSE with that of TopDown's way: measure the total and all
levels with given shares of the budget, then take least squares estimates on the tree, whose errors
are computed exactly. "equal" has equal shares, "given" the best of geometric shares and "fitted" the
best shares that a numerical search finds. Queries have weight 1 each (areas), or every level has
weight 1 (levels). "uniform" and "tuned" are our plans by their centers; centers of attributes with
1,000 cells and more stay uniform. "ratio" is "tuned" over "fitted", and "gap" that of "tuned".

The last row is the coverage of 95% intervals over 20 releases: of the states and counties, and of
random unions of counties.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import scipy.optimize

from benchmarks import one_thread, options, peak_megabytes, run_in_new_process, table
from engine import Attribute, Budget, Level, Levels, Schema, Workload, measure, plan
from engine.workload.hierarchy import CodeList, Hierarchy, HierarchyLevel

BUDGET = Budget(pcost=1.0)
RECORDS, SEEDS, UNIONS = 1_000_000, 20, 40
# number of cells from which the tables of a case are not published
MAX_PUBLISHED_AREAS = 10_000
# counties of the states and of the District of Columbia, in alphabetical order
COUNTIES = [67, 30, 15, 75, 58, 64, 8, 3, 1, 67, 159, 5, 44, 102, 92, 99, 105, 120, 64, 16, 24, 14]
COUNTIES += [83, 87, 82, 115, 56, 93, 17, 10, 21, 33, 62, 100, 53, 88, 77, 36, 67, 5, 46, 66, 95]
COUNTIES += [254, 29, 14, 133, 39, 55, 72, 23]


def attribute(name: str, children: Sequence[Sequence[int]]) -> Attribute:
    """Return an attribute with the areas of a tree.

    ``children`` has the number of children of every area, one sequence per level; the last children
    are the cells.
    """
    parents = [np.repeat(np.arange(len(numbers)), numbers) for numbers in children]
    areas, levels = parents[-1], list[HierarchyLevel]()
    for i in reversed(range(len(parents))):
        labels = tuple(f"area {i}.{k}" for k in range(len(children[i])))
        levels.insert(0, HierarchyLevel(name=f"level {i}", labels=labels, area_of_cell=areas))
        areas = parents[i - 1][areas] if i else areas
    codes = tuple(f"cell {k}" for k in range(len(parents[-1])))
    hierarchy = Hierarchy(name="areas", levels=tuple(levels))
    return Attribute.hierarchy(name, CodeList(codes=codes, hierarchy=hierarchy))


def block_groups() -> Attribute:
    """Return 240,000 cells in 85,000 tracts, 3,143 counties and 51 states."""
    rng = np.random.default_rng(0)
    sizes = rng.lognormal(0.0, 1.4, sum(COUNTIES))
    tracts = 1 + rng.multinomial(85_000 - len(sizes), sizes / sizes.sum())
    groups = 1 + rng.multinomial(240_000 - 85_000, np.full(85_000, 1.0 / 85_000))
    return attribute("area", [COUNTIES, tracts, groups])


def _cases() -> dict[str, tuple[Attribute, list[Attribute]]]:
    sex, age = Attribute.of_size("sex", 2), Attribute.of_size("age", 18)
    return {
        "3,143 counties, sex, age": (attribute("area", [COUNTIES]), [sex, age]),
        "240,000 block groups": (block_groups(), []),
        "240,000 block groups, sex": (block_groups(), [sex]),
    }


def _workload(areas: Attribute, others: Sequence[Attribute]) -> Workload:
    """Return all levels beside all subsets of other attributes."""
    levels = Levels([*areas.hierarchies[0].level_names, areas.name])
    workload = Workload(Schema([areas, *others]))
    for mask in range(2 ** len(others)):
        names = [a.name for i, a in enumerate(others) if mask >> i & 1]
        families = {areas.name: levels} | dict.fromkeys(names, "marginal")
        workload = workload.add((areas.name, *names), families)
    return workload


def _measure_case(case: str) -> tuple[list[tuple[str, float, float]], float]:
    """Return seconds and megabytes of every stage, and the gap of the plan."""
    areas, others = _cases()[case]
    workload, rng = _workload(areas, others), np.random.default_rng(0)
    shares = rng.dirichlet(np.full(areas.size, 0.5))
    columns = {areas.name: np.array(areas.labels)[rng.choice(areas.size, RECORDS, p=shares)]}
    columns |= {a.name: rng.integers(0, a.size, RECORDS) for a in others}
    records, stages, started = pd.DataFrame(columns), list[tuple[str, float, float]](), time.time()

    def finish(stage: str) -> None:
        nonlocal started
        stages.append((stage, time.time() - started, peak_megabytes()))
        started = time.time()

    result = plan(workload, BUDGET, cache=False, workers=1)
    finish("plan")
    result.by_group()
    finish("preview")
    release = measure(result, records, rehearsal=True, seed=1)
    finish("measure")
    for group in range(len(workload.groups)):
        release.answers(group)
    finish("answers")
    if others and areas.size < MAX_PUBLISHED_AREAS:
        release.publish()
        finish("publish")
    return stages, result.certificate.gap


def trees() -> dict[str, Attribute]:
    """Return the trees of the comparison with TopDown."""
    rng = np.random.default_rng(0)
    middle = rng.integers(1, 30, 20).tolist()
    # in the ragged tree, every second area of the first level is not divided further
    ragged = [1 if k % 2 else 8 for k in range(24)]
    ragged_parts = [
        1 if size == 1 else int(rng.integers(1, 9)) for size in ragged for _ in range(size)
    ]
    return {
        "regular": attribute("cell", [[8] * 8, [8] * 64]),
        "irregular": attribute("cell", [middle, rng.integers(1, 9, sum(middle)).tolist()]),
        "unequal states": attribute("cell", [[400, 100, 20, 5, 1, 1, 1]]),
        "ragged": attribute("cell", [ragged, ragged_parts]),
        "US counties": attribute("cell", [COUNTIES]),
        "deep": attribute("cell", [[3] * 3, [3] * 9, [3] * 27, [3] * 81, [3] * 243]),
    }


def level_sizes(areas: Attribute) -> list[tuple[str, int]]:
    """Return name and number of areas of every level, from the total to the cells."""
    levels = areas.hierarchies[0].levels
    return [("", 1), *((level.name, level.areas) for level in levels), (areas.name, areas.size)]


def our_error(areas: Attribute, weights: Sequence[float], centers: str) -> tuple[float, float]:
    """Return our weighted RMSE, and the gap of the plan above its bound."""
    workload = Workload(Schema([areas])).add((), "total", weight=weights[0])
    for (name, _), weight in zip(level_sizes(areas)[1:], weights[1:], strict=True):
        workload = workload.add(areas.name, Level(name), weight=weight)
    result = plan(workload, BUDGET, centers=centers, cache=False, workers=1)
    total = sum(weight * result.variances(group).sum() for group, weight in enumerate(weights))
    count = sum(w * n for w, (_, n) in zip(weights, level_sizes(areas), strict=True))
    return float(np.sqrt(total / count)), result.certificate.gap


def topdown_error(areas: Attribute, weights: Sequence[float], shares: np.ndarray) -> float:
    """Return the weighted RMSE if every level is measured with a share of the budget."""
    levels = [np.zeros(areas.size, np.int64)]
    levels += [level.area_of_cell for level in areas.hierarchies[0].levels]
    levels.append(np.arange(areas.size))
    parents = []
    for coarse, fine in itertools.pairwise(levels):
        parent = np.empty(int(fine.max()) + 1, np.int64)
        parent[fine] = coarse
        parents.append(parent)
    # variances from the measurements inside every area, from the cells up
    inside, sums = [np.full(areas.size, 1.0 / shares[-1])], list[np.ndarray]()
    for share, parent in zip(shares[-2::-1], parents[::-1], strict=True):
        sums.insert(0, np.bincount(parent, inside[0]))
        inside.insert(0, 1.0 / (share + 1.0 / sums[0]))
    # variances from all measurements, from the root down
    variances = [inside[0]]
    for u, s, parent in zip(inside[1:], sums, parents, strict=True):
        part = u / s[parent]
        variances.append(part**2 * variances[-1][parent] + u * (1.0 - part))
    total = sum(w * v.sum() for w, v in zip(weights, variances, strict=True))
    return float(np.sqrt(total / sum(w * len(v) for w, v in zip(weights, variances, strict=True))))


def topdown_errors(areas: Attribute, weights: Sequence[float]) -> tuple[float, float, float]:
    """Return the weighted RMSE of equal shares, of the best geometric and of fitted shares."""
    depth = len(weights)

    def error(logs: np.ndarray) -> float:
        shares = np.exp(logs - logs.max())
        return topdown_error(areas, weights, shares / shares.sum())

    geometric = [np.log(r) * np.arange(depth) for r in (0.25, 0.5, 1.0, 2.0, 4.0)]
    given = min(map(error, geometric))
    search = scipy.optimize.minimize(
        error, min(geometric, key=error), method="Nelder-Mead", options={"maxiter": 2_000}
    )
    return error(np.zeros(depth)), given, float(min(given, search.fun))


def comparisons() -> Iterator[str]:
    """Yield one row per tree and weights."""
    for name, areas in trees().items():
        sizes = [n for _, n in level_sizes(areas)]
        for kind, weights in (
            ("areas", [1.0] * len(sizes)),
            ("levels", [1.0 / n for n in sizes]),
        ):
            (uniform, _), (tuned, gap) = (
                our_error(areas, weights, c) for c in ("uniform", "tuned")
            )
            equal, given, fitted = topdown_errors(areas, weights)
            counts = "/".join(map(str, sizes[1:]))
            yield (
                f"{name:15} {counts:>20} {kind:7} | {equal:>8.4f} {given:>8.4f} {fitted:>8.4f}"
                f" {uniform:>8.4f} {tuned:>8.4f} {tuned / fitted:>7.4f} {gap:>8.1e}"
            )


def coverage() -> tuple[float, float]:
    """Return the share of 95% intervals that contain the true count, on the tree and off it."""
    areas, rng = attribute("area", [COUNTIES]), np.random.default_rng(0)
    result = plan(_workload(areas, []), BUDGET, cache=False, workers=1)
    counts = rng.multinomial(RECORDS, rng.dirichlet(np.full(areas.size, 0.5)))
    codes = np.repeat(np.array(areas.labels), counts)
    of_level = areas.hierarchies[0].levels[0].area_of_cell
    truth = np.concatenate([np.bincount(of_level, counts), counts])
    unions = rng.random((UNIONS, areas.size)) < rng.uniform(0.001, 0.5, (UNIONS, 1))
    on_tree, off_tree = [], []
    for seed in range(SEEDS):
        release = measure(result, pd.DataFrame({"area": codes}), rehearsal=True, seed=seed)
        answers = release.answers(0)
        on_tree.append(((answers["low"] <= truth) & (truth <= answers["high"])).mean())
        for union in unions:
            estimate = release.answer(["area"], union.astype(float))
            off_tree.append(estimate.low <= union @ counts <= estimate.high)
    return float(np.mean(on_tree)), float(np.mean(off_tree))


def main() -> None:
    """Print one row per stage of every plan, one per tree and weights, and the coverage."""
    args = options(__file__, __doc__).parse_args()
    one_thread()
    with table(__file__, write=args.write) as show:
        show(f"{'plan':26} {'stage':8} | {'s':>6} {'MB':>6} {'gap':>8}")
        for case in (
            "3,143 counties, sex, age",
            "240,000 block groups",
            "240,000 block groups, sex",
        ):
            stages, gap = run_in_new_process(_measure_case, case)
            for stage, seconds, megabytes in stages:
                proved = f"{gap:.1e}" if stage == "plan" else ""
                show(f"{case:26} {stage:8} | {seconds:>6.2f} {megabytes:>6.0f} {proved:>8}")
        show(
            "",
            f"{'tree':15} {'areas per level':>20} {'weights':7} | {'equal':>8} {'given':>8}"
            f" {'fitted':>8} {'uniform':>8} {'tuned':>8} {'ratio':>7} {'gap':>8}",
        )
        for row in comparisons():
            show(row)
        on_tree, off_tree = coverage()
        show(
            "",
            f"coverage of 95% intervals, {SEEDS} releases: states and counties {on_tree:.4f},"
            f" unions of counties {off_tree:.4f}",
        )


if __name__ == "__main__":
    main()
