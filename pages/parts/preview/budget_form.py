"""Forms for the privacy budget in any unit and for the mechanism with its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from functools import partial

import streamlit as st

from engine.mechanisms import mechanism_class, registry
from engine.privacy import Budget
from pages.parts.preview.privacy_unit_form import person
from pages.parts.shell import history
from pages.parts.shell.budgets import (
    APPROX,
    MAKERS,
    PURE,
    RISK,
    UNITS,
    choose_language,
    language,
    numbers_of,
    other_units,
    unit_of,
)
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error

RISK_LABEL = "attacker's success rate (%)"
DEFAULT_FAMILY = "as in the workload"
LABELS = {
    "centers": "Split of totals",
    "solver": "Strategy search",
    "branching": "Children per node",
}
# screen texts of option values that need an explanation
MEANINGS: dict[tuple[str, object], str] = {
    ("centers", "uniform"): "standard (uniform), as in the paper",
    (
        "centers",
        "tuned",
    ): "tuned to the workload (slower; some tables may be less accurate)",
    ("solver", "optimal"): "optimal, with certificate",
    ("solver", "fourier"): "Fourier basis (fast, approximate)",
    ("solver", "eigenbasis"): "fixed basis (fast, approximate)",
    ("branching", "best"): "best for the domain",
}


def use_budget(unit: str, keys: tuple[str, ...]) -> None:
    """Apply the budget in the input fields."""
    with deferred_errors("budget"):
        before = history.current().budget
        new_budget = MAKERS[unit](*(st.session_state[key] for key in keys), **unit_of(before))
        if unit not in (APPROX, PURE):  # the other units have no delta
            new_budget = replace(new_budget, report_delta=before.report_delta)
        history.change(budget=new_budget)


def budget(current: Budget) -> None:
    """Draw the budget inputs in the chosen unit, with conversions to the other units."""
    unit = choose_language()
    _inputs(current, unit)
    show_deferred_error("budget")
    st.caption(escape_markdown(other_units(current)))


def promise() -> None:
    """Draw the privacy guarantee and the inputs for the protected unit."""
    current, schema = history.current().budget, history.current().schema
    left, right = st.columns(2, gap="large")
    with left:
        st.info(escape_markdown(schema.promise(current) if schema else current.promise), icon="🙋")
    with right:
        person(current)
        has_invariants = schema is not None and schema.invariants
        st.caption(
            escape_markdown(
                schema.meaning(current) if schema and has_invariants else current.describe()
            )
        )
        st.caption(UNITS[language()])


def _inputs(current: Budget, unit: str) -> None:
    version = history.version()
    starts = numbers_of(current, unit)
    labels = {APPROX: ["epsilon", "delta"], RISK: [RISK_LABEL]}.get(unit, [unit])
    keys = tuple(f"budget_{label}_{version}" for label in labels)
    for column, label, key, start in zip(
        st.columns(len(labels)), labels, keys, starts, strict=True
    ):
        is_delta = label == "delta"
        column.number_input(
            label,
            value=float(start),
            step=1e-6 if is_delta else 0.1,
            format="%.1e" if is_delta else "%.6g",
            key=key,
            on_change=use_budget,
            args=(unit, keys),
        )


def use_mechanism() -> None:
    """Change the mechanism and reset its options."""
    with deferred_errors("mechanism"):
        history.change(
            mechanism=st.session_state[f"mechanism_{history.version()}"], options={}, redraw=True
        )


def use_option(name: str, key: str, entry: str | None = None) -> None:
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
    others = {
        k: v for k, v in studio.options.items() if k != name and (name, k) != ("centers", "keep")
    }
    with deferred_errors("mechanism"):
        mechanism_class(studio.mechanism)(**others | {name: value})
        history.change(options=others if value == default else others | {name: value})


def mechanism() -> None:
    """Draw the choice of the mechanism and of its main options."""
    studio = history.current()
    names, version = [m.name for m in registry.MECHANISMS], history.version()
    st.selectbox(
        "Mechanism",
        names,
        index=names.index(studio.mechanism) if studio.mechanism in names else 0,
        format_func=lambda name: f"{mechanism_class(name).title}: {mechanism_class(name).meaning}",
        key=f"mechanism_{version}",
        on_change=use_mechanism,
    )
    _options(studio, version)
    show_deferred_error("mechanism")


def _options(studio: history.RequestState, version: int) -> None:
    choices = mechanism_class(studio.mechanism).choices
    for name, default in _defaults(studio).items():
        key, value = f"option_{name}_{version}", studio.options.get(name, default)
        if name in choices and isinstance(default, Mapping):
            _by_attribute(studio, name, value, choices[name], version)
        elif name in choices:
            values = list(choices[name])
            if value not in values:
                values.append(value)
            st.selectbox(
                LABELS.get(name, name),
                values,
                index=values.index(value),
                format_func=partial(_meaning, name),
                key=key,
                on_change=use_option,
                args=(name, key),
            )
        elif name == "max_records":
            st.number_input(
                "Maximum number of records (public)",
                min_value=1,
                value=value,
                key=key,
                on_change=use_option,
                args=(name, key),
                help=(
                    "The charge for rounding holds up to this many records. With more records a"
                    " release stays private, but takes longer."
                ),
            )


def _meaning(name: str, value: object) -> str:
    return MEANINGS.get((name, value), str(value))


def _by_attribute(
    studio: history.RequestState,
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
        on_change=use_option,
        args=(name, key, attribute),
    )


def _defaults(studio: history.RequestState) -> dict[str, object]:
    """Return the default of every option; the default centers depend on the workload."""
    values = {}
    for field in fields(mechanism_class(studio.mechanism)):
        if field.default is not MISSING:
            values[field.name] = field.default
        elif field.default_factory is not MISSING:
            values[field.name] = field.default_factory()
    without_centers = replace(
        studio, options={k: v for k, v in studio.options.items() if k not in ("centers", "keep")}
    )
    return values | {
        name: without_centers.options_without_defaults.get(name, value)
        for name, value in values.items()
        if name == "centers"
    }
