"""Lesson 2: pieces of different sets of attributes have nothing in common."""

from __future__ import annotations

import streamlit as st

from engine import Attribute, Schema, Workload, lessons, plan
from engine.figures import budget_picture
from engine.lessons import overlaps, smash
from engine.workload import subsets
from pages.parts.lessons.lesson import Choice, Lesson, Question, Shown, lines
from pages.parts.lessons.smashed import CITIES, REPLIES
from pages.parts.shell import show
from pages.parts.shell.state import Studio

HOW = {"Tables as people ask for them": False, "What each table adds": True}


def picture() -> Shown:
    """Draw the cosines between all cells of all tables, and what the pieces cost."""
    left, middle, right = st.columns([1, 1, 2])
    down = left.select_slider("Replies", (2, 3, 4), value=2, key="apart_rows", persist_state="session")
    across = middle.select_slider("Cities", (2, 3, 4, 5), value=3, key="apart_columns", persist_state="session")
    how = right.radio("Compare", list(HOW), horizontal=True, key="apart_how", persist_state="session")
    schema = Schema([Attribute.categorical("reply", REPLIES[:down]), Attribute.categorical("city", CITIES[:across])])
    workload = Workload(schema)
    for space in subsets(schema.names):
        workload = workload.add(space, "marginal")
    studio = Studio(workload=workload)
    show.picture(lessons.overlap_picture(overlaps(schema, split=HOW[how])), key="overlaps")
    costs = st.radio(
        "What it costs",
        ["The pieces of one query", "All cells of all tables"],
        horizontal=True,
        key="apart_costs",
        persist_state="session",
    )
    if costs == "The pieces of one query":
        query = [[int(c >= 1 and (r == 0 or c == across - 1)) for c in range(across)] for r in range(down)]
        show.picture(lessons.cost_picture(smash(schema, query)), key="costs", config={"displayModeBar": False})
    else:
        found = budget_picture(plan(workload, studio.budget))
        show.picture(found, key="shares", config={"displayModeBar": False})
    script = lines(
        f"""
found = overlaps(schema, split={HOW[how]!r})
print(found.largest)
print(made.by_space())""",
        engine__lessons="overlaps",
    )
    return Shown(studio=studio, script=script)


LESSON = Lesson(
    name="apart",
    tab="2. Apart",
    title="Why the pieces do not disturb each other",
    words=(
        "The table by reply and the table by city both tell the total, so asking for both pays for the total twice. "
        "After the split every set of attributes keeps only **what it adds**: its **residual space**. The cosine "
        "between two queries says how much they repeat each other. Between residual spaces it is **0**. So each space "
        "can be measured in its own best way, noise in one says nothing about another, and variances add up."
    ),
    picture=picture,
    question=Question(
        text="Why may each residual space be optimised on its own?",
        choices=(
            Choice(
                text="Because the spaces have few queries.",
                feedback="Size only decides how long it takes. A small space that overlaps could not stand alone.",
            ),
            Choice(
                text="Because every space uses its own records.",
                feedback="Each record is in all spaces. That is why their privacy costs add up.",
            ),
            Choice(
                text="Because the spaces are orthogonal: an answer in one carries no information about another.",
                feedback="Combining two spaces makes neither more exact, and the variances of the pieces add up.",
                right=True,
            ),
        ),
    ),
    goals=(
        "Read from a table of cosines which questions repeat each other.",
        "Explain that budgets of the spaces add up, and that variances of the pieces add up too.",
    ),
    discussion=(
        "Why do cells of one table overlap with each other after the split, but not before?",
        "Which space takes most of the budget when there are more cities? Why?",
    ),
)
