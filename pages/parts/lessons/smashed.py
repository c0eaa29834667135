"""Lesson 1: a query is split into pieces that add up to it."""

from __future__ import annotations

import streamlit as st

from engine import Attribute, Schema, Workload, lessons
from engine.lessons import smash
from engine.workload import Custom
from pages.parts.lessons.lesson import Choice, Lesson, Question, Shown, lines
from pages.parts.shell import show
from pages.parts.shell.state import Studio

REPLIES = ("yes", "no", "unsure", "silent")
CITIES = ("a", "b", "c", "d", "e")
STEPS = ("the query", "total", "one attribute", "the other attribute", "what only both can say")
FIRST = {"yes": ["b", "c"], "no": ["c"]}  # the query of figure 1 of the paper


def grid() -> tuple[Schema, list[list[int]]]:
    """The schema and the query that the reader chose cell by cell."""
    left, right = st.columns(2, gap="large")
    down = left.select_slider("Replies", (2, 3, 4), value=2, key="smash_rows", persist_state="session")
    across = left.select_slider("Cities", (2, 3, 4, 5), value=3, key="smash_columns", persist_state="session")
    cities, replies = CITIES[:across], REPLIES[:down]
    right.caption("Cells that the query counts, row by row; at first the example of the paper")
    query = []
    for reply in replies:
        chosen = right.pills(
            f"Reply {reply}, city",
            cities,
            default=[c for c in FIRST.get(reply, []) if c in cities],
            selection_mode="multi",
            key=f"smash_{reply}_{across}",
            persist_state="session",
        )
        query.append([int(city in chosen) for city in cities])
    return Schema([Attribute.categorical("reply", replies), Attribute.categorical("city", cities)]), query


def picture() -> Shown:
    """Draw the query, its pieces step by step, and their sum."""
    schema, query = grid()
    found = smash(schema, query)
    words = {number: f"{number}: {step}" for number, step in enumerate(STEPS)}
    step = st.select_slider(
        "Step", list(words), value=len(STEPS) - 1, format_func=words.get, key="smash_step", persist_state="session"
    )
    show.picture(lessons.smashed_picture(found, step), key="smashed", config={"displayModeBar": False})
    if step == len(found.pieces) and found.misfit < 1e-9:
        st.markdown("All four pieces added up give the query again, cell by cell.")
    workload = Workload(schema).add(schema.names, Custom([[cell for row in query for cell in row]]))
    script = lines(
        f"""
found = smash(schema, {query!r})
for piece in found.pieces:
    print(piece.name, piece.table)
print(found.added(), found.misfit)""",
        engine__lessons="smash",
    )
    return Shown(studio=Studio(workload=workload), script=script)


LESSON = Lesson(
    name="smashed",
    tab="1. Smashed",
    title="A query, smashed",
    words=(
        "A counting query marks the cells that it counts. Its **piece for the total** is the average mark. Its **piece "
        "for one attribute** is the average along the other attribute, less the piece for the total. What is left is "
        "the **piece that only both attributes together can say**. Each piece is answered from its own small table, "
        "and the four answers add up to the answer of the query. Choose the cells, and move through the steps."
    ),
    picture=picture,
    question=Question(
        text="A query counts 4 of the 12 cells of a 3 × 4 table. What is its piece for the total?",
        choices=(
            Choice(text="4.", feedback="That is the sum of the marks. The piece is their average over all cells."),
            Choice(
                text="1/3.",
                feedback="It is the average mark, 4/12. Times the number of all records it is the first guess.",
                right=True,
            ),
            Choice(
                text="It depends on which cells they are.",
                feedback="The place of the marks changes the other pieces. Their average is the same everywhere.",
            ),
        ),
    ),
    goals=(
        "Compute the pieces of a query on a small table by averaging and centering.",
        "Say why the answers of the pieces add up to the answer of the query.",
    ),
    discussion=(
        "Choose a whole row. Which pieces become zero, and why does that make the query cheap?",
        "A query on k attributes has 2^k pieces. Which of them do two queries on overlapping attributes share?",
    ),
)
