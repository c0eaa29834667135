"""Selection rule between coarse and fine analyses.

The rule that turns a look into a choice between analyses, on arrays; `plan_rule` applies it to plans.

Everything here is post-processing of noisy answers, so it costs no privacy.

Source: Xiao, Wang, Zhang and Kifer 2022, section 6.2.

The rule of `engine.common_mechanism.selection_rule` on plans: the choice between coarse and fine from a measured look.

The nested rule needs no table of the whole domain: a plan knows the variance of every query of the primary analysis,
whatever it was made for.

Source: Xiao, Wang, Zhang and Kifer 2022, section 6.2.

Sets of analyses to choose from, coarse first: each is a name for people and a workload on one schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import set_name
from engine._validation import instance, positive, whole
from engine.common_mechanism.common_mechanism import CENSUS_AGES
from engine.common_mechanism.common_plan import CommonPlan
from engine.errors import NotApplicable, PlanError, WorkloadError
from engine.plans import Plan
from engine.records import Counts
from engine.release import Measurement, apply_group
from engine.release.measurement import query_texts
from engine.workload import Custom, Group, Schema, Workload

if TYPE_CHECKING:
    import pandas as pd


ROUNDING = 1e-9  # a whole count can meet the ratio exactly
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a rule says.

    Attributes
    ----------
    choice : position of the analysis to run, or None to stop here.
    certain : whether the look leaves no doubt at the rule's confidence; if not, `choice` is the safe one.
    shares : the numbers that the verdict rests on, by name.
    sentence : the verdict for people.
    """

    choice: int | None
    certain: bool
    shares: dict[str, float]
    sentence: str


def check_nested_options(*, share: float, snr: float, sigmas: float) -> None:
    """Raise PlanError unless the numbers of a nested rule make sense."""
    positive("share", share, most=1, error=PlanError)
    positive("snr", snr, error=PlanError)
    if sigmas != 0:
        positive("sigmas", sigmas, error=PlanError)


def stands_out(counts: Array, errors: Array, snr: float) -> Flags:
    """Whether counts are at least ``snr`` standard errors, all of one shape, in counts."""
    return np.asarray(counts / errors >= snr * (1 - ROUNDING))


def nested_decision(
    low: Array, high: Array, errors: Sequence[Array], *, names: Sequence[str], share: float, snr: float
) -> Decision:
    """Take the finest analysis that still serves the first: a share of its cells must stand out of the noise.

    Parameters
    ----------
    low, high : confidence bounds of the cells of the first analysis by a look, shape (cells,), in counts.
    errors : standard errors of these cells by each analysis, from coarse to fine, each shape (cells,), in counts.
    names : of the analyses.
    share, snr : x and y of the paper: the share of cells, in (0, 1], and the least signal-to-noise ratio, above 0.

    `choice` counts from the first analysis; `shares` holds, for every finer one, the shares of cells that stand out by
    the lower and the upper bound.

    Source: section 6.2; the experiments of section 7 have low = high.

    >>> one = np.ones(2)
    >>> nested_decision(9 * one, 15 * one, [one, 2 * one], names=["Coarse", "Fine"], share=0.5, snr=5).sentence[:68]
    'Coarse, to be safe: 0.0% to 100.0% may stand out in Fine; the rule a'
    """
    surely = [float(stands_out(low, e, snr).mean()) for e in errors]
    maybe = [float(stands_out(high, e, snr).mean()) for e in errors]
    shares = {f"{names[0]}, upper": maybe[0]}
    for name, least, most in zip(names[1:], surely[1:], maybe[1:], strict=True):
        shares |= {f"{name}, lower": least, f"{name}, upper": most}
    served = [i for i, least in enumerate(surely) if i and least >= share]
    possible = [i for i, most in enumerate(maybe) if i and most >= share]
    asked = f"the rule asks for {share:.1%} of {len(low):,} cells above {snr:g} standard errors."

    def decision(choice: int | None, certain: bool, sentence: str) -> Decision:
        return Decision(choice=choice, certain=certain, shares=shares, sentence=f"{sentence}; {asked}")

    if served:
        best, finest = served[-1], possible[-1]
        doubt = "" if finest == best else f"; {names[finest]} may do as well, too close to tell"
        text = f"{names[best]}: at least {surely[best]:.1%} stand out even there{doubt}"
        return decision(best, finest == best, text)
    if maybe[0] < share:
        return decision(None, True, f"Stop: at most {maybe[0]:.1%} stand out even in {names[0]}")
    if not possible:
        return decision(0, True, f"{names[0]}: at most {max(maybe[1:]):.1%} would stand out in a finer one")
    text = f"{names[0]}, to be safe: {surely[1]:.1%} to {maybe[1]:.1%} may stand out in {names[1]}"
    return decision(0, False, text)


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


FEWER, PRESENT = "one attribute fewer", "present workload"
Analyses = Mapping[str, Workload]


def by_ways(schema: Schema, ways: Sequence[int] = (1, 2)) -> Analyses:
    """Return all k-way tables for each k, from few attributes to many.

    Raises: WorkloadError unless there are two numbers or more, each from 1 to the number of attributes.

    >>> from engine.workload import Attribute
    >>> found = by_ways(Schema([Attribute.of_size(name, 2) for name in "abc"]), (1, 2))
    >>> {name: workload.queries for name, workload in found.items()}
    {'1-way': 6, '2-way': 12}
    """
    chosen = sorted(set(ways))
    for k in chosen:
        whole("way", k, 1, len(schema))
    if len(chosen) < 2:
        raise WorkloadError(f"The ways {chosen} were given. Give at least two numbers from 1 to {len(schema)}.")
    return {f"{k}-way": Workload.all_ways(schema, ways=(k,), family="marginal") for k in chosen}


def against_coarser(workload: Workload) -> Analyses:
    """Return a workload and the coarser one that asks every group about one attribute fewer.

    Queries on the attributes that stay are those of the group; where they belong together, every cell is asked.

    Raises: WorkloadError if there are no groups, or no group has an attribute to leave out.

    >>> from engine.workload import Attribute
    >>> pairs = Workload.all_ways(Schema([Attribute.of_size(name, 2) for name in "abc"]), ways=2)
    >>> [len(w.groups) for w in against_coarser(pairs).values()]
    [3, 3]
    """
    most = max((len(g.attributes) for g in workload.groups), default=0)
    if most == 0:
        raise WorkloadError("This workload has no group with an attribute to leave out. Add groups to it first.")
    coarser, known = Workload(workload.schema), set()
    for group in workload.groups:
        families = {group.attributes[p.axes[0]]: p.family for p in group.parts if len(p.axes) == 1}
        for kept in combinations(group.attributes, max(len(group.attributes) - 1, 0)):
            family = {name: families.get(name, "marginal") for name in kept} or "total"
            wider = Workload(workload.schema).add(kept, family)
            key = (frozenset(kept), wider.groups[0].key)
            if key not in known:
                known.add(key)
                coarser = coarser.add(kept, family)
    return {FEWER: coarser, PRESENT: workload}


def census_ages(schema: Schema, *, age: str = "age", by: str = "sex") -> Analyses:
    """Return the four tables of age by sex of a census cascade: all ages together, 4, 9 and 23 bins of age.

    Parameters
    ----------
    age : an attribute with one cell a year, 103 in all, the last of them open.
    by : the attribute that every table is split by.

    Raises: WorkloadError when the schema has no such attributes.
    Source: Xiao, Wang, Zhang and Kifer 2022, section 7.5.1.
    """
    years = max(CENSUS_AGES["Total"])
    if age not in schema or by not in schema or schema[age].size != years:
        raise WorkloadError(
            f"The census example needs '{by}' and '{age}' with {years} cells, one a year. Use the demo schema of the "
            "census."
        )
    found = {"Total": Workload(schema).add((by,), "marginal")}
    for name, edges in CENSUS_AGES.items():
        if name == "Total":
            continue
        starts = np.array(edges)
        bin_of_year = np.searchsorted(starts, np.arange(years), side="right") - 1
        rows = (bin_of_year == np.arange(len(edges) - 1)[:, None]).astype(float)
        bins = Custom(rows, labels=[_bin(age, a, b, years) for a, b in pairwise(edges)])
        found[name] = Workload(schema).add((age, by), {age: bins, by: "marginal"})
    return found


def _bin(age: str, first: int, stop: int, years: int) -> str:
    return (
        f"{age} {first} and over"
        if stop == years
        else f"{age} {first}" + (f" to {stop - 1}" if stop > first + 1 else "")
    )
