"""Number of mouse clicks of a walk through the app."""

from __future__ import annotations

from playwright.sync_api import Page

COUNT_CLICKS = (
    "window.clicks = 0; addEventListener('click', (e) => { clicks += e.isTrusted; }, true)"
)


def clicks(page: Page) -> int:
    """Return the number of clicks since the page was loaded.

    The script `COUNT_CLICKS` must have been installed before.
    """
    number: int = page.evaluate("clicks")
    return number
