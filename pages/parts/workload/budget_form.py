"""Form for the privacy budget: a slider, exact numbers in any unit, and the guarantee."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import streamlit as st

from engine._format import cost, deltas_as_powers
from engine.privacy import Budget
from pages.parts.shell import budgets, history
from pages.parts.shell.budgets import APPROX, MAKERS, MU, PCOST, PURE, RHO, RISK
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.workload.privacy_unit_form import person

SLIDER = "budget_slider"  # key of the slider, whose value is set each time before it is drawn
RISK_LABEL = "attacker's success rate (%)"
# Maps a budget unit to the values on the slider.
STEPS: dict[str, tuple[float, ...]] = {
    APPROX: (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    PURE: (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    MU: (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    PCOST: (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
    RHO: (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
    RISK: (50.5, 51.0, 52.0, 55.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0, 99.0),
}


def slider(current: Budget) -> None:
    """Draw a slider for the budget in the chosen unit, and below it the largest success rate of an attacker.

    A popover beside the slider has number fields for the budget and its guarantee.
    """
    unit = _unit(current)
    start = budgets.numbers_of(current, unit)[0]
    value = next((step for step in STEPS[unit] if cost(step) == cost(start)), start)
    st.session_state[SLIDER] = value
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.select_slider(
            "Privacy budget",
            sorted({*STEPS[unit], value}),
            format_func=partial(_step_text, unit),
            key=SLIDER,
            on_change=_use_slider,
            args=(unit,),
        )
        with st.popover("Budget details"):
            exact(current)
            promise(current)
    st.caption(_guess_text(current))


def exact(current: Budget) -> None:
    """Draw number fields for the budget, the choice of its unit, and its value in all units."""
    unit = budgets.choose_unit()
    _inputs(current, unit)
    show_deferred_error("budget")
    schema = history.current().schema
    if schema is not None and schema.invariants:
        st.caption(escape_markdown(deltas_as_powers(schema.meaning(current))))
    else:
        st.caption(escape_markdown(budgets.other_units(current)))
    st.caption(budgets.UNITS[unit])


def promise(current: Budget) -> None:
    """Draw the inputs for the protected unit, and the privacy guarantee for a person."""
    schema = history.current().schema
    person(current)
    st.info(escape_markdown(schema.promise(current) if schema else current.promise), icon="🙋")


def _guess_text(current: Budget) -> str:
    """Return the largest success rate of an attacker who guesses about a person, as a sentence."""
    schema = history.current().schema
    has_invariants = schema is not None and bool(schema.invariants)
    # From exact totals an attacker can infer who is present.  What remains protected is a person's
    # values, see `Schema.promise`.
    protected = current.at(current.replace_one_pcost) if has_invariants else current
    exact = " Published totals are not protected." if has_invariants else ""
    return (
        f"An attacker guesses right at most {protected.guess:g}% of the time (chance: 50%).{exact}"
    )


def use_budget(unit: str, keys: tuple[str, ...]) -> None:
    """Apply the numbers in the fields with these keys as budget in a unit."""
    with deferred_errors("budget"):
        _apply(unit, *(st.session_state[key] for key in keys))


def _use_slider(unit: str) -> None:
    with deferred_errors("budget"):
        delta = (history.current().budget.report_delta,) if unit == APPROX else ()
        # The redraw makes the number fields show the new budget.
        _apply(unit, st.session_state[SLIDER], *delta, redraw=True)


def _apply(unit: str, *numbers: float, redraw: bool = False) -> None:
    """Commit a budget given by numbers in a budget unit; the privacy unit does not change."""
    history.change(budget=_budget(history.current().budget, unit, *numbers), redraw=redraw)


def _budget(before: Budget, unit: str, *numbers: float) -> Budget:
    """Return a budget given by numbers in a budget unit, with the privacy unit of ``before``.

    The privacy unit is the number of rows per person, and whether presence or values are protected.
    """
    budget = MAKERS[unit](*numbers, **budgets.privacy_unit(before))
    # The unit (epsilon, delta) states a delta, and pure epsilon has none. For the other units delta
    # is only used in reports, and remains unchanged.
    return budget if unit in (APPROX, PURE) else replace(budget, report_delta=before.report_delta)


def _step_text(unit: str, step: float) -> str:
    """Return a value on the slider as text.

    >>> _step_text(APPROX, 0.5), _step_text(RISK, 55.0)
    ('ε 0.5', 'success rate 55%')
    """
    if unit == RISK:
        return f"success rate {step:g}%"
    return f"{'ε' if unit in (APPROX, PURE) else unit} {cost(step)}"


def _unit(current: Budget) -> str:
    """Return the chosen budget unit, or another one if the budget cannot be stated in it.

    A pure epsilon budget can be stated only in pure epsilon, any other budget in all other units.
    The unit may not fit the budget after undo or an opened file, which replace only the budget.
    """
    is_pure, unit = current.pure_epsilon is not None, budgets.chosen_unit()
    if is_pure == (unit == PURE):
        return unit
    return PURE if is_pure else APPROX


def _inputs(current: Budget, unit: str) -> None:
    """Draw the fields for the numbers of a budget in a unit."""
    version = history.version()
    starts = budgets.numbers_of(current, unit)
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
            format="%g" if is_delta else "%.6g",
            key=key,
            on_change=use_budget,
            args=(unit, keys),
        )
