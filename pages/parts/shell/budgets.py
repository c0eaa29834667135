"""The languages of a budget, and whom it protects, as all forms say them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import streamlit as st

from engine import Budget
from engine.texts import cost

PCOST, RHO, MU, APPROX, PURE = "pcost", "rho", "mu", "epsilon, delta", "pure epsilon"
MAKERS: dict[str, Callable[..., Budget]] = {
    PCOST: Budget,
    RHO: Budget.zcdp,
    MU: Budget.gdp,
    APPROX: Budget.approx,
    PURE: Budget.pure,
}
UNITS = {
    PCOST: "Privacy cost: 1 / variance of the noise that one count alone would get.",
    RHO: "rho of zero-concentrated differential privacy (zCDP).",
    MU: "mu of Gaussian differential privacy: 1 / standard deviation of the noise that one count alone would get.",
    APPROX: "(epsilon, delta) differential privacy; delta is well below 1 / number of records.",
    PURE: "epsilon differential privacy with delta 0: a kind of its own, which only Laplace noise keeps. Mechanisms "
    "that draw Gaussian noise do not apply.",
}
AGAINST = {"add_remove": "is in the data or not", "replace_one": "has these values or any others"}
ROWS_LABEL = "Most rows of one person"
AGAINST_LABEL = "Nobody can tell whether a person"
DELTA = 1e-6
UNIT = "budget_unit"  # where the language is kept that was chosen


def unit_of(found: Budget) -> dict[str, Any]:
    """Whom a budget protects, as the arguments that every way of saying a budget takes."""
    return {"rows_per_person": found.rows_per_person, "neighbours": found.neighbours}


def language() -> str:
    """The language that this person says budgets in."""
    chosen: str = st.session_state.get(UNIT, APPROX)
    return chosen


def headline(found: Budget, unit: str) -> str:
    """A budget in one language, in a few signs.

    >>> headline(Budget(pcost=1.0), APPROX), headline(Budget(pcost=1.0), RHO), headline(Budget.pure(1.0), PCOST)
    ('ε 4.887', 'rho 0.5', 'ε 1')
    """
    if found.pure_epsilon is not None:
        return f"ε {cost(found.pure_epsilon)}"
    word = "ε" if unit in (APPROX, PURE) else unit
    return f"{word} {cost(numbers_of(found, APPROX if unit == PURE else unit)[0])}"


@lru_cache(maxsize=256)
def _epsilon(found: Budget) -> float:
    """Epsilon at the usual delta, which takes a search that every page would do for every draw."""
    return found.epsilon(DELTA)


def others(found: Budget) -> str:
    """A budget in all languages, as plain text.

    >>> others(Budget(pcost=1.0))
    'epsilon 4.887 at delta 1e-06 · pcost 1 · rho 0.5 · mu 1'
    """
    pure = "" if found.pure_epsilon is None else f"pure epsilon {cost(found.pure_epsilon)}, which implies "
    return (
        f"{pure}epsilon {cost(_epsilon(found))} at delta {DELTA:g} · pcost {cost(found.pcost)} · "
        f"rho {cost(found.rho)} · mu {cost(found.mu)}"
    )


def numbers_of(found: Budget, unit: str) -> list[float]:
    """A budget in a language: what its maker takes."""
    return {
        PCOST: [found.pcost],
        RHO: [found.rho],
        MU: [found.mu],
        APPROX: [_epsilon(found), DELTA],
        PURE: [found.pure_epsilon or found.pcost**0.5],
    }[unit]


def kind_of_total(language: str) -> str | None:
    """What a total counts that is said in a language; the ledger's own choice where that is right."""
    # mu, and epsilon with delta, are read off the curve of Gaussian noise
    return "gdp" if language in (MU, APPROX) else None
