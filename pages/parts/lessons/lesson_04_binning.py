"""Lesson: bias of noisy counts that are clipped at zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine._format import format_number, pluralize
from engine.figures import Picture
from engine.lessons import bin_counts, clipping_example
from engine.lessons.examples import WIDTHS
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
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
from pages.parts.lessons.user_workload import choose_pcost
from pages.parts.shell.history import RequestState

NAME = "binning"
COSTS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
COST = 0.05  # default pcost, at which the bias is visible
STEPS = (
    (
        "A sparse table with noise, whose **negative counts are set to zero**: the mean published"
        " count of each cell."
    ),
    "**Bias of sums**: each empty cell is too large on average, and the bias adds up.",
    "**Fewer, wider cells**: merge adjacent cells before they are measured.",
)


def picture(step: int) -> LessonPicture:
    """Draw mean published counts after clipping, then the bias of their sum, then wider cells."""
    left, right = st.columns(2)
    pcost = choose_pcost(left.select_slider, COSTS, of=NAME, default=COST)
    width = 1
    if step > 1:
        width = dial(right.select_slider, "Cells per bin", WIDTHS, of=NAME, name="width", default=2)
    budget = Budget(pcost=pcost)
    example = clipping_example(bin_counts(width), 1 / budget.mu)
    if step:  # above the figure, so that a class sees the numbers without scrolling
        bias_column, sum_column, cell_column = st.columns(3)
        bias_column.metric(
            "Mean bias of the sum",
            f"{example.bias:,.1f} counts",
            help="With negative counts set to 0",
        )
        sum_column.metric(
            "Error of unclipped sum",
            f"{example.std_of_sum:,.1f} counts",
            help="Standard error of the sum of all cells without clipping",
        )
        cell_column.metric(
            "RMSE of one cell",
            f"{example.rmse:.2f} counts",
            help=f"With clipping; without it {format_number(example.std)}",
        )
    figure = show_picture(lessons.clipping_picture(example, width), "clipped")
    cells = len(example.counts)
    script = lines(
        f"""
example = clipping_example(bin_counts({width}), std=1 / Budget(pcost={pcost!r}).mu)
print(example.bias, example.std_of_sum, example.rmse)
print(example.means.round(2))""",
        engine="Budget",
        engine__lessons="bin_counts clipping_example",
    )
    schema = Schema([Attribute.of_size("income", cells)])
    request_state = RequestState(
        workload=Workload(schema).add(["income"], "marginal"), budget=budget, options=UNIFORM
    )
    return LessonPicture(request_state=request_state, script=script, pictures=(figure,))


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of the handout, as pairs (step, picture)."""
    std = 1 / Budget(pcost=choices.get("pcost", COST)).mu
    widths = {0: 1, 2: choices.get("width", 2)}
    return tuple(
        (step, lessons.clipping_picture(clipping_example(bin_counts(width), std), width))
        for step, width in widths.items()
    )


def expected() -> dict[str, str]:
    """Return the bias and errors of clipped counts at the default privacy cost.

    The keys are descriptions, the values the numbers as text.
    """
    std = 1 / Budget(pcost=COST).mu
    examples = {width: clipping_example(bin_counts(width), std) for width in WIDTHS}
    empty = clipping_example([0.0], std)
    return {
        f"Mean published count of an empty cell at pcost {COST:g}": f"{empty.bias:.2f}",
        **{
            f"Mean bias of the sum at pcost {COST:g}, {pluralize(width, 'cell')} per bin": f"{one.bias:,.1f}"
            for width, one in examples.items()
        },
        f"RMSE of one cell at pcost {COST:g}, 1 cell per bin": f"{examples[1].rmse:.2f}",
    }


LESSON = Lesson(
    name=NAME,
    tab="Negative counts",
    minutes=7,
    title="Negative counts and wide cells",
    words=(
        "A noisy count of an empty cell is negative half of the time. If it is **set to zero**,"
        " the cell is closer to the truth, but only downward errors are removed: the result is"
        " **too large on average**. This is small in one cell, but not in a sum of hundreds of"
        " empty cells. Changing answers after the noise costs **no privacy**, but can add **bias**."
        " So this app offers both unbiased answers and published tables without negative counts."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=r"E[\max(t + Z, 0)] = t\,\Phi(t/\sigma) + \sigma\,\varphi(t/\sigma)",
            plain="E[max(t + Z, 0)] = t Φ(t/σ) + σ φ(t/σ)",
            words=(
                "Mean published value of a count t with normal noise Z; 0.4 σ for an empty cell."
            ),
        ),
        Formula(
            latex=r"\operatorname{sd}(\text{sum of } k \text{ cells}) = \sqrt{k}\,\sigma",
            plain="sd(sum of k cells) = √k σ",
            words="Without clipping, errors partly cancel. Bias does not: it grows like k.",
        ),
    ),
    questions=(
        question(
            "A cell is empty and the noise has a standard error of 10. What is its mean after"
            " clipping?",
            (
                "0, the true count.",
                "That is the mean before clipping. Clipping removes the negative values.",
            ),
            (
                "✓ About 4.",
                "0.4 times the standard error: half of the time 0, else a positive error.",
            ),
            ("10.", "That is the standard error. Half of the errors become 0."),
        ),
        question(
            "A thousand empty cells with a standard error of 1 are clipped. What is their published"
            " sum, approximately?",
            ("0.", "Without clipping, errors cancel. With clipping, none is negative."),
            (
                "32.",
                "That is the standard error of the unclipped sum, the square root of 1,000.",
            ),
            ("✓ 400.", "Each cell adds 0.4 on average, and bias does not cancel."),
        ),
        question(
            "Does setting negative counts to zero weaken the protection of persons?",
            (
                "✓ No: it uses only released numbers.",
                "Computations from a release without the records have no privacy cost.",
            ),
            (
                "Yes: answers get closer to the truth.",
                "They do, because counts are known not to be negative.",
            ),
            (
                "Only in empty cells.",
                "In no cell. Any reader can do the same computation.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Explain why clipped counts are too large on average, and where this adds up.",
        "Distinguish what post-processing changes (bias, error) from what it cannot (privacy).",
    ),
    discussion=(
        "Wider cells have less bias. What is lost?",
        "You publish counts of small towns and their sum. Which would you clip, and why?",
        "When is an unbiased negative count better than a biased zero?",
    ),
)
