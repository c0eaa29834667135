"""Lesson 8: the unit of privacy, for persons with many rows."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine._format import cost, format_number
from engine.lessons import best_cap, caps_table, neighbours, of_a_person
from engine.lessons.examples import CAPS, rows_in_all
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
from pages.parts.shell import history
from pages.parts.shell.history import RequestState

NAME = "rows"
COSTS = (0.001, 0.01, 0.1, 1.0, 10.0)
STEPS = (
    (
        "Noise that is enough to hide **one row**: the law of a count without and with a person who"
        " has several rows."
    ),
    "**A cap on rows**: more of a person's rows are counted, but all counted rows must be hidden.",
)


def picture(step: int) -> LessonPicture:
    """Draw what noise for one row tells about a person with many, and what a cap costs."""
    left, middle = st.columns(2)
    mine = history.current().schema
    first = mine.rows_per_person if mine is not None and mine.rows_per_person in CAPS else 3
    rows = dial(
        left.select_slider,
        "Rows of one person, or the cap",
        CAPS,
        of=NAME,
        name="rows",
        default=first,
        always=True,
    )
    pcost = dial(
        middle.select_slider, "Privacy cost (pcost)", COSTS, of=NAME, name="pcost", default=0.01
    )
    budget = Budget(pcost=pcost)
    person = of_a_person(budget, rows)
    shown = [show_picture(lessons.neighbours_picture(neighbours(budget, rows=rows)), "person")]
    st.markdown(
        f"A budget of pcost {pcost:g} for **each row** is one of **{person.pcost:g} for a person"
        f" with {rows}**: whether that person is in can be guessed up to"
        f" **{lessons.guess_text(neighbours(person))}** of the time, one row"
        f" {lessons.guess_text(neighbours(budget))}."
    )
    if step:
        shown.append(show_picture(lessons.caps_picture(budget, rows), "caps"))
        chosen = caps_table(budget).iloc[rows - 1]
        st.markdown(
            f"With a cap of {rows}, **{chosen['rows lost']:,.0f} of {rows_in_all():,} rows** are"
            " lost and the noise has a standard error of"
            f" **{format_number(float(chosen['standard error']))} counts**. The best cap at this"
            f" budget is **{best_cap(budget)}**."
        )
    schema = Schema([Attribute.of_size("month", 12)], person="patient", rows_per_person=rows)
    script = lines(
        f"""
budget = Budget(pcost={pcost!r})
print(of_a_person(budget, {rows}).pcost, best_cap(budget))
print(caps_table(budget))
print(made.rmse)  # that of the same workload at the same budget, for {rows} rows a person""",
        engine="Budget",
        engine__lessons="best_cap caps_table of_a_person",
    )
    budget_value = Budget(pcost=pcost, rows_per_person=rows)
    studio = RequestState(
        workload=Workload(schema).add(["month"], "marginal"), budget=budget_value, options=EVENLY
    )
    return LessonPicture(studio=studio, script=script, pictures=tuple(shown))


def expected() -> dict[str, str]:
    """What one budget promises to persons with several rows, and the best caps."""
    budget = Budget(pcost=0.01)
    persons = {
        f"pcost of a person with {rows} rows, 0.01 for each": cost(of_a_person(budget, rows).pcost)
        for rows in (1, 3, 20)
    }
    return persons | {
        f"Best cap at pcost {cost:g}": str(best_cap(Budget(pcost=cost))) for cost in COSTS
    }


LESSON = Lesson(
    name=NAME,
    tab="8. Many rows",
    title="Who is protected: a row or a person?",
    words=(
        "A hospital counts visits. Most patients come once, a few come twenty times. Noise that"
        " hides **one row** does not hide a patient with twenty: all of the patient's rows move the"
        " counts together. So a budget has a **unit of privacy**: one row, or all rows of a person."
        " To protect persons, somebody must say how many rows of a person are counted at most. That"
        " **cap** is chosen before the records are seen, and the rows beyond it are lost. The"
        " visits here are invented; the Schema page asks for the column that tells whose a row is."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=r"\mathrm{pcost}_{\text{person}} = k^2\, \mathrm{pcost}_{\text{row}}",
            plain="pcost(person) = k² · pcost(row)",
            words=(
                "A person with k rows in one cell moves its count k times as far, and pcost is the"
                " square."
            ),
        ),
        Formula(
            latex=(
                r"\text{error}^2 = \Big(\sum_p \max(r_p - c, 0)\Big)^2 + \frac{c^2}{\mathrm{pcost}}"
            ),
            plain="error² = (rows lost)² + c² / pcost",
            words="Error of the total with a cap of c; r are the rows of the persons p.",
        ),
    ),
    questions=(
        question(
            "A budget of pcost 0.01 is kept for every row. What does a patient with 20 rows get?",
            (
                "0.01, like everybody.",
                "That holds for each row. All 20 of them move the counts together.",
            ),
            ("0.2.", "mu would be 20 times as large. pcost is the square of mu."),
            (
                "✓ 4.",
                (
                    "20 squared times 0.01: the twenty rows shift a count by 20, and pcost is the"
                    " square."
                ),
            ),
        ),
        question(
            "A cap is doubled at the same promise to a person. What happens to the standard error?",
            ("✓ It doubles.", "The noise must hide twice as many rows of one person."),
            (
                "It stays.",
                (
                    "The promise to a person stays, so that the noise has to grow with the rows to"
                    " be hidden."
                ),
            ),
            (
                "It becomes four times as large.",
                "The variance does. The standard error is its root.",
            ),
        ),
        question(
            "Why not choose the cap after a look at how many rows patients have?",
            ("It would be too much work.", "It would be easy, which is the danger."),
            (
                "✓ The look would tell something about the patients that no budget was spent on.",
                (
                    "A cap from the records is an answer about them. Take it from public knowledge,"
                    " or pay for it."
                ),
            ),
            ("Because the cap must be 1.", "Any cap is allowed that is fixed without the records."),
        ),
    ),
    expected=expected,
    goals=(
        "Tell what a budget promises to a row from what it promises to a person.",
        "Weigh the rows that a cap loses against the noise that it saves.",
    ),
    discussion=(
        "The best cap moves with the budget. Why?",
        "Which rows should be kept of a person who has more than the cap?",
        "What is the unit in your own data: a person, a household, a device, a firm?",
    ),
)
