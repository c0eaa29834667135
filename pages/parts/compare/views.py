"""Views of a comparison: ranking, differences, other budgets and strategies.

A function that draws a view returns Python code that computes the numbers of the view. Without
results, it is the code of the comparison, or empty.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

import streamlit as st

from engine import _format as texts
from engine import analysis, figures
from engine.analysis.compare import Comparison
from engine.mechanisms import title_of
from engine.residuals import Space
from engine.workload import Workload
from pages.parts.compare import export_menu, mechanism, run, script
from pages.parts.compare.run import Compared
from pages.parts.shell import budgets, buttons, figure_view, history
from pages.parts.shell.error_text import escape_markdown, in_labels, show_errors
from pages.parts.shell.history import RequestState
from pages.parts.workload import group_choice, record_count_form

POINT = "budget_dot"  # selected point: (request key, mechanism label, pcost)
FIRST_SHOWN = 4  # number of mechanisms that the view "By query" draws at first
RESIDUAL_PLANNER = "residualplanner"
MARGINALS_NOTE = (
    "ResidualPlanner is optimal for marginal tables only. This workload has other queries, such as"
    " cumulative ones; ResidualPlanner+ chooses its strategy for them."
)
MAX_DRAWN_PARTS = 2  # number of attribute axes of one chart


def has_enough_plans(comparison: Compared | None, least: int = 1) -> TypeGuard[Compared]:
    """Return whether the comparison has at least ``least`` plans; otherwise draw what to do."""
    if comparison is not None and len(comparison.best) >= least:
        return True
    text = "Press Compare above to see results."
    if run.running():
        text = "The comparison is running."
    elif comparison is not None:
        text = "To see results, select other mechanisms or a longer time limit."
    st.info(text, icon="⚖️")
    return False


def ranking(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw the ranking by error, the planning times, and the mechanisms without a result.

    If a record count was entered, also draw the share of publishable answers.  Return the Python
    code of the comparison.
    """
    if not has_enough_plans(comparison):
        _show_failures(comparison)
        return script.compare(request_state, comparison)
    results, workload = comparison.results, request_state.required_workload
    criterion = _criterion(request_state)
    pictures = {
        "ranking": figures.ranking_picture(results, criterion),
        "seconds": figures.effort_picture(results, criterion),
    }

    def report() -> str:
        budget = request_state.budget
        pcosts = budgets.nearby_pcosts(budget)
        return figures.comparison_page(results, workload, budget, budgets.in_words, pcosts)

    caption = figures.comparison_caption(results, workload, request_state.budget)
    export_menu.head(pictures["ranking"].alt, pictures, report=report, caption=caption)
    _show_ties(request_state, results)
    # Charts of equal typical errors would show nothing.
    if criterion != "rmse" or not figures.all_tied(results):
        left, right = st.columns(2, gap="medium")
        with left:
            note = figures.ranking_note(results, criterion)
            export_menu.chart(pictures["ranking"], key="ranking", note=note)
        with right:
            # The note of the left chart names the mechanisms that neither chart draws.
            effort = replace(pictures["seconds"], note="Lower left is better.")
            export_menu.chart(effort, key="seconds")
    if RESIDUAL_PLANNER in comparison.best and not _has_only_marginals(workload):
        st.caption(MARGINALS_NOTE)
    export_menu.data(pictures, key="ranking")
    if (scale := record_count_form.entered_scale()) is not None:
        st.caption(escape_markdown(analysis.publishable_text(results, scale)))
        with st.expander(
            "Publishable share per table", key="compare_quality", on_change="rerun"
        ) as opened:
            if opened.open:
                st.caption("For typical errors and evenly spread records.")
                table = analysis.publishable_by_group(results, workload, scale)
                figure_view.table(
                    table,
                    name="publishable_by_group",
                    alt="Share of publishable answers per table",
                    shares=list(map(str, table))[1:],
                )
    _show_failures(comparison)
    return script.compare(request_state, comparison)


def _criterion(request_state: RequestState) -> str:
    """Draw the choice of the error that ranks the mechanisms; return a key of `CRITERIA`.

    The default is the largest error if the current plan minimizes it, otherwise the RMSE.
    """
    objective = request_state.options_without_defaults.get("objective", "sum")
    chosen: str = st.radio(
        "Rank by",
        list(figures.CRITERIA),
        index=int(objective == "max"),
        format_func=figures.CRITERIA.__getitem__,
        key=f"compare_criterion_{objective}",
        horizontal=True,
        persist_state="session",
        label_visibility="collapsed",
    )
    return chosen


def _has_only_marginals(workload: Workload) -> bool:
    """Return whether a workload has no query family other than marginals."""
    return all(part.family.name == "marginal" for g in workload.groups for part in g.parts)


def _show_ties(request_state: RequestState, results: Comparison) -> None:
    """Draw which of the most accurate mechanisms have the same error for every table.

    If all tables are marginals and some attributes are numeric, a button proposes cumulative counts
    for these attributes, because the mechanisms may have different errors for such counts.  Without
    this proposal, nothing is drawn unless all mechanisms have the same errors.
    """
    tied = figures.tied_mechanisms(results)
    cumulative = analysis.cumulative_workload(request_state.required_workload)
    if not tied or (cumulative is None and not figures.all_tied(results)):
        return
    left, right = st.columns([4, 1], vertical_alignment="center")
    if figures.all_tied(results):
        text = "Nothing to choose here: all mechanisms are equally accurate. Keep the default."
    else:
        text = f"Plain tables are answered equally accurately by {', '.join(tied)}."
    left.info(escape_markdown(text), icon="🟰")
    if cumulative is not None:
        buttons.button(
            "Use cumulative tables",
            _use_workload,
            cumulative,
            key="use_cumulative",
            type="tertiary",
            place=right,
            help="Mechanisms differ for counts up to each value of numeric attributes. Undo restores"
            " the plain tables.",
        )


def _use_workload(workload: Workload) -> None:
    history.change(workload=workload, redraw=True)


def _show_failures(comparison: Compared | None) -> None:
    """Draw the mechanisms without a result and their reasons; nothing if all have a result."""
    if comparison is None or not len(failures := figures.refusals(comparison.results)):
        return
    with st.expander(f"{texts.pluralize(len(failures), 'mechanism')} without a result"):
        # Reasons are shown as text, because the cells of a table would cut long ones.
        for name, reason in zip(failures["mechanism"], failures["reason"], strict=True):
            st.markdown(f"**{escape_markdown(name)}:** {escape_markdown(in_labels(reason))}")


def differences(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw the view of `DIFFERENCES` that the user chooses; return its Python code."""
    view = figure_view.choose_view(DIFFERENCES, key="differences_shown")
    return DIFFERENCES[view](request_state, comparison)


def tables(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw the error of every table under every mechanism, relative to the best for this table.

    Return the Python code of the comparison.
    """
    if has_enough_plans(comparison, least=2):
        if figures.all_tied(comparison.results):
            st.info("These mechanisms have the same error for every table.", icon="🟰")
        else:
            results, workload = comparison.results, request_state.required_workload
            picture = figures.where_picture(results, workload)
            caption = figures.comparison_caption(results, workload, request_state.budget)
            export_menu.head(picture.alt, {"where": picture}, caption=caption)
            export_menu.chart(picture, key="where")
            export_menu.data({"where": picture}, key="where")
    return script.compare(request_state, comparison)


def other_budgets(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw the error of every mechanism at other budgets.

    For a point that the user selects, a button applies its mechanism and budget.  Return the Python
    code of the comparison.
    """
    if has_enough_plans(comparison):
        budget = request_state.budget
        picture = figures.budgets_picture(
            comparison.results, budget, budgets.in_words, budgets.nearby_pcosts(budget)
        )
        export_menu.head(picture.alt, {"budgets": picture})
        figure_view.chart(picture, key="budgets")(on_select=_store_point, selection_mode="points")
        # the selected point may be of another request, or no longer in the chart
        request_key, label, pcost = history.page_state().get(POINT, ("", "", 0.0))
        if (
            request_key == request_state.key
            and title_of(label) in picture.table
            and pcost in picture.table["pcost"].tolist()
        ):
            _draw_point(request_state, comparison, picture, label, pcost)
        else:
            st.caption("Choose a point to use its mechanism and budget.")
        export_menu.data({"budgets": picture}, key="budgets")
    return script.compare(request_state, comparison)


def _store_point() -> None:
    """Store the selected point with the key of the request."""
    if points := st.session_state["chart_budgets"].selection.points:
        _, label, pcost = points[-1]["customdata"]
        history.page_state()[POINT] = (history.current().key, str(label), float(pcost))


def _draw_point(
    request_state: RequestState,
    comparison: Compared,
    picture: figures.Picture,
    label: str,
    pcost: float,
) -> None:
    """Draw the selected point and a button that applies its mechanism and budget."""
    title = title_of(label)
    budget = request_state.budget.at(pcost)
    error = dict(zip(picture.table["pcost"], picture.table[title], strict=True))[pcost]
    left, right = st.columns([9, 5], vertical_alignment="center")
    left.markdown(
        f"**{escape_markdown(title)} at {escape_markdown(budgets.in_words(budget))}:** typical"
        f" error {texts.format_number(error)} counts"
    )
    name, options = comparison.choices[label]
    buttons.button(
        escape_markdown(f"Use {title} at this budget"),
        mechanism.use,
        name,
        options,
        budget,
        key="use_dot",
        place=right,
        width="stretch",
    )


def spreads(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw the distributions of standard errors of the selected mechanisms; return Python code.

    The code is empty if there is no plan or no mechanism is selected.
    """
    if not has_enough_plans(comparison):
        return ""
    best = comparison.best
    default_labels = [
        *best[:FIRST_SHOWN],
        *([comparison.current_label] if comparison.current_label in best[FIRST_SHOWN:] else []),
    ]
    labels = st.multiselect(
        "Mechanisms shown",
        best,
        default=default_labels,
        format_func=title_of,
        key="spread_of",
        max_selections=8,
    )
    if not labels:
        st.info("Choose at least one mechanism.")
        return ""
    picture = figures.spreads_picture(
        {label: comparison.results.spreads[label] for label in labels}
    )
    export_menu.head(picture.alt, {"spreads": picture})
    export_menu.chart(picture, key="spreads")
    export_menu.data({"spreads": picture}, key="spreads")
    return script.spreads(request_state, comparison, labels)


def against(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw for which queries mechanism A has a larger error than mechanism B, and by what ratio.

    Return the Python code of this view; it is empty if there are fewer than two plans.
    """
    if not has_enough_plans(comparison, least=2):
        return ""
    best = comparison.best
    start = best.index(comparison.current_label) if comparison.current_label in best else 0
    left, right = st.columns(2)
    label_a = left.selectbox("A", best, index=start, format_func=title_of, key="pair_a")
    others = [label for label in best if label != label_a]
    label_b = right.selectbox("B", others, format_func=title_of, key="pair_b")
    plans = {label: comparison.plan(label) for label in (label_a, label_b)}
    with show_errors():
        losses = analysis.losses(plans[label_a], plans[label_b])
        if losses.worse == losses.better == 0.0:
            st.info("A and B have the same error for every query.", icon="🟰")
            return script.against(request_state, comparison, label_a, label_b)
        worse, better, worst = st.columns(3)
        worse.metric(
            "Queries less accurate under A",
            texts.percent(losses.worse),
            help="Larger standard error than under B.",
        )
        better.metric(
            "Queries more accurate under A",
            texts.percent(losses.better),
            help="Smaller standard error than under B.",
        )
        at_least = "" if losses.exact else "at least "
        worst.metric(
            "Worst ratio A / B",
            f"{at_least}{texts.format_number(losses.worst)}",
            help="Largest ratio of the standard errors.",
        )
        sampling_note = "" if losses.exact else f" {analysis.SAMPLED}"
        st.caption(escape_markdown(f"Worst ratio: {losses.query}.{sampling_note}"))
        number = group_choice.choose_group(plans[label_a], key="pair_group")
        # The chart has at most two axes. For a group with more parts (query families on different
        # attributes), the user chooses which parts are the axes.
        grid_slice = (
            (None, None)
            if len(plans[label_a].workload.groups[number].parts) <= MAX_DRAWN_PARTS
            else group_choice.choose_slice(plans[label_a], number, prefix="pair_")
        )
        if grid_slice is not None:
            plans_by_title = {title_of(label): plan for label, plan in plans.items()}
            picture = figures.ratio_picture(plans_by_title, number, *grid_slice)
            export_menu.head(picture.alt, {"ratio": picture})
            export_menu.chart(picture, key="ratio")
        with st.expander(
            "Tables where A is less accurate", key="losses", on_change="rerun"
        ) as fold:
            if fold.open:
                figure_view.table(
                    losses.groups,
                    name="where_a_loses",
                    alt="Share of queries less accurate under A, per table",
                    height=320,
                )
    return script.against(request_state, comparison, label_a, label_b)


DIFFERENCES = {"By table": tables, "Two mechanisms": against, "By query": spreads}


def strategies(request_state: RequestState, comparison: Compared | None) -> str:
    """Draw the strategies of two measured blocks side by side, as rows or as Gram matrices.

    If both blocks are the same, it is drawn once. Return the Python code of this view; it is empty
    if there is no plan.
    """
    if not has_enough_plans(comparison):
        return ""
    selections: list[tuple[str, Space, int]] = []
    with st.popover("Choose strategies"):
        view = figure_view.choose_view(STRATEGY_PICTURES, key="strategies_shown")
        for side, column in enumerate(st.columns(2, gap="medium")):
            with column:
                selections.append(_strategy(comparison, side))
    if selections[0] == selections[1]:
        st.caption("Both sides show the same measurement; choose another on one side.")
        selections = selections[:1]
    draw = STRATEGY_PICTURES[view]
    pictures = {
        f"strategy_{side}": draw(comparison.plan(label), key, factor)
        for side, (label, key, factor) in enumerate(selections)
    }
    figures.on_one_scale(*pictures.values())
    export_menu.head("What the mechanisms measure", pictures)
    columns = st.columns(len(pictures), gap="medium")
    for column, (label, *_), (name, picture) in zip(
        columns, selections, pictures.items(), strict=True
    ):
        with column:
            title, text = escape_markdown(title_of(label)), escape_markdown(picture.alt)
            st.markdown(f"**{title}:** {text}")
            figure_view.chart(picture, key=name)()
            st.caption(escape_markdown(picture.note))
    export_menu.data(pictures, key="strategies")
    return script.strategies(request_state, comparison, selections, draw)


STRATEGY_PICTURES = {
    "Gram matrix": figures.gram_picture,
    "Strategy matrix": figures.rows_picture,
}


def _strategy(comparison: Compared, side: int) -> tuple[str, Space, int]:
    """Draw the choice of a strategy for the left (``side`` 0) or right chart (1).

    Returns
    -------
    label : label of the mechanism.
    key : key of one of the measured blocks of its plan.
    factor : index of a Kronecker factor of this block.
    """
    label = st.selectbox(
        "Mechanism",
        comparison.best,
        index=min(side, len(comparison.best) - 1),
        format_func=title_of,
        key=f"strategy_of_{side}",
    )
    plan = comparison.plan(label)
    names = figures.block_names(plan)
    key = st.selectbox(
        "Measurement",
        list(names),
        format_func=names.__getitem__,
        key=f"strategy_piece_{side}_{label}",
    )
    factors, factor = figures.factor_names(plan, key), 0
    if len(factors) > 1:
        factor = st.selectbox(
            "Factor",
            range(len(factors)),
            format_func=lambda i: factors[i],
            key=f"strategy_factor_{side}_{label}_{'_'.join(map(str, key))}",
            help="The strategy is the Kronecker product of its factors.",
        )
    return label, key, factor
