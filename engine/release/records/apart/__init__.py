"""Files of other programs, read in a process of their own by libraries that are not made for what people upload.

A damaged file, or one forgotten cell in the last corner of a sheet, ends the process that reads it, not the one that
asks.  To touch: what `child` says is heard in `asking`, and made to batches in `sheets` and `labelled`.
"""

from engine.release.records.apart.labelled import (
    LABELLED_ENDINGS,
    DraftSchema,
    draft_schema,
    labelled_batches,
    labelled_columns,
)
from engine.release.records.apart.sheets import SHEET_ENDINGS, sheet_batches, sheet_names, sheet_text

__all__ = [
    "LABELLED_ENDINGS",
    "SHEET_ENDINGS",
    "DraftSchema",
    "draft_schema",
    "labelled_batches",
    "labelled_columns",
    "sheet_batches",
    "sheet_names",
    "sheet_text",
]
