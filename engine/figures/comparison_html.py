"""Comparison of mechanisms as a standalone HTML page."""

from __future__ import annotations

import html
import math

import pandas as pd

from engine._format import format_number, number, pluralize
from engine.analysis.compare import Comparison
from engine.figures.base import Picture
from engine.figures.compare import budgets_picture, effort_picture, ranking_picture, refusals, where_picture
from engine.privacy import Budget
from engine.workload import Workload

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#0f141a}"
    "table{border-collapse:collapse;margin:1rem 0;font-size:.9rem}caption{text-align:left;font-weight:bold}"
    "th,td{border:1px solid #76838f;padding:.2rem .6rem;text-align:left}"
)


def comparison_page(comparison: Comparison, workload: Workload, budget: Budget) -> str:
    """Return a comparison as an HTML page: request, ranking, planning time and errors by group.

    All names are HTML-escaped.  The page contains no numbers computed from records.
    """
    pieces = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Comparison of mechanisms</title>",
        f"<style>{STYLE}</style></head><body><h1>Comparison of mechanisms</h1>",
        _text(
            f"{pluralize(workload.queries, 'query', 'queries')} in {pluralize(len(workload.groups), 'group')} on "
            f"{pluralize(len(workload.schema), 'attribute')}. Plans hold no data, and none was read for this page."
        ),
        _text(budget.describe()),
    ]
    if comparison.plans:
        pictures = (ranking_picture(comparison), effort_picture(comparison), where_picture(comparison, workload))
        pieces += [_section(picture) for picture in (*pictures, budgets_picture(comparison, budget))]
    if len(reasons := refusals(comparison)):
        pieces.append(_table("Without a result", reasons))
    return "\n".join([*pieces, "</body></html>", ""])


def _section(picture: Picture) -> str:
    return "\n".join([f"<h2>{html.escape(picture.title)}</h2>", *map(_text, (picture.alt, picture.note))]) + _table(
        picture.title, picture.table
    )


def _table(title: str, table: pd.DataFrame) -> str:
    head = "".join(f"<th scope='col'>{html.escape(str(name))}</th>" for name in table.columns)
    rows = ("".join(f"<td>{_cell(value)}</td>" for value in row) for row in table.itertuples(index=False))
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else format_number(value)
    return html.escape(number(value) if isinstance(value, int) and not isinstance(value, bool) else str(value))


def _text(words: str) -> str:
    return f"<p>{html.escape(words)}</p>" if words else ""
