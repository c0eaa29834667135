"""Lesson 5: a proof that nobody can do better."""

from __future__ import annotations

import streamlit as st

from engine import Attribute, Schema, Workload, lessons
from engine.lessons import FAMILIES, SIZES, contest
from pages.parts.lessons.lesson import Choice, Lesson, Question, Shown, lines
from pages.parts.shell import show
from pages.parts.shell.state import Studio

SHARES = tuple(range(0, 101, 10))
MEANINGS = {
    "range": "every range",
    "prefix": "everything up to a cell",
    "circular": "every range on a circle",
    "marginal": "every cell",
}


def picture() -> Shown:
    """Draw all strategies and the bound that the chosen weights prove."""
    one, two, three = st.columns([2, 1, 2])
    name = one.selectbox(
        "Queries", FAMILIES, format_func=MEANINGS.__getitem__, key="bound_family", persist_state="session"
    )
    cells = two.select_slider("Cells", SIZES, value=8, key="bound_cells", persist_state="session")
    share = three.select_slider(
        "Weights: equal (0%) to best (100%)",
        SHARES,
        value=0,
        format_func="{}%".format,
        key="bound_share",
        persist_state="session",
    )
    found = contest(name, cells)
    bounds = {"singular value bound": found.bound(0.0)}
    if share:
        bounds[f"bound with the weights at {share}%"] = found.bound(share / 100)
    show.picture(lessons.contest_picture(found, bounds), key="bounds", config={"displayModeBar": False})
    st.markdown(lessons.proof_text(found, share / 100))
    schema = Schema([Attribute.of_size("age", cells)])
    studio = Studio(workload=Workload(schema).add(["age"], name), options={"centers": "tuned"})
    script = lines(
        f"""
found = contest({name!r}, {cells})
print(found.bound(0.0), found.bound({share / 100!r}), found.bound())
print(found.tried[-1].rmse, made.rmse)""",
        engine__lessons="contest",
    )
    return Shown(studio=studio, script=script)


LESSON = Lesson(
    name="bounds",
    tab="5. The bound",
    title="The bound nobody can beat",
    words=(
        "How do you know that a strategy is good? Not by trying others: there are infinitely many. A **bound** is a "
        "number that no strategy of the same cost can be below, proved without looking at any strategy. The **singular "
        "value bound** needs only the queries. It gives every cell the same weight. **Other weights prove other "
        "bounds**, each of them true; the best weights prove one that the best strategy reaches. Then strategy and "
        "weights certify each other, and the search is over."
    ),
    picture=picture,
    question=Question(
        text="A strategy is 1% above the singular value bound. What follows?",
        choices=(
            Choice(
                text="A strategy that is 1% better exists.",
                feedback="Perhaps not: the bound may lie below everything that can be reached, as it does for ranges.",
            ),
            Choice(
                text="No strategy of the same cost is more than 1% better.",
                feedback="A bound limits all strategies, found or not. Better weights may show a smaller gap.",
                right=True,
            ),
            Choice(
                text="The strategy is optimal.",
                feedback="Only when strategy and bound meet. For ranges on a circle they do.",
            ),
        ),
    ),
    goals=(
        "Tell an upper limit (a strategy) from a lower limit (a bound) on the error.",
        "Use a certificate: a strategy and weights whose numbers meet.",
    ),
    discussion=(
        "For ranges on a circle equal weights are already the best. Which symmetry is behind it?",
        "For prefixes, which cells should get more weight?",
        "The studio shows such a gap for every plan. What does a gap of 3% tell you, and what does it not tell?",
    ),
)
