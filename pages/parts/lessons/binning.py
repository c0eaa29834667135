"""Lesson 9: what is done to noisy counts afterwards, and the bias that it makes."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine._format import format_number
from engine.lessons import binned, clipping_example
from engine.lessons.examples import WIDTHS
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
from pages.parts.lessons.url_state import dial
from pages.parts.lessons.user_workload import user_workload_cost
from pages.parts.shell.history import RequestState

NAME = "binning"
COSTS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
STEPS = (
    (
        "A sparse table with noise, and **negative counts put up to zero**: what is published on"
        " average, cell by cell."
    ),
    "**What that does to sums**: every empty cell gives a little too much, and all of it adds up.",
    "**Fewer, wider cells**: put neighbours together before they are measured.",
)


def picture(step: int) -> LessonPicture:
    """Draw what clipping at zero does to cells and to sums, and what wider cells change."""
    left, right = st.columns(2)
    pcost = user_workload_cost(left.select_slider, COSTS, of=NAME)
    width = 1
    if step > 1:
        width = dial(
            right.select_slider, "Cells put together", WIDTHS, of=NAME, name="width", default=2
        )
    budget = Budget(pcost=pcost)
    example = clipping_example(binned(width), 1 / budget.mu)
    shown = show_picture(lessons.clipping_picture(example, width), "clipped")
    if step:
        one, two, three = st.columns(3)
        one.metric(
            "Sum, on average too large by",
            f"{example.bias:,.1f} counts",
            help="With negative counts put up to 0",
        )
        two.metric(
            "Standard error of the sum as measured",
            f"{example.std_of_sum:,.1f} counts",
            help="Without bias",
        )
        three.metric(
            "Error of one cell",
            f"{example.rmse:.2f} counts",
            help=(
                "Root mean square, with negative counts put up to 0; as measured it is"
                f" {format_number(example.std)}"
            ),
        )
    cells = len(example.counts)
    script = lines(
        f"""
example = clipping_example(binned({width}), std=1 / Budget(pcost={pcost!r}).mu)
print(example.bias, example.std_of_sum, example.rmse)
print(example.means.round(2))""",
        engine="Budget",
        engine__lessons="binned clipping_example",
    )
    schema = Schema([Attribute.of_size("income", cells)])
    studio = RequestState(
        workload=Workload(schema).add(["income"], "marginal"), budget=budget, options=EVENLY
    )
    return LessonPicture(studio=studio, script=script, pictures=(shown,))


def expected() -> dict[str, str]:
    """Bias and errors at a standard error of 1 count."""
    examples = {width: clipping_example(binned(width), 1.0) for width in WIDTHS}
    empty = clipping_example([0.0], 1.0)
    return {
        "An empty cell with noise of 1 count is published on average as": f"{empty.bias:.3f}",
        **{
            f"Bias of the sum at pcost 1, {width} cells put together": f"{one.bias:.2f}"
            for width, one in examples.items()
        },
        "Error of one cell at pcost 1, none put together": f"{examples[1].rmse:.2f}",
    }


LESSON = Lesson(
    name=NAME,
    tab="9. Below zero",
    title="Wide cells, and counts below zero",
    words=(
        "A noisy count of an empty cell is negative half of the time. Nobody likes to publish that,"
        " so it is **put up to zero**. Each single cell is then nearer to the truth, but only"
        " errors downwards are mended: what is left is **too much on average**. One cell hides it."
        " A sum over hundreds of empty cells does not. What is done to answers after the noise"
        " costs **no privacy**; it can still cost **honesty**. That is why the studio hands out"
        " answers as measured, and tables without negative cells apart, made to agree with their"
        " sums."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=r"E[\max(t + Z, 0)] = t\,\Phi(t/\sigma) + \sigma\,\varphi(t/\sigma)",
            plain="E[max(t + Z, 0)] = t Φ(t/σ) + σ φ(t/σ)",
            words=(
                "What a count t with normal noise Z is published as on average; an empty cell as"
                " 0.4 σ."
            ),
        ),
        Formula(
            latex=r"\operatorname{sd}(\text{sum of } k \text{ cells}) = \sqrt{k}\,\sigma",
            plain="sd(sum of k cells) = √k σ",
            words="Without clipping errors of cells cancel. Bias does not: it grows like k.",
        ),
    ),
    questions=(
        question(
            "A cell is empty and the noise has a standard error of 10. What is published on average"
            " after clipping?",
            (
                "0, the truth.",
                "That is the average before clipping. Afterwards nothing is negative any more.",
            ),
            (
                "✓ About 4.",
                "0.4 times the standard error: half of the time 0, else a positive error.",
            ),
            ("10.", "That is the size of the noise. Half of the errors have become 0."),
        ),
        question(
            "A thousand empty cells are clipped at a standard error of 1. What is their published"
            " sum, about?",
            ("0.", "Without clipping errors cancel. After it none of them is negative."),
            (
                "32.",
                "That is the standard error of the sum without clipping, the root of a thousand.",
            ),
            ("✓ 400.", "Each cell gives 0.4 on average, and bias adds up without cancelling."),
        ),
        question(
            "Does putting negative counts up to zero weaken the protection of persons?",
            (
                "✓ No: it uses only what was published anyway.",
                "Whatever is computed from a release without the records has no privacy cost.",
            ),
            (
                "Yes: it brings answers nearer to the truth.",
                "It does, by knowing that counts are not negative.",
            ),
            (
                "Only in empty cells.",
                "In no cell. The same computation could be done by any reader.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Say why counts that are put up to zero are too large on average, and where that adds up.",
        "Tell what post-processing can change (bias, error) from what it cannot (privacy).",
    ),
    discussion=(
        "Wider cells have less bias. What do they lose?",
        (
            "You publish a table for small towns and their sum. Which of them would you clip, and"
            " what would you write?"
        ),
        "When is an unbiased negative count better than a biased zero?",
    ),
)
