"""Lesson 3: what is measured need not be what is asked."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine.lessons import contest
from engine.lessons.examples import SIZES
from engine.workload import Attribute, Schema, Workload
from pages.parts.lessons.lesson import Formula, Lesson, LessonPicture, lines, question, show_picture
from pages.parts.lessons.url_state import dial
from pages.parts.shell.history import RequestState

NAME = "strategies"
STEPS = (
    "What **two strategies** measure, side by side: a row is one noisy number, white is zero.",
    "The **error of every range** under each of them, in the same colours.",
    "**Who wins** over all ranges, and what no strategy can be below.",
)


def picture(step: int) -> LessonPicture:
    """Draw two strategies, the errors that they leave, and all strategies side by side."""
    first, second, third = st.columns(3)
    cells = dial(first.select_slider, "Cells", SIZES, of=NAME, name="cells", default=16)
    result = contest("range", cells)
    names = tuple(tried.name for tried in result.tried)
    one = dial(
        second.selectbox,
        "Strategy on the left",
        names,
        of=NAME,
        name="left",
        default="Hierarchical",
    )
    two = dial(
        third.selectbox, "Strategy on the right", names, of=NAME, name="right", default="Optimal"
    )
    shown = []
    for side, name, place in zip(("left", "right"), (one, two), st.columns(2), strict=True):
        number = names.index(name)
        with place:
            shown.append(
                show_picture(
                    lessons.strategy_picture(result.tried[number]), f"strategy_{side}", plain=False
                )
            )
            if step > 0:
                shown.append(
                    show_picture(
                        lessons.range_errors_picture(result, number), f"errors_{side}", plain=False
                    )
                )
    if step > 1:
        bounds = {"no strategy can be below": result.bound()}
        shown.append(show_picture(lessons.contest_picture(result, bounds, one), "strategies"))
    studio = RequestState(
        workload=Workload(Schema([Attribute.of_size("age", cells)])).add(["age"], "range"),
        options={"centers": "tuned"},
    )
    script = lines(
        f"""
result = contest("range", {cells})
for tried in result.tried:
    print(tried.name, tried.rmse)
print(result.bound(), made.rmse)""",
        engine__lessons="contest",
    )
    return LessonPicture(studio=studio, script=script, pictures=tuple(shown))


def expected() -> dict[str, str]:
    """Errors of all strategies on 16 cells."""
    result = contest("range", 16)
    numbers = {f"RMSE of {tried.name} on 16 cells": f"{tried.rmse:.4f}" for tried in result.tried}
    return numbers | {"Bound on 16 cells": f"{result.bound():.4f}"}


LESSON = Lesson(
    name=NAME,
    tab="3. Strategies",
    title="What a good strategy looks like",
    words=(
        "People ask for **every range** of ages. What is **measured** with noise can be something"
        " else, from which the ranges are computed. Single cells are exact for short ranges, but a"
        " long range adds up the noise of many. A **tree** or a **wavelet** covers a long range"
        " with few numbers, but every record is then counted on every level, so that each number"
        " gets more noise. **Waves** and the **optimum** find the balance. All five strategies"
        " below cost the same."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=r"\mathrm{pcost}(B) = \max_c \sum_r B_{rc}^2",
            plain="pcost(B) = largest sum of squares of a column of B",
            words=(
                "What a strategy B costs at noise of standard deviation 1: how far one record moves"
                " its numbers."
            ),
        ),
        Formula(
            latex=r"\operatorname{Var}(q) = q\,(B^{\mathsf T} B)^{+} q^{\mathsf T}",
            plain="Var(q) = q (BᵀB)⁺ qᵀ",
            words="Variance of a query that is computed from the numbers by least squares.",
        ),
    ),
    questions=(
        question(
            "On 4 cells the tree has a larger error than single cells, on 32 cells a smaller one."
            " Why?",
            (
                (
                    "✓ Long ranges add up many noisy cells, while the tree grows by one level when"
                    " cells double."
                ),
                (
                    "The noise of a tree grows with the number of levels, that of a long range with"
                    " its length."
                ),
            ),
            (
                "A tree on 32 cells has more privacy budget.",
                "All strategies here cost the same, whatever the number of cells.",
            ),
            (
                "On 32 cells nearly all ranges are short.",
                "It is the other way round: the average range grows with the number of cells.",
            ),
        ),
        question(
            "Only single cells are measured, each with a standard error of 1. What is that of a"
            " range of 16 cells?",
            (
                "16.",
                (
                    "Standard errors do not add up. Variances do: 16 times 1, and its root is the"
                    " standard error."
                ),
            ),
            ("✓ 4.", "Sixteen variances of 1 add up to 16, whose root is 4."),
            ("1.", "That would need the range itself to be measured, at its own price."),
        ),
        question(
            "Why does every number of a tree get more noise than a single cell would get alone?",
            (
                "It has more rows, and rows are dear.",
                "Rows that share no record cost nothing more. Levels do.",
            ),
            (
                "Larger counts need larger noise.",
                "Noise does not depend on the count, only on what one record moves.",
            ),
            (
                "✓ Every record is counted once on every level.",
                (
                    "One record moves a number on each level, so that the cost grows with the"
                    " number of levels."
                ),
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Tell the workload, what is asked, from the strategy, what is measured.",
        "Name the trade between few numbers per query and few numbers per record.",
    ),
    discussion=(
        "Where in the triangle is each strategy weak?",
        (
            "The tree gives every level the same noise. Which levels would you make more exact for"
            " long ranges?"
        ),
    ),
)
