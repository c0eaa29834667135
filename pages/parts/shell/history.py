"""What a person has chosen so far, as one frozen value with undo and redo.

A page never changes the state while it draws: widgets call `commit` from a callback, and the page
then draws what `current` returns.  Every widget that shows a part of the state has `version()` in
its key, so that undo, redo and loading a file draw it afresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st

from engine.errors import EngineError
from engine.workload import Schema, Workload
from pages.parts.shell import streamlit_internals
from pages.parts.shell.request_state import RequestState as RequestState

LIMIT = 200  # steps that undo remembers
KEY = "history"
TARGETS, DROPPED = (
    "targets",
    "targets_dropped",
)  # of single groups: the option, and whether a change took it away


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """States before and after the present one; `version` counts the changes that did not come from
    a widget.
    """

    present: RequestState = field(default_factory=RequestState)
    past: tuple[RequestState, ...] = ()
    future: tuple[RequestState, ...] = ()
    version: int = 0

    def push(self, studio: RequestState, *, redraw: bool) -> History:
        """The history after one more step; a step that changes nothing is none."""
        if studio.key == self.present.key:
            return self
        past = (*self.past, self.present)[-LIMIT:]
        return History(present=studio, past=past, version=self.version + redraw)

    def undo(self) -> History:
        """The history one step back."""
        if not self.past:
            return self
        future = (self.present, *self.future)
        return History(
            present=self.past[-1], past=self.past[:-1], future=future, version=self.version + 1
        )

    def redo(self) -> History:
        """The history one step forward."""
        if not self.future:
            return self
        past = (*self.past, self.present)
        return History(
            present=self.future[0], past=past, future=self.future[1:], version=self.version + 1
        )


def history() -> History:
    """The history of this session."""
    stack: History = st.session_state.setdefault(KEY, History())
    return stack


def current() -> RequestState:
    """What is chosen now."""
    return history().present


def version() -> int:
    """Part of the key of every widget that shows a part of the state."""
    return history().version


def commit(studio: RequestState, *, redraw: bool = False) -> None:
    """Make `studio` the present state; `redraw` when the widgets on screen do not show it yet."""
    before = current()
    committed = studio.after(before)
    if TARGETS in before.options and TARGETS not in committed.options:
        st.session_state[DROPPED] = committed.workload is not before.workload
    st.session_state[KEY] = history().push(committed, redraw=redraw)


def change(*, redraw: bool = False, **fields: Any) -> None:
    """Commit the present state with some fields replaced."""
    commit(replace(current(), **fields), redraw=redraw)


def start_with(studio: RequestState) -> None:
    """Begin the session with a state that came from outside."""
    st.session_state[KEY] = History(present=studio)


def undo() -> None:
    """Go one step back; messages about the step that is taken back go with it."""
    note_dropped_groups(())
    st.session_state["trouble"] = {}
    st.session_state[KEY] = history().undo()


def redo() -> None:
    """Go one step forward."""
    st.session_state["trouble"] = {}
    st.session_state[KEY] = history().redo()


def renamed_attributes(old: Schema, new: Schema) -> dict[str, str]:
    """Attributes whose name alone changed between two schemas of the same length: old name -> new
    name.
    """
    if len(old) != len(new):
        return {}
    pairs = zip(old.names, new.names, strict=True)
    return {
        before: after
        for before, after in pairs
        if before != after and before not in new and after not in old
    }


def fit_workload(workload: Workload, schema: Schema) -> tuple[Workload, tuple[str, ...]]:
    """The workload on a changed schema, and the reasons why groups had to be left out."""
    names = renamed_attributes(workload.schema, schema)
    retained, lost = Workload(schema), []
    for group in workload.groups:
        attributes = [names.get(name, name) for name in group.attributes]
        family = group.family
        if isinstance(family, Mapping):
            family = {names.get(name, name): one for name, one in family.items()}
        try:
            retained = retained.add(attributes, family, group.weight, group.query_weights)
        except EngineError as error:
            lost.append(f"{' × '.join(group.attributes)}: {error}")
    return retained, tuple(lost)


def choose_schema(schema: Schema, *, redraw: bool = True) -> None:
    """Commit a schema and keep every group that still fits it; what was lost is told on the next
    draw.

    The budget protects as many rows of a person as the schema newly declares.
    """
    before, budget = current().workload, current().budget
    workload, lost = (Workload(schema), ()) if before is None else fit_workload(before, schema)
    if schema.rows_per_person != (None if before is None else before.schema.rows_per_person):
        budget = replace(budget, rows_per_person=schema.rows_per_person or 1)
    change(workload=workload, budget=budget, redraw=redraw)
    note_dropped_groups(lost)


def enter(page: str) -> None:
    """Note which page is drawn; what belonged to the page before it alone is forgotten, uploads
    above all.
    """
    if st.session_state.get("page", page) != page:
        page_state().clear()
        streamlit_internals.remove_uploads()
    st.session_state["page"] = page


def page_state() -> dict[str, Any]:
    """What is kept until another page is drawn."""
    values: dict[str, Any] = st.session_state.setdefault("only_here", {})
    return values


def note_dropped_groups(reasons: Iterable[str]) -> None:
    """Keep what has to be told about groups that were left out."""
    st.session_state["lost"] = tuple(reasons)


def dropped_groups() -> tuple[str, ...]:
    """Reasons why groups were left out by the last change of the schema."""
    names: tuple[str, ...] = st.session_state.get("lost", ())
    return names
