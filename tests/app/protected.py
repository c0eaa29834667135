"""Paths to which an export must not write."""

from __future__ import annotations

import shutil
from pathlib import Path

import demo_data

SURVEY = demo_data.tables()["survey"]


def create_protected_files(folder: Path) -> dict[str, Path]:
    """Create files that an export must not overwrite.

    Return these and other forbidden paths by name; some of them do not exist.
    """
    shutil.copy(SURVEY, folder / "others.csv")
    (folder / ".hidden.csv").write_text("mine")
    (folder / ".config").mkdir()
    outside = folder.parent / "outside.csv"
    outside.write_text("mine")
    (folder / "link.csv").symlink_to(outside)
    (folder / "way").symlink_to(folder.parent)
    (folder / "notes.md").write_text("mine")
    (folder / "answers.csv.part").write_text("mine")
    (folder / "broken.parquet").write_text("mine")
    return {
        "ledger": folder / "budget.csv",
        "records": folder / "records.csv",
        "other records": folder / "others.csv",
        "result": next((folder / "budget.csv.results").iterdir()),
        "new in results": folder / "budget.csv.results" / "new.csv",
        "dot file": folder / ".hidden.csv",
        "in a dot folder": folder / ".config" / "new.csv",
        "link": folder / "link.csv",
        "behind a link": folder / "way" / "new.csv",
        "outside": outside,
        "outside by dots": folder / ".." / "outside.csv",
        "no data file": folder / "notes.md",
        "part": folder / "answers.csv.part",
        "folder": folder / "budget.csv.results",
        "not answers": folder / "broken.parquet",
        "no folder": folder / "missing" / "new.csv",
    }
