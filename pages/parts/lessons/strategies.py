"""Lesson 3: what is measured need not be what is asked."""

from __future__ import annotations

import streamlit as st

from engine import Attribute, Schema, Workload, lessons
from engine.lessons import SIZES, contest
from pages.parts.lessons.lesson import Choice, Lesson, Question, Shown, lines
from pages.parts.shell import show
from pages.parts.shell.state import Studio


def picture() -> Shown:
    """Draw one strategy, the errors that it leaves, and all strategies side by side."""
    left, right = st.columns([1, 2])
    cells = left.select_slider("Cells", SIZES, value=16, key="strategy_cells", persist_state="session")
    found = contest("range", cells)
    names = [tried.name for tried in found.tried]
    name = right.radio("Strategy", names, index=1, horizontal=True, key="strategy_name", persist_state="session")
    number = names.index(name)
    measured, errors = st.columns(2)
    with measured:
        show.picture(lessons.strategy_picture(found.tried[number]), key="strategy_rows")
    with errors:
        show.picture(lessons.range_errors_picture(found, number), key="strategy_errors")
    bounds = {"no strategy can be below": found.bound()}
    show.picture(lessons.contest_picture(found, bounds, name), key="strategies", config={"displayModeBar": False})
    schema = Schema([Attribute.of_size("age", cells)])
    studio = Studio(workload=Workload(schema).add(["age"], "range"), options={"centers": "tuned"})
    script = lines(
        f"""
found = contest("range", {cells})
for tried in found.tried:
    print(tried.name, tried.rmse)
print(found.bound(), made.rmse)""",
        engine__lessons="contest",
    )
    return Shown(studio=studio, script=script)


LESSON = Lesson(
    name="strategies",
    tab="3. Strategies",
    title="What a good strategy looks like",
    words=(
        "People ask for **every range** of ages. What is **measured** with noise can be something else, from which the "
        "ranges are computed. Single cells are exact for short ranges, but a long range adds up the noise of many. A "
        "**tree** or a **wavelet** covers a long range with few numbers, but every record is then counted on every "
        "level, so that each number gets more noise. **Waves** and the **optimum** find the balance. All five "
        "strategies below cost the same."
    ),
    picture=picture,
    question=Question(
        text="On 4 cells the tree has a larger error than single cells, on 32 cells a smaller one. Why?",
        choices=(
            Choice(
                text="Long ranges add up many noisy cells, while the tree grows by one level when cells double.",
                feedback="The noise of a tree grows with the number of levels, that of a long range with its length.",
                right=True,
            ),
            Choice(
                text="A tree on 32 cells has more privacy budget.",
                feedback="All strategies here cost the same, whatever the number of cells.",
            ),
            Choice(
                text="On 32 cells nearly all ranges are short.",
                feedback="It is the other way round: the average range grows with the number of cells.",
            ),
        ),
    ),
    goals=(
        "Tell the workload, what is asked, from the strategy, what is measured.",
        "Name the trade between few numbers per query and few numbers per record.",
    ),
    discussion=(
        "Where in the triangle is each strategy weak?",
        "The tree gives every level the same noise. Which levels would you make more exact for long ranges?",
    ),
)
