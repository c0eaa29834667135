"""Lesson: reconstruction attack on exact and on noisy answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import lessons
from engine._format import format_number
from engine.figures import Picture
from engine.lessons import neighbours, published_answers, reconstruct_replies
from engine.lessons.examples import PERSONS, spread_of_answers
from engine.privacy import Budget
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
from pages.parts.lessons.url_state import DEFAULT_SEED, SEED, dial, renew_seed, seed
from pages.parts.lessons.user_workload import choose_pcost
from pages.parts.shell.history import RequestState

NAME = "attack"
COUNTS = tuple(range(2, PERSONS + 1))
COSTS = (0.1, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)
COST = 1.0  # default pcost, at which the attack fails
FEW_COUNTS = 8  # default number of exact counts in step 1, with which the attack fails
STEPS = (
    (
        "Sixteen persons replied yes or no in confidence. **Sixteen exact counts** of yes in groups"
        " are published. From these counts alone, the attack finds every reply."
    ),
    "**Fewer exact counts**: choose how many. How many does the attack need?",
    (
        "**Counts with noise**, within one budget: from 16 counts at pcost 1, the attack finds"
        " hardly more replies than chance. Raise the privacy cost until it finds all."
    ),
)


def draw_again() -> None:
    """Choose a new seed for the noise of this lesson."""
    renew_seed(NAME)


def picture(step: int) -> LessonPicture:
    """Draw the attack: on all exact answers, then on fewer exact answers, then on noisy answers."""
    left, middle, right = st.columns([2, 2, 1], vertical_alignment="bottom")
    count, budget, is_noisy = PERSONS, Budget(pcost=COST), step > 1
    if step > 0:
        count = dial(
            left.select_slider,
            "Published answers",
            COUNTS,
            of=NAME,
            name="noisy" if is_noisy else "answers",
            default=PERSONS if is_noisy else FEW_COUNTS,
        )
    if is_noisy:
        label = "Privacy cost (pcost) of all answers"
        pcost = choose_pcost(middle.select_slider, COSTS, of=NAME, default=COST, label=label)
        budget = Budget(pcost=pcost)
        right.button("Draw again", key="publish_again", on_click=draw_again, width="stretch")
    noise_seed = seed(NAME)
    attack = reconstruct_replies(
        published_answers(count, budget, seed=noise_seed) if is_noisy else published_answers(count)
    )
    # The result is above the figure, so that a class sees it without scrolling.
    result = f"The attacker finds **{attack.right} of {PERSONS}** replies."
    if is_noisy:
        guess = lessons.guess_text(neighbours(budget))
        result += (
            " Each answer has a standard error of"
            f" **{format_number(spread_of_answers(count, budget))} counts**. Any attack finds one"
            f" person's reply at most **{guess}** of the time, even with all other replies (50% is"
            " pure chance)."
        )
    st.markdown(result)
    figure = show_picture(lessons.attack_picture(attack), "attack")
    decimals = int(is_noisy)
    # Adding 0 turns -0.0 into 0.0.
    rounded_answers = [round(float(answer), decimals) + 0.0 for answer in attack.answers]
    answers_text = ", ".join(f"{answer:.{decimals}f}" for answer in rounded_answers)
    st.markdown(f"Published: {answers_text.replace('-', '−')}.")
    schema = Schema([Attribute.of_size("person", PERSONS)])
    workload = Workload(schema).add(
        ["person"], Custom(lessons.group_questions(count).astype(int).tolist())
    )
    noise_text = f", Budget(pcost={budget.pcost!r}), seed={noise_seed}" if is_noisy else ""
    call = f"published_answers({count}{noise_text})"
    script = lines(
        f"result = reconstruct_replies({call})\nprint(result.answers.round(1), result.guesses,"
        " result.right)",
        engine="Budget",
        engine__lessons="published_answers reconstruct_replies",
    )
    return LessonPicture(
        request_state=RequestState(workload=workload, budget=budget, options=UNIFORM),
        script=script,
        pictures=(figure,),
    )


def step_pictures(choices: Mapping[str, Any]) -> tuple[tuple[int, Picture], ...]:
    """Return the pictures of the handout, as pairs (step, picture)."""
    few = published_answers(choices.get("answers", FEW_COUNTS))
    noisy = published_answers(
        choices.get("noisy", PERSONS),
        Budget(pcost=choices.get("pcost", COST)),
        seed=choices.get(SEED, DEFAULT_SEED),
    )
    all_answers = (published_answers(PERSONS), few, noisy)
    return tuple(
        (step, lessons.attack_picture(reconstruct_replies(answers)))
        for step, answers in enumerate(all_answers)
    )


def expected() -> dict[str, str]:
    """Return the numbers of replies found in exact answers; with noise, the error and best guess.

    The keys are descriptions, the values the numbers as text.
    """
    exact = {
        f"Replies found with {n} exact answers": str(
            reconstruct_replies(published_answers(n)).right
        )
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
    tab="Attack",
    minutes=7,
    title="An attack, and why noise stops it",
    words=(
        "Counts look harmless: no name, no single reply. But **every exact answer is an equation**,"
        " and enough equations have one solution. The attacker knows who is in which group and"
        " solves for every reply. Removing names or rounding does not prevent this. **Noise within"
        " a privacy budget** limits every attack, including future ones."
    ),
    steps=STEPS,
    picture=picture,
    step_pictures=step_pictures,
    formulas=(
        Formula(
            latex=r"A x = y, \qquad \operatorname{rank} A = n \;\Rightarrow\; x = A^{-1} y",
            plain="A x = y; with rank n, x = A⁻¹ y",
            words=("A: group membership, y: exact answers, x: replies (1 is yes)."),
        ),
        Formula(
            latex=r"\sigma^2 = \frac{\max_p \sum_r A_{rp}^2}{\mathrm{pcost}}",
            plain="σ² = (most groups that one person is in) / pcost",
            words="Variance of each noisy answer: more answers at the same budget are noisier.",
        ),
    ),
    questions=(
        question(
            "Why does the attack succeed with 16 exact answers about 16 persons?",
            (
                "Because each answer is about one person.",
                "Each is about eight persons or all. The equations reveal the replies.",
            ),
            (
                "✓ Because 16 independent equations have one solution.",
                "Each answer adds an equation; 16 of them determine all 16 replies.",
            ),
            (
                "Because the attacker was lucky.",
                "Exact answers involve no chance: the attack always has the same result.",
            ),
        ),
        question(
            "More noisy answers are published at the same budget. How does the limit on guessing"
            " one reply change?",
            (
                "It rises: the attacker has more equations.",
                "Each equation is noisier, which compensates exactly.",
            ),
            (
                "✓ It stays the same.",
                "The budget covers all answers together; more answers are noisier.",
            ),
            (
                "It falls.",
                "The budget determines the limit, for few answers or many.",
            ),
        ),
        question(
            "Would it help to remove all names and to publish only groups of eight?",
            (
                "✓ No: the attack uses neither names nor small groups.",
                "It uses group membership, which may be public or known from other data.",
            ),
            (
                "Yes: persons in a group cannot be distinguished.",
                "Not in one group. Several overlapping groups distinguish them.",
            ),
            ("Yes, if the groups overlap.", "Overlapping groups make the attack possible."),
        ),
    ),
    expected=expected,
    goals=(
        "Explain why enough exact answers reveal every record.",
        "State what a budget guarantees against unknown attacks.",
    ),
    discussion=(
        "Fifteen answers are enough here. What else does the attacker know?",
        "At which budget does the attack succeed again? What is the standard error there?",
        "Which data about you could reveal your groups?",
    ),
)
