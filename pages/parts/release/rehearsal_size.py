"""Start of a rehearsal: the number of simulated records, the random seed and the job."""

from __future__ import annotations

import hashlib

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from engine._format import pluralize
from engine.plans import Plan
from engine.workload import Schema
from pages.parts.jobs import job_queue, job_widget, private_tempdir, tasks
from pages.parts.shell import demo_records
from pages.parts.shell.error_text import deferred_errors
from pages.parts.workload import record_count_form

DEFAULT_RECORDS = 10_000
# Session key of the plan hash, the number of records and the seed of the rehearsal shown last.
FINISHED = "rehearsal_finished"
MAX_RECORDS = 2_000_000  # simulated records that fit in memory
MAX_SEED, DEFAULT_SEED = 2**31 - 1, 1
# Rehearsals of at most this size start without a further click.
QUICK_QUERIES, QUICK_RECORDS = 2_000_000, 200_000


EXAMPLE_SIZE = f"{DEFAULT_RECORDS:,} records are assumed: enter your own number above."


def records_field(place: DeltaGenerator, key: str, schema: Schema, max_records: int) -> int:
    """Draw the field for the number of simulated records, and return the number."""
    limit = set_default(key, schema, max_records)
    number = place.number_input(
        "Simulated records",
        1,
        limit,
        key=key,
        persist_state="session",
        help="About how many records you have. Your file is not read for this.",
    )
    return int(number)


def draw_warning(key: str, schema: Schema) -> None:
    """Draw the warning that all numbers come from a rehearsal.

    If nobody entered the number of records, the warning states the assumed number. ``key`` is the
    session key of that number.
    """
    text = "REHEARSAL on simulated records: do not publish these numbers. Nothing was spent."
    if _public_records(schema) == 0 and st.session_state[key] == DEFAULT_RECORDS:
        text += f" {EXAMPLE_SIZE}"
    st.warning(text, icon="🎭")


def seed(place: DeltaGenerator, key: str) -> int:
    """Draw a popover with the random seed of a rehearsal, and return the seed."""
    with place.popover(f"Seed {st.session_state.get(key, DEFAULT_SEED)}"):
        number = st.number_input(
            "Random seed", 0, MAX_SEED, DEFAULT_SEED, key=key, persist_state="session"
        )
        st.caption(
            "Determines the simulated records and the noise: the same plan, number of records and"
            " seed give the same numbers again. Planning starts from earlier searches, so a plan of"
            " the same request may differ in its last digits; it then has another code, and other"
            " noise. A release has no seed."
        )
    return int(number)


def what_determines(plan_text: str, rows: int, seed: int) -> None:
    """Draw what determines the numbers of a rehearsal: a code of the plan, ``rows`` and ``seed``.

    ``plan_text`` is the plan as JSON.

    The code is a digest of ``plan_text``. `Plan.hash` is only a digest of the request: two plans of
    one request can differ in their last digits, and this changes all noise.
    """
    code = hashlib.sha256(plan_text.encode()).hexdigest()[:8]
    st.caption(
        f"Plan {code}, {pluralize(rows, 'record')}, seed {seed}. The same three give the same"
        " numbers in every session."
    )


def chosen(rows_key: str, seed_key: str) -> tuple[int, int]:
    """Return the number of records and the seed of the form, without drawing it."""
    form = st.session_state
    return int(form[rows_key]), int(form.get(seed_key, DEFAULT_SEED))


def is_quick(plan: Plan, rows: int) -> bool:
    """Return whether a rehearsal of this plan takes a few seconds at most."""
    return plan.workload.queries <= QUICK_QUERIES and rows <= QUICK_RECORDS


def job_key(plan: Plan, rows: int, seed: int) -> str:
    """Return the key of the job of a rehearsal, which is the same in every session."""
    return f"rehearsal|{plan.hash}|{rows}|{seed}"


def remember_finished(plan: Plan, rows: int, seed: int) -> None:
    """Store that the page shows the rehearsal with this number of records and seed."""
    st.session_state[FINISHED] = (plan.hash, rows, seed)


def finished(plan: Plan) -> tuple[int, int] | None:
    """Return number of records and seed of the last finished rehearsal of this plan, if any."""
    plan_hash, rows, seed = st.session_state.get(FINISHED, ("", 0, 0))
    job = job_queue.find(job_key(plan, rows, seed)) if plan_hash == plan.hash else None
    return (rows, seed) if job is not None and job.done else None


def draw_former(former: tuple[int, int], chosen: tuple[int, int], button: str = "Rehearse") -> None:
    """Draw a note that the page shows the former rehearsal, because the chosen one has not run.

    Parameters
    ----------
    former, chosen : pairs of a number of records and a seed.
    button : label of the button that starts the rehearsal with the chosen values.
    """
    texts = [f"{pluralize(rows, 'record')} and seed {seed}" for rows, seed in (former, chosen)]
    st.info(
        f"These are the numbers of the former rehearsal, with {texts[0]}. Press “{button}”"
        f" for {texts[1]}.",
        icon="🎭",
    )


def start(plan: Plan, rows: int, seed: int) -> None:
    """Start a rehearsal in a worker, and discard the previous rehearsal of this session."""
    key = job_key(plan, rows, seed)
    job_widget.replace_job("rehearsal", key)
    with deferred_errors("rehearsal"):
        file = private_tempdir.new_file("rehearsal")
        job_widget.start(key, tasks.rehearse, plan.to_json(), rows, seed, str(file), files=[file])


def start_if_quick(plan: Plan) -> None:
    """Start a rehearsal with the values of the form, unless it may take long or was started."""
    set_default("rows", plan.schema, plan.max_records)
    rows, seed = chosen("rows", "seed")
    if is_quick(plan, rows) and job_queue.find(job_key(plan, rows, seed)) is None:
        start(plan, rows, seed)


def set_default(key: str, schema: Schema, max_records: int) -> int:
    """Give a field for the number of records its default, unless the user changed the field.

    The default is the expected number of records if one was entered on a page, or else the number
    of records of the demo with this schema, or else `DEFAULT_RECORDS`.

    Returns
    -------
    The largest number of records that the field allows.
    """
    limit, records = min(max_records, MAX_RECORDS), _public_records(schema)
    default, form = max(1, min(records or DEFAULT_RECORDS, limit)), st.session_state
    # A field that still has an earlier default gets the new default.
    if key not in form or form[key] == form.get(f"{key}_default"):
        form[key] = default
    form[f"{key}_default"] = default
    return limit


def _public_records(schema: Schema) -> int:
    """Return the entered expected number of records, or else the number of records of the demo.

    The result is 0 if no number was entered and the schema is not that of a demo.
    """
    scale = record_count_form.entered_scale()
    if scale is not None:
        return round(scale.records)
    file = demo_records.file_of(schema)
    return 0 if file is None else demo_records.row_count(file)
