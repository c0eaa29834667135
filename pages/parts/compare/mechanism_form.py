"""Form for the tuning options of the mechanism of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from functools import partial

import streamlit as st

from engine.mechanisms import mechanism_class
from engine.mechanisms.residual_base import ResidualMechanism
from engine.plans import Plan
from pages.parts.compare import centers_view
from pages.parts.shell import history
from pages.parts.shell.error_text import deferred_errors, show_deferred_error
from pages.parts.shell.history import RequestState
from pages.parts.shell.request_state import CENTERS, PAPER

DEFAULT_FAMILY = "as in the workload"  # choice that stores no family
LABELS = {
    "objective": "Error to minimize",
    "centers": "Split of totals",
    "solver": "Strategy search",
    "branching": "Children per node",
}
HELP = {"centers": "The papers and the code call this split of totals “centers”."}
# The default centers depend on these options, so a change also redraws the field of the centers.
# Each option maps to the condition under which the default centers can be tuned.
CHANGES_CENTERS = {
    "objective": "for the sum of squared errors",
    "solver": "with the optimal search",
}
# Values of the option "objective" that the user can choose in the form.
OBJECTIVES = ("sum", "max")
# Maps an option to dependent options. These are valid only for some values of the option, so a
# change of the option removes them.
DEPENDENT = {"centers": ("keep",), "objective": ("keep", "targets", "power")}
# Maps (option, value) to the text on screen, for values that need an explanation.
MEANINGS: dict[tuple[str, object], str] = {
    ("objective", "sum"): "sum of all squared errors",
    ("objective", "max"): "largest error of a query",
    ("objective", "lp"): "compromise between sum and largest",
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


def use_option(name: str, key: str, entry: str | None = None) -> None:
    """Store the new value of an option in the request; a default value removes the option instead.

    Options that depend on the option, see `DEPENDENT`, are removed.

    Parameters
    ----------
    name : option of the mechanism.
    key : widget key of the new value.
    entry : key of the changed entry, if the value of the option is a mapping; otherwise None.
    """
    request_state = history.current()
    value, default = st.session_state[key], _defaults(request_state)[name]
    if entry is not None:
        other_entries = {
            k: v for k, v in request_state.options.get(name, default).items() if k != entry
        }
        value = other_entries if value == DEFAULT_FAMILY else other_entries | {entry: value}
    dependent_options = DEPENDENT.get(name, ())
    others = {k: v for k, v in request_state.options.items() if k not in (name, *dependent_options)}
    with deferred_errors("mechanism"):
        # This raises an error if the options are not valid together.
        mechanism_class(request_state.mechanism)(**others | {name: value})
        history.change(
            options=others if value == default else others | {name: value},
            redraw=name in CHANGES_CENTERS,
        )


def draw(plan: Plan | None) -> None:
    """Draw the options of the mechanism.

    With the ``plan`` of the current request, also draw its centers and their effect.
    """
    _options(history.current(), history.version())
    show_deferred_error("mechanism")
    if plan is not None:
        centers_view.draw(plan)


def _options(request_state: RequestState, version: int) -> None:
    """Draw the widgets of all options that users can set.

    ``version`` is part of the widget keys, see `history.version`.
    """
    cls = mechanism_class(request_state.mechanism)
    choices = dict(cls.choices)
    if issubclass(cls, ResidualMechanism):  # the other mechanisms minimise the sum only
        choices["objective"] = OBJECTIVES
    for name, default in _defaults(request_state).items():
        key = f"option_{name}_{version}"
        value = request_state.options.get(name, default)
        if name in choices and isinstance(default, Mapping):
            _by_attribute(request_state, name, value, choices[name], version)
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
                help=HELP.get(name),
            )
            if note := _split_note(request_state, name):
                st.caption(note)
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


def _split_note(request_state: RequestState, name: str) -> str:
    """Return why the option ``name`` changed the split of totals from tuned to uniform.

    The text is empty if the option is not the reason, or if the user chose the split.
    """
    if (
        name not in CHANGES_CENTERS
        or name not in request_state.options
        or not request_state.centers_are_open
        or request_state.options_without_defaults.get(CENTERS, PAPER) != PAPER
    ):
        return ""
    other_options = {k: v for k, v in request_state.options.items() if k not in CHANGES_CENTERS}
    without = replace(request_state, options=other_options)
    if without.options_without_defaults.get(CENTERS, PAPER) == PAPER:
        return ""
    return f"This sets the split to uniform: it is tuned by default only {CHANGES_CENTERS[name]}."


def _meaning(name: str, value: object) -> str:
    return MEANINGS.get((name, value), str(value))


def _by_attribute(
    request_state: RequestState,
    name: str,
    value: Mapping[str, str],
    allowed: tuple[str, ...],
    version: int,
) -> None:
    """Draw an option that maps numeric attributes to query families, as two lists.

    The first list chooses an attribute, the second the family for which the strategy on this
    attribute is optimised.  Nothing is drawn without numeric attributes.

    Parameters
    ----------
    name : name of the option.
    value : its value, a mapping from attributes to families.
    allowed : families that can be chosen in place of those of the workload.
    version : part of the widget keys, see `history.version`.
    """
    attributes = request_state.schema.attributes if request_state.schema else ()
    numeric_names = [a.name for a in attributes if a.kind == "numeric"]
    if not numeric_names:
        return
    attribute = st.selectbox(
        f"{LABELS.get(name, name)}: attribute", numeric_names, key=f"option_{name}_of_{version}"
    )
    families = [DEFAULT_FAMILY, *allowed]
    key = f"option_{name}_{numeric_names.index(attribute)}_{version}"
    family = value.get(attribute, DEFAULT_FAMILY)
    st.selectbox(
        f"{LABELS.get(name, name)}: queries to optimise {attribute} for",
        families,
        index=families.index(family) if family in families else 0,
        key=key,
        on_change=use_option,
        args=(name, key, attribute),
    )


def _defaults(request_state: RequestState) -> dict[str, object]:
    """Return a mapping from options to their defaults; those of centers depend on the request."""
    values = {}
    for field in fields(mechanism_class(request_state.mechanism)):
        if field.default is not MISSING:
            values[field.name] = field.default
        elif field.default_factory is not MISSING:
            values[field.name] = field.default_factory()
    without_centers = replace(
        request_state,
        options={k: v for k, v in request_state.options.items() if k not in (CENTERS, "keep")},
    )
    return values | {
        name: without_centers.options_without_defaults.get(name, value)
        for name, value in values.items()
        if name == CENTERS
    }
