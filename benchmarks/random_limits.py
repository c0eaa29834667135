"""Random workloads under limits of memory and time: cost and success of tuned centers.

Every plan is computed in a new process. A row has its CPU seconds, additional memory, the seconds
of uniform centers, the ratio to their error if no time limit was reached, and the outcome.

A row is wrong in four cases: the exception is not an error of the engine; tuned fails where uniform
succeeds, or is worse; the memory limit is exceeded; or planning takes more than 1.2 times as long as
allowed. Allowed is the time limit, or the time of uniform centers under the same limit if that is
longer. Such a row ends with "uniform alone took N s". A small plan is computed before, so that
imports are not counted.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Width, Workload
from engine.workload.families import Random

FAMILIES = (
    "marginal",
    "prefix",
    "suffix",
    "range",
    "circular",
    "total",
    "width",
    "affine",
    "abs",
    "random",
    "custom",
)
SPREAD = 4.0  # orders of magnitude between weights
MAX_RATIO = 1.2  # largest time of a plan relative to the time that is allowed
HEAD = f"{'seed':>5} {'seconds':>8} {'uniform':>8} {'MB':>6} {'tuned/uniform':>14}  how it ended"


def draw(
    rng: np.random.Generator, attributes: int = 30, cells: int = 100, ways: int = 4
) -> Workload:
    """Return a random workload of all families, sizes up to ``cells`` and groups on up to ``ways``
    attributes.
    """
    count = int(rng.integers(1, attributes + 1))
    sizes = np.exp(rng.uniform(0.0, math.log(cells), count)).astype(int).tolist()
    schema = Schema([Attribute.of_size(f"a{i}", n) for i, n in enumerate(sizes)])
    workload = Workload(schema)
    for _ in range(int(rng.integers(1, 3 * attributes))):
        names = tuple(
            rng.permutation(schema.names)[: int(rng.integers(0, min(ways, count) + 1))].tolist()
        )
        weight = float(10.0 ** rng.uniform(-SPREAD / 2.0, SPREAD / 2.0))
        workload = _with_group(workload, names, weight, rng)
    return workload


def _with_group(
    workload: Workload, names: tuple[str, ...], weight: float, rng: np.random.Generator
) -> Workload:
    chosen = str(rng.choice(FAMILIES))
    table = math.prod(workload.schema.sizes(names))
    if chosen in ("random", "custom"):
        if not names or table > 2_000:
            chosen = "marginal"
        elif chosen == "random":
            return workload.add(
                names, Random(seed=int(rng.integers(100)), count=int(rng.integers(1, 40))), weight
            )
        else:
            return workload.add(
                names, Custom(rng.integers(-1, 2, (int(rng.integers(1, 8)), table))), weight
            )
    if chosen in ("affine", "abs"):
        if len(names) == 2 and table <= 2_600:
            return workload.add(names, chosen, weight)
        chosen = "prefix"
    if rng.random() < 0.5:
        mixed = {name: str(rng.choice(FAMILIES[:6])) for name in names}
        return workload.add(names, mixed or "total", weight)
    return workload.add(names, Width(1) if chosen == "width" else chosen, weight)


def _plan_and_send(
    seed: int, memory: float, seconds: float, ratios: bool, sender: Connection
) -> None:
    """Plan a random workload and send the figures of its row through ``sender``.

    They are CPU seconds, CPU seconds with uniform centers, peak MB, error ratio and outcome.
    """
    # time limits in CPU seconds, independent of other load
    time.monotonic = time.process_time
    small = Workload(Schema([Attribute.of_size("a", 3)])).add(("a",), "prefix")
    plan(small, Budget(pcost=1.0), centers="tuned", cache=False, workers=1)
    workload = draw(np.random.default_rng(seed))
    limits: dict[str, Any] = {
        "memory_limit": memory,
        "time_limit": seconds,
        "cache": False,
        "workers": 1,
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, ratio = time.monotonic(), math.nan
    try:
        tuned = plan(workload, Budget(pcost=1.0), centers="tuned", **limits)
        ended = tuned.statement.partition("bound.")[2].strip() or "in full"
    except EngineError as error:
        tuned, ended = None, f"refused: {error}"
    except BaseException as error:
        tuned, ended = None, f"RAW {type(error).__name__}: {error}"
    took = time.monotonic() - started
    peak, floor = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, seconds
    if tuned is None or ratios or took > MAX_RATIO * seconds:
        started = time.monotonic()
        try:
            uniform = plan(workload, Budget(pcost=1.0), **limits)
            floor = time.monotonic() - started
            if tuned is None:
                ended = f"TUNED ALONE {ended}"
            elif ratios and "time limit" not in uniform.statement + tuned.statement:
                ratio = tuned.weighted_rmse / uniform.weighted_rmse
        except EngineError:
            pass
    sender.send((took, floor, peak, ratio, ended))


def main() -> None:
    """Print one row per workload; exit with 1 if a row is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.random_limits", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 200), help="first and last seed")
    parser.add_argument("--memory", type=float, default=1e9, help="bytes")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--ratios", action="store_true", help="also plan with uniform centers and compare"
    )
    args = parser.parse_args()
    print(HEAD, flush=True)
    wrong = 0
    for seed in range(*args.seeds):
        receiver, sender = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("spawn").Process(
            target=_plan_and_send, args=(seed, args.memory, args.seconds, args.ratios, sender)
        )
        child.start()
        sender.close()
        try:
            took, floor, peak, ratio, ended = receiver.recv()
        except EOFError:
            took = floor = peak = ratio = math.nan
            ended = "RAW: the process was ended"
        child.join()
        least = max(args.seconds, floor)
        late = took > MAX_RATIO * least
        if took > MAX_RATIO * args.seconds and not late:
            ended = f"uniform alone took {floor:.1f} s. {ended}"
        large = peak * 2**20 > args.memory
        bad = late or large or ended.startswith(("RAW", "TUNED")) or ratio > 1.0 + 1e-9
        wrong += bad
        print(
            f"{seed:>5} {took:>8.1f} {floor:>8.1f} {peak:>6.0f} {ratio:>14.7f} "
            f" {'!' if bad else ''}{ended[:100]}"
        )
        sys.stdout.flush()
    print(f"{wrong} of {args.seeds[1] - args.seeds[0]} went wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
