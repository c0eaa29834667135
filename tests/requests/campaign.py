"""Random planning requests, checked for valid plans and engine errors.

    python -m tests.requests [--count 2000] [--seed 0]

A request is a schema (impossible cells, exact totals), a workload (all families, custom rows of any
size, weights), a budget and the options of one mechanism, on small domains.  Every request either
raises an `EngineError` or returns a plan, which is then checked: its cost is within the budget, its
file reads back equal, its bound is below its error, the shares of its blocks sum to 1, and a
rehearsal on random records answers its queries.  The output is the number of plans and refusals by
mechanism and every failure with its seed.  The exit code is 1 after a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from engine.errors import EngineError
from engine.mechanisms import load_plan
from engine.mechanisms import plan as make_plan
from engine.mechanisms.registry import MECHANISMS
from engine.mechanisms.residual_base import ResidualMechanism
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import Counts
from engine.release import measure
from engine.workload import Attribute, Custom, Schema, Width, Workload
from engine.workload.families import Random

NAMES = "abc"
MAX_CELLS = 48
ONE_ATTRIBUTE = ("marginal", "prefix", "suffix", "range", "circular", "total", "width")
TWO_ATTRIBUTES = ("affine", "abs")
SCALES = (1.0, 1.0, 1e-3, 1e3, 1e-7, 1e7, 1e-12, 1e12)
WEIGHTS = (1.0, 1.0, 0.3, 5.0, 0.0, 1e-6, 1e6)
SIZES = (0.02, 1.0, 3.0, 1e-6, 1e6)
TIME_LIMITS = (5.0, 5.0, 5.0, 0.5, 1e-3, 1e-9)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one request: a valid plan, a refusal or a failure.

    ``refusal`` is the text of an `EngineError`, ``failure`` a traceback; for a plan both are empty.
    """

    seed: int
    mechanism: str
    refusal: str = ""
    failure: str = ""


class BrokenPromiseError(AssertionError):
    """A plan violates a property that every plan must have."""


def random_schema(rng: np.random.Generator, *, exact: float) -> tuple[Schema, np.ndarray]:
    """Return a random schema of up to three attributes and a table of counts that satisfies it.

    The counts have shape (n_1, ..., n_k). ``exact`` is the probability that the schema has exact
    totals.
    """
    while True:
        sizes = [int(n) for n in rng.integers(1, 9, int(rng.integers(1, 4)))]
        if math.prod(sizes) <= MAX_CELLS:
            break
    attributes = [Attribute.of_size(name, n) for name, n in zip(NAMES, sizes, strict=False)]
    table = rng.poisson(float(rng.choice([0.5, 20.0])), size=sizes)
    rules = []
    if rng.random() < 0.2:
        cells = [
            f"{a.name} == {int(rng.integers(a.size))}" for a in attributes if rng.random() < 0.7
        ]
        rules = [" and ".join(cells)] if cells else []
    if rules:
        possible = ~_matches(rules[0], sizes)
        table = table * possible
    totals_by_names: dict[tuple[str, ...], list[int]] = {}
    if rng.random() < exact and table.any():
        for _ in range(int(rng.integers(1, 3))):
            axes = [i for i in range(len(sizes)) if rng.random() < 0.4]
            totals = table.sum(axis=tuple(i for i in range(len(sizes)) if i not in axes))
            names = tuple(NAMES[i] for i in axes)
            totals_by_names[names] = np.asarray(totals).ravel().tolist()
    schema = Schema(attributes, impossible=rules, invariants=list(totals_by_names.items()))
    return schema, table


def _matches(rule: str, sizes: Sequence[int]) -> np.ndarray:
    """Return which cells satisfy a rule such as ``a == 1 and b == 0``, shape (n_1, ..., n_k)."""
    values = dict(condition.split(" == ") for condition in rule.split(" and "))
    index = np.indices(sizes)
    return np.all([index[NAMES.index(name)] == int(v) for name, v in values.items()], axis=0)


def custom_rows(rng: np.random.Generator, cells: int) -> np.ndarray:
    """Return one to six random query rows, shape (queries, cells).

    The entries are zeros and ones, integers, or real numbers, times one random factor; real
    numbers can have another factor per row.
    """
    count = int(rng.integers(1, 7))
    kind = rng.integers(4)
    if kind == 0:
        rows = rng.integers(0, 2, (count, cells)).astype(float)
    elif kind == 1:
        rows = rng.integers(-3, 4, (count, cells)).astype(float)
    else:
        rows = rng.standard_normal((count, cells))
    if kind == 3:
        rows *= rng.choice(SCALES, size=(count, 1))
    return rows * float(rng.choice(SCALES))


def random_workload(rng: np.random.Generator, schema: Schema) -> Workload:
    """Return a workload of up to four random groups; groups that are not valid are left out."""
    workload = Workload(schema)
    for _ in range(int(rng.integers(1, 5))):
        names = [n for n in schema.names if rng.random() < 0.6]
        sizes = schema.sizes(names)
        family: Any
        if len(names) == 2 and rng.random() < 0.25:
            family = str(rng.choice(TWO_ATTRIBUTES))
        elif names and rng.random() < 0.35:
            family = Custom(matrix=custom_rows(rng, math.prod(sizes)))
        elif rng.random() < 0.1:
            family = Random(p=float(rng.random()), seed=int(rng.integers(100)))
        else:
            family = {
                name: _one_family(rng, n) for name, n in zip(names, sizes, strict=True)
            } or "total"
        group = {"weight": float(rng.choice(WEIGHTS))}
        try:
            added = workload.add(names, family, **group)
        except EngineError:
            continue
        if rng.random() < 0.15:
            weights = rng.choice([0.0, 1.0, 0.5, 1e-6, 1e6], size=added.groups[-1].count)
            with contextlib.suppress(EngineError):
                added = workload.add(names, family, query_weights=weights, **group)
        workload = added
    return workload


def _one_family(rng: np.random.Generator, cells: int) -> Any:
    family = str(rng.choice(ONE_ATTRIBUTE))
    if family == "width":
        return Width(int(rng.integers(1, cells + 1)))
    if rng.random() < 0.15:
        return Custom(matrix=custom_rows(rng, cells))
    return family


def random_budget(rng: np.random.Generator, laws: Sequence[str]) -> Budget:
    """Return a random budget; sometimes it requires a noise law that the mechanism lacks."""
    unit: dict[str, Any] = {"rows_per_person": int(rng.choice([1, 1, 2, 3, 50]))}
    unit["neighbours"] = str(rng.choice(["add_remove", "add_remove", "replace_one"]))
    size = float(rng.choice(SIZES))
    laplace = (
        "gaussian" not in laws or ("laplace" in laws and rng.random() < 0.4) or rng.random() < 0.02
    )
    kinds = [Budget.pure] if laplace else [Budget, Budget.zcdp, Budget.gdp]
    return kinds[int(rng.integers(len(kinds)))](size, **unit)


def random_options(rng: np.random.Generator, mechanism: type, workload: Workload) -> dict[str, Any]:
    """Return random options of a mechanism."""
    options: dict[str, Any] = {
        "time_limit": float(rng.choice(TIME_LIMITS)),
        "workers": 1,
        "cache": False,
    }
    options["max_records"] = int(rng.choice([1, 10**3, 10**8, 10**12]))
    for name, values in mechanism.choices.items():
        if rng.random() < 0.5:
            options[name] = values[int(rng.integers(len(values)))]
    if rng.random() < 0.5:
        variants = mechanism.variants
        options |= variants[int(rng.integers(len(variants)))]
    if mechanism.name == "residualplanner+" and "base" in options:
        options["base"] = dict.fromkeys(workload.schema.names, options["base"])
    if rng.random() < (0.4 if issubclass(mechanism, ResidualMechanism) else 0.03):
        options["objective"] = str(rng.choice(["sum", "max", "lp"]))
        if options["objective"] == "lp":
            options["power"] = float(rng.choice([1.0, 2.0, 3.5, 100.0]))
        elif options["objective"] == "max" and rng.random() < 0.5:
            groups = len(workload.groups)
            options["targets"] = (
                float(rng.choice(SCALES)) if rng.random() < 0.5 else rng.random(groups).tolist()
            )
    if options.get("centers") == "tuned" and rng.random() < 0.3:
        options["keep"] = float(rng.choice([0.0, 0.05])) if rng.random() < 0.5 else {0: 0.0}
    if rng.random() < 0.1:
        options["memory_limit"] = float(rng.choice([1.0, 3e4, 1e7]))
    return options


def check_plan(candidate: Plan, table: np.ndarray, *, rehearse: bool, search: bool) -> None:
    """Raise BrokenPromiseError if a plan violates a property that every plan must have.

    Parameters
    ----------
    table : counts of all cells, shape (n_1, ..., n_k), for the rehearsal.
    rehearse : also run a rehearsal and read the answers of all groups with finite variances.
    search : also compute the global lower bound, which is slow.
    """
    schema = candidate.schema
    fine = candidate.max_records <= 10**8 and candidate.budget.pcost <= 100.0
    promises = {
        "cost within the budget": candidate.pcost <= candidate.budget.pcost,
        # With many records or little noise the grid is coarse.  Rounding then adds to the cost, and
        # the plan may leave a part of the budget unused.
        "cost that is spent": candidate.pcost >= candidate.budget.pcost * (1.0 - 1e-4) or not fine,
        "finite objective": math.isfinite(candidate.achieved),
        "bound below the error": (
            candidate.certificate.lower_bound <= candidate.achieved * (1.0 + 1e-9)
        ),
        "shares with sum 1": math.isclose(candidate.by_space()["share"].sum(), 1.0, rel_tol=1e-9),
        "bound above the replace-one cost": (
            candidate.replace_one_pcost.bound * (1.0 + 1e-9)
            >= candidate.replace_one_pcost.worst.pcost
        ),
    }
    reloaded = load_plan(candidate.to_json())
    promises["the same file"] = reloaded.to_json() == candidate.to_json()
    promises["the same cost"] = reloaded.pcost == candidate.pcost
    for i, group in enumerate(candidate.workload.groups):
        values = candidate.variances(i)
        promises[f"variances of group {i}"] = len(values) == group.count and not (values < 0).any()
    candidate.by_group()
    if search:
        promises["global bound below the error"] = (
            candidate.certificate.global_bound <= candidate.weighted_rmse * (1.0 + 1e-9)
        )
    if broken := [words for words, holds in promises.items() if not holds]:
        raise BrokenPromiseError(f"broken promises: {', '.join(broken)}")
    if rehearse:
        counts = Counts.from_tables(schema, {schema.names: table})
        answers = measure(candidate, counts, rehearsal=True)
        for i in range(len(candidate.workload.groups)):
            if np.isfinite(candidate.variances(i)).all():
                answers.answers(i)


def request(seed: int) -> Outcome:
    """Plan one random request and check the plan."""
    rng = np.random.default_rng([int(seed), 33])
    mechanism = MECHANISMS[int(rng.integers(len(MECHANISMS)))]
    if rng.random() < 0.25:
        mechanism = MECHANISMS[0]
    try:
        schema, table = random_schema(rng, exact=0.35 if mechanism.keeps_invariants else 0.03)
        workload = random_workload(rng, schema)
        budget = random_budget(rng, mechanism.laws)
        options = random_options(rng, mechanism, workload)
        candidate = make_plan(workload, budget, mechanism.name, **options)
    except EngineError as error:
        return Outcome(
            seed=seed, mechanism=mechanism.name, refusal=f"{type(error).__name__}: {error}"
        )
    except Exception:  # every other exception is a failure
        return Outcome(seed=seed, mechanism=mechanism.name, failure=traceback.format_exc())
    try:
        check_plan(candidate, table, rehearse=rng.random() < 0.5, search=rng.random() < 0.2)
    except Exception:
        return Outcome(seed=seed, mechanism=mechanism.name, failure=traceback.format_exc())
    return Outcome(seed=seed, mechanism=mechanism.name)


def requests(count: int, seed: int) -> Iterator[Outcome]:
    """Yield the outcomes of ``count`` requests with the seeds ``seed``, ``seed`` + 1, ..."""
    for number in range(count):
        yield request(seed + number)


def table_of(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return one row per mechanism: requests, plans, refusals, failures."""

    def kind(outcome: Outcome) -> str:
        if outcome.failure:
            return "failures"
        return "refusals" if outcome.refusal else "plans"

    rows = pd.DataFrame([(o.mechanism, kind(o)) for o in outcomes], columns=["mechanism", "kind"])
    out = pd.crosstab(rows["mechanism"], rows["kind"]).reindex(
        columns=["plans", "refusals", "failures"], fill_value=0
    )
    return out.assign(requests=out.sum(axis=1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign, print its table and failures, and return 1 after a failure."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.requests", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    outcomes = []
    for outcome in requests(args.count, args.seed):
        outcomes.append(outcome)
        if outcome.failure:
            print(f"seed {outcome.seed}, {outcome.mechanism}:\n{outcome.failure}", flush=True)
    print(table_of(outcomes).to_string())
    refusals = Counter(o.refusal.split(":")[0] for o in outcomes if o.refusal)
    print("refusals:", ", ".join(f"{name} {n}" for name, n in refusals.most_common()))
    failures = sum(bool(o.failure) for o in outcomes)
    print(f"{args.count:,} requests: {failures:,} failures")
    return 1 if failures else 0
