"""Lesson 5: a proof that nobody can do better."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine.lessons import contest
from engine.lessons.examples import FAMILIES, SIZES
from engine.workload import Attribute, Schema, Workload
from pages.parts.lessons.lesson import Formula, Lesson, LessonPicture, lines, question, show_picture
from pages.parts.lessons.url_state import dial
from pages.parts.shell.history import RequestState

NAME = "bounds"
SHARES = tuple(range(0, 101, 10))
MEANINGS = {
    "range": "every range",
    "prefix": "everything up to a cell",
    "circular": "every range on a circle",
    "marginal": "every cell",
}
STEPS = (
    "All strategies, and the **singular value bound**: the same weight for every cell.",
    (
        "**Other weights**: move them from equal to best. Each position proves a bound, and each of"
        " them is true."
    ),
)


def picture(step: int) -> LessonPicture:
    """Draw all strategies and the bound that the chosen weights prove."""
    one, two, three = st.columns([2, 1, 2])
    names = tuple(FAMILIES)
    name = dial(
        one.selectbox,
        "Queries",
        names,
        of=NAME,
        name="family",
        default="range",
        format_func=MEANINGS.get,
    )
    cells = dial(two.select_slider, "Cells", SIZES, of=NAME, name="cells", default=8)
    share = 0
    if step > 0:
        share = dial(
            three.select_slider,
            "Weights: equal (0%) to best (100%)",
            SHARES,
            of=NAME,
            name="share",
            default=0,
            format_func="{}%".format,
        )
    result = contest(name, cells)
    bounds = {"singular value bound": result.bound(0.0)}
    if share:
        bounds[f"bound with the weights at {share}%"] = result.bound(share / 100)
    shown = show_picture(lessons.contest_picture(result, bounds), "bounds")
    st.markdown(lessons.proof_text(result, share / 100))
    schema = Schema([Attribute.of_size("age", cells)])
    studio = RequestState(
        workload=Workload(schema).add(["age"], name), options={"centers": "tuned"}
    )
    script = lines(
        f"""
result = contest({name!r}, {cells})
print(result.bound(0.0), result.bound({share / 100!r}), result.bound())
print(result.tried[-1].rmse, made.rmse)""",
        engine__lessons="contest",
    )
    return LessonPicture(studio=studio, script=script, pictures=(shown,))


def expected() -> dict[str, str]:
    """Bounds and the best strategy of the example."""
    result = contest("range", 8)
    return {
        "Singular value bound, ranges on 8 cells": f"{result.bound(0.0):.4f}",
        "Best bound": f"{result.bound():.4f}",
        "Optimal strategy": f"{result.tried[-1].rmse:.4f}",
    }


LESSON = Lesson(
    name=NAME,
    tab="5. The bound",
    title="The bound nobody can beat",
    words=(
        "How do you know that a strategy is good? Not by trying others: there are infinitely many."
        " A **bound** is a number that no strategy of the same cost can be below, proved without"
        " looking at any strategy. The **singular value bound** needs only the queries. It gives"
        " every cell the same weight. **Other weights prove other bounds**, each of them true; the"
        " best weights prove one that the best strategy reaches. Then strategy and weights certify"
        " each other, and the search is over."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=r"\sum_q \operatorname{Var}(q) \;\ge\; \frac{1}{\mathrm{pcost}} \cdot "
            r"\frac{\left(\operatorname{tr}\,(W D_w W^{\mathsf T})^{1/2}\right)^2}{\sum_c w_c}",
            plain="sum of variances ≥ (tr (W D_w Wᵀ)^½)² / (pcost · sum of w)",
            words=(
                "True for any weights w of the cells that are not negative; W holds the queries,"
                " D_w the weights."
            ),
        ),
        Formula(
            latex=r"w_c = \tfrac1n \;\Rightarrow\; \frac{(s_1 + \dots + s_n)^2}{n}",
            plain="equal weights: (s1 + … + sn)² / n",
            words="Equal weights give the singular value bound; s are the singular values of W.",
        ),
    ),
    questions=(
        question(
            "A strategy is 1% above the singular value bound. What follows?",
            (
                "A strategy that is 1% better exists.",
                (
                    "Perhaps not: the bound may lie below everything that can be reached, as it"
                    " does for ranges."
                ),
            ),
            (
                "✓ No strategy of the same cost is more than 1% better.",
                (
                    "A bound limits all strategies, found or not. Better weights may show a smaller"
                    " gap."
                ),
            ),
            (
                "The strategy is optimal.",
                "Only when strategy and bound meet. For ranges on a circle they do.",
            ),
        ),
        question(
            "Two choices of weights prove bounds of 1.20 and 1.25 for the same queries. Which one"
            " is true?",
            ("Only the larger one.", "Both are proved. The larger one says more."),
            (
                "✓ Both.",
                (
                    "Nothing is below 1.25, so that nothing is below 1.20 either. The larger one is"
                    " the better."
                ),
            ),
            (
                "The average of both.",
                "It is true as well, but only because it is below the larger one.",
            ),
        ),
        question(
            "For which queries are equal weights already the best ones?",
            (
                "✓ For ranges on a circle.",
                "Every cell looks like every other one, so that no cell deserves more weight.",
            ),
            ("For all ranges.", "Cells in the middle are in more ranges than those at the ends."),
            (
                "For everything up to a cell.",
                "The first cell is in every query, the last one in a single one.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Tell an upper limit (a strategy) from a lower limit (a bound) on the error.",
        "Use a certificate: a strategy and weights whose numbers meet.",
    ),
    discussion=(
        "For ranges on a circle equal weights are already the best. Which symmetry is behind it?",
        "For prefixes, which cells should get more weight?",
        (
            "The studio shows such a gap for every plan. What does a gap of 3% tell you, and what"
            " does it not tell?"
        ),
    ),
)
