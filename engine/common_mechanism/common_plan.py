"""Division of several plans into their common part and one residual per plan.

`coarse_or_fine` divides plans on one schema into two stages.  The first stage, the look, measures
the common part of all plans.  After one of the plans is chosen from the answers of the look, the
second stage measures the residual of this plan.  Both stages together have the output distribution
and the privacy cost of the chosen plan, so that the choice costs nothing.  `nested_choices` builds
a chain of such choices.

The common part is computed one residual space at a time, so all plans must divide tables into
residual spaces in the same way.  This is the case if the centers of all plans are uniform, or if
all plans have the same tuned centers and complements (splits of pairs).  Plans that measure several
residual spaces with one strategy (tuned plans on small domains, for example) are refused.

In both stages, answers are rounded to a noise grid, and rounding costs privacy.  The grids of both
stages are finer than that of a plan, so that rounding twice usually costs less than rounding the
answers of the plan once.  If it costs more, all noise is multiplied by one factor, `stretch`, and
exceeds the noise of the plan.

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
from engine.errors import LimitExceeded, PlanError
from engine.mechanisms import load_plan
from engine.plans import Block, Plan
from engine.plans.blocks import cells_pcost, joint_pcost, total_pcost, undo_factors
from engine.privacy import REPLACE_ONE, Budget
from engine.residuals import Complement, Space, Split, digest
from engine.residuals.operators import MIN_WIDE_CELLS, Operator
from engine.workload import Schema, Workload

if TYPE_CHECKING:
    import pandas as pd


MECHANISM = "common part"


def option_cost(option: Plan) -> float:
    """Return what the ledger is charged for an option, in pcost.

    A plan is charged its pcost.  An option that is the look (first stage) of a later choice is
    charged the budget of this look.
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
    """Return the look (first stage) as a plan.

    The workload of this plan contains every group of the options for which the look answers all
    queries.  If there is no such group, but the look measures the total, the workload is the total.

    Parameters
    ----------
    options : the plans to choose from.
    blocks : mapping from residual space to the common part of the plans' blocks.
    spend : cost of the look, in pcost.
    max_records : largest allowed number of records.
    split : centers, of shape (n_i,), and complements (splits of pairs) of all plans.
    joint : whether the joint sensitivity of the blocks is charged, as in `Plan`.
    """
    groups = {(g.attributes, g.key): g for p in options for g in p.workload.groups}
    used = {name for space in blocks for name in space}
    full_plan = Plan(
        # Weight 0, because a plan must answer all groups of positive weight. Groups that the look
        # (first stage) does not answer are removed below.
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
        if set(g.attributes) <= used and _is_answered(full_plan, i)
    ]
    answered = tuple(list(groups.values())[i] for i in answered_positions)
    workload = Workload(full_plan.schema, answered)
    if not answered and () in blocks:
        workload = workload.add((), "total")
    return replace(full_plan, workload=workload)


def _is_answered(plan: Plan, group: int) -> bool:
    """Return whether a plan determines all queries of a group."""
    return math.isfinite(plan.group_variance(group).total())


def joint_split(options: Sequence[Plan], names: Sequence[str]) -> Split:
    """Return the centers and complements (splits of pairs) of all plans together.

    Raises
    ------
    PlanError
        Two plans have different centers or complements on the same attributes, or a plan measures
        full tables or several residual spaces with one strategy.
    """
    # The subclasses of Plan measure full tables.
    full_table_mechanisms = [p.mechanism for p in options if type(p) is not Plan]
    if full_table_mechanisms:
        raise PlanError(
            f"A plan of the mechanism {full_table_mechanisms[0]!r} measures full tables, but a"
            " two-stage release needs plans that measure residual spaces. Plan with 'querysmasher',"
            " 'residualplanner' or 'wff'."
        )
    plans_with_unions = [name for name, p in zip(names, options, strict=True) if p.split.unions]
    if plans_with_unions:
        raise PlanError(
            f"The plan '{plans_with_unions[0]}' measures several residual spaces with one strategy."
            " A two-stage release needs plans that measure each residual space separately. Plan all"
            ' options with centers="uniform".'
        )
    return Split(centers=_joint_centers(options), complements=_joint_complements(options))


def _joint_centers(options: Sequence[Plan]) -> dict[str, Array]:
    """Return the tuned centers by attribute; raise PlanError if they differ between plans."""
    joint_centers = {}
    for name in dict.fromkeys(name for p in options for space in p.blocks for name in space):
        measuring_plans = [p for p in options if any(name in space for space in p.blocks)]
        centers = [p.split.centers.get(name) for p in measuring_plans]
        if any(digest(c) != digest(centers[0]) for c in centers):
            raise PlanError(
                f"The plans have different centers for '{name}', so that their residual spaces"
                ' differ. Plan all options with centers="uniform".'
            )
        if centers[0] is not None:
            joint_centers[name] = centers[0]
    return joint_centers


def _joint_complements(options: Sequence[Plan]) -> dict[Space, Complement]:
    """Return tuned splits (complements) by pair; raise PlanError if they differ between plans."""
    joint_complements: dict[Space, Complement] = {}
    for pair in dict.fromkeys(space for p in options for space in p.blocks if len(space) == 2):
        complements = [p.split.complements.get(pair) for p in options if pair in p.blocks]
        if len({None if c is None else c.key for c in complements}) > 1:
            raise PlanError(
                f"The plans have different complements for {set_name(pair)}, so that their"
                ' residual spaces differ. Plan all options with centers="uniform".'
            )
        if complements[0] is not None:
            joint_complements[pair] = complements[0]
    return joint_complements


FORMAT = "coarse-or-fine/1"
CLOSER_LOOK_NAME = "look closer"
MAX_STRETCH_STEPS = 20  # number of factors of the noise that are tried


@dataclass(frozen=True, kw_only=True, eq=False)
class Residual:
    """What remains to be measured after the look (first stage) if one plan is chosen.

    Attributes
    ----------
    schema : schema of the plan.
    max_records : largest allowed number of records.  The cost of rounding answers, which is part of
        `spend`, grows with it.
    blocks : mapping from residual space to the block that remains to be measured.  A space is
        absent if the look measures it with the full precision of the plan.
    block_residuals : mapping from each residual space that the look measures to its
        `BlockResidual`, which combines the answers of both stages.
    spend : cost of this stage on the ledger, in pcost; can be 0 only if there is nothing to
        measure.
    rows_per_person : number of rows of one person that the cost protects.
    """

    schema: Schema
    max_records: int
    blocks: Mapping[Space, Block]
    block_residuals: Mapping[Space, BlockResidual]
    spend: float
    rows_per_person: int = 1

    @cached_property
    def pcost(self) -> float:
        """Privacy cost of measuring `blocks` without the look (first stage), rounded up.

        The result can exceed `spend`, which is the cost of the plan minus the cost of the look.  In
        every cell, the costs of both stages sum to at most the cost of the plan, but the most
        expensive cells of the two stages may differ.
        """
        return Budget(pcost=1.0, rows_per_person=self.rows_per_person).of_person(
            total_pcost(self.blocks, self.max_records)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class CommonPlan:
    """Several plans with their common part and residuals, as `coarse_or_fine` returns them.

    Attributes
    ----------
    options, names : the plans from which one is chosen after the look (first stage), and their
        names on screen.
    look : plan of the common part, which is measured first.
    residuals : for each option, what remains to be measured after the look.
    matches : mapping from residual space to the name of the method that computed the common part.
    stretch : factor by which all noise is multiplied.  It is above 1 only if the costs of rounding
        twice would otherwise exceed the cost of a plan.
    following : the next choice in a chain of choices, see `nested_choices`; None for the last
        choice.  The last of the `options` is the look of ``following``.
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
        """Name and plan of every analysis that can be chosen here or in later choices of a
        chain."""
        direct = tuple(zip(self.names, self.options, strict=True))
        return direct if self.following is None else (*direct[:-1], *self.following.analyses)

    @property
    def spends(self) -> tuple[tuple[float, float], ...]:
        """Pair (pcost of the first stage, pcost of the residual) of every option.

        Their decimal numbers sum exactly to the cost of the option (`option_cost`).
        """
        return tuple((self.look.budget.pcost, r.spend) for r in self.residuals)

    @property
    def saved(self) -> float:
        """Pcost of the look (first stage) divided by the largest pcost of an option.

        A separate measurement for the choice would cost as much as the look in addition.  It is
        saved, because the look is reused for the chosen plan.
        """
        return self.look.budget.pcost / max(option_cost(p) for p in self.options)

    @property
    def maximal(self) -> bool:
        """Whether no larger common part exists, up to the proven gap of the dense solver."""
        return all(text in ("closed form", "dense") for text in self.matches.values())

    @cached_property
    def hash(self) -> str:
        """Hash of the options' plans in their order, including those of later choices."""
        following_hash = "" if self.following is None else self.following.hash
        return hashlib.sha256(
            "|".join([FORMAT, following_hash, *(p.hash for p in self.options)]).encode()
        ).hexdigest()

    def position(self, option: int | str) -> int:
        """Return the position of the option that is given by its name or its position.

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
            f"There is no option {option!r}. Choose one of {', '.join(map(repr, self.names))}."
        )

    def budget_shares(self) -> pd.DataFrame:
        """Return a table of costs with one row per option.

        Columns: option (name), shared (pcost of the look, the first stage), own (pcost of the
        residual) and total (their exact sum).
        """
        import pandas as pd

        rows = [
            (n, a, b, option_cost(p))
            for n, (a, b), p in zip(self.names, self.spends, self.options, strict=True)
        ]
        return pd.DataFrame(rows, columns=["option", "shared", "own", "total"])

    def by_space(self) -> pd.DataFrame:
        """Return a table of the costs of blocks, with one row per option and residual space.

        Columns: attributes (of the residual space), option (name), total (pcost of the plan's
        block), shared (pcost of the block of the look, the first stage; 0 if the look does not
        measure the space) and found (name of the method that computed the common part; "not in all"
        if an option does not measure the space).
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
        """Return the estimates of an option from both stages, for every residual space of its plan.

        Parameters
        ----------
        option : position of the option.
        look : mapping from residual space to the coordinates that the first stage (the look)
            estimates, in counts, shape (n_1 - 1, ..., n_k - 1).
        answers : mapping from residual space to the answers of the second stage, in counts, with
            one axis per factor of the block.

        Returns
        -------
        Mapping from residual space to estimated residual coordinates, in counts.

        Guarantee: the estimates are unbiased and have the covariance of the plan measured alone,
        times the square of `stretch`.
        """
        coordinates = {}
        for space in self.options[option].blocks:
            if space in self.residuals[option].block_residuals:
                block_residual = self.residuals[option].block_residuals[space]
                coordinates[space] = block_residual.combine(look[space], answers.get(space))
            else:
                block = self.residuals[option].blocks[space]
                coordinates[space] = undo_factors(block, answers[space])
        return coordinates

    def to_json(self) -> str:
        """Return the plans and names of all options as JSON text.

        `from_json` computes the common part and the residuals from these plans.
        """
        plans = [json.loads(p.to_json()) for _, p in self.analyses]
        names = [name for name, _ in self.analyses]
        chain = self.following is not None
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
        """Rebuild a common plan from the text that `to_json` wrote.

        The common part of the plans (the look) and their residuals are computed again.

        Raises
        ------
        PlanError
            The text is damaged, or was changed.
        """
        try:
            data = parse_json(text)
        except ValueError:
            raise PlanError(
                "The file of the common plan cannot be read as JSON. Restore it from a copy."
            ) from None
        if (
            not isinstance(data, dict)
            or data.get("format") != FORMAT
            or not isinstance(data.get("options"), list)
        ):
            raise PlanError(
                f'This is not a file of a common plan in the format "{FORMAT}". Give a file that'
                " CommonPlan.to_json() wrote."
            )
        names = data.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise PlanError(
                "The file of the common plan is damaged: the names are not a list of texts. Restore"
                " it from a copy."
            )
        split = nested_choices if data.get("chain") else coarse_or_fine
        common = split(*(load_plan(json.dumps(p)) for p in data["options"]), names=names)
        # costs are not read from the file but computed from the plans; the hash shows whether the
        # plans were changed
        if common.hash != data.get("hash"):
            raise PlanError(
                "The file of the common plan was changed after it was written. Restore it from a"
                " copy."
            )
        return common


def coarse_or_fine(*options: Plan, names: Sequence[str] | None = None) -> CommonPlan:
    """Divide plans into their common part and one residual per plan; no records are read.

    The common part (the look) is measured first.  After a plan is chosen, its residual is measured.

    Parameters
    ----------
    options : two or more plans on one schema, from coarse to fine; their budgets may differ.
    names : names of the options on screen, by default "option 1", "option 2", ...

    Guarantee: for every option, look and residual together have the output distribution of its
    plan, with all noise multiplied by `CommonPlan.stretch`.  Their charges sum to the pcost of the
    plan to the last digit.  The privacy cost of both stages, computed from the blocks with their
    rounded noise, is at most this sum.

    Raises
    ------
    PlanError
        There are fewer than two plans, or the names are not allowed.  The plans have different
        schemas, privacy units, centers or complements (splits of pairs).  A plan measures full
        tables, or several residual spaces with one strategy.  The schema has invariants, or
        neighbours replace a record.  The plans have no common part, or their costs cannot be
        divided between the two stages.
    LimitExceeded
        Blocks are too large to be compared in memory, or all plans measure an attribute of 1,000
        cells or more.

    >>> from engine import Attribute, Budget, plan, Workload
    >>> schema = Schema([Attribute.of_size(name, 2) for name in "abcdefg"])
    >>> ways = [plan(Workload.all_ways(schema, ways=k, family="marginal"), Budget(pcost=1.0)) for k in (1, 2)]
    >>> both = coarse_or_fine(*ways, names=["one-way", "two-way"])
    >>> round(both.saved, 3), both.maximal, [round(cost, 3) for _, cost in both.spends]
    (0.509, True, [0.491, 0.491])
    """
    return _split_options(options, _checked_names(options, names), 1.0)


def _split_options(
    options: Sequence[Plan], names: tuple[str, ...], min_stretch: float
) -> CommonPlan:
    """Return the common plan of `coarse_or_fine`, with all noise multiplied by one factor.

    The factor is ``min_stretch``, or larger if look and residual of an option would otherwise cost
    more than its plan.
    """
    unit = _agreed_unit(options)
    split = joint_split(options, names)
    # The cost of rounding grows with max_records. The cost of the first stage (look) must not
    # exceed the cost of any plan, so it includes the rounding for the smallest max_records of the
    # plans.
    max_records = min(p.max_records for p in options)
    exact_look, methods = _exact_look(options, split)
    look, block_residuals, residual_blocks, stretch = _affordable_stages(
        options, exact_look, unit, max_records, min_stretch
    )
    # The look (first stage) is charged before the choice, so its cost is the same for all options.
    # A plan may be charged its joint cost (maximum over cells of the summed costs of its blocks)
    # instead of the sum of the costs of its blocks. If any plan is charged its joint cost, the look
    # is charged its joint cost or the sum, whichever is smaller.
    joint = any(p.joint for p in options) and cells_pcost(look, max_records) < total_pcost(
        look, max_records
    )
    look_cost = cells_pcost(look, max_records) if joint else total_pcost(look, max_records)
    spends = exact_split(
        unit.of_person(look_cost),
        [option_cost(p) for p in options],
        has_residual=[bool(plan_blocks) for plan_blocks in residual_blocks],
    )
    residuals = tuple(
        Residual(
            schema=p.schema,
            max_records=max_records,
            blocks=plan_blocks,
            block_residuals=plan_block_residuals,
            spend=spend,
            rows_per_person=unit.rows_per_person,
        )
        for p, plan_blocks, plan_block_residuals, (_, spend) in zip(
            options, residual_blocks, block_residuals, spends, strict=True
        )
    )
    return CommonPlan(
        options=tuple(options),
        names=names,
        look=look_plan(options, look, spends[0][0], max_records, split, joint),
        residuals=residuals,
        matches=methods,
        stretch=stretch,
    )


def _exact_look(
    options: Sequence[Plan], split: Split
) -> tuple[dict[Space, Block], dict[Space, str]]:
    """Return the common block of all options in each residual space, and how it was computed.

    The noise of the blocks is not rounded.  The first mapping leaves out spaces without a common
    part.

    Raises
    ------
    LimitExceeded
        An attribute has too many cells, or a block is too large for dense matrices.
    PlanError
        No space has a common part.
    """
    # a space can have a common part only if every option measures it
    spaces = [s for s in options[0].blocks if all(s in p.blocks for p in options)]
    exact_look, methods = dict[Space, Block](), dict[Space, str]()
    for space in spaces:
        space_blocks = [p.blocks[space] for p in options]
        for space_block in space_blocks:
            if any(isinstance(strategy.rows, Operator) for _, strategy in space_block.factors):
                raise LimitExceeded(
                    f"The tables on {set_name(space)} have an attribute of {MIN_WIDE_CELLS:,} cells"
                    " or more. A common part is computed only on attributes with fewer cells."
                    " Choose tables without this attribute, or merge its cells."
                )
        block, methods[space] = common_block(
            space_blocks, split.centers_of(space), split.complements.get(space)
        )
        if block is not None:
            exact_look[space] = block
    if not exact_look:
        raise PlanError(
            "These plans have no common part, so there is nothing to measure before the choice. "
            "Give plans that share a query, such as the total, or have tables on the same attributes."
        )
    return exact_look, methods


def _affordable_stages(
    options: Sequence[Plan],
    exact_look: Mapping[Space, Block],
    unit: Budget,
    max_records: int,
    stretch: float,
) -> tuple[dict[Space, Block], list[dict[Space, BlockResidual]], list[dict[Space, Block]], float]:
    """Round the noise of the look, and multiply all noise until no option costs too much.

    Parameters
    ----------
    exact_look : see `_exact_look`.
    unit : budget with the privacy unit of the options, for the cost of a person.
    stretch : smallest factor of the noise.

    Returns
    -------
    look : residual space -> block with rounded noise.
    block_residuals : for each option, residual space of the look -> what remains of its block.
    residual_blocks : for each option, the blocks to measure after the look.
    stretch : factor of the noise; look and residual of each option cost at most as much as its
        plan.
    """
    for _ in range(MAX_STRETCH_STEPS):
        # the noise of the look (first stage) is rounded to its grid before the residuals are
        # computed from the look
        look = {
            space: round_noise_up(block, block.noise * stretch, max_records)
            for space, block in exact_look.items()
        }
        block_residuals = [
            {
                space: block_residual(block, p.blocks[space], max_records, stretch)
                for space, block in look.items()
            }
            for p in options
        ]
        residual_blocks = [
            _residual_blocks(p, plan_block_residuals, max_records, stretch)
            for p, plan_block_residuals in zip(options, block_residuals, strict=True)
        ]
        relative_costs = [
            unit.of_person(_joint_cost([look, plan_blocks], max_records, p.joint)) / option_cost(p)
            for plan_blocks, p in zip(residual_blocks, options, strict=True)
        ]
        if max(relative_costs) <= 1.0:
            return look, block_residuals, residual_blocks, stretch
        # costs are inversely proportional to the squared noise; the second factor allows for the
        # rounding of the noise to its grid
        stretch *= math.sqrt(max(relative_costs)) * (1.0 + 2.0**-GRID_BITS)
    raise PlanError(
        f"Both stages together would cost {max(relative_costs)} times as much as one of the "
        "plans alone, because answers are rounded twice. Plan with a smaller max_records, or "
        "with fewer queries."
    )


def nested_choices(*options: Plan, names: Sequence[str] | None = None) -> CommonPlan:
    """Return a chain of choices between plans, which are given from coarse to fine.

    A look precedes each choice.  With three or more plans, the first choice is between the first
    plan and the option "look closer".  "look closer" measures a second look, which leads to a
    choice between the second plan and the option "look closer" again, and so on.  The last choice
    is between the last two plans.  All looks and the residual of the plan that is chosen in the end
    cost together at most as much as this plan alone.

    Arguments and errors are those of `coarse_or_fine`.  PlanError is also raised if a name is "look
    closer", if a further look would measure nothing, or if the rounding of all stages costs too
    much.

    Notes
    -----
    Source: section 7.5.3.  The look before the last choice is the common part of the last two
    plans. The look before any other choice is the common part of the next plan and the next look.
    For nested analyses, as in that section, each look is the common part of all plans that can
    still be chosen.

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
            f"The name {CLOSER_LOOK_NAME!r} is reserved for the option that leads to the next "
            "choice. Give the plan another name."
        )
    # In each choice, the two stages together cost at most as much as the plan. All stages of a
    # chain together can cost slightly more, because answers are rounded more often. Therefore the
    # noise is multiplied by ``stretch``, which increases until the cost of the chain is small
    # enough.
    stretch = 1.0
    for _ in range(MAX_STRETCH_STEPS):
        chain = _chain(options, names, stretch)
        relative_cost = _largest_relative_cost(chain)
        if relative_cost <= 1.0:
            return chain
        stretch *= math.sqrt(relative_cost) * (1.0 + 2.0**-GRID_BITS)
    raise PlanError(
        f"All stages that lead to one option would cost {relative_cost} times as much as its plan,"
        " because every stage rounds its answers. Lower max_records, or choose between all options at once."
    )


def _chain(options: Sequence[Plan], names: tuple[str, ...], min_stretch: float) -> CommonPlan:
    """Return a chain of choices with all noise multiplied by at least ``min_stretch``."""
    # start with the last choice, because its first stage (look) is an option of the choice before
    chain = _split_options(options[-2:], names[-2:], min_stretch)
    # `chain.look` is the second option of the choice before `chain`
    for option, name in zip(reversed(options[:-2]), reversed(names[:-2]), strict=True):
        previous = _split_options((option, chain.look), (name, CLOSER_LOOK_NAME), min_stretch)
        if not previous.residuals[1].blocks:
            raise PlanError(
                f"After the choice about '{name}', the next stage has nothing to measure, because"
                f" an earlier stage measured the same already. Leave '{name}' out, or choose between"
                " all options at once."
            )
        chain = replace(previous, following=chain)
    return chain


def _joint_cost(steps: Sequence[Mapping[Space, Block]], max_records: int, joint: bool) -> float:
    """Return the privacy cost of the blocks of several stages on the same records, in pcost.

    Without ``joint``, it is the sum of the costs of all residual spaces; the cost of a space is the
    maximum over cells of the summed costs of its blocks.  With ``joint``, it is the minimum of this
    sum and of the maximum over cells of the summed costs of all blocks.
    """
    cost = joint_pcost(steps, max_records)
    if not joint:
        return cost
    blocks = {
        (number, space): block for number, step in enumerate(steps) for space, block in step.items()
    }
    return min(cost, cells_pcost(blocks, max_records))


def _largest_relative_cost(chain: CommonPlan) -> float:
    """Return the largest of the ratios (privacy cost / charge) of all options of a chain.

    The privacy cost of an option is that of all stages that are measured if it is chosen.  The
    charge is what the ledger is charged for them, see `option_cost`.
    """
    relative_costs: list[float] = []
    released: list[Mapping[Space, Block]] = [chain.look.blocks]
    choice: CommonPlan | None = chain
    while choice is not None:
        for option, residual in zip(choice.options, choice.residuals, strict=True):
            joint_cost = _joint_cost(
                [*released, residual.blocks], residual.max_records, option.joint
            )
            relative_costs.append(option.budget.of_person(joint_cost) / option_cost(option))
        # The next choice is reached only by choosing the last option (the closer look), so the
        # residual of this option is measured before it.
        released.append(choice.residuals[-1].blocks)
        choice = choice.following
    return max(relative_costs)


def _agreed_unit(options: Sequence[Plan]) -> Budget:
    """Return the budget of the first option, after a check that all protect the same privacy unit.

    Raises
    ------
    PlanError
        The options differ in rows per person or neighbours; neighbours replace a record; or the
        schema has invariants.
    """
    unit = options[0].budget
    if any(
        (p.budget.rows_per_person, p.budget.neighbours) != (unit.rows_per_person, unit.neighbours)
        for p in options
    ):
        raise PlanError(
            "The budgets of the plans have different rows_per_person or neighbours, so the plans"
            " protect different units. Give all budgets the same rows_per_person and neighbours."
        )
    if options[0].schema.invariants:
        raise PlanError(
            "A two-stage release is not possible with exact totals (invariants). Remove them from"
            " the schema, or release one plan alone."
        )
    # Replacing a record changes two cells.  The largest cost over pairs of cells is not a sum over
    # residual spaces, so it cannot be divided between two stages.
    if unit.neighbours == REPLACE_ONE:
        raise PlanError(
            "A two-stage release is not possible for neighbours that replace a record. Plan all"
            ' options with neighbours="add_remove".'
        )
    return unit


def _residual_blocks(
    option: Plan, block_residuals: Mapping[Space, BlockResidual], max_records: int, stretch: float
) -> dict[Space, Block]:
    """Return the blocks that remain to be measured for an option, by residual space.

    For a space in ``block_residuals``, this is the block stored there; the space is absent from
    the result if that block is None (nothing remains).  For any other space, this is the block of
    the plan with its noise multiplied by ``stretch``.
    """
    blocks = {}
    for space, block in option.blocks.items():
        if space not in block_residuals:
            # The noise of all blocks is multiplied by the same factor, so that the budget remains
            # divided optimally between the blocks.
            blocks[space] = (
                block
                if stretch == 1.0
                else round_noise_up(block, block.noise * stretch, max_records)
            )
        elif (residual_block := block_residuals[space].block) is not None:
            blocks[space] = residual_block
    return blocks


def _checked_names(options: Sequence[Any], names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the options; raise PlanError unless plans and names are valid."""
    if len(options) < 2 or not all(isinstance(p, Plan) for p in options):
        raise PlanError(
            "The options must be at least two plans, but are"
            f" {', '.join(type(p).__name__ for p in options) or 'none'}. Give two or more Plan"
            " objects."
        )
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
            f"The {len(chosen)} names {list(chosen)!r:.200} do not fit the {len(options)} plans. "
            "Give one name per plan: different texts of 1 to 80 characters in one line, none of "
            "them 'stop'."
        )
    return chosen
