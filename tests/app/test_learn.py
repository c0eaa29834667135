"""Learn page: lessons, questions, addresses, code and figures."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.lessons import decomposition_picture
from engine.lessons.examples import (
    CAPS,
    INVENTED,
    PERSONS,
    bin_counts,
    centered_pairs,
    clipping_example,
    contest,
    decompose_query,
    neighbours,
    published_answers,
    reconstruct_replies,
    yes_or_no,
)
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts import glossary, lessons
from pages.parts.lessons import LESSONS, PATHS, view
from pages.parts.lessons import lesson_02_noise as noise
from pages.parts.lessons import lesson_04_binning as binning
from pages.parts.lessons import lesson_09_centers as centers
from pages.parts.lessons.lesson import Lesson
from pages.parts.shell import permalink, session_restore
from pages.parts.shell.history import History, RequestState
from tests.app.session import Session, demo_schema, open_demo_schema, wait

NAMES = [lesson.name for lesson in LESSONS]


FEW_CELLS = {
    "centers_cells": 4
}  # with the default of ten cells this lesson takes as long as all others together


def open_lesson(lesson: Lesson | None = None) -> Session:
    return Session().go("learn", **FEW_CELLS, **({} if lesson is None else {"lesson": lesson.name}))


def open_schema(name: str) -> Session:
    return Session(plan=permalink.packed(RequestState(workload=Workload(demo_schema(name)))))


def find_lesson(name: str) -> Lesson:
    return next(lesson for lesson in LESSONS if lesson.name == name)


def data_frames(session: Session) -> list[Any]:
    return [d.value for d in session.app.dataframe]


def answer_question(session: Session, lesson: Lesson, number: int, *, right: bool) -> Session:
    choice = next(c for c in lesson.questions[number].choices if c.right == right)
    key = f"{lesson.name}_{number}"
    session.set(**{f"shown_{lesson.name}": number})
    session.app.radio(key=f"question_{key}").set_value(choice)
    return session.press(f"check_{key}")


def go_to_last_step(session: Session, lesson: Lesson) -> Session:
    """Show all steps of the open lesson."""
    return session.set(**{f"{lesson.name}_step": len(lesson.steps) - 1})


def progress_text(session: Session) -> str:
    """Return the text of the progress bar, for which AppTest has no class."""
    return " ".join(
        node.proto.text for node in elements_of(session.app.main) if node.type == "progress"
    )


def elements_of(block: Any) -> list[Any]:
    nodes = list(getattr(block, "children", {}).values())
    return nodes + [deeper for node in nodes for deeper in elements_of(node)]


def test_ten_lessons_have_all_parts() -> None:
    assert len(LESSONS) == len({lesson.tab for lesson in LESSONS}) == len(set(NAMES)) == 10
    for lesson in LESSONS:
        assert len(lesson.questions) == 3
        assert len(lesson.steps) >= 2
        assert lesson.formulas
        assert lesson.goals
        assert lesson.discussion


def test_question_has_one_right_answer_and_feedback() -> None:
    for lesson in LESSONS:
        for question in lesson.questions:
            assert [c.right for c in question.choices].count(True) == 1
            assert len({c.text for c in question.choices}) >= 3
            assert all(c.feedback.endswith(".") for c in question.choices)


def test_right_answers_have_varying_positions() -> None:
    places = [
        [c.right for c in q.choices].index(True) for lesson in LESSONS for q in lesson.questions
    ]
    assert all(places.count(place) >= 5 for place in range(3))


@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_lesson_starts_at_step_zero_with_questions(lesson: Lesson) -> None:
    session = open_lesson(lesson)
    assert session.app.header[0].value == lesson.title
    assert lesson.words in session.text()
    assert f"**Step 0.** {lesson.steps[0]}" in session.text()
    assert "choose an answer" in session.press(f"check_{lesson.name}_0").text()
    assert not session.app.success
    assert not session.app.warning
    for number, question in enumerate(lesson.questions):
        if number == LESSONS.index(lesson) % len(lesson.questions):  # one wrong answer per lesson
            answer_question(session, lesson, number, right=False)
            wrong = next(c for c in question.choices if not c.right)
            assert wrong.feedback in session.app.warning[0].value
            assert question.answer.feedback not in session.text()
            assert "choose an answer" not in session.text()
        answer_question(session, lesson, number, right=True)
        assert not session.app.warning
        assert question.answer.feedback in session.app.success[0].value
    for step in range(1, len(lesson.steps)):
        session.press(f"step_{lesson.name}")
        assert f"**Step {step}.** {lesson.steps[step]}" in session.text()
    assert next(b for b in session.app.button if b.key == f"step_{lesson.name}").disabled


def test_progress_counts_questions_and_survives_other_pages() -> None:
    every = 3 * len(LESSONS)
    session = open_lesson()
    assert f"0 of {every} questions answered, 0 correct" in progress_text(session)
    for number, lesson in enumerate(LESSONS[:3], 1):
        answer_question(session.set(lesson=lesson.name), lesson, number % 3, right=number % 2 == 0)
        assert f"{number} of {every} questions answered, {number // 2} correct" in progress_text(
            session
        )
    session.go("schema").go("learn")
    assert f"3 of {every} questions answered, 1 correct" in progress_text(session)


def test_address_opens_lesson_with_its_choices() -> None:
    # addresses of earlier versions have the number of the lesson
    session = Session(lesson="3", cells="32", right="Wavelet", step="2").go("learn")
    assert session.app.query_params["lesson"] == "strategies"
    assert session.app.header[0].value == find_lesson("strategies").title
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert names["result"].cells == 32
    assert "**Step 2.**" in session.text()
    assert session.app.query_params["cells"] == "32"
    session.set(strategies_cells=16)  # the default value is not in the address
    assert "cells" not in session.app.query_params
    session.press("after_strategies")
    assert dict(session.app.query_params) == {"lesson": "bounds"}
    assert "**Step 0.**" in session.text()


def test_address_stores_cells_of_a_query() -> None:
    session = Session(lesson="pieces", no_3="a.c", yes_3="").go("learn")
    assert [row.tolist() for row in query_of_code(session)] == [[0, 0, 0], [1, 0, 1]]
    back = Session(**session.app.query_params).go("learn")
    assert [row.tolist() for row in query_of_code(back)] == [[0, 0, 0], [1, 0, 1]]


@pytest.mark.parametrize(
    "address", [{"lesson": "11"}, {"lesson": "x"}, {"lesson": "attack", "rows": "99", "step": "-3"}]
)
def test_invalid_address_opens_first_lesson(address: dict[str, str]) -> None:
    session = Session(**address).go("learn")
    assert not session.errors()
    assert session.app.header[0].value == LESSONS[0].title
    assert dict(session.app.query_params) == {"lesson": "attack"}


def test_address_holds_plan_and_lesson() -> None:
    session = open_schema("cps").go("learn").set(lesson=LESSONS[2].name)
    assert set(session.app.query_params) == {"plan", "lesson"}
    assert permalink.unpacked(session.app.query_params["plan"]).schema == demo_schema("cps")


def test_address_of_lesson_hides_plan_but_reload_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_restore, "browser", lambda: "browser of a teacher")
    session = open_schema("survey").go("workload", ways=[1]).press("add_ways")
    request = session.studio
    session.go("learn").set(lesson="overlap", overlap_step=3)
    assert set(session.app.query_params) == {"lesson", "step", "at"}
    reloaded = Session(**session.app.query_params).go("learn")
    assert reloaded.studio.to_json() == request.to_json()
    # A student opens the same address in another browser.
    monkeypatch.setattr(session_restore, "browser", lambda: "browser of a student")
    student = Session(**session.app.query_params).go("learn")
    assert student.studio.workload is None
    assert student.app.header[0].value == find_lesson("overlap").title
    monkeypatch.setattr(session_restore, "browser", lambda: "browser of a teacher")
    # If the lesson is about the tables of the plan, the address contains the plan.
    reloaded.set(overlap_whose="My workload")
    opened = permalink.unpacked(reloaded.app.query_params["plan"])
    assert opened.to_json() == request.to_json()
    assert "&plan=" in reloaded.app.code[0].value
    reloaded.set(overlap_whose="Example")
    assert "plan" not in reloaded.app.query_params
    assert "plan" in reloaded.go("workload").app.query_params
    assert not reloaded.app.session_state[session_restore.HIDDEN_PLAN]


def test_handout_shows_answers_only_to_instructors() -> None:
    lesson = find_lesson("coarse")
    for answered in (False, True):
        paper = view.handout([lesson], {}, answered=answered).decode()
        assert lesson.title in paper
        assert all(
            choice.text in paper for question in lesson.questions for choice in question.choices
        )
        assert all(formula.words in paper for formula in lesson.formulas)
        assert (lesson.questions[0].answer.feedback in paper) == answered
        assert ("Saved with 7 questions and 7-way tables" in paper) == answered
        assert paper.count(lesson.discussion[0]) == 1


@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_handout_has_picture_of_each_drawn_step(lesson: Lesson) -> None:
    choices = {"cells": FEW_CELLS["centers_cells"]} if lesson.name == "centers" else {}
    pictures = lesson.step_pictures(choices)
    steps = [step for step, _ in pictures]
    assert steps[0] == 0
    assert steps == sorted(steps)
    assert set(steps) <= set(range(len(lesson.steps)))
    # These steps have no picture in the handout: on screen, they add only text, numbers or a table.
    text_steps = {"noise": {2}, "binning": {1}, "centers": {2}, "coarse": {1}}
    assert set(range(len(lesson.steps))) - set(steps) == text_steps.get(lesson.name, set())


def test_handout_of_path_uses_choices_of_user() -> None:
    pair = [find_lesson("attack"), find_lesson("pieces")]
    choices = {"attack": {"answers": 15}, "pieces": {"yes_3": [], "no_3": []}}
    page = view.handout(pair, choices, answered=False).decode()
    assert all(lesson.title in page for lesson in pair)
    assert "Step 1: Replies found by the attack" in page
    assert "From 15 answers" in page
    assert "The query and its pieces" in page  # a query without cells is replaced by the default


def test_link_with_cost_of_another_plan_keeps_it() -> None:
    shared = Session(lesson="noise", pcost="0.37").go("learn")
    assert "pcost=0.37" in shared.app.code[-1].value
    assert shared.app.query_params["pcost"] == "0.37"
    shared.set(lesson="attack").set(lesson="noise")
    assert "pcost=0.37" in shared.app.code[-1].value
    for damaged in ("-1", "nan", "inf", "x", "1e99"):
        session = Session(lesson="noise", pcost=damaged).go("learn")
        assert "pcost=0.02" in session.app.code[-1].value


def test_wrong_address_is_reported() -> None:
    for address, words in (
        ({"lesson": "xyz"}, "lesson that does not exist"),
        ({"lesson": "noise", "minutes": "33"}, "no path of that many minutes"),
        ({"lesson": "noise", "minutes": "15"}, "does not have this lesson"),
        ({"lesson": "noise", "seed": "abc"}, "seed in the address is not valid"),
    ):
        session = Session(**address).go("learn")
        assert words in session.app.info[0].value
        name = address["lesson"] if address["lesson"] in NAMES else LESSONS[0].name
        assert session.app.header[0].value == find_lesson(name).title
    assert not Session(lesson="noise", minutes="45", seed="7").go("learn").app.info


def test_last_lesson_shows_score_of_path() -> None:
    session = open_lesson().set(learn_minutes=15)
    answer_question(session, LESSONS[0], 0, right=True)
    answer_question(session, LESSONS[0], 1, right=False)
    assert "Last lesson of this path.** 2 of 3 questions answered, 1 correct." in session.text()
    options = next(r for r in session.app.radio if r.label == "Question").options
    assert options == ["Question 1 ✓", "Question 2 ✗", "Question 3"]
    assert "Last lesson of this path" in session.set(course=True).text()


def test_success_rate_of_noise_is_above_its_picture() -> None:
    session = open_lesson(find_lesson("noise")).set(noise_step=1)
    assert "success rate is at most **52.9%**" in session.text()
    assert "at most **69.2%**" in session.set(noise_pcost=1.0).text()


def test_previous_step_button_goes_back() -> None:
    session = open_lesson().press("step_attack").press("step_attack").press("back_attack")
    assert "**Step 1.**" in session.text()
    first = session.press("back_attack").app.button(key="back_attack")
    assert first.disabled


def test_result_of_noisy_attack_follows_cost() -> None:
    lesson = find_lesson("attack")
    session = go_to_last_step(open_lesson(lesson), lesson)
    assert "at most **69.2%** of the time" in session.text()
    session.set(attack_pcost=100.0)
    assert "at most **100%** of the time" in session.text()
    # The text of the step names its pcost, so that it is true wherever the slider is.
    assert "fails" not in session.text()
    assert "at pcost 1, the attack finds" in session.text()
    published = next(
        m.value for m in session.set(attack_pcost=0.1).app.markdown if "Published:" in m.value
    )
    assert "−" in published
    assert "-" not in published


def test_course_mode_explains_terms_and_formulas() -> None:
    labels = [e.label for e in open_lesson().set(course=True).app.expander]
    assert {"Formulas", "Glossary"} <= set(labels)


def test_expected_numbers_of_clipping_are_those_on_screen() -> None:
    session = open_lesson(find_lesson("binning")).set(binning_step=1)
    shown = session.metrics()["Mean bias of the sum"].removesuffix(" counts")
    assert binning.LESSON.expected()["Mean bias of the sum at pcost 0.05, 1 cell per bin"] == shown


def test_link_for_students_has_settings_but_no_plan() -> None:
    session = open_demo_schema("census").press("next").set(ways=[1]).press("add_ways")
    session.go("learn").set(lesson="rows", rows_rows=3)
    link = session.app.code[0].value
    assert link.endswith("?lesson=rows&rows=3")
    assert "plan" in session.app.query_params


def test_lesson_has_one_unit_of_cost_per_step() -> None:
    session = open_lesson(find_lesson("rows"))
    labels = lambda: [s.label for s in session.app.select_slider]  # noqa: E731
    assert "Privacy cost (pcost) per row" in labels()
    assert "for each row" in session.text()
    session.set(rows_step=1)
    assert {"Privacy cost (pcost) per person", "Cap: rows counted per person"} <= {*labels()}
    assert "for each row" not in session.text()
    assert "a person with 1 row**" in session.set(rows_step=0, rows_rows=1).text()


def test_opened_plan_of_lesson_is_explained_on_preview() -> None:
    session = wait(open_lesson().press("open_attack"))
    assert "plan of the lesson “Attack”; Undo restores your plan" in session.text()
    assert "plan of the lesson" not in session.go("start").go("preview").text()


def test_cost_of_plan_is_offered_only_with_a_plan() -> None:
    session = open_lesson().set(attack_step=2)
    assert "your budget" not in str([s.options for s in session.app.select_slider])


def test_next_lesson_button_opens_next_lesson() -> None:
    session = open_lesson()
    for lesson in LESSONS:
        assert session.app.header[0].value == lesson.title
        if lesson is not LESSONS[-1]:
            session.press(f"after_{lesson.name}")


def test_instructors_see_goals_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        centers,
        "centered_pairs",
        lambda asked, cells: centered_pairs(asked, FEW_CELLS["centers_cells"]),
    )
    session = open_lesson()
    assert LESSONS[0].questions[0].answer.feedback not in session.text()
    session.set(instructor=True).set(overview=True, notes=True)
    sheet = session.text()
    for lesson in LESSONS:
        assert all(text in sheet for text in (*lesson.goals, *lesson.discussion))
        assert all(f"correct: **{question.answer.text}**" in sheet for question in lesson.questions)
        assert all(f"{name}: **{value}**" in sheet for name, value in lesson.expected().items())
    assert "Instructor handout" in [b.label for b in session.app.get("download_button")]
    session.set(instructor=False)
    assert "Student handout" in [b.label for b in session.app.get("download_button")]
    assert "Instructor handout" not in [b.label for b in session.app.get("download_button")]
    assert LESSONS[0].questions[0].answer.feedback not in session.text()


@pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)
def test_lesson_code_builds_plan_opened_in_studio(
    lesson: Lesson, capsys: pytest.CaptureFixture
) -> None:
    session = go_to_last_step(open_lesson(lesson), lesson)
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert capsys.readouterr().out.strip()
    session.press(f"open_{lesson.name}")
    assert session.app.title[0].value.endswith("Preview")
    here = session.studio
    opened = plan(here.workload, here.budget, here.mechanism, **here.options)
    assert isinstance(names["workload_plan"], Plan)
    assert names["workload_plan"].hash == opened.hash
    if lesson.name == "centers":
        assert "Typical error (counts)" in wait(session.go("preview")).metrics()
    assert session.press("undo").studio.workload is None


def test_undo_restores_workload_from_before_lesson() -> None:
    session = open_schema("cps").go("learn").set(lesson="pieces").press("open_pieces")
    assert session.studio.schema.names == ("reply", "city")
    assert session.press("undo").studio.schema == demo_schema("cps")


def test_custom_query_is_decomposed() -> None:
    session = open_lesson(find_lesson("pieces"))
    session.set(pieces_rows=3, pieces_columns=4)
    session.set(pieces_yes_4=["a"], pieces_no_4=[], pieces_unsure_4=["d", "a"])
    assert [row.tolist() for row in query_of_code(session)] == [
        [1, 0, 0, 0],
        [0, 0, 0, 0],
        [1, 0, 0, 1],
    ]
    assert "The four pieces add up to the query in every cell." in session.text()
    assert "The four pieces add up to" not in session.set(pieces_step=3).text()
    assert "The four pieces add up to" in session.set(pieces_step=4).text()


@pytest.mark.parametrize("pieces", range(5))
def test_decomposition_figure_places_tables_without_overlap(pieces: int) -> None:
    figure = decomposition_picture(decompose_query(yes_or_no(2), [[1, 0], [0, 0]]), pieces).figure
    drawn = [trace for trace in figure.data if trace.type == "heatmap"]
    places = [
        figure.layout[f"{one[0]}axis{one[1:]}"].domain
        for trace in drawn
        for one in (trace.xaxis, trace.yaxis)
    ]
    boxes = list(zip(places[::2], places[1::2], strict=True))
    titles = [place for title in figure.layout.annotations for place in (title.x, title.y)]
    assert titles == pytest.approx([place for x, y in boxes for place in ((x[0] + x[1]) / 2, y[1])])
    disjoint = [
        (a, b)
        for a in boxes
        for b in boxes
        if a[0][1] < b[0][0] or b[0][1] < a[0][0] or a[1][1] < b[1][0]
    ]
    assert len(boxes) == (pieces + 2 if pieces else 1)
    assert len({*disjoint, *((b, a) for a, b in disjoint)}) == len(boxes) * (len(boxes) - 1)


def query_of_code(session: Session) -> list[Any]:
    names: dict = {}
    exec(session.app.code[-1].value, names)
    return list(names["pieces"].query)


def test_query_without_cells_shows_error() -> None:
    session = open_lesson(find_lesson("pieces")).set(pieces_yes_3=[], pieces_no_3=[])
    assert "Choose at least one cell" in session.errors()
    button = next(b for b in session.app.button if b.key == "open_pieces")
    assert button.disabled
    assert "fix the error above" in session.text()
    assert not session.set(pieces_yes_3=["a"]).errors()


def test_lesson_choices_survive_switch_of_lesson() -> None:
    session = open_lesson(find_lesson("pieces")).set(pieces_yes_3=["a"])
    session.set(lesson="attack").set(lesson="pieces")
    assert [row.tolist() for row in query_of_code(session)] == [[1, 0, 0], [0, 0, 1]]


def test_residual_spaces_do_not_overlap() -> None:
    session = open_lesson(find_lesson("overlap"))
    session.set(twin_overlaps=True)
    assert data_frames(session)[0].iloc[0, 2] == pytest.approx(
        0.5**0.5
    )  # cosine between the total and the reply yes
    session.set(overlap_step=1, overlap_rows=3)
    assert data_frames(session)[0].iloc[0, 2] == 0
    session.set(overlap_step=3, twin_shares=True)
    # The figure of the last step is the first one on the page.
    assert data_frames(session)[0]["share"].sum() == pytest.approx(1.0)


def test_lesson_plan_of_ranges_is_optimal() -> None:
    session = open_lesson(find_lesson("strategies")).set(
        strategies_cells=8, strategies_left="Wavelet"
    )
    session.set(twin_strategy_left=True, twin_strategy_right=True)
    assert [table.shape for table in data_frames(session)] == [(8, 9), (8, 9)]
    assert not data_frames(session)[0].equals(data_frames(session)[1])
    session.press("open_strategies")
    here = session.studio
    result = plan(here.workload, here.budget, here.mechanism, **here.options)
    assert result.rmse == pytest.approx(contest("range", 8).results[-1].rmse, rel=1e-4)


def test_draw_again_changes_only_the_noise() -> None:
    session = open_lesson(find_lesson("noise")).set(twin_outcomes=True)
    first = data_frames(session)[0]
    assert data_frames(session.set(tutorial=False))[0].equals(first)  # a rerun draws no noise
    second = data_frames(session.press("draw_again"))[0]
    assert first["true count"].equals(second["true count"])
    assert not first.equals(second)
    units = session.set(noise_pcost=2.0, noise_step=2).app.table[0].value
    assert units["value"].tolist()[:2] == ["2", "1"]  # pcost and rho
    assert session.app.code[-1].value.count("pcost=2.0") == 2
    session.press("open_noise")
    assert session.studio.budget == Budget(pcost=2.0)


def test_lesson_noise_offers_budget_of_studio() -> None:
    session = open_schema("cps").go("schema")
    session.app.session_state["history"] = History(
        present=replace(session.studio, budget=Budget(pcost=0.37))
    )
    session.go("learn").set(lesson=find_lesson("noise").name)
    assert "pcost=0.02" in session.app.code[-1].value  # the default, at which the noise is visible
    assert "pcost" not in session.app.query_params
    session.set(noise_pcost=0.37)
    assert "pcost=0.37" in session.app.code[-1].value
    assert (
        session.app.query_params["pcost"] == "0.37"
    )  # in the address, because its reader may have another plan


def test_better_weights_give_larger_bounds() -> None:
    session = open_lesson(find_lesson("bounds")).set(
        bounds_family="prefix", bounds_step=1, twin_bounds=True
    )
    first = data_frames(session)[0]["RMSE"].tolist()
    assert "above the bound" in session.text()
    session.set(bounds_share=100)
    second = data_frames(session)[0]["RMSE"].tolist()
    assert second[:-1] == first  # errors of the strategies, and the singular value bound
    assert second[-1] > first[-1]
    assert "Strategy and bound are equal" in session.text()


def test_lesson_look_shows_saved_budget() -> None:
    session = open_lesson(find_lesson("coarse")).set(coarse_step=1)
    assert session.metrics()["Budget saved (pcost)"] == "75.00%"
    session.set(coarse_questions=7, coarse_fine="full table", twin_spends=True)
    assert session.metrics()["Budget saved (pcost)"] == "6.25%"
    assert data_frames(session)[0]["total"].tolist() == [1.0, 1.0625, 1.0, 1.0625]
    assert session.press("open_coarse").studio.workload.queries == 2**7


def test_attack_on_noisy_answers_changes_only_redrawn() -> None:
    lesson = find_lesson("attack")
    session = open_lesson(lesson)
    assert "**16 of 16** replies" in session.text()
    go_to_last_step(session, lesson).set(twin_attack=True)
    first = data_frames(session)[0]["estimate"].tolist()
    # a rerun draws no noise
    assert data_frames(session.set(tutorial=False))[0]["estimate"].tolist() == first
    assert data_frames(session.press("publish_again"))[0]["estimate"].tolist() != first


def test_lesson_budget_protects_persons_with_many_rows() -> None:
    session = open_lesson(find_lesson("rows")).set(rows_rows=20)
    assert "**4 for a person with 20 rows**" in session.text()
    session.press("open_rows")
    assert session.studio.budget == Budget(pcost=0.01, rows_per_person=20)


def test_first_pictures_show_their_point() -> None:
    """Every lesson opens with settings at which its effect can be seen."""
    attack = reconstruct_replies(published_answers(PERSONS))
    assert attack.right == PERSONS
    # The noise is between a tenth and half of a typical count.
    noisy = Budget(pcost=noise.COST)
    assert 0.1 < (1 / noisy.mu) / np.median(list(INVENTED.values())) < 0.5
    # An attacker can often tell whether the person with the most rows is in the data.
    assert neighbours(Budget(pcost=0.01), rows=max(CAPS)).guess > 0.8
    # The bias of clipping is larger than the standard error of the unbiased sum.
    clipped = clipping_example(bin_counts(1), 1 / Budget(pcost=binning.COST).mu)
    assert clipped.bias > clipped.std_of_sum
    session = open_lesson(find_lesson("pieces"))
    assert len(json.loads(session.app.get("plotly_chart")[0].proto.spec)["data"]) == 2 * 6


def test_paths_select_lessons_by_time() -> None:
    for minutes, names in PATHS.items():
        discussion = minutes - sum(find_lesson(name).minutes for name in names)
        assert 8 <= discussion <= 15
    session = open_lesson().set(learn_minutes=45)
    options = next(s for s in session.app.selectbox if s.key == "lesson").options
    assert options[:2] == ["1. Attack · 7 min", "2. Noise · 8 min"]
    assert len(options) == 5
    assert session.app.query_params["minutes"] == "45"
    session.press("after_attack")
    assert session.app.header[0].value == find_lesson("noise").title
    shared = Session(**session.app.query_params).go("learn")
    assert shared.app.header[0].value == find_lesson("noise").title
    # If the new path does not have the open lesson, the first lesson of the path opens.
    session.set(learn_minutes=105).set(lesson="centers").set(learn_minutes=15)
    assert session.app.header[0].value == LESSONS[0].title
    assert not [b for b in session.app.button if b.key == "after_attack"]


def test_course_mode_shows_lesson_only() -> None:
    session = open_lesson().set(course=True)
    assert not session.app.title
    assert session.app.header[0].value == LESSONS[0].title
    assert session.app.query_params["course"] == "1"
    chart = json.loads(session.app.get("plotly_chart")[0].proto.spec)
    assert chart["layout"]["font"]["size"] > 12
    assert Session(course="1").go("learn").app.header
    assert session.set(course=False).app.title


def test_answers_survive_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_restore, "browser", lambda: "test browser")
    lesson = LESSONS[0]
    answer_question(open_lesson(lesson), lesson, 1, right=True)
    again = open_lesson(lesson)
    assert "1 of 30 questions answered, 1 correct" in progress_text(again)
    assert next(r for r in again.app.radio if r.label == "Question").options == [
        "Question 1",
        "Question 2 ✓",
        "Question 3",
    ]
    again.set(shown_attack=1)
    assert lesson.questions[1].answer.feedback in again.app.success[0].value
    again.press("forget_answers")
    assert "0 of 30 questions answered" in progress_text(open_lesson(lesson))
    monkeypatch.setattr(session_restore, "browser", lambda: "")
    answer_question(open_lesson(lesson), lesson, 1, right=True)
    assert "0 of 30 questions answered" in progress_text(open_lesson(lesson))


def test_noise_of_lessons_is_equal_for_all_until_renewed() -> None:
    for name, key in (("attack", "publish_again"), ("noise", "draw_again")):
        first, second = (
            go_to_last_step(open_lesson(find_lesson(name)), find_lesson(name)) for _ in range(2)
        )
        assert first.app.code[-1].value == second.app.code[-1].value
        assert "seed" not in first.app.query_params
        first.press(key)
        assert first.app.code[-1].value != second.app.code[-1].value
        shared = Session(**first.app.query_params).go("learn")
        assert shared.app.code[-1].value == first.app.code[-1].value
        assert shared.app.query_params["seed"] == first.app.query_params["seed"]
        damaged = Session(lesson=name, seed="-1x").go("learn")
        assert "seed" not in damaged.app.query_params


def test_wrong_answer_is_marked_as_answer_of_reader() -> None:
    lesson = find_lesson("noise")
    session = answer_question(open_lesson(lesson), lesson, 0, right=False)
    assert session.app.warning[0].value.startswith("**Not quite.** Your answer was “It doubles.”")


def test_damaged_answer_file_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(session_restore.VARIABLE, str(tmp_path))
    monkeypatch.setattr(session_restore, "browser", lambda: "b")
    for text in ("{", "[]", '{"b": 3}', '{"b": {"attack_0": "x"}}', '{"b": {"attack_0": 99}}'):
        (tmp_path / "answers.json").write_text(text)
        assert "0 of 30 questions answered" in progress_text(open_lesson())


def test_glossary_explains_terms_in_one_line() -> None:
    text = open_lesson().text()
    for term, meaning in glossary.TERMS.items():
        assert f"**{term}**: {meaning}" in text
        assert meaning.endswith(".")


def test_wider_cells_have_less_bias() -> None:
    session = open_lesson(find_lesson("binning")).set(binning_step=2, binning_width=1)
    first = session.metrics()["Mean bias of the sum"]
    std = 1 / Budget(pcost=binning.COST).mu
    assert float(first.split()[0]) == pytest.approx(
        clipping_example(bin_counts(1), std).bias, abs=0.06
    )
    second = session.set(binning_width=8).metrics()["Mean bias of the sum"]
    assert float(second.split()[0]) < float(first.split()[0])


def test_lesson_tunes_workload_of_the_studio() -> None:
    session = open_lesson(find_lesson("centers"))
    assert "To use your own queries" in session.text()
    session = open_demo_schema("survey").press("next").set(ways=[1, 2]).press("add_ways")
    session.go("learn", **FEW_CELLS).set(lesson=find_lesson("centers").name).set(
        centers_whose="My workload", twin_centered=True
    )
    errors = dict(
        zip(data_frames(session)[0]["plan"], data_frames(session)[0]["RMSE"], strict=True)
    )
    result = plan(session.studio.workload, session.studio.budget)
    assert errors["equal centers"] == pytest.approx(result.weighted_rmse)
    assert (
        errors["bound for all mechanisms"]
        <= errors["tuned centers"]
        <= errors["equal centers"] * (1 + 1e-9)
    )


def test_lesson_files_are_numbered_as_in_course() -> None:
    files = sorted(Path(lessons.__file__).parent.glob("lesson_*.py"))
    modules = [importlib.import_module(f"{lessons.__name__}.{file.stem}") for file in files]
    assert [module.LESSON.name for module in modules] == [lesson.name for lesson in LESSONS]
    assert [file.stem[7:9] for file in files] == [f"{i:02d}" for i in range(1, len(files) + 1)]
