"""Request of the session as one frozen value, with undo and redo.

A page never changes the state while it draws: widgets call `commit` from a callback, and the page
then draws what `current` returns.  Every widget that shows a part of the state has `version()` in
its key, so that undo, redo and loading a file reset it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import streamlit_internals
from pages.parts.shell.request_state import RequestState as RequestState

MAX_UNDO_STEPS = 200
KEY = "history"
# option with error targets of single tables; key that says whether a change removed it
TARGETS, DROPPED = "targets", "targets_dropped"
DEFAULT_BUDGET = Budget.approx(1.0, 1e-6)


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """Present, past and future states; `version` counts the changes that no widget caused."""

    present: RequestState = field(default_factory=lambda: RequestState(budget=DEFAULT_BUDGET))
    past: tuple[RequestState, ...] = ()
    future: tuple[RequestState, ...] = ()
    version: int = 0

    def push(self, studio: RequestState, *, redraw: bool) -> History:
        """Return the history with one more state, unless it equals the present one."""
        if studio.key == self.present.key:
            return self
        past = (*self.past, self.present)[-MAX_UNDO_STEPS:]
        return History(present=studio, past=past, version=self.version + redraw)

    def undo(self) -> History:
        """Return the history one step back."""
        if not self.past:
            return self
        future = (self.present, *self.future)
        return History(
            present=self.past[-1], past=self.past[:-1], future=future, version=self.version + 1
        )

    def redo(self) -> History:
        """Return the history one step forward."""
        if not self.future:
            return self
        past = (*self.past, self.present)
        return History(
            present=self.future[0], past=past, future=self.future[1:], version=self.version + 1
        )


def history() -> History:
    """Return the history of this session."""
    stack: History = st.session_state.setdefault(KEY, History())
    return stack


def current() -> RequestState:
    """Return the present request."""
    return history().present


def version() -> int:
    """Return the number for the keys of widgets that show a part of the state."""
    return history().version


def commit(studio: RequestState, *, redraw: bool = False) -> None:
    """Make `studio` the present state; `redraw` resets the widgets that show the state."""
    before = current()
    committed = studio.after(before)
    if TARGETS in before.options and TARGETS not in committed.options:
        st.session_state[DROPPED] = committed.workload is not before.workload
    st.session_state[KEY] = history().push(committed, redraw=redraw)


def change(*, redraw: bool = False, **fields: Any) -> None:
    """Commit the present state with some fields replaced."""
    commit(replace(current(), **fields), redraw=redraw)


def start_with(studio: RequestState) -> None:
    """Start the session with a loaded state."""
    st.session_state[KEY] = History(present=studio)


def undo() -> None:
    """Go one step back and remove messages about the undone step."""
    note_dropped_groups(())
    st.session_state["trouble"] = {}
    st.session_state[KEY] = history().undo()


def redo() -> None:
    """Go one step forward."""
    st.session_state["trouble"] = {}
    st.session_state[KEY] = history().redo()


def renamed_attributes(old: Schema, new: Schema) -> dict[str, str]:
    """Return the attributes of which only the name changed, old name -> new name."""
    if len(old) != len(new):
        return {}
    pairs = zip(old.names, new.names, strict=True)
    return {
        before: after
        for before, after in pairs
        if before != after and before not in new and after not in old
    }


def fit_workload(workload: Workload, schema: Schema) -> tuple[Workload, tuple[str, ...]]:
    """Return the workload on a changed schema, and why groups were removed."""
    names = renamed_attributes(workload.schema, schema)
    fitted, reasons = Workload(schema), []
    for group in workload.groups:
        attributes = [names.get(name, name) for name in group.attributes]
        family = group.family
        if isinstance(family, Mapping):
            family = {names.get(name, name): one for name, one in family.items()}
        try:
            fitted = fitted.add(attributes, family, group.weight, group.query_weights)
        except EngineError as error:
            reasons.append(f"{' × '.join(group.attributes)}: {error}")
    return fitted, tuple(reasons)


def choose_schema(schema: Schema, *, redraw: bool = True) -> None:
    """Commit a schema with the groups that still fit it; the page then lists the removed groups.

    A new maximum of rows per person in the schema also applies to the budget.
    """
    before, budget = current().workload, current().budget
    workload, reasons = (Workload(schema), ()) if before is None else fit_workload(before, schema)
    if schema.rows_per_person != (None if before is None else before.schema.rows_per_person):
        budget = replace(budget, rows_per_person=schema.rows_per_person or 1)
    change(workload=workload, budget=budget, redraw=redraw)
    note_dropped_groups(reasons)


def enter(page: str) -> None:
    """Store the current page; a change of page deletes the state and uploads of the last page."""
    if st.session_state.get("page", page) != page:
        page_state().clear()
        streamlit_internals.remove_uploads()
    st.session_state["page"] = page


def page_state() -> dict[str, Any]:
    """Return the state of the current page, which another page deletes."""
    values: dict[str, Any] = st.session_state.setdefault("only_here", {})
    return values


def note_dropped_groups(reasons: Iterable[str]) -> None:
    """Store the reasons why groups were removed."""
    st.session_state["lost"] = tuple(reasons)


def dropped_groups() -> tuple[str, ...]:
    """Return why the last change of the schema removed groups."""
    reasons: tuple[str, ...] = st.session_state.get("lost", ())
    return reasons
