"""CPU seconds of every page of the app with hundreds of attributes, and how soon Compare shows its quick mechanisms.

    python -m benchmarks.pages                   all pairs of 500 attributes: 124,750 groups
    python -m benchmarks.pages --attributes 100  fewer
    python -m benchmarks.pages --write           print and keep the result in benchmarks/pages.txt

Pages run without a browser, in the order in which a person comes by.  The first draw of a page makes what is not there
yet, plans above all; again is the draw after it, as for every click.  CPU seconds are those of the app's own process,
workers left out.  Plans of the quick ones are waited for from the moment that the page is opened, on demos, in seconds
that pass on the clock.
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
from pages.parts.jobs import plans, work
from pages.parts.shell import frame, state

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600.0  # seconds that one draw may take before it is given up
DEMOS = {"CPS, up to 3-way": ("cps", (1, 2, 3)), "Adult, up to 2-way": ("adult", (1, 2))}


def session(workload: Workload) -> AppTest:
    """A session that asks a workload, on no page yet."""
    app = AppTest.from_file(ROOT / "app.py", default_timeout=LIMIT)
    app.session_state[state.KEY] = state.History(present=state.Studio(workload=workload))
    return app


def draw(app: AppTest, file: str = "") -> float:
    """CPU seconds of one draw, of another page where a file is given."""
    if file:
        app.switch_page(file)
    begun = time.process_time()
    app.run()
    assert not app.exception, [str(one.value) for one in app.exception]
    return time.process_time() - begun


def quick_ones(workload: Workload) -> tuple[int, float]:
    """How many mechanisms have a plan soon after the page was opened, and the seconds until the last of them had."""
    app, choices = session(workload), variants()
    quick = quick_choices(expected_costs(workload, Budget(pcost=1.0), list(choices.values())))
    asked, there, last, running = [choices[label] for label in quick], 0, 0.0, True
    begun = time.monotonic()
    draw(app, frame.page("Compare").file)
    while running and there < len(quick):
        status = work.find(app.session_state[run.LAST])
        running = status is not None and status.running
        found = partial_comparison(workload, Budget(pcost=1.0), asked, time_limit=float(run.START_LIMIT))
        if found is not None and len(found.plans) > there:
            there, last = len(found.plans), time.monotonic() - begun
        time.sleep(0.05)
    return there, last


def main() -> None:
    """Print both tables."""
    parser = options(__file__, __doc__)
    parser.add_argument("--attributes", type=int, default=500, help="two-valued ones, 500 when left out")
    given = parser.parse_args()
    plans.AT_ONCE = plans.PATIENCE = LIMIT  # the plan is made in the page, so that its seconds count
    schema = Schema([Attribute.of_size(f"question {i}", 2, kind="categorical") for i in range(given.attributes)])
    asked = Workload.all_ways(schema, 2)
    with table(__file__, write=given.write) as show:
        show("Seconds from opening Compare until the quick mechanisms stand there", "")
        for title, (name, ways) in DEMOS.items():
            demo = Schema.from_json(demo_data.schemas()[name].read_bytes())
            count, seconds = quick_ones(Workload.all_ways(demo, ways))
            show(f"{title:<24}{count} mechanisms{seconds:>8.2f}")
        show(
            "",
            f"{given.attributes:,} two-valued attributes, {len(asked.groups):,} pairs: CPU seconds of a page",
            "",
        )
        show(f"{'page':<16}{'first':>8}{'again':>8}")
        app = session(asked)
        for page in frame.PAGES:
            show(f"{page.title:<16}{draw(app, page.file):>8.2f}{draw(app):>8.2f}")


if __name__ == "__main__":
    main()
