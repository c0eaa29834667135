"""Form for the tuning options of the mechanism of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace

import streamlit as st

from engine.mechanisms import mechanism_class
from pages.parts.shell import history
from pages.parts.shell.error_text import deferred_errors, show_deferred_error
from pages.parts.shell.history import RequestState

CENTERS, KEEP = "centers", "keep"
DEFAULT_FAMILY = "as in the workload"
LABELS = {
    CENTERS: "Split of totals",
    "solver": "Strategy search",
    "branching": "Children per node",
}
# screen texts of option values that need an explanation
MEANINGS: dict[tuple[str, object], str] = {
    (CENTERS, "uniform"): "standard (uniform), as in the paper",
    (CENTERS, "tuned"): "tuned to the workload",
    ("solver", "optimal"): "optimal, with certificate",
    ("solver", "fourier"): "Fourier basis (fast, approximate)",
    ("solver", "eigenbasis"): "fixed basis (fast, approximate)",
    ("branching", "best"): "best for the domain",
}
MAX_RECORDS_HELP = (
    "The charge for rounding holds up to this many records. With more records a release stays"
    " private, but takes longer."
)


def draw(studio: RequestState) -> None:
    """Draw a widget for each option of the mechanism."""
    version = history.version()
    choices = mechanism_class(studio.mechanism).choices
    for name, default in _defaults(studio).items():
        value = studio.options.get(name, default)
        if name in choices and isinstance(default, Mapping):
            _draw_families(studio, name, value, choices[name], version)
        elif name in choices:
            _draw_choice(name, value, choices[name], version)
        elif name == "max_records":
            key = f"option_{name}_{version}"
            st.number_input(
                "Maximum number of records (public)",
                min_value=1,
                value=value,
                key=key,
                on_change=_use_option,
                args=(name, key),
                help=MAX_RECORDS_HELP,
            )
    options = studio.options_without_defaults
    if options.get(CENTERS) == "tuned" and options.get("objective", "sum") == "sum":
        key = f"option_{KEEP}_{version}"
        st.checkbox(
            "Do not let any table become less accurate than with the standard split",
            KEEP in studio.options,
            key=key,
            on_change=_use_keep,
            args=(key,),
        )
    show_deferred_error("mechanism")


def _draw_choice(name: str, value: object, allowed: tuple[object, ...], version: int) -> None:
    """Draw the choice of one option; the current value is offered even if it is unusual."""
    key, values = f"option_{name}_{version}", list(allowed)
    if value not in values:
        values.append(value)
    st.selectbox(
        LABELS.get(name, name),
        values,
        index=values.index(value),
        format_func=lambda one: MEANINGS.get((name, one), str(one)),
        key=key,
        on_change=_use_option,
        args=(name, key),
    )


def _draw_families(
    studio: RequestState,
    name: str,
    value: Mapping[str, str],
    allowed: tuple[str, ...],
    version: int,
) -> None:
    """Draw the query family that the strategy of one numeric attribute is optimised for."""
    ordered = (
        [a.name for a in studio.schema.attributes if a.kind == "numeric"] if studio.schema else []
    )
    if not ordered:
        return
    attribute = st.selectbox(
        f"{LABELS.get(name, name)}: attribute", ordered, key=f"option_{name}_of_{version}"
    )
    values, key = [DEFAULT_FAMILY, *allowed], f"option_{name}_{ordered.index(attribute)}_{version}"
    chosen = value.get(attribute, DEFAULT_FAMILY)
    st.selectbox(
        f"{LABELS.get(name, name)}: queries to optimise {attribute} for",
        values,
        index=values.index(chosen) if chosen in values else 0,
        key=key,
        on_change=_use_option,
        args=(name, key, attribute),
    )


def _use_option(name: str, key: str, entry: str | None = None) -> None:
    """Store one option, or one entry of a mapping option; remove it if it is the default.

    Parameters
    ----------
    name : option of the mechanism.
    key : widget key of the new value.
    entry : key in the mapping; None for an option that is no mapping.
    """
    studio = history.current()
    value, default = st.session_state[key], _defaults(studio)[name]
    if entry is not None:
        other_entries = {k: v for k, v in studio.options.get(name, default).items() if k != entry}
        value = other_entries if value == DEFAULT_FAMILY else other_entries | {entry: value}
    others = {k: v for k, v in studio.options.items() if k != name and (name, k) != (CENTERS, KEEP)}
    with deferred_errors("mechanism"):
        mechanism_class(studio.mechanism)(**others | {name: value})
        history.change(options=others if value == default else others | {name: value})


def _use_keep(key: str) -> None:
    """Limit the error of every table to that with uniform centers, or remove the limit."""
    studio = history.current()
    others = {k: v for k, v in studio.options_without_defaults.items() if k != KEEP}
    with deferred_errors("mechanism"):
        limit = {KEEP: 0.0} if st.session_state[key] else {}
        history.commit(studio.with_options(others | limit))


def _defaults(studio: RequestState) -> dict[str, object]:
    """Return the default of every option; the default centers depend on the workload."""
    values = {}
    for field in fields(mechanism_class(studio.mechanism)):
        if field.default is not MISSING:
            values[field.name] = field.default
        elif field.default_factory is not MISSING:
            values[field.name] = field.default_factory()
    without_centers = replace(
        studio, options={k: v for k, v in studio.options.items() if k not in (CENTERS, KEEP)}
    )
    if CENTERS in values:
        values[CENTERS] = without_centers.options_without_defaults.get(CENTERS, values[CENTERS])
    return values
