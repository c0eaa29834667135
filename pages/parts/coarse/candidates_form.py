"""Choice of the analyses, their shared part, and the settings of the selection rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

import demo_data
from engine import common_mechanism, figures
from engine.common_mechanism import (
    CommonPlan,
    NestedPlanRule,
    coarse_or_fine,
    level_attributes,
    nested_choices,
)
from engine.mechanisms import load_plan, title_of
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.coarse import script as coarse_code
from pages.parts.jobs import plans
from pages.parts.shell import budgets, figure_view
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)
from pages.parts.shell.history import RequestState
from pages.parts.shell.python_script import Script

LEVELS, SIZES, COARSER, CENSUS, FILES = (
    "Levels of a code list",
    "Tables by number of attributes",
    "My workload and a coarser one",
    "Census example: age bins",
    "Plan files",
)
# With at most this many attributes, 1-way and 2-way tables are selected by default. Pairs of more
# attributes take long to plan.
MAX_DEFAULT_ATTRIBUTES = 100
UNIFORM_NOTE = (
    "The mechanism is the one chosen on Compare, but with the standard (uniform) split of totals"
    " instead of the tuned one: only then do the analyses share measurements."
)
NO_SCHEMA = (
    "There is no schema yet. To continue, enter one on Schema, open a demo on Start, or use the"
    " census example or plan files."
)
LEVEL_ATTRIBUTE = "coarse_level_attribute"  # session key
AT_ONCE, ONE_BY_ONE = "All in one choice", "One step at a time"


@dataclass(frozen=True, kw_only=True, eq=False)
class Analyses:
    """Plans of the analyses, coarse first, with their names.

    ``script`` is Python code that defines `options`, the list of these plans.
    """

    names: tuple[str, ...]
    plans: tuple[Plan, ...]
    script: Script


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the selection rule, with the meaning and units that `NestedPlanRule` defines."""

    share: float = 0.5
    snr: float = 5.0
    sigmas: float = 3.0
    primary: str = ""

    def arguments(self, common: CommonPlan) -> dict[str, Any]:
        """Return the arguments of `NestedPlanRule` other than ``common``.

        The primary analysis is the first one if ``primary`` is not the name of an analysis.
        """
        primary = self.primary if self.primary in common.names else 0
        return {"primary": primary, "share": self.share, "snr": self.snr, "sigmas": self.sigmas}


def choose(request_state: RequestState) -> Analyses | None:
    """Draw the choice of the analyses, and return their plans.

    The result is None if something is missing or a plan is not ready; the page then shows the
    reason.
    """
    st.session_state["coarse_kind"] = _kind(request_state)
    kind = st.radio(
        "Analyses",
        _kinds(request_state),
        key="coarse_kind",
        persist_state="session",
        horizontal=True,
        label_visibility="collapsed",
    )
    if kind == FILES:
        _upload_files()
    elif kind == LEVELS:
        _choose_levels(request_state.required_workload)
    elif kind == SIZES and request_state.schema is not None:
        key, options, default = _ways_field(request_state.schema)
        st.session_state.setdefault(key, default)  # a reloaded page has stored values
        st.multiselect("Attributes per table", options, key=key, persist_state="session")
    elif kind == CENSUS:
        st.caption(
            "Counts by sex and by 1, 4, 9 or 23 age bins; coarse ones cost less. The paper requires"
            " half of the cells above a signal-to-noise ratio of 20."
        )
    analyses = analyses_of_form(request_state)
    if analyses is not None and len(analyses.plans) > 2:
        st.radio(
            "Order of choices",
            [ONE_BY_ONE, AT_ONCE],
            horizontal=True,
            key="coarse_chain",
            persist_state="session",
            help="Step by step, each measurement adds detail. You pay for the last analysis only.",
        )
    return analyses


def analyses_of_form(request_state: RequestState) -> Analyses | None:
    """Return the plans of the analyses that were chosen in the form, without drawing the form.

    The result is None if something is missing or a plan is not ready; the page then shows the
    reason.
    """
    kind = _kind(request_state)
    if kind == FILES:
        return _from_files()
    if kind != CENSUS and request_state.schema is None:
        st.info(NO_SCHEMA, icon="📋")
        return None
    with show_errors():
        workloads, script = _workloads(kind, request_state)
        if not workloads:
            missing = "levels" if kind == LEVELS else "table sizes, such as 1 and 2"
            st.info(f"Choose at least two {missing}.", icon="🪜")
            return None
        # A first measurement that is common to all plans exists only if the plans have equal
        # centers.
        uniform = request_state.with_uniform_centers
        return _plan_all(workloads, uniform, script)
    return None


def _kinds(request_state: RequestState) -> tuple[str, ...]:
    """Return the kinds of analyses that can be chosen; the first one is the default.

    The kind `LEVELS` is among them only if the workload has `level_attributes`.
    """
    kinds = (SIZES, COARSER, CENSUS, FILES)
    workload = request_state.workload
    return (LEVELS, *kinds) if workload is not None and level_attributes(workload) else kinds


def _kind(request_state: RequestState) -> str:
    """Return the chosen kind of analyses; the default if the stored one is not possible here."""
    kinds = _kinds(request_state)
    kind = str(st.session_state.get("coarse_kind"))
    return kind if kind in kinds else kinds[0]


def _choose_levels(workload: Workload) -> None:
    """Draw the choice of the attribute, if several have levels, and of its levels."""
    attributes = level_attributes(workload)
    if len(attributes) > 1:
        st.session_state[LEVEL_ATTRIBUTE] = _level_attribute(workload)
        st.selectbox("Attribute", attributes, key=LEVEL_ATTRIBUTE, persist_state="session")
    key, names, _ = _levels_field(workload)
    st.session_state.setdefault(key, list(range(len(names))))
    st.multiselect(
        "Levels, coarse to fine",
        range(len(names)),
        format_func=names.__getitem__,
        key=key,
        persist_state="session",
        help="Each level is one analysis: your tables, by the areas of this level.",
    )


def _level_attribute(workload: Workload) -> str:
    """Return the chosen attribute with levels; by default the first one."""
    attributes = level_attributes(workload)
    name = str(st.session_state.get(LEVEL_ATTRIBUTE))
    return name if name in attributes else attributes[0]


def _levels_field(workload: Workload) -> tuple[str, tuple[str, ...], list[str]]:
    """Return a description of the field in which levels of a code list are chosen.

    It is a tuple of the key of the field, the names of all levels, and the names of the chosen
    levels.
    """
    attribute = workload.schema[_level_attribute(workload)]
    names = (*attribute.hierarchies[0].level_names, attribute.name)
    key = f"coarse_levels_{workload.schema.names.index(attribute.name)}_{len(names)}"
    chosen = st.session_state.get(key, range(len(names)))
    return key, names, [name for i, name in enumerate(names) if i in chosen]


def settings_text(request_state: RequestState) -> str:
    """Return budget and mechanism of the analyses as text; uploaded plans have their own.

    The coarse analyses of the census example have a smaller budget than the finest one.
    """
    if _kind(request_state) == FILES:
        return "Each analysis: budget and mechanism of its plan file."
    subject = "Finest analysis" if _kind(request_state) == CENSUS else "Each analysis"
    budget, title = budgets.in_words(request_state.budget), title_of(request_state.mechanism)
    return f"{subject}: {budget}, {title}."


def settings_help(request_state: RequestState) -> str | None:
    """Return why the analyses have another split of totals than the plan; None if they do not."""
    has_plan_files = _kind(request_state) == FILES
    is_same = has_plan_files or request_state.with_uniform_centers is request_state
    return None if is_same else UNIFORM_NOTE


def _ways_field(schema: Schema) -> tuple[str, list[int], list[int]]:
    """Return a description of the field in which numbers of attributes per table are chosen.

    It is a tuple of the key of the field, its options, and the options selected by default.
    """
    max_ways = min(3, len(schema))
    options = list(range(1, max_ways + 1))
    default = options[:2] if len(schema) <= MAX_DEFAULT_ATTRIBUTES else []
    return f"coarse_ways_{max_ways}_{bool(default)}", options, default


def _workloads(kind: str, request_state: RequestState) -> tuple[Mapping[str, Workload], Script]:
    """Return the workloads of the analyses by name, and the Python code that defines them.

    The mapping is empty if the user has chosen fewer than two levels, or no table size.
    """
    if kind == LEVELS:
        workload = request_state.required_workload
        attribute = _level_attribute(workload)
        levels = _levels_field(workload)[2]
        if len(levels) < 2:
            return {}, Script()
        workloads = common_mechanism.workloads_by_level(workload, attribute, levels)
        return workloads, coarse_code.levels_script(request_state, attribute, levels)
    if kind == SIZES:
        schema = request_state.required_workload.schema
        key, _, default = _ways_field(schema)
        ways = st.session_state.get(key, default)
        if not ways:
            return {}, Script()
        workloads = common_mechanism.workloads_by_way(schema, ways)
        return workloads, coarse_code.tables_script(request_state, sorted(ways))
    if kind == COARSER:
        workloads = common_mechanism.coarse_and_fine(request_state.required_workload)
        return workloads, coarse_code.coarser_script(request_state)
    return common_mechanism.census_ages(_census()), coarse_code.census()


@st.cache_resource(max_entries=1, show_spinner=False)
def _census() -> Schema:
    return Schema.from_json(demo_data.schemas()["census"].read_bytes())


def _plan_all(
    workloads: Mapping[str, Workload], request_state: RequestState, script: Script
) -> Analyses | None:
    """Plan the workloads one after the other, as on the Preview page.

    The result is None while a plan is not ready; the page then shows its progress or error.
    """
    plan_list = []
    for name, workload in workloads.items():
        plan = plans.plan_of(replace(request_state, workload=workload))
        if plan is None:
            st.caption(escape_markdown(f"This plan is for '{name}'."))
            return None
        plan_list.append(plan)
    script += coarse_code.plans_script(request_state)
    return Analyses(names=tuple(workloads), plans=tuple(plan_list), script=script)


def store_files() -> None:
    """Store the uploaded plans for this session."""
    # Earlier plans are removed first, so that they are also gone if a file cannot be read.
    st.session_state["coarse_plans"] = {}
    with deferred_errors("coarse_files"):
        files = st.session_state.get("coarse_files") or []
        texts = {file.name.removesuffix(".json")[:80]: file.getvalue() for file in files}
        st.session_state["coarse_plans"] = {name: load_plan(text) for name, text in texts.items()}


def _upload_files() -> None:
    """Draw the upload of plan files, and with two or more of them the choice of their order."""
    st.file_uploader(
        "Plan files (two or more, same schema)",
        type=["json"],
        accept_multiple_files=True,
        key="coarse_files",
        on_change=store_files,
        max_upload_size=100,
    )
    show_deferred_error("coarse_files")
    names = _file_names()
    if len(names) >= 2:
        key = f"coarse_order_{len(names)}"
        st.session_state.setdefault(key, names)
        st.multiselect("Order, coarse first", names, key=key, persist_state="session")


def _file_names() -> list[str]:
    """Return the names of the uploaded plans, the one with the fewest queries first."""
    plans: Mapping[str, Plan] = st.session_state.get("coarse_plans", {})
    return sorted(plans, key=lambda name: plans[name].workload.queries)


def _from_files() -> Analyses | None:
    """Return the uploaded plans in the order chosen on the page.

    If there are fewer than two, draw the reason and return None.
    """
    uploaded_plans: Mapping[str, Plan] = st.session_state.get("coarse_plans", {})
    names = _file_names()
    if len(names) < 2:
        st.info("Upload at least two plan files to continue.", icon="📂")
        return None
    order = [
        name
        for name in st.session_state.get(f"coarse_order_{len(names)}", names)
        if name in uploaded_plans
    ]
    if len(order) < 2:
        st.info("Choose at least two plans, coarse first.", icon="📂")
        return None
    return Analyses(
        names=tuple(order),
        plans=tuple(uploaded_plans[n] for n in order),
        script=coarse_code.from_files(order),
    )


@st.cache_resource(max_entries=8, show_spinner="Computing the shared part")
def _split(
    identity: tuple[str, ...], names: tuple[str, ...], chain: bool, _plans: Sequence[Plan]
) -> CommonPlan:
    split: Callable[..., CommonPlan] = nested_choices if chain else coarse_or_fine
    return split(*_plans, names=names)


def split(analyses: Analyses) -> tuple[CommonPlan, Script] | None:
    """Split the analyses into a shared first measurement and one second measurement each.

    Returns
    -------
    A pair of the split plans, and Python code that defines them. None if the analyses cannot be
    split; the page then shows the error.
    """
    is_chain = st.session_state.get("coarse_chain", ONE_BY_ONE) == ONE_BY_ONE
    chain = len(analyses.plans) > 2 and is_chain
    with show_errors():
        identity = tuple(
            f"{p.hash}|{p.max_records}|{p.budget.report_delta}" for p in analyses.plans
        )
        common = _split(identity, analyses.names, chain, analyses.plans)
        return common, analyses.script + coarse_code.split_script(analyses.names, chain=chain)
    return None


def short_budget(budget: Budget) -> str:
    """Return a budget as text in the chosen unit, without the rows per person."""
    return budgets.headline(budget, budgets.chosen_unit())


def draw_shared_part(common: CommonPlan) -> None:
    """Draw the costs of the first measurement and of the second measurement of each analysis.

    If the user chooses one step at a time, there is one chart per step.
    """
    chain = [common]
    while (following := chain[-1].following) is not None:
        chain.append(following)
    for number, choice in enumerate(chain):
        if len(chain) > 1:
            finer = figures.in_screen_words(choice.names[1])
            title = f"Choice {number + 1}: {choice.names[0]}, or {finer}?"
            st.markdown(f"**{escape_markdown(title)}**")
        picture = figures.shares_picture(choice, short_budget)
        figure_view.picture(picture, key=f"coarse_shares_{number}", config=figure_view.EXPORT)
        st.markdown(f"**{escape_markdown(picture.alt)}**")
        if number == 0:
            budgets.sum_note(is_pure=False)
        key = f"coarse_space_{number}_open"
        label = "Shared part in detail"
        with st.expander(label, key=key, on_change="rerun") as opened:
            if opened.open:
                figure_view.table(
                    figures.space_table(choice),
                    name=f"coarse_spaces_{number}",
                    alt="Cost and shared cost of every residual space, by option",
                )


def settings(common: CommonPlan) -> Settings:
    """Draw the settings of the selection rule, and return them."""
    share_column, ratio_column, margin_column, primary_column = st.columns(
        4, vertical_alignment="bottom"
    )
    _number(
        share_column,
        "Share of reliable cells",
        limits=(0.01, 1.0),
        default=0.5,
        step=0.05,
        key="coarse_share",
        meaning="Share of cells that must be reliable in the finer analysis; 0.5 means half.",
    )
    _number(
        ratio_column,
        "Signal-to-noise ratio",
        limits=(0.1, 1e6),
        default=5.0,
        step=1.0,
        key="coarse_snr",
        meaning="A cell is reliable if its count divided by its standard error is at least this.",
    )
    _number(
        margin_column,
        "Safety margin",
        limits=(0.0, 10.0),
        default=3.0,
        step=0.5,
        key="coarse_sigmas",
        meaning="Standard errors of the first measurement to allow for; 0 ignores its uncertainty.",
    )
    if common.following is None and len(common.names) > 2:
        primary_column.selectbox(
            "Primary analysis",
            common.names[:-1],
            key=_primary_key(common),
            persist_state="session",
            help="Coarsest acceptable analysis; later ones are finer.",
        )
    return settings_of_form(common)


def _number(
    place: DeltaGenerator,
    label: str,
    *,
    limits: tuple[float, float],
    default: float,
    step: float,
    key: str,
    meaning: str,
) -> None:
    place.number_input(
        label, *limits, default, step=step, key=key, persist_state="session", help=meaning
    )


def settings_of_form(common: CommonPlan) -> Settings:
    """Return the settings of the form without drawing it."""
    form = st.session_state
    return Settings(
        share=form.get("coarse_share", 0.5),
        snr=form.get("coarse_snr", 5.0),
        sigmas=form.get("coarse_sigmas", 3.0),
        primary=form.get(_primary_key(common)) or "",
    )


def _primary_key(common: CommonPlan) -> str:
    return f"coarse_primary_{len(common.names)}_{common.hash[:8]}"


@st.cache_resource(max_entries=16, show_spinner=False)
def _rule(identity: str, settings: Settings, _common: CommonPlan) -> NestedPlanRule:
    return NestedPlanRule(common=_common, **settings.arguments(_common))


def rule(common: CommonPlan, settings: Settings) -> NestedPlanRule | None:
    """Return the selection rule with these settings for the analyses in ``common``.

    The result is None if the rule is invalid; the page then shows the error.
    """
    with show_errors():
        return _rule(
            f"{common.hash}|{common.look.budget.report_delta}|{common.names}", settings, common
        )
    return None
