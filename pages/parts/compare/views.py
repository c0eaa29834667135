"""Views of a comparison: ranking, distributions, A against B, and strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeGuard

import streamlit as st

from engine import _format as texts
from engine import analysis, figures
from engine.mechanisms import mechanism_class, title_of
from engine.privacy import Budget
from pages.parts.compare import run, script
from pages.parts.compare.run import Compared
from pages.parts.shell import budgets, buttons, figure_view, history
from pages.parts.shell.error_text import escape_markdown, in_labels, show_errors
from pages.parts.shell.history import RequestState
from pages.parts.workload import group_choice, record_count_form

DOT = "budget_dot"  # a dot that was chosen: what for, its mechanism, its pcost
SHOWN = 4  # mechanisms that the distributions begin with


def use(name: str, options: Mapping[str, Any], budget: Budget | None = None) -> None:
    """Take one mechanism with its options, and a budget if one is given; the cap on records stays."""
    before = history.current()
    kept = {k: v for k, v in before.options.items() if k == "max_records"}
    studio = replace(before, mechanism=name, options={}, budget=budget or before.budget)
    history.commit(studio.with_options(dict(options) | kept), redraw=True)


def has_enough_plans(comparison: Compared | None, least: int = 1) -> TypeGuard[Compared]:
    """Whether there are enough plans to look at; says what to do when there are too few."""
    if comparison is not None and len(comparison.best) >= least:
        return True
    words = "Press Compare above; the results appear here."
    if run.running():
        words = "The comparison is running; its results appear here."
    elif comparison is not None:
        words = (
            f"This needs {'two plans' if least > 1 else 'a plan'}; choose other mechanisms or a"
            " longer time limit."
        )
    st.info(words, icon="⚖️")
    return False


def ranking(studio: RequestState, comparison: Compared | None) -> str:
    """All mechanisms against the bound and against the time they take, who loses where, and a
    button to use each.
    """
    if comparison is not None and comparison.best:
        picture = figures.ranking_picture(comparison.found)
        st.markdown(f"**{escape_markdown(picture.alt)}**")
        left, right = st.columns(2, gap="medium")
        with left:
            figure_view.picture(picture, key="ranking")
        with right:
            figure_view.picture(figures.effort_picture(comparison.found), key="seconds")
        figure_view.picture(
            figures.where_picture(comparison.found, studio.required_workload), key="where"
        )
        if (scale := record_count_form.entered_scale()) is not None:
            st.caption(escape_markdown(analysis.publishable_text(comparison.found, scale)))
            with st.expander(
                "Publishable share of every group", key="compare_quality", on_change="rerun"
            ) as opened:
                if opened.open:
                    st.caption(
                        "Taking typical errors of groups, and records that are spread evenly."
                    )
                    table = analysis.publishable_by_group(
                        comparison.found, studio.required_workload, scale
                    )
                    told = "Share of publishable answers, group by group"
                    figure_view.table(
                        table,
                        name="publishable_by_group",
                        alt=told,
                        shares=list(map(str, table))[1:],
                    )
        st.subheader("Take one into the studio")
        st.caption("RMSE in counts, then the seconds and the peak memory that planning took.")
        for label, words in figures.costs(comparison.found).items():
            _offer(comparison, label, words)
        st.download_button(
            "Report of this comparison (HTML)",
            lambda: figures.comparison_page(
                comparison.found, studio.required_workload, studio.budget
            ),
            "comparison.html",
            "text/html",
            on_click="ignore",
        )
    else:
        has_enough_plans(comparison)
    if comparison is not None and len(refused := figures.refusals(comparison.found)):
        st.subheader("Without a result")
        reasons = refused.assign(reason=refused["reason"].map(in_labels))
        figure_view.table(
            reasons, name="without_result", alt="Mechanisms without a result, and why"
        )
    return script.compare(studio, comparison)


def other_budgets(studio: RequestState, comparison: Compared | None) -> str:
    """Error of every mechanism at other budgets."""
    if has_enough_plans(comparison):
        drawn = figures.budgets_picture(comparison.found, studio.budget, budgets.in_words)
        figure_view.picture(drawn, key="budgets", on_select=_pick_dot, selects="points")
        dot = history.page_state().get(DOT)
        if dot is None or dot[0] != studio.key or title_of(dot[1]) not in drawn.table:
            st.caption("Choose a dot to see what it is, and to take its mechanism and its budget.")
        else:
            _dot(studio, comparison, drawn, *dot[1:])
    return script.compare(studio, comparison)


def _pick_dot() -> None:
    """Note the dot that was chosen on the lines, and what it was chosen for."""
    if points := st.session_state["chart_budgets"].selection.points:
        _, label, pcost = points[-1]["customdata"]
        history.page_state()[DOT] = (history.current().key, str(label), float(pcost))


def _dot(
    studio: RequestState, comparison: Compared, drawn: figures.Picture, label: str, pcost: float
) -> None:
    """What a dot stands for, and a button that takes its mechanism and its budget."""
    title, budget = title_of(label), studio.budget.at(pcost)
    size = dict(zip(drawn.table["pcost"], drawn.table[title], strict=True))[pcost]
    left, right = st.columns([9, 5], vertical_alignment="center")
    left.markdown(
        f"**{escape_markdown(title)} at {escape_markdown(budgets.in_words(budget))}:** typical"
        f" error {texts.format_number(size)} counts"
    )
    name, options = comparison.choices[label]
    label = f"Use {title} at this budget"
    buttons.button(
        escape_markdown(label),
        use,
        name,
        options,
        budget,
        key="use_dot",
        place=right,
        width="stretch",
    )


def _offer(comparison: Compared, label: str, words: str) -> None:
    left, right = st.columns([9, 5], vertical_alignment="center")
    cls = mechanism_class(comparison.choices[label][0])
    title = title_of(label)
    left.markdown(
        f"**{escape_markdown(title)}** · {escape_markdown(words)}  \n{escape_markdown(cls.meaning)}"
    )
    taken = label == comparison.present
    buttons.button(
        escape_markdown(f"In use: {title}" if taken else f"Use {title}"),
        use,
        *comparison.choices[label],
        key=f"use_{label}",
        place=right,
        disabled=taken,
        width="stretch",
    )


def spreads(studio: RequestState, comparison: Compared | None) -> str:
    """Distributions of standard errors of chosen mechanisms on one axis."""
    if not has_enough_plans(comparison):
        return ""
    best = comparison.best
    first = [*best[:SHOWN], *([comparison.present] if comparison.present in best[SHOWN:] else [])]
    chosen = st.multiselect(
        "Mechanisms to draw",
        best,
        default=first,
        format_func=title_of,
        key="spread_of",
        max_selections=8,
    )
    if not chosen:
        st.info("Choose at least one mechanism to draw.")
        return ""
    picture = figures.spreads_picture({label: comparison.found.spreads[label] for label in chosen})
    st.markdown(f"**{escape_markdown(picture.alt)}**")
    figure_view.picture(picture, key="spreads")
    return script.spreads(studio, comparison, chosen)


def against(studio: RequestState, comparison: Compared | None) -> str:
    """Where the first of two mechanisms loses, and a map of the ratio of their errors."""
    if not has_enough_plans(comparison, least=2):
        return ""
    best = comparison.best
    start = best.index(comparison.present) if comparison.present in best else 0
    left, right = st.columns(2)
    one = left.selectbox("A", best, index=start, format_func=title_of, key="pair_a")
    others = [label for label in best if label != one]
    other = right.selectbox("B", others, format_func=title_of, key="pair_b")
    plans = {label: comparison.plan(label) for label in (one, other)}
    with show_errors():
        lost = analysis.losses(plans[one], plans[other])
        worse, better, worst = st.columns(3)
        worse.metric(
            "Queries less exact under A",
            f"{lost.worse:.1%}",
            help="Larger standard error than under B",
        )
        better.metric(
            "Queries more exact under A",
            f"{lost.better:.1%}",
            help="Smaller standard error than under B",
        )
        at_least = "" if lost.exact else "at least "
        worst.metric(
            "Worst ratio A / B",
            f"{at_least}{texts.format_number(lost.worst)}",
            help="Largest ratio of the two standard errors",
        )
        how = "Every query was counted." if lost.exact else analysis.SAMPLED
        st.caption(escape_markdown(f"The worst ratio is that of: {lost.query}. {how}"))
        st.subheader("Ratio of standard errors, query by query")
        number = group_choice.choose_group(plans[one], key="pair_group")
        drawn = group_choice.choose_slice(plans[one], number, prefix="pair_")
        if drawn is not None:
            titled = {title_of(label): plan for label, plan in plans.items()}
            figure_view.picture(figures.ratio_picture(titled, number, *drawn), key="ratio")
        st.subheader("Where A loses, group by group")
        figure_view.table(
            lost.groups,
            name="where_a_loses",
            alt="Share of queries less exact under A, by group",
            height=320,
        )
    return script.against(studio, comparison, one, other)


def strategies(studio: RequestState, comparison: Compared | None) -> str:
    """Strategies of two plans side by side: rows and Gram matrix of one piece of each."""
    if not has_enough_plans(comparison):
        return ""
    columns = st.columns(2, gap="medium")
    chosen = []
    for place, column in enumerate(columns):
        with column:
            chosen.append(_strategy(comparison, place))
    for name, draw in (("rows", figures.rows_picture), ("gram", figures.gram_picture)):
        pictures = [draw(comparison.plan(label), key, factor) for label, key, factor in chosen]
        figures.on_one_scale(*pictures)
        for place, (column, picture) in enumerate(zip(columns, pictures, strict=True)):
            with column:
                figure_view.picture(picture, key=f"{name}_{place}")
    label, _, factor = chosen[0]
    return script.strategies(studio, comparison, label, factor)


def _strategy(comparison: Compared, place: int) -> tuple[str, tuple[str, ...], int]:
    """Choose a mechanism, one piece that it measures, and a factor of it."""
    number = min(place, len(comparison.best) - 1)
    key_of = f"strategy_of_{place}"
    label = st.selectbox("Mechanism", comparison.best, number, title_of, key=key_of)
    plan = comparison.plan(label)
    names = figures.block_names(plan)
    key = st.selectbox(
        "What is measured",
        list(names),
        format_func=names.__getitem__,
        key=f"strategy_piece_{place}_{label}",
    )
    factors, factor = figures.factor_names(plan, key), 0
    if len(factors) > 1:
        factor = st.selectbox(
            "Factor of the product",
            range(len(factors)),
            format_func=lambda i: factors[i],
            key=f"strategy_factor_{place}_{label}_{'_'.join(map(str, key))}",
        )
        st.caption(
            "The whole strategy is the Kronecker product of its factors, which is never built."
        )
    return label, key, factor
