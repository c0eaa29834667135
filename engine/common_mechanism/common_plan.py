"""Common part of several plans, with the residual of each.

The look that several plans share, as a plan of its own, and whether plans can share one at all.

Coarse or fine: what several plans share can be measured first, and the choice made after looking at it.

`coarse_or_fine` splits plans on one schema, residual space by residual space, into a look that all of them would
release anyway and what is left of each.  Look and residual together say exactly what the chosen plan alone would say,
and cost exactly the same, so the choice costs nothing.

The same functionals must stand behind a residual space in every plan.  Plans with uniform centers always agree; tuned
centers and complements do when the plans that measure the same attributes have the same ones.  Plans that measure
several spaces with one strategy, as tuned plans on small domains do, are refused.

Two steps round twice.  Their grid is finer than that of a plan, which makes the rounding of both together smaller than
that of the plan alone; where that is not enough, all noise is raised by one factor, `stretch`.

Source: Xiao, Wang, Zhang and Kifer 2022, sections 3 and 5, on the blocks of `engine.plans.plan`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine._arrays import Array
from engine._format import set_name
from engine._untrusted import parse_json
from engine._validation import instance
from engine.common_mechanism.common_block import GRID_BITS, Rest, common_block, on_grid, rest
from engine.common_mechanism.common_mechanism import exact_split
from engine.errors import PlanError
from engine.mechanisms import load_plan
from engine.plans import Block, Plan
from engine.plans.blocks import cells_pcost, joint_pcost, total_pcost, undo_factors
from engine.privacy import REPLACE_ONE, Budget
from engine.residuals import Complement, Space, Split, digest
from engine.workload import Schema, Workload

if TYPE_CHECKING:
    import pandas as pd


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


FORMAT = "coarse-or-fine/1"
FINER = "look closer"
STRETCHES = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Residual:
    """What must be measured after the look to know all that one plan says.

    Attributes
    ----------
    schema, max_records : as in the plan.
    blocks : residual space -> strategy, noise and grid; spaces that the look says all about are missing.
    rests : for the spaces that the look measures, how the two are put together.
    spend : what this step takes from the budget, in pcost; 0 when there is nothing to measure.
    rows_per_person : the most rows of one person that are counted.
    """

    schema: Schema
    max_records: int
    blocks: Mapping[Space, Block]
    rests: Mapping[Space, Rest]
    spend: float
    rows_per_person: int = 1

    @cached_property
    def pcost(self) -> float:
        """Privacy cost of these blocks alone, rounded up; with the look it is covered by the two spends."""
        return Budget(pcost=1.0, rows_per_person=self.rows_per_person).of_person(
            total_pcost(self.blocks, self.max_records)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CommonPlan:
    """Several plans, what they share, and what is left of each; made by `coarse_or_fine`.

    Attributes
    ----------
    options, names : the plans to choose from, with a name for people each.
    look : plan of the common part; its workload holds those groups of the options that it can answer in full.
    residuals : what is left of each plan.
    found : residual space -> how its common part was found, in words.
    stretch : factor of all noise against the plans alone; 1 but for rounding that would pass the budget.
    following : the next choice of a chain, whose look is the last option of this one; see `nested_choices`.
    """

    options: tuple[Plan, ...]
    names: tuple[str, ...]
    look: Plan
    residuals: tuple[Residual, ...]
    found: Mapping[Space, str]
    stretch: float
    following: CommonPlan | None = None

    @property
    def analyses(self) -> tuple[tuple[str, Plan], ...]:
        """Names and plans of all analyses that can be reached, those of later choices included."""
        own = tuple(zip(self.names, self.options, strict=True))
        return own if self.following is None else (*own[:-1], *self.following.analyses)

    @property
    def spends(self) -> tuple[tuple[float, float], ...]:
        """(look, residual) of every choice; as decimals they add up to the plan's pcost exactly."""
        return tuple((self.look.budget.pcost, r.spend) for r in self.residuals)

    @property
    def saved(self) -> float:
        """pcost of a separate look as a share of the largest pcost of a plan."""
        return self.look.budget.pcost / max(price(p) for p in self.options)

    @property
    def maximal(self) -> bool:
        """Whether no larger common part exists, up to the dense solver's proven gap."""
        return all(text in ("closed form", "dense") for text in self.found.values())

    @cached_property
    def hash(self) -> str:
        """Identity of the options, in their order."""
        later = "" if self.following is None else self.following.hash
        return hashlib.sha256("|".join([FORMAT, later, *(p.hash for p in self.options)]).encode()).hexdigest()

    def position(self, option: int | str) -> int:
        """Return the number of an option that is given by number or name.

        Raises: PlanError if there is none.
        """
        if isinstance(option, str) and option in self.names:
            return self.names.index(option)
        if isinstance(option, int) and not isinstance(option, bool) and 0 <= option < len(self.options):
            return option
        raise PlanError(f"There is no option {option!r}; there are {', '.join(map(repr, self.names))}.")

    def budget_shares(self) -> pd.DataFrame:
        """Return one row an option: option, shared and own pcost, and their exact sum, total; for bars."""
        import pandas as pd

        rows = [(n, a, b, price(p)) for n, (a, b), p in zip(self.names, self.spends, self.options, strict=True)]
        return pd.DataFrame(rows, columns=["option", "shared", "own", "total"])

    def by_space(self) -> pd.DataFrame:
        """Return one row a residual space and option: pcost of the plan's block there, and of the shared part of it."""
        import pandas as pd

        rows = []
        for name, plan in zip(self.names, self.options, strict=True):
            for space, block in plan.blocks.items():
                look = self.look.blocks.get(space)
                shared = 0.0 if look is None else look.pcost(plan.max_records)
                rows.append((space, name, block.pcost(plan.max_records), shared, self.found.get(space, "not in all")))
        return pd.DataFrame(rows, columns=["attributes", "option", "total", "shared", "found"])

    def combine(self, option: int, look: Mapping[Space, Array], answers: Mapping[Space, Array]) -> dict[Space, Array]:
        """Return class coordinates of every space of an option from those of the look and the residual's answers.

        Estimates have shape (n_1 - 1, ..., n_k - 1) on their space.
        ``answers`` are in counts, one axis per factor of the block.  Guarantee: unbiased, with the plan's covariance.
        """
        found = {}
        for space in self.options[option].blocks:
            if space in self.residuals[option].rests:
                left = self.residuals[option].rests[space]
                found[space] = left.combine(look[space], answers.get(space))
            else:
                block = self.residuals[option].blocks[space]
                found[space] = undo_factors(block, answers[space])
        return found

    def to_json(self) -> str:
        """Return the options as JSON text; `from_json` makes the same split again."""
        plans = [json.loads(p.to_json()) for _, p in self.analyses]
        names, chain = [name for name, _ in self.analyses], self.following is not None
        data = {"format": FORMAT, "names": names, "options": plans, "chain": chain, "hash": self.hash}
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> CommonPlan:
        """Return what `to_json` wrote.  Raises: PlanError if it is damaged."""
        try:
            data = parse_json(text)
        except ValueError:
            raise PlanError("The file of options is not valid JSON. Export it again.") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("options"), list):
            raise PlanError(f'This is no file of options. Give JSON with "format": "{FORMAT}".')
        names = data.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise PlanError("The names in the file of options are damaged. Export it again.")
        split = nested_choices if data.get("chain") else coarse_or_fine
        made = split(*(load_plan(json.dumps(p)) for p in data["options"]), names=names)
        # the file holds requests, and the split is made anew from them: nothing in it is believed
        if made.hash != data.get("hash"):
            raise PlanError("The file of options was changed after it was written. Export it again.")
        return made


def coarse_or_fine(*options: Plan, names: Sequence[str] | None = None) -> CommonPlan:
    """Split plans into the look that they share and what is left of each; no record is read.

    Parameters
    ----------
    options : two plans or more on one schema; their budgets may differ.
    names : what people call them.

    Guarantee: for every option, look and residual have the plan's law, their spends add up to the plan's pcost to the
    last digit, and the privacy cost of both, recomputed from what will be released, is at most that.

    Raises
    ------
    PlanError : fewer than two plans, different schemas, spaces that are measured together, splits that do not agree, or
        nothing in common.
    LimitExceeded : blocks that cannot be compared in memory.

    >>> from engine.mechanisms import plan
    >>> from engine.workload import Attribute, Workload
    >>> from engine.privacy.budget import Budget
    >>> schema = Schema([Attribute.of_size(name, 2) for name in "abcdefg"])
    >>> ways = [plan(Workload.all_ways(schema, ways=k, family="marginal"), Budget(pcost=1.0)) for k in (1, 2)]
    >>> both = coarse_or_fine(*ways, names=["one-way", "two-way"])
    >>> round(both.saved, 3), both.maximal, [round(own, 3) for _, own in both.spends]
    (0.509, True, [0.491, 0.491])
    """
    names = _checked_names(options, names)
    unit = _agreed_unit(options)
    split = agreed_split(options, names)
    # rounding is charged for that many records, so that the look may be used within the least of all caps
    max_records = min(p.max_records for p in options)
    # what one option does not measure at all has no part in common with it
    spaces = [s for s in options[0].blocks if all(s in p.blocks for p in options)]
    ideal, found = dict[Space, Block](), dict[Space, str]()
    for space in spaces:
        shared = [p.blocks[space] for p in options]
        block, found[space] = common_block(shared, split.given(space), split.complements.get(space))
        if block is not None:
            ideal[space] = block
    if not ideal:
        raise PlanError(
            "These plans share nothing, so there is nothing to look at. Choose plans with a query in common, such as "
            "the total, or tables on some of the same attributes."
        )
    stretch = 1.0
    for _ in range(STRETCHES):
        # the look is rounded to its grid first, and what is left of a plan is what the look as rounded does not say
        look = {space: on_grid(block, block.noise * stretch, max_records) for space, block in ideal.items()}
        rests = [
            {space: rest(block, p.blocks[space], max_records, stretch) for space, block in look.items()}
            for p in options
        ]
        parts = [_left(p, own, max_records, stretch) for p, own in zip(options, rests, strict=True)]
        costs = [
            unit.of_person(_together([look, part], max_records, p.joint)) / price(p)
            for part, p in zip(parts, options, strict=True)
        ]
        if max(costs) <= 1.0:
            break
        # costs fall with the square of the noise; one grid step on top, because noises are whole numbers of steps
        stretch *= math.sqrt(max(costs)) * (1.0 + 2.0**-GRID_BITS)
    else:
        raise PlanError(
            f"Look and rest together cost {max(costs)} times what a plan alone costs. The split is refused; lower "
            "max_records, or ask fewer queries."
        )
    # the charge for the look is the same whatever is chosen later: it is spent before anybody can know
    joint = any(p.joint for p in options) and cells_pcost(look, max_records) < total_pcost(look, max_records)
    alone = cells_pcost(look, max_records) if joint else total_pcost(look, max_records)
    spends = exact_split(unit.of_person(alone), [price(p) for p in options], own=[bool(part) for part in parts])
    residuals = tuple(
        Residual(
            schema=p.schema,
            max_records=max_records,
            blocks=part,
            rests=own,
            spend=spend,
            rows_per_person=unit.rows_per_person,
        )
        for p, part, own, (_, spend) in zip(options, parts, rests, spends, strict=True)
    )
    return CommonPlan(
        options=options,
        names=names,
        look=look_plan(options, look, spends[0][0], max_records, split, joint),
        residuals=residuals,
        found=found,
        stretch=stretch,
    )


def nested_choices(*options: Plan, names: Sequence[str] | None = None) -> CommonPlan:
    """Split plans from coarse to fine into a chain of choices: the coarsest, or go on and look closer.

    The last choice is between the last two plans.  Each choice before it is between one plan and the look of the next
    choice, so that to go on is to measure what that look has beyond the present one.  Every way through the chain costs
    what the plan at its end costs alone.  Arguments and errors are those of `coarse_or_fine`.

    Source: section 7.5.3.  A look here is common to its plan and the next look; for analyses that are nested as there,
    that is what all remaining analyses share.

    >>> from engine.mechanisms import plan
    >>> from engine.workload import Attribute, Workload
    >>> from engine.privacy.budget import Budget
    >>> schema = Schema([Attribute.of_size(name, 2) for name in "abcd"])
    >>> ways = [plan(Workload.all_ways(schema, ways=k, family="marginal"), Budget(pcost=1.0)) for k in (1, 2, 3)]
    >>> first = nested_choices(*ways)
    >>> first.names, first.following.names
    (('option 1', 'look closer'), ('option 2', 'option 3'))
    """
    names = _checked_names(options, names)
    if FINER in names:
        raise PlanError(f"{FINER!r} stands for the next choice; give the option another name.")
    # from the finest back, because a look must be below the look that may follow it
    made = coarse_or_fine(*options[-2:], names=names[-2:])
    # to go on is a choice like any other: its plan is the look of the next one
    for option, name in zip(reversed(options[:-2]), reversed(names[:-2]), strict=True):
        first = coarse_or_fine(option, made.look, names=[name, FINER])
        if not first.residuals[1].blocks:
            raise PlanError(
                f"To look closer than '{name}' would tell nothing new. Leave this option out, or choose between all of "
                "them at once with coarse_or_fine."
            )
        made = replace(first, following=made)
    _check_ways(made)
    return made


def _together(parts: Sequence[Mapping[Space, Block]], max_records: int, joint: bool) -> float:
    """Return the privacy cost of several parts on the same records, for one cell of all blocks where ``joint``."""
    cost = joint_pcost(parts, max_records)
    if not joint:
        return cost
    blocks = {(number, space): block for number, part in enumerate(parts) for space, block in part.items()}
    return min(cost, cells_pcost(blocks, max_records))


def _check_ways(chain: CommonPlan) -> None:
    """Refuse a chain in which all that is released on a way together passes what its end costs."""
    released: list[Mapping[Space, Block]] = [chain.look.blocks]
    choice: CommonPlan | None = chain
    while choice is not None:
        for i, (option, left) in enumerate(zip(choice.options, choice.residuals, strict=True)):
            together = _together([*released, left.blocks], left.max_records, option.joint)
            cost = option.budget.of_person(together)
            if cost > price(option):
                raise PlanError(
                    f"The steps to '{choice.names[i]}' round so often that together they cost {cost}, over the "
                    f"{price(option)} of the plan. Lower max_records, or use coarse_or_fine."
                )
        # going on measures the last residual, whichever option is reached in the end
        released.append(choice.residuals[-1].blocks)
        choice = choice.following


def _agreed_unit(options: Sequence[Plan]) -> Budget:
    """Return a budget with the rows per person of all options; refuse options that protect differently."""
    unit = options[0].budget
    if any((p.budget.rows_per_person, p.budget.neighbours) != (unit.rows_per_person, unit.neighbours) for p in options):
        raise PlanError(
            "The plans protect different things: their rows per person or neighbours differ. Give all of them budgets "
            "of one kind."
        )
    if options[0].schema.invariants:
        raise PlanError(
            "What plans share is measured without exact totals. Choose on a schema that declares no invariants, or "
            "release one plan alone."
        )
    # replacing a row moves two cells, and the largest sum over pairs is no sum over spaces
    if unit.neighbours == REPLACE_ONE:
        raise PlanError(
            "What plans share is known for neighbours that come or go, not for those that replace a record. Plan with "
            'neighbours="add_remove".'
        )
    return unit


def _left(option: Plan, rests: Mapping[Space, Rest], max_records: int, stretch: float) -> dict[Space, Block]:
    """Return what an option still measures; spaces without a look are measured as in the plan itself."""
    left = {}
    for space, block in option.blocks.items():
        if space not in rests:
            # all noise by one factor, or the plan's shares would no longer be the best ones
            left[space] = block if stretch == 1.0 else on_grid(block, block.noise * stretch, max_records)
        elif (own := rests[space].block) is not None:
            left[space] = own
    return left


def _checked_names(options: Sequence[Any], names: Sequence[str] | None) -> tuple[str, ...]:
    if len(options) < 2 or not all(isinstance(p, Plan) for p in options):
        raise PlanError(f"{len(options)} arguments were given; give at least two plans.")
    instance("names", names, (Sequence, type(None)), give="a list of texts, one a plan", error=PlanError)
    if any(p.schema != options[0].schema for p in options):
        raise PlanError("The plans are for different schemas. Make all of them with the same schema.")
    chosen = tuple(f"option {i + 1}" for i in range(len(options))) if names is None else tuple(names)
    fits = all(isinstance(n, str) and n.isprintable() and 0 < len(n.strip()) <= 80 for n in chosen)
    if len(chosen) != len(options) or len(set(chosen)) != len(chosen) or not fits or "stop" in chosen:
        raise PlanError(
            f"{len(chosen)} names were given for {len(options)} plans; give as many different lines of 1 to 80 "
            "characters, none of them 'stop'."
        )
    return chosen
