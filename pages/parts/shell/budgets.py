"""Privacy budgets as text in the unit that the user chose, for all pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import streamlit as st

from engine._format import cost, pluralize, power_text, remaining_text
from engine.ledger.balance import TotalDefinition
from engine.privacy import Budget, mu_of_guess
from pages.parts.shell import history
from pages.parts.shell.error_text import deferred_errors

PCOST, RHO, MU, APPROX, PURE = "pcost", "rho", "mu", "epsilon, delta", "pure epsilon"
RISK = "attacker's success rate"
# Maps a budget unit to the function that returns the Budget for numbers in this unit.
MAKERS: dict[str, Callable[..., Budget]] = {
    APPROX: Budget.approx,
    RISK: lambda percent, **unit: Budget.gdp(mu_of_guess(percent), **unit),
    PCOST: Budget,
    RHO: Budget.zcdp,
    MU: Budget.gdp,
    PURE: Budget.pure,
}
UNITS = {
    RISK: (
        "How often (%) an attacker who knows all other records guesses right whether a person is"
        " in the data; 50% is pure chance."
    ),
    PCOST: "Privacy cost: 1 / noise variance of a single count.",
    RHO: "Budget of zero-concentrated differential privacy (zCDP): half of pcost.",
    MU: "Budget of Gaussian differential privacy: 1 / noise standard deviation of a single count.",
    APPROX: (
        "One person's data makes no result more than exp(epsilon) times as likely, except with"
        " probability delta. Choose delta well below 1 / number of records."
    ),
    PURE: "Epsilon without exceptions (delta 0). Only mechanisms with Laplace noise apply.",
}
AGAINST = {"add_remove": "a person's presence", "replace_one": "a person's values"}
ROWS_LABEL = "Maximum rows per person"
AGAINST_LABEL = "Protect"
NEARBY_FACTORS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # multiples of the chosen budget
SUM_NOTE = "Epsilons do not add up; privacy costs do."
UNIT = "budget_unit"  # session state key of the chosen unit


def privacy_unit(budget: Budget) -> dict[str, Any]:
    """Return the privacy unit of a budget as keyword arguments of the functions in `MAKERS`."""
    return {"rows_per_person": budget.rows_per_person, "neighbours": budget.neighbours}


def chosen_unit() -> str:
    """Return the budget unit that the user chose in this session, a key of `MAKERS`."""
    unit: str = st.session_state.get(UNIT, APPROX)
    return unit


def headline(budget: Budget, unit: str) -> str:
    """Return a budget as a short text in one unit; a pure budget as epsilon or success rate.

    In the unit `PURE`, a budget for Gaussian noise has the text of its epsilon at its delta.

    >>> headline(Budget(pcost=1.0), APPROX), headline(Budget.pure(1.0), PCOST)
    ('ε 4.887', 'ε 1')
    >>> headline(Budget(pcost=1.0), RISK)
    'success rate 69.2%'
    >>> headline(Budget(pcost=1e-15), APPROX), headline(Budget(pcost=1e-15), RHO)
    ('ε less than 0.0000001', 'rho less than 0.0000001')
    """
    if unit == RISK:
        return f"success rate {budget.guess:g}%"
    if budget.pure_epsilon is not None:
        return f"ε {_number_text(budget.pure_epsilon)}"
    word = "ε" if unit in (APPROX, PURE) else unit
    return f"{word} {_number_text(numbers_of(budget, APPROX if unit == PURE else unit)[0])}"


def amount(value: float, definition: TotalDefinition, *, is_left: bool = False) -> str:
    """Return an amount in a ledger as text, rounded up.

    An amount in pure epsilon remains in this unit. An amount in pcost is stated in the chosen unit,
    or in epsilon at the delta of the total if pure epsilon is chosen. Amounts in pcost add up, but
    after conversion to epsilon, mu or success rate they do not.

    Parameters
    ----------
    value : amount in the unit of ``definition``, pcost or pure epsilon; 0 or more.
    definition : definition of the total of the dataset.
    is_left : whether the amount is the remaining budget, which is rounded down unless it is a
        success rate.

    >>> amount(1.0, TotalDefinition()), amount(0.0, TotalDefinition())
    ('ε 4.887', 'ε 0')
    """
    number_text = remaining_text if is_left else cost
    if definition.unit == "epsilon":
        return f"ε {number_text(value)}"
    # An amount in pcost cannot be stated in pure epsilon.
    unit = APPROX if chosen_unit() == PURE else chosen_unit()
    if unit == RISK:
        guess = Budget(pcost=value).guess if value > 0.0 else 50.0
        return f"success rate {guess:g}%"
    word = "ε" if unit == APPROX else unit
    if value <= 0.0:
        return f"{word} 0"
    budget = Budget(pcost=value, report_delta=definition.delta)
    return f"{word} {number_text(numbers_of(budget, unit)[0])}"


def sum_note(*, is_pure: bool, has_bar: bool = True) -> None:
    """Draw a note that epsilons do not add up, if the chosen unit is epsilon.

    Parameters
    ----------
    is_pure : whether the amounts are pure epsilons; there is no note about these, because they add
        up.
    has_bar : whether the note is below a bar, whose lengths are privacy costs.
    """
    if chosen_unit() in (APPROX, PURE) and not is_pure:
        st.caption(f"{SUM_NOTE} The bar shows privacy costs." if has_bar else SUM_NOTE)


def _number_text(value: float) -> str:
    """Return epsilon, pcost, rho or mu as text; 0 is written as "less than 0.0000001".

    Epsilon is 0 if the budget is so small that its delta alone covers it.
    """
    return cost(value or 5e-324)  # the smallest positive float


@lru_cache(maxsize=256)
def _epsilon(budget: Budget) -> float:
    """Return epsilon at the delta of the budget; cached, because it is computed by a search."""
    return budget.epsilon(budget.report_delta)


def in_words(budget: Budget) -> str:
    """Return a budget as text in the chosen unit.

    The text also names the privacy unit, unless it is the standard: one row per person, and the
    protection of a person's presence.

    >>> in_words(Budget(pcost=1.0)), in_words(Budget.pure(1.0, rows_per_person=3))
    ('ε 4.887', 'ε 1, for up to 3 rows per person')
    """
    rows = (
        f", for up to {budget.rows_per_person:,} rows per person"
        if budget.rows_per_person > 1
        else ""
    )
    return (
        headline(budget, chosen_unit())
        + rows
        + (", protecting values" if budget.neighbours != "add_remove" else "")
    )


def summary(request: history.RequestState) -> str:
    """Return the sizes of schema and workload, and the budget, as one line of plain text."""
    if request.workload is None:
        return "No project yet. Start by choosing a schema."
    schema, workload = request.workload.schema, request.workload
    counts = (
        f"{pluralize(len(workload.groups), 'table')},"
        f" {pluralize(workload.queries, 'query', 'queries')}"
    )
    return (
        f"Schema: {pluralize(len(schema), 'attribute')}, {pluralize(schema.size, 'cell')} ·"
        f" Workload: {counts if workload.groups else 'empty'} · Budget:"
        f" {in_words(request.budget)}"
    )


def choose_unit() -> str:
    """Draw the choice of the budget unit, which applies to all pages; return the unit."""
    is_pure = history.current().budget.pure_epsilon is not None
    # After undo, or after a file was opened, the unit can still be pure epsilon although the budget
    # is not, or the reverse. The unit is then changed to fit the budget.
    if is_pure != (chosen_unit() == PURE):
        st.session_state[UNIT] = PURE if is_pure else APPROX
    return st.selectbox(
        "Budget unit",
        list(MAKERS),
        key=UNIT,
        persist_state="session",
        on_change=_convert_budget,
        help=(
            "Used on every page. The unit does not change the noise, except pure epsilon, which is"
            " a different guarantee."
        ),
    )


def _convert_budget() -> None:
    """Convert the budget when the user changes the unit to or from pure epsilon."""
    current, unit = history.current().budget, st.session_state[UNIT]
    with deferred_errors("budget"):
        if unit == PURE and current.pure_epsilon is None:
            history.change(
                budget=Budget.pure(current.pcost**0.5, **privacy_unit(current)), redraw=True
            )
        elif unit != PURE and current.pure_epsilon is not None:
            history.change(budget=Budget(pcost=current.pcost, **privacy_unit(current)), redraw=True)


def other_units(budget: Budget) -> str:
    """Return a budget in all units, as plain text.

    >>> other_units(Budget(pcost=1.0)).split(" · ")[:2]
    ['epsilon 4.887 at delta 10^-6', 'attacker right at most 69.2% of the time']
    """
    pure = budget.pure_epsilon
    epsilon = (
        f"epsilon {_number_text(_epsilon(budget))} at delta {power_text(budget.report_delta)}"
        if pure is None
        else f"pure epsilon {_number_text(pure)}"
    )
    return (
        f"{epsilon} · attacker right at most {budget.guess:g}% of the time"
        f" · pcost {_number_text(budget.pcost)} · rho {_number_text(budget.rho)}"
        f" · mu {_number_text(budget.mu)}"
    )


def numbers_of(budget: Budget, unit: str) -> list[float]:
    """Return the numbers of a budget in one unit: epsilon and delta, or a single number.

    They are the positional arguments of the function in `MAKERS` for this unit.
    """
    if unit == APPROX:
        return [_epsilon(budget), budget.report_delta]
    if unit == RISK:
        return [budget.guess]
    return [
        {
            PCOST: budget.pcost,
            RHO: budget.rho,
            MU: budget.mu,
            # a budget for Gaussian noise gets the pure epsilon with the same pcost, epsilon^2
            PURE: budget.pure_epsilon or budget.pcost**0.5,
        }[unit]
    ]


def nearby_pcosts(budget: Budget) -> list[float]:
    """Return the pcosts of smaller and larger budgets, and of this one, in increasing order.

    If the chosen unit is (epsilon, delta), `NEARBY_FACTORS` multiply epsilon, so that the texts are
    short. For all other units, and for a pure budget, they multiply the pcost.
    """
    if chosen_unit() != APPROX or budget.pure_epsilon is not None:
        return [budget.pcost * factor for factor in NEARBY_FACTORS]
    epsilon, delta = numbers_of(budget, APPROX)
    return [
        budget.pcost
        if factor == 1.0
        else Budget.approx(factor * epsilon, delta, **privacy_unit(budget)).pcost
        for factor in NEARBY_FACTORS
    ]


def kind_of_total(unit: str) -> str | None:
    """Return the privacy definition by which the ledger counts a total budget in this unit.

    It is Gaussian differential privacy ("gdp") for mu, (epsilon, delta) and the attacker's success
    rate. For other units it is None, the default of the ledger.
    """
    return "gdp" if unit in (MU, APPROX, RISK) else None
