"""Past releases of a dataset and unfinished looks, read from the ledger."""

from __future__ import annotations

import streamlit as st

from engine import _format as texts
from engine._format import pluralize
from engine.common_mechanism import stepwise
from engine.ledger import Ledger, Receipt
from engine.release.measure import releases
from pages.parts.coarse import ledger_state
from pages.parts.release import dataset_form, release_form, results_view
from pages.parts.shell import page_layout
from pages.parts.shell.error_text import escape_markdown, show_errors

EARLIER = "Earlier looks"


def draw() -> None:
    """Draw the ledger, its dataset, and all past releases."""
    left, right = st.columns(2, gap="large")
    with left:
        book = dataset_form.ledger()
    if book is None:
        return
    with right:
        status = dataset_form.dataset(book)
    dataset_form.remember(status)
    if status is None:
        st.info("This ledger has no dataset yet.", icon="🗂️")
        return
    with show_errors():
        _looks(book, status.dataset)
        _releases(book, status.dataset)


def _releases(book: Ledger, dataset: str) -> None:
    receipts = {receipt.key: receipt for receipt in reversed(releases(book, dataset))}
    if not receipts:
        st.info(escape_markdown(f"No one-step release of {dataset} yet."), icon="📤")
        return
    if st.session_state.get("paid") not in receipts:
        st.session_state.pop("paid", None)
    st.subheader(escape_markdown(f"{pluralize(len(receipts), 'release')} of {dataset}"))
    key = st.selectbox(
        "Release",
        list(receipts),
        format_func=lambda k: _line(receipts[k]),
        key="paid",
        persist_state="session",
    )
    measured = release_form.stored(book, key)
    if measured is None:
        return
    release_form.receipt(book, key)
    st.caption(
        escape_markdown(
            f"{pluralize(measured.plan.workload.queries, 'answer')} by {measured.plan.mechanism}"
            " (stored plan)"
        )
    )
    results_view.views(measured, key=f"paid_{receipts[key].seq}", ledger=str(book.path))


def _line(receipt: Receipt) -> str:
    attempt = receipt.key.rpartition("|")[2]
    suffix = f", attempt {attempt}" if attempt != "1" else ""
    return (
        f"{dataset_form.time_text(receipt.utc)}: {texts.cost(receipt.pcost)} pcost{suffix},"
        f" ledger row {receipt.seq}"
    )


def _looks(book: Ledger, dataset: str) -> None:
    """Draw unfinished looks, each with a button that opens it."""
    keys = stepwise.looks(book, dataset)
    open_ones = [
        (i, text)
        for i, text in enumerate(ledger_state.state_text(book, key) for key in keys)
        if "waits" in text
    ]
    for number, text in open_ones:
        left, right = st.columns([4, 1], vertical_alignment="center")
        left.info(escape_markdown(f"Look {number + 1} of {text}."), icon="🔭")
        if right.button("Open this look", key=f"paid_look_{number}", width="stretch"):
            st.session_state["coarse_step"], st.session_state[f"coarse_open_{len(keys)}"] = (
                EARLIER,
                number,
            )
            st.switch_page(page_layout.page("Coarse or fine").file)
