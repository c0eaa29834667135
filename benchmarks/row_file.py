"""Rows of a long benchmark, kept one by one, so that a run that was broken off goes on where it stood."""

from __future__ import annotations

from pathlib import Path


class Kept:
    """Rows under one head, printed as they come, and added to a file where there is one.

    Raises ValueError when the file has rows under another head: move it away.
    """

    def __init__(self, head: str, path: Path | None) -> None:
        self.path = path
        self.rows = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        if self.rows and self.rows[0] != head:
            raise ValueError(f"{path} has rows of other columns. Move it away to begin anew.")
        print("\n".join(self.rows) if self.rows else head, flush=True)
        self.rows = self.rows or [head]

    def has(self, begin: str) -> bool:
        """Whether a row begins so."""
        return any(row.startswith(begin) for row in self.rows)

    def add(self, row: str) -> None:
        """Print a row, and keep it."""
        self.rows.append(row)
        print(row, flush=True)
        if self.path is not None:
            self.path.write_text("\n".join(self.rows) + "\n", encoding="utf-8")
