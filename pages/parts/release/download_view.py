"""Downloads of the answers of a release or rehearsal, and export to a file on the server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import streamlit as st

from engine._format import pluralize
from engine.errors import DataError, EngineError
from engine.ledger import Ledger
from engine.ledger.signing import key_fingerprint
from engine.publish import write_answers, write_package
from engine.publish.output_path import check_target
from engine.publish.release_package import receipt_json
from engine.release import Measurement
from pages.parts.jobs import job_queue, job_widget, tasks
from pages.parts.release import file_access
from pages.parts.shell import buttons, session_restore
from pages.parts.shell.error_text import (
    deferred_errors,
    error_text,
    escape_markdown,
    show_deferred_error,
    show_errors,
)

MAX_DOWNLOAD_ANSWERS = 2_000_000
FORMATS = {"CSV": "csv", "Parquet": "parquet"}
PRECISION = {
    "CSV": "Rounded to at least six decimals, far below the errors of the answers",
    "Parquet": "Full precision",
}
# End of the tooltips of packages.
PACKAGE_MEANING = (
    "plan, certificate, report, and a verification script that needs no records. The ledger signs"
    " releases: README.md names its key and says how to check the signature."
)


def mark(measurement: Measurement) -> str:
    """Return the start of the names of downloaded files: "REHEARSAL_", or "" for a release."""
    return "REHEARSAL_" if measurement.rehearsal else ""


def downloads(
    measurement: Measurement,
    *,
    key: str,
    ledger: str = "",
    to_server: bool = True,
    has_package: bool = True,
) -> None:
    """Draw the downloads of all answers, the plan and the package.

    Parameters
    ----------
    ledger : path of the ledger of a release, which signs the package; "" for a rehearsal.
    to_server : whether to draw the export to a file on the server, if ``ledger`` is given. A
        two-stage release has no such export, because `load_measurement` cannot load it.
    has_package : whether to draw the plan and the package. The first measurement (look) of a
        two-stage release has neither, because `load_plan` and `verify` cannot read its plan.
    """
    queries = measurement.plan.workload.queries
    st.caption(f"{pluralize(queries, 'answer')} with standard errors and 95% intervals.")
    many = queries > MAX_DOWNLOAD_ANSWERS
    reason = (
        f"More than {MAX_DOWNLOAD_ANSWERS:,} answers can only be written to a file on the server."
        if many
        else None
    )
    columns = st.columns(4)
    for column, (name, kind) in zip(columns, FORMATS.items(), strict=False):
        column.download_button(
            f"Answers ({name})",
            data=partial(_content, measurement, kind),
            file_name=f"{mark(measurement)}answers.{kind}",
            key=f"{key}_{kind}",
            on_click="ignore",
            disabled=many,
            help=reason or PRECISION[name],
            width="stretch",
        )
    if not has_package:
        st.caption("A first measurement has no separate package.")
        return
    columns[2].download_button(
        "Plan (JSON)",
        measurement.plan.to_json,
        f"{mark(measurement)}plan.json",
        "application/json",
        key=f"{key}_plan",
        on_click="ignore",
        width="stretch",
    )
    columns[3].download_button(
        "Package of answers (zip)",
        data=lambda: _package(measurement, ledger),
        file_name=f"{mark(measurement)}release_answers.zip",
        mime="application/zip",
        key=f"{key}_package",
        on_click="ignore",
        disabled=many,
        help=reason or f"Answers, {PACKAGE_MEANING}",
        width="stretch",
    )
    if reason:
        st.caption(escape_markdown(reason))
    if ledger:
        _signature(measurement, key=key, ledger=ledger)
    if ledger and to_server:
        _to_file(measurement, key=key, ledger=ledger)


def _signature(measurement: Measurement, *, key: str, ledger: str) -> None:
    """Draw the fingerprint of the ledger's key, and downloads of the public key and the receipt."""
    st.markdown("**Signature and receipt**")
    with show_errors():
        book = Ledger(ledger)
        public_key, receipt = book.public_key(), book.find(measurement.key)
        st.caption(
            "The ledger signs the package. Publish this fingerprint outside the package, for example"
            " on your website: readers compare it with the one in the package and so see that"
            " the package is yours."
        )
        st.markdown(f"Fingerprint of the public key: `{key_fingerprint(public_key)}`")
        if receipt is not None:
            st.markdown(f"Receipt: ledger row {receipt.seq}, hash `{receipt.hash}`")
        row = st.container(horizontal=True)
        row.download_button(
            "Public key (text)",
            f"{public_key}\n",
            "public_key.txt",
            "text/plain",
            key=f"{key}_public_key",
            on_click="ignore",
            help="For the option --public-key of the command verify, and for check.py",
        )
        if receipt is None:
            return
        row.download_button(
            "Receipt (JSON)",
            receipt_json(receipt, public_key),
            "receipt.json",
            "application/json",
            key=f"{key}_receipt",
            on_click="ignore",
            help="Row and hash of the spend. A ledger restored from an older copy does not contain"
            " them, which the command verify detects with its option --receipt.",
        )


def _to_file(measurement: Measurement, *, key: str, ledger: str) -> None:
    """Draw the form that exports all answers to a file on the server, in a worker."""
    left, right = st.columns([4, 1], vertical_alignment="bottom")
    path = left.text_input(
        "File on the server (.parquet, .csv, or .zip for the package)",
        "answers.parquet",
        key=f"{key}_path",
        persist_state="session",
    )
    job = f"export|{ledger}|{measurement.key}|{path}"
    # The export must replace neither ledgers nor the file of the records.
    keep = [ledger, *session_restore.ledgers()]
    if records_path := st.session_state.get("records_path"):
        keep.append(records_path)
    is_written = _is_written(job, path, key)
    is_allowed, replaces = (False, False) if is_written else _target(path, keep, key)
    buttons.button(
        "Write file",
        _start_export,
        job,
        ledger,
        measurement.key,
        path,
        keep,
        replaces,
        key=f"{key}_write",
        place=right,
        disabled=not is_allowed,
        width="stretch",
    )
    show_deferred_error("export")
    finished_job = job_widget.job(job, label="Writing answers")
    if finished_job is not None:
        st.success(escape_markdown(f"Written: {finished_job.result}"))


def _is_written(job: str, path: str, key: str) -> bool:
    """Return whether the job has written the file, and the file has not changed since."""
    job_state, seen = job_queue.find(job), f"{key}_written"
    if job_state is None or not job_state.done:
        st.session_state.pop(seen, None)
        return False
    with suppress(EngineError, OSError):
        changed_ns = file_access.allowed_path(path, file_access.ANSWERS).stat().st_mtime_ns
        return bool(st.session_state.setdefault(seen, (job, changed_ns)) == (job, changed_ns))
    return False


def _target(path: str, keep: list[str], key: str) -> tuple[bool, bool]:
    """Check the path of an export; draw the reason if it is not allowed.

    If the file exists, draw the field that confirms its replacement.

    Parameters
    ----------
    keep : paths of files that must not be replaced.
    key : start of the key of the field that confirms the replacement.

    Returns
    -------
    ready : whether the file may be written now.
    replaces : whether this replaces an existing file.
    """
    if not path.strip():
        return False, False
    try:
        place = file_access.allowed_path(path, file_access.ANSWERS)
        exists = os.path.lexists(place)
        check_target(place, keep=keep, overwrite=exists)
    except EngineError as error:
        st.caption(escape_markdown(f"To continue, choose another file: {error_text(error)}"))
        return False, False
    if not exists:
        return True, False
    typed_name = st.text_input(
        f"Type {escape_markdown(place.name)} to replace the existing file",
        key=f"{key}_replace",
        live=True,
        autocomplete="off",
    )
    return typed_name.strip() == place.name, True


def _start_export(
    job: str, ledger: str, release: str, path: str, keep: list[str], overwrite: bool
) -> None:
    with deferred_errors("export"):
        place = str(file_access.allowed_path(path, file_access.ANSWERS))
        job_queue.forget(job)
        job_widget.start(
            job, tasks.export, ledger, release, place, keep, overwrite, 0.95, stays=True
        )


def _content(measurement: Measurement, kind: str) -> bytes:
    """Return all answers as bytes of a file; called when the button is pressed."""
    with _data_errors(), tempfile.TemporaryDirectory() as folder:
        return write_answers(
            measurement, Path(folder) / f"answers.{kind}", format=kind
        ).read_bytes()


def _package(measurement: Measurement, ledger: str) -> bytes:
    """Return the package as bytes, signed if there is a ledger; called when the button is
    pressed."""
    write = partial(tasks.write_signed_package, ledger=Ledger(ledger)) if ledger else write_package
    with _data_errors(), tempfile.TemporaryDirectory() as folder:
        return write(measurement, Path(folder) / "release.zip").read_bytes()


@contextmanager
def _data_errors() -> Iterator[None]:
    """Convert an OSError to a DataError without the path."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"The file could not be written: {error.strerror or 'unknown reason'}. Check the space and"
            " the permissions of the temporary folder of the server."
        ) from None
