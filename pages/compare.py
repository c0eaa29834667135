"""Compare page: all mechanisms on the current workload and budget, and the choice of one."""

from pages.parts.compare import mechanism, run, two_plans, views
from pages.parts.compare import script as compare_code
from pages.parts.shell import figure_view, page_layout
from pages.parts.shell.error_text import show_errors

page_layout.require()

TUTORIAL = (
    "A **mechanism** decides what is measured and how much noise is added. All mechanisms spend"
    " the same budget. The **bound** is the smallest error that any matrix mechanism can have."
    " Comparing reads no records and spends nothing."
)
VIEWS = {
    "Ranking": views.ranking,
    "Differences": views.differences,
    "Other budgets": views.other_budgets,
    "Strategies": views.strategies,
    "Plans": two_plans.plans_view,
}

request_state = page_layout.header(
    page_layout.page("Compare"),
    "Which mechanism is most accurate for your queries?",
    TUTORIAL,
)
compared = run.run(request_state)
with show_errors():
    script = figure_view.tabs(VIEWS, key="compare_view", arguments=(request_state, compared))
mechanism.draw(request_state, compared)
page_layout.footer(
    code=script or compare_code.compare(request_state, compared),
    target=page_layout.page("Release"),
    reason=(
        ""
        if request_state.workload is not None and request_state.workload.groups
        else "there is no workload yet."
    ),
)
