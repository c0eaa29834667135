"""Which analyses to choose from, and the rule that chooses: the first steps of the page Coarse or
fine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

import demo_data
from engine import common_mechanism, figures
from engine.common_mechanism import CommonPlan, NestedPlanRule, coarse_or_fine, nested_choices
from engine.mechanisms import load_plan, title_of
from engine.plans import Plan
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

WAYS, COARSER, CENSUS, FILES = (
    "Tables of few or many attributes",
    "My workload or a coarser one",
    "Census example: bins of age",
    "Plan files",
)
WIDE = 100  # attributes up to which singles and pairs are planned without being asked for
KINDS = (WAYS, COARSER, CENSUS, FILES)
UNASKED = " (uniform centers, where none were chosen, so that the analyses share what they measure)"
NO_SCHEMA = (
    "There is no schema yet. Choose one on the Schema page, or take the census example or plan"
    " files."
)
AT_ONCE, ONE_BY_ONE = "All in one choice", "One after the other, look closer while it pays"


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """The analyses, coarse first, with the Python that makes `common` from them."""

    names: tuple[str, ...]
    plans: tuple[Plan, ...]
    script: Script


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Numbers of the rule."""

    share: float = 0.5
    snr: float = 5.0
    sigmas: float = 3.0
    primary: str = ""

    def arguments(self, common: CommonPlan) -> dict[str, Any]:
        """What the rule takes besides the options; in later choices of a chain the first option is
        the primary one.
        """
        primary = self.primary if self.primary in common.names else 0
        return {"primary": primary, "share": self.share, "snr": self.snr, "sigmas": self.sigmas}


def choose(studio: RequestState) -> Chosen | None:
    """Draw the choice of the analyses and plan them; None while something is missing."""
    if st.session_state.get("coarse_kind", WAYS) not in KINDS:
        del st.session_state["coarse_kind"]
    kind = st.radio("Which analyses", KINDS, key="coarse_kind", persist_state="session")
    if kind == FILES:
        return _from_files()
    if kind != CENSUS and studio.schema is None:
        st.info(NO_SCHEMA, icon="📋")
        return None
    with show_errors():
        templates, script = _templates(kind, studio)
        if not templates:
            st.info("Choose two numbers of attributes or more, such as 1 and 2.", icon="🪜")
            return None
        even = studio.with_uniform_centers
        how = f"{title_of(studio.mechanism)}{UNASKED if even is not studio else ''}"
        with_what = (
            f"the present budget of {budgets.in_words(studio.budget)}, by the mechanism {how}"
        )
        st.caption(
            escape_markdown(f"All of them at {with_what}; both are chosen on the Preview page.")
        )
        return _planned(templates, even, script)
    return None


def _templates(kind: str, studio: RequestState) -> tuple[Mapping[str, Workload], Script]:
    if kind == WAYS:
        schema = studio.required_workload.schema
        most = min(3, len(schema))
        options = list(range(1, most + 1))
        first = (
            options[:2] if len(schema) <= WIDE else []
        )  # all pairs of hundreds of attributes take long to plan
        key = f"coarse_ways_{most}_{bool(first)}"
        st.session_state.setdefault(key, first)  # a page that was loaded again has its own
        ways = st.multiselect("Attributes a table", options, key=key, persist_state="session")
        return (
            (
                common_mechanism.workloads_by_way(schema, ways),
                coarse_code.tables_script(studio, sorted(ways)),
            )
            if ways
            else ({}, Script())
        )
    if kind == COARSER:
        return common_mechanism.coarse_and_fine(
            studio.required_workload
        ), coarse_code.coarser_script(studio)
    st.caption(
        "Men and women of all ages together, or in 4, 9 or 23 bins of age, as for small groups of"
        " people in a census. The paper behind it asks for half of the cells above a ratio of 20."
    )
    return common_mechanism.census_ages(_census()), coarse_code.census()


@st.cache_resource(max_entries=1, show_spinner=False)
def _census() -> Schema:
    return Schema.from_json(demo_data.schemas()["census"].read_bytes())


def _planned(
    workloads: Mapping[str, Workload], studio: RequestState, script: Script
) -> Chosen | None:
    """Plan one after the other, each as on the Preview page."""
    made = []
    for name, workload in workloads.items():
        one = plans.plan_of(replace(studio, workload=workload))
        if one is None:
            st.caption(escape_markdown(f"This plan is for '{name}'."))
            return None
        made.append(one)
    script += coarse_code.plans_script(studio.budget, coarse_code.how(studio))
    return Chosen(names=tuple(workloads), plans=tuple(made), script=script)


def keep_files() -> None:
    """Keep the uploaded plans for this session."""
    st.session_state[
        "coarse_plans"
    ] = {}  # a file that cannot be read leaves no plans of earlier ones
    with deferred_errors("coarse_files"):
        files = st.session_state.get("coarse_files") or []
        texts = {file.name.removesuffix(".json")[:80]: file.getvalue() for file in files}
        st.session_state["coarse_plans"] = {name: load_plan(text) for name, text in texts.items()}


def _from_files() -> Chosen | None:
    st.file_uploader(
        "Two or more plan files on one schema, as downloaded on the Preview page",
        type=["json"],
        accept_multiple_files=True,
        key="coarse_files",
        on_change=keep_files,
        max_upload_size=100,
    )
    show_deferred_error("coarse_files")
    uploaded_plans: Mapping[str, Plan] = st.session_state.get("coarse_plans", {})
    names = sorted(uploaded_plans, key=lambda name: uploaded_plans[name].workload.queries)
    if len(names) < 2:
        st.info("Open at least two plan files.", icon="📂")
        return None
    order = st.multiselect(
        "Order, coarse first", names, default=names, key=f"coarse_order_{len(names)}"
    )
    if len(order) < 2:
        st.info("Choose at least two of them, the coarse one first.", icon="📂")
        return None
    return Chosen(
        names=tuple(order),
        plans=tuple(uploaded_plans[n] for n in order),
        script=coarse_code.from_files(order),
    )


@st.cache_resource(max_entries=8, show_spinner="Splitting into what is shared and the rest")
def _split(
    identity: tuple[str, ...], names: tuple[str, ...], chain: bool, _plans: Sequence[Plan]
) -> CommonPlan:
    split: Callable[..., CommonPlan] = nested_choices if chain else coarse_or_fine
    return split(*_plans, names=names)


def split(chosen: Chosen) -> tuple[CommonPlan, Script] | None:
    """Split the analyses into what they share and the rest of each."""
    chain = False
    if len(chosen.plans) > 2:
        how = st.radio(
            "How to choose between more than two",
            [ONE_BY_ONE, AT_ONCE],
            horizontal=True,
            key="coarse_chain",
            persist_state="session",
            help=(
                "One after the other, each look tells more than the one before, and every way"
                " through costs what the analysis at its end costs alone. In one choice, the look"
                " is what all of them share."
            ),
        )
        chain = how == ONE_BY_ONE
    with show_errors():
        identity = tuple(f"{p.hash}|{p.max_records}|{p.budget.report_delta}" for p in chosen.plans)
        common = _split(identity, chosen.names, chain, chosen.plans)
        return common, chosen.script + coarse_code.split_script(chosen.names, chain=chain)
    return None


def shared(common: CommonPlan) -> None:
    """What the options share and what it saves; of a chain, every choice."""
    chain = [common]
    while (after := chain[-1].following) is not None:
        chain.append(after)
    for number, one in enumerate(chain):
        if len(chain) > 1:
            st.markdown(
                f"**{escape_markdown(f'Choice {number + 1}: {one.names[0]}, or {one.names[1]}?')}**"
            )
        picture = figures.shares_picture(one, budgets.in_words)
        figure_view.picture(picture, key=f"coarse_shares_{number}", config=figure_view.EXPORT)
        st.markdown(f"**{escape_markdown(picture.alt)}**")
        key, label = f"coarse_space_{number}_open", "What is shared, space by space"
        with st.expander(label, key=key, on_change="rerun") as opened:
            if opened.open:
                figure_view.table(
                    figures.space_table(one),
                    name=f"coarse_spaces_{number}",
                    alt="Cost of every residual space by option, and the part of it that is shared",
                )


def settings(common: CommonPlan | None) -> Settings:
    """Draw the numbers of the rule."""
    one, two, three, four = st.columns(4, vertical_alignment="bottom")
    share = one.number_input(
        "Share x of cells that must stand out",
        0.01,
        1.0,
        0.5,
        step=0.05,
        key="coarse_share",
        persist_state="session",
        help="0.5 asks for half of the cells.",
    )
    snr = two.number_input(
        "Least signal-to-noise ratio y",
        0.1,
        1e6,
        5.0,
        step=1.0,
        key="coarse_snr",
        persist_state="session",
        help="The count of a cell, divided by the standard error of its answer.",
    )
    sigmas = three.number_input(
        "Safety margin (standard errors)",
        0.0,
        10.0,
        3.0,
        step=0.5,
        key="coarse_sigmas",
        persist_state="session",
        help="How far counts may be from what the look says. 0 takes the look at its word.",
    )
    primary = ""
    if common is not None and common.following is None:
        primary = four.selectbox(
            "Primary analysis",
            common.names[:-1],
            key=f"coarse_primary_{len(common.names)}_{common.hash[:8]}",
            help=(
                "The analysis that must be served whatever is chosen; the options after it are"
                " finer."
            ),
        )
    return Settings(share=share, snr=snr, sigmas=sigmas, primary=primary or "")


@st.cache_resource(max_entries=16, show_spinner=False)
def _rule(identity: str, settings: Settings, _common: CommonPlan) -> NestedPlanRule:
    return NestedPlanRule(common=_common, **settings.arguments(_common))


def rule(common: CommonPlan, settings: Settings) -> NestedPlanRule | None:
    """The rule on these options; None, with the reason on the page, when it does not fit them."""
    with show_errors():
        return _rule(
            f"{common.hash}|{common.look.budget.report_delta}|{common.names}", settings, common
        )
    return None
