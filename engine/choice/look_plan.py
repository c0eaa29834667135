"""The look that several plans share, as a plan of its own, and whether plans can share one at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.arrays import Array
from engine.errors import PlanError
from engine.plans import Block, Plan
from engine.spaces import Complement, Space, Split, digest
from engine.texts import set_name
from engine.workload import Workload

MECHANISM = "common part"


def price(option: Plan) -> float:
    """Return what an option takes from the budget: a plan its pcost, a look that is gone on to what it spends."""
    return option.budget.pcost if option.mechanism == MECHANISM else option.pcost


def look_plan(
    options: Sequence[Plan],
    blocks: Mapping[Space, Block],
    spend: float,
    max_records: int,
    split: Split,
    joint: bool,
) -> Plan:
    """Return the look as a plan, for the groups of the options that it answers in full.

    Centers have shape (n_i,); ``joint`` is that of `Plan`.
    """
    groups = {(g.attributes, g.key): g for p in options for g in p.workload.groups}
    used = {name for space in blocks for name in space}
    made = Plan(
        # what it does not answer goes below; until then nothing has a weight
        workload=Workload(options[0].schema, tuple(replace(g, weight=0.0) for g in groups.values())),
        budget=options[0].budget.at(spend),
        mechanism=MECHANISM,
        options={"of": [p.hash for p in options]},
        blocks=blocks,
        bound=0.0,
        statement="The common part of several plans; it is as good as they are.",
        duals=(),
        max_records=max_records,
        joint=joint,
        split=Split(
            centers={name: pi for name, pi in split.centers.items() if name in used},
            complements={pair: c for pair, c in split.complements.items() if pair in blocks},
        ),
    )
    inside = [i for i, g in enumerate(made.workload.groups) if set(g.attributes) <= used and _answers(made, i)]
    answered = tuple(list(groups.values())[i] for i in inside)
    workload = Workload(made.schema, answered)
    if not answered and () in blocks:
        workload = workload.add((), "total")
    return replace(made, workload=workload)


def _answers(plan: Plan, group: int) -> bool:
    return math.isfinite(plan.group_variance(group).total())


def agreed_split(options: Sequence[Plan], names: Sequence[str]) -> Split:
    """Return the split of all plans together, or refuse when they stand for different functionals."""
    whole = [p.mechanism for p in options if type(p) is not Plan]
    if whole:
        raise PlanError(
            f"A plan by {whole[0]!r} measures whole tables, not residual spaces, so what it shares with others is not "
            "known block by block. Plan with 'querysmasher', 'residualplanner' or 'wff'."
        )
    united = [name for name, p in zip(names, options, strict=True) if p.split.unions]
    if united:
        raise PlanError(
            f"'{united[0]}' measures several residual spaces with one strategy, so what it shares with others is not "
            'known space by space. Plan all options with centers="uniform".'
        )
    centers, complements = dict[str, Array](), dict[Space, Complement]()
    for plan in options:
        for name in {name for space in plan.blocks for name in space}:
            pi = plan.split.centers.get(name)
            others = [p for p in options if any(name in space for space in p.blocks)]
            if any(digest(pi) != digest(p.split.centers.get(name)) for p in others):
                raise PlanError(
                    f"The plans split '{name}' at different centers, so that its residual spaces are not the same. "
                    'Plan all options with centers="uniform".'
                )
            if pi is not None:
                centers[name] = pi
        for pair in (space for space in plan.blocks if len(space) == 2):
            mine = plan.split.complements.get(pair)
            keys = {c.key if (c := p.split.complements.get(pair)) else None for p in options if pair in p.blocks}
            if len(keys) > 1:
                raise PlanError(
                    f"The plans split {set_name(pair)} in different ways, so that its residual spaces are not the "
                    'same. Plan all options with centers="uniform".'
                )
            if mine is not None:
                complements[pair] = mine
    return Split(centers=centers, complements=complements)
