"""Lesson: common mechanism of a coarse and a fine analysis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine.figures import Picture
from engine.lessons import two_analyses
from engine.lessons.examples import yes_or_no
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.lessons.lesson import (
    UNIFORM,
    Formula,
    Lesson,
    LessonPicture,
    lines,
    question,
    show_picture,
)
from pages.parts.lessons.url_state import dial
from pages.parts.shell.history import RequestState

NAME = "coarse"
FINE = ("all pairs", "full table")
STEPS = (
    "Measure first, then decide: with a **shared** or an equally accurate **separate** first measurement.",
    "**Saved budget** and size of the first measurement. Change the questions and the fine analysis.",
)


def picture(step: int) -> LessonPicture:
    """Draw the cost of a first measurement followed by an analysis.

    Step 1 adds the saved budget and the size of the first measurement as numbers.
    """
    left, right = st.columns(2)
    sizes = (2, 3, 4, 5, 6, 7)
    questions = dial(
        left.select_slider, "Yes-or-no questions", sizes, of=NAME, name="questions", default=3
    )
    fine = dial(
        right.radio, "Fine analysis", FINE, of=NAME, name="fine", default=FINE[0], horizontal=True
    )
    ways = 2 if fine == FINE[0] else questions
    budget = Budget(pcost=1.0)
    analyses = two_analyses(questions, fine_ways=ways, budget=budget)
    figure = show_picture(lessons.spends_picture(analyses), "spends")
    if step > 0:
        saved_column, size_column = st.columns(2)
        saved_column.metric(
            "Budget saved (pcost)",
            f"{analyses.shared.saved:.2%}",
            help="pcost of an equally accurate separate first measurement, relative to the fine analysis",
        )
        size_column.metric(
            "Size of the shared first measurement",
            f"{analyses.shared.common.rank:,}",
            help="Independent noisy numbers",
        )
    workload = (
        Workload.all_ways(yes_or_no(questions), (ways,)) if ways <= 3 else _workload(questions)
    )
    script = lines(
        f"""
result = two_analyses({questions}, fine_ways={ways}, budget=Budget(pcost={budget.pcost!r}))
print(result.shared.saved)
print(result.spends())""",
        engine="Budget",
        engine__lessons="two_analyses",
    )
    return LessonPicture(
        request_state=RequestState(workload=workload, budget=budget, options=UNIFORM),
        script=script,
        pictures=(figure,),
    )


def _workload(questions: int) -> Workload:
    """Return the workload of one table: the marginal on all questions."""
    schema = yes_or_no(questions)
    return Workload(schema).add(schema.names, "marginal")


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of the handout, as pairs (step, picture)."""
    questions = choices.get("questions", 3)
    ways = 2 if choices.get("fine", FINE[0]) == FINE[0] else questions
    analyses = two_analyses(questions, fine_ways=ways, budget=Budget(pcost=1.0))
    return ((0, lessons.spends_picture(analyses)),)


def expected() -> dict[str, str]:
    """Return the share of the budget that a shared first measurement saves, for three examples.

    The keys are descriptions, the values the numbers as text.
    """
    cases = ((3, 2), (7, 2), (7, 7))
    analyses = {
        case: two_analyses(case[0], fine_ways=case[1], budget=Budget(pcost=1.0)) for case in cases
    }
    return {
        f"Saved with {questions} questions and {ways}-way tables": f"{one.shared.saved:.2%}"
        for (questions, ways), one in analyses.items()
    }


LESSON = Lesson(
    name=NAME,
    tab="Coarse or fine",
    minutes=13,
    title="Coarse or fine",
    words=(
        "A **coarse** analysis counts the yes replies to each question. A **fine** analysis counts"
        " combinations of replies, which is useful only if the counts are large enough. Both share"
        " information: their **common mechanism**. Measure it first, then measure the"
        " **remainder** of the analysis that you choose. Together they are exactly that analysis,"
        " at its cost, so that **the first measurement is free**."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=(
                r"M_{\text{common}} \preceq M_{\text{coarse}}, \quad M_{\text{common}} \preceq"
                r" M_{\text{fine}}"
            ),
            plain="common ≼ coarse and common ≼ fine",
            words="Both analyses contain all information of their common mechanism.",
        ),
        Formula(
            latex=(
                r"\mathrm{pcost}(\text{first measurement}) + \mathrm{pcost}(\text{remainder}) ="
                r" \mathrm{pcost}(\text{analysis})"
            ),
            plain="pcost(first measurement) + pcost(remainder) = pcost(analysis)",
            words="For either analysis, which consists of the first measurement and its remainder.",
        ),
    ),
    questions=(
        question(
            "You release the shared first measurement, then choose the fine analysis. What is the total cost?",
            (
                "The first measurement plus the fine analysis.",
                "That is for a separate first measurement. The shared one is part of the fine analysis.",
            ),
            (
                "Only the first measurement.",
                "The remainder of the fine analysis reads the records again.",
            ),
            (
                "✓ Exactly the cost of the fine analysis.",
                "First measurement and remainder together are the fine analysis.",
            ),
        ),
        question(
            "When must the rule for choosing between coarse and fine be set?",
            (
                "✓ Before the first measurement.",
                "A rule chosen after seeing the numbers risks fitting their noise.",
            ),
            ("After the first measurement.", "Then the decision may follow the noise."),
            (
                "It does not matter.",
                "Not for privacy, because the first measurement is paid for. For valid statistics it does.",
            ),
        ),
        question(
            "With seven questions, the fine analysis changes from all pairs to the full table. How"
            " much is saved?",
            (
                "More.",
                "Compare both in the picture: a table of 128 cells is inaccurate per question.",
            ),
            (
                "✓ Less.",
                "At the same budget, the full table is less accurate for each question.",
            ),
            (
                "The same.",
                "The saving depends on the accuracy of the fine analysis for each question.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Explain what two analyses share, and why the shared first measurement has no extra cost.",
        "Compare it with a separate first measurement, whose cost is added to the analysis.",
    ),
    discussion=(
        "With the full table as the fine analysis, more questions save less. Why?",
        "Which rule would you set: how large must counts be for the fine analysis?",
    ),
)
