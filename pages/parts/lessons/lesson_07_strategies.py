"""Lesson: measured strategy and requested workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine.figures import Picture
from engine.lessons import contest
from engine.lessons.examples import SIZES
from engine.workload import Attribute, Schema, Workload
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
from pages.parts.shell.history import RequestState

NAME = "strategies"
STEPS = (
    "**Two strategies**: a row is one noisy number, white is zero.",
    "The **error of every range** with each strategy, in the same colors.",
    "All strategies by their **typical error** over all ranges, and the lower bound.",
)


def picture(step: int) -> LessonPicture:
    """Draw two strategies, then their errors, then the typical errors of all strategies."""
    first, second, third = st.columns(3)
    cells = dial(first.select_slider, "Cells", SIZES, of=NAME, name="cells", default=16)
    result = contest("range", cells)
    names = tuple(strategy.name for strategy in result.results)
    left_name = dial(
        second.selectbox,
        "Left strategy",
        names,
        of=NAME,
        name="left",
        default="Hierarchical",
    )
    right_name = dial(
        third.selectbox, "Right strategy", names, of=NAME, name="right", default="Optimal"
    )
    strategies_part, errors_part, contest_part = newest_first(3)
    pictures = []
    sides = list(
        zip(("left", "right"), (names.index(left_name), names.index(right_name)), strict=True)
    )
    for place, (side, number) in zip(strategies_part.columns(2), sides, strict=True):
        with place:
            strategy_picture = lessons.strategy_picture(result.results[number])
            pictures.append(show_picture(strategy_picture, f"strategy_{side}", plain=False))
    if step > 0:
        for place, (side, number) in zip(errors_part.columns(2), sides, strict=True):
            with place:
                errors_picture = lessons.range_errors_picture(result, number)
                pictures.append(show_picture(errors_picture, f"errors_{side}", plain=False))
    if step > 1:
        with contest_part:
            bounds = {"lower bound": result.bound()}
            contest_picture = lessons.contest_picture(result, bounds, left_name, decimals=2)
            pictures.append(show_picture(contest_picture, "strategies"))
    request_state = RequestState(
        workload=Workload(Schema([Attribute.of_size("age", cells)])).add(["age"], "range"),
        options={"centers": "tuned"},
    )
    script = lines(
        f"""
result = contest("range", {cells})
for strategy in result.results:
    print(strategy.name, strategy.rmse)
print(result.bound(), workload_plan.rmse)""",
        engine__lessons="contest",
    )
    return LessonPicture(request_state=request_state, script=script, pictures=tuple(pictures))


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of the handout, as pairs (step, picture)."""
    result = contest("range", choices.get("cells", 16))
    names = [strategy.name for strategy in result.results]
    left, right = choices.get("left", "Hierarchical"), choices.get("right", "Optimal")
    numbers = names.index(left), names.index(right)
    bounds = {"lower bound": result.bound()}
    return (
        *((0, lessons.strategy_picture(result.results[number])) for number in numbers),
        *((1, lessons.range_errors_picture(result, number)) for number in numbers),
        (2, lessons.contest_picture(result, bounds, left, decimals=2)),
    )


def expected() -> dict[str, str]:
    """Return the errors of all strategies and the lower bound for ranges on 16 cells.

    The keys are descriptions, the values the numbers as text.
    """
    result = contest("range", 16)
    numbers = {f"RMSE of {one.name} on 16 cells": f"{one.rmse:.2f}" for one in result.results}
    return numbers | {"Bound on 16 cells": f"{result.bound():.2f}"}


LESSON = Lesson(
    name=NAME,
    tab="Strategies",
    minutes=7,
    title="Strategies",
    words=(
        "The workload is **every range** of ages; cell 0 is the youngest age group. The noisy"
        " numbers that are **measured** can be different ones, from which the ranges are computed."
        " Single cells (Identity) are accurate for short ranges, but a long range adds up the noise"
        " of many. A **tree** (Hierarchical) or **wavelet** covers a long range with few numbers,"
        " but counts every record on every level, so that each number needs more noise. **Waves**"
        " (Fourier) and the **optimum** (Optimal) balance both. All five strategies have the same"
        " cost."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=r"\mathrm{pcost}(B) = \max_c \sum_r B_{rc}^2",
            plain="pcost(B) = largest sum of squares of a column of B",
            words=(
                "Cost of a strategy B with noise of standard deviation 1: the largest change of its"
                " numbers by one record, squared."
            ),
        ),
        Formula(
            latex=r"\operatorname{Var}(q) = q\,(B^{\mathsf T} B)^{+} q^{\mathsf T}",
            plain="Var(q) = q (BᵀB)⁺ qᵀ",
            words="Variance of a query computed by least squares.",
        ),
    ),
    questions=(
        question(
            "With 4 cells the tree is worse than single cells, with 32 cells it is better. Why?",
            (
                "✓ Long ranges add up many cells, but doubling the cells adds only one level.",
                "The noise of a tree grows with its levels, that of a range with its length.",
            ),
            (
                "A tree on 32 cells has more privacy budget.",
                "All strategies have the same cost, for any number of cells.",
            ),
            (
                "With 32 cells, nearly all ranges are short.",
                "No: the mean length of a range grows with the number of cells.",
            ),
        ),
        question(
            "Only single cells are measured, each with a standard error of 1. What is the standard"
            " error of a range of 16 cells?",
            (
                "16.",
                "Standard errors do not add up. Variances do: 16 times 1.",
            ),
            ("✓ 4.", "Sixteen variances of 1 add up to 16, whose square root is 4."),
            ("1.", "Only if the range itself is measured, which also costs budget."),
        ),
        question(
            "Why does a number of a tree need more noise than if only cells are measured?",
            (
                "It has more rows, and rows are expensive.",
                "Rows that share no record have no extra cost. Levels have.",
            ),
            (
                "Larger counts need larger noise.",
                "Noise does not depend on the count, only on the effect of one record.",
            ),
            (
                "✓ Every record is counted once on every level.",
                "One record changes a number on each level, so that the cost grows with levels.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Distinguish the workload (requested) from the strategy (measured).",
        "Explain the trade-off between few numbers per query and few numbers per record.",
    ),
    discussion=(
        "Where in the triangle is each strategy weak?",
        "All levels of the tree have the same noise. Which would you make more accurate?",
    ),
)
