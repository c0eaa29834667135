"""Lesson 7: exact answers give people away, noisy ones do not."""

from __future__ import annotations

import streamlit as st

from engine import lessons
from engine._arrays import Array
from engine._format import format_number
from engine.lessons import neighbours, published_answers, reconstruct_replies
from engine.lessons.examples import PERSONS, spread_of_answers
from engine.privacy import Budget
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
from pages.parts.lessons.user_workload import user_workload_cost
from pages.parts.shell import history
from pages.parts.shell.history import RequestState

NAME = "attack"
COUNTS = tuple(range(2, PERSONS + 1))
COSTS = (0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)
HEARD = "learn_heard"
STEPS = (
    (
        "Sixteen persons said yes or no in confidence. **Exact answers** are published: how many of"
        " a group said yes. Add answers until nothing is hidden."
    ),
    (
        "**The same answers with noise**, all of them together at one budget: the same attack now"
        " fails."
    ),
)


def noisy_answers(count: int, budget: Budget) -> Array:
    """The noisy answers on screen, shape (count,); other questions or another budget draw new ones."""
    cached: tuple[int, Budget, Array] | None = st.session_state.get(HEARD)
    if cached is None or cached[:2] != (count, budget):
        cached = st.session_state[HEARD] = (count, budget, published_answers(count, budget))
    return cached[2]


def publish_again() -> None:
    """Forget the noisy answers on screen, so that new ones are drawn."""
    st.session_state.pop(HEARD, None)


def picture(step: int) -> LessonPicture:
    """Draw what an attacker makes of exact answers, then of noisy ones."""
    left, middle, right = st.columns([2, 2, 1], vertical_alignment="bottom")
    count = dial(
        left.select_slider, "Published answers", COUNTS, of=NAME, name="answers", default=4
    )
    budget = history.current().budget
    if step:
        label = "Privacy cost (pcost) of all answers"
        budget = Budget(pcost=user_workload_cost(middle.select_slider, COSTS, of=NAME, label=label))
        right.button("Draw again", key="publish_again", on_click=publish_again, width="stretch")
    else:
        budget = Budget(pcost=budget.pcost)
    attack = reconstruct_replies(noisy_answers(count, budget) if step else published_answers(count))
    shown = show_picture(lessons.attack_picture(attack), "attack")
    words_of_answers = ", ".join(format_number(float(answer)) for answer in attack.answers)
    st.markdown(
        f"Published: {words_of_answers}. The attacker has **{attack.right} of {PERSONS}** right."
    )
    if step:
        guess = lessons.guess_text(neighbours(budget))
        st.markdown(
            "Each answer has a standard error of"
            f" **{format_number(spread_of_answers(count, budget))} counts**. Whatever the attack,"
            f" of one person nobody is right more than **{guess}** of the time if yes and no are as"
            " likely, others' replies known or not."
        )
    schema = Schema([Attribute.of_size("person", PERSONS)])
    workload = Workload(schema).add(
        ["person"], Custom(lessons.group_questions(count).astype(int).tolist())
    )
    call = f"published_answers({count}, {f'Budget(pcost={budget.pcost!r})' if step else None})"
    script = lines(
        f"result = reconstruct_replies({call})\nprint(result.answers.round(1), result.guesses,"
        " result.right)",
        engine="Budget",
        engine__lessons="published_answers reconstruct_replies",
    )
    return LessonPicture(
        studio=RequestState(workload=workload, budget=budget, options=EVENLY),
        script=script,
        pictures=(shown,),
    )


def expected() -> dict[str, str]:
    """How many replies exact answers give away, and what noise leaves."""
    exact = {
        f"Right with {n} exact answers": str(reconstruct_replies(published_answers(n)).right)
        for n in (4, 8, 16)
    }
    one = Budget(pcost=1.0)
    return exact | {
        "Standard error of 16 answers at pcost 1": (
            f"{format_number(spread_of_answers(16, one))} counts"
        ),
        "Best guess of one reply at pcost 1": lessons.guess_text(neighbours(one)),
    }


LESSON = Lesson(
    name=NAME,
    tab="7. Attack",
    title="An attack, and why noise stops it",
    words=(
        "Counts look harmless: no name, no single reply. But **every exact answer is an equation**,"
        " and enough equations have one solution. Here the attacker knows who the sixteen persons"
        " are and which groups were counted, and solves for what each of them said. Leaving out"
        " names does not stop that, nor does rounding a little. **Noise that is paid for by a"
        " budget** limits every attack, those included that nobody has thought of yet."
    ),
    steps=STEPS,
    picture=picture,
    formulas=(
        Formula(
            latex=r"A x = y, \qquad \operatorname{rank} A = n \;\Rightarrow\; x = A^{-1} y",
            plain="A x = y; with rank n, x = A⁻¹ y",
            words=(
                "A tells who is in which group, y are the exact answers, x the replies: 1 is yes."
            ),
        ),
        Formula(
            latex=r"\sigma^2 = \frac{\max_p \sum_r A_{rp}^2}{\mathrm{pcost}}",
            plain="σ² = (most groups that one person is in) / pcost",
            words=(
                "Variance of every noisy answer: more answers at the same budget are noisier ones."
            ),
        ),
    ),
    questions=(
        question(
            "Why does the attack succeed with 16 exact answers about 16 persons?",
            (
                "Because each answer is about one person.",
                "Each is about eight persons or all. The equations do it.",
            ),
            (
                "✓ Because 16 independent equations have one solution.",
                (
                    "Every answer adds an equation; when there are as many as persons, nothing is"
                    " left open."
                ),
            ),
            (
                "Because the attacker was lucky.",
                "There is no chance in it: exact answers are attacked the same always.",
            ),
        ),
        question(
            "More noisy answers are published at the same budget. What happens to the limit on"
            " guessing one reply?",
            (
                "It rises: the attacker has more equations.",
                "Each of them is noisier, just enough to make up for it.",
            ),
            (
                "✓ It stays.",
                (
                    "The budget is for all answers together. Each becomes noisier when there are"
                    " more of them."
                ),
            ),
            (
                "It falls.",
                (
                    "All answers together tell as much of one person as the budget allows, few or"
                    " many."
                ),
            ),
        ),
        question(
            "Would it help to leave out all names and to publish only groups of eight?",
            (
                "✓ No: the attack uses neither names nor small groups.",
                (
                    "It needs to know who is in which group, and that may be public or guessed from"
                    " other data."
                ),
            ),
            (
                "Yes: nobody can be told apart in a group.",
                "In one group. Several groups that overlap tell them apart.",
            ),
            ("Yes, if the groups overlap.", "Overlap is what the equations are made of."),
        ),
    ),
    expected=expected,
    goals=(
        "Explain why enough exact answers reveal every record, however harmless each of them is.",
        "Say what a budget promises against attacks that are not known yet.",
    ),
    discussion=(
        "Fifteen answers are enough here. What does the attacker know besides?",
        "At which budget does the attack succeed again? What is the standard error there?",
        "Which data about you could serve as the list of who is in which group?",
    ),
)
