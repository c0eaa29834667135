"""Lesson 6: look at what two analyses share, then decide."""

from __future__ import annotations

import streamlit as st

from engine import Budget, Workload, lessons
from engine.lessons import two_analyses, yes_or_no
from pages.parts.lessons.lesson import Choice, Lesson, Question, Shown, lines
from pages.parts.shell import show
from pages.parts.shell.state import Studio

FINE = ("all pairs", "the whole table")


def picture() -> Shown:
    """Draw the cost of looking first and deciding then."""
    left, right = st.columns(2)
    questions = left.select_slider(
        "Yes-or-no questions", (2, 3, 4, 5, 6, 7), value=3, key="coarse_questions", persist_state="session"
    )
    fine = right.radio("Fine analysis", FINE, horizontal=True, key="coarse_fine", persist_state="session")
    ways = 2 if fine == FINE[0] else questions
    budget = Budget(pcost=1.0)
    found = two_analyses(questions, fine_ways=ways, budget=budget)
    show.picture(lessons.spends_picture(found), key="spends", config={"displayModeBar": False})
    one, two = st.columns(2)
    one.metric(
        "Budget saved",
        f"{found.shared.saved:.2%}",
        help="Cost of a separate look as exact as the shared one, as a share of the budget",
    )
    two.metric("Numbers in the shared look", f"{found.shared.common.rank:,}", help="Independent noisy numbers")
    workload = Workload.all_ways(yes_or_no(questions), (ways,)) if ways <= 3 else _whole(questions)
    script = lines(
        f"""
found = two_analyses({questions}, fine_ways={ways}, budget=Budget(pcost={budget.pcost!r}))
print(found.shared.saved)
print(found.spends())""",
        engine="Budget",
        engine__lessons="two_analyses",
    )
    return Shown(studio=Studio(workload=workload, budget=budget), script=script)


def _whole(questions: int) -> Workload:
    schema = yes_or_no(questions)
    return Workload(schema).add(schema.names, "marginal")


LESSON = Lesson(
    name="coarse",
    tab="6. Coarse or fine",
    title="Coarse or fine",
    words=(
        "A **coarse** analysis asks how many said yes to each question. A **fine** one asks for tables of several "
        "questions, which is worth it only if the counts are large enough. Both contain the same information up to a "
        "point: their **common mechanism**. Run it first and look. Then run **the rest** of the analysis that you "
        "choose. Look and rest together are exactly that analysis, at exactly its cost, so that **the look is free**."
    ),
    picture=picture,
    question=Question(
        text="You ran the shared look and then chose the fine analysis. What did you spend in all?",
        choices=(
            Choice(
                text="The look and the whole fine analysis.",
                feedback="That is the price of a separate look. The shared one is a part of the fine analysis.",
            ),
            Choice(text="Nothing but the look.", feedback="The rest of the fine analysis reads the records again."),
            Choice(
                text="Exactly the cost of the fine analysis.",
                feedback="Look and rest add up to it, and they say exactly as much.",
                right=True,
            ),
        ),
    ),
    goals=(
        "Explain what two analyses share, and why a look at it costs nothing extra.",
        "Compare with a separate look, which takes its cost away from the analysis.",
    ),
    discussion=(
        "With the whole table as the fine analysis, less is saved when there are more questions. Why?",
        "Which rule would you fix before the look: how large must counts be for the fine analysis?",
    ),
)
