"""Rehearsal of a two-stage release on simulated records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from engine import figures
from engine.common_mechanism import CommonPlan
from engine.release.measure import load_rehearsal
from pages.parts.coarse import candidates_form, views
from pages.parts.coarse import script as coarse_code
from pages.parts.coarse.candidates_form import Settings
from pages.parts.jobs import job_queue, job_widget, private_tempdir, tasks
from pages.parts.release import rehearsal_size, results_view
from pages.parts.shell import buttons
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.shell.python_script import Script

# Session key of the job key, the number of records and the seed of the first measurement that the
# page shows.
FINISHED = "coarse_rehearsal_finished"
BUTTON = "Rehearse the first measurement"


def start_look(common: CommonPlan, key: str, rows: int, seed: int) -> None:
    """Start the first measurement of simulated records, and discard the previous rehearsal."""
    for old in st.session_state.pop("coarse_rehearsed", []):
        job_widget.release_job(old)
    begin(key, tasks.rehearse_look, common.to_json(), rows, seed)


def start_if_quick(common: CommonPlan) -> None:
    """Start the first measurement of simulated records, unless it may take long or was started."""
    rehearsal_size.set_default("coarse_rows", common.look.schema, common.look.max_records)
    rows, seed = rehearsal_size.chosen("coarse_rows", "coarse_seed")
    key = _look_job(common, rows, seed)
    if rehearsal_size.is_quick(common.look, rows) and job_queue.find(key) is None:
        start_look(common, key, rows, seed)


def _look_job(common: CommonPlan, rows: int, seed: int) -> str:
    delta = common.look.budget.report_delta
    return f"coarse|{common.hash}|{delta}|{common.names}|{rows}|{seed}"


def _former(common: CommonPlan) -> tuple[int, int] | None:
    """Return number of records and seed of the last finished rehearsal of these analyses, if any."""
    key, rows, seed = st.session_state.get(FINISHED, ("", 0, 0))
    job = job_queue.find(key) if key == _look_job(common, rows, seed) else None
    return (rows, seed) if job is not None and job.done else None


def begin(key: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Start a step of the rehearsal in a worker, which writes its result to a temporary file.

    ``function`` is called with the arguments and the path of the file.
    """
    st.session_state.setdefault("coarse_rehearsed", []).append(key)
    with deferred_errors("coarse_rehearsal"):
        file = private_tempdir.new_file("rehearsal")
        job_widget.start(key, function, *arguments, str(file), files=[file])


def draw(common: CommonPlan, settings: Settings, next_button: Callable[[bool], None]) -> Script:
    """Draw the settings and the results of the rehearsal; return its Python code.

    ``next_button`` draws the button that opens the next step; its argument is whether this is the
    main button.
    """
    left, middle, right = st.columns([4, 3, 9], vertical_alignment="bottom")
    look = common.look
    rows = rehearsal_size.records_field(left, "coarse_rows", look.schema, look.max_records)
    seed = rehearsal_size.seed(middle, "coarse_seed")
    key = _look_job(common, rows, seed)
    with right.container(horizontal=True):
        is_done = job_queue.find(key) is not None
        buttons.button(
            BUTTON,
            start_look,
            common,
            key,
            rows,
            seed,
            key="coarse_rehearse",
            type="secondary" if is_done else "primary",
        )
        next_button(is_done)
    show_deferred_error("coarse_rehearsal")
    script = coarse_code.rehearsal(rows=rows, seed=seed)
    if job_queue.find(key) is None:
        former = _former(common)
        if former is None:
            st.info("No rehearsal with these analyses yet.", icon="🎭")
            return script
        rehearsal_size.draw_former(former, (rows, seed), BUTTON)
        rows, seed = former
        key = _look_job(common, rows, seed)
    finished_job = job_widget.job(key, label="Rehearsed first measurement")
    if finished_job is None:
        return script
    st.session_state[FINISHED] = (key, rows, seed)
    rehearsal_size.draw_warning("coarse_rows", look.schema)
    rehearsal_size.what_determines(common.to_json(), rows, seed)
    # If the user repeats the first measurement, its job has the same key as before. The start time
    # in the keys of the later jobs keeps the page from showing results of the earlier measurement.
    _step(
        common,
        finished_job.result,
        settings,
        key=f"{key}|{finished_job.started}",
        rows=rows,
        seed=seed,
        depth=0,
    )
    return script


def _step(
    common: CommonPlan,
    look_file: str,
    settings: Settings,
    *,
    key: str,
    rows: int,
    seed: int,
    depth: int,
) -> None:
    """Draw a rehearsed first measurement (look), and the rehearsal of the second measurement.

    The second measurement completes the analysis that the user chooses. In a chain of choices, the
    second measurement of the finer analysis is the look of the next choice, which is drawn below.

    Parameters
    ----------
    look_file : path of the saved look.
    key : start of the keys of the jobs of later steps.
    depth : number of earlier choices in the chain.
    """
    measured_look = load_rehearsal(common.look, look_file)
    st.subheader("Result of the first measurement" if depth == 0 else f"Measurement {depth + 1}")
    rule = candidates_form.rule(common, settings)
    if rule is None:
        return
    decision = views.look(rule, measured_look, key=f"coarse_rehearsed_{depth}")
    verdict = views.verdict_option(decision, common)
    st.subheader("Next measurement")
    index = decision.choice if decision.choice is not None else 0
    if verdict == views.STOP:
        st.info(
            "The rule says stop. You can still rehearse an option.",
            icon="✋",
        )
    left, right = st.columns([2, 1], vertical_alignment="bottom")
    option = left.selectbox(
        "Option",
        common.names,
        index=index,
        format_func=figures.in_screen_words,
        key=f"coarse_go_on_{depth}_{verdict}",
    )
    step_key = f"{key}|{option}"
    buttons.button(
        "Rehearse the next measurement",
        begin,
        step_key,
        tasks.rehearse_rest,
        common.to_json(),
        look_file,
        rows,
        seed,
        option,
        key=f"coarse_rest_{depth}",
        place=right,
        width="stretch",
    )
    finished_job = job_widget.job(step_key, label="Rehearsed next measurement")
    if finished_job is None:
        return
    if common.following is not None and option == common.names[-1]:
        _step(
            common.following,
            finished_job.result,
            settings,
            key=step_key,
            rows=rows,
            seed=seed,
            depth=depth + 1,
        )
        return
    measurement = load_rehearsal(common.options[common.position(option)], finished_job.result)
    st.markdown(f"**{escape_markdown(f'Rehearsed answers of {option} (both measurements)')}**")
    records = results_view.simulated_records(measurement.plan.schema.to_json(), rows, seed)
    views.answers(measurement, key=f"coarse_done_{depth}", records=records)
