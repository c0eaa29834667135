"""Lesson: decomposition of a query into pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine.figures import Picture
from engine.lessons import decompose_query
from engine.workload import Attribute, Custom, Schema, Workload
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
from pages.parts.shell.history import RequestState

NAME = "pieces"
REPLIES = ("yes", "no", "unsure", "silent")
CITIES = ("a", "b", "c", "d", "e")
STEPS = (
    "A **query** and its **four pieces**: in every cell, the pieces add up to the query.",
    "Only the **piece for the total**: the mean of all cells.",
    "With the **piece for the reply**: mean of each row, minus the piece for the total.",
    "With the **piece for the city**: the same for the columns.",
    "With the **interaction**: the remainder. The sum is the query again.",
)
PAPER_QUERY = {"yes": ["b", "c"], "no": ["c"]}  # figure 1 of the paper


def grid() -> tuple[Schema, list[list[int]]]:
    """Draw widgets that choose the cells of a query; return the schema and the query.

    The query has one row per reply and one column per city; its entries are 1 for counted cells.
    """
    left, right = st.columns(2, gap="large")
    down = dial(left.select_slider, "Replies", (2, 3, 4), of=NAME, name="rows", default=2)
    across = dial(left.select_slider, "Cities", (2, 3, 4, 5), of=NAME, name="columns", default=3)
    cities, replies = CITIES[:across], REPLIES[:down]
    right.caption("Counted cells by row; the default is the example of the paper")
    query = []
    for reply in replies:
        default = [c for c in PAPER_QUERY.get(reply, []) if c in cities]
        label, name = f"Reply {reply}, city", f"{reply}_{across}"
        chosen = dial(
            right.pills, label, cities, of=NAME, name=name, default=default, selection_mode="multi"
        )
        query.append([int(city in chosen) for city in cities])
    return _schema(down, across)[0], query


def _schema(n_rows: int, n_columns: int) -> tuple[Schema, tuple[str, ...]]:
    """Return the schema of a table with one row per reply and one column per city, and the cities."""
    replies, cities = REPLIES[:n_rows], CITIES[:n_columns]
    schema = Schema(
        [Attribute.categorical("reply", replies), Attribute.categorical("city", cities)]
    )
    return schema, cities


def picture(step: int) -> LessonPicture:
    """Draw a query, its pieces (one per set of attributes) and the sum of the drawn pieces.

    Step 0 draws all four pieces, step k the first k.
    """
    schema, query = grid()
    decomposition = decompose_query(schema, query)
    n_pieces = step or len(decomposition.pieces)
    figure = show_picture(lessons.decomposition_picture(decomposition, n_pieces), "pieces")
    if n_pieces == len(decomposition.pieces) and decomposition.misfit < 1e-9:
        st.markdown("The four pieces add up to the query in every cell.")
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
        request_state=RequestState(workload=workload, options=UNIFORM),
        script=script,
        pictures=(figure,),
    )


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of the handout, as pairs (step, picture)."""
    n_rows, n_columns = choices.get("rows", 2), choices.get("columns", 3)
    schema, cities = _schema(n_rows, n_columns)
    query = []
    for reply in REPLIES[:n_rows]:
        chosen = choices.get(f"{reply}_{n_columns}", PAPER_QUERY.get(reply, []))
        query.append([int(city in chosen) for city in cities])
    decomposition = decompose_query(schema, query)
    return tuple(
        (step, lessons.decomposition_picture(decomposition, step or len(decomposition.pieces)))
        for step in range(len(STEPS))
    )


def expected() -> dict[str, str]:
    """Return the values of the four pieces of the paper's query in the first cell, and their sum.

    The keys are descriptions, the values the numbers as text.
    """
    schema = Schema(
        [Attribute.categorical("reply", REPLIES[:2]), Attribute.categorical("city", CITIES[:3])]
    )
    table = lessons.decomposition_picture(decompose_query(schema, [[0, 1, 1], [0, 0, 1]]), 4).table
    first = table.iloc[0]
    return {f"{column}, reply yes and city a": str(first[column]) for column in table.columns[3:]}


LESSON = Lesson(
    name=NAME,
    tab="Pieces",
    minutes=8,
    title="Decomposition of a query",
    words=(
        "A counting query has a 1 in every cell that it counts, else 0. Its **piece for the total**"
        " is the mean of all cells. Its **piece for an attribute** is the mean along the other"
        " attribute, minus the piece for the total. The remainder is the **interaction**. Each"
        " piece is answered from a smaller table, and the four answers add up to the answer of the"
        " query. Choose the cells and move through the steps."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=r"q = q_\varnothing + q_{1} + q_{2} + q_{12}",
            plain="q = q() + q(1) + q(2) + q(1,2)",
            words=(
                "A query on two attributes is the sum of its pieces, one per set of attributes."
            ),
        ),
        Formula(
            latex=r"q_\varnothing = \frac{1}{n_1 n_2} \sum_{i,j} q_{ij}, \qquad "
            r"q_1(i) = \frac{1}{n_2} \sum_j q_{ij} - q_\varnothing",
            plain="q() = mean of all q(i,j);  q(1)(i) = mean of row i - q()",
            words=("A piece is the mean over all other attributes, minus all smaller pieces."),
        ),
    ),
    questions=(
        question(
            "A query counts 4 of the 12 cells of a 3 × 4 table. What is its piece for the total?",
            ("4.", "That is the sum. The piece is the mean of all cells."),
            (
                "✓ 1/3.",
                "It is the mean of all cells, 4/12.",
            ),
            (
                "It depends on the cells.",
                "The position of the cells changes the other pieces, but not the mean.",
            ),
        ),
        question(
            "A query counts all cells of one row. Which of its pieces are zero?",
            (
                "None.",
                "All columns are equal, so that two pieces are zero.",
            ),
            (
                "✓ The piece for the city and the interaction.",
                "All columns are equal: nothing depends on the city. This makes the query cheap.",
            ),
            (
                "The piece for the total.",
                "The query counts some cells, so that the mean is above 0.",
            ),
        ),
        question(
            "What is the sum of the piece for the reply over its cells?",
            (
                "✓ 0.",
                "It contains only differences from the mean.",
            ),
            (
                "The answer of the query.",
                "The answer is the sum of all pieces, applied to the records.",
            ),
            (
                "1.",
                "Only centers add up to 1. A piece adds up to 0 along each of its attributes.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Compute the pieces of a query on a small table by averaging and centering.",
        "Explain why the answers of the pieces add up to the answer of the query.",
    ),
    discussion=(
        "Choose all cells of a row. Which pieces are zero, and why is the query then cheap?",
        "A query on k attributes has 2^k pieces. Which of them are shared by two queries?",
    ),
)
