"""Lesson 2: pieces of different sets of attributes have nothing in common."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine.figures import budget_picture
from engine.lessons import decompose_query, overlaps
from engine.mechanisms import plan
from engine.workload import Attribute, Schema, Workload, subsets
from pages.parts.lessons.decomposition import CITIES, REPLIES
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
from pages.parts.lessons.user_workload import user_workload
from pages.parts.shell.history import RequestState

NAME = "apart"
STEPS = (
    (
        "The tables **as people ask for them**: the cosine between two counts says how much they"
        " repeat each other."
    ),
    (
        "**What each table adds** to all smaller ones: all cosines between different tables have"
        " become 0."
    ),
    "What it costs to answer each piece of **one query** alone, with noise of one count.",
    (
        "Where the budget of **all tables together** goes: one share for every residual space, and"
        " the shares add up."
    ),
)


def picture(step: int) -> LessonPicture:
    """Draw the cosines between all cells of all tables, and what the pieces cost."""
    left, right = st.columns(2)
    down = dial(left.select_slider, "Replies", (2, 3, 4), of=NAME, name="rows", default=2)
    across = dial(right.select_slider, "Cities", (2, 3, 4, 5), of=NAME, name="columns", default=3)
    schema = Schema(
        [
            Attribute.categorical("reply", REPLIES[:down]),
            Attribute.categorical("city", CITIES[:across]),
        ]
    )
    workload = Workload(schema)
    for space in subsets(schema.names):
        workload = workload.add(space, "marginal")
    split = step > 0
    shown = [
        show_picture(
            lessons.overlap_picture(overlaps(schema, split=split)), "overlaps", plain=False
        )
    ]
    if step > 1:
        query = [
            [int(c >= 1 and (r == 0 or c == across - 1)) for c in range(across)]
            for r in range(down)
        ]
        shown.append(show_picture(lessons.cost_picture(decompose_query(schema, query)), "costs"))
    studio = RequestState(workload=workload, options=EVENLY)
    if step > 2:
        studio = RequestState(workload=user_workload(NAME) or workload, options=EVENLY)
        shown.append(
            show_picture(budget_picture(plan(studio.required_workload, studio.budget)), "shares")
        )
    script = lines(
        (
            f"""
result = overlaps(schema, split={split!r})
print(result.largest)
print(made.by_space())"""
            if studio.workload is workload
            else "print(made.by_space())"
        ),
        **({"engine__lessons": "overlaps"} if studio.workload is workload else {}),
    )
    return LessonPicture(studio=studio, script=script, pictures=tuple(shown))


def expected() -> dict[str, str]:
    """The largest cosines of the example."""
    schema = Schema(
        [Attribute.categorical("reply", REPLIES[:2]), Attribute.categorical("city", CITIES[:3])]
    )
    before, after = (overlaps(schema, split=split).largest for split in (False, True))
    return {
        "Largest cosine between different tables as asked": f"{before:.3f}",
        "Largest cosine between what tables add": f"{abs(after):.3f}",
    }


LESSON = Lesson(
    name=NAME,
    tab="2. Apart",
    title="Why the pieces do not disturb each other",
    words=(
        "The table by reply and the table by city both tell the total, so asking for both pays for"
        " the total twice. After the split every set of attributes keeps only **what it adds**: its"
        " **residual space**. The cosine between two queries says how much they repeat each other."
        " Between residual spaces it is **0**. So each space can be measured in its own best way,"
        " noise in one says nothing about another, and variances add up."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=r"\cos(p, q) = \frac{p \cdot q}{\lVert p \rVert\, \lVert q \rVert}",
            plain="cos(p, q) = p·q / (|p| |q|)",
            words="1: the same question; 0: nothing in common.",
        ),
        Formula(
            latex=r"\operatorname{Var}(q) = \sum_A \operatorname{Var}(q_A), \qquad "
            r"\mathrm{pcost} = \sum_A \mathrm{pcost}_A",
            plain="Var(q) = sum of Var(q_A);  pcost = sum of pcost_A",
            words=(
                "Variances of the pieces add up, and so do the privacy costs of the residual"
                " spaces A."
            ),
        ),
    ),
    questions=(
        question(
            "Why may each residual space be optimised on its own?",
            (
                "Because the spaces have few queries.",
                (
                    "Size only decides how long it takes. A small space that overlaps could not"
                    " stand alone."
                ),
            ),
            (
                "Because every space uses its own records.",
                "Each record is in all spaces. That is why their privacy costs add up.",
            ),
            (
                (
                    "✓ Because the spaces are orthogonal: an answer in one carries no information"
                    " about another."
                ),
                (
                    "Combining two spaces makes neither more exact, and the variances of the pieces"
                    " add up."
                ),
            ),
        ),
        question(
            "You publish the table by reply and the table by city, each measured alone. What is"
            " paid for twice?",
            ("✓ The total.", "Both tables tell it. It is the only residual space that they share."),
            (
                "Nothing.",
                "Adding up either table gives the number of all records, so that it is told twice.",
            ),
            ("Every cell.", "A count by reply says nothing of a city beyond the total."),
        ),
        question(
            "How many residual spaces do all tables of three attributes have together?",
            (
                "3.",
                (
                    "Those are the attributes alone. Pairs, the triple and the total have spaces of"
                    " their own."
                ),
            ),
            ("6.", "Count the sets of attributes, with the empty one and the full one."),
            ("✓ 8.", "One for every set of attributes: 2 × 2 × 2, from the total to all three."),
        ),
    ),
    expected=expected,
    goals=(
        "Read from a table of cosines which questions repeat each other.",
        "Explain that budgets of the spaces add up, and that variances of the pieces add up too.",
    ),
    discussion=(
        "Why do cells of one table overlap with each other after the split, but not before?",
        "Which space takes most of the budget when there are more cities? Why?",
    ),
)
