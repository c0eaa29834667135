"""The privacy budget in any of its four languages, and the mechanism with its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields

import streamlit as st

from engine import MECHANISMS, Budget
from engine.charts import cost
from engine.mechanisms import mechanism_class
from pages.parts import state
from pages.parts.words import kept_for, plain, show_kept

PCOST, RHO, MU, APPROX = "pcost", "rho", "mu", "epsilon, delta"
MAKERS: dict[str, Callable[..., Budget]] = {PCOST: Budget, RHO: Budget.zcdp, MU: Budget.gdp, APPROX: Budget.approx}
UNITS = {
    PCOST: "Privacy cost: 1 / variance of the noise that one count alone would get.",
    RHO: "rho of zero-concentrated differential privacy (zCDP).",
    MU: "mu of Gaussian differential privacy: 1 / standard deviation of the noise that one count alone would get.",
    APPROX: "(epsilon, delta) differential privacy; delta is well below 1 / number of records.",
}
DELTA = 1e-6
# options that take one of a few words: label, and word -> text; other options are numbers or keep their defaults
CHOICES = {
    "centers": (
        "How totals are passed down",
        {"uniform": "evenly, as in the paper", "tuned": "tuned to the workload (slower, never less exact)"},
    ),
    "solver": (
        "How strategies are found",
        {
            "optimal": "optimal, with a certificate",
            "fourier": "Fourier basis (quick, approximate)",
            "eigenbasis": "fixed basis (quick, approximate)",
        },
    ),
}


def use_budget(unit: str, keys: tuple[str, ...]) -> None:
    """Take the budget that was typed."""
    with kept_for("budget"):
        state.change(budget=MAKERS[unit](*(st.session_state[key] for key in keys)))


def budget(found: Budget) -> None:
    """Inputs for the budget in one language, and what it is in the others."""
    left, right = st.columns(2, gap="large")
    with left:
        unit = st.radio("Say the budget as", list(MAKERS), horizontal=True, key="budget_unit", persist_state="session")
        _inputs(found, unit)
        st.caption(UNITS[unit])
        show_kept("budget")
    right.markdown(
        f"pcost **{cost(found.pcost)}** = rho **{cost(found.rho)}** = mu **{cost(found.mu)}** = epsilon "
        f"**{cost(found.epsilon(DELTA))}** at delta {DELTA:g}"
    )
    right.caption(plain(found.describe(DELTA)))


def _inputs(found: Budget, unit: str) -> None:
    version = state.version()
    starts = {PCOST: [found.pcost], RHO: [found.rho], MU: [found.mu], APPROX: [found.epsilon(DELTA), DELTA]}[unit]
    labels = ["epsilon", "delta"] if unit == APPROX else [unit]
    keys = tuple(f"budget_{label}_{version}" for label in labels)
    for column, label, key, start in zip(st.columns(len(labels)), labels, keys, starts, strict=True):
        small = label == "delta"
        column.number_input(
            label,
            value=float(start),
            step=1e-6 if small else 0.1,
            format="%.1e" if small else "%.6g",
            key=key,
            on_change=use_budget,
            args=(unit, keys),
        )


def use_mechanism() -> None:
    """Take another mechanism, with its default options."""
    with kept_for("mechanism"):
        state.change(mechanism=st.session_state[f"mechanism_{state.version()}"], options={}, redraw=True)


def use_option(name: str, key: str) -> None:
    """Take one option; the default needs no mention."""
    studio = state.current()
    value, default = st.session_state[key], _defaults(studio.mechanism)[name]
    others = {k: v for k, v in studio.options.items() if k != name}
    with kept_for("mechanism"):
        mechanism_class(studio.mechanism)(**others | {name: value})
        state.change(options=others if value == default else others | {name: value})


def mechanism(studio: state.Studio) -> None:
    """The mechanism and those of its options that a person may want to change."""
    names, version = [m.name for m in MECHANISMS], state.version()
    st.selectbox(
        "Mechanism",
        names,
        index=names.index(studio.mechanism) if studio.mechanism in names else 0,
        format_func=lambda name: f"{mechanism_class(name).title}: {mechanism_class(name).meaning}",
        key=f"mechanism_{version}",
        on_change=use_mechanism,
    )
    _options(studio, version)
    show_kept("mechanism")


def _options(studio: state.Studio, version: int) -> None:
    for name, default in _defaults(studio.mechanism).items():
        key, value = f"option_{name}_{version}", studio.options.get(name, default)
        if name in CHOICES:
            label, words = CHOICES[name]
            st.selectbox(
                label,
                list(words),
                index=list(words).index(value),
                format_func=words.get,
                key=key,
                on_change=use_option,
                args=(name, key),
            )
        elif name == "max_records":
            st.number_input(
                "Public cap on the number of records",
                min_value=1,
                value=value,
                key=key,
                on_change=use_option,
                args=(name, key),
                help="Rounding is charged for at most this many records; a table with more is refused.",
            )


def _defaults(name: str) -> dict[str, object]:
    return {f.name: f.default for f in fields(mechanism_class(name)) if f.default is not MISSING}
