"""Lesson 4: noise as releases that could come out, and what a budget promises to one person."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine._arrays import Array
from engine._format import format_number
from engine.lessons import INVENTED, budget_table, draw_releases, neighbours
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.lessons.lesson import (
    EVENLY,
    Formula,
    Lesson,
    LessonPicture,
    lines,
    question,
    show_picture,
)
from pages.parts.lessons.user_workload import user_workload_cost
from pages.parts.shell.history import RequestState

NAME = "noise"
COSTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
DRAWS = 20
DRAWN = "learn_draws"
STEPS = (
    (
        "**Releases that could come out**: one of them would be published. At first the budget is"
        " that of your own plan."
    ),
    "**One person more or less**: the law of one count without and with that person.",
    "**The same budget in every unit**, in words.",
)


def drawn_for(budget: Budget) -> Array:
    """The outcomes on screen, shape (draws, cells); a change of the budget draws new ones."""
    cached: tuple[Budget, Array] | None = st.session_state.get(DRAWN)
    if cached is None or cached[0] != budget:
        cached = st.session_state[DRAWN] = (
            budget,
            draw_releases(list(INVENTED.values()), budget, DRAWS),
        )
    return cached[1]


def draw_again() -> None:
    """Forget the outcomes on screen, so that new ones are drawn."""
    st.session_state.pop(DRAWN, None)


def picture(step: int) -> LessonPicture:
    """Draw hypothetical outcomes, the budget in words, and what a release tells about one person."""
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    pcost = user_workload_cost(left.select_slider, COSTS, of=NAME)
    budget = Budget(pcost=pcost)
    right.button("Draw again", key="draw_again", on_click=draw_again, width="stretch")
    st.markdown(
        f"Every count gets noise with a standard error of **{format_number(1 / budget.mu)}"
        " counts**."
    )
    counts = list(INVENTED.values())
    shown = [
        show_picture(
            lessons.outcomes_picture(list(INVENTED), counts, drawn_for(budget)),
            "outcomes",
            plain=False,
        )
    ]
    if step > 0:
        shown.append(
            show_picture(lessons.neighbours_picture(neighbours(budget)), "neighbours", plain=False)
        )
    if step > 1:
        st.markdown("**The same budget in every unit**")
        st.table(budget_table(budget), hide_index=True, alt="The budget in every unit, in words")
    schema = Schema([Attribute.categorical("age", list(INVENTED))])
    script = lines(
        f"""
budget = Budget(pcost={pcost!r})
print(draw_releases(list(INVENTED.values()), budget, draws={DRAWS}).round(1))
print(neighbours(budget).guess)
print(budget_table(budget))""",
        engine="Budget",
        engine__lessons="INVENTED budget_table draw_releases neighbours",
    )
    studio = RequestState(
        workload=Workload(schema).add(["age"], "marginal"), budget=budget, options=EVENLY
    )
    return LessonPicture(studio=studio, script=script, pictures=tuple(shown))


def expected() -> dict[str, str]:
    """Standard errors and best guesses at some budgets."""
    budgets = [Budget(pcost=pcost) for pcost in (0.02, 1.0)]
    errors = {
        f"Standard error at pcost {b.pcost:g}": f"{format_number(1 / b.mu)} counts" for b in budgets
    }
    return errors | {
        f"Best guess at pcost {b.pcost:g}": lessons.guess_text(neighbours(b)) for b in budgets
    }


LESSON = Lesson(
    name=NAME,
    tab="4. Noise",
    title="Noise, and what the budget means",
    words=(
        "A release is **one draw** out of many that could have come out. The dots below are 20 of"
        " them, for invented counts; the noise is drawn as for a real release, with the randomness"
        " of this machine. The **budget** says how well anybody, even with all other records at"
        " hand, could tell from a release whether one person is in the data: the two curves are the"
        " law of one count **without and with that person**, and the more they overlap, the less"
        " the answer says."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=(
                r"\sigma = \frac{1}{\mu} = \frac{1}{\sqrt{\mathrm{pcost}}}, \qquad \rho ="
                r" \tfrac12\,\mathrm{pcost}"
            ),
            plain="σ = 1/μ = 1/√pcost;  ρ = pcost/2",
            words=(
                "Standard error of one count when every record is in one cell, and the budget in"
                " other units."
            ),
        ),
        Formula(
            latex=r"\Pr[\text{guess right}] \le \Phi(\mu / 2)",
            plain="P(guess right) ≤ Φ(μ/2)",
            words=(
                "For anybody who guesses from the release whether one person is in, when both are"
                " equally likely."
            ),
        ),
    ),
    questions=(
        question(
            "You want half the standard error. What happens to the privacy cost?",
            (
                "It doubles.",
                (
                    "mu doubles. The privacy cost is the square of mu, so look again at the table"
                    " of units."
                ),
            ),
            ("✓ It becomes four times as large.", "The cost is 1 / (standard error)^2."),
            (
                "It stays: noise is drawn by chance.",
                "Each draw is chance, but how wide the draws spread is what the budget pays for.",
            ),
        ),
        question(
            "Two groups have 88 and 12 records. Which of their counts gets more noise?",
            (
                "The larger one.",
                "Noise hides one person, and one person moves both counts equally far.",
            ),
            (
                "✓ Both get the same.",
                (
                    "The noise depends on the budget alone. In relation to its count the small"
                    " group suffers more."
                ),
            ),
            (
                "The smaller one.",
                "It only looks so, because the same noise is a larger share of a small count.",
            ),
        ),
        question(
            "Two releases of the same records have pcost 1 each. What have they cost together?",
            (
                "Still 1: it is the same question.",
                "Averaging both answers halves the variance, and that has its price.",
            ),
            ("✓ 2.", "Privacy costs add up, which is what the ledger of a dataset keeps."),
            ("The root of 2.", "That is how mu adds up: its squares do, and pcost is the square."),
        ),
    ),
    expected=expected,
    goals=(
        "Read a standard error as the spread of releases that could have come out.",
        "Say in words what pcost, rho, mu and (epsilon, delta) promise to one person.",
    ),
    discussion=(
        "Which budget would you accept for your own record? What share of right guesses is that?",
        "The group 70+ is small. At which budget can its change from year to year be seen?",
        (
            "Epsilon holds for the whole-numbered noise that is drawn: rounded Gaussian noise"
            " differs from it in one of about 10^19 draws."
        ),
    ),
)
