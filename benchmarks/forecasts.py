"""Forecasts of time and memory, compared with planning; right is within a factor of 2.

    python -m benchmarks.forecasts [--write] [--only WORDS]

The first table has 20 workloads, the second 28. Rates of searches on pairs were fitted to mixed
workloads of 10 to 50 cells, those of HDMM to eleven workloads, three of which are in the second
table: Loans, Adult 1-way and CPS.

Every plan is computed in a new process on one core without cache; seconds are CPU seconds, memory
is the peak of the process. Smaller figures than 0.1 seconds and 50 MB are mostly noise and are
raised to these values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import demo_data
from benchmarks import one_thread, options, peak_megabytes, run_in_new_process, table
from benchmarks.random_limits import draw
from benchmarks.scale import mixed
from benchmarks.tuned import cube, joint
from engine.mechanisms import forecast, plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

LEAST_SECONDS, LEAST_BYTES = 0.1, 5e7
HEAD = (
    f"{'workload':44} {'forecast s':>10} {'took':>8} {'forecast MB':>12} {'took':>7} "
    f" {'ratios':>12}  right"
)


def _demo(name: str, ways: tuple[int, ...]) -> Callable[[], Workload]:
    return lambda: Workload.all_ways(Schema.from_json(demo_data.schemas()[name].read_bytes()), ways)


def _distinct() -> Workload:
    return Workload.all_ways(
        Schema([Attribute.of_size(f"x{i}", 30 + i) for i in range(10)]), (2,), "affine"
    )


def _pair(one: int = 30, other: int = 25) -> Workload:
    schema = Schema([Attribute.of_size("a", one), Attribute.of_size("b", other)])
    return Workload(schema).add(("a", "b"), "prefix").add(("a", "b"), "affine")


def _random(seed: int) -> Callable[[], Workload]:
    return lambda: draw(np.random.default_rng(seed), attributes=12, cells=60, ways=3)


ROWS: dict[str, tuple[Callable[[], Workload], dict[str, Any]]] = {
    "Adult <=3-way": (_demo("adult", (1, 2, 3)), {}),
    "Adult <=3-way, tuned": (_demo("adult", (1, 2, 3)), {"centers": "tuned"}),
    "CPS <=3-way, tuned": (_demo("cps", (1, 2, 3)), {"centers": "tuned"}),
    "Loans <=3-way, tuned": (_demo("loans", (1, 2, 3)), {"centers": "tuned"}),
    "Adult <=2-way, largest error": (_demo("adult", (1, 2)), {"objective": "max"}),
    "CPS <=2-way, WFF": (_demo("cps", (1, 2)), {"mechanism": "wff"}),
    "CPS <=2-way, HDMM": (_demo("cps", (1, 2)), {"mechanism": "hdmm"}),
    "[10]^40 prefix, tuned": (
        lambda: Workload.all_ways(cube(10, 40), (1, 2)),
        {"centers": "tuned"},
    ),
    "[50]^40 prefix, tuned": (
        lambda: Workload.all_ways(cube(50, 40), (1, 2)),
        {"centers": "tuned"},
    ),
    "[256] prefix, tuned": (lambda: Workload.all_ways(cube(256, 1), (1,)), {"centers": "tuned"}),
    "[20]^40 affine": (lambda: joint("affine", 20, 40), {}),
    "[30]^40 affine, tuned": (lambda: joint("affine", 30, 40), {"centers": "tuned"}),
    "[50]^40 abs": (lambda: joint("abs", 50, 40), {}),
    "[40]^40 mixed": (lambda: mixed(40, 40), {}),
    "[30] to [39], affine": (_distinct, {}),
    "[30]x[25] prefix and affine, tuned": (_pair, {"centers": "tuned"}),
    **{f"random {seed}, tuned": (_random(seed), {"centers": "tuned"}) for seed in range(2)},
    **{f"random {seed}": (_random(seed), {}) for seed in range(2, 4)},
}
FURTHER: dict[str, tuple[Callable[[], Workload], dict[str, Any]]] = {
    "Loans <=2-way": (_demo("loans", (1, 2)), {}),
    "Loans <=2-way, HDMM": (_demo("loans", (1, 2)), {"mechanism": "hdmm"}),
    "Adult 1-way, HDMM": (_demo("adult", (1,)), {"mechanism": "hdmm"}),
    "CPS <=3-way, HDMM": (_demo("cps", (1, 2, 3)), {"mechanism": "hdmm"}),
    "[300] prefix, HDMM": (lambda: Workload.all_ways(cube(300, 1), (1,)), {"mechanism": "hdmm"}),
    "[12]^15 affine, HDMM": (lambda: joint("affine", 12, 15), {"mechanism": "hdmm"}),
    "[256] prefix, LSA": (lambda: Workload.all_ways(cube(256, 1), (1,)), {"mechanism": "lsa"}),
    "[16]^2 range, LSA": (
        lambda: Workload.all_ways(cube(16, 2), (2,), "range"),
        {"mechanism": "lsa"},
    ),
    "[8]^3 <=2-way, LSA": (lambda: Workload.all_ways(cube(8, 3), (1, 2)), {"mechanism": "lsa"}),
    "[8]^3 marginal <=2-way, LSA": (
        lambda: Workload.all_ways(cube(8, 3), (1, 2), "marginal"),
        {"mechanism": "lsa"},
    ),
    "Adult <=2-way, ResidualPlanner+": (_demo("adult", (1, 2)), {"mechanism": "residualplanner+"}),
    "CPS <=3-way, largest error": (_demo("cps", (1, 2, 3)), {"objective": "max"}),
    "Loans <=2-way, largest error": (_demo("loans", (1, 2)), {"objective": "max"}),
    "[12]^6 prefix, largest error": (
        lambda: Workload.all_ways(cube(12, 6), (1, 2)),
        {"objective": "max"},
    ),
    "Adult <=2-way, power 3": (_demo("adult", (1, 2)), {"objective": "lp", "power": 3.0}),
    "[15]^20 mixed": (lambda: mixed(15, 20), {}),
    "[35]^5 mixed": (lambda: mixed(35, 5), {}),
    "[45]^3 mixed": (lambda: mixed(45, 3), {}),
    "[25]^10 abs, tuned": (lambda: joint("abs", 25, 10), {"centers": "tuned"}),
    "[35]x[28] prefix and affine": (lambda: _pair(35, 28), {}),
    "[48]x[20] prefix and affine": (lambda: _pair(48, 20), {}),
    "[20]x[18] prefix and affine, tuned": (lambda: _pair(20, 18), {"centers": "tuned"}),
    "[1000] range": (lambda: Workload.all_ways(cube(1000, 1), (1,), "range"), {}),
    "[400] range, tuned": (
        lambda: Workload.all_ways(cube(400, 1), (1,), "range"),
        {"centers": "tuned"},
    ),
    **{f"random {seed}, tuned": (_random(seed), {"centers": "tuned"}) for seed in range(4, 6)},
    **{f"random {seed}": (_random(seed), {}) for seed in range(6, 8)},
}


def _measure(name: str) -> tuple[float, float, float, float]:
    plan(Workload(cube(3, 1)).add("x0"), Budget(pcost=1.0), cache=False, workers=1)
    make, chosen = (ROWS | FURTHER)[name]
    workload = make()
    expected = forecast(workload, **chosen)
    started = time.process_time()
    plan(workload, Budget(pcost=1.0), cache=False, workers=1, **chosen)
    return (
        expected.seconds,
        time.process_time() - started,
        expected.memory,
        peak_megabytes() * 2**20,
    )


def main() -> None:
    """Print one row per workload and the number of right forecasts."""
    parser = options(__file__, __doc__)
    parser.add_argument("--only", help="rows whose name holds these words")
    args = parser.parse_args()
    one_thread()
    with table(__file__, write=args.write) as show:
        for rows in (ROWS, FURTHER):
            names = [name for name in rows if args.only is None or args.only in name]
            if not names:
                continue
            show(HEAD)
            right = np.sum([_show_row(name, show) for name in names], axis=0)
            show(f"within a factor of 2: time {right[0]} and memory {right[1]} of {len(names)}")


def _show_row(name: str, show: Callable[..., None]) -> list[bool]:
    """Print one row; return whether the forecasts of its time and of its memory are right."""
    said, took, bytes_said, bytes_took = run_in_new_process(_measure, name)
    ratios = [
        max(said, LEAST_SECONDS) / max(took, LEAST_SECONDS),
        max(bytes_said, LEAST_BYTES) / max(bytes_took, LEAST_BYTES),
    ]
    good = [0.5 <= ratio <= 2.0 for ratio in ratios]
    show(
        f"{name:44} {said:>10.3g} {took:>8.3g} {bytes_said / 1e6:>12.0f} {bytes_took / 1e6:>7.0f} "
        f" {ratios[0]:>5.2f} {ratios[1]:>6.2f}  {'time' if good[0] else ''}"
        f" {'memory' if good[1] else ''}"
    )
    return good


if __name__ == "__main__":
    main()
