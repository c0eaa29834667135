"""Lesson: orthogonality of the residual spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine.figures import Picture, budget_picture
from engine.lessons import decompose_query, overlaps
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload, subsets
from pages.parts.lessons.lesson import (
    UNIFORM,
    Formula,
    Lesson,
    LessonPicture,
    lines,
    newest_first,
    question,
    show_picture,
)
from pages.parts.lessons.lesson_05_decomposition import CITIES, REPLIES
from pages.parts.lessons.url_state import dial
from pages.parts.lessons.user_workload import user_workload
from pages.parts.shell.history import RequestState

NAME = "overlap"
STEPS = (
    (
        "The **requested tables**: the cosine between two counts shows how much information they"
        " share."
    ),
    "**What each table adds** to smaller ones: all cosines between different tables are 0.",
    "The cost of each piece of **one query**, with a standard error of one count.",
    "The budget of **all tables**: the shares of the residual spaces add up.",
)


def picture(step: int) -> LessonPicture:
    """Draw the cosines between the counts of tables (step 0) or of residual spaces (step 1).

    Step 2 adds the privacy cost of each piece of a query, and step 3 the share of the budget that
    each residual space takes.
    """
    left, right = st.columns(2)
    n_rows = dial(left.select_slider, "Replies", (2, 3, 4), of=NAME, name="rows", default=2)
    n_columns = dial(
        right.select_slider, "Cities", (2, 3, 4, 5), of=NAME, name="columns", default=3
    )
    workload = _tables(n_rows, n_columns)
    schema, by_residual_space = workload.schema, step > 0
    overlaps_part, costs_part, shares_part = newest_first(3)
    with overlaps_part:
        overlaps_picture = lessons.overlap_picture(overlaps(schema, split=by_residual_space))
        pictures = [show_picture(overlaps_picture, "overlaps", plain=False)]
    if step > 1:
        with costs_part:
            query = _query(n_rows, n_columns)
            costs_picture = lessons.cost_picture(decompose_query(schema, query))
            pictures.append(show_picture(costs_picture, "costs"))
    request_state = RequestState(workload=workload, options=UNIFORM)
    if step > 2:
        with shares_part:
            request_state = RequestState(workload=user_workload(NAME) or workload, options=UNIFORM)
            shares = plan(request_state.required_workload, request_state.budget)
            pictures.append(show_picture(budget_picture(shares), "shares"))
    if request_state.workload is workload:
        script = lines(
            f"""
result = overlaps(schema, split={by_residual_space!r})
print(result.largest)
print(workload_plan.by_space())""",
            engine__lessons="overlaps",
        )
    else:  # the figure of the budget shares is that of the user's workload
        script = lines("print(workload_plan.by_space())")
    return LessonPicture(request_state=request_state, script=script, pictures=tuple(pictures))


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of the handout, as pairs (step, picture)."""
    n_rows, n_columns = choices.get("rows", 2), choices.get("columns", 3)
    workload = _tables(n_rows, n_columns)
    schema, query = workload.schema, _query(n_rows, n_columns)
    return (
        (0, lessons.overlap_picture(overlaps(schema, split=False))),
        (1, lessons.overlap_picture(overlaps(schema, split=True))),
        (2, lessons.cost_picture(decompose_query(schema, query))),
        (3, budget_picture(plan(workload, Budget(pcost=1.0)))),
    )


def _tables(n_rows: int, n_columns: int) -> Workload:
    """Return all tables of a schema with the attributes reply and city of these sizes."""
    schema = Schema(
        [
            Attribute.categorical("reply", REPLIES[:n_rows]),
            Attribute.categorical("city", CITIES[:n_columns]),
        ]
    )
    workload = Workload(schema)
    for space in subsets(schema.names):
        workload = workload.add(space, "marginal")
    return workload


def _query(n_rows: int, n_columns: int) -> list[list[int]]:
    """Return a query as one row per reply and one column per city: 1 for counted cells, else 0.

    For reply 0 the query counts all cities except the first.  For every other reply it counts only
    the last city.
    """
    return [
        [int(c >= 1 and (r == 0 or c == n_columns - 1)) for c in range(n_columns)]
        for r in range(n_rows)
    ]


def expected() -> dict[str, str]:
    """Return the largest cosine between the counts of different tables and of residual spaces.

    The keys are descriptions, the values the numbers as text.
    """
    schema = Schema(
        [Attribute.categorical("reply", REPLIES[:2]), Attribute.categorical("city", CITIES[:3])]
    )
    before, after = (overlaps(schema, split=split).largest for split in (False, True))
    return {
        "Largest cosine between requested tables": f"{before:.3f}",
        "Largest cosine between residual spaces": f"{abs(after):.3f}",
    }


LESSON = Lesson(
    name=NAME,
    tab="Overlap",
    minutes=10,
    title="Orthogonal residual spaces",
    words=(
        "The table by reply and the table by city both contain the total, so measuring both pays"
        " for the total twice. The decomposition assigns to every set of attributes only **what it"
        " adds** to smaller sets: its **residual space**. The cosine between two queries shows how"
        " much information they share; between residual spaces it is **0**. So each space can be"
        " optimized separately, and variances add up."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=r"\cos(p, q) = \frac{p \cdot q}{\lVert p \rVert\, \lVert q \rVert}",
            plain="cos(p, q) = p·q / (|p| |q|)",
            words="1: the same query; 0: no shared information.",
        ),
        Formula(
            latex=r"\operatorname{Var}(q) = \sum_A \operatorname{Var}(q_A), \qquad "
            r"\mathrm{pcost} = \sum_A \mathrm{pcost}_A",
            plain="Var(q) = sum of Var(q_A);  pcost = sum of pcost_A",
            words=("Variances of the pieces and privacy costs of the residual spaces A add up."),
        ),
    ),
    questions=(
        question(
            "Why can each residual space be optimized separately?",
            (
                "The spaces have few queries.",
                "Size only affects the computing time. Overlapping spaces could not be separated.",
            ),
            (
                "Every space uses different records.",
                "Each record is in all spaces. That is why their privacy costs add up.",
            ),
            (
                "✓ The spaces are orthogonal: one has no information about another.",
                "Combining two spaces makes neither more accurate, and variances add up.",
            ),
        ),
        question(
            "You publish the table by reply and the table by city, measured separately. What is"
            " paid for twice?",
            ("✓ The total.", "Both tables contain it. It is the only residual space they share."),
            (
                "Nothing.",
                "The sum of either table is the number of records, which is measured twice.",
            ),
            ("Every cell.", "A count by reply has no information on a city beyond the total."),
        ),
        question(
            "How many residual spaces do all tables of three attributes have?",
            (
                "3.",
                "Those are the single attributes. Pairs, the triple and the total also have one.",
            ),
            ("6.", "Count all sets of attributes, with the empty and the full set."),
            ("✓ 8.", "One per set of attributes: 2 × 2 × 2, from the total to all three."),
        ),
    ),
    expected=expected,
    goals=(
        "Read from a table of cosines which queries share information.",
        "Explain why costs of the spaces and variances of the pieces add up.",
    ),
    discussion=(
        "Why do cells of the same table overlap after the decomposition, but not before?",
        "Which space uses most of the budget with more cities? Why?",
    ),
)
