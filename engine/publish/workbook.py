"""Published tables as one workbook for people with spreadsheets.

Cover               what was counted, what is promised, which number to use
Contents            every table with a link, and which share of its numbers is publishable
Table 1, ...        one row a query: labels, the published count with its interval and flag, then the unbiased answer
Table 2 crossed     published counts of two attributes as rows and columns
Codebook            the labels of every attribute

As offices ask of each other: one table a sheet, its title in the first cell, no merged cells, nothing told by color
alone.  Texts are written as texts, so that no label is a formula or a link.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import LimitExceeded
from engine.progress import Progress, told
from engine.publish.columns import RULE, added_columns
from engine.publish.report import MARK
from engine.publish.tables import REASONS, QualityRule, Uncertainty
from engine.publish.tables_package import COLUMNS, crosstab, is_cells, labelled_rows
from engine.publish.target import new_file
from engine.release import Measurement
from engine.texts import set_name
from engine.workload import Group

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 250_000  # a sheet holds a million; with more than these a workbook takes a minute to open
MOST_COLUMNS = 16_000
MOST_TEXT = 32_767  # characters of a cell
WIDEST, NARROWEST, COVER = 60, 10, 100  # characters of a column
HIGH, MOST_LINES = 15, 6  # points of a line; lines of a name
SHOWN = {
    "published": "published count",
    "published_low": "lower end",
    "published_high": "upper end",
    "error": "error to be expected",
    "flag": "flag",
    "reason": "reason",
    "estimate": "unbiased estimate",
    "std": "standard error",
    "low": "lower end of the estimate",
    "high": "upper end of the estimate",
}
# texts stay texts, whatever they look like
PLAIN = {
    "constant_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
}
A4 = 9
UNDATED = datetime(2000, 1, 1, tzinfo=UTC)  # of what was never released


def write_workbook(
    found: Uncertainty,
    path: str | os.PathLike[str],
    *,
    rule: QualityRule | None = None,
    confidence: float = 0.95,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write published tables with their errors, flags and unbiased answers as a workbook (.xlsx).

    Guarantee: nothing in it depends on the records but through released answers, and the same arguments make the same
    bytes.  The file appears under its name only when it is complete; an earlier one is replaced only with
    ``overwrite``.

    Raises
    ------
    LimitExceeded : more than 250,000 queries; `write_tables` and `write_published` take more.
    PlanError : a path where nothing may be written.
    Cancelled : ``progress`` returned False; nothing is left behind.
    """
    workload = found.published.measurement.plan.workload
    if workload.queries > MOST_ROWS:
        raise LimitExceeded(
            f"The workbook would have {workload.queries:,} rows, over {MOST_ROWS:,}. Publish from a workload of fewer "
            "queries, or take the zip or parquet."
        )
    tell = told(progress, "Writing the workbook was cancelled; no file was left behind.")
    with new_file(path, overwrite=overwrite) as partial, tempfile.TemporaryDirectory(dir=partial.parent) as place:
        book = _Book(found, partial, place, rule or QualityRule(), confidence)
        try:
            book.front()
            done = 0
            for number, group in enumerate(workload.groups):
                book.table(number, done)
                done += group.count
                tell(0.9 * done / workload.queries, "Writing sheets")
            book.codebook()
        finally:
            book.close()
        tell(1.0, "Packed")
    return Path(path)


class _Book:
    """A workbook that is being written, sheet by sheet and row by row."""

    def __init__(self, found: Uncertainty, path: Path, place: str, rule: QualityRule, confidence: float) -> None:
        import xlsxwriter

        self.found, self.rule, self.confidence = found, rule, confidence
        self.measurement = found.published.measurement
        self.schema = self.measurement.plan.schema
        self.title = f"Tables of {self.measurement.dataset or 'records'}"
        self.book = xlsxwriter.Workbook(str(path), {**PLAIN, "tmpdir": place})
        utc = self.measurement.utc
        self.book.set_properties(
            {
                "title": self.title,
                "comments": MARK if self.measurement.rehearsal else "",
                "created": datetime.fromisoformat(utc) if utc else UNDATED,
            }
        )
        self.book.set_custom_property("plan_hash", self.measurement.plan.hash, "text")  # by this it is known again
        self.bold = self.book.add_format({"bold": True})
        head = {"bold": True, "text_wrap": True, "valign": "bottom", "bottom": 1}
        self.head, self.head_right = self.book.add_format(head), self.book.add_format(head | {"align": "right"})
        self.head_apart = self.book.add_format(head | {"align": "left", "indent": 1})
        self.apart = self.book.add_format({"indent": 1})  # a text beside a number
        self.wrapped = self.book.add_format({"text_wrap": True, "valign": "top"})
        self.share = self.book.add_format({"num_format": "0%"})
        self.whole = self.book.add_format({"num_format": "#,##0"})
        self.tenth = self.book.add_format({"num_format": "#,##0.0"})

    def close(self) -> None:
        """Pack what was written."""
        self.book.close()

    def _sheet(self, name: str, lines: Sequence[str]) -> tuple[Any, int]:
        """Begin a sheet with its title and notes; return it and the first free row."""
        sheet, mark = self.book.add_worksheet(name), [MARK] if self.measurement.rehearsal else []
        sheet.set_landscape()
        sheet.set_paper(A4)
        sheet.fit_to_pages(1, 0)  # one page wide, as long as it is
        for row, line in enumerate([*mark, *lines]):
            sheet.write_string(row, 0, line[:MOST_TEXT], self.bold if row <= len(mark) else None)
        return sheet, len(mark) + len(lines)

    def front(self) -> None:
        """Write the cover and the list of tables."""
        plan = self.measurement.plan
        sheet, row = self._sheet("Cover", [self.title])
        sheet.set_column(0, 0, COVER)
        for line in (*_notes(self.measurement, self.confidence), "", *_columns(self.schema.names)):
            sheet.set_row(row, HIGH * max(1, math.ceil(len(line) / COVER)))  # or long lines are cut off
            sheet.write_string(row, 0, line, self.wrapped)
            row += 1
        shares = self.found.summary(self.rule)
        sheet, row = self._sheet("Contents", [f"{self.title}: contents"])
        names = ["table", "attributes", "queries", "numbers", "publishable", "doubtful", "suppressed"]
        widths = [10, 50, 30, 12, 12, 12, 12]
        self._heads(sheet, row, names, widths, [True] * 3 + [False] * 4)
        for number, (group, share) in enumerate(zip(plan.workload.groups, shares.to_dict("records"), strict=True)):
            row += 1
            name = _name(number)
            sheet.write_url(row, 0, f"internal:'{name}'!A1", string=name)
            sheet.write_string(row, 1, (set_name(group.attributes) or "all records")[:MOST_TEXT], self.apart)
            sheet.write_string(row, 2, group.family_text[:MOST_TEXT], self.apart)
            sheet.write_number(row, 3, group.count, self.whole)
            for column, word in enumerate(names[4:], 4):
                sheet.write_number(row, column, share[word], self.share)

    def table(self, number: int, first: int) -> None:
        """Write the sheet of one group, and its counts as rows and columns where its queries are cells of a pair.

        ``first`` is the number of its first query.
        """
        group = self.measurement.plan.workload.groups[number]
        frame = labelled_rows(self.found, number, first, self.rule, self.confidence)
        labels = [f"{a}_label" for a in group.attributes] if is_cells(group) else []
        asked = labels or ["query"]
        shown = frame[[*asked, *SHOWN]].assign(reason=[REASONS[r] if r else "" for r in frame["reason"].fillna("")])
        shown_names = group.attributes if labels else asked
        names = [*shown_names, *added_columns(SHOWN.values(), shown_names).values()]
        sheet, row = self._sheet(_name(number), _heading(number, group, self.confidence))
        sheet.write_url(row, 0, "internal:'Contents'!A1", string="Contents")
        self._body(sheet, row + 1, shown, names, {"published"})
        if is_cells(group) and len(group.attributes) == 2:
            crossed = crosstab(frame.drop(columns="status", errors="ignore"), group, self.schema)
            if crossed.shape[1] <= MOST_COLUMNS:
                down, across = group.attributes
                title = f"{_name(number)}: published counts, {down} down, {across} across; what is suppressed is empty"
                sheet, row = self._sheet(f"{_name(number)} crossed", [title])
                self._body(sheet, row, crossed, [str(c) for c in crossed], set(map(str, crossed)))

    def codebook(self) -> None:
        """Write the labels of every attribute."""
        sheet, row = self._sheet("Codebook", ["Codebook: the cells of every attribute"])
        self._heads(sheet, row, ["attribute", "code", "label"], [30, 10, 60], [True, False, True])
        for attribute in self.schema.attributes:
            for code in range(attribute.size):
                row += 1
                sheet.write_string(row, 0, attribute.name)
                sheet.write_number(row, 1, code)
                sheet.write_string(row, 2, attribute.label(code), self.apart)

    def _heads(self, sheet: Any, row: int, names: Sequence[str], widths: Sequence[int], texts: Sequence[bool]) -> None:
        """Write the names of columns, of texts or numbers; they stay in view, and on every page that is printed."""
        lines = max(math.ceil(1.2 * len(name) / width) for name, width in zip(names, widths, strict=True))
        sheet.set_row(row, HIGH * min(lines, MOST_LINES))
        for column, (name, width, text) in enumerate(zip(names, widths, texts, strict=True)):
            sheet.set_column(column, column, width)
            style = self.head_right if not text else self.head_apart if column else self.head
            sheet.write_string(row, column, name[:MOST_TEXT], style)
        sheet.freeze_panes(row + 1, 0)
        sheet.repeat_rows(row)

    def _body(self, sheet: Any, row: int, frame: pd.DataFrame, names: Sequence[str], counts: set[str]) -> None:
        """Write a table with the names of its columns, some of them published counts; what is no number is empty."""
        columns = [frame.iloc[:, k] for k in range(frame.shape[1])]
        texts = [column.dtype.kind not in "if" for column in columns]
        widths = [
            min(WIDEST, max(NARROWEST, 2 + max(map(len, column), default=0))) if text else 14
            for column, text in zip(columns, texts, strict=True)
        ]
        self._heads(sheet, row, names, widths, texts)
        integer = self.found.published.people is not None
        formats = [self.whole if integer and name in counts else self.tenth for name in map(str, frame)]
        for number, values in enumerate(zip(*(column.tolist() for column in columns), strict=True), row + 1):
            for column, (value, text) in enumerate(zip(values, texts, strict=True)):
                if text:
                    sheet.write_string(number, column, value[:MOST_TEXT], self.apart if column else None)
                elif not math.isnan(value):
                    sheet.write_number(number, column, value, formats[column])
        if len(frame):
            sheet.autofilter(row, 0, row + len(frame), len(names) - 1)


def _name(number: int) -> str:
    return f"Table {number + 1}"


def _heading(number: int, group: Group, confidence: float) -> list[str]:
    asked = set_name(group.attributes) or "all records"
    title = f"{_name(number)}: {asked}" + ("" if is_cells(group) else f", {group.family_text} queries")
    return [title, f"Counts; lower and upper ends of intervals at {confidence:.0%}. A suppressed count is empty."]


def _notes(measurement: Measurement, confidence: float) -> list[str]:
    plan = measurement.plan
    return [
        plan.schema.promise(plan.budget),
        plan.meaning,
        "",
        "To read one number, or to hand out tables: the published count. It is not negative, and all tables agree; it "
        "is biased. To add up, compare, test or model: the unbiased estimate, whose standard error is exact.",
        f"Intervals are at {confidence:.0%}; those of published counts hold on average over the cells of a table.",
        "A count is flagged publishable, doubtful or suppressed for readers of single numbers. People are protected by "
        "the noise, not by the flags; suppressed cells are in all sums.",
    ]


def _columns(attributes: Sequence[str]) -> list[str]:
    words = {name: told for name, (_, told) in COLUMNS.items()} | {"reason": "why it is not publishable"}
    added = added_columns(SHOWN.values(), attributes)
    rule = [RULE] if any(name != column for name, column in added.items()) else []
    return ["Columns of the tables", *rule, *(f"{shown}: {words[name]}" for name, shown in SHOWN.items())]
