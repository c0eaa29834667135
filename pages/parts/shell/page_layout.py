"""Layout of every page: header, sidebar, next button, Python code."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

import streamlit as st

from pages.parts.shell import budgets, buttons, history, permalink, session_restore
from pages.parts.shell.error_text import escape_markdown, in_labels, show_error

if TYPE_CHECKING:
    from streamlit.navigation.page import Page


@dataclass(frozen=True, kw_only=True)
class PageInfo:
    """One page: its file, title and emoji."""

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
    """Return the page with this title."""
    return next(p for p in PAGES if p.title == title)


DONE = "✅"  # icon of a completed step in the navigation
# session state key: whether the open lesson is about the tables of the user
PLAN_IN_LESSON = "plan_in_lesson"
# session state key, after an invalid edit of the schema: version of the request, rows of the grid
REJECTED_EDIT = "schema_rejected"
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
# session state keys: `RequestState.key` of the last request that was released, and of the last one
# whose errors Preview has shown
RELEASED, PREVIEWED = "released_request", "previewed_request"
# True while `start` draws a page inside the layout
_DRAWN: ContextVar[bool] = ContextVar("drawn", default=False)


def start() -> None:
    """Draw the sidebar and the chosen page."""
    st.set_page_config(page_title="DP query app", page_icon="🔐", layout="wide")
    permalink.restore()
    session_restore.restore()
    permalink.restore_hidden()
    current_page = _navigation()
    history.enter(current_page.title)
    with buttons.run_pending():
        # Students open the address of a lesson. The plan is hidden from this address, so that
        # opening it does not replace their own plans.
        is_lesson = current_page.title == page("Learn").title
        permalink.keep(hidden=is_lesson and not st.session_state.get(PLAN_IN_LESSON, False))
        token = _DRAWN.set(True)
        try:
            sidebar()
            current_page.run()
        finally:
            _DRAWN.reset(token)
        session_restore.keep()


def _navigation() -> Page:
    """Draw the navigation, with a check mark at completed steps; return the chosen page."""
    completed = completed_steps(history.current())
    return st.navigation(
        [
            st.Page(
                info.file,
                title=info.title,
                icon=DONE if info.title in completed else info.icon,
                default=info is PAGES[0],
            )
            for info in PAGES
        ]
    )


def completed_steps(request: history.RequestState) -> frozenset[str]:
    """Return the titles of the steps of the project that are completed for this request.

    The schema is not complete while the last edit of its grid is invalid.
    """
    workload = request.workload
    rejected_version = st.session_state.get(REJECTED_EDIT, (None,))[0]
    steps = {
        "Schema": workload is not None and rejected_version != history.version(),
        "Workload": workload is not None and bool(workload.groups),
    }
    for title, name in (("Preview", PREVIEWED), ("Release", RELEASED)):
        key = st.session_state.get(name)
        steps[title] = steps["Workload"] and bool(key) and key == request.key
    return frozenset(title for title, is_done in steps.items() if is_done)


def require() -> None:
    """Draw the layout, if Streamlit runs a page file without it, and end the run.

    This happens when the address of a page is opened before `start` has run once: until then,
    Streamlit runs every file in the folder `pages` as a page by itself.
    """
    if not _DRAWN.get():
        start()
        st.stop()


def sidebar() -> None:
    """Draw the budget if the workload has tables, the spent budget of the dataset, undo and redo.

    Undo and redo are drawn after the first change of the request.
    """
    request, steps = history.current(), history.history()
    with st.sidebar:
        if request.workload is not None and request.workload.groups:
            _show_budget(request)
        gauge()
        if not (steps.past or steps.future):
            return
        back, forth = st.columns(2)
        back.button(
            "↩ Undo", key="undo", on_click=history.undo, disabled=not steps.past, width="stretch"
        )
        forth.button(
            "↪ Redo", key="redo", on_click=history.redo, disabled=not steps.future, width="stretch"
        )


def _show_budget(request: history.RequestState) -> None:
    """Draw the budget in the chosen unit; the tooltip has all units and a summary of the project."""
    budget = request.budget
    st.metric(
        "Privacy budget",
        budgets.headline(budget, budgets.chosen_unit()),
        help=escape_markdown(f"{budgets.other_units(budget)} · {budgets.summary(request)}"),
    )


def gauge() -> None:
    """Draw how much of the budget of the chosen dataset is spent; nothing without a dataset."""
    status = st.session_state.get("dataset_status")
    if status is None:
        return
    # The sidebar is narrow: a line must not end between the unit and the number of an amount.
    spent, total = (
        budgets.amount(value, status.definition).replace(" ", NO_BREAK_SPACE)
        for value in (status.spent, status.total)
    )
    # `escape_markdown` would replace the non-breaking spaces.
    text = f"{escape_markdown(f'{status.dataset}:')} {spent} of {total} spent"
    st.progress(min(status.spent / status.total, 1.0), text=text)
    budgets.sum_note(is_pure=status.definition.unit == "epsilon")


def header(info: PageInfo, lead: str, tutorial: str = "") -> history.RequestState:
    """Draw title, one-sentence lead and tooltip of a page; return the current request.

    Below the title, draw two messages if they apply: the error of a damaged address, and the number
    of tables that were removed because they do not fit a changed schema, with up to five reasons.
    """
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.title(f"{info.icon} {info.title}", anchor=False, width="content")
        st.markdown(lead, help=tutorial or None, width="content")
    if damaged := st.session_state.get("address_trouble"):
        show_error(damaged)
    if reasons := history.dropped_groups():
        with st.container(border=True):
            outcome = (
                "1 table no longer fits the schema and was removed. Undo restores it."
                if len(reasons) == 1
                else f"{len(reasons):,} tables no longer fit the schema and were removed. Undo"
                " restores them."
            )
            st.warning(outcome)
            for reason in reasons[:5]:
                st.caption(escape_markdown(in_labels(reason)))
            buttons.button("Dismiss", history.note_dropped_groups, (), key="forget_lost")
    return history.current()


def mark_previewed(request: history.RequestState) -> None:
    """Mark the step Preview as completed for this request."""
    st.session_state[PREVIEWED] = request.key


def mark_released() -> None:
    """Mark the step Release as completed for the current request."""
    st.session_state[RELEASED] = history.current().key


def footer(
    *,
    code: str,
    target: PageInfo | None,
    reason: str = "",
    more: Callable[[], object] | None = None,
) -> None:
    """Draw the Python code of the page and the button to the next page.

    Parameters
    ----------
    target : the next page; None for no button.
    reason : why the button is disabled, drawn beside it; empty if it is enabled.
    more : function that draws a second button beside the first, if the first is enabled.
    """
    with st.expander("As Python"):
        st.caption("This page as a Python script, without the app.")
        # No syntax highlighting, because some of its colors have too little contrast.
        st.code(code, language=None, wrap_lines=True)
    if target is None:
        return
    reason = reason[:1].upper() + reason[1:]
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
        right.caption(reason)
    elif more is not None:
        with right:
            more()
