"""Learn page in a browser: accessibility, keyboard, history and guide."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from pages.parts.lessons import LESSONS
from tests.browser.conftest import HEIGHT, NARROW, WIDTH, Visit

# low contrast in each theme, and a button without a name
INSERT_VIOLATIONS = """(main) => main.insertAdjacentHTML("beforeend",
  `<style>#a, #b { color-scheme: light dark; color: light-dark(#ddd, #fff); background: light-dark(#fff, #000) }
          #b { color: light-dark(#000, #222) }</style>
   <p id="a">pale by day</p><p id="b">pale by night</p><button id="c"></button>`)"""


def check_last_step(visit: Visit, number: int) -> None:
    """Show the last step of a lesson and check the accessibility of the page."""
    expect(visit.page.locator(".js-plotly-plot").first).to_be_visible()
    with visit.run():
        visit.page.get_by_role("slider", name="Step").press("End")
    visit.check_accessibility(f"learn_{number}")


def delete_answers(visit: Visit) -> None:
    """Delete the saved answers and confirm it."""
    visit.page.get_by_role("button", name="Delete answers").click()
    visit.press("Delete now")


@pytest.mark.parametrize("size", [(1440, 900), (1280, 720)], ids=["1440x900", "1280x720"])
def test_course_mode_shows_newest_picture_whole(visit: Visit, size: tuple[int, int]) -> None:
    page, (width, height) = visit.page, size
    page.set_viewport_size({"width": width, "height": height})
    for lesson, step in (
        *(("attack", 1), ("attack", 2), ("noise", 1), ("rows", 0), ("rows", 1)),
        *(("binning", 2), ("pieces", 4), ("strategies", 2)),
    ):
        visit.open(f"learn?lesson={lesson}&step={step}&course=1")
        picture = page.locator(".js-plotly-plot").first
        expect(picture).to_be_visible()
        box = picture.bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= height, (lesson, step, box)
        assert visit.find_overflows() == []


def test_next_lesson_opens_at_its_top(visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 1280, "height": 720})
    visit.open("learn?course=1")
    visit.press(f"Next lesson: {LESSONS[1].tab}")
    visit.expect_text(LESSONS[1].title)
    visit.settle()
    assert visit.page.evaluate("document.querySelector('[data-testid=stMain]').scrollTop") == 0


def test_lessons_are_accessible_and_work_by_keyboard(visit: Visit) -> None:
    page = visit.page
    visit.open("learn")
    visit.expect_text(LESSONS[0].title)

    check_last_step(visit, 1)

    # the second lesson is used with the keyboard only
    page.get_by_role("combobox", name="Lesson").focus()
    page.keyboard.type(LESSONS[1].tab)
    with visit.run():
        page.keyboard.press("Enter")
    visit.expect_text(LESSONS[1].title)
    page.get_by_role("slider", name="Step").focus()
    with visit.run():
        page.keyboard.press("ArrowRight")
    visit.expect_text("One person more or less")
    visit.settle()
    page.get_by_role("radio", name=LESSONS[1].questions[0].choices[0].text).focus()
    page.keyboard.press("Space")
    visit.settle()
    for _ in range(4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").startswith("Check answer"):
            break
    page.keyboard.press("Enter")
    visit.expect_text("Not quite.")
    visit.settle()
    check_last_step(visit, 2)

    # the lessons from the third on
    for number, lesson in enumerate(LESSONS[2:], 3):
        visit.pick("Lesson", lesson.tab)
        visit.expect_text(lesson.title)
        check_last_step(visit, number)

    # The course mode has large type and no sidebar.  Its texts also fit at the low resolution of an
    # old projector.
    page.get_by_text("Course mode").click()
    visit.settle()
    expect(page.get_by_test_id("stSidebar")).to_be_hidden()
    assert page.evaluate("parseFloat(getComputedStyle(document.documentElement).fontSize)") > 20
    visit.check_accessibility("learn_course")
    page.set_viewport_size({"width": 1024, "height": 768})
    visit.settle()
    assert visit.find_overflows() == []
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.get_by_text("Course mode").click()
    visit.settle()
    expect(page.get_by_test_id("stSidebar")).to_be_visible()
    page.get_by_text("Glossary").click()
    visit.expect_text("Root of the mean squared standard error")
    visit.check_accessibility("learn_glossary")


def test_lessons_support_back_button_answers_and_studio(visit: Visit) -> None:
    page = visit.page
    by_name = {lesson.name: lesson for lesson in LESSONS}
    strategies, pieces, overlap = (by_name[name] for name in ("strategies", "pieces", "overlap"))
    visit.open("learn")
    # all tests share one browser, which keeps their answers
    if page.get_by_role("button", name="Delete answers").is_enabled():
        delete_answers(visit)
    visit.open("learn?lesson=3&cells=32")  # a number of an older address
    visit.expect_text(strategies.title)
    expect(page.get_by_role("slider", name="Cells")).to_have_attribute("aria-valuetext", "32")
    visit.press("Next step")
    expect(page).to_have_url(re.compile(r"lesson=strategies&(cells=32&step=1|step=1&cells=32)"))
    visit.pick("Lesson", by_name["coarse"].tab)
    expect(page).to_have_url(re.compile("lesson=coarse"))
    with visit.run():
        page.go_back()
    visit.expect_text(strategies.title)
    visit.expect_text("Step 1.")
    with visit.run():
        page.go_back()
    visit.expect_text("Step 0.")
    with visit.run():
        page.go_forward()
    visit.expect_text("Step 1.")
    expect(page.get_by_role("slider", name="Cells")).to_have_attribute("aria-valuetext", "32")
    page.reload()
    visit.settle()
    with visit.run():
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Guide").click()
    visit.expect_text("A census table")
    with visit.run():
        page.go_back()
    visit.expect_text(strategies.title)
    visit.expect_text("Step 1.")

    # Show the data of a figure, answer a question, and open the plan in Preview.
    visit.pick("Lesson", pieces.tab)
    page.get_by_role("button", name="e", exact=True).first.wait_for(state="hidden")
    visit.settle()  # the page must not move under the pointer
    visit.press("a", exact=True)
    visit.unfold("Show data")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download CSV").first.click()
    visit.settle()
    text = waiting.value.path().read_text(encoding="utf-8")
    expected = ["query", "1", "1", "1", "0", "0", "1"]
    assert [line.split(",")[2] for line in text.splitlines()] == expected
    question, every = pieces.questions[0], 3 * len(LESSONS)
    wrong = next(c for c in question.choices if not c.right)
    visit.choose(wrong.text)
    visit.press("Check answer")
    visit.expect_text("Not quite.")
    visit.check_accessibility("learn_wrong")
    visit.choose(question.answer.text)
    visit.press("Check answer")
    visit.expect_text(f"1 of {every} questions answered, 1 correct.")
    page.get_by_text("Instructor view").click()
    visit.settle()
    page.get_by_text("All lessons").click()
    visit.expect_text("For instructors")
    visit.check_accessibility("learn_instructor")
    visit.press(f"Next lesson: {overlap.tab}")
    visit.expect_text(overlap.title)
    visit.press("Open plan in Preview")
    visit.expect_text("Typical error")
    with visit.run():
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Workload").click()
    visit.expect_text("4 tables, 12 queries")
    page.get_by_role("link", name="Learn").click()
    visit.expect_text(f"1 of {every} questions answered, 1 correct.")
    page.reload()  # the answers are kept for this browser
    visit.settle()
    visit.expect_text(f"1 of {every} questions answered, 1 correct.")
    delete_answers(visit)
    visit.expect_text(f"0 of {every} questions answered")

    # the page Guide, opened from the sidebar
    with visit.run():
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Guide").click()
    visit.expect_text("A census table")
    visit.check_accessibility("guide")
    page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    page.get_by_test_id("stExpander").get_by_text("As Python", exact=True).click()
    visit.check_accessibility("guide_narrow")  # scrollable code must be reachable by keyboard
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    visit.pick("Task", "Release and verify")
    visit.expect_text("problems of the package: 0")


def test_inserted_accessibility_violations_are_found(visit: Visit) -> None:
    visit.open("guide")
    visit.expect_text("A census table")
    visit.page.get_by_test_id("stMainBlockContainer").evaluate(INSERT_VIOLATIONS)
    visit.check_accessibility("planted")
    visit.check_accessibility("planted")
    planted = [one for one in visit.violations if one[0] == "planted"]
    findings = {
        (scheme, rule, html.split(">")[0]) for _, scheme, rule, nodes in planted for html in nodes
    }
    visit.violations[:] = [one for one in visit.violations if one not in planted]
    assert findings == {
        ("light", "button-name", '<button id="c"'),
        ("dark", "button-name", '<button id="c"'),
        ("light", "color-contrast", '<p id="a"'),
        ("dark", "color-contrast", '<p id="b"'),
    }
