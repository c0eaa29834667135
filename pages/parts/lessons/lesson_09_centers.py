"""Lesson: tuned centers and the remaining gap to the bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine._format import percent_rounded_up
from engine.figures import Picture
from engine.lessons import centered_pairs, centers_example
from engine.lessons.examples import CELLS, NAMES, QUERY_KINDS, CentersExample, pairs_workload
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.lessons.lesson import (
    Formula,
    Lesson,
    LessonPicture,
    lines,
    newest_first,
    question,
    show_picture,
)
from pages.parts.lessons.url_state import dial
from pages.parts.lessons.user_workload import user_workload
from pages.parts.shell import history, python_script
from pages.parts.shell.history import RequestState

NAME = "centers"
MEANINGS = {"prefix": "all prefixes", "range": "all ranges"}
STEPS = (
    "Errors of **uniform and tuned centers** relative to the bound, at the same budget.",
    "**A tuned center**: the weights that split a query between two tables.",
    "**The remaining gap** and its possible causes.",
)


def user_plans(workload: Workload, budget: Budget) -> CentersExample:
    """Return plans of the user's workload with uniform and with tuned centers, and the bound.

    They are cached until the user changes the workload or budget, or opens another page.
    """
    key = (history.current().request_key, budget)
    cached = history.page_state().get("centered")
    if cached is None or cached[0] != key:
        with st.spinner("Planning your workload with both centers and computing the bound"):
            cached = history.page_state()["centered"] = (key, centers_example(workload, budget))
    example: CentersExample = cached[1]
    return example


def picture(step: int) -> LessonPicture:
    """Draw the errors with uniform and with tuned centers.

    Step 1 adds the tuned center of one attribute, and step 2 the gap to the lower bound.
    """
    own_workload = user_workload(NAME)
    if own_workload is None:
        left, right = st.columns(2)
        name = dial(
            left.radio,
            "Queries on all pairs",
            QUERY_KINDS,
            of=NAME,
            name="queries",
            default="prefix",
            format_func=MEANINGS.get,
            horizontal=True,
        )
        cells = dial(
            right.select_slider, "Cells per attribute", CELLS, of=NAME, name="cells", default=10
        )
        workload, budget = pairs_workload(name, cells), Budget(pcost=1.0)
        example = centered_pairs(name, cells)
        script = f"example = centered_pairs({name!r}, {cells})"
        attributes: tuple[str, ...] = NAMES
    else:
        workload, budget = own_workload, Budget(pcost=history.current().budget.pcost)
        example = user_plans(workload, budget)
        script = f"example = centers_example(workload, {python_script.budget_text(budget)})"
        attributes = own_workload.schema.names
    errors_part, center_part, gap_part = newest_first(3)
    with errors_part:
        pictures = [show_picture(lessons.centers_example_picture(example), "centered")]
    if step > 0:
        with center_part:
            attribute = dial(
                st.selectbox,
                "Attribute",
                attributes,
                of=NAME,
                name="attribute",
                default=attributes[0],
            )
            pictures.append(show_picture(lessons.centers_picture(example, attribute), "center"))
    if step > 1:
        gap_part.markdown(lessons.gap_text(example))
    function_name = "centered_pairs" if own_workload is None else "centers_example"
    request_state = RequestState(workload=workload, budget=budget, options={"centers": "tuned"})
    return LessonPicture(
        request_state=request_state,
        script=lines(
            f"{script}\nprint(example.gain, example.gap, example.bound)",
            engine__lessons=function_name,
        ),
        pictures=tuple(pictures),
    )


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of steps 0 and 1 for the handout, as pairs (step, picture)."""
    example = centered_pairs(choices.get("queries", "prefix"), choices.get("cells", 10))
    attribute = choices.get("attribute", NAMES[0])
    attribute = attribute if attribute in NAMES else NAMES[0]  # it may be one of the user's schema
    return (
        (0, lessons.centers_example_picture(example)),
        (1, lessons.centers_picture(example, attribute)),
    )


def expected() -> dict[str, str]:
    """Return the decrease of the error by tuning and the gap to the bound for four workloads.

    The keys are descriptions, the values the numbers as text.
    """
    examples = {
        (name, cells): centered_pairs(name, cells) for name in QUERY_KINDS for cells in (4, 10)
    }
    return {
        f"{MEANINGS[name]}, {cells} cells: gain, gap": (
            f"{one.gain:.2%}, {percent_rounded_up(one.gap, 2)}"
        )
        for (name, cells), one in examples.items()
    }


LESSON = Lesson(
    name=NAME,
    tab="Centers",
    minutes=12,
    title="Tuned centers and the remaining gap",
    words=(
        "The paper splits a query on two attributes with **uniform** weights, the same for every"
        " cell. Any other weights that add up to 1, a **center**, also split the query exactly, and"
        " some give smaller errors. This app **searches for the best ones**. It stops when the plan"
        " is close to a **lower bound** for all mechanisms: the gap is the most that any mechanism"
        " could still improve."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=(
                r"I = (I - \pi \mathbf 1^{\mathsf T}) + \pi \mathbf 1^{\mathsf T}, \qquad \sum_c"
                r" \pi_c = 1"
            ),
            plain="I = (I - π 1ᵀ) + π 1ᵀ, with the sum of π equal to 1",
            words="Every center splits queries exactly; the paper uses π = 1/n in every cell.",
        ),
        Formula(
            latex=r"\text{bound} \;\le\; \text{optimum} \;\le\; \text{plan}",
            plain="bound ≤ optimum ≤ plan",
            words="The optimum is known only if plan and bound are equal.",
        ),
    ),
    questions=(
        question(
            "A plan is 0.2% above the bound for all mechanisms. Where is the optimum?",
            ("At the plan.", "Only if plan and bound are equal."),
            ("At the bound.", "Not necessarily: a bound may be impossible to reach."),
            (
                "✓ Between both.",
                "No mechanism is below the bound, and the plan is a mechanism.",
            ),
        ),
        question(
            "Why do answers remain unbiased with tuned centers?",
            (
                "✓ The pieces still add up exactly to the query.",
                "Any center with sum 1 splits every query without remainder.",
            ),
            ("The change is small.", "Even a small bias is a bias. Here it is zero."),
            (
                "The noise is larger.",
                "It is smaller overall, and noise with mean zero adds no bias.",
            ),
        ),
        question(
            "For which tables are uniform centers optimal?",
            (
                "For all prefixes.",
                "The ends differ from the middle: see the picture.",
            ),
            (
                "✓ For tables of single cells, such as sex by region.",
                "By symmetry, no category needs a larger weight than another.",
            ),
            (
                "For none.",
                "If all cells have the same role in the queries, uniform weights are optimal.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Define a center, and explain why every center splits queries exactly.",
        "Read a gap to a bound as the possible improvement, not as an error.",
    ),
    discussion=(
        (
            "With 4 cells the gap is zero, with 10 or 12 it is small. What can the app do for small"
            " domains only?"
        ),
        "Would you look for a better plan or a better bound? How do you see which is loose?",
    ),
)
