"""Result page of a release, and the list of past releases."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from engine import _format as texts
from engine.ledger import Ledger, Receipt
from engine.release.measure import releases
from pages.parts.release import dataset_form, release_form, results_view, wizard
from pages.parts.shell import buttons
from pages.parts.shell.error_text import escape_markdown, show_errors


def draw(key: str, steps: Mapping[str, str]) -> str:
    """Draw the result of a release; return Python code that loads it, or "" without a ledger.

    ``steps`` maps labels of buttons to the titles of the steps of the wizard that they open.
    """
    book = dataset_form.ledger_of_form()
    if book is None:
        wizard.result_header("Result", steps, name="release", step_key="step")
        st.info("To continue, open the ledger of this release under Past releases.", icon="🗂️")
        return ""
    with show_errors():
        dataset = dataset_form.spent(book, key).dataset
        dataset_form.remember(book.status(dataset))
        wizard.result_header(f"Released: {dataset}", steps, name="release", step_key="step")
        release_form.restore_choices(key)
        measurement = release_form.stored_measurement(book, key)
        if measurement is not None:
            release_form.receipt(book, measurement)
            results_view.views(measurement, key=release_form.RESULT_FORM, ledger=str(book.path))
    return (
        "from engine.release import load_measurement\n\n"
        f"measurement = load_measurement({book.path.name!r}, {key!r})\n"
        "print(measurement.answers(0))"
    )


def draw_releases(book: Ledger, dataset: str) -> None:
    """Draw the list of one-step releases of a dataset, and a button that opens the selected one."""
    receipts = {receipt.key: receipt for receipt in reversed(releases(book, dataset))}
    if not receipts:
        st.info(escape_markdown(f"No one-step release of {dataset} yet."), icon="📤")
        return
    st.subheader(
        escape_markdown(f"{texts.pluralize(len(receipts), 'release')} of {dataset}"), anchor=False
    )
    if st.session_state.get("past_release") not in receipts:
        st.session_state.pop("past_release", None)
    key = st.selectbox(
        "Release",
        list(receipts),
        format_func=lambda key: _line(book, receipts[key]),
        key="past_release",
    )
    buttons.button(
        "Show the result", wizard.open_result, "release", key, key="open_result", type="primary"
    )


def _line(book: Ledger, receipt: Receipt) -> str:
    """Return one line with time and cost of a release, for the list."""
    attempt = receipt.key.rpartition("|")[2]
    suffix = f", attempt {attempt}" if attempt != "1" else ""
    return (
        f"{dataset_form.time_text(receipt.utc)}: {dataset_form.charge(book, receipt)}{suffix},"
        f" ledger row {receipt.seq}"
    )
