"""The rule of `engine.choice.rules` on plans: the choice between coarse and fine from a measured look.

The nested rule needs no table of the whole domain: a plan knows the variance of every query of the primary analysis,
whatever it was made for.

Source: Xiao, Wang, Zhang and Kifer 2022, section 6.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from engine.arrays import Array
from engine.checks import instance
from engine.choice.common_plan import CommonPlan
from engine.choice.rules import Decision, check_nested_options, nested_decision, stands_out
from engine.errors import NotApplicable, PlanError
from engine.plans import Plan
from engine.release import Counts, Measurement, apply_group, query_texts
from engine.texts import set_name
from engine.workload import Group, Schema

if TYPE_CHECKING:
    import pandas as pd

MOST_QUERIES = 20_000_000  # of the primary analysis


@dataclass(frozen=True, kw_only=True, eq=False)
class NestedPlanRule:
    """Take the finest plan that still serves the primary analysis: a share of its cells must stand out of the noise.

    A cell stands out when its count is at least `snr` standard errors of the answer that a plan gives for it.

    Attributes
    ----------
    common : the options; those after `primary`, in their order, are taken for finer and finer ones.
    primary : number or name of the option whose queries must be served.
    share, snr : x and y of the paper: the share of cells, in (0, 1], and the least signal-to-noise ratio, above 0.
    sigmas : width of the confidence bounds in standard errors of the look; 0 decides by the estimate alone.

    In a chain of choices, to look closer is judged by the analysis that comes next.

    Raises
    ------
    PlanError : an option out of range.
    NotApplicable : the look, or a finer plan, does not answer the primary analysis; the message says which group.

    Source: section 6.2.
    """

    common: CommonPlan
    primary: int | str = 0
    share: float
    snr: float
    sigmas: float = 3.0

    def __post_init__(self) -> None:
        give = "what coarse_or_fine() or nested_choices() returns"
        instance("analyses", self.common, CommonPlan, give=give, error=PlanError)
        check_nested_options(share=self.share, snr=self.snr, sigmas=self.sigmas)
        if not self.finer:
            raise NotApplicable(
                f"'{self.common.names[self._primary]}' is the last option, so there is none finer. Put the options in "
                "order from coarse to fine, or take an earlier one as the primary analysis."
            )
        if self.queries > MOST_QUERIES:
            raise NotApplicable(
                f"The primary analysis has {self.queries:,} queries; the rule takes at most {MOST_QUERIES:,}. Choose a "
                "coarser primary analysis."
            )
        _ = self._errors

    @property
    def _primary(self) -> int:
        return self.common.position(self.primary)

    @property
    def finer(self) -> tuple[int, ...]:
        """Numbers of the options that may be taken instead, from coarse to fine."""
        return tuple(range(self._primary + 1, len(self.common.options)))

    @property
    def groups(self) -> tuple[Group, ...]:
        """Query groups of the primary analysis; those of weight zero ask for nothing and are left out."""
        return tuple(g for g in self.common.options[self._primary].workload.groups if g.weight > 0)

    @property
    def queries(self) -> int:
        """Number of cells that the rule counts."""
        return sum(g.count for g in self.groups)

    @property
    def rule(self) -> Mapping[str, float | str]:
        """The rule in words and numbers, for the ledger."""
        name = self.common.names[self._primary]
        return {"rule": "nested", "primary": name, "share": self.share, "snr": self.snr, "sigmas": self.sigmas}

    @cached_property
    def _errors(self) -> Mapping[Plan, Array]:
        """Standard errors of all primary queries, in counts, shape (queries,), by plan."""
        named = {p: f"option '{name}'" for name, p in self.common.analyses}
        found = {}
        for plan in (self.common.look, *map(self._judged, (self._primary, *self.finer))):
            asked, parts = plan.asking(self.groups), []
            for i, group in enumerate(self.groups):
                variances = asked.variances(i)
                if not np.isfinite(variances).all():
                    where = named.get(plan, "the look")
                    raise NotApplicable(
                        f"The analyses are not nested: {where} does not answer the {group.family_text} queries on "
                        f"{set_name(group.attributes)} of the primary analysis. Choose plans that do."
                    )
                parts.append(np.sqrt(variances))
            found[plan] = np.concatenate(parts)
        return found

    def _judged(self, option: int) -> Plan:
        """The plan that stands for an option: what a closer look would lead to next."""
        later = self.common.following
        return self.common.options[option] if later is None or option != 1 else later.options[0]

    def errors(self, option: int | str | None = None) -> Array:
        """Standard errors of the primary queries by an option, or by the look, in counts, shape (queries,)."""
        plan = self.common.look if option is None else self._judged(self.common.position(option))
        return self._errors[plan]

    def estimates(self, looked: Measurement) -> Array:
        """The primary queries as the look answers them, in counts, shape (queries,)."""
        instance("look", looked, Measurement, give="the measurement that stepwise.look() returned", error=PlanError)
        if looked.plan.hash != self.common.look.hash:
            raise PlanError("This measurement is of another look. Give the measurement that look() returned.")
        asked = replace(looked, plan=self._look_plan)
        return np.concatenate([asked.values(i) for i in range(len(self.groups))])

    def decide(self, looked: Measurement) -> Decision:
        """The verdict on a look; `choice` is the number of an option, or None to stop.

        `shares` holds, for every finer option, the shares of cells that stand out by the lower and the upper bound.
        """
        estimates, width = self.estimates(looked), self.sigmas * self.errors()
        options = (self._primary, *self.finer)
        found = nested_decision(
            estimates - width,
            estimates + width,
            [self.errors(i) for i in options],
            names=[self.common.names[i] for i in options],
            share=self.share,
            snr=self.snr,
        )
        return found if found.choice is None else replace(found, choice=options[found.choice])

    def right(self, counts: Counts) -> int:
        """The option that exact counts ask for; private, for rehearsals on simulated data only.

        ``counts`` must hold the tables of all primary groups.
        """
        exact = np.concatenate([apply_group(g, counts[g.attributes].astype(float), 0, g.count) for g in self.groups])
        fine = [i for i in self.finer if stands_out(exact, self.errors(i), self.snr).mean() >= self.share]
        return fine[-1] if fine else self._primary

    def signal_to_noise(self, looked: Measurement, group: int, option: int | str) -> pd.DataFrame:
        """Return one row a query of a primary group: what the look says of its signal-to-noise ratio in an option.

        Columns: query (words), answer, low, high (counts), snr, snr_low, snr_high, stands_out (by the lower bound).
        """
        import pandas as pd

        if not 0 <= group < len(self.groups):
            raise PlanError(
                f"There is no group {group!r}; the primary analysis has groups 0 to {len(self.groups) - 1}."
            )
        start = sum(g.count for g in self.groups[:group])
        here = slice(start, start + self.groups[group].count)
        answer = self.estimates(looked)[here]
        width, errors = self.sigmas * self.errors()[here], self.errors(option)[here]
        low, high = answer - width, answer + width
        texts = query_texts(self._look_plan, group, 0, self.groups[group].count).to_numpy(zero_copy_only=False)
        columns = {"query": texts, "answer": answer, "low": low, "high": high}
        columns |= {"snr": answer / errors, "snr_low": low / errors, "snr_high": high / errors}
        return pd.DataFrame(columns | {"stands_out": stands_out(low, errors, self.snr)})

    @cached_property
    def _look_plan(self) -> Plan:
        return self.common.look.asking(self.groups)


def rows_of_group(schema: Schema, group: Group) -> Array:
    """Return the query rows of a group on all cells of a small domain, shape (queries, cells)."""
    positions = [schema.order[name] for name in group.attributes]
    return spread_out(
        schema, [(tuple(positions[a] for a in part.axes), part.family.rows(part.sizes)) for part in group.parts]
    )


def spread_out(schema: Schema, factors: Sequence[tuple[tuple[int, ...], Array]]) -> Array:
    """Return rows of a product on some attributes, each factor of shape (rows, cells of its axes), on all cells.

    The result has shape (product of the rows, cells of the schema); the other attributes do not matter.
    """
    sizes = schema.sizes(schema.names)
    cell, out = np.indices(sizes).reshape(len(sizes), -1), np.ones((1, math.prod(sizes)))
    for axes, rows in factors:
        own = np.ravel_multi_index(tuple(cell[a] for a in axes), tuple(sizes[a] for a in axes))
        out = (out[:, None, :] * rows[None, :, own]).reshape(-1, out.shape[1])
    return out
