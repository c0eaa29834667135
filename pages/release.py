"""Release page: rehearsal, file, who pays, confirmation; then the result of the release."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from engine.ledger import Ledger, release_key
from engine.plans import Plan
from engine.release.measure import is_unfinished, load_rehearsal
from pages.parts.coarse import release_history
from pages.parts.jobs import job_queue, job_widget, plans, tasks
from pages.parts.release import (
    dataset_form,
    records_form,
    rehearsal_size,
    release_form,
    result_page,
    results_view,
    wizard,
)
from pages.parts.shell import buttons, figure_view, history, page_layout, python_script
from pages.parts.shell.error_text import show_deferred_error, show_errors
from pages.parts.workload import publication_weights_form

page_layout.require()

STEP = "step"
TITLES = REHEARSE, FILE, PAYER, CONFIRM, PAST = (
    wizard.REHEARSE,
    "2. File",
    "3. Who pays",
    "4. Confirm",
    "Past releases",
)
QUESTIONS = {
    REHEARSE: "What will come out? Try it on simulated records.",
    FILE: "Which file has the records?",
    PAYER: "Which dataset pays for the release?",
    CONFIRM: "Release now?",
    PAST: "What has been released?",
}
RESULT = "Noisy counts with 95% intervals"
TUTORIAL = (
    "A **release** reads the records once, adds noise, and spends budget for good. A **rehearsal**"
    " does the same with simulated records and costs nothing. Everything computed from a release"
    " afterwards is free."
)


def rehearse(plan: Plan) -> str:
    """Draw step 1: the rehearsal on simulated records, with true counts beside the answers.

    Return its Python code.
    """
    left, middle, right = st.columns([4, 3, 9], vertical_alignment="bottom")
    rows = rehearsal_size.records_field(left, "rows", plan.schema, plan.max_records)
    seed = rehearsal_size.seed(middle, "seed")
    key = rehearsal_size.job_key(plan, rows, seed)
    with right.container(horizontal=True):
        is_done = job_queue.find(key) is not None
        buttons.button(
            "Rehearse",
            rehearsal_size.start,
            plan,
            rows,
            seed,
            key="rehearse",
            type="secondary" if is_done else "primary",
        )
        wizard.next_button(FILE, key=STEP, is_primary=is_done)
    show_deferred_error("rehearsal")
    weights_form = ("Weights for published tables", publication_weights_form.draw)
    figure_view.folds({"published": weights_form})
    script = python_script.rehearsal_code(history.current(), rows=rows, seed=seed)
    if job_queue.find(key) is None:
        former = rehearsal_size.finished(plan)
        if former is None:
            st.info(
                "Not rehearsed yet. A rehearsal costs nothing; a reload of the page discards it. The"
                " same seed gives the same numbers again.",
                icon="🎭",
            )
            return script
        rehearsal_size.draw_former(former, (rows, seed))
        rows, seed = former
        key = rehearsal_size.job_key(plan, rows, seed)
    finished_job = job_widget.job(key, label="Rehearsal")
    if finished_job is None:
        return script
    rehearsal_size.remember_finished(plan, rows, seed)
    measurement = load_rehearsal(plan, finished_job.result)
    rehearsal_size.draw_warning("rows", plan.schema)
    rehearsal_size.what_determines(plan.to_json(), rows, seed)
    records = results_view.simulated_records(plan.schema.to_json(), rows, seed)
    results_view.views(
        measurement,
        key="rehearsal",
        records=records,
        file=finished_job.result,
        more={"Check interval coverage": lambda: results_view.coverage(plan, rows=rows, seed=seed)},
    )
    return script


def choose_file(plan: Plan) -> str:
    """Draw step 2: the choice and the check of the records; return the code of the release."""
    source = records_form.source(plan.budget.rows_per_person, plan.schema.person)
    st.caption("Rows that do not fit the schema are dropped. Only you see how many.")
    book = dataset_form.ledger_of_form()
    status = dataset_form.dataset_of_form(book, plan.schema)
    release_form.check(
        book,
        plan,
        "" if status is None else status.dataset,
        source,
        checks_now=release_form.is_small_upload(source),
    )
    wizard.next_button(PAYER, key=STEP, reason=source.problem(plan.schema) or source.unreadable)
    return code(plan, source)


def choose_payer(plan: Plan) -> str:
    """Draw step 3: the choice of ledger and dataset; return the code of the release."""
    describe = lambda status: dataset_form.payment(status, plan.budget)  # noqa: E731
    dataset_form.choose(plan.schema, plan.budget, describe, (STEP, CONFIRM))
    book = dataset_form.ledger_of_form()
    status = dataset_form.dataset_of_form(book, plan.schema)
    dataset_form.remember(status)
    source = records_form.source_of_form(plan.budget.rows_per_person, plan.schema.person)
    reason = "" if status is not None else "choose or create the dataset to charge."
    is_next = True
    if book is not None and status is not None:
        keys = release_form.attempts(book, status.dataset, plan)
        is_next = not keys and dataset_form.can_pay(status, plan.budget)
        if keys and not is_unfinished(book, keys[-1]):
            show_released(book, keys[-1], source)
    wizard.next_button(CONFIRM, key=STEP, reason=reason, is_primary=is_next)
    return code(plan, source)


def confirm(plan: Plan) -> str:
    """Draw step 4: the typed confirmation, or the progress of the release; return its script.

    If the plan was released already, this step shows that release. A checkbox repeats it with new
    noise at full cost.
    """
    source = records_form.source_of_form(plan.budget.rows_per_person, plan.schema.person)
    book = dataset_form.ledger_of_form()
    status = dataset_form.dataset_of_form(book, plan.schema)
    dataset_form.remember(status)
    if book is None or status is None:
        changed = (
            " The schema has changed since you chose one."
            if dataset_form.is_forgotten(plan.schema)
            else ""
        )
        wizard.missing(f"choose the dataset to charge.{changed}", PAYER, key=STEP)
        return ""
    keys = release_form.attempts(book, status.dataset, plan)
    repeat = bool(keys) and st.checkbox(tasks.AGAIN, key=f"again_{len(keys)}")
    is_new = repeat or not keys
    attempt = len(keys) + 1 if is_new else len(keys)
    # The last release was charged, but has no stored result.
    interrupted = not is_new and is_unfinished(book, keys[-1])
    if is_new or interrupted:
        key = release_key(dataset=status.dataset, plan_hash=plan.hash, attempt=attempt)
        release_form.running(book, key)
        job = job_queue.find(release_form.job_key(book, key))
        if job is None or not job.running:
            records_form.draw_missing_upload(FILE, key=STEP)
            release_form.confirm(book, plan, status, source, attempt, interrupted=interrupted)
    else:
        show_released(book, keys[-1], source)
    return code(plan, source)


def show_released(book: Ledger, key: str, source: records_form.Source) -> None:
    """Show that the plan was released: the progress of the release, or access to its result.

    If this session started the release, its result opens at once. Otherwise a button opens the
    result, unless other records were measured than the chosen ones: then an error is drawn.
    """
    job = job_queue.find(release_form.job_key(book, key))
    if job is not None and job.running:
        release_form.running(book, key)
        return
    if release_form.stored_measurement(book, key) is None:
        return
    if wizard.was_started("release", key):
        page_layout.mark_released()
        wizard.open_result("release", key)
        st.rerun()
    if release_form.same_records(book, key, source):
        spend = dataset_form.spent(book, key)
        st.info(
            f"This plan was released on {dataset_form.time_text(spend.utc)}. Showing the result"
            " again costs nothing.",
            icon="✅",
        )
        buttons.button(
            "Show the result", wizard.open_result, "release", key, key="open_result", type="primary"
        )


def code(plan: Plan, source: records_form.Source) -> str:
    """Return the Python code of the release; empty until a dataset is chosen."""
    book = dataset_form.ledger_of_form()
    status = dataset_form.dataset_of_form(book, plan.schema)
    if book is None or status is None:
        return ""
    spent = release_form.attempts(book, status.dataset, plan)
    again = bool(spent) and bool(st.session_state.get(f"again_{len(spent)}"))
    return python_script.release_code(
        history.current(),
        dataset=status.dataset,
        ledger=str(book.path.name),
        records=source.script,
        attempt=len(spent) + 1 if again or not spent else len(spent),
        columns=source.columns,
    )


def require_plan() -> str:
    """Draw a note that the plan must be computed first; return empty Python code."""
    st.info("To continue, compute the plan first.", icon="⏳")
    return ""


def steps(plan: Plan | None) -> dict[str, Callable[[], str | None]]:
    """Return a mapping from the title of each step to the function that draws it.

    The titles do not depend on the plan, because Streamlit opens the first tab again when the
    titles of the tabs change.
    """
    draws = (rehearse, choose_file, choose_payer, confirm)
    step_functions = [partial(draw, plan) if plan is not None else require_plan for draw in draws]
    return dict(zip(TITLES, [*step_functions, release_history.draw], strict=True))


had_result = bool(st.session_state.get("release_open"))
result = wizard.open_release_key("release")
if had_result and not result:
    # The request has changed since the release, so a new release starts with its first step.
    wizard.open_step(STEP, REHEARSE)
question = QUESTIONS[wizard.current(QUESTIONS, key=STEP)]
request_state = page_layout.header(
    page_layout.page("Release"), RESULT if result else question, TUTORIAL
)
script: str | None = ""
if result:
    script = result_page.draw(result, {"New release": REHEARSE, "Past releases": PAST})
else:
    with show_errors():
        current_plan = plans.plan_of(request_state)
        if request_state.workload is None or not request_state.workload.groups:
            st.caption("A new release needs a plan. Past releases do not.")
            release_history.draw()
        else:
            script = wizard.draw(steps(current_plan), key=STEP)
page_layout.footer(code=script or python_script.plan_code(request_state), target=None)
