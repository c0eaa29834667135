"""CPU seconds of app pages with large schemas; time of quick comparisons.

    python -m benchmarks.pages                   all pairs of 500 attributes: 124,750 groups;
                                                 counties by sex and age
    python -m benchmarks.pages --attributes 100  fewer
    python -m benchmarks.pages --write           print and save the result in benchmarks/pages.txt

Pages run without a browser, in the order of the app. The first run of a page includes new plans;
again is the next run, as after a click. CPU seconds are those of the app process, without workers.
Times of quick mechanisms are seconds of wall-clock time from opening the page, on demo data.
"""

from __future__ import annotations

import time
from pathlib import Path

from streamlit.testing.v1 import AppTest

import demo_data
from benchmarks import options, table
from engine.analysis import partial_comparison
from engine.analysis.compare import expected_costs, quick_choices
from engine.mechanisms import variants
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.compare import run
from pages.parts.jobs import job_queue, plans
from pages.parts.shell import history, page_layout
from tests.code_lists import N_COUNTIES, counties_workload

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600.0  # seconds per run of a page
DEMOS = {"CPS, up to 3-way": ("cps", (1, 2, 3)), "Adult, up to 2-way": ("adult", (1, 2))}


def session(workload: Workload) -> AppTest:
    """Return a session with a workload, before it opens a page."""
    app = AppTest.from_file(ROOT / "app.py", default_timeout=LIMIT)
    app.session_state[history.KEY] = history.History(
        present=history.RequestState(workload=workload)
    )
    return app


def draw(app: AppTest, file: str = "") -> float:
    """Return the CPU seconds of a run of the open page, or of the page with this file."""
    if file:
        app.switch_page(file)
    start = time.process_time()
    app.run()
    assert not app.exception, [str(one.value) for one in app.exception]
    return time.process_time() - start


def time_quick_plans(workload: Workload) -> tuple[int, float]:
    """Return the number of quick mechanisms with a plan, and the seconds until the last plan."""
    app, choices = session(workload), variants()
    quick = quick_choices(expected_costs(workload, Budget(pcost=1.0), list(choices.values())))
    quick_variants, there, last, running = [choices[label] for label in quick], 0, 0.0, True
    start = time.monotonic()
    draw(app, page_layout.page("Compare").file)
    while running and there < len(quick):
        status = job_queue.find(app.session_state[run.LAST])
        running = status is not None and status.running
        partial = partial_comparison(
            workload, Budget(pcost=1.0), quick_variants, time_limit=float(run.DEFAULT_LIMIT_S)
        )
        if partial is not None and len(partial.plans) > there:
            there, last = len(partial.plans), time.monotonic() - start
        time.sleep(0.05)
    return there, last


def main() -> None:
    """Print the tables."""
    parser = options(__file__, __doc__)
    parser.add_argument(
        "--attributes", type=int, default=500, help="number of attributes, of two values each"
    )
    args = parser.parse_args()
    schema = Schema(
        [Attribute.of_size(f"question {i}", 2, kind="categorical") for i in range(args.attributes)]
    )
    workload = Workload.all_ways(schema, 2)
    with table(__file__, write=args.write) as show:
        show("Seconds from opening Compare until the quick mechanisms are ranked", "")
        for title, (name, ways) in DEMOS.items():
            demo = Schema.from_json(demo_data.schemas()[name].read_bytes())
            count, seconds = time_quick_plans(Workload.all_ways(demo, ways))
            show(f"{title:<24}{count} mechanisms{seconds:>8.2f}")
        # plans are computed in the page, so that their seconds count
        plans.QUICK_S = plans.LIVE_S = plans.PAGE_LIMIT_S = LIMIT
        pairs = f"{args.attributes:,} two-valued attributes, {len(workload.groups):,} pairs"
        counties = f"{N_COUNTIES:,} counties in states, by sex and 18 classes of age"
        for title, large in ((pairs, workload), (counties, counties_workload())):
            show("", f"{title}: CPU seconds of a page", "")
            show(f"{'page':<16}{'first':>8}{'again':>8}")
            app = session(large)
            for page in page_layout.PAGES:
                show(f"{page.title:<16}{draw(app, page.file):>8.2f}{draw(app):>8.2f}")


if __name__ == "__main__":
    main()
