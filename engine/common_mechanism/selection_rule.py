"""Selection rule between coarse and fine analyses.

A selection rule chooses between analyses from the answers of the look: the common part of all
analyses, which is measured first.  One coarse analysis is the primary one.  The rule chooses the
finest analysis in which enough cells of the primary analysis exceed the noise.  It uses noisy
answers only, so it is post-processing and costs no privacy.  `nested_decision` is the rule for
arrays; `NestedPlanRule` is the rule for plans, from which it computes the standard errors without a
table on the full domain.

`workloads_by_way`, `workloads_by_level`, `coarse_and_fine` and `census_ages` return analyses to
choose from, from coarse to fine, as mappings from name to workload on one schema.

Source: Xiao, Wang, Zhang and Kifer 2022, section 6.2.
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
from engine._format import pluralize, set_name
from engine._validation import check_int, check_positive, check_type
from engine.common_mechanism.common_mechanism import CENSUS_AGES
from engine.common_mechanism.common_plan import CommonPlan
from engine.errors import NotApplicable, PlanError, WorkloadError
from engine.plans import Plan
from engine.release import Measurement, apply_group
from engine.release.measurement import query_texts
from engine.residuals.operators import MIN_WIDE_CELLS
from engine.workload import Custom, Group, Level, Schema, Workload

if TYPE_CHECKING:
    import pandas as pd


# a ratio that is below its limit by at most this share counts as equal to the limit
ROUNDING = 1e-9
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Result of a selection rule.

    Attributes
    ----------
    choice : position of the chosen analysis, or None to stop after the look (first stage).  An
        analysis is possible if the upper confidence bounds of enough cells exceed its noise, and
        certain if their lower confidence bounds do.  The choice is the finest certain analysis
        after the first.  If no analysis after the first is certain, the choice is the first
        analysis if it is possible, and otherwise None.
    certain : False if an analysis finer than the chosen one is possible; always True for None.
    shares : share of cells that exceed the noise of an analysis.  Keys are "{analysis}, lower" (by
        lower bounds) and "{analysis}, upper" (by upper bounds).  The first analysis has only the
        entry for upper bounds.
    sentence : the choice and its reason as text.
    """

    choice: int | None
    certain: bool
    shares: dict[str, float]
    sentence: str


def check_nested_options(*, share: float, snr: float, sigmas: float) -> None:
    """Raise PlanError unless the options of a nested rule are in range."""
    check_positive("share", share, most=1, error=PlanError)
    check_positive("snr", snr, error=PlanError)
    if sigmas != 0:
        check_positive("sigmas", sigmas, error=PlanError)


def exceeds_noise(counts: Array, errors: Array, snr: float) -> Flags:
    """Return for each cell whether its count is at least ``snr`` times its standard error.

    ``counts`` and ``errors`` are in counts.  They and the result have the same shape.  Because of
    rounding errors, a ratio below ``snr`` by at most the share `ROUNDING` counts as equal to it.
    """
    return np.asarray(counts / errors >= snr * (1 - ROUNDING))


def nested_decision(
    low: Array,
    high: Array,
    errors: Sequence[Array],
    *,
    names: Sequence[str],
    share: float,
    snr: float,
) -> Decision:
    """Choose the finest analysis in which enough cells of the first analysis exceed the noise.

    Parameters
    ----------
    low, high : confidence bounds of the cells of the first analysis, from the measurement of the
        look (first stage); shape (cells,), in counts.
    errors : for each analysis, from coarse to fine, the standard errors of the same cells; shape
        (cells,), in counts.
    names : names of the analyses.
    share : share of the cells that must exceed the noise, above 0 and at most 1 (x of the paper).
    snr : a cell exceeds the noise if its count is at least ``snr`` standard errors (y of the
        paper).

    Returns
    -------
    Decision whose `choice` is a position in ``errors``, or None (stop).

    Notes
    -----
    Source: section 6.2.  In the experiments of section 7, ``low`` and ``high`` are equal.

    >>> one = np.ones(2)
    >>> decision = nested_decision(
    ...     9 * one, 15 * one, [one, 2 * one], names=["Coarse", "Fine"], share=0.5, snr=5
    ... )
    >>> decision.sentence.partition(";")[0]
    'Choose Coarse: between 0.0% and 100.0% of cells would be reliable in Fine'
    """
    lower_shares = [float(exceeds_noise(low, e, snr).mean()) for e in errors]
    upper_shares = [float(exceeds_noise(high, e, snr).mean()) for e in errors]
    shares = {f"{names[0]}, upper": upper_shares[0]}
    for name, lower, upper in zip(names[1:], lower_shares[1:], upper_shares[1:], strict=True):
        shares |= {f"{name}, lower": lower, f"{name}, upper": upper}
    certain_positions = [i for i, lower in enumerate(lower_shares) if i and lower >= share]
    possible_positions = [i for i, upper in enumerate(upper_shares) if i and upper >= share]
    cells = f"{share:.1%} of {pluralize(len(low), 'cell')} above {snr:g} standard errors"

    def decision(choice: int | None, *, certain: bool, sentence: str) -> Decision:
        requirement = cells if certain or choice != 0 else f"at least {cells}, for sure"
        return Decision(
            choice=choice,
            certain=certain,
            shares=shares,
            sentence=f"{sentence}; the rule requires {requirement}.",
        )

    if certain_positions:
        best, finest = certain_positions[-1], possible_positions[-1]
        doubt = "" if finest == best else f"; {names[finest]} may also qualify"
        lower = lower_shares[best]
        cells_text = "all cells" if lower == 1.0 else f"at least {lower:.1%} of cells"
        text = f"Choose {names[best]}: {cells_text} are reliable{doubt}"
        return decision(best, certain=finest == best, sentence=text)
    if upper_shares[0] < share:
        text = f"Stop: at most {upper_shares[0]:.1%} of cells are reliable in {names[0]}"
        return decision(None, certain=True, sentence=text)
    if not possible_positions:
        text = (
            f"Choose {names[0]}: at most {max(upper_shares[1:]):.1%} of cells would be reliable in "
            "a finer analysis"
        )
        return decision(0, certain=True, sentence=text)
    text = (
        f"Choose {names[0]}: between {lower_shares[1]:.1%} and {upper_shares[1]:.1%} of cells"
        f" would be reliable in {names[1]}"
    )
    return decision(0, certain=False, sentence=text)


# largest number of queries of the primary analysis, which is the coarse one; the rule counts how
# many of these queries exceed the noise
MAX_PRIMARY_QUERIES = 20_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class NestedPlanRule:
    """Rule that takes the finest plan with enough cells of the primary analysis above the noise.

    A cell exceeds the noise of a plan if its count is at least `snr` times the standard error of
    the plan's answer.

    Attributes
    ----------
    common : the options, from coarse to fine.
    primary : position or name of the option whose cells the rule counts; the options after it are
        the finer ones.
    share : share of these cells that must exceed the noise, above 0 and at most 1 (x of the paper).
    snr : number of standard errors (y of the paper).
    sigmas : half width of the confidence interval of a cell, in standard errors of the look (first
        stage); with 0, both bounds are the estimate.

    In a chain of choices, the option "look closer" leads to the next choice.  For this option the
    rule uses the standard errors of the first plan of the next choice.

    Raises
    ------
    PlanError
        A number is out of range, or there is no option ``primary``.
    NotApplicable
        The primary analysis is the last option or has more than `MAX_PRIMARY_QUERIES` queries; or a
        group of the primary analysis is not answered by the look or by a finer plan.

    Notes
    -----
    Source: section 6.2.
    """

    common: CommonPlan
    primary: int | str = 0
    share: float
    snr: float
    sigmas: float = 3.0

    def __post_init__(self) -> None:
        give = "what coarse_or_fine() or nested_choices() returns"
        check_type("analyses", self.common, CommonPlan, give=give, error=PlanError)
        check_nested_options(share=self.share, snr=self.snr, sigmas=self.sigmas)
        if not self.finer:
            raise NotApplicable(
                f"The primary analysis '{self.common.names[self._primary]}' is the last option, so"
                " no option is finer. Order the options from coarse to fine, or choose an earlier"
                " one as the primary analysis."
            )
        if self.queries > MAX_PRIMARY_QUERIES:
            raise NotApplicable(
                f"The primary analysis has {self.queries:,} queries, but the rule allows at most"
                f" {MAX_PRIMARY_QUERIES:,}. Choose a coarser primary analysis."
            )
        _ = self._errors

    @property
    def _primary(self) -> int:
        return self.common.position(self.primary)

    @property
    def finer(self) -> tuple[int, ...]:
        """Positions of the options after the primary one, from coarse to fine."""
        return tuple(range(self._primary + 1, len(self.common.options)))

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups of queries of the primary analysis that have positive weight."""
        return tuple(g for g in self.common.options[self._primary].workload.groups if g.weight > 0)

    @property
    def queries(self) -> int:
        """Number of queries (cells) of the primary analysis."""
        return sum(g.count for g in self.groups)

    @property
    def rule(self) -> Mapping[str, float | str]:
        """Name and options of the rule, for the ledger."""
        name = self.common.names[self._primary]
        return {
            "rule": "nested",
            "primary": name,
            "share": self.share,
            "snr": self.snr,
            "sigmas": self.sigmas,
        }

    @cached_property
    def _errors(self) -> Mapping[Plan, Array]:
        """Standard errors of the primary queries, by plan, in counts, shape (queries,).

        The plans are the look (first stage), the plan of the primary option and those of the finer
        options.
        """
        plan_names = {p: f"option '{name}'" for name, p in self.common.analyses}
        errors = {}
        for plan in (self.common.look, *map(self._error_plan, (self._primary, *self.finer))):
            answered = plan.with_groups(self.groups)
            group_errors = []
            for i, group in enumerate(self.groups):
                variances = answered.variances(i)
                if not np.isfinite(variances).all():
                    plan_name = plan_names.get(plan, "the first measurement")
                    raise NotApplicable(
                        f"The analyses are not nested: {plan_name} does not answer the"
                        f" {group.family_text} queries on {set_name(group.attributes)} of the"
                        " primary analysis. Choose plans that answer them."
                    )
                group_errors.append(np.sqrt(variances))
            errors[plan] = np.concatenate(group_errors)
        return errors

    def _error_plan(self, option: int) -> Plan:
        """Return the plan whose standard errors the rule uses for an option.

        For the option "look closer" it is the first plan of the next choice.
        """
        following = self.common.following
        return (
            self.common.options[option]
            if following is None or option != 1
            else following.options[0]
        )

    def errors(self, option: int | str | None = None) -> Array:
        """Return the standard errors of the primary queries, in counts, shape (queries,).

        These are the errors of the plan of ``option``, or of the look (first stage) if ``option``
        is None.
        """
        plan = (
            self.common.look if option is None else self._error_plan(self.common.position(option))
        )
        return self._errors[plan]

    def estimates(self, look_result: Measurement) -> Array:
        """Return the answers of the look (first stage) to the primary queries.

        The result is in counts and has shape (queries,).

        PlanError is raised if ``look_result`` measures another plan than the look of this rule.
        """
        check_type(
            "first measurement",
            look_result,
            Measurement,
            give="the measurement that stepwise.look() returned",
            error=PlanError,
        )
        if look_result.plan.hash != self.common.look.hash:
            raise PlanError(
                "The measurement does not belong to the options of this rule. Give the measurement"
                " that stepwise.look() returned for these options."
            )
        primary_answers = replace(look_result, plan=self._look_plan)
        return np.concatenate([primary_answers.values(i) for i in range(len(self.groups))])

    def decide(self, look_result: Measurement) -> Decision:
        """Return the decision of the rule for a measured look (first stage).

        `Decision.choice` is the position of an option, or None to stop.
        """
        estimates = self.estimates(look_result)
        width = self.sigmas * self.errors()
        positions = (self._primary, *self.finer)
        decision = nested_decision(
            estimates - width,
            estimates + width,
            [self.errors(i) for i in positions],
            names=[self.common.names[i] for i in positions],
            share=self.share,
            snr=self.snr,
        )
        if decision.choice is None:
            return decision
        return replace(decision, choice=positions[decision.choice])

    def even_totals(self) -> list[float]:
        """Return for each option in `finer` how many records suffice for the rule to choose it.

        With at least this many records, spread evenly over the domain, and without noise in the
        look (first stage), the rule would choose the option or a finer one.  The numbers do not
        decrease from coarse to fine.
        """
        schema = self.common.look.schema
        group_answers = []
        for group in self.groups:
            sizes = schema.sizes(group.attributes)
            table = np.full(sizes, 1.0 / math.prod(sizes))
            group_answers.append(apply_group(group, table, 0, group.count))
        answers_per_record = np.concatenate(group_answers)
        totals = []
        for option in self.finer:
            # number of records from which each cell exceeds the noise
            with np.errstate(divide="ignore"):
                needed = np.where(
                    answers_per_record > 0,
                    self.snr * self.errors(option) / answers_per_record,
                    math.inf,
                )
            totals.append(float(np.quantile(needed, self.share, method="inverted_cdf")))
        return list(np.maximum.accumulate(totals))

    def signal_to_noise(
        self, look_result: Measurement, group: int, option: int | str
    ) -> pd.DataFrame:
        """Return the ratio of count to standard error for each query of a primary group.

        Columns: query (text); answer, low and high (estimate from the look, which is the first
        stage, and its confidence bounds, in counts); snr, snr_low and snr_high (the same numbers,
        divided by the standard error of the option); and stands_out (whether snr_low is at least
        the `snr` of the rule).

        ``group`` is a position in `groups`; PlanError is raised if there is no such position.
        """
        import pandas as pd

        if not 0 <= group < len(self.groups):
            raise PlanError(
                f"There is no group {group!r}. The primary analysis has the groups 0 to"
                f" {len(self.groups) - 1}; give one of them."
            )
        start = sum(g.count for g in self.groups[:group])
        group_rows = slice(start, start + self.groups[group].count)
        answer = self.estimates(look_result)[group_rows]
        width = self.sigmas * self.errors()[group_rows]
        errors = self.errors(option)[group_rows]
        low, high = answer - width, answer + width
        texts = query_texts(self._look_plan, group, 0, self.groups[group].count).to_numpy(
            zero_copy_only=False
        )
        columns = {"query": texts, "answer": answer, "low": low, "high": high}
        columns |= {"snr": answer / errors, "snr_low": low / errors, "snr_high": high / errors}
        return pd.DataFrame(columns | {"stands_out": exceeds_noise(low, errors, self.snr)})

    @cached_property
    def _look_plan(self) -> Plan:
        return self.common.look.with_groups(self.groups)


FEWER, PRESENT = "one attribute fewer", "present workload"
Analyses = Mapping[str, Workload]


def workloads_by_way(schema: Schema, ways: Sequence[int] = (1, 2)) -> Analyses:
    """Return one analysis per number k in ``ways``: all tables on k attributes.

    The analyses are in increasing order of k and have the names "1-way", "2-way", ...

    Raises
    ------
    WorkloadError
        ``ways`` has fewer than two different numbers, or one that is not from 1 to the number of
        attributes.

    >>> from engine import Attribute
    >>> analyses = workloads_by_way(Schema([Attribute.of_size(name, 2) for name in "abc"]), (1, 2))
    >>> {name: workload.queries for name, workload in analyses.items()}
    {'1-way': 6, '2-way': 12}
    """
    distinct_ways = sorted(set(ways))
    for k in distinct_ways:
        check_int("way", k, 1, len(schema))
    if len(distinct_ways) < 2:
        raise WorkloadError(
            f"ways is {distinct_ways}, but a choice needs two or more analyses. Give at least two"
            f" different numbers of attributes from 1 to {len(schema)}."
        )
    return {
        f"{k}-way": Workload.all_ways(schema, ways=(k,), family="marginal") for k in distinct_ways
    }


def level_attributes(workload: Workload) -> tuple[str, ...]:
    """Return the names of the attributes whose levels define coarse and fine analyses.

    These are the attributes with a code list and fewer than 1,000 cells that occur in a group of
    the workload (if the workload has groups).  `coarse_or_fine` cannot divide plans on attributes
    with 1,000 cells or more.
    """
    return tuple(
        attribute.name
        for attribute in workload.schema.attributes
        if attribute.hierarchies
        and attribute.size < MIN_WIDE_CELLS
        and (not workload.groups or any(attribute.name in g.attributes for g in workload.groups))
    )


def workloads_by_level(
    workload: Workload, attribute: str, levels: Sequence[str] | None = None
) -> Analyses:
    """Return one analysis per level of an attribute with a code list, from coarse to fine.

    The analysis of a level contains the groups of the workload, with the queries on the attribute
    replaced by one query per area of this level.  Of several groups that become equal by this
    replacement, the analysis contains the first.  All other attributes of a group retain their
    query family, except a family on several attributes, which becomes marginal.  If the workload
    has no groups, every analysis has one group on the attribute.

    Parameters
    ----------
    levels : names of levels of the first hierarchy of the attribute, or the name of the attribute
        for the level of single cells.  By default all levels, including single cells.

    Raises
    ------
    WorkloadError
        The attribute has no hierarchy or is in no group, or there are fewer than two levels.

    >>> from engine import Attribute, CodeList
    >>> codes = CodeList.from_labels({"Ohio": ["39001", "39003"], "Iowa": ["19001"]}, levels=["state"])
    >>> schema = Schema([Attribute.hierarchy("county", codes), Attribute.of_size("sex", 2)])
    >>> analyses = workloads_by_level(Workload(schema).add(["county", "sex"]), "county")
    >>> {name: workload.queries for name, workload in analyses.items()}
    {'state': 4, 'county': 6}
    """
    schema = workload.schema
    hierarchies = schema[attribute].hierarchies
    if not hierarchies:
        raise WorkloadError(
            f"The attribute '{attribute}' has no hierarchy, so it has no levels. Choose an attribute"
            " with a hierarchy, such as one with a code list."
        )
    groups = workload.groups or Workload(schema).add((attribute,)).groups
    if not any(attribute in group.attributes for group in groups):
        raise WorkloadError(
            f"No group has the attribute '{attribute}'. Add a group with this attribute."
        )
    level_names = (*hierarchies[0].level_names, attribute)
    chosen_names = [name for name in level_names if levels is None or name in levels]
    if len(chosen_names) < 2:
        raise WorkloadError(
            f"The argument levels names fewer than two levels of '{attribute}'. Give at least two"
            f" of {', '.join(level_names)}."
        )
    analyses = {}
    for level_name in chosen_names:
        level = Level(level_name, None if level_name == attribute else hierarchies[0].name)
        analysis, added_keys = Workload(schema), set()
        for group in groups:
            families = {
                group.attributes[p.axes[0]]: p.family for p in group.parts if len(p.axes) == 1
            }
            family = {name: families.get(name, "marginal") for name in group.attributes}
            if attribute in family:
                family[attribute] = level
            single = Workload(schema).add(group.attributes, family or "total", group.weight)
            key = (frozenset(group.attributes), single.groups[0].key)
            if key not in added_keys:
                added_keys.add(key)
                analysis = Workload(schema, (*analysis.groups, *single.groups))
        analyses[level_name] = analysis
    return analyses


def coarse_and_fine(workload: Workload) -> Analyses:
    """Return two analyses: a coarser workload with one attribute fewer per group, and the workload.

    The coarser workload replaces a group on k attributes by k groups on k - 1 of them; equal groups
    are added once.  Attributes retain their query family, except a family on several attributes,
    which becomes marginal.  The coarser workload has no weights of groups and queries.

    Raises
    ------
    WorkloadError
        There are no groups, or no group has an attribute to leave out.

    >>> from engine import Attribute
    >>> pairs = Workload.all_ways(Schema([Attribute.of_size(name, 2) for name in "abc"]), ways=2)
    >>> [len(w.groups) for w in coarse_and_fine(pairs).values()]
    [3, 3]
    """
    dimension = max((len(g.attributes) for g in workload.groups), default=0)
    if dimension == 0:
        raise WorkloadError(
            "This workload has no group with an attribute, so it cannot be made coarser. Add groups"
            " with attributes to it."
        )
    coarser, added_keys = Workload(workload.schema), set()
    for group in workload.groups:
        families = {group.attributes[p.axes[0]]: p.family for p in group.parts if len(p.axes) == 1}
        for attributes in combinations(group.attributes, max(len(group.attributes) - 1, 0)):
            family = {name: families.get(name, "marginal") for name in attributes} or "total"
            single = Workload(workload.schema).add(attributes, family)
            key = (frozenset(attributes), single.groups[0].key)
            if key not in added_keys:
                added_keys.add(key)
                coarser = coarser.add(attributes, family)
    return {FEWER: coarser, PRESENT: workload}


def census_ages(schema: Schema, *, age: str = "age", by: str = "sex") -> Analyses:
    """Return four analyses of age by sex from the 2020 census: with one, 4, 9 and 23 bins of age.

    Parameters
    ----------
    age : an attribute with one cell per year, 103 in all, of which the last is open-ended.
    by : the other attribute of every table.

    Raises
    ------
    WorkloadError
        The schema does not have these attributes, or ``age`` has another number of cells.

    Notes
    -----
    Source: Xiao, Wang, Zhang and Kifer 2022, section 7.5.1.
    """
    years = max(CENSUS_AGES["Total"])
    if age not in schema or by not in schema or schema[age].size != years:
        raise WorkloadError(
            f"The census analyses need the attribute '{by}', and '{age}' with {years} cells, one "
            "per year. Use the demo schema of the census."
        )
    analyses = {"Total": Workload(schema).add((by,), "marginal")}
    for name, edges in CENSUS_AGES.items():
        if name == "Total":
            continue
        starts = np.array(edges)
        bin_of_year = np.searchsorted(starts, np.arange(years), side="right") - 1
        rows = (bin_of_year == np.arange(len(edges) - 1)[:, None]).astype(float)
        bins = Custom(rows, labels=[_bin(age, a, b, years) for a, b in pairwise(edges)])
        analyses[name] = Workload(schema).add((age, by), {age: bins, by: "marginal"})
    return analyses


def _bin(age: str, first: int, stop: int, years: int) -> str:
    """Return the label of the ages from ``first`` to ``stop`` - 1.

    If ``stop`` is the number ``years`` of all ages, the label is "... and over".
    """
    return (
        f"{age} {first} and over"
        if stop == years
        else f"{age} {first}" + (f" to {stop - 1}" if stop > first + 1 else "")
    )
