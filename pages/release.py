"""Release page: rehearsal on simulated records, release, and paid releases."""

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
    show_deferred_error,
    show_errors,
)

page_layout.require()

TABS = REHEARSE, RELEASE, PAID = "1. Rehearse", "2. Release", "3. Paid releases"
PAID_ALONE = "step_without_plan"
TUTORIAL = (
    "A **release** reads the records once, adds noise, and spends budget for good. A **rehearsal**"
    " does the same with simulated records and costs nothing. Everything computed from a release"
    " afterwards is free."
)


def start_rehearsal(plan: Plan, key: str, rows: int, seed: int) -> None:
    """Start a rehearsal and drop the previous one."""
    if (old := st.session_state.get("rehearsal", key)) != key:
        job_widget.release_job(old)
    st.session_state["rehearsal"] = key
    with deferred_errors("rehearsal"):
        file = private_tempdir.new_file("rehearsal")
        job_widget.start(key, tasks.rehearse, plan.to_json(), rows, seed, str(file), files=[file])


def rehearse(plan: Plan) -> str:
    """Draw the rehearsal: size, progress, answers and true counts; return its Python code."""
    left, middle, right = st.columns([1, 1, 2], vertical_alignment="bottom")
    rows = int(
        left.number_input(
            "Simulated records", 1, min(plan.max_records, 2_000_000), 10_000, key="rows"
        )
    )
    seed = int(middle.number_input("Random seed", 0, 2**31 - 1, 1, key="seed"))
    key = f"rehearsal|{plan.hash}|{rows}|{seed}"
    buttons.button("Rehearse", start_rehearsal, plan, key, rows, seed, key="rehearse", place=right)
    show_deferred_error("rehearsal")
    script = python_script.rehearsal_code(history.current(), rows=rows, seed=seed)
    finished_job = job_widget.job(key, label="Rehearsal")
    if finished_job is None:
        if job_queue.find(key) is None:
            st.info("No rehearsal of this plan yet. It costs nothing.", icon="🎭")
        return script
    measurement = load_rehearsal(plan, finished_job.result)
    st.warning(
        "REHEARSAL on simulated records: do not publish these numbers. Nothing was spent.",
        icon="🎭",
    )
    records = results_view.simulated(plan.schema.to_json(), rows, seed)
    check = lambda: results_view.coverage(plan, rows=rows, seed=seed)  # noqa: E731
    results_view.views(
        measurement,
        key="rehearsal",
        records=records,
        file=finished_job.result,
        more={"Check interval coverage": check},
    )
    return script


def release(plan: Plan) -> str:
    """Draw the release; return its Python code."""
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
        st.info("To continue, choose or register the dataset to charge.", icon="🗂️")
        return ""
    spent = release_form.attempts(book, status.dataset, plan)
    again = bool(spent) and st.checkbox(tasks.AGAIN, key=f"again_{len(spent)}")
    attempt = len(spent) + 1 if again or not spent else len(spent)
    interrupted = bool(spent) and not again and is_unfinished(book, spent[-1])
    if not spent or again or interrupted:
        next_key = release_key(dataset=status.dataset, plan_hash=plan.hash, attempt=attempt)
        release_form.running(book, next_key)
        job = job_queue.find(release_form.job_key(book, next_key))
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
    """Draw the stored result of a release, unless different records are chosen."""
    job = job_queue.find(release_form.job_key(book, key))
    if job is not None and job.running:
        release_form.running(book, key)
        return
    measurement = release_form.stored(book, key)
    if measurement is not None and release_form.same_records(book, key, source):
        release_form.receipt(book, key)
        results_view.views(measurement, key="release_result", ledger=str(book.path))


def require_plan() -> str:
    """Draw the text of a tab that needs a plan."""
    st.info("To continue, compute the plan first.", icon="⏳")
    return ""


studio = page_layout.header(
    page_layout.page("Release"),
    "Rehearse on simulated records, then release noisy counts of your records.",
    TUTORIAL,
)
current_plan = plans.plan_of(studio)
if current_plan is None:
    st.caption("A new release needs a plan. Paid releases do not.")
    if (studio.workload is None or not studio.workload.groups) and "step" not in st.session_state:
        st.session_state["step"], st.session_state[PAID_ALONE] = PAID, True
elif (
    st.session_state.pop(PAID_ALONE, False)
    and st.session_state.get(figure_view.OPEN, {}).get("step") == PAID
):
    # "Paid releases" was opened by the page, not by the user
    st.session_state["step"] = REHEARSE
# same tabs with and without a plan, because a changed set of tabs loses the open one
steps = (
    {REHEARSE: partial(rehearse, current_plan), RELEASE: partial(release, current_plan)}
    if current_plan
    else dict.fromkeys(TABS, require_plan)
)
with show_errors():
    script = figure_view.tabs(steps | {PAID: release_history.draw}, key="step")
page_layout.footer(code=script or python_script.plan_code(studio), target=None)
