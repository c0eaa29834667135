"""The Learn page through changes of state, without a browser."""

from __future__ import annotations

from typing import Any

import pytest

from engine import Budget, Plan, plan
from engine.lessons import contest
from pages.parts.lessons.known import LESSONS
from pages.parts.lessons.lesson import Lesson
from tests.app.test_pages import Session, demo
from tests.app.test_release import wait

NAMES = [lesson.name for lesson in LESSONS]


def learn(lesson: Lesson | None = None) -> Session:
    session = Session().go("learn")
    return session if lesson is None else session.set(lesson=lesson.tab)


def by_name(name: str) -> Lesson:
    return next(lesson for lesson in LESSONS if lesson.name == name)


def tables(session: Session) -> list[Any]:
    return [d.value for d in session.app.dataframe]


def answer(session: Session, lesson: Lesson, *, right: bool) -> Session:
    choice = next(c for c in lesson.question.choices if c.right == right)
    return session.set(**{f"question_{lesson.name}": choice}).press(f"check_{lesson.name}")


def progress(session: Session) -> str:
    """Text of the progress line, which AppTest keeps as an element it does not know."""
    return " ".join(node.proto.text for node in inside(session.app.main) if node.type == "progress")


def inside(block: Any) -> list[Any]:
    """All elements of a block."""
    nodes = list(getattr(block, "children", {}).values())
    return nodes + [deeper for node in nodes for deeper in inside(node)]


def test_every_question_has_one_right_answer_and_a_word_for_the_others() -> None:
    assert len(LESSONS) == len({lesson.tab for lesson in LESSONS}) == len(set(NAMES))
    for lesson in LESSONS:
        assert [c.right for c in lesson.question.choices].count(True) == 1
        assert len({c.text for c in lesson.question.choices}) >= 3
        assert all(c.feedback.endswith(".") for c in lesson.question.choices)
        assert lesson.goals
        assert lesson.discussion


@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_a_wrong_answer_gets_a_hint_and_a_right_one_the_reason(lesson: Lesson) -> None:
    session = learn(lesson)
    assert session.app.header[0].value == lesson.title
    assert lesson.words in session.said()
    assert not session.press(f"check_{lesson.name}").app.success  # nothing was chosen, nothing happens
    assert not session.app.warning
    answer(session, lesson, right=False)
    assert "Not this one" in session.app.warning[0].value
    wrong = next(c for c in lesson.question.choices if not c.right)
    assert wrong.feedback in session.app.warning[0].value
    assert lesson.question.answer.feedback not in session.said()
    answer(session, lesson, right=True)
    assert not session.app.warning
    assert lesson.question.answer.feedback in session.app.success[0].value


def test_progress_counts_lessons_and_survives_other_pages() -> None:
    session = learn()
    for number, lesson in enumerate(LESSONS, 1):
        answer(session.set(lesson=lesson.tab), lesson, right=number % 2 == 0)
        assert f"Answered {number} of {len(LESSONS)}, {number // 2} of them right" in progress(session)
    session.go("schema").go("learn")
    assert f"Answered {len(LESSONS)} of {len(LESSONS)}, {len(LESSONS) // 2} of them right" in progress(session)
    assert f"Answered 0 of {len(LESSONS)}" in progress(learn())  # another session knows nothing of it


def test_the_next_lesson_is_one_press_away() -> None:
    session = learn()
    for lesson in LESSONS:
        assert session.app.header[0].value == lesson.title
        if lesson is not LESSONS[-1]:
            session.press(f"after_{lesson.name}")


def test_instructors_see_goals_and_answers() -> None:
    session = learn()
    assert LESSONS[2].question.answer.feedback not in session.said()
    session.set(instructor=True)
    for lesson in LESSONS:
        sheet = session.said()
        assert all(text in sheet for text in (*lesson.goals, *lesson.discussion))
        assert f"right: **{lesson.question.answer.text}**" in sheet.replace("*" * 4, "")
    assert "For instructors" in [s.value for s in session.app.subheader]
    session.set(instructor=False)
    assert "For instructors" not in [s.value for s in session.app.subheader]


@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_the_code_runs_and_makes_the_plan_that_the_studio_opens(lesson: Lesson, capsys: pytest.CaptureFixture) -> None:
    session = learn(lesson)
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert capsys.readouterr().out.strip()
    session.press(f"open_{lesson.name}")
    assert session.app.title[0].value.endswith("Preview")
    here = session.studio
    opened = plan(here.workload, here.budget, here.mechanism, **here.options)
    assert isinstance(names["made"], Plan)
    assert names["made"].hash == opened.hash
    assert "Typical error (counts)" in wait(session.go("preview")).metrics()
    assert session.press("undo").studio.workload is None


def test_the_request_before_a_lesson_comes_back() -> None:
    session = Session().set(demo="cps").press("Use this schema").go("learn").press("open_smashed")
    assert session.studio.schema.names == ("reply", "city")
    assert session.press("undo").studio.schema == demo("cps")


def test_a_query_of_ones_own_is_smashed() -> None:
    session = learn()
    assert "add up" in session.said()
    session.set(smash_rows=3, smash_columns=4).set(smash_yes_4=["a"], smash_no_4=[], smash_unsure_4=["d", "a"])
    assert [row.tolist() for row in query(session)] == [[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
    session.set(smash_step=1)
    assert "All four pieces" not in session.said()
    assert "All four pieces" in session.set(smash_step=4).said()


def query(session: Session) -> list[Any]:
    names: dict = {}
    exec(session.app.code[-1].value, names)
    return list(names["found"].query)


def test_an_empty_query_says_what_to_do() -> None:
    session = learn().set(smash_yes_3=[], smash_no_3=[])
    assert "Choose at least one cell" in session.errors()
    button = next(b for b in session.app.button if b.key == "open_smashed")
    assert button.disabled
    assert "Opening has to wait" in session.said()
    assert not session.set(smash_yes_3=["a"]).errors()


def test_choices_of_a_lesson_survive_a_look_at_another() -> None:
    session = learn().set(smash_yes_3=["a"]).set(lesson=LESSONS[1].tab).set(lesson=LESSONS[0].tab)
    assert [row.tolist() for row in query(session)] == [[1, 0, 0], [0, 0, 1]]


def test_residual_spaces_do_not_overlap() -> None:
    session = learn(by_name("apart"))
    session.set(twin_overlaps=True)
    assert tables(session)[0].iloc[0, 2] == pytest.approx(0.5**0.5)  # all records and the reply yes
    session.set(apart_how="What each table adds", apart_rows=3)
    assert tables(session)[0].iloc[0, 2] == 0
    session.set(apart_costs="All cells of all tables", twin_shares=True)
    assert tables(session)[-1]["share"].sum() == pytest.approx(1.0)


def test_the_plan_of_the_ranges_is_the_optimum_of_the_lesson() -> None:
    session = learn(by_name("strategies")).set(strategy_cells=8, strategy_name="Wavelet", twin_strategy_rows=True)
    assert tables(session)[0].shape == (8, 9)
    session.press("open_strategies")
    here = session.studio
    made = plan(here.workload, here.budget, here.mechanism, **here.options)
    assert made.rmse == pytest.approx(contest("range", 8).tried[-1].rmse, rel=1e-4)


def test_drawing_again_draws_something_else() -> None:
    session = learn(by_name("noise")).set(twin_outcomes=True)
    first = tables(session)[0]
    assert tables(session.set(tutorial=False))[0].equals(first)  # a rerun is no draw
    second = tables(session.press("draw_again"))[0]
    assert first["true count"].equals(second["true count"])
    assert not first.equals(second)
    words = session.set(noise_pcost=2.0).app.table[0].value
    assert words["value"].tolist()[:2] == ["2", "1"]
    assert session.app.code[-1].value.count("pcost=2.0") == 2
    session.press("open_noise")
    assert session.studio.budget == Budget(pcost=2.0)


def test_better_weights_prove_better_bounds() -> None:
    session = learn(by_name("bounds")).set(bound_family="prefix", twin_bounds=True)
    first = tables(session)[0]["RMSE"].tolist()
    assert "above the bound" in session.said()
    session.set(bound_share=100)
    second = tables(session)[0]["RMSE"].tolist()
    assert second[:-1] == first  # the strategies and the singular value bound stay
    assert second[-1] > first[-1]
    assert "Strategy and bound meet" in session.said()


def test_the_look_is_free() -> None:
    session = learn(by_name("coarse"))
    assert session.metrics()["Budget saved"] == "75.00%"
    session.set(coarse_questions=7, coarse_fine="the whole table", twin_spends=True)
    assert session.metrics()["Budget saved"] == "6.25%"
    assert tables(session)[0]["all"].tolist() == [1.0, 1.0625, 1.0, 1.0625]
    assert session.press("open_coarse").studio.workload.queries == 2**7
