"""Lesson 6: look at what two analyses share, then decide."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine.lessons import two_analyses
from engine.lessons.examples import yes_or_no
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.lessons.lesson import (
    EVENLY,
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
FINE = ("all pairs", "the whole table")
STEPS = (
    (
        "Look first, decide then: with **what both share**, and with a **separate look** as exact"
        " as that."
    ),
    (
        "**How much is saved**, and how many numbers the look has. Change the questions and the"
        " fine analysis."
    ),
)


def picture(step: int) -> LessonPicture:
    """Draw the cost of looking first and deciding then."""
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
    shown = show_picture(lessons.spends_picture(analyses), "spends")
    if step > 0:
        one, two = st.columns(2)
        one.metric(
            "Budget saved (pcost)",
            f"{analyses.shared.saved:.2%}",
            help=(
                "pcost of a separate look as exact as the shared one, as a share of the pcost of"
                " the fine analysis"
            ),
        )
        two.metric(
            "Numbers in the shared look",
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
        studio=RequestState(workload=workload, budget=budget, options=EVENLY),
        script=script,
        pictures=(shown,),
    )


def _workload(questions: int) -> Workload:
    schema = yes_or_no(questions)
    return Workload(schema).add(schema.names, "marginal")


def expected() -> dict[str, str]:
    """Shares that are saved."""
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
    tab="6. Coarse or fine",
    title="Coarse or fine",
    words=(
        "A **coarse** analysis asks how many said yes to each question. A **fine** one asks for"
        " tables of several questions, which is worth it only if the counts are large enough. Both"
        " contain the same information up to a point: their **common mechanism**. Run it first and"
        " look. Then run **the rest** of the analysis that you choose. Look and rest together are"
        " exactly that analysis, at exactly its cost, so that **the look is free**."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=(
                r"M_{\text{common}} \preceq M_{\text{coarse}}, \quad M_{\text{common}} \preceq"
                r" M_{\text{fine}}"
            ),
            plain="common ≼ coarse and common ≼ fine",
            words="Both analyses can tell everything that their common mechanism says.",
        ),
        Formula(
            latex=(
                r"\mathrm{pcost}(\text{look}) + \mathrm{pcost}(\text{rest}) ="
                r" \mathrm{pcost}(\text{analysis})"
            ),
            plain="pcost(look) + pcost(rest) = pcost(analysis)",
            words=(
                "For either analysis: the look is a part of it, and the rest is what it says beyond"
                " the look."
            ),
        ),
    ),
    questions=(
        question(
            "You ran the shared look and then chose the fine analysis. What did you spend in all?",
            (
                "The look and the whole fine analysis.",
                (
                    "That is the price of a separate look. The shared one is a part of the fine"
                    " analysis."
                ),
            ),
            ("Nothing but the look.", "The rest of the fine analysis reads the records again."),
            (
                "✓ Exactly the cost of the fine analysis.",
                "Look and rest add up to it, and they say exactly as much.",
            ),
        ),
        question(
            "When must the rule be fixed that decides between coarse and fine?",
            (
                "✓ Before the look.",
                (
                    "A rule that is made up after seeing the numbers can be bent to them, and"
                    " nobody could check it."
                ),
            ),
            ("After the look.", "Then the decision follows the noise that one has seen."),
            (
                "It does not matter.",
                "For privacy it does not, as the look is paid for. For honest statistics it does.",
            ),
        ),
        question(
            "The whole table takes the place of all pairs as the fine analysis, with seven"
            " questions. What is saved?",
            (
                "More.",
                (
                    "Compare both on seven questions: a table of 128 cells says little about each"
                    " question."
                ),
            ),
            (
                "✓ Less.",
                (
                    "At the same budget the whole table tells each question less exactly, so that"
                    " the two share less."
                ),
            ),
            (
                "The same.",
                (
                    "What is shared depends on how exactly the fine analysis tells the coarse"
                    " questions."
                ),
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Explain what two analyses share, and why a look at it costs nothing extra.",
        "Compare with a separate look, which takes its cost away from the analysis.",
    ),
    discussion=(
        (
            "With the whole table as the fine analysis, less is saved when there are more"
            " questions. Why?"
        ),
        "Which rule would you fix before the look: how large must counts be for the fine analysis?",
    ),
)
