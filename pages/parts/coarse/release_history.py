"""Past releases of a dataset, and two-stage releases that are not finished, from the ledger."""

from __future__ import annotations

import streamlit as st

from engine.common_mechanism import stepwise
from engine.ledger import Ledger
from pages.parts.coarse import ledger_state, two_stage_view
from pages.parts.release import dataset_form, result_page
from pages.parts.shell import page_layout
from pages.parts.shell.error_text import escape_markdown, show_errors


def draw() -> None:
    """Draw the choice of a ledger and a dataset, its releases, and unfinished two-stage
    releases."""
    place = dataset_form.browse()
    if place is None:
        return
    book, status = place
    dataset_form.remember(status)
    with show_errors():
        result_page.draw_releases(book, status.dataset)
        _looks(book, status.dataset)


def _looks(book: Ledger, dataset: str) -> None:
    """Draw the two-stage releases of a dataset that wait for the user, with buttons to open them."""
    numbers = {key: number for number, key in enumerate(stepwise.looks(book, dataset), start=1)}
    for key, text in ledger_state.waiting(book, dataset).items():
        left, right = st.columns([4, 1], vertical_alignment="center")
        left.info(escape_markdown(f"First measurement {numbers[key]} of {text}."), icon="🔭")
        if right.button("Open this measurement", key=f"past_look_{numbers[key]}", width="stretch"):
            two_stage_view.open_look(key)
            st.switch_page(page_layout.page("Coarse or fine").file)
