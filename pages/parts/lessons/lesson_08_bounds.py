"""Lesson: lower bounds on the error of every strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine.figures import Picture
from engine.lessons import contest
from engine.lessons.examples import FAMILIES, SIZES
from engine.workload import Attribute, Schema, Workload
from pages.parts.lessons.lesson import Formula, Lesson, LessonPicture, lines, question, show_picture
from pages.parts.lessons.url_state import dial
from pages.parts.shell.history import RequestState

NAME = "bounds"
SHARES = tuple(range(0, 101, 10))
MEANINGS = {
    "range": "all ranges",
    "prefix": "all prefixes",
    "circular": "all ranges on a circle",
    "marginal": "all cells",
}
STEPS = (
    "All strategies, and the **singular value bound**: equal weights for all cells.",
    "**Other weights**: move them from equal to best. Each position proves a valid bound.",
)


def picture(step: int) -> LessonPicture:
    """Draw the errors of all strategies and the lower bound that the chosen weights prove."""
    queries_column, cells_column, weights_column = st.columns([2, 1, 2])
    names = tuple(FAMILIES)
    name = dial(
        queries_column.selectbox,
        "Queries",
        names,
        of=NAME,
        name="family",
        default="range",
        format_func=MEANINGS.get,
    )
    cells = dial(cells_column.select_slider, "Cells", SIZES, of=NAME, name="cells", default=8)
    share = 0
    if step > 0:
        share = dial(
            weights_column.select_slider,
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
    figure = show_picture(lessons.contest_picture(result, bounds), "bounds")
    st.markdown(lessons.proof_text(result, share / 100))
    schema = Schema([Attribute.of_size("age", cells)])
    request_state = RequestState(
        workload=Workload(schema).add(["age"], name), options={"centers": "tuned"}
    )
    script = lines(
        f"""
result = contest({name!r}, {cells})
print(result.bound(0.0), result.bound({share / 100!r}), result.bound())
print(result.results[-1].rmse, workload_plan.rmse)""",
        engine__lessons="contest",
    )
    return LessonPicture(request_state=request_state, script=script, pictures=(figure,))


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of the handout, as pairs (step, picture)."""
    result = contest(choices.get("family", "range"), choices.get("cells", 8))
    share = choices.get("share", 0) or SHARES[-1]
    bounds = {"singular value bound": result.bound(0.0)}
    better = bounds | {f"bound with the weights at {share}%": result.bound(share / 100)}
    return (0, lessons.contest_picture(result, bounds)), (
        1,
        lessons.contest_picture(result, better),
    )


def expected() -> dict[str, str]:
    """Return the lower bounds and the smallest error for all ranges on 8 cells.

    The keys are descriptions, the values the numbers as text.
    """
    result = contest("range", 8)
    return {
        "Singular value bound, ranges on 8 cells": f"{result.bound(0.0):.4f}",
        "Best bound": f"{result.bound():.4f}",
        "Optimal strategy": f"{result.results[-1].rmse:.4f}",
    }


LESSON = Lesson(
    name=NAME,
    tab="Bound",
    minutes=10,
    title="Lower bounds",
    words=(
        "How do you know that a strategy is good? There are infinitely many others. A **lower"
        " bound** is an error that no strategy of the same cost can be below; it is proved from the"
        " queries alone. The **singular value bound** gives all cells the same weight. **Other"
        " weights give other valid bounds**; the best weights give the error of the best strategy."
        " Then strategy and weights certify each other."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=r"\sum_q \operatorname{Var}(q) \;\ge\; \frac{1}{\mathrm{pcost}} \cdot "
            r"\frac{\left(\operatorname{tr}\,(W D_w W^{\mathsf T})^{1/2}\right)^2}{\sum_c w_c}",
            plain="sum of variances ≥ (tr (W D_w Wᵀ)^½)² / (pcost · sum of w)",
            words=(
                "For any nonnegative weights w of the cells; W: queries, D_w: diagonal matrix of w."
            ),
        ),
        Formula(
            latex=r"w_c = \tfrac1n \;\Rightarrow\; \frac{(s_1 + \dots + s_n)^2}{n}",
            plain="equal weights: (s1 + … + sn)² / n",
            words="Singular value bound (equal weights); s: singular values of W.",
        ),
    ),
    questions=(
        question(
            "A strategy is 1% above the singular value bound. What follows?",
            (
                "A strategy that is 1% better exists.",
                "Not necessarily: no strategy may reach the bound, as for ranges.",
            ),
            (
                "✓ No strategy of the same cost is more than 1% better.",
                "The bound limits all strategies. Better weights may show a smaller gap.",
            ),
            (
                "The strategy is optimal.",
                "Only if its error equals the bound, as for ranges on a circle.",
            ),
        ),
        question(
            "Two choices of weights give bounds of 1.20 and 1.25 for the same queries. Which one is"
            " valid?",
            ("Only the larger one.", "Both are valid. The larger one is more informative."),
            (
                "✓ Both.",
                "If no error is below 1.25, none is below 1.20. The larger bound is better.",
            ),
            (
                "Only the average of both.",
                "It is valid because it is below the larger one, but so are both bounds.",
            ),
        ),
        question(
            "For which queries are equal weights optimal?",
            (
                "✓ For ranges on a circle.",
                "By symmetry, no cell needs more weight than another.",
            ),
            ("For all ranges.", "Cells in the middle are in more ranges than those at the ends."),
            (
                "For all prefixes.",
                "The first cell is in all queries, the last one only in one.",
            ),
        ),
    ),
    expected=expected,
    goals=(
        "Distinguish an upper limit (a strategy) from a lower limit (a bound) on the error.",
        "Use a certificate of optimality: a strategy and weights with equal values.",
    ),
    discussion=(
        "For ranges on a circle, equal weights are optimal. Which symmetry is the reason?",
        "For prefixes, which cells should get more weight?",
        "The app shows such a gap for every plan. What does a gap of 3% mean, and what not?",
    ),
)
