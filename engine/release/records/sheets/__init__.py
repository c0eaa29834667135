"""Sheets of Excel and Open Document, read in a process of their own.

A reader holds every cell between the first and the last, so that one forgotten cell in the last corner takes 500 GB of
memory, and with it the process: `child` ends alone.  To touch: what it sends is read in `rows` and nowhere else.
"""

from engine.release.records.sheets.rows import SHEETS, sheet_batches, sheet_names, sheet_text

__all__ = ["SHEETS", "sheet_batches", "sheet_names", "sheet_text"]
