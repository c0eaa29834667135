"""Figures and texts of the two-stage release: budget shares, signal-to-noise ratios and costs.

A two-stage release decides between several plans, its *options*.  The first measurement, the
*look*, is the part that the plans of all options share.  The second measurement, the *remainder*,
completes the plan of the option that was chosen.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from decimal import Decimal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine._arrays import Array
from engine._format import pluralize, power_text, set_name
from engine.analysis import condition_name
from engine.common_mechanism import CommonPlan, NestedPlanRule
from engine.common_mechanism.common_plan import CLOSER_LOOK_NAME, option_cost
from engine.common_mechanism.selection_rule import ROUNDING, Decision
from engine.common_mechanism.stepwise import Choice
from engine.figures.base import (
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Picture,
    axis_labels,
    category_axis,
    evenly_spaced,
    heat_map,
    in_pcost,
    mark_rehearsal,
    set_margins,
    short_query_text,
)
from engine.privacy import Budget
from engine.release import Measurement
from engine.workload import Group, Workload
from engine.workload.attribute import query_texts

COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
DASHES = ("solid", "dash", "dashdot", "longdash", "longdashdot", "dot")
MAX_SIDE = 256  # largest number of rows and of columns of a heat map
MAX_POINTS = 400  # largest number of points with intervals in a figure
MAX_STEPS = 2_000  # largest number of points of a line of shares


def exact_sum(parts: Sequence[float]) -> str:
    """Return the text of a sum of privacy costs, in exact decimal arithmetic as in the ledger.

    >>> exact_sum([0.1, 0.2]), exact_sum([0.1])
    ('0.1 + 0.2 = 0.3', '0.1')
    """
    terms = [Decimal(repr(float(p))) for p in parts]
    total = sum(terms, Decimal(0)).normalize()
    return (
        f"{' + '.join(f'{t.normalize():f}' for t in terms)} = {total:f}"
        if len(terms) > 1
        else f"{total:f}"
    )


def in_screen_words(text: str) -> str:
    """Replace the option name "look closer" in a text by "a finer one".

    In a release with several decisions, "look closer" is the stored name of the option that leads
    to the next decision.  Among the names of analyses it would read like an action.
    """
    return text.replace(CLOSER_LOOK_NAME, "a finer one")


def shares_picture(
    common: CommonPlan, format_budget: Callable[[Budget], str] = in_pcost
) -> Picture:
    """Return one bar per option of a two-stage release, with its pcost.

    A bar consists of the first measurement (the look), which is the same for all options, and the
    second measurement (the remainder).

    Parameters
    ----------
    format_budget : function that returns the text of a budget, for the texts on the bars.
    """
    table = common.budget_shares()
    look_text = format_budget(common.look.budget)
    totals = [format_budget(plan.budget) for plan in common.options]
    names = axis_labels([in_screen_words(name) for name in table["option"]])
    bar = {"type": "bar", "y": names, "orientation": "h"}
    shared = {
        "x": table["shared"],
        "name": "first measurement (shared)",
        "marker": {"color": GREY},
        "text": [look_text] * len(names),
        "textposition": "inside",
        "textangle": 0,
        "insidetextanchor": "middle",
        "hovertemplate": "%{y}: first measurement, %{text} (%{x:,.4~r} pcost)<extra></extra>",
    }
    residual = {
        "x": table["own"],
        "name": "second measurement",
        "marker": {"color": ORANGE, "pattern": {"shape": "/"}},
        "text": [f"total {total}" for total in totals],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{text} (second measurement %{x:,.4~r} pcost)<extra></extra>",
    }
    x_limit = 1.3 * float(table["total"].max())  # leaves room for the text after the longest bar
    layout = {
        "barmode": "stack",
        "height": 130 + 40 * len(names),
        "legend": LEGEND,
        # a text that is too wide for its bar, as on a phone, is not drawn
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "yaxis": {"autorange": "reversed", "type": "category", "automargin": True},
        "xaxis": {
            "title": {"text": "privacy cost"},
            "showticklabels": False,
            "range": [0.0, x_limit],
        },
    }
    return Picture(
        title="Cost of each option",
        figure=set_margins(go.Figure([bar | shared, bar | residual], layout)),
        table=table.assign(budget=totals),
        alt=saved_text(common, format_budget),
    )


def saved_text(common: CommonPlan, format_budget: Callable[[Budget], str] = in_pcost) -> str:
    """Return sentences with the privacy cost of the first measurement (the look).

    They state this cost as a budget, and as a share of the cost of the most expensive option.
    """
    return (
        f"All options share {format_budget(common.look.budget)}, {common.saved:.2%} of the largest"
        " privacy cost. This first measurement is part of every option, so it costs nothing"
        " extra."
    )


def space_table(common: CommonPlan) -> pd.DataFrame:
    """Return a table with the pcost of every residual space in every option, for display.

    The column "shared (pcost)" contains what the first measurement (the look) spends on the space.
    """
    spaces = common.by_space()
    names = [set_name(space) for space in spaces["attributes"]]
    return spaces.assign(attributes=names).rename(
        columns={
            "total": "cost (pcost)",
            "shared": "shared (pcost)",
            "found": "method for the shared part",
        }
    )


def spend_table(common: CommonPlan) -> pd.DataFrame:
    """Return a table with the pcost of the measurements of every option.

    There is one row per option.  All costs are texts of exact decimal numbers, as in the ledger.
    Columns:

    - option: name of the option.
    - first (now): pcost of the first measurement.
    - second (later): pcost of the second measurement.
    - both: the two costs and their sum, such as "0.1 + 0.2 = 0.3".
    - analysis alone: pcost of the option as a single release.
    """
    rows = []
    for name, (look, residual), plan in zip(
        common.names, common.spends, common.options, strict=True
    ):
        first, second = (f"{Decimal(repr(pcost)):f}" for pcost in (look, residual))
        alone = exact_sum([option_cost(plan)])
        rows.append((name, first, second, exact_sum([look, residual]), alone))
    columns = ["option", "first (now)", "second (later)", "both", "analysis alone"]
    return pd.DataFrame(rows, columns=columns)


def least_total(common: CommonPlan) -> float:
    """Return the pcost of the cheapest option, both measurements together.

    A dataset with a smaller remaining budget cannot pay for a two-stage release.
    """
    return min(option_cost(p) for p in common.options)


def receipt_text(paid: Sequence[float], common: CommonPlan, option: str) -> str:
    """Return a sentence that compares the pcost charged so far with that of a single release.

    Parameters
    ----------
    paid : pcost charged in each step.
    option : name of the option, for the pcost of a single release of its plan.
    """
    separate = Decimal(repr(option_cost(common.options[common.position(option)])))
    equal = sum((Decimal(repr(p)) for p in paid), Decimal(0)) == separate
    comparison = (
        "the cost of this analysis alone"
        if equal
        else f"while this analysis alone costs {separate:f}"
    )
    return f"Spent in {pluralize(len(paid), 'step')}: {exact_sum(paid)} pcost, {comparison}."


def to_finish_text(
    common: CommonPlan, left: float, format_budget: Callable[[Budget], str] = in_pcost
) -> str:
    """Return sentences with the cost of every option, and the analyses that a dataset can pay.

    If `CommonPlan.following` is set, the user makes another choice after choosing "a finer one".
    In this case a sentence states the costs of all steps together.

    Parameters
    ----------
    left : remaining budget of the dataset, in pcost.
    format_budget : function that returns the text of a budget.
    """
    options = [*zip(common.names, common.options, strict=True), *common.analyses]
    costs = {in_screen_words(name): option_cost(p) for name, p in options}
    totals = [
        f"{format_budget(p.budget)} with '{in_screen_words(name)}'"
        for name, p in zip(common.names, common.options, strict=True)
    ]
    after = ""
    if common.following is not None:
        finer = [f"{format_budget(p.budget)} with '{n}'" for n, p in common.following.analyses]
        after = (
            f" After 'a finer one', another choice follows: all steps together then cost"
            f" {' or '.join(finer)}."
        )
    affordable = [f"'{name}'" for name, total in costs.items() if total <= left]
    if len(affordable) == len(costs):
        fits = "What the dataset has left is enough for each."
    elif affordable:
        fits = f"What the dataset has left is enough only for {', '.join(affordable)}."
    else:
        fits = (
            "What the dataset has left is too little. Choose a smaller budget on Preview, or use"
            " “Change the total” on the step Who pays."
        )
    return (
        f"The first measurement costs {format_budget(common.look.budget)}. Together with the"
        f" second measurement, it costs {' or '.join(totals)}.{after} {fits}"
    )


def summary_text(
    dataset: str,
    choices: Sequence[Choice],
    rules: Sequence[NestedPlanRule | None],
    paid: Sequence[float],
    common: CommonPlan,
    format_budget: Callable[[Budget], str] = in_pcost,
    *,
    lost: int = 0,
    verdicts: Sequence[Decision] = (),
) -> str:
    """Return a summary of a two-stage release with one or more looks.

    A look is a measurement that all remaining options share; a decision follows every look.  The
    summary states the decisions, the rules, the costs and, if ``verdicts`` is not empty, the shares
    of reliable cells.

    Parameters
    ----------
    choices : for each look, in order, the decision after it.  The last decision is for an option of
        ``common``, or "stop".
    rules : for each look, in order, the selection rule that was recorded before it, or None.
    paid : pcost charged in each step, including attempts without a result.
    common : options between which the last decision was.
    format_budget : function that returns the text of a budget.
    lost : number of paid attempts without a result.
    verdicts : for each rule that is not None, in order, its decision, with the shares of reliable
        cells.
    """
    last = choices[-1]
    total = sum(map(_decimal, paid))
    total_text = format_budget(common.look.budget.at(float(total)))
    is_stop = last.option not in common.names
    closer = "".join(f"'{in_screen_words(choice.option)}' and then " for choice in choices[:-1])
    chosen = "to stop" if is_stop else f"'{last.option}'"
    sentences = [
        f"For {dataset}, the decision on {last.utc[:10]} was {closer}{chosen}, after a first "
        "measurement of what the analyses have in common.",
        _requirement_text(rules),
        *_findings(rules, verdicts),
        *_deciders(choices, rules, verdicts),
    ]
    if is_stop:
        sentences += ["Only the first measurement is released.", f"It cost {total_text} in all."]
    else:
        alone = common.options[common.position(last.option)]
        as_alone = total == _decimal(option_cost(alone))
        comparison = (
            "as much as this analysis alone"
            if as_alone
            else f"while this analysis alone costs {format_budget(alone.budget)}"
        )
        sentences.append(f"All measurements together cost {total_text}, {comparison}.")
    if lost:
        sentences.append(f"This includes {pluralize(lost, 'paid attempt')} whose result was lost.")
    if "ε" in total_text or "epsilon" in total_text:
        sentences.append(f"Epsilon is at delta {power_text(common.look.budget.report_delta)}.")
    return " ".join(sentences)


def _requirement_text(rules: Sequence[NestedPlanRule | None]) -> str:
    """Return a sentence with the requirement of the selection rule of every look, in order."""
    recorded = [rule_summary(rule).removesuffix(".") for rule in rules if rule is not None]
    if not recorded:
        return "No rule was recorded with the first measurement."
    if len(rules) == 1:
        return (
            "The rule, recorded before the first measurement was shown, was that"
            f" {_lower_first(recorded[0])}."
        )
    texts = [
        f"after measurement {number}, "
        f"{'no rule' if rule is None else _lower_first(rule_summary(rule))[:-1]}"
        for number, rule in enumerate(rules, start=1)
    ]
    return f"The rule, set before the first measurement, was: {'; '.join(texts)}."


def _findings(rules: Sequence[NestedPlanRule | None], verdicts: Sequence[Decision]) -> list[str]:
    """Return one sentence per verdict with the share of reliable cells under each finer option.

    If the verdict is to stop, the sentence also has the share under the coarse option.  ``rules``
    has the rule of each choice, or None for a choice without a rule and hence without a verdict.
    """
    sentences = []
    numbered_rules = [(number, rule) for number, rule in enumerate(rules, 1) if rule is not None]
    # without verdicts there is no sentence
    for (number, rule), verdict in zip(numbered_rules, verdicts, strict=False):
        look = "The first measurement" if len(rules) == 1 else f"Measurement {number}"
        finer = [key.removesuffix(", lower") for key in verdict.shares if key.endswith(", lower")]
        shares = [
            f"{_range_text(verdict.shares[f'{name}, lower'], verdict.shares[f'{name}, upper'])} in"
            f" {_quoted_option(rule.common, name)}"
            for name in finer
        ]
        if verdict.choice is None:
            coarse = next(iter(verdict.shares)).removesuffix(", upper")
            shares.insert(0, f"at most {verdict.shares[f'{coarse}, upper']:.1%} in '{coarse}'")
        sentences.append(f"{look} showed this share of reliable cells: {', '.join(shares)}.")
    return sentences


def _range_text(low: float, high: float) -> str:
    """Return a range of shares as text.

    >>> _range_text(0.25, 0.4), _range_text(0.25, 0.25)
    ('25.0% to 40.0%', '25.0%')
    """
    texts = f"{low:.1%}", f"{high:.1%}"
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def _quoted_option(common: CommonPlan, name: str) -> str:
    """Return the name of an option in quotes.

    For the option that leads to another choice, the text also has the analyses of this choice.
    """
    if name != CLOSER_LOOK_NAME or common.following is None:
        return f"'{in_screen_words(name)}'"
    finer = " or ".join(f"'{analysis}'" for analysis, _ in common.following.analyses)
    return f"a finer one ({finer})"


def _deciders(
    choices: Sequence[Choice],
    rules: Sequence[NestedPlanRule | None],
    verdicts: Sequence[Decision],
) -> list[str]:
    """Return sentences that state who or what made each decision, and why.

    ``verdicts`` has one entry per rule that is not None.  If it is empty, only the reasons that
    persons gave are stated.
    """
    sentences, by_rule = [], 0
    remaining = iter(verdicts)
    for number, choice in enumerate(choices, start=1):
        after = f"After measurement {number}, " if len(choices) > 1 else ""
        rule = rules[number - 1] if number <= len(rules) else None
        verdict = next(remaining, None) if rule is not None else None
        if rule is not None and verdict is not None:
            sentences.append(_upper_first(f"{after}{_lower_first(verdict_reason(rule, verdict))}"))
        if choice.by:
            sentences.append(_upper_first(f"{after}the decision was made by {choice.author}."))
        else:
            by_rule += 1
    if by_rule:
        others = " all other times" if by_rule < len(choices) else ""
        sentences.append(f"The rule decided{others}.")
    return sentences


def verdict_reason(rule: NestedPlanRule, verdict: Decision) -> str:
    """Return sentences with the reason for the decision of a rule: shares of cells and a limit."""
    names = [rule.common.names[i] for i in (rule.common.position(rule.primary), *rule.finer)]
    limit = f"(required: {rule.share:.0%})"
    if verdict.choice is None:
        share = _share_text(verdict.shares[f"{names[0]}, upper"], rule.share)
        return (
            f"At most {share} of the cells can be reliable in '{names[0]}' {limit}. So the rule"
            " chose to stop."
        )
    chosen = rule.common.names[verdict.choice]
    position = names.index(chosen)
    reasons = []
    if position > 0:
        share = _share_text(verdict.shares[f"{chosen}, lower"], rule.share)
        reasons.append(
            f"At least {share} of the cells are reliable in {_quoted_option(rule.common, chosen)}"
            f" {limit}"
        )
    if position + 1 < len(names):
        finer = names[position + 1]
        share = _share_text(verdict.shares[f"{finer}, lower"], rule.share)
        reasons.append(
            f"Only {share} of the cells are sure to be reliable in"
            f" {_quoted_option(rule.common, finer)} {limit}"
        )
    return f"{'. '.join(reasons)}. So the rule chose {_quoted_option(rule.common, chosen)}."


def _share_text(share: float, limit: float) -> str:
    """Return a share in percent, with the decimals (1 to 4) that distinguish it from a limit.

    >>> _share_text(0.4996, 0.5), _share_text(0.5, 0.5), _share_text(0.228, 0.5)
    ('49.96%', '50.0%', '22.8%')
    """
    for decimals in (1, 2, 3, 4):
        text = f"{share:.{decimals}%}"
        if (float(text[:-1]) < 100.0 * limit) == (share < limit):
            break
    return text


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def rule_summary(rule: NestedPlanRule) -> str:
    """Return the requirement of a selection rule as one sentence."""
    primary = rule.common.names[rule.common.position(rule.primary)]
    margin = f", with a safety margin of {_standard_errors(rule.sigmas)}" if rule.sigmas else ""
    return (
        f"At least {rule.share:.0%} of the {pluralize(rule.queries, 'cell')} of '{primary}' must"
        f" reach {_standard_errors(rule.snr)} in a finer analysis{margin}."
    )


def _decimal(number: float) -> Decimal:
    """Return a privacy cost as the exact decimal number that the ledger records."""
    return Decimal(repr(float(number)))


def rule_text(rule: NestedPlanRule) -> str:
    """Return sentences that explain a selection rule, with its thresholds and options."""
    common = rule.common
    coarse = common.names[rule.common.position(rule.primary)]
    finer = [common.names[i] for i in rule.finer]
    enough = (
        f"at least {rule.share:.0%} of the {pluralize(rule.queries, 'cell')} of '{coarse}' are"
        " reliable"
    )
    if common.following is not None:
        name = common.following.names[0]
        decision = f"Continue with '{name}' if {enough} with the noise of '{name}'"
    elif len(finer) == 1:
        decision = f"Choose '{finer[0]}' if {enough} with the noise of '{finer[0]}'"
    else:
        decision = f"Choose the finest of {', '.join(finer)} for which {enough}"
    margin = (
        f"Safety margin: {_standard_errors(rule.sigmas)} of the first measurement."
        if rule.sigmas
        else "No safety margin."
    )
    return (
        f"A cell of '{coarse}' is reliable if its count is at least"
        f" {_standard_errors(rule.snr)} (95% of such answers are off by at most"
        f" {2 / rule.snr:.0%}). {decision}. Stop if too few are reliable with the noise of"
        f" '{coarse}'. Otherwise choose '{coarse}'. {margin}"
    )


def _standard_errors(multiple: float) -> str:
    """Return text such as "1 standard error" or "2.5 standard errors"."""
    return f"{multiple:g} standard error{'' if multiple == 1 else 's'}"


def group_text(rule: NestedPlanRule, number: int) -> str:
    """Return name, query family and number of queries (cells) of a group of a rule as one text.

    The name of a group is its condition if it has one, and otherwise its attributes and family.
    """
    group = rule.groups[number]
    workload = Workload(rule.common.look.schema, (group,))
    name = condition_name(workload, 0)
    name = name or f"{' × '.join(group.attributes) or 'total'}, {group.family_text}"
    return f"{name} ({pluralize(group.count, 'cell')})"


def snr_picture(rule: NestedPlanRule, look: Measurement, group: int, option: int | str) -> Picture:
    """Return a figure of the signal-to-noise ratios of the queries of a group under an option.

    A ratio is a count divided by its standard error.  The count is estimated from the first
    measurement (the look).  The standard error is that of the complete release, which also contains
    the second measurement of the option.
    """
    table = rule.signal_to_noise(look, group, option)
    queries = rule.groups[group]
    attributes = [rule.common.look.schema[name] for name in queries.attributes]
    table = table.assign(query=query_texts(attributes, table["query"]))
    name = in_screen_words(rule.common.names[rule.common.position(option)])
    where = set_name(queries.attributes)
    if len(queries.parts) < 2:
        figure, note = _interval_figure(table, rule.snr, where)
    else:
        figure, note = _bound_map(rule, table, queries)
    set_margins(figure)
    if look.rehearsal:
        mark_rehearsal(figure)
    n_above = int(table["stands_out"].sum())
    return Picture(
        title=f"Signal-to-noise ratios on {where} with {name}",
        figure=figure,
        table=table.rename(columns={"stands_out": "reliable"}),
        alt=(
            f"{_rehearsal_prefix(look)}{n_above:,} of {pluralize(len(table), 'cell')} of {where}"
            f" {'is' if n_above == 1 else 'are'} reliable in {name} (lower confidence"
            f" bound of the ratio at least {rule.snr:g})."
        ),
        note=note,
    )


def shares_above_picture(rule: NestedPlanRule, look: Measurement) -> Picture:
    """Return a line chart of the share of cells with at least a given signal-to-noise ratio.

    Every option has three lines: the estimate from the first measurement (the look), and a lower
    and an upper confidence bound.
    """
    estimate = rule.estimates(look)
    width = rule.sigmas * rule.errors()
    options = (rule.common.position(rule.primary), *rule.finer)
    figure = go.Figure()
    rows = []
    for number, i in enumerate(options):
        name, errors = in_screen_words(rule.common.names[i]), rule.errors(i)
        color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
        label = axis_labels([name])[0]
        shares = []
        for bound, counts in (
            ("lowest", estimate - width),
            ("estimate", estimate),
            ("highest", estimate + width),
        ):
            ratios, above = _shares_at_least(counts / errors)
            shares.append(float((counts / errors >= rule.snr * (1 - ROUNDING)).mean()))
            figure.add_scatter(
                x=ratios,
                y=above,
                mode="lines",
                name=label,
                legendgroup=label,
                showlegend=bound == "estimate",
                line={
                    "color": color,
                    "dash": dash,
                    "shape": "vh",
                    "width": 2.5 if bound == "estimate" else 1,
                },
                opacity=1.0 if bound == "estimate" else 0.7,
                hovertemplate=(
                    f"{label}, {bound}<br>%{{y:.1%}} of the cells are above"
                    " %{x:,.4~r}<extra></extra>"
                ),
            )
        rows.append((name, *shares))
    figure.add_shape(
        type="line",
        x0=rule.snr,
        x1=rule.snr,
        y0=0,
        y1=1,
        yref="paper",
        line={"color": GREY, "dash": "dot"},
    )
    figure.add_shape(
        type="line",
        x0=0,
        x1=1,
        xref="paper",
        y0=rule.share,
        y1=rule.share,
        line={"color": GREY, "dash": "dot"},
    )
    figure.update_xaxes(title="signal-to-noise ratio", range=_ratio_range(rule, estimate, options))
    figure.update_yaxes(title="share of cells above", tickformat=".0%", range=[0, 1.02])
    figure.update_layout(legend=LEGEND)
    set_margins(figure)
    if look.rehearsal:
        mark_rehearsal(figure)
    columns = ["option", "share above, lowest", "share above, estimate", "share above, highest"]
    table = pd.DataFrame(rows, columns=columns)
    texts = [f"{low:.1%} to {high:.1%} with {name}" for name, low, _, high in rows]
    return Picture(
        title="Share of reliable cells",
        figure=figure,
        table=table,
        alt=(
            f"{_rehearsal_prefix(look)}Share of cells with a ratio of at least {rule.snr:g}:"
            f" {', '.join(texts)}; required: {rule.share:.0%}."
        ),
        note=(
            "Thick: estimates. Thin: confidence bounds from the first measurement."
            f" Dotted: the required ratio {rule.snr:g} and share {rule.share:.0%}."
        ),
    )


def _rehearsal_prefix(look: Measurement) -> str:
    """Return the start of the alternative text of a rehearsal; empty for a release."""
    return "Rehearsal on simulated records: " if look.rehearsal else ""


def _ratio_range(rule: NestedPlanRule, estimate: Array, options: Sequence[int]) -> list[float]:
    """Return the two ends of the axis of signal-to-noise ratios.

    The axis contains 0, the smallest ratio, the 90% quantile of the ratios of all ``options``, and
    twice the ratio that the rule requires.  Much larger ratios are outside.
    """
    ratios = np.concatenate([estimate / rule.errors(i) for i in options])
    quantile = float(np.quantile(ratios, 0.9, method="inverted_cdf"))
    return [min(0.0, float(ratios.min())), 1.15 * max(quantile, 2.0 * rule.snr)]


def _shares_at_least(ratios: Array) -> tuple[list[float], list[float]]:
    """Return the points of a decreasing step function from 1 to 0, as x and y coordinates.

    The x coordinates increase: a start at 0 or below, at most `MAX_STEPS` of ``ratios``, and an end
    directly above the largest ratio.  The y coordinate of a ratio, or of the first of several equal
    ratios, is the share of ``ratios`` that are at least as large.
    """
    ordered = np.sort(ratios)
    indices = evenly_spaced(len(ordered), MAX_STEPS)
    # The first point is at 0 or below, the last one directly above the largest ratio.
    first, last = min(0.0, float(ordered[0])), float(np.nextafter(ordered[-1], np.inf))
    x = [first, *ordered[indices].tolist(), last]
    y = [1.0, *(1.0 - indices / len(ordered)).tolist(), 0.0]
    return x, y


def _interval_figure(table: pd.DataFrame, min_ratio: float, name: str) -> tuple[go.Figure, str]:
    """Return a figure of signal-to-noise ratios with confidence bounds, and its note.

    Parameters
    ----------
    table : result of `NestedPlanRule.signal_to_noise`.
    min_ratio : ratio that the selection rule requires, drawn as a horizontal line.
    name : name of the attribute, for the title of the x axis.
    """
    indices = evenly_spaced(len(table), MAX_POINTS)
    shown = table.iloc[indices]
    texts = axis_labels([short_query_text(text, name) for text in shown["query"]])
    traces = []
    for stands_out, color, symbol, label in (
        (True, BLUE, "circle", "reliable"),
        (False, ORANGE, "x", "may be unreliable"),
    ):
        selected = shown["stands_out"].to_numpy() == stands_out
        rows = shown[selected]
        bars = {
            "array": rows["snr_high"] - rows["snr"],
            "arrayminus": rows["snr"] - rows["snr_low"],
        }
        marks = {
            "type": "scatter",
            "x": [t for t, is_selected in zip(texts, selected, strict=True) if is_selected],
            "y": rows["snr"],
            "mode": "markers",
            "name": label,
            "marker": {"color": color, "symbol": symbol, "size": 8},
            "error_y": {"type": "data", "color": color, "thickness": 1.2, "width": 0} | bars,
            "hovertemplate": "%{x}<br>ratio %{y:,.4~r}<extra></extra>",
        }
        traces.append(marks)
    limit = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": min_ratio, "y1": min_ratio}
    cells = category_axis(html.escape(name)) | {
        "categoryorder": "array",
        "categoryarray": texts,
        "nticks": 20,
    }
    layout = {
        "shapes": [limit | {"line": {"color": GREY, "dash": "dot", "width": 2}}],
        "xaxis": cells,
        "yaxis": {"title": {"text": "signal-to-noise ratio"}, "rangemode": "tozero"},
        "legend": LEGEND,
    }
    left_out = f" {len(shown):,} evenly spaced cells are drawn." if len(shown) < len(table) else ""
    note = (
        "Bars: confidence bounds from the first measurement."
        f" Dotted: required ratio {min_ratio:g}.{left_out}"
    )
    return go.Figure(traces, layout), note


def _bound_map(rule: NestedPlanRule, table: pd.DataFrame, group: Group) -> tuple[go.Figure, str]:
    """Return a heat map of the lower confidence bounds of signal-to-noise ratios, and its note.

    A group consists of parts, which are query families on different attributes.  Rows of the heat
    map are queries of the first query family; columns are combinations of queries of the other
    families.
    """
    n_rows = group.parts[0].count
    n_columns = len(table) // n_rows
    rows, columns = evenly_spaced(n_rows, MAX_SIDE), evenly_spaced(n_columns, MAX_SIDE)
    grid = table["snr_low"].to_numpy().reshape(n_rows, n_columns)[np.ix_(rows, columns)]
    names = [set_name(group.attributes[a] for a in p.axes) for p in group.parts]
    row_texts = [_part_text(rule, group, 0, int(i), names[0]) for i in rows]
    counts = [part.count for part in group.parts[1:]]
    column_texts = []
    for column in columns:
        # ``queries`` has one query per part (product factor) of the group, except the first part.
        queries = np.unravel_index(int(column), counts)
        texts = [
            _part_text(rule, group, part, int(query), names[part])
            for part, query in enumerate(queries, start=1)
        ]
        column_texts.append(" · ".join(texts))
    axes = [names[0], " · ".join(names[1:])]
    hover, unit = "%{y}<br>%{x}<br>at least %{z:,.4~r}", "lower bound<br>of the ratio"
    # texts in more than 400 cells would overlap
    cell_texts = {"texttemplate": "%{z:,.3~r}"} if grid.size <= 400 else {}
    figure = heat_map(grid, [row_texts, column_texts], axes, hover, unit, **cell_texts)
    note = (
        "Lower confidence bounds from the first measurement; a cell is reliable if its"
        f" bound is at least {rule.snr:g}."
    )
    if grid.size < len(table):
        note += f" {grid.size:,} evenly spaced cells are drawn."
    return figure, note


def _part_text(rule: NestedPlanRule, group: Group, part: int, index: int, name: str) -> str:
    """Return the text of query ``index`` in ``group.parts[part]``.

    The attribute ``name`` at the start of the text is left out.
    """
    queries = group.parts[part]
    columns = [rule.common.look.schema[group.attributes[a]] for a in queries.axes]
    (text,) = query_texts(columns, [queries.family.text(columns, index)])
    return short_query_text(text or "all records", name)
