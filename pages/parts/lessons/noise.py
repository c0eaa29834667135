"""Lesson 4: noise as releases that could come out, and what a budget promises to one person."""

from __future__ import annotations

import streamlit as st

from engine import Attribute, Budget, Schema, Workload, lessons
from engine.arrays import Array
from engine.lessons import INVENTED, meanings, neighbours, outcomes
from engine.texts import amount
from pages.parts.lessons.lesson import Choice, Lesson, Question, Shown, lines
from pages.parts.shell import show
from pages.parts.shell.state import Studio

COSTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
DRAWS = 20
DRAWN = "learn_draws"


def drawn(budget: Budget) -> Array:
    """The outcomes on screen, shape (draws, cells); a change of the budget draws new ones."""
    kept: tuple[Budget, Array] | None = st.session_state.get(DRAWN)
    if kept is None or kept[0] != budget:
        kept = st.session_state[DRAWN] = (budget, outcomes(list(INVENTED.values()), budget, DRAWS))
    return kept[1]


def draw_again() -> None:
    """Forget the outcomes on screen, so that new ones are drawn."""
    st.session_state.pop(DRAWN, None)


def picture() -> Shown:
    """Draw hypothetical outcomes, the budget in words, and what a release tells about one person."""
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    pcost = left.select_slider(
        "Privacy cost (pcost)", COSTS, value=0.02, format_func="{:g}".format, key="noise_pcost", persist_state="session"
    )
    budget = Budget(pcost=pcost)
    right.button("Draw again", key="draw_again", on_click=draw_again, width="stretch")
    st.markdown(f"Every count gets noise with a standard error of **{amount(1 / budget.mu)} counts**.")
    found = lessons.outcomes_picture(list(INVENTED), list(INVENTED.values()), drawn(budget))
    show.picture(found, key="outcomes")
    show.picture(lessons.neighbours_picture(neighbours(budget)), key="neighbours")
    st.markdown("**The same budget in every unit**")
    st.table(meanings(budget), hide_index=True, alt="The budget in every unit, in words")
    schema = Schema([Attribute.categorical("age", list(INVENTED))])
    script = lines(
        f"""
budget = Budget(pcost={pcost!r})
print(outcomes(list(INVENTED.values()), budget, draws={DRAWS}).round(1))
print(neighbours(budget).guess)
print(meanings(budget))""",
        engine="Budget",
        engine__lessons="INVENTED meanings neighbours outcomes",
    )
    return Shown(studio=Studio(workload=Workload(schema).add(["age"], "marginal"), budget=budget), script=script)


LESSON = Lesson(
    name="noise",
    tab="4. Noise",
    title="Noise, and what the budget means",
    words=(
        "A release is **one draw** out of many that could have come out. The dots below are 20 of them, for invented "
        "counts; the noise is drawn as for a real release, with the randomness of this machine. The **budget** says "
        "how well anybody, even with all other records at hand, could tell from a release whether one person is in "
        "the data: the two curves are the law of one count **without and with that person**, and the more they "
        "overlap, the less the answer says."
    ),
    picture=picture,
    question=Question(
        text="You want half the standard error. What happens to the privacy cost?",
        choices=(
            Choice(
                text="It doubles.",
                feedback="mu doubles. The privacy cost is the square of mu, so look again at the table of units.",
            ),
            Choice(text="It becomes four times as large.", feedback="The cost is 1 / (standard error)^2.", right=True),
            Choice(
                text="It stays: noise is drawn by chance.",
                feedback="Each draw is chance, but how wide the draws spread is what the budget pays for.",
            ),
        ),
    ),
    goals=(
        "Read a standard error as the spread of releases that could have come out.",
        "Say in words what pcost, rho, mu and (epsilon, delta) promise to one person.",
    ),
    discussion=(
        "Which budget would you accept for your own record? What share of right guesses is that?",
        "The group 70+ is small. At which budget can its change from year to year be seen?",
        "Epsilon is proved for the discrete noise through rho; the two curves are the continuous approximation.",
    ),
)
