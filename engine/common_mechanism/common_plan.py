"""Common part of several plans, with the residual of each.

`coarse_or_fine` splits plans on one schema, residual space by residual space, into a look (the
common part, which every plan would release) and one residual per plan.  The look is measured first,
and the choice between the plans is made from its answers.  Look and residual together have exactly
the output distribution and the cost of the chosen plan, so the choice itself costs nothing.
`nested_choices` makes a chain of such choices.

The functionals of a residual space must be the same in every plan.  This is so for plans with
uniform centers; for tuned centers and complements it is so if plans on the same attributes have the
same ones.  Plans that measure several spaces with one strategy, such as tuned plans on small
domains, are refused.

Two steps round twice.  Their grid is finer than that of a plan, so that the rounding of both steps
together is smaller than that of the plan alone.  Where it is not, the noise of all blocks is raised
by one factor, `stretch`.

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
from engine._validation import check_type
from engine.common_mechanism.common_block import (
    GRID_BITS,
    BlockResidual,
    block_residual,
    common_block,
    round_noise_up,
)
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


def option_cost(option: Plan) -> float:
    """Return the cost of an option, in pcost.

    For the look of a later choice this is its spend, otherwise the pcost of the plan.
    """
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

    Parameters
    ----------
    options : the plans to choose from.
    blocks : the common part, by residual space.
    spend : cost of the look, in pcost.
    max_records : largest number of records.
    split : centers, of shape (n_i,), and complements of all plans.
    joint : as in `Plan`.
    """
    groups = {(g.attributes, g.key): g for p in options for g in p.workload.groups}
    used = {name for space in blocks for name in space}
    full_plan = Plan(
        # groups that the look does not answer are removed below; until then all weights are zero
        workload=Workload(
            options[0].schema, tuple(replace(g, weight=0.0) for g in groups.values())
        ),
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
    answered_positions = [
        i
        for i, g in enumerate(full_plan.workload.groups)
        if set(g.attributes) <= used and _answers(full_plan, i)
    ]
    answered = tuple(list(groups.values())[i] for i in answered_positions)
    workload = Workload(full_plan.schema, answered)
    if not answered and () in blocks:
        workload = workload.add((), "total")
    return replace(full_plan, workload=workload)


def _answers(plan: Plan, group: int) -> bool:
    return math.isfinite(plan.group_variance(group).total())


def joint_split(options: Sequence[Plan], names: Sequence[str]) -> Split:
    """Return the split of all plans together; refuse plans that measure different functionals."""
    full_table_mechanisms = [p.mechanism for p in options if type(p) is not Plan]
    if full_table_mechanisms:
        raise PlanError(
            f"A plan by {full_table_mechanisms[0]!r} measures full tables, not residual spaces, so"
            " its common part with other plans is not available block by block. Plan with"
            " 'querysmasher', 'residualplanner' or 'wff'."
        )
    united = [name for name, p in zip(names, options, strict=True) if p.split.unions]
    if united:
        raise PlanError(
            f"'{united[0]}' measures several residual spaces with one strategy, so its common part"
            " with other plans is not available space by space. Plan all options with"
            ' centers="uniform".'
        )
    centers, complements = dict[str, Array](), dict[Space, Complement]()
    for plan in options:
        for name in {name for space in plan.blocks for name in space}:
            plan_centers = plan.split.centers.get(name)
            sharing = [p for p in options if any(name in space for space in p.blocks)]
            if any(digest(plan_centers) != digest(p.split.centers.get(name)) for p in sharing):
                raise PlanError(
                    f"The plans split '{name}' at different centers, so that its residual spaces"
                    ' are not the same. Plan all options with centers="uniform".'
                )
            if plan_centers is not None:
                centers[name] = plan_centers
        for pair in (space for space in plan.blocks if len(space) == 2):
            complement = plan.split.complements.get(pair)
            keys = {
                c.key if (c := p.split.complements.get(pair)) else None
                for p in options
                if pair in p.blocks
            }
            if len(keys) > 1:
                raise PlanError(
                    f"The plans split {set_name(pair)} in different ways, so that its residual"
                    ' spaces are not the same. Plan all options with centers="uniform".'
                )
            if complement is not None:
                complements[pair] = complement
    return Split(centers=centers, complements=complements)


FORMAT = "coarse-or-fine/1"
CLOSER_LOOK_NAME = "look closer"
MAX_STRETCH_STEPS = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Residual:
    """Residual of one plan: what must be measured after the look to have the plan's information.

    Attributes
    ----------
    schema, max_records : as in the plan.
    blocks : residual space -> strategy, noise and grid; without the spaces that the look covers.
    rests : for the spaces that the look measures, the residual that combines both steps.
    spend : cost of this step, in pcost; 0 if there is nothing to measure.
    rows_per_person : largest number of rows of one person that are counted.
    """

    schema: Schema
    max_records: int
    blocks: Mapping[Space, Block]
    rests: Mapping[Space, BlockResidual]
    spend: float
    rows_per_person: int = 1

    @cached_property
    def pcost(self) -> float:
        """Privacy cost of these blocks alone, rounded up; with the look, the two spends cover it."""
        return Budget(pcost=1.0, rows_per_person=self.rows_per_person).of_person(
            total_pcost(self.blocks, self.max_records)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CommonPlan:
    """Several plans with their common part and residuals, as returned by `coarse_or_fine`.

    Attributes
    ----------
    options, names : the plans to choose from, and their names on screen.
    look : plan of the common part; its workload has the groups of the options that it answers in
        full.
    residuals : the residual of each plan.
    matches : residual space -> method that computed its common part, as text.
    stretch : factor of all noise against the plans alone; above 1 only if rounding would exceed the
        budget.
    following : the next choice of a chain; its look is the last option here; see `nested_choices`.
    """

    options: tuple[Plan, ...]
    names: tuple[str, ...]
    look: Plan
    residuals: tuple[Residual, ...]
    matches: Mapping[Space, str]
    stretch: float
    following: CommonPlan | None = None

    @property
    def analyses(self) -> tuple[tuple[str, Plan], ...]:
        """Names and plans of all analyses that can be reached, including those of later choices."""
        direct = tuple(zip(self.names, self.options, strict=True))
        return direct if self.following is None else (*direct[:-1], *self.following.analyses)

    @property
    def spends(self) -> tuple[tuple[float, float], ...]:
        """Costs (look, residual) of every choice; their decimals sum exactly to the plan's pcost."""
        return tuple((self.look.budget.pcost, r.spend) for r in self.residuals)

    @property
    def saved(self) -> float:
        """Cost (pcost) of a separate look, as a share of the largest pcost of a plan."""
        return self.look.budget.pcost / max(option_cost(p) for p in self.options)

    @property
    def maximal(self) -> bool:
        """Whether no larger common part exists, up to the dense solver's proven gap."""
        return all(text in ("closed form", "dense") for text in self.matches.values())

    @cached_property
    def hash(self) -> str:
        """Identity of the options, in their order."""
        following_hash = "" if self.following is None else self.following.hash
        return hashlib.sha256(
            "|".join([FORMAT, following_hash, *(p.hash for p in self.options)]).encode()
        ).hexdigest()

    def position(self, option: int | str) -> int:
        """Return the position of an option, by its position or name.

        Raises
        ------
        PlanError
            There is no such option.
        """
        if isinstance(option, str) and option in self.names:
            return self.names.index(option)
        if (
            isinstance(option, int)
            and not isinstance(option, bool)
            and 0 <= option < len(self.options)
        ):
            return option
        raise PlanError(
            f"There is no option {option!r}; there are {', '.join(map(repr, self.names))}."
        )

    def budget_shares(self) -> pd.DataFrame:
        """Return one row per option for a bar chart: costs of look, residual and both.

        Columns: option, shared, own and total, in pcost; total is exactly the sum of the other two.
        """
        import pandas as pd

        rows = [
            (n, a, b, option_cost(p))
            for n, (a, b), p in zip(self.names, self.spends, self.options, strict=True)
        ]
        return pd.DataFrame(rows, columns=["option", "shared", "own", "total"])

    def by_space(self) -> pd.DataFrame:
        """Return one row per residual space and option, with the pcost of its block.

        Columns: attributes, option, total (the plan's block), shared (the look's block) and found
        (the method that computed the common part).
        """
        import pandas as pd

        rows = []
        for name, plan in zip(self.names, self.options, strict=True):
            for space, block in plan.blocks.items():
                look = self.look.blocks.get(space)
                shared = 0.0 if look is None else look.pcost(plan.max_records)
                rows.append(
                    (
                        space,
                        name,
                        block.pcost(plan.max_records),
                        shared,
                        self.matches.get(space, "not in all"),
                    )
                )
        return pd.DataFrame(rows, columns=["attributes", "option", "total", "shared", "found"])

    def combine(
        self, option: int, look: Mapping[Space, Array], answers: Mapping[Space, Array]
    ) -> dict[Space, Array]:
        """Return the residual coordinates of every space of an option, estimated from both steps.

        Parameters
        ----------
        option : position of the option.
        look : residual coordinates estimated by the look, shape (n_1 - 1, ..., n_k - 1) per space.
        answers : answers of the option's residual, in counts, one axis per factor of the block.

        Guarantee: the estimates are unbiased and have the plan's covariance.
        """
        coordinates = {}
        for space in self.options[option].blocks:
            if space in self.residuals[option].rests:
                rest_of_space = self.residuals[option].rests[space]
                coordinates[space] = rest_of_space.combine(look[space], answers.get(space))
            else:
                block = self.residuals[option].blocks[space]
                coordinates[space] = undo_factors(block, answers[space])
        return coordinates

    def to_json(self) -> str:
        """Return the options as JSON text; `from_json` computes the same split from them."""
        plans = [json.loads(p.to_json()) for _, p in self.analyses]
        names, chain = [name for name, _ in self.analyses], self.following is not None
        data = {
            "format": FORMAT,
            "names": names,
            "options": plans,
            "chain": chain,
            "hash": self.hash,
        }
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> CommonPlan:
        """Return what `to_json` wrote.

        Raises
        ------
        PlanError
            The text is damaged, or was changed.
        """
        try:
            data = parse_json(text)
        except ValueError:
            raise PlanError("The file of options is not valid JSON. Export it again.") from None
        if (
            not isinstance(data, dict)
            or data.get("format") != FORMAT
            or not isinstance(data.get("options"), list)
        ):
            raise PlanError(f'This is no file of options. Give JSON with "format": "{FORMAT}".')
        names = data.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise PlanError("The names in the file of options are damaged. Export it again.")
        split = nested_choices if data.get("chain") else coarse_or_fine
        common = split(*(load_plan(json.dumps(p)) for p in data["options"]), names=names)
        # the file stores requests only: the split is computed again, so a changed file has no
        # effect
        if common.hash != data.get("hash"):
            raise PlanError(
                "The file of options was changed after it was written. Export it again."
            )
        return common


def coarse_or_fine(*options: Plan, names: Sequence[str] | None = None) -> CommonPlan:
    """Split plans into their common part (the look) and one residual per plan; reads no records.

    Parameters
    ----------
    options : two plans or more on one schema; their budgets may differ.
    names : names of the options on screen.

    Guarantee: for every option, look and residual have the plan's output distribution; their spends
    sum to the plan's pcost to the last digit; and the privacy cost of both, computed again from the
    rounded blocks that will be released, is at most that.

    Raises
    ------
    PlanError
        There are fewer than two plans; they have different schemas or splits, measure several
        spaces with one strategy, or have no common part.
    LimitExceeded
        Blocks are too large to be compared in memory.

    >>> from engine import Attribute, Budget, plan, Workload
    >>> schema = Schema([Attribute.of_size(name, 2) for name in "abcdefg"])
    >>> ways = [plan(Workload.all_ways(schema, ways=k, family="marginal"), Budget(pcost=1.0)) for k in (1, 2)]
    >>> both = coarse_or_fine(*ways, names=["one-way", "two-way"])
    >>> round(both.saved, 3), both.maximal, [round(cost, 3) for _, cost in both.spends]
    (0.509, True, [0.491, 0.491])
    """
    names = _checked_names(options, names)
    unit = _agreed_unit(options)
    split = joint_split(options, names)
    # rounding is charged for this number of records, so the look is valid up to the smallest limit
    max_records = min(p.max_records for p in options)
    # only a space that every option measures can have a common part
    spaces = [s for s in options[0].blocks if all(s in p.blocks for p in options)]
    ungridded, methods = dict[Space, Block](), dict[Space, str]()
    for space in spaces:
        space_blocks = [p.blocks[space] for p in options]
        block, methods[space] = common_block(
            space_blocks, split.centers_of(space), split.complements.get(space)
        )
        if block is not None:
            ungridded[space] = block
    if not ungridded:
        raise PlanError(
            "These plans share nothing, so there is nothing to look at. Choose plans with a query"
            " in common, such as the total, or tables on some of the same attributes."
        )
    stretch = 1.0
    for _ in range(MAX_STRETCH_STEPS):
        # the look is rounded to its grid first, and the residuals are those of the rounded look
        look = {
            space: round_noise_up(block, block.noise * stretch, max_records)
            for space, block in ungridded.items()
        }
        rests = [
            {
                space: block_residual(block, p.blocks[space], max_records, stretch)
                for space, block in look.items()
            }
            for p in options
        ]
        residual_blocks = [
            _residual_blocks(p, plan_rests, max_records, stretch)
            for p, plan_rests in zip(options, rests, strict=True)
        ]
        costs = [
            unit.of_person(_joint_cost([look, plan_blocks], max_records, p.joint)) / option_cost(p)
            for plan_blocks, p in zip(residual_blocks, options, strict=True)
        ]
        if max(costs) <= 1.0:
            break
        # costs fall with the square of the noise; one more grid step, because noise is rounded up
        # to the grid
        stretch *= math.sqrt(max(costs)) * (1.0 + 2.0**-GRID_BITS)
    else:
        raise PlanError(
            f"Look and residual together cost {max(costs)} times what a plan alone costs. The split"
            " is refused; lower max_records, or ask fewer queries."
        )
    # the cost of the look does not depend on the later choice, because it is spent before it
    joint = any(p.joint for p in options) and cells_pcost(look, max_records) < total_pcost(
        look, max_records
    )
    look_cost = cells_pcost(look, max_records) if joint else total_pcost(look, max_records)
    spends = exact_split(
        unit.of_person(look_cost),
        [option_cost(p) for p in options],
        own=[bool(plan_blocks) for plan_blocks in residual_blocks],
    )
    residuals = tuple(
        Residual(
            schema=p.schema,
            max_records=max_records,
            blocks=plan_blocks,
            rests=plan_rests,
            spend=spend,
            rows_per_person=unit.rows_per_person,
        )
        for p, plan_blocks, plan_rests, (_, spend) in zip(
            options, residual_blocks, rests, spends, strict=True
        )
    )
    return CommonPlan(
        options=options,
        names=names,
        look=look_plan(options, look, spends[0][0], max_records, split, joint),
        residuals=residuals,
        matches=methods,
        stretch=stretch,
    )


def nested_choices(*options: Plan, names: Sequence[str] | None = None) -> CommonPlan:
    """Split plans from coarse to fine into a chain of choices: take the coarsest plan, or go on.

    The last choice is between the last two plans.  Each choice before it is between one plan and
    the look of the next choice: to go on is to measure the residual of that look after the present
    one.  Every path through the chain costs what the plan at its end costs alone.  Arguments and
    errors are those of `coarse_or_fine`.

    Notes
    -----
    Source: section 7.5.3.  A look here is the common part of its plan and the next look.  For
    nested analyses, as in that section, it is the common part of all remaining analyses.

    >>> from engine import Attribute, Budget, plan, Workload
    >>> schema = Schema([Attribute.of_size(name, 2) for name in "abcd"])
    >>> ways = [plan(Workload.all_ways(schema, ways=k, family="marginal"), Budget(pcost=1.0)) for k in (1, 2, 3)]
    >>> first = nested_choices(*ways)
    >>> first.names, first.following.names
    (('option 1', 'look closer'), ('option 2', 'option 3'))
    """
    names = _checked_names(options, names)
    if CLOSER_LOOK_NAME in names:
        raise PlanError(
            f"{CLOSER_LOOK_NAME!r} stands for the next choice; give the option another name."
        )
    # from the finest plan backwards, because a look must lie below the look that may follow it
    chain = coarse_or_fine(*options[-2:], names=names[-2:])
    # to go on is an option whose plan is the look of the next choice
    for option, name in zip(reversed(options[:-2]), reversed(names[:-2]), strict=True):
        previous = coarse_or_fine(option, chain.look, names=[name, CLOSER_LOOK_NAME])
        if not previous.residuals[1].blocks:
            raise PlanError(
                f"A closer look than '{name}' would measure nothing new. Leave this option out, or"
                " choose between all of them at once with coarse_or_fine."
            )
        chain = replace(previous, following=chain)
    _check_paths(chain)
    return chain


def _joint_cost(steps: Sequence[Mapping[Space, Block]], max_records: int, joint: bool) -> float:
    """Return the cost of several steps on the same records.

    Where ``joint``, it is at most the maximum over cells of the cost of all blocks.
    """
    cost = joint_pcost(steps, max_records)
    if not joint:
        return cost
    blocks = {
        (number, space): block for number, step in enumerate(steps) for space, block in step.items()
    }
    return min(cost, cells_pcost(blocks, max_records))


def _check_paths(chain: CommonPlan) -> None:
    """Refuse a chain in which all that is released on a way together passes what its end costs."""
    released: list[Mapping[Space, Block]] = [chain.look.blocks]
    choice: CommonPlan | None = chain
    while choice is not None:
        for i, (option, residual) in enumerate(zip(choice.options, choice.residuals, strict=True)):
            joint_cost = _joint_cost(
                [*released, residual.blocks], residual.max_records, option.joint
            )
            cost = option.budget.of_person(joint_cost)
            if cost > option_cost(option):
                raise PlanError(
                    f"The steps to '{choice.names[i]}' round so often that together they cost"
                    f" {cost}, over the {option_cost(option)} of the plan. Lower max_records, or"
                    " use coarse_or_fine."
                )
        # going on measures the last residual, whichever option is reached in the end
        released.append(choice.residuals[-1].blocks)
        choice = choice.following


def _agreed_unit(options: Sequence[Plan]) -> Budget:
    """Return a budget with the rows per person of all options.

    Raises
    ------
    PlanError
        The options protect differently, or their neighbours or invariants have no common part.
    """
    unit = options[0].budget
    if any(
        (p.budget.rows_per_person, p.budget.neighbours) != (unit.rows_per_person, unit.neighbours)
        for p in options
    ):
        raise PlanError(
            "The plans protect different things: their rows per person or neighbours differ. Give"
            " all of them budgets of one kind."
        )
    if options[0].schema.invariants:
        raise PlanError(
            "The common part of plans is not available with exact totals. Use a schema without"
            " invariants, or release one plan alone."
        )
    # replacing a record changes two cells, and the largest sum over pairs of cells is not a sum
    # over spaces
    if unit.neighbours == REPLACE_ONE:
        raise PlanError(
            "The common part of plans is available for neighbours that add or remove a record, not"
            ' for those that replace one. Plan with neighbours="add_remove".'
        )
    return unit


def _residual_blocks(
    option: Plan, rests: Mapping[Space, BlockResidual], max_records: int, stretch: float
) -> dict[Space, Block]:
    """Return the blocks that remain for an option; without a look it is the plan's block."""
    blocks = {}
    for space, block in option.blocks.items():
        if space not in rests:
            # one factor for all noise, so that the shares of the blocks remain optimal
            blocks[space] = (
                block
                if stretch == 1.0
                else round_noise_up(block, block.noise * stretch, max_records)
            )
        elif (residual_block := rests[space].block) is not None:
            blocks[space] = residual_block
    return blocks


def _checked_names(options: Sequence[Any], names: Sequence[str] | None) -> tuple[str, ...]:
    if len(options) < 2 or not all(isinstance(p, Plan) for p in options):
        raise PlanError(f"There are {len(options)} arguments; give at least two plans.")
    check_type(
        "names",
        names,
        (Sequence, type(None)),
        give="a list of texts, one per plan",
        error=PlanError,
    )
    if any(p.schema != options[0].schema for p in options):
        raise PlanError(
            "The plans are for different schemas. Plan all of them with the same schema."
        )
    chosen = (
        tuple(f"option {i + 1}" for i in range(len(options))) if names is None else tuple(names)
    )
    are_valid = all(
        isinstance(n, str) and n.isprintable() and 0 < len(n.strip()) <= 80 for n in chosen
    )
    if (
        len(chosen) != len(options)
        or len(set(chosen)) != len(chosen)
        or not are_valid
        or "stop" in chosen
    ):
        raise PlanError(
            f"There are {len(chosen)} names for {len(options)} plans; give one name per plan:"
            " different lines of 1 to 80 characters, none of them 'stop'."
        )
    return chosen
