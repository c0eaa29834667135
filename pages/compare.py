"""Compare page: all mechanisms on the current workload and budget."""

from pages.parts.compare import run, two_plans, views
from pages.parts.compare import script as compare_code
from pages.parts.shell import figure_view, page_layout
from pages.parts.shell.error_text import show_errors

page_layout.require()

TUTORIAL = (
    "A **mechanism** decides what is measured and how much noise is added. All mechanisms spend"
    " the same budget; which one is most accurate depends on the queries. The **bound** is the"
    " theoretical limit for any matrix mechanism. Comparing reads no records and spends nothing."
)
VIEWS = {
    "Ranking": views.ranking,
    "Other budgets": views.other_budgets,
    "Error distribution": views.spreads,
    "A and B": views.against,
    "Strategies": views.strategies,
    "Two plans": two_plans.difference,
    "Reproduce the papers": two_plans.paper_numbers,
}

studio = page_layout.header(
    page_layout.page("Compare"),
    "See which mechanism is most accurate for your queries.",
    TUTORIAL,
)
compared = run.run(studio)
with show_errors():
    script = figure_view.tabs(VIEWS, key="compare_view", arguments=(studio, compared))
page_layout.footer(
    code=script or compare_code.compare(studio, compared),
    target=page_layout.page("Release"),
    reason=(
        ""
        if studio.workload is not None and studio.workload.groups
        else "there is no workload yet."
    ),
)
