"""Lesson 10: tuned centers, and the proof of how little is left."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine.lessons import centered_pairs, centers_example
from engine.lessons.examples import CELLS, NAMES, QUERY_KINDS, CentersExample, pairs_workload
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.lessons.lesson import Formula, Lesson, LessonPicture, lines, question, show_picture
from pages.parts.lessons.url_state import dial
from pages.parts.lessons.user_workload import user_workload
from pages.parts.shell import history, python_script
from pages.parts.shell.history import RequestState

NAME = "centers"
MEANINGS = {"prefix": "everything up to a cell", "range": "every range"}
STEPS = (
    (
        "**Equal and tuned centers** over the bound that no mechanism can go below, at the same"
        " budget."
    ),
    (
        "**A tuned center**: how a query on two attributes passes its total down to the table of"
        " one of them."
    ),
    "**What is left**, and what it can come from.",
)


def user_plans(workload: Workload, budget: Budget) -> CentersExample:
    """Both plans of the own workload and its bound, made once."""
    key = (history.current().request_key, budget)
    cached = history.page_state().get("centered")
    if cached is None or cached[0] != key:
        with st.spinner("Planning your own workload twice and looking for a bound"):
            cached = history.page_state()["centered"] = (key, centers_example(workload, budget))
    example: CentersExample = cached[1]
    return example


def picture(step: int) -> LessonPicture:
    """Draw both splits over the bound, and a tuned center."""
    mine = user_workload(NAME)
    if mine is None:
        left, right = st.columns(2)
        name = dial(left.radio, "Queries on all pairs", QUERY_KINDS, of=NAME, name="queries", default="prefix",
                    format_func=MEANINGS.get, horizontal=True)  # fmt: skip
        cells = dial(
            right.select_slider, "Cells of each attribute", CELLS, of=NAME, name="cells", default=10
        )
        workload, budget = pairs_workload(name, cells), Budget(pcost=1.0)
        example = centered_pairs(name, cells)
        script = f"example = centered_pairs({name!r}, {cells})"
        attributes: tuple[str, ...] = NAMES
    else:
        workload, budget = mine, Budget(pcost=history.current().budget.pcost)
        example = user_plans(workload, budget)
        script = f"example = centers_example(workload, {python_script.budget_text(budget)})"
        attributes = mine.schema.names
    shown = [show_picture(lessons.centers_example_picture(example), "centered")]
    if step > 0:
        chosen = dial(
            st.selectbox, "Attribute", attributes, of=NAME, name="attribute", default=attributes[0]
        )
        shown.append(show_picture(lessons.centers_picture(example, chosen), "center"))
    if step > 1:
        st.markdown(lessons.left_text(example))
    called = script.split("= ")[1].split("(")[0]
    studio = RequestState(workload=workload, budget=budget, options={"centers": "tuned"})
    return LessonPicture(
        studio=studio,
        script=lines(
            f"{script}\nprint(example.won, example.left, example.bound)", engine__lessons=called
        ),
        pictures=tuple(shown),
    )


def expected() -> dict[str, str]:
    """What tuning wins and what is left on all pairs."""
    examples = {
        (name, cells): centered_pairs(name, cells) for name in QUERY_KINDS for cells in (4, 10)
    }
    return {
        f"{MEANINGS[name]}, {cells} cells: won, and left": f"{one.won:.2%}, {one.left:.2%}"
        for (name, cells), one in examples.items()
    }


LESSON = Lesson(
    name=NAME,
    tab="10. The last bit",
    title="Tuned centers, and what is left to win",
    words=(
        "To split a query on two attributes, its total has to be passed down to the smaller tables."
        " The paper passes it down **in equal shares**, one for every cell. Any other shares that"
        " add up to 1, a **center**, split the query just as exactly, and some make everything"
        " cheaper. The studio **searches for the best ones**. How does it know that it may stop? By"
        " a **bound** for all mechanisms whatever: what is left above it is the most that anybody"
        " could still win."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=(
                r"I = (I - \pi \mathbf 1^{\mathsf T}) + \pi \mathbf 1^{\mathsf T}, \qquad \sum_c"
                r" \pi_c = 1"
            ),
            plain="I = (I - π 1ᵀ) + π 1ᵀ, with the sum of π equal to 1",
            words="A center splits every query exactly; the paper takes π = 1/n in every cell.",
        ),
        Formula(
            latex=r"\text{bound} \;\le\; \text{optimum} \;\le\; \text{plan}",
            plain="bound ≤ optimum ≤ plan",
            words="The optimum itself is known only when plan and bound meet.",
        ),
    ),
    questions=(
        question(
            "A plan is 0.2% above the bound for all mechanisms. What can be said about the"
            " optimum?",
            ("It is the plan.", "Only if plan and bound met."),
            ("It is the bound.", "A bound is what cannot be passed, not what can be reached."),
            (
                "✓ It lies between both.",
                "The bound is proved and the plan can be run; the optimum is not above it.",
            ),
        ),
        question(
            "Why do tuned centers not change that answers are right on average?",
            (
                "✓ The pieces still add up to the query, exactly.",
                (
                    "Any center with sum 1 splits every query without remainder, so that nothing is"
                    " left out."
                ),
            ),
            ("Because the change is small.", "Bias would be wrong however small. There is none."),
            (
                "Because the noise is larger.",
                "It is smaller on the whole, and noise has nothing to do with bias.",
            ),
        ),
        question(
            "For which tables are equal centers the best ones already?",
            (
                "For everything up to a cell.",
                "There the ends play another part than the middle: look at the picture.",
            ),
            (
                "✓ For tables of single cells, such as sex by region.",
                "Every category looks like every other one, so that none deserves a larger share.",
            ),
            (
                "For none.",
                "Where all cells are alike to the queries, equal shares are the best ones.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Say what a center is, and why every center splits queries exactly.",
        "Read a gap to a bound as the most that could still be won, not as an error.",
    ),
    discussion=(
        (
            "With 4 cells nothing is left, with 10 or 12 a little. What does the studio do on small"
            " domains that it cannot do on large ones?"
        ),
        (
            "Would you rather look for a better plan or for a better bound? How would you see which"
            " of them is loose?"
        ),
    ),
)
