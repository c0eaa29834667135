"""Compare page: all mechanisms on the present workload and budget, before any record is read."""

from pages.parts import compare_code, compare_plans, compare_run, compare_views, frame, show
from pages.parts.words import shown_here

frame.require()

TUTORIAL = (
    "A **mechanism** decides what is measured and with how much noise. All of them keep the same budget; which one "
    "answers best depends on the queries. This page plans your workload with each, in a process of its own, and sets "
    "it against a **bound that no matrix mechanism whatsoever can go below**. Plans hold no data, so comparing costs "
    "nothing and tells nothing about anyone. Take the winner into the studio with its *Use* button."
)
VIEWS = {
    "Ranking": compare_views.ranking,
    "How errors spread": compare_views.spreads,
    "A against B": compare_views.against,
    "Strategies": compare_views.strategies,
    "Two plans": compare_plans.difference,
    "Published numbers": compare_plans.book,
}

studio = frame.header(
    frame.page("Compare"),
    "See which mechanism answers your queries best, and how far it is from the best possible.",
    TUTORIAL,
)
found = compare_run.run(studio)
with shown_here():
    script = show.tabs(VIEWS, key="compare_view", arguments=(studio, found))
frame.footer(
    code=script or compare_code.compare(studio, found),
    target=frame.page("Release"),
    reason="" if studio.workload is not None and studio.workload.groups else "there is no workload yet.",
)
