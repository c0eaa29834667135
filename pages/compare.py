"""Compare page: all mechanisms on the present workload and budget, before any record is read."""

from pages.parts.compare import run, two_plans, views
from pages.parts.compare import script as compare_code
from pages.parts.shell import figure_view, page_layout
from pages.parts.shell.error_text import show_errors

page_layout.require()

TUTORIAL = (
    "A **mechanism** decides what is measured and with how much noise. All of them keep the same"
    " budget; which one answers best depends on the queries. This page plans your workload with"
    " each, in a process of its own, and sets it against a **bound that no matrix mechanism"
    " whatsoever can go below**. Plans hold no data, so comparing costs nothing and tells nothing"
    " about anyone. Take the winner into the studio with its *Use* button."
)
VIEWS = {
    "Ranking": views.ranking,
    "Other budgets": views.other_budgets,
    "How errors spread": views.spreads,
    "A against B": views.against,
    "Strategies": views.strategies,
    "Two plans": two_plans.difference,
    "Published numbers": two_plans.book,
}

studio = page_layout.header(
    page_layout.page("Compare"),
    "See which mechanism answers your queries best, and how far it is from the best possible.",
    TUTORIAL,
    folded=True,
)
found = run.run(studio)
with show_errors():
    script = figure_view.tabs(VIEWS, key="compare_view", arguments=(studio, found))
page_layout.footer(
    code=script or compare_code.compare(studio, found),
    target=page_layout.page("Release"),
    reason=(
        ""
        if studio.workload is not None and studio.workload.groups
        else "there is no workload yet."
    ),
)
