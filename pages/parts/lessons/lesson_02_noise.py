"""Lesson: noise as possible releases, and the guarantee of a budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine._format import format_number
from engine.figures import Picture
from engine.lessons import INVENTED, budget_table, draw_releases, neighbours
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.lessons.lesson import (
    UNIFORM,
    Formula,
    Lesson,
    LessonPicture,
    lines,
    newest_first,
    question,
    show_picture,
)
from pages.parts.lessons.url_state import DEFAULT_SEED, SEED, renew_seed, seed
from pages.parts.lessons.user_workload import choose_pcost
from pages.parts.shell.history import RequestState

NAME = "noise"
COSTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
COST = 0.02  # default pcost, at which the noise is visible
DRAWS = 20
STEPS = (
    "**Possible releases** at one budget, of which one would be published.",
    (
        "**One person more or less**: the distribution of a count without and with that person. The"
        " more the two curves overlap, the less the answer reveals."
    ),
    "**The same budget in every unit**. Numbers are rounded up.",
)


def draw_again() -> None:
    """Choose a new seed for the noise of this lesson."""
    renew_seed(NAME)


def picture(step: int) -> LessonPicture:
    """Draw possible releases, then the effect of one person, then the budget in all units."""
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    pcost = choose_pcost(left.select_slider, COSTS, of=NAME, default=COST)
    budget = Budget(pcost=pcost)
    right.button("Draw again", key="draw_again", on_click=draw_again, width="stretch")
    counts = list(INVENTED.values())
    noise_seed = seed(NAME)
    releases_part, person_part, units_part = newest_first(3)
    with releases_part:
        st.markdown(f"Standard error of each count: **{format_number(1 / budget.mu)}** counts.")
        releases = draw_releases(counts, budget, DRAWS, seed=noise_seed)
        releases_picture = lessons.outcomes_picture(list(INVENTED), counts, releases)
        pictures = [show_picture(releases_picture, "outcomes", plain=False)]
    if step > 0:
        with person_part:
            guess = lessons.guess_text(neighbours(budget))
            st.markdown(f"An attacker's success rate is at most **{guess}** (50% is pure chance).")
            person_picture = lessons.neighbours_picture(neighbours(budget))
            pictures.append(show_picture(person_picture, "neighbours", plain=False))
    if step > 1:
        with units_part:
            st.markdown("**The same budget in every unit**")
            st.table(budget_table(budget), hide_index=True, alt="The budget in every unit")
    schema = Schema([Attribute.categorical("age", list(INVENTED))])
    script = lines(
        f"""
budget = Budget(pcost={pcost!r})
print(draw_releases(list(INVENTED.values()), budget, draws={DRAWS}, seed={noise_seed}).round(1))
print(neighbours(budget).guess)
print(budget_table(budget))""",
        engine="Budget",
        engine__lessons="INVENTED budget_table draw_releases neighbours",
    )
    request_state = RequestState(
        workload=Workload(schema).add(["age"], "marginal"), budget=budget, options=UNIFORM
    )
    return LessonPicture(request_state=request_state, script=script, pictures=tuple(pictures))


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of the handout, as pairs (step, picture)."""
    budget, counts = Budget(pcost=choices.get("pcost", COST)), list(INVENTED.values())
    releases = draw_releases(counts, budget, DRAWS, seed=choices.get(SEED, DEFAULT_SEED))
    return (
        (0, lessons.outcomes_picture(list(INVENTED), counts, releases)),
        (1, lessons.neighbours_picture(neighbours(budget))),
    )


def expected() -> dict[str, str]:
    """Return standard errors and attackers' success rates at two budgets.

    The keys are descriptions, the values the numbers as text.
    """
    budgets = [Budget(pcost=pcost) for pcost in (0.02, 1.0)]
    errors = {
        f"Standard error at pcost {b.pcost:g}": f"{format_number(1 / b.mu)} counts" for b in budgets
    }
    return errors | {
        f"Attacker's success rate at pcost {b.pcost:g}": lessons.guess_text(neighbours(b))
        for b in budgets
    }


LESSON = Lesson(
    name=NAME,
    tab="Noise",
    minutes=8,
    title="Noise and the privacy budget",
    words=(
        "A release is **one random draw**. The dots in the picture are 20 possible releases of "
        "invented counts. The **budget** limits how well an attacker, even with all other records, "
        "can guess from a release whether one person is in the data. It is measured in **pcost**: 1"
        " divided by the variance of the noise of a count. More pcost means less noise."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=(
                r"\sigma = \frac{1}{\mu} = \frac{1}{\sqrt{\mathrm{pcost}}}, \qquad \rho ="
                r" \tfrac12\,\mathrm{pcost}"
            ),
            plain="σ = 1/μ = 1/√pcost;  ρ = pcost/2",
            words=("Standard error of the counts of one table, and the budget in other units."),
        ),
        Formula(
            latex=r"\Pr[\text{guess right}] \le \Phi(\mu / 2)",
            plain="P(guess right) ≤ Φ(μ/2)",
            words=("For any guess whether one person is in the data, if both are equally likely."),
        ),
    ),
    questions=(
        question(
            "You want half the standard error. How does the privacy cost change?",
            (
                "It doubles.",
                "The cost is 1 / (standard error)²: half the error costs four times as much.",
            ),
            ("✓ It becomes four times as large.", "The cost is 1 / (standard error)²."),
            (
                "It stays: noise is random.",
                "Each draw is random, but the budget determines the spread of the draws.",
            ),
        ),
        question(
            "Two groups have 88 and 12 records. Which of their counts gets more noise?",
            (
                "The larger one.",
                "Noise hides one person, who changes either count by 1.",
            ),
            (
                "✓ Both get the same.",
                (
                    "The noise depends only on the budget. The relative error of the small group"
                    " is larger."
                ),
            ),
            (
                "The smaller one.",
                "It gets the same noise, which is only a larger share of a small count.",
            ),
        ),
        question(
            "Two releases of the same records have pcost 1 each. What do they cost together?",
            (
                "1: it is the same query.",
                "Averaging both answers halves the variance, which costs budget.",
            ),
            ("✓ 2.", "Privacy costs add up; the ledger of a dataset records their sum."),
            ("The square root of 2.", "That is mu. Its square, pcost, adds up."),
        ),
    ),
    expected=expected,
    goals=(
        "Read a standard error as the spread of possible releases.",
        "Explain what pcost, rho, mu and (epsilon, delta) guarantee to one person.",
    ),
    discussion=(
        "Which budget would you accept for your own record? What success rate is that?",
        "The group 70+ is small. At which budget is its change from year to year visible?",
        (
            "Epsilon is for the integer noise that is drawn; rounded Gaussian noise differs from it"
            " in one of about 10¹⁹ draws."
        ),
    ),
)
