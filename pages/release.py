"""Release page: rehearse on simulated records, then measure the real ones once and hand out the
answers.
"""

from functools import partial

import streamlit as st

from engine.ledger import Ledger, release_key
from engine.plans import Plan
from engine.release.measure import is_unfinished, load_rehearsal
from pages.parts.coarse import release_history
from pages.parts.jobs import job_queue, job_widget, plans, private_tempdir, tasks
from pages.parts.release import dataset_form, records_form, release_form, results_view
from pages.parts.shell import buttons, figure_view, history, page_layout, python_script
from pages.parts.shell.error_text import (
    deferred_errors,
    escape_markdown,
    show_deferred_error,
    show_errors,
)

page_layout.require()

TABS = REHEARSE, RELEASE, PAID = "1. Rehearse", "2. Release", "3. Paid releases"
PAID_ALONE = "step_without_plan"
TUTORIAL = (
    "A **release** reads the records once, adds exact discrete noise, and takes its cost from the"
    " dataset's budget for good. **Rehearse first**: the same code on simulated records shows what"
    " the answers will look like, costs nothing, and tells nothing about anyone. Everything"
    " computed from a release afterwards is free."
)


def start_rehearsal(plan: Plan, key: str, rows: int, seed: int) -> None:
    """Start the rehearsal and drop the one before it."""
    if (old := st.session_state.get("rehearsal", key)) != key:
        job_widget.release_job(old)
    st.session_state["rehearsal"] = key
    with deferred_errors("rehearsal"):
        file = private_tempdir.new_file("rehearsal")
        job_widget.start(key, tasks.rehearse, plan.to_json(), rows, seed, str(file), files=[file])


def rehearse(plan: Plan) -> str:
    """The rehearsal: its size, its progress, its answers beside the truth; returns the Python code
    of it.
    """
    left, middle, right = st.columns([1, 1, 2], vertical_alignment="bottom")
    rows = int(
        left.number_input(
            "Simulated records", 1, min(plan.max_records, 2_000_000), 10_000, key="rows"
        )
    )
    seed = int(middle.number_input("Seed of the simulation", 0, 2**31 - 1, 1, key="seed"))
    key = f"rehearsal|{plan.hash}|{rows}|{seed}"
    buttons.button("Rehearse", start_rehearsal, plan, key, rows, seed, key="rehearse", place=right)
    show_deferred_error("rehearsal")
    script = python_script.rehearsal_code(history.current(), rows=rows, seed=seed)
    done = job_widget.job(key, label="Rehearsal")
    if done is None:
        if job_queue.find(key) is None:
            st.info(
                "Nothing rehearsed yet with this plan and this size. Press Rehearse; it costs"
                " nothing.",
                icon="🎭",
            )
        return script
    measurement = load_rehearsal(plan, done.result)
    st.warning(
        "REHEARSAL on simulated records: nothing here may be published, and nothing was spent.",
        icon="🎭",
    )
    records = results_view.simulated(plan.schema.to_json(), rows, seed)
    check = lambda: results_view.coverage(plan, rows=rows, seed=seed)  # noqa: E731
    results_view.views(
        measurement,
        key="rehearsal",
        records=records,
        file=done.result,
        more={"Do the intervals hold?": check},
    )
    return script


def release(plan: Plan) -> str:
    """The release; returns the Python code of what is on screen."""
    left, right = st.columns(2, gap="large")
    with left:
        book = dataset_form.ledger()
    if book is None:
        return ""
    with left:
        status = dataset_form.dataset(book)
    with right:
        source = records_form.source(plan.budget.rows_per_person, plan.schema.person)
    dataset_form.remember(status)
    if status is None:
        st.info("Declare the dataset whose budget pays for this release.", icon="🗂️")
        return ""
    spent = release_form.attempts(book, status.dataset, plan)
    again = bool(spent) and st.checkbox(tasks.AGAIN, key=f"again_{len(spent)}")
    attempt = len(spent) + 1 if again or not spent else len(spent)
    interrupted = bool(spent) and not again and is_unfinished(book, spent[-1])
    if not spent or again or interrupted:
        waiting = release_key(dataset=status.dataset, plan_hash=plan.hash, attempt=attempt)
        release_form.running(book, waiting)
        job = job_queue.find(release_form.job_key(book, waiting))
        if job is None or not job.running:
            release_form.confirm(book, plan, status, source, attempt, interrupted=interrupted)
    else:
        results(book, spent[-1], source)
    return python_script.release_code(
        history.current(),
        dataset=status.dataset,
        ledger=str(book.path.name),
        records=source.script,
        attempt=attempt,
        columns=source.columns,
    )


def results(book: Ledger, key: str, source: records_form.Source) -> None:
    """The stored result of a release, however the page was reached, unless other records are
    chosen.
    """
    job = job_queue.find(release_form.job_key(book, key))
    if job is not None and job.running:
        release_form.running(book, key)
        return
    measurement = release_form.stored(book, key)
    if measurement is not None and release_form.same_records(book, key, source):
        release_form.receipt(book, key)
        results_view.views(measurement, key="release_result", ledger=str(book.path))


def wait() -> str:
    """What stands in a tab that has to wait for the plan."""
    st.info("This needs the plan of what is chosen on the pages before.", icon="⏳")
    return ""


studio = page_layout.header(
    page_layout.page("Release"),
    "Rehearse, then measure the records once and hand out the answers.",
    TUTORIAL,
)
made = plans.plan_of(studio)
if made is None:
    st.caption(
        escape_markdown(
            "A new release needs a plan. What was paid for before is found in the ledger, without"
            " any."
        )
    )
    if (studio.workload is None or not studio.workload.groups) and "step" not in st.session_state:
        st.session_state["step"], st.session_state[PAID_ALONE] = PAID, True
elif (
    st.session_state.pop(PAID_ALONE, False)
    and st.session_state.get(figure_view.OPEN, {}).get("step") == PAID
):
    st.session_state["step"] = (
        REHEARSE  # nobody asked for what was paid: nothing else could be shown
    )
# the same tabs whether the plan is there yet or not: others would be drawn anew, without the one
# that was open
steps = (
    {REHEARSE: partial(rehearse, made), RELEASE: partial(release, made)}
    if made
    else dict.fromkeys(TABS, wait)
)
with show_errors():
    script = figure_view.tabs(steps | {PAID: release_history.draw}, key="step")
page_layout.footer(code=script or python_script.plan_code(studio), target=None)
