"""The Learn page in a real browser: every lesson by mouse and by keyboard, in both themes, with axe."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from pages.parts.lessons import LESSONS
from tests.browser.conftest import HEIGHT, NARROW, WIDTH, Visit

# text too pale by day, text too pale by night, and a button without a name
PLANTED = """(found) => found.insertAdjacentHTML("afterbegin",
  `<style>#a, #b { color-scheme: light dark; color: light-dark(#ddd, #fff); background: light-dark(#fff, #000) }
          #b { color: light-dark(#000, #222) }</style>
   <p id="a">pale by day</p><p id="b">pale by night</p><button id="c"></button>`)"""


def look_at_the_last_step(visit: Visit, number: int) -> None:
    """Show all steps of a lesson at once and look at them."""
    expect(visit.page.locator(".js-plotly-plot").first).to_be_visible()
    with visit.run():
        visit.page.get_by_role("slider", name="Step").press("End")
    visit.look(f"learn_{number}")


def test_lessons_are_accessible_and_work_by_keyboard(visit: Visit) -> None:
    page = visit.page
    visit.open("learn")
    visit.sees(LESSONS[0].title)

    look_at_the_last_step(visit, 1)

    # with the keyboard alone
    page.get_by_role("tab", name=LESSONS[0].tab).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    visit.sees(LESSONS[1].title)
    visit.settle()
    page.get_by_role("slider", name="Step").focus()
    page.keyboard.press("ArrowRight")
    visit.sees("What each table adds")
    visit.settle()
    page.get_by_role("radio", name=LESSONS[1].questions[0].choices[0].text).focus()
    page.keyboard.press("Space")
    visit.settle()
    for _ in range(4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").startswith("Check answer 1"):
            break
    page.keyboard.press("Enter")
    visit.sees("Not this one:")
    visit.settle()
    look_at_the_last_step(visit, 2)

    # every other lesson
    for number, lesson in enumerate(LESSONS[2:], 3):
        visit.choose(lesson.tab)
        visit.sees(lesson.title)
        look_at_the_last_step(visit, number)


def test_lessons_support_back_button_answers_and_studio(visit: Visit) -> None:
    page = visit.page
    visit.open("learn?lesson=3&cells=32")
    visit.sees(LESSONS[2].title)
    expect(page.get_by_role("slider", name="Cells")).to_have_attribute("aria-valuetext", "32")
    visit.press("Next step")
    expect(page).to_have_url(re.compile(r"lesson=3&cells=32&step=1|lesson=3&step=1&cells=32"))
    visit.choose(LESSONS[5].tab)
    expect(page).to_have_url(re.compile("lesson=6"))
    with visit.run():
        page.go_back()
    visit.sees(LESSONS[2].title)
    visit.sees("Step 1.")
    with visit.run():
        page.go_back()
    visit.sees("Step 0.")
    with visit.run():
        page.go_forward()
    visit.sees("Step 1.")
    expect(page.get_by_role("slider", name="Cells")).to_have_attribute("aria-valuetext", "32")
    page.reload()
    visit.settle()
    with visit.run():
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Guide").click()
    visit.sees("A census table")
    with visit.run():
        page.go_back()
    visit.sees(LESSONS[2].title)
    visit.sees("Step 1.")

    # answers, tables, and the way to the studio
    visit.choose(LESSONS[0].tab)
    page.get_by_role("button", name="e", exact=True).first.wait_for(state="hidden")
    visit.settle()  # before anything that moves the page under a pointer
    visit.press("a", exact=True)
    visit.unfold("The same as a table")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download CSV").first.click()
    visit.settle()
    text = waiting.value.path().read_text(encoding="utf-8")
    assert [line.split(",")[2] for line in text.splitlines()] == ["query", "1", "1", "1", "0", "0", "1"]
    question, every = LESSONS[0].questions[0], 3 * len(LESSONS)
    wrong = next(c for c in question.choices if not c.right)
    visit.choose(wrong.text)
    visit.press("Check answer 1")
    visit.sees("Not this one:")
    visit.look("learn_wrong")
    visit.choose(question.answer.text)
    visit.press("Check answer 1")
    visit.sees(f"Answered 1 of {every} questions, 1 of them right.")
    page.get_by_text("Instructor view").click()
    visit.settle()
    page.get_by_text("All lessons at a glance").click()
    visit.sees("For instructors")
    visit.look("learn_instructor")
    visit.press("Next lesson: 2. Apart")
    visit.sees(LESSONS[1].title)
    visit.press("Open this plan in the studio")
    visit.sees("Typical error")
    visit.sees("4 groups, 12 queries")
    page.get_by_role("link", name="Learn").click()
    visit.sees(f"Answered 1 of {every} questions, 1 of them right.")

    # the guide
    with visit.run():
        page.get_by_test_id("stSidebarNav").get_by_role("link", name="Guide").click()
    visit.sees("A census table")
    visit.look("guide")
    page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    page.get_by_test_id("stExpander").get_by_text("As Python").click()
    visit.look("guide_narrow")  # no code that has to be scrolled without a keyboard
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    visit.choose("Release and verify")
    visit.sees("problems of the package: 0")
    page.get_by_test_id("stMainBlockContainer").evaluate(PLANTED)
    visit.look("planted")  # what is seen in one theme alone, and what has no colour
    visit.look("planted")
    planted = [one for one in visit.barriers if one[0] == "planted"]
    findings = {(scheme, rule, html.split(">")[0]) for _, scheme, rule, nodes in planted for html in nodes}
    visit.barriers[:] = [one for one in visit.barriers if one not in planted]
    assert findings == {
        ("light", "button-name", '<button id="c"'),
        ("dark", "button-name", '<button id="c"'),
        ("light", "color-contrast", '<p id="a"'),
        ("dark", "color-contrast", '<p id="b"'),
    }
