"""Choice of the mechanism of the plan, with its tuning options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from engine import figures
from engine.mechanisms import mechanism_class, title_of
from engine.privacy import Budget
from pages.parts.compare import mechanism_form
from pages.parts.compare.run import (
    Compared,
    available_choices,
    current_choice,
    current_plan,
)
from pages.parts.shell import history
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
)
from pages.parts.shell.history import RequestState


def use(name: str, options: Mapping[str, Any], budget: Budget | None = None) -> None:
    """Replace the mechanism of the request and its options, and the budget if one is given.

    The option max_records keeps its present value.
    """
    before = history.current()
    max_records = {k: v for k, v in before.options.items() if k == "max_records"}
    request_state = replace(before, mechanism=name, options={}, budget=budget or before.budget)
    history.commit(request_state.with_options(dict(options) | max_records), redraw=True)


def draw(request_state: RequestState, comparison: Compared | None) -> None:
    """Draw the list of mechanisms for the plan, and an expander with the options of the current
    one.

    Mechanisms with results in ``comparison`` come first.
    """
    if request_state.workload is None or not request_state.workload.groups:
        return
    choices = available_choices(request_state)
    current = current_choice(request_state)[0]
    costs = figures.costs(comparison.results) if comparison is not None else {}
    labels = [label for label in costs if label in choices]
    labels += [label for label in choices if label not in costs]
    texts = {label: f"{title_of(label)} · {costs.get(label, 'not compared')}" for label in labels}
    # The browser sends the text of the selected option. The texts change during a comparison, and a
    # text that is no longer in the list would count as a new choice. The key therefore contains a
    # digest of the texts.
    digest = hashlib.sha256("|".join(texts.values()).encode()).hexdigest()[:16]
    key = f"use_mechanism_{history.version()}_{digest}"
    st.selectbox(
        "Mechanism of your plan",
        labels,
        index=labels.index(current),
        format_func=texts.__getitem__,
        key=key,
        on_change=_use_selected,
        args=(key, choices),
        help=(
            f"{mechanism_class(request_state.mechanism).meaning} Listed with typical error, largest"
            " error and planning time. Undo restores the last choice."
        ),
    )
    show_deferred_error("choice")
    title = mechanism_class(request_state.mechanism).title
    with st.expander(
        f"Options of {escape_markdown(title)}", key="fold_mechanism", on_change="rerun"
    ) as fold:
        if not fold.open:
            return
        if comparison is not None and current in comparison.best:
            mechanism_form.draw(comparison.plan(current))
        else:
            mechanism_form.draw(current_plan(request_state))


def _use_selected(key: str, choices: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Apply the selected mechanism, unless it is the current one."""
    label = st.session_state[key]
    with deferred_errors("choice"):
        if label != current_choice(history.current())[0]:
            use(*choices[label])
