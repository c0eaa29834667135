"""Summary of each file of records: drafted attributes, columns without a draft, and counts."""

from __future__ import annotations

from pathlib import Path

from engine._format import shortest_text
from engine.errors import EngineError
from engine.records import RECORD_ENDINGS, count_marginals
from engine.records.subprocess_readers import LABELLED_ENDINGS, draft_schema
from engine.release.public_draft import draft_of_public
from engine.workload import Attribute, DraftSchema

MAX_CELLS = 6  # cells of an attribute that are printed


def files(folder: Path) -> list[Path]:
    """Return the files of records in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.name.lower().endswith(RECORD_ENDINGS))


def case_text(path: Path) -> str:
    """Return the drafted attributes and counts of a file as text, or why the file is refused."""
    lines = [path.name]
    try:
        draft = draft_of_public(path)
        lines += [*_drafted("  ", draft), *_counted(path, draft)]
    except EngineError as error:
        lines.append(f"  refused: {error}")
    if path.suffix in LABELLED_ENDINGS:
        try:
            lines += _drafted("  from labels, ", draft_schema(path))
        except EngineError as error:
            lines.append(f"  from labels, refused: {error}")
    return "\n".join(lines)


def _drafted(start: str, draft: DraftSchema) -> list[str]:
    drafted = [
        f"{start}drafted: {attribute.name!r}: {_cells(attribute)}"
        for attribute in draft.schema.attributes
    ]
    left = [
        f"{start}left to the person: {name!r}: {reason}" for name, reason in draft.reasons.items()
    ]
    return [*drafted, *left, *(f"{start}note: {note}" for note in draft.notes)]


def _cells(attribute: Attribute) -> str:
    texts = (
        [shortest_text(edge) for edge in attribute.edges]
        if attribute.edges is not None
        else list(attribute.labels or ())
    )
    listed = texts if len(texts) <= MAX_CELLS else [*texts[: MAX_CELLS - 1], "...", texts[-1]]
    what = "labels" if attribute.edges is None else "edges"
    return f"{attribute.size} cells, {what} {' | '.join(map(repr, listed))}"


def _counted(path: Path, draft: DraftSchema) -> list[str]:
    sets = [(name,) for name in draft.schema]
    counts = count_marginals(path, draft.schema, sets, on_refused="drop", ignore=draft.unlabelled)
    refused = [
        f"  left out: {name!r}: {rows} {reason}"
        for name, reasons in counts.refused.items()
        for reason, rows in reasons.items()
    ]
    return [f"  counted: {counts.records} records, left out {counts.rows_refused}", *refused]
