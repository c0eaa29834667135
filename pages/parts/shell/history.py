"""Request of the session (schema, workload, budget and mechanism), with undo and redo.

The request is one immutable value. A page does not change it while it draws: a widget calls
`commit` in a callback, and the page then draws the request that `current` returns. Every widget
that shows a part of the request has `version()` in its key, so that undo, redo and loading a file
reset the widget to the new value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st

from engine.analysis import remove_targets
from engine.errors import EngineError
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import streamlit_internals
from pages.parts.shell.request_state import RequestState as RequestState

MAX_UNDO_STEPS = 200
KEY = "history"
TARGETS = "targets"  # option of the mechanism: one error target per table
DROPPED = "targets_dropped"  # session state key: True if a workload change removed the targets
# Session key of a random token, with which a reloaded page finds its report on dropped rows.
REPORT_TOKEN = "report_token"
# Key of the page state: True while the page shows an invalid edit, which is not in the request.
INVALID_EDIT = "invalid_edit"
CARRIED = "carried"  # session state key of page-state values that the next page receives
DEFAULT_BUDGET = Budget.approx(1.0, 1e-6)


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """Present request, with the requests for undo and for redo.

    Attributes
    ----------
    past : earlier requests, the latest one last.
    future : undone requests, the next one to redo first.
    version : part of the key of every widget that shows the request. It increases when the request
        changes outside its widgets, for example by undo, so that they show the new values.
    """

    present: RequestState = field(default_factory=lambda: RequestState(budget=DEFAULT_BUDGET))
    past: tuple[RequestState, ...] = ()
    future: tuple[RequestState, ...] = ()
    version: int = 0

    def push(self, request: RequestState, *, redraw: bool) -> History:
        """Return the history after a change; unchanged if the request equals the present one.

        ``redraw`` increases the version, so that widgets show the new values.
        """
        if request.key == self.present.key:
            return self
        past = (*self.past, self.present)[-MAX_UNDO_STEPS:]
        return History(present=request, past=past, version=self.version + redraw)

    def undo(self) -> History:
        """Return the history after undoing the last change; unchanged if there is none."""
        if not self.past:
            return self
        future = (self.present, *self.future)
        return History(
            present=self.past[-1], past=self.past[:-1], future=future, version=self.version + 1
        )

    def redo(self) -> History:
        """Return the history after repeating the last undone change; unchanged if there is none."""
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
    """Return the number that is part of the key of every widget that shows the request."""
    return history().version


def commit(request: RequestState, *, redraw: bool = False) -> None:
    """Make ``request`` the present request; ``redraw`` makes all widgets show its values."""
    before = current()
    committed = request.after(before)
    if TARGETS in before.options and TARGETS not in committed.options:
        st.session_state[DROPPED] = committed.workload is not before.workload
    st.session_state[KEY] = history().push(committed, redraw=redraw)


def change(*, redraw: bool = False, **fields: Any) -> None:
    """Commit the present request with some fields replaced."""
    commit(replace(current(), **fields), redraw=redraw)


def start_with(request: RequestState) -> None:
    """Start a new history with a loaded request; earlier requests cannot be restored by undo."""
    st.session_state[KEY] = History(present=request)


def undo() -> None:
    """Undo the last change of the request, and remove all error messages of forms.

    While the page shows an invalid edit, only that edit is discarded: the request is unchanged.
    """
    st.session_state["trouble"] = {}
    if page_state().pop(INVALID_EDIT, False):
        # With a new version, all widgets show the values of the request again.
        st.session_state[KEY] = replace(history(), version=version() + 1)
        return
    note_dropped_groups(())
    st.session_state[KEY] = history().undo()


def redo() -> None:
    """Repeat the change that was undone last, and remove all error messages of forms."""
    st.session_state["trouble"] = {}
    st.session_state[KEY] = history().redo()


def renamed_attributes(old: Schema, new: Schema) -> dict[str, str]:
    """Return a mapping from the old to the new names of attributes that were renamed.

    The attributes at the same position of both schemas count as one renamed attribute if the old
    name is not in the new schema and the new name is not in the old one. Schemas of different
    length have no renamed attributes.
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
    """Return the groups of a workload that are valid on a changed schema.

    Returns
    -------
    The workload on the new schema, and for each group that is not valid the reason as text.
    """
    names = renamed_attributes(workload.schema, schema)
    new_workload, reasons = Workload(schema), []
    for group in workload.groups:
        attributes = [names.get(name, name) for name in group.attributes]
        family = group.family
        if isinstance(family, Mapping):
            family = {names.get(name, name): one for name, one in family.items()}
        # If the parts (product factors) of a group have weights, `add` computes the query weights
        # from the part weights.
        query_weights = group.query_weights if group.part_weights is None else None
        try:
            new_workload = new_workload.add(attributes, family, group.weight, query_weights)
        except EngineError as error:
            reasons.append(f"{' × '.join(group.attributes)}: {error}")
    return new_workload, tuple(reasons)


def remove_schema() -> None:
    """Remove the schema with its workload; the page lists the tables that are removed."""
    workload, options = current().required_workload, remove_targets(current().options)
    change(workload=None, options=options)
    note_dropped_groups(
        f"{' × '.join(group.attributes) or 'total'}: the schema is empty"
        for group in workload.groups
    )


def choose_schema(schema: Schema, *, redraw: bool = True) -> None:
    """Commit a schema with the groups of the present workload that are valid on it.

    The other groups are removed, and the page lists them. If the maximum number of rows per person
    in the schema has changed, the budget also gets the new maximum.
    """
    before, budget = current().workload, current().budget
    workload, reasons = (Workload(schema), ()) if before is None else fit_workload(before, schema)
    if schema.rows_per_person != (None if before is None else before.schema.rows_per_person):
        budget = replace(budget, rows_per_person=schema.rows_per_person or 1)
    change(workload=workload, budget=budget, redraw=redraw)
    note_dropped_groups(reasons)


def enter(page: str) -> None:
    """Store the title of the page that is drawn; after a change of the page, clear its state.

    The page state and the uploaded files of the previous page are deleted; values stored by `carry`
    become the page state of the new page.
    """
    if st.session_state.get("page", page) != page:
        page_state().clear()
        page_state().update(st.session_state.pop(CARRIED, {}))
        st.session_state[REPORT_TOKEN] = ""
        streamlit_internals.remove_uploads()
    st.session_state["page"] = page


def carry(keys: Iterable[str]) -> None:
    """Pass values of the page state on to the next page, which the caller opens right afterwards.

    ``keys`` are their keys in the page state; keys without a value are ignored.
    """
    state = page_state()
    st.session_state[CARRIED] = {key: state[key] for key in keys if key in state}


def page_state() -> dict[str, Any]:
    """Return the page state: a dictionary that is emptied when the user opens another page."""
    values: dict[str, Any] = st.session_state.setdefault("only_here", {})
    return values


def note_dropped_groups(reasons: Iterable[str]) -> None:
    """Store the reasons why a change of the schema removed groups, for `dropped_groups`."""
    st.session_state["lost"] = tuple(reasons)


def dropped_groups() -> tuple[str, ...]:
    """Return the reasons why the last change of the schema removed groups."""
    reasons: tuple[str, ...] = st.session_state.get("lost", ())
    return reasons
