"""Progress bar and cancel button of a job, and the private report on the rows that it read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

import streamlit as st

from engine._format import pluralize
from pages.parts.jobs import job_queue
from pages.parts.jobs.status import Status
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import escape_markdown, in_labels, show_error

ROWS = "rows_read"
PRIVATE = "Private: only this browser tab shows these numbers, until you open another page."
SEEN_WARNINGS = "seen_warnings"  # key of the page state for warnings that a check has shown


@dataclass(eq=False)
class _RowReport:
    """Private report on the rows that a release read.

    Attributes
    ----------
    key : key of the job of the release.
    seen_warnings : warnings that the page had shown before the release started. They are stored
        here, so that a reload shows the same text as the page before it.
    rows : the report; None until the job is done.
    """

    key: str
    seen_warnings: tuple[str, ...] = ()
    rows: Mapping[str, Any] | None = None


# Maps the random token of a browser tab to the report on the rows of its last release. A report is
# private: it is never written to a file, and is deleted with the page state of its session.
_REPORTS: WeakValueDictionary[str, _RowReport] = WeakValueDictionary()


@st.cache_resource(scope="session", on_release=job_queue.leave, show_spinner=False)
def _holder() -> str:
    """Return a random name by which this session holds jobs, see `job_queue.hold`.

    When the session ends, Streamlit calls `job_queue.leave` with this name.
    """
    return secrets.token_hex(8)


def start(key: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Start a job for this session; see `job_queue.start`."""
    job_queue.start(key, function, *arguments, holder=_holder(), **options)


def release_job(key: str) -> None:
    """Record that this session no longer needs a job; see `job_queue.release_job`."""
    job_queue.release_job(key, _holder())


def replace_job(session_key: str, key: str, *, needed: str = "") -> None:
    """Store the key of a form's job in the session state, and release the job stored there before.

    The previous job is not released if its key is ``needed``, because another form waits for it.
    """
    previous = st.session_state.get(session_key, key)
    if previous not in (key, needed):
        release_job(previous)
    st.session_state[session_key] = key


def claim(key: str) -> None:
    """Record that this session started the release job of this key.

    Only this session, or its browser tab after a reload, sees the report on the rows read.
    """
    token = st.session_state[history.REPORT_TOKEN] = secrets.token_hex(16)
    seen_warnings = history.page_state().get(SEEN_WARNINGS, ())
    history.page_state()[ROWS] = _REPORTS[token] = _RowReport(key, seen_warnings)


def receipt(key: str, text: str, *, icon: str) -> None:
    """Draw the message that a release is done; if this session started it, also the row report."""
    st.success(escape_markdown(text), icon=icon)
    report = _report(key)
    if report is not None and report.rows is not None:
        _draw_rows(report.rows, without=report.seen_warnings, when=" next time")


def _report(key: str) -> _RowReport | None:
    """Return the private report on the rows that a release read; None for jobs of other sessions.

    All sessions share the job queue, so the report is moved from there to the page state of this
    session. The page state is deleted when the user opens another page. After a reload, the new
    session finds the report by the token that `session_restore` stores, as long as Streamlit keeps
    the state of the former session.
    """
    token = st.session_state.get(history.REPORT_TOKEN, "")
    report: _RowReport | None = history.page_state().get(ROWS) or _REPORTS.get(token)
    if report is None or report.key != key:
        return None
    history.page_state()[ROWS] = report
    job_state = job_queue.find(key)
    if job_state is not None and job_state.done:
        report.rows = job_state.result["rows"]
        job_queue.forget(key)
    return report


def show_checked_rows(rows: Mapping[str, Any]) -> None:
    """Draw the report of a check of the records before a release.

    The report of the release will leave out the warnings that the page shows now.
    """
    seen_before: tuple[str, ...] = history.page_state().get(SEEN_WARNINGS, ())
    history.page_state()[SEEN_WARNINGS] = tuple(dict.fromkeys([*seen_before, *rows["warnings"]]))
    _draw_rows(rows)


def _draw_rows(rows: Mapping[str, Any], *, without: Sequence[str] = (), when: str = "") -> None:
    """Draw how many rows were read and dropped, and why, with further warnings on the records.

    Parameters
    ----------
    without : warnings on the records that are left out.
    when : addition to the advice on dropped rows, such as " next time". After a release the reasons
        and the advice are in a fold, with a download.
    """
    new_warnings = [in_labels(text) for text in rows["warnings"] if text not in without]
    summary = f"{rows['text']} {PRIVATE}"
    reasons = []
    for column, rows_by_reason in rows["reasons"].items():
        counts = ", ".join(f"{number:,} {reason}" for reason, number in rows_by_reason.items())
        reasons.append(f"{column}: {counts}")
    lines = list(reasons)
    if rows["many_dropped"]:
        lines += [f"To keep such rows{when}, change the file or the schema:", *rows["advice"]]
    is_folded = bool(when)
    if rows["many_dropped"]:
        boxed = [summary, *([] if is_folded else [*lines, *new_warnings])]
        text = "  \n".join(map(escape_markdown, boxed))
        st.warning(f"**{escape_markdown(rows['dropped'])}**  \n{text}", icon="⚠️")
    else:
        st.caption(escape_markdown(summary))
    if is_folded and lines:
        with st.expander("Why rows were dropped"):
            st.markdown("  \n".join(map(escape_markdown, lines)))
            # Streamlit keeps the text of a download in memory; no file is written.
            st.download_button(
                "Save this private report (text)",
                "\n".join([rows["dropped"], rows["text"], *lines, *new_warnings, ""]),
                "private_rows.txt",
                "text/plain",
                key="private_rows",
                on_click="ignore",
                help="For your own records. Do not publish it: these numbers have no noise.",
            )
    if is_folded or not rows["many_dropped"]:
        for line in [] if is_folded else lines:
            st.caption(escape_markdown(line))
        for text in new_warnings:
            st.warning(escape_markdown(text))


def job(
    key: str,
    *,
    label: str,
    quiet: bool = False,
    stream: bool = False,
    expected_s: float | None = None,
) -> Status | None:
    """Draw the progress or the error of a job; return its status if it is done, otherwise None.

    Parameters
    ----------
    label : name of the job on screen.
    quiet : draw one line of text instead of a progress bar and an error box.
    stream : run the page again whenever the job reports progress, so that the page can show partial
        results.
    expected_s : forecast of the total time, for a bar that also shows the time left.
    """
    job_queue.hold(key, _holder())
    job_state = job_queue.find(key)
    if job_state is None:
        return None
    if job_state.running:
        if quiet:
            _line(key, label)
        else:
            _bar(key, label, job_state.fraction if stream else None, expected_s)
        return None
    if job_state.done:
        return job_state
    if quiet:
        st.caption(escape_markdown(in_labels(f"{label}: {job_state.error}")))
    elif job_state.state == "cancelled":
        st.warning(escape_markdown(f"{label}: cancelled. {job_state.error}"))
    else:
        show_error(f"{label}: {job_state.error}")
    return None


@st.fragment(run_every=0.4)
def _line(key: str, label: str) -> None:
    """Draw the label and the seconds of a running job; run the page again when it ends."""
    job_state = job_queue.find(key)
    if job_state is None or not job_state.running:
        st.rerun()
    st.caption(escape_markdown(f"{label} ({job_state.seconds:.0f} s)"))


@st.fragment(run_every=0.4)
def _bar(
    key: str, label: str, shown_fraction: float | None, expected_s: float | None = None
) -> None:
    """Draw the progress bar of a running job; run the page again when it ends.

    If the page shows partial results, ``shown_fraction`` is their progress, from 0 to 1, and the
    page also runs again as soon as the job has made progress. Otherwise it is None. With
    ``expected_s``, the forecast of the total time, the bar also shows the time left.
    """
    job_state = job_queue.find(key)
    if (
        job_state is None
        or not job_state.running
        or shown_fraction not in (None, job_state.fraction)
    ):
        st.rerun()
    left, right = st.columns([5, 1], vertical_alignment="center")
    ahead = job_queue.before(key)
    message = job_state.text
    if job_state.state == "waiting":
        message = "waiting for a worker"
        if ahead:
            message += f", {pluralize(ahead, 'job')} ahead"
    text = f"{label}: {message} ({job_state.time_text(expected_s)})"
    left.progress(min(max(job_state.fraction, 0.0), 1.0), text=escape_markdown(text))
    buttons.button(
        "Cancel",
        job_queue.cancel,
        key,
        key=f"cancel_{sha256(key.encode()).hexdigest()[:16]}",
        place=right,
        width="stretch",
    )
