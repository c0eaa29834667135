"""The frame of every page: header with a one-line summary, sidebar, tutorial text, next button,
Python code.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine._format import cost
from engine.privacy import Budget
from pages.parts.shell import budgets, buttons, history, permalink, session_restore
from pages.parts.shell.error_text import escape_markdown, in_labels, show_error


@dataclass(frozen=True, kw_only=True)
class PageInfo:
    """One page: its file, its title and the emoji in front of it."""

    file: str
    title: str
    icon: str


PAGES = (
    PageInfo(file="pages/start.py", title="Start", icon="🧭"),
    PageInfo(file="pages/schema.py", title="Schema", icon="📋"),
    PageInfo(file="pages/workload.py", title="Workload", icon="🧮"),
    PageInfo(file="pages/preview.py", title="Preview", icon="🔍"),
    PageInfo(file="pages/compare.py", title="Compare", icon="⚖️"),
    PageInfo(file="pages/coarse.py", title="Coarse or fine", icon="🪜"),
    PageInfo(file="pages/release.py", title="Release", icon="📤"),
    PageInfo(file="pages/learn.py", title="Learn", icon="🎓"),
    PageInfo(file="pages/guide.py", title="Guide", icon="📖"),
)


def page(title: str) -> PageInfo:
    """The page of this title."""
    return next(p for p in PAGES if p.title == title)


STEPS = (("Schema",), ("Workload",), ("Preview",), ("Compare", "Coarse or fine"), ("Release",))
PREVIEWED = "previewed"  # what was chosen when a plan of it was looked at
BUDGETS = "Preview"  # the page with the form for the budget
_PLACE: ContextVar[DeltaGenerator] = ContextVar("place")
_DRAWN: ContextVar[bool] = ContextVar(
    "drawn", default=False
)  # whether the frame is there while a page draws itself


def start() -> None:
    """Draw the sidebar and the chosen page."""
    st.set_page_config(page_title="DP query workbench", page_icon="🔐", layout="wide")
    pages = [st.Page(p.file, title=p.title, icon=p.icon, default=p is PAGES[0]) for p in PAGES]
    chosen = st.navigation(pages)
    history.enter(chosen.title)
    with buttons.run_pending():
        permalink.restore()
        session_restore.restore()
        permalink.keep()
        token = _DRAWN.set(True)
        try:
            sidebar()
            chosen.run()
        finally:
            _DRAWN.reset(token)
        session_restore.keep()


def require() -> None:
    """Start the frame when a page was opened without it.

    Before the frame ran for the first time, Streamlit takes the folder `pages` for its older kind
    of navigation, and the address of a page leads to the bare page.
    """
    if not _DRAWN.get():
        start()
        st.stop()


def sidebar() -> None:
    """The budget, what is chosen so far, undo and redo, and the tutorial switch."""
    studio, steps = history.current(), history.history()
    with st.sidebar:
        st.caption("Privacy budget of this plan")
        place = st.container()
        with place:
            if st.session_state["page"] != BUDGETS:
                budget_shown(studio.budget)
        _PLACE.set(place)
        gauge()
        st.caption(escape_markdown(budgets.summary(studio)))
        back, forth = st.columns(2)
        back.button(
            "↩ Undo", key="undo", on_click=history.undo, disabled=not steps.past, width="stretch"
        )
        forth.button(
            "↪ Redo", key="redo", on_click=history.redo, disabled=not steps.future, width="stretch"
        )
        st.toggle(
            "Explain each step",
            value=True,
            key="tutorial",
            help="Switch the explanations on every page off.",
        )


def budget_place() -> DeltaGenerator:
    """Where the page that changes the budget draws its form: it stays in view however far the page
    is scrolled.
    """
    return _PLACE.get()


def budget_shown(budget: Budget) -> None:
    """The budget as this person says budgets, and what that is in other terms."""
    st.metric(
        "Privacy cost",
        budgets.headline(budget, budgets.language()),
        help=(
            "What everything released may tell about one person at most. The Preview page says it"
            " in other words, and what it protects from."
        ),
        label_visibility="collapsed",
    )
    st.caption(escape_markdown(budgets.other_units(budget)))


def gauge() -> None:
    """How much of the chosen dataset's budget is spent; nothing before a dataset is chosen."""
    status = st.session_state.get("dataset_status")
    if status is None:
        return
    words = (
        f"{status.dataset}: {cost(status.spent)} of {cost(status.total)} {status.definition.counts}"
        " spent"
    )
    st.progress(min(status.spent / status.total, 1.0), text=escape_markdown(words))


def header(
    info: PageInfo, lead: str, tutorial: str, *, folded: bool = False
) -> history.RequestState:
    """Draw title, summary and tutorial text, both in a fold where results come first; return what
    is chosen so far.
    """
    studio = history.current()
    st.title(f"{info.icon} {info.title}")
    if not folded:
        st.markdown(lead)
    st.caption(path(studio, info.title))
    if st.session_state.get("tutorial", True):
        if folded:
            st.expander(lead, icon="💡", type="compact").markdown(tutorial)
        else:
            show_tutorial(info, tutorial)
    if damaged := st.session_state.get("address_trouble"):
        show_error(damaged)
    if missed := history.dropped_groups():
        with st.container(border=True):
            st.warning(
                f"{len(missed):,} groups no longer fit the schema and were left out. Undo brings"
                " them back."
            )
            for reason in missed[:5]:
                st.caption(escape_markdown(in_labels(reason)))
            buttons.button("Understood", history.note_dropped_groups, (), key="forget_lost")
    return studio


def show_tutorial(info: PageInfo, tutorial: str) -> None:
    """What a page is for: in view when it is new to the person, folded when one comes back to it."""
    cache, seen = history.page_state(), st.session_state.setdefault("explained", set())
    # as it was when the page was entered, so that the box does not fold under the hands of its
    # reader
    if cache.setdefault("known", info.title in seen):
        st.expander("What this page is for", icon="💡").markdown(tutorial)
    else:
        st.info(tutorial, icon="💡")
    seen.add(info.title)


def path(studio: history.RequestState, here: str) -> str:
    """The way from a schema to a release: what is done, and where this page is on it."""
    ready = {
        "Schema": studio.workload is not None,
        "Workload": studio.workload is not None and bool(studio.workload.groups),
        "Preview": st.session_state.get(PREVIEWED) is studio,
    }
    steps = []
    for step in STEPS:
        words = ", ".join(f"**{title}**" if title == here else title for title in step)
        steps.append(f"✓ {words}" if ready.get(step[0]) else words)
    return " → ".join(steps)


def previewed(studio: history.RequestState) -> None:
    """Note that there is a plan of what is chosen, so that the way to the release shows it."""
    st.session_state[PREVIEWED] = studio


def footer(*, code: str, target: PageInfo | None, reason: str = "") -> None:
    """Draw the Python code of the page and the button to the next page, or the reason why it has to
    wait.
    """
    with st.expander("As Python"):
        st.caption("The same with the engine alone. Nothing on this page needs the app.")
        st.code(code, language=None, wrap_lines=True)  # some colours of Python are too pale to read
    if target is None:
        return
    left, right = st.columns([1, 3], vertical_alignment="center")
    label = f"Next: {target.title} →"
    if left.button(
        label,
        type="primary",
        disabled=bool(reason),
        help=reason or None,
        key="next",
        width="stretch",
    ):
        st.switch_page(target.file)
    if reason:
        right.caption(f"Next has to wait: {reason}")
