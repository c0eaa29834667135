"""Preview page in a browser: layout, what-if changes, targets and bound."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

import demo_data
from engine.workload import Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.browser.conftest import HEIGHT, WIDTH, Visit
from tests.browser.screens import IS_CUT

WORKLOAD = Workload.all_ways(Schema.from_json(demo_data.schemas()["survey"].read_bytes()), (1, 2))
PREVIEW_PATH = f"preview?{permalink.NAME}={permalink.packed(RequestState(workload=WORKLOAD))}"
UNIFORM = RequestState(workload=WORKLOAD, options={"centers": "uniform"})
UNIFORM_PATH = f"preview?{permalink.NAME}={permalink.packed(UNIFORM)}"


def is_in_window(visit: Visit, locator: Locator) -> bool:
    """Return whether the left edge and the upper 36 pixels of an element are in the window."""
    box, window = locator.first.bounding_box(), visit.page.viewport_size
    return (
        box["y"] >= 0
        and box["y"] + min(box["height"], 36) <= window["height"]
        and box["x"] < window["width"]
    )


WINDOW_SIZES = ((1440, 900), (1100, 700))


def test_preview_fits_window_and_selects_groups(visit: Visit) -> None:
    page = visit.page
    for width, height in WINDOW_SIZES:
        page.set_viewport_size({"width": width, "height": height})
        if width == WINDOW_SIZES[0][0]:
            visit.open(PREVIEW_PATH)
        visit.expect_text("Gap to the best possible")
        visit.settle()
        for locator in (
            page.get_by_role("slider", name="Privacy budget"),
            page.get_by_text("Typical error (counts)"),
            page.get_by_text("Largest error (counts)"),
            page.get_by_text("Gap to the best possible"),
            page.get_by_test_id("stDataFrame"),
            page.get_by_role("combobox", name="Table"),
            page.get_by_test_id("stPlotlyChart"),
        ):
            assert is_in_window(visit, locator), (width, locator)
        if width == WINDOW_SIZES[0][0]:
            grid = page.get_by_test_id("stDataFrame").first
            # no column of the table is cut off at the side
            assert grid.evaluate(IS_CUT) is False
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})

    # a click on a row of the table selects a group
    group = visit.page.get_by_role("combobox", name="Table").first
    before = group.input_value()
    with visit.run():
        visit.page.get_by_test_id("stDataFrame").first.click(position={"x": 15, "y": 35 * 4 + 18})
    expect(group).not_to_have_value(before)
    clicked = group.input_value()
    visit.choose("1-way")
    # the selected group remains selected
    expect(group).to_have_value(clicked)
    visit.pick("Table", "1: ")
    expect(group).not_to_have_value(clicked)
    visit.take_picture("30_group")

    # the map of errors per pair of attributes
    visit.choose("Map")
    visit.expect_text("Largest standard error per pair")
    visit.settle()
    plot = visit.page.get_by_test_id("stPlotlyChart").first
    # labels are numbered, and long names end with an ellipsis
    labels = plot.locator(".ytick text").all_text_contents()
    starts = [label.rsplit(maxsplit=1)[0].removesuffix("…") for label in labels]
    names = [next(n for n in WORKLOAD.schema.names if n.startswith(start)) for start in starts]
    assert sorted(names) == sorted(WORKLOAD.schema.names)
    box = plot.locator(".nsewdrag").bounding_box()
    for first, second in (("party", "vote"), ("education", "age")):
        x, y = ((names.index(name) + 0.5) / len(names) for name in (second, first))
        point = box["x"] + x * box["width"], box["y"] + y * box["height"]
        # the figure ignores a click on a cell that it has not marked yet
        visit.page.mouse.move(*point)
        plot.locator(".hoverlayer .hovertext").first.wait_for()
        with visit.run():
            visit.page.mouse.click(*point)
        pair = " × ".join(name for name in WORKLOAD.schema.names if name in (first, second))
        expect(group).to_have_value(re.compile(rf"^\d+: {pair}, "))
    visit.check_accessibility("30_map")


def test_ways_to_reduce_error_follow_short_list_of_tables(visit: Visit) -> None:
    tables = Workload(WORKLOAD.schema).add("vote").add("age", "prefix").add("party")
    short = RequestState(workload=tables)
    path = f"preview?{permalink.NAME}={permalink.packed(short)}"
    tops = {}
    for name, address in (("short", path), ("long", PREVIEW_PATH)):
        visit.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        visit.open(address)
        if name == "short":
            visit.pick("Table", "2: age")  # a table with a chart
        ways = visit.page.get_by_text("Ways to reduce this error")
        ways.wait_for()
        tops[name] = ways.bounding_box()["x"]
        grid = visit.page.get_by_test_id("stDataFrame").first.bounding_box()
        selected = visit.page.get_by_role("combobox", name="Table").first.bounding_box()
        assert grid["x"] + grid["width"] <= selected["x"]
    assert tops["short"] == grid["x"]  # below the list, over the whole width
    assert tops["long"] >= grid["x"] + grid["width"]


def test_preview_changes_targets_queries_and_bound_work(visit: Visit) -> None:
    visit.open(PREVIEW_PATH)
    visit.expect_text("Ways to reduce this error")
    visit.take_picture("30_why")
    visit.page.get_by_role("button", name="Sources of error").click()
    visit.choose("Least accurate query")
    visit.expect_text("Standard error")
    visit.page.keyboard.press("Escape")
    for label in ("Use 4 × the weight", "Raise ε from 4.887 to 7.287"):
        visit.expect_text(label)
        visit.press(label)
        visit.expect_text("What if:")
        visit.expect_text("Apply this change")
    visit.check_accessibility("30_what_if")
    visit.press("Apply this change")
    expect(visit.page.get_by_text("What if:")).to_have_count(0)
    visit.open(UNIFORM_PATH)
    # Tuning the split lowers the error of this table.
    visit.pick("Table", "11: ")
    visit.expect_text("Tune the split")
    visit.press("Tune the split")
    visit.page.get_by_role("button", name="Apply this change").wait_for()
    visit.take_picture("31_what_if_tuned")
    visit.press("Discard this change")
    expect(visit.page.get_by_text("What if:")).to_have_count(0)

    # Set the budget that meets a target error, and undo this change.
    visit.unfold("Find the budget for a target error")
    visit.number("Tolerance (± counts)", "4")
    visit.expect_text("For 95% of the queries to meet this:")
    visit.check_accessibility("30_target")
    slider = visit.page.get_by_role("slider", name="Privacy budget")
    before = slider.get_attribute("aria-valuetext")
    visit.press("Use this budget")
    expect(slider).not_to_have_attribute("aria-valuetext", before)
    expect(visit.page.get_by_role("spinbutton", name="Tolerance (± counts)")).to_have_value("4")
    visit.press("Undo")
    expect(slider).to_have_attribute("aria-valuetext", before)

    # a query that is not in the workload
    visit.choose("One query")
    visit.choose("Draw a range")
    visit.expect_text("95% interval at other budgets")
    last = visit.page.get_by_test_id("stPlotlyChart").count() - 1
    # The box contains the middles of the cells 21 to 40 of 82.
    visit.drag((0.2561, 0.5), (0.5, 0.6), chart=last - 1)
    visit.expect_text(
        "39 ≤ age < 59" if visit.page.get_by_text("39 ≤ age < 59").count() else "age in [39, 59)"
    )
    visit.expect_text("95% interval at other budgets")
    visit.take_picture("30_probe")
    visit.number("Target 95% interval (± counts)", "5")
    visit.expect_text("For an interval of ± 5.00:")
    visit.unfold("How close to optimal")
    visit.page.get_by_text("theoretical limit for any matrix mechanism").first.wait_for()
    visit.check_accessibility("30_distance")
