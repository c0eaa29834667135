"""The languages of a budget, and whom it protects, as all forms say them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import streamlit as st

from engine._format import cost, pluralize
from engine.privacy import Budget
from engine.privacy.budget import delta_text, mu_of_guess
from pages.parts.shell import history
from pages.parts.shell.error_text import deferred_errors

PCOST, RHO, MU, APPROX, PURE = "pcost", "rho", "mu", "epsilon, delta", "pure epsilon"
RISK = "guessing risk"
MAKERS: dict[str, Callable[..., Budget]] = {
    APPROX: Budget.approx,
    RISK: lambda percent, **whom: Budget.gdp(mu_of_guess(percent), **whom),
    PCOST: Budget,
    RHO: Budget.zcdp,
    MU: Budget.gdp,
    PURE: Budget.pure,
}
UNITS = {
    RISK: (
        "How often, in percent, somebody who knows everybody else guesses right whether one person"
        " is in the data; a coin flip is right 50% of the time."
    ),
    PCOST: "Privacy cost: 1 / variance of the noise that one count alone would get.",
    RHO: "rho of zero-concentrated differential privacy (zCDP).",
    MU: (
        "mu of Gaussian differential privacy: 1 / standard deviation of the noise that one count"
        " alone would get."
    ),
    APPROX: "(epsilon, delta) differential privacy; delta is well below 1 / number of records.",
    PURE: (
        "epsilon differential privacy with delta 0: a kind of its own, which only Laplace noise"
        " keeps. Mechanisms that draw Gaussian noise do not apply."
    ),
}
AGAINST = {"add_remove": "is in the data or not", "replace_one": "has these values or any others"}
ROWS_LABEL = "Most rows of one person"
AGAINST_LABEL = "Nobody can tell whether a person"
LEAST = 1e-7  # smaller numbers of a budget are not written out
UNIT = "budget_unit"  # where the language is kept that was chosen


def unit_of(budget: Budget) -> dict[str, Any]:
    """Whom a budget protects, as the arguments that every way of saying a budget takes."""
    return {"rows_per_person": budget.rows_per_person, "neighbours": budget.neighbours}


def language() -> str:
    """The language that this person says budgets in."""
    chosen: str = st.session_state.get(UNIT, APPROX)
    return chosen


def headline(budget: Budget, unit: str) -> str:
    """A budget in one language, in a few signs.

    >>> headline(Budget(pcost=1.0), APPROX), headline(Budget(pcost=1.0), RHO), headline(Budget.pure(1.0), PCOST)
    ('ε 4.887', 'rho 0.5', 'ε 1')
    >>> headline(Budget(pcost=1.0), RISK)
    'risk 69.2%'
    >>> headline(Budget(pcost=1e-15), APPROX), headline(Budget(pcost=1e-15), RHO)
    ('ε under 1e-07', 'rho under 1e-07')
    """
    if unit == RISK:
        return f"risk {budget.guess:g}%"
    if budget.pure_epsilon is not None:
        return f"ε {_written(budget.pure_epsilon)}"
    word = "ε" if unit in (APPROX, PURE) else unit
    return f"{word} {_written(numbers_of(budget, APPROX if unit == PURE else unit)[0])}"


def _written(value: float) -> str:
    """A number of a budget, which is never shown as 0: that would say that nothing is given away."""
    return cost(value) if value >= LEAST else f"under {LEAST:g}"


@lru_cache(maxsize=256)
def _epsilon(budget: Budget) -> float:
    """Epsilon at the delta of the budget, which takes a search that every page would do for every
    draw.
    """
    return budget.epsilon(budget.report_delta)


def in_words(budget: Budget) -> str:
    """A budget in the language that was chosen, with whom it protects where that is not one row,
    there or not.

    >>> in_words(Budget(pcost=1.0)), in_words(Budget.pure(1.0, rows_per_person=3))
    ('ε 4.887', 'ε 1, for up to 3 rows a person')
    """
    rows = (
        f", for up to {budget.rows_per_person:,} rows a person"
        if budget.rows_per_person > 1
        else ""
    )
    return (
        headline(budget, language())
        + rows
        + (", replaced by any others" if budget.neighbours != "add_remove" else "")
    )


def summary(studio: history.RequestState) -> str:
    """One line about everything chosen so far, as plain text."""
    if studio.workload is None:
        return "Nothing chosen yet. Start with a schema."
    schema, workload = studio.workload.schema, studio.workload
    counts = (
        f"{pluralize(len(workload.groups), 'group')},"
        f" {pluralize(workload.queries, 'query', 'queries')}"
    )
    centers = (
        " · Centers: tuned" if studio.options_without_defaults.get("centers") == "tuned" else ""
    )
    return (
        f"Schema: {pluralize(len(schema), 'attribute')}, {pluralize(schema.size, 'cell')} ·"
        f" Workload: {counts if workload.groups else 'empty'} · Budget:"
        f" {in_words(studio.budget)}{centers}"
    )


def choose_language() -> str:
    """Draw the choice of the language that budgets are said in, the same on every page."""
    pure = history.current().budget.pure_epsilon is not None
    if pure != (language() == PURE):  # undo, or a file, brought the other kind of budget
        st.session_state[UNIT] = PURE if pure else APPROX
    return st.selectbox(
        "Say the budget as",
        list(MAKERS),
        key=UNIT,
        persist_state="session",
        on_change=_use_language,
        help=(
            "All pages say it so. Which is chosen changes no noise; only pure epsilon is another"
            " kind of budget."
        ),
    )


def _use_language() -> None:
    """Take another language; pure epsilon is another kind of budget, so that choosing it changes
    the budget itself.
    """
    current, unit = history.current().budget, st.session_state[UNIT]
    with deferred_errors("budget"):
        if unit == PURE and current.pure_epsilon is None:
            history.change(budget=Budget.pure(current.pcost**0.5, **unit_of(current)), redraw=True)
        elif unit != PURE and current.pure_epsilon is not None:
            history.change(budget=Budget(pcost=current.pcost, **unit_of(current)), redraw=True)


def other_units(budget: Budget) -> str:
    """A budget in all languages, as plain text.

    >>> other_units(Budget(pcost=1.0))
    'epsilon 4.887 at delta 1e-06 · guessed right 69.2% of the time · pcost 1 · rho 0.5 · mu 1'
    """
    pure = budget.pure_epsilon
    epsilon = (
        f"epsilon {_written(_epsilon(budget))} at delta {delta_text(budget.report_delta)}"
        if pure is None
        else f"pure epsilon {_written(pure)}"
    )
    return (
        f"{epsilon} · guessed right {budget.guess:g}% of the time · "
        f"pcost {_written(budget.pcost)} · rho {_written(budget.rho)} · mu {_written(budget.mu)}"
    )


def numbers_of(budget: Budget, unit: str) -> list[float]:
    """A budget in a language: what its maker takes."""
    if unit == APPROX:
        return [_epsilon(budget), budget.report_delta]
    if unit == RISK:
        return [budget.guess]
    return [
        {
            PCOST: budget.pcost,
            RHO: budget.rho,
            MU: budget.mu,
            PURE: budget.pure_epsilon or budget.pcost**0.5,
        }[unit]
    ]


def kind_of_total(language: str) -> str | None:
    """What a total counts that is said in a language; the ledger's own choice where that is right."""
    # mu, and epsilon with delta, are numbers on the curve of Gaussian noise
    return "gdp" if language in (MU, APPROX, RISK) else None
