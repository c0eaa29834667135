"""Views of a comparison: ranking, other budgets, distributions, pairs and strategies."""

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

POINT = "budget_dot"  # selected point: (request key, mechanism label, pcost)
FIRST_SHOWN = 4  # mechanisms selected at first in the view of distributions


def use(name: str, options: Mapping[str, Any], budget: Budget | None = None) -> None:
    """Apply a mechanism with its options and optionally a budget; keep the maximum of records."""
    before = history.current()
    max_records = {k: v for k, v in before.options.items() if k == "max_records"}
    studio = replace(before, mechanism=name, options={}, budget=budget or before.budget)
    history.commit(studio.with_options(dict(options) | max_records), redraw=True)


def has_enough_plans(comparison: Compared | None, least: int = 1) -> TypeGuard[Compared]:
    """Return whether there are enough plans; otherwise show what to do."""
    if comparison is not None and len(comparison.best) >= least:
        return True
    text = "Press Compare above to see results."
    if run.running():
        text = "The comparison is running."
    elif comparison is not None:
        text = "To see results, select other mechanisms or a longer time limit."
    st.info(text, icon="⚖️")
    return False


def ranking(studio: RequestState, comparison: Compared | None) -> str:
    """Draw errors relative to the bound, planning time, errors per table, and "Use" buttons."""
    if comparison is not None and comparison.best:
        picture = figures.ranking_picture(comparison.results)
        st.markdown(f"**{escape_markdown(picture.alt)}**")
        left, right = st.columns(2, gap="medium")
        with left:
            figure_view.picture(picture, key="ranking")
        with right:
            figure_view.picture(figures.effort_picture(comparison.results), key="seconds")
        figure_view.picture(
            figures.where_picture(comparison.results, studio.required_workload), key="where"
        )
        if (scale := record_count_form.entered_scale()) is not None:
            st.caption(escape_markdown(analysis.publishable_text(comparison.results, scale)))
            with st.expander(
                "Publishable share per table", key="compare_quality", on_change="rerun"
            ) as opened:
                if opened.open:
                    st.caption("For typical errors and evenly spread records.")
                    table = analysis.publishable_by_group(
                        comparison.results, studio.required_workload, scale
                    )
                    figure_view.table(
                        table,
                        name="publishable_by_group",
                        alt="Share of publishable answers per table",
                        shares=list(map(str, table))[1:],
                    )
        st.subheader("Choose a mechanism")
        st.caption("RMSE, planning time and peak memory.")
        for label, text in figures.costs(comparison.results).items():
            _draw_offer(comparison, label, text)
        st.download_button(
            "Download HTML report",
            lambda: figures.comparison_page(
                comparison.results, studio.required_workload, studio.budget
            ),
            "comparison.html",
            "text/html",
            on_click="ignore",
        )
    else:
        has_enough_plans(comparison)
    if comparison is not None and len(failures := figures.refusals(comparison.results)):
        st.subheader("Mechanisms without a result")
        reasons = failures.assign(reason=failures["reason"].map(in_labels))
        figure_view.table(
            reasons, name="without_result", alt="Mechanisms without a result, and why"
        )
    return script.compare(studio, comparison)


def other_budgets(studio: RequestState, comparison: Compared | None) -> str:
    """Draw the error of every mechanism at other budgets, with a selectable point."""
    if has_enough_plans(comparison):
        picture = figures.budgets_picture(comparison.results, studio.budget, budgets.in_words)
        figure_view.picture(picture, key="budgets", on_select=_store_point, selects="points")
        point = history.page_state().get(POINT)
        if point is None or point[0] != studio.key or title_of(point[1]) not in picture.table:
            st.caption("Choose a point to use its mechanism and budget.")
        else:
            _draw_point(studio, comparison, picture, *point[1:])
    return script.compare(studio, comparison)


def _store_point() -> None:
    """Store the selected point with the key of the request."""
    if points := st.session_state["chart_budgets"].selection.points:
        _, label, pcost = points[-1]["customdata"]
        history.page_state()[POINT] = (history.current().key, str(label), float(pcost))


def _draw_point(
    studio: RequestState, comparison: Compared, picture: figures.Picture, label: str, pcost: float
) -> None:
    """Draw the selected point and a button that applies its mechanism and budget."""
    title, budget = title_of(label), studio.budget.at(pcost)
    error = dict(zip(picture.table["pcost"], picture.table[title], strict=True))[pcost]
    left, right = st.columns([9, 5], vertical_alignment="center")
    left.markdown(
        f"**{escape_markdown(title)} at {escape_markdown(budgets.in_words(budget))}:** typical"
        f" error {texts.format_number(error)} counts"
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


def _draw_offer(comparison: Compared, label: str, text: str) -> None:
    left, right = st.columns([9, 5], vertical_alignment="center")
    cls = mechanism_class(comparison.choices[label][0])
    title = title_of(label)
    left.markdown(
        f"**{escape_markdown(title)}** · {escape_markdown(text)}  \n{escape_markdown(cls.meaning)}"
    )
    in_use = label == comparison.current_label
    buttons.button(
        escape_markdown(f"In use: {title}" if in_use else f"Use {title}"),
        use,
        *comparison.choices[label],
        key=f"use_{label}",
        place=right,
        disabled=in_use,
        width="stretch",
    )


def spreads(studio: RequestState, comparison: Compared | None) -> str:
    """Draw the distributions of standard errors of the selected mechanisms."""
    if not has_enough_plans(comparison):
        return ""
    best = comparison.best
    first = [
        *best[:FIRST_SHOWN],
        *([comparison.current_label] if comparison.current_label in best[FIRST_SHOWN:] else []),
    ]
    chosen = st.multiselect(
        "Mechanisms shown",
        best,
        default=first,
        format_func=title_of,
        key="spread_of",
        max_selections=8,
    )
    if not chosen:
        st.info("Choose at least one mechanism.")
        return ""
    picture = figures.spreads_picture(
        {label: comparison.results.spreads[label] for label in chosen}
    )
    st.markdown(f"**{escape_markdown(picture.alt)}**")
    figure_view.picture(picture, key="spreads")
    return script.spreads(studio, comparison, chosen)


def against(studio: RequestState, comparison: Compared | None) -> str:
    """Draw where the first of two mechanisms is less accurate, and the ratio of errors."""
    if not has_enough_plans(comparison, least=2):
        return ""
    best = comparison.best
    start = best.index(comparison.current_label) if comparison.current_label in best else 0
    left, right = st.columns(2)
    one = left.selectbox("A", best, index=start, format_func=title_of, key="pair_a")
    others = [label for label in best if label != one]
    other = right.selectbox("B", others, format_func=title_of, key="pair_b")
    plans = {label: comparison.plan(label) for label in (one, other)}
    with show_errors():
        lost = analysis.losses(plans[one], plans[other])
        worse, better, worst = st.columns(3)
        worse.metric(
            "Queries less accurate under A",
            f"{lost.worse:.1%}",
            help="Larger standard error than under B.",
        )
        better.metric(
            "Queries more accurate under A",
            f"{lost.better:.1%}",
            help="Smaller standard error than under B.",
        )
        at_least = "" if lost.exact else "at least "
        worst.metric(
            "Worst ratio A / B",
            f"{at_least}{texts.format_number(lost.worst)}",
            help="Largest ratio of the standard errors.",
        )
        sampling_note = "" if lost.exact else f" {analysis.SAMPLED}"
        st.caption(escape_markdown(f"Worst ratio: {lost.query}.{sampling_note}"))
        st.subheader("Ratio of standard errors")
        number = group_choice.choose_group(plans[one], key="pair_group")
        grid_slice = group_choice.choose_slice(plans[one], number, prefix="pair_")
        if grid_slice is not None:
            titled = {title_of(label): plan for label, plan in plans.items()}
            figure_view.picture(figures.ratio_picture(titled, number, *grid_slice), key="ratio")
        st.subheader("Tables where A is less accurate")
        figure_view.table(
            lost.groups,
            name="where_a_loses",
            alt="Share of queries less accurate under A, per table",
            height=320,
        )
    return script.against(studio, comparison, one, other)


def strategies(studio: RequestState, comparison: Compared | None) -> str:
    """Draw rows and Gram matrix of one block of two plans side by side."""
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
    """Draw the choice of a mechanism, one of its blocks, and a factor."""
    number = min(place, len(comparison.best) - 1)
    key_of = f"strategy_of_{place}"
    label = st.selectbox("Mechanism", comparison.best, number, title_of, key=key_of)
    plan = comparison.plan(label)
    names = figures.block_names(plan)
    key = st.selectbox(
        "Measurement",
        list(names),
        format_func=names.__getitem__,
        key=f"strategy_piece_{place}_{label}",
    )
    factors, factor = figures.factor_names(plan, key), 0
    if len(factors) > 1:
        factor = st.selectbox(
            "Factor",
            range(len(factors)),
            format_func=lambda i: factors[i],
            key=f"strategy_factor_{place}_{label}_{'_'.join(map(str, key))}",
        )
        st.caption("The strategy is the Kronecker product of its factors.")
    return label, key, factor
