"""Lesson: unit of privacy and contribution bounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine._format import cost, format_number, pluralize
from engine.figures import Picture
from engine.lessons import best_cap, caps_table, neighbours, person_budget
from engine.lessons.examples import CAPS, rows_in_all
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
from pages.parts.lessons.user_workload import COST_HELP
from pages.parts.shell.history import RequestState

NAME = "rows"
COSTS = (0.001, 0.01, 0.1, 1.0, 10.0)
COST = 0.01  # default pcost
STEPS = (
    (
        "Noise for **one row**: the distribution of a count without and with a person who has"
        " several rows."
    ),
    "**A cap on rows per person**: a larger cap counts more rows, but needs more noise.",
)


def picture(step: int) -> LessonPicture:
    """Draw the lesson: in step 0 a count with and without a person, then the error of each cap."""
    left, middle = st.columns(2)
    rows = dial(
        left.select_slider,
        "Rows per person" if step == 0 else "Cap: rows counted per person",
        CAPS,
        of=NAME,
        name="rows",
        default=max(CAPS),
    )
    unit = "row" if step == 0 else "person"
    pcost = dial(
        middle.select_slider,
        f"Privacy cost (pcost) per {unit}",
        COSTS,
        of=NAME,
        name="pcost",
        default=COST,
        help=COST_HELP,
    )
    budget = Budget(pcost=pcost)
    person = person_budget(budget, rows)
    rows_text = pluralize(rows, "row")
    # In step 0, the chosen privacy cost is the cost of one row. In step 1, it is the cost of one
    # person, however many rows the cap allows.
    if step == 0:
        st.markdown(
            f"pcost {pcost:g} for each row is **{person.pcost:g} for a person with {rows_text}**."
            f" An attacker's success rate is at most **{lessons.guess_text(neighbours(person))}**"
            f" for the person and {lessons.guess_text(neighbours(budget))} for one row."
        )
        person_picture = lessons.neighbours_picture(neighbours(budget, rows=rows))
        pictures = [show_picture(person_picture, "person")]
    else:
        cap = caps_table(budget).iloc[rows - 1]
        st.markdown(
            f"A cap of {rows_text} drops **{cap['rows lost']:,.0f} of {rows_in_all():,} rows** and"
            f" gives a standard error of **{format_number(float(cap['standard error']))} counts**."
            f" Best cap at this budget: **{best_cap(budget)}**."
        )
        pictures = [show_picture(lessons.caps_picture(budget, rows), "caps")]
    schema = Schema([Attribute.of_size("month", 12)], person="patient", rows_per_person=rows)
    script = lines(
        f"""
budget = Budget(pcost={pcost!r})
print(person_budget(budget, {rows}).pcost, best_cap(budget))
print(caps_table(budget))
print(workload_plan.rmse)  # with {rows} rows per person""",
        engine="Budget",
        engine__lessons="best_cap caps_table person_budget",
    )
    budget_value = Budget(pcost=pcost, rows_per_person=rows)
    request_state = RequestState(
        workload=Workload(schema).add(["month"], "marginal"), budget=budget_value, options=UNIFORM
    )
    return LessonPicture(request_state=request_state, script=script, pictures=tuple(pictures))


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of the handout, as pairs (step, picture)."""
    budget, rows = Budget(pcost=choices.get("pcost", COST)), choices.get("rows", max(CAPS))
    return (
        (0, lessons.neighbours_picture(neighbours(budget, rows=rows))),
        (1, lessons.caps_picture(budget, rows)),
    )


def expected() -> dict[str, str]:
    """Return the privacy cost of persons with several rows, and the best cap at each budget.

    The keys are descriptions, the values the numbers as text.
    """
    budget = Budget(pcost=0.01)
    persons = {
        f"pcost of a person with {pluralize(rows, 'row')}, 0.01 per row": cost(
            person_budget(budget, rows).pcost
        )
        for rows in (1, 3, 20)
    }
    return persons | {
        f"Best cap at pcost {pcost:g}": str(best_cap(Budget(pcost=pcost))) for pcost in COSTS
    }


LESSON = Lesson(
    name=NAME,
    tab="Several rows",
    minutes=8,
    title="Who is protected: a row or a person?",
    words=(
        "A hospital counts visits. Most patients come once, a few twenty times. Noise that hides"
        " **one row** does not hide a patient with twenty. So a budget has a **unit of privacy**:"
        " one row, or all rows of a person. To protect persons, the rows per person need a **cap**,"
        " chosen before the records are seen; further rows are dropped. The visits here are"
        " invented."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=r"\mathrm{pcost}_{\text{person}} = k^2\, \mathrm{pcost}_{\text{row}}",
            plain="pcost(person) = k² · pcost(row)",
            words=(
                "k rows in one cell change its count by k, and pcost is proportional to the square."
            ),
        ),
        Formula(
            latex=(
                r"\text{error}^2 = \Big(\sum_p \max(r_p - c, 0)\Big)^2 + \frac{c^2}{\mathrm{pcost}}"
            ),
            plain="error² = (rows lost)² + c² / pcost",
            words="Error of the total with cap c, where person p has r_p rows.",
        ),
    ),
    questions=(
        question(
            "The budget is pcost 0.01 per row. What is it for a patient with 20 rows?",
            (
                "0.01, as for every patient.",
                "That is for each row. All 20 rows change the counts together.",
            ),
            (
                "0.2.",
                "Twenty rows shift a count by 20, and pcost grows with the square of the shift.",
            ),
            (
                "✓ 4.",
                "20 squared times 0.01: twenty rows change a count by 20.",
            ),
        ),
        question(
            "The cap doubles, with the same guarantee to a person. How does the standard error"
            " change?",
            ("✓ It doubles.", "The noise must hide twice as many rows of one person."),
            (
                "It stays the same.",
                "The guarantee stays the same, but the noise must hide more rows.",
            ),
            (
                "It becomes four times as large.",
                "The variance does. The standard error is its root.",
            ),
        ),
        question(
            "Why not choose the cap from the numbers of rows in the records?",
            ("It is too much work.", "It is easy, but it is not private."),
            (
                "✓ The cap would reveal something about the patients without spending budget.",
                "A cap from the records is an answer about them. Use public knowledge instead.",
            ),
            ("Because the cap must be 1.", "Any cap chosen without the records is allowed."),
        ),
    ),
    expected=expected,
    goals=(
        "Distinguish the guarantee to a row from the guarantee to a person.",
        "Balance dropped rows against noise when choosing a cap.",
    ),
    discussion=(
        "The best cap depends on the budget. Why?",
        "Which rows of a person above the cap should be counted?",
        "What is the unit in your data: a person, a household, a device, a firm?",
    ),
)
