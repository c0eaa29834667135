"""Lesson 1: a query is split into pieces that add up to it."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine.lessons import decompose_query
from engine.workload import Attribute, Custom, Schema, Workload
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
from pages.parts.shell.history import RequestState

NAME = "smashed"
REPLIES = ("yes", "no", "unsure", "silent")
CITIES = ("a", "b", "c", "d", "e")
STEPS = (
    (
        "The query alone: a bright cell is counted. Which number comes closest to it if every cell"
        " must have the same?"
    ),
    "Its **piece for the total**: the average mark, the same in every cell.",
    "Its **piece for the reply**: how far the average of a row is from the piece for the total.",
    "Its **piece for the city**: the same for the columns.",
    "**What only both can say**: all that is left. The four pieces added up are the query again.",
)
FIRST = {"yes": ["b", "c"], "no": ["c"]}  # the query of figure 1 of the paper


def grid() -> tuple[Schema, list[list[int]]]:
    """The schema and the query that the reader chose cell by cell."""
    left, right = st.columns(2, gap="large")
    down = dial(left.select_slider, "Replies", (2, 3, 4), of=NAME, name="rows", default=2)
    across = dial(left.select_slider, "Cities", (2, 3, 4, 5), of=NAME, name="columns", default=3)
    cities, replies = CITIES[:across], REPLIES[:down]
    right.caption("Cells that the query counts, row by row; at first the example of the paper")
    query = []
    for reply in replies:
        first = [c for c in FIRST.get(reply, []) if c in cities]
        label, name = f"Reply {reply}, city", f"{reply}_{across}"
        chosen = dial(
            right.pills, label, cities, of=NAME, name=name, default=first, selection_mode="multi"
        )
        query.append([int(city in chosen) for city in cities])
    return (
        Schema([Attribute.categorical("reply", replies), Attribute.categorical("city", cities)]),
        query,
    )


def picture(step: int) -> LessonPicture:
    """Draw the query, its pieces step by step, and their sum."""
    schema, query = grid()
    decomposition = decompose_query(schema, query)
    shown = show_picture(lessons.decomposition_picture(decomposition, step), "smashed")
    if step == len(decomposition.pieces) and decomposition.misfit < 1e-9:
        st.markdown("All four pieces added up give the query again, cell by cell.")
    workload = Workload(schema).add(schema.names, Custom([[cell for row in query for cell in row]]))
    script = lines(
        f"""
pieces = decompose_query(schema, {query!r})
for piece in pieces.pieces:
    print(piece.name, piece.table)
print(pieces.added(), pieces.misfit)""",
        engine__lessons="decompose_query",
    )
    return LessonPicture(
        studio=RequestState(workload=workload, options=EVENLY), script=script, pictures=(shown,)
    )


def expected() -> dict[str, str]:
    """Pieces of the example of the paper."""
    schema = Schema(
        [Attribute.categorical("reply", REPLIES[:2]), Attribute.categorical("city", CITIES[:3])]
    )
    table = lessons.decomposition_picture(decompose_query(schema, [[0, 1, 1], [0, 0, 1]]), 4).table
    first = table.iloc[0]
    return {f"{column}, reply yes and city a": str(first[column]) for column in table.columns[3:]}


LESSON = Lesson(
    name=NAME,
    tab="1. Smashed",
    title="A query, smashed",
    words=(
        "A counting query marks the cells that it counts. Its **piece for the total** is the"
        " average mark. Its **piece for one attribute** is the average along the other attribute,"
        " less the piece for the total. What is left is the **piece that only both attributes"
        " together can say**. Each piece is answered from its own small table, and the four answers"
        " add up to the answer of the query. Choose the cells, and move through the steps."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=r"q = q_\varnothing + q_{1} + q_{2} + q_{12}",
            plain="q = q() + q(1) + q(2) + q(1,2)",
            words=(
                "A query on two attributes is the sum of its pieces, one for every set of"
                " attributes."
            ),
        ),
        Formula(
            latex=r"q_\varnothing = \frac{1}{n_1 n_2} \sum_{i,j} q_{ij}, \qquad "
            r"q_1(i) = \frac{1}{n_2} \sum_j q_{ij} - q_\varnothing",
            plain="q() = mean of all q(i,j);  q(1)(i) = mean of row i - q()",
            words=(
                "A piece averages over the attributes that it leaves out and takes away all smaller"
                " pieces."
            ),
        ),
    ),
    questions=(
        question(
            "A query counts 4 of the 12 cells of a 3 × 4 table. What is its piece for the total?",
            ("4.", "That is the sum of the marks. The piece is their average over all cells."),
            (
                "✓ 1/3.",
                (
                    "It is the average mark, 4/12. Times the number of all records it is the first"
                    " guess."
                ),
            ),
            (
                "It depends on which cells they are.",
                (
                    "The place of the marks changes the other pieces. Their average is the same"
                    " everywhere."
                ),
            ),
        ),
        question(
            "A query counts one whole row of the table. Which of its pieces are zero?",
            (
                "None.",
                (
                    "Every row has the same marks in all columns, so that two pieces have nothing"
                    " to say."
                ),
            ),
            (
                "✓ The piece for the city, and the one that only both can say.",
                (
                    "All columns look alike, so that nothing depends on the city. That makes the"
                    " query cheap."
                ),
            ),
            (
                "The piece for the total.",
                "The query counts something, so that its average mark is above 0.",
            ),
        ),
        question(
            "What do the cells of the piece for the reply add up to?",
            (
                "✓ To 0.",
                (
                    "It tells only how rows differ from the average; their common part is the piece"
                    " for the total."
                ),
            ),
            (
                "To the answer of the query.",
                "The answer takes all pieces, each applied to the records.",
            ),
            (
                "To 1.",
                "Only centers add up to 1. A piece adds up to 0 along each of its attributes.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Compute the pieces of a query on a small table by averaging and centering.",
        "Say why the answers of the pieces add up to the answer of the query.",
    ),
    discussion=(
        "Choose a whole row. Which pieces become zero, and why does that make the query cheap?",
        (
            "A query on k attributes has 2^k pieces. Which of them do two queries on overlapping"
            " attributes share?"
        ),
    ),
)
