"""True privacy costs of releases, computed on neighbouring tables without noise.

    python -m tests.replay [--plans 700] [--seed 0]

A campaign replays random plans of every mechanism and option, some of them read back from their
files, and multi-stage releases of two or three stages.  It computes the released integers, with the
noise replaced by zeros, for tables that differ in the rows of one person.  Their squared distance
in units of the noise scale (for Laplace noise the squared sum of absolute differences) is the true
privacy cost.  It may not exceed the charge (the cost that
the ledger is charged), and for some cell it must reach the charge within 1e-4.  The lower limit
does not apply to stages of a release, nor to plans with charge="groups", which by definition add
the costs of the groups as if each were released separately.  The table shows the largest and
smallest ratio of cost to charge of each kind of plan.  The exit code is 1 if any charge is wrong.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from engine.common_mechanism.common_plan import coarse_or_fine, nested_choices, option_cost
from engine.errors import NotApplicable, PlanError, Unanswered
from engine.mechanisms import load_plan
from engine.mechanisms import plan as make_plan
from engine.mechanisms.registry import MECHANISMS
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import Counts, count_marginals
from engine.release.add_noise import draw
from engine.workload import Attribute, Custom, Schema, Workload
from engine.workload.families import Random

TIGHT = 1e-4
OF_ONE = ("marginal", "prefix", "suffix", "range", "circular", "total")
OF_TWO = ("affine", "abs")
UNION = {"operator": "OPT_plus"}
STEPS, CHAIN = "look, last step", "look, look closer, last step"
Answers = Mapping[Any, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Result of one replay: the largest true privacy cost over neighbouring tables, and the charge.

    Attributes
    ----------
    kind : mechanism with its options, or the stages of a multi-stage release.
    neighbours : how the compared tables differ.
    tight : whether the cost must also reach the charge within `TIGHT`.
    """

    kind: str
    neighbours: str
    cost: float
    charged: float
    tight: bool

    @property
    def ratio(self) -> float:
        """Return the true cost divided by the charge."""
        return self.cost / self.charged

    @property
    def wrong(self) -> bool:
        """Return whether the cost exceeds the charge, or does not reach it although it must."""
        return self.ratio > 1.0 or (self.tight and self.ratio < 1.0 - TIGHT)


@contextmanager
def no_noise() -> Iterator[None]:
    """Replace the noise of releases by zeros inside the ``with`` block."""
    zeros = {"side_effect": lambda *, size, **_scale: np.zeros(size, np.int64)}
    names = (
        "engine.release.add_noise.discrete_gaussian",
        "engine.release.add_noise.discrete_laplace",
    )
    with mock.patch(names[0], **zeros), mock.patch(names[1], **zeros):
        yield


def released(parts: Sequence[Any], counts: Counts) -> list[Answers]:
    """Return the released integers of a table for every part: a plan, or a stage of a release."""
    return [dict(draw(part, counts, lambda _fraction, _text: None)) for part in parts]


def cost(parts: Sequence[Any], one: Sequence[Answers], other: Sequence[Answers]) -> float:
    """Return the true pcost of two tables from their released integers ``one`` and ``other``.

    For Gaussian noise, the cost is the squared distance in units of the noise scale.  For Laplace
    noise, the cost is the squared sum of absolute differences, that is, epsilon squared.
    """
    squares, epsilon, laplace = 0.0, 0.0, False
    for part, a, b in zip(parts, one, other, strict=True):
        for key, block in part.blocks.items():
            moved = (a[key] - b[key]).astype(float) / block.grid_noise
            squares += float(moved @ moved)
            epsilon += float(np.abs(moved).sum())
            laplace |= block.law == "laplace"
    return epsilon**2 if laplace else squares


def neighbours(schema: Schema, rng: np.random.Generator, rows: int) -> Iterator[Counts]:
    """Yield a random table, then the table with `rows` more rows in each cell in turn."""
    sizes = schema.sizes(schema.names)
    table = rng.poisson(float(rng.choice([0.3, 20.0, 1e4])), size=sizes)
    yield Counts.from_tables(schema, {schema.names: table})
    for cell in np.ndindex(*sizes):
        more = table.copy()
        more[cell] += rows
        yield Counts.from_tables(schema, {schema.names: more})


def replay(
    kind: str,
    parts: Sequence[Any],
    final_plan: Plan,
    charged: float,
    *,
    tight: bool,
    rng: np.random.Generator,
) -> Iterator[Replayed]:
    """Yield the largest true cost for each way in which neighbouring tables may differ.

    With k rows per person, the ways are: k more records in a cell; k records in another cell; and
    all rows of one person in a random panel (a table with several rows per person). For a budget of
    replace-one neighbours only the second way is replayed.

    Parameters
    ----------
    kind : label of the results.
    parts : the plan, or the stages of a multi-stage release, whose integers are released.
    final_plan : plan whose budget defines the privacy unit.
    charged : pcost that the ledger is charged for all parts together.
    tight : whether the cost of k more records in some cell must reach the charge.
    """
    budget, schema = final_plan.budget, final_plan.schema
    k = budget.rows_per_person
    base, *extended = (released(parts, counts) for counts in neighbours(schema, rng, k))
    added = max(cost(parts, base, one) for one in extended)
    pairs = (
        max(cost(parts, a, b) for a, b in itertools.combinations(extended, 2))
        if len(extended) > 1
        else 0.0
    )
    if budget.neighbours == "replace_one":
        yield Replayed(
            kind=kind, neighbours="replace_one", cost=pairs, charged=charged, tight=False
        )
        return
    yield Replayed(kind=kind, neighbours="add_remove", cost=added, charged=charged, tight=tight)
    if parts[0] is final_plan:
        bound = final_plan.replace_one_pcost.bound
        yield Replayed(
            kind=kind, neighbours="replace_one, bound", cost=pairs, charged=bound, tight=False
        )
    rows = int(rng.integers(1, 60))
    frame = pd.DataFrame({name: rng.integers(0, schema[name].size, rows) for name in schema.names})
    frame = frame.assign(pid=rng.integers(0, 6, rows))
    persons = [frame, *(frame[frame["pid"] != person] for person in frame["pid"].unique()[:2])]
    capped = [
        count_marginals(f, schema, [schema.names], person="pid", rows_per_person=k) for f in persons
    ]
    complete, *reduced = (released(parts, counts) for counts in capped)
    moved = max(cost(parts, complete, one) for one in reduced)
    yield Replayed(
        kind=kind, neighbours="a person of a panel", cost=moved, charged=charged, tight=False
    )


def random_workload(rng: np.random.Generator) -> Workload:
    """Return one to three random groups on up to three attributes with at most 48 cells together.

    Some schemas have exact totals. They affect only the plan; the tables of a replay need not
    satisfy them.
    """
    while True:
        sizes = [int(n) for n in rng.integers(1, 7, int(rng.integers(1, 4)))]
        if np.prod(sizes) <= 48:
            break
    attributes = [Attribute.of_size("abc"[i], n) for i, n in enumerate(sizes)]
    exact = [(["a"], [7] * sizes[0])] if len(sizes) > 1 and rng.random() < 0.15 else []
    workload = Workload(Schema(attributes, invariants=exact))
    for _ in range(int(rng.integers(1, 4))):
        names = [n for n in workload.schema.names if rng.random() < 0.7] or ["a"]
        weight = float(rng.choice([1.0, 0.3, 5.0]))
        if len(names) == 2 and rng.random() < 0.3:
            family: Any = str(rng.choice(OF_TWO))
        elif rng.random() < 0.15:
            family = Random(p=0.4, seed=int(rng.integers(100)))
        elif rng.random() < 0.3:
            family = Custom(matrix=custom_rows(rng, int(np.prod(workload.schema.sizes(names)))))
        else:
            family = {name: str(rng.choice(OF_ONE)) for name in names}
        workload = workload.add(names, family, weight=weight)
    return workload


def random_union(rng: np.random.Generator) -> Workload:
    """Return custom queries on all pairs of three attributes, measured separately by OPT_plus."""
    schema = Schema([Attribute.of_size(name, int(rng.integers(3, 5))) for name in "abc"])
    workload = Workload(schema)
    for pair in itertools.combinations(schema.names, 2):
        workload = workload.add(
            pair, Custom(matrix=custom_rows(rng, int(np.prod(schema.sizes(pair)))))
        )
    return workload


def custom_rows(rng: np.random.Generator, cells: int) -> np.ndarray:
    """Return one to four random query rows, shape (queries, cells)."""
    shape = (int(rng.integers(1, 5)), cells)
    kind = rng.integers(3)
    if kind == 0:
        return rng.integers(0, 2, shape).astype(float)
    if kind == 1:
        return rng.integers(-3, 4, shape).astype(float)
    return rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4)


def random_budget(rng: np.random.Generator, laws: Sequence[str]) -> Budget:
    """Return a random budget that one of the noise laws supports."""
    unit: dict[str, Any] = {"rows_per_person": int(rng.choice([1, 1, 2, 3]))}
    unit["neighbours"] = str(rng.choice(["add_remove", "add_remove", "replace_one"]))
    size = float(rng.choice([0.02, 0.7, 3.0]))
    if "gaussian" not in laws or ("laplace" in laws and rng.random() < 0.4):
        return Budget.pure(size, **unit)
    return Budget(size, **unit)


def one_step(name: str, options: Mapping[str, Any], rng: np.random.Generator) -> Iterator[Replayed]:
    """Replay a plan of the mechanism ``name`` on the first workload of 20 that it supports.

    The first 11 workloads are random, the others are all one-way marginals of a random schema.
    Nothing is yielded if the mechanism supports none of them.
    """
    laws = next(m.laws for m in MECHANISMS if m.name == name)
    for attempt in range(20):
        workload = random_union(rng) if options == UNION else random_workload(rng)
        budget = random_budget(rng, laws)
        if attempt > 10:  # the mechanism supports few workloads: try the simplest one
            workload = Workload.all_ways(workload.schema, (1,), "marginal")
        try:
            # With the options UNION, clusters of queries are not merged, so that each of them is
            # measured by a separate strategy.
            merge_limit = 1 if options == UNION else 100
            with mock.patch("engine.mechanisms.hdmm.MAX_MERGE_CLUSTERS", merge_limit):
                final_plan = make_plan(workload, budget, name, cache=False, workers=1, **options)
        except (NotApplicable, PlanError, Unanswered):
            continue
        if rng.random() < 0.3:
            final_plan = load_plan(final_plan.to_json())
        text = ", ".join(f"{key}={value}" for key, value in options.items())
        # With charge="groups" the charge is an upper bound: possibly no set of records costs as much.
        tight = options.get("charge") != "groups"
        yield from replay(
            f"{name} {text}".strip(),
            [final_plan],
            final_plan,
            final_plan.pcost,
            tight=tight,
            rng=rng,
        )
        return


def in_steps(rng: np.random.Generator, chain: bool) -> Iterator[Replayed]:
    """Replay multi-stage releases: a look at the common part of random plans, then each final plan.

    With ``chain`` there are three plans and up to three stages, otherwise two. The charge of all
    stages together is the cost of the final plan.
    """
    unit = {"rows_per_person": int(rng.choice([1, 3]))}
    schema = Schema(
        [Attribute.of_size(name, int(rng.integers(2, 5))) for name in "abc"[: 3 if chain else 2]]
    )
    families = rng.choice(["marginal", "prefix", "range"], size=3)
    plans = []
    for ways in (1, 2, 3)[: len(schema)]:
        workload = Workload.all_ways(
            schema, tuple(range(1, ways + 1)), str(families[0 if chain else ways - 1])
        )
        plans.append(
            make_plan(
                workload, Budget(float(rng.choice([0.1, 2.0])), **unit), cache=False, workers=1
            )
        )
    try:
        common = (nested_choices if chain else coarse_or_fine)(*plans)
    except PlanError:
        return
    # Each entry has the stages of a release, and the plan whose answers they give together.
    releases = [
        ([common.look, remainder], final_plan)
        for remainder, final_plan in zip(common.residuals, common.options, strict=True)
    ]
    if common.following is not None:
        later = common.following
        releases = releases[:1] + [
            ([common.look, common.residuals[1], remainder], final_plan)
            for remainder, final_plan in zip(later.residuals, later.options, strict=True)
        ]
    for parts, final_plan in releases:
        yield from replay(
            CHAIN if chain else STEPS,
            parts,
            final_plan,
            option_cost(final_plan),
            tight=False,
            rng=rng,
        )
        # A second stage on other records than the first is charged like a separate release.
        if len(parts) == 2 and parts[1].blocks:
            pcost = parts[1].pcost
            yield from replay(
                f"{STEPS}, charged alone", parts[1:], final_plan, pcost, tight=False, rng=rng
            )


def replays(plans: int, seed: int) -> Iterator[Replayed]:
    """Replay random plans, cycling through all mechanisms, options and kinds of releases."""
    variants: list[tuple[str, Mapping[str, Any]]] = [
        (m.name, o) for m in MECHANISMS for o in m.variants
    ]
    variants += [
        (name, {"objective": goal}) for name in ("querysmasher", "wff") for goal in ("max", "lp")
    ]
    variants += [(name, {"charge": "groups"}) for name in ("gaussian", "laplace")]
    variants += [("hdmm", UNION)]
    rng = np.random.default_rng(seed)
    with no_noise():
        for number in range(plans):
            # In the last two positions of the cycle, a release in several stages is replayed.
            position = number % (len(variants) + 2)
            if position < len(variants):
                yield from one_step(*variants[position], rng)
            else:
                yield from in_steps(rng, chain=position > len(variants))


def table(results: Sequence[Replayed]) -> pd.DataFrame:
    """Return one row per kind and neighbours, with the extreme ratios of cost to charge."""
    rows = pd.DataFrame([(f.kind, f.neighbours, f.ratio, f.tight, f.wrong) for f in results])
    rows.columns = pd.Index(["kind", "neighbours", "ratio", "tight", "wrong"])
    grouped = rows.groupby(["kind", "neighbours"])
    out = grouped["ratio"].agg(plans="size", worst="max", least="min")
    return out.assign(tight=grouped["tight"].all(), wrong=grouped["wrong"].sum())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign, print its table, and return 1 if any charge is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.replay", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--plans", type=int, default=700)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    results = list(replays(args.plans, args.seed))
    print(table(results).to_string(float_format=lambda v: f"{v:.7f}"))
    wrong = [f for f in results if f.wrong]
    print(f"{len(results):,} replays of {args.plans:,} plans: {len(wrong)} charged wrongly")
    return 1 if wrong else 0
