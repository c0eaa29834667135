"""Row file of a long benchmark: rows are saved one by one, so interrupted runs resume."""

from __future__ import annotations

from pathlib import Path


class RowFile:
    """Rows below one header, printed at once and appended to a file, if any.

    Raises ValueError if the file has rows with another header.
    """

    def __init__(self, head: str, path: Path | None) -> None:
        self.path = path
        self.rows = (
            path.read_text(encoding="utf-8").splitlines()
            if path is not None and path.exists()
            else []
        )
        if self.rows and self.rows[0] != head:
            raise ValueError(f"{path} has rows of other columns. Move it away to begin anew.")
        print("\n".join(self.rows) if self.rows else head, flush=True)
        self.rows = self.rows or [head]

    def has(self, begin: str) -> bool:
        """Whether a row starts with this text."""
        return any(row.startswith(begin) for row in self.rows)

    def add(self, row: str) -> None:
        """Print a row and save it."""
        self.rows.append(row)
        print(row, flush=True)
        if self.path is not None:
            self.path.write_text("\n".join(self.rows) + "\n", encoding="utf-8")
