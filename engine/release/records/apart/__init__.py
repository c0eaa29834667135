"""Files of other programs, read in a process of their own by libraries that are not made for what people upload.

A damaged file, or one forgotten cell in the last corner of a sheet, ends the process that reads it, not the one that
asks.  To touch: what `child` says is heard in `asking`, and made to batches in `sheets` and `labelled`.
"""

from engine.release.records.apart.labelled import (
    DATES,
    LABELLED_ENDINGS,
    column_problems,
    draft_schema,
    labelled_batches,
    labelled_columns,
)
from engine.release.records.apart.sheets import (
    SHEET_ENDINGS,
    SheetFile,
    sheet_batches,
    sheet_names,
    sheet_text,
    visible_sheets,
)

__all__ = [
    "DATES",
    "LABELLED_ENDINGS",
    "SHEET_ENDINGS",
    "SheetFile",
    "column_problems",
    "draft_schema",
    "labelled_batches",
    "labelled_columns",
    "sheet_batches",
    "sheet_names",
    "sheet_text",
    "visible_sheets",
]
