"""The .gitignore covers every file that a ledger writes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.ledger import Ledger
from engine.ledger.release_files import journal
from engine.ledger.sqlite_file import append, read_rows, transaction
from engine.privacy import Budget
from tests.ledger.helpers import spend

IGNORED = Path(__file__).resolve().parents[2] / ".gitignore"


def untracked(repository: Path) -> list[str]:
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    status = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    return [line[3:] for line in status.stdout.splitlines()]


@pytest.mark.needs("git")
@pytest.mark.skipif(not IGNORED.exists(), reason="a source distribution has no .gitignore")
@pytest.mark.parametrize(
    ("name", "expected_untracked"), [("office.ledger", []), ("office", ["office"])]
)
def test_gitignore_covers_every_ledger_file(tmp_path, monkeypatch, name, expected_untracked):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copy(IGNORED, tmp_path / ".git" / "info" / "exclude")
    ledger, endings, link = Ledger.create(tmp_path / name), set(), os.link

    def check_files() -> None:
        files = [
            path for path in tmp_path.rglob("*") if path.is_file() and ".git" not in path.parts
        ]
        endings.update("key part" if ".key." in path.name else path.suffix for path in files)
        endings.update("sqlite journal" for path in files if path.name.endswith("-journal"))
        assert untracked(tmp_path) == expected_untracked

    monkeypatch.setattr(os, "link", lambda *paths: (check_files(), link(*paths)))
    ledger.add_dataset("adult", total=Budget(pcost=1.0))
    ledger.secret("records")
    ledger.save_result(receipt=spend(ledger), content=b"noisy")
    with journal(ledger.path, "k", seed=bytes(32), digest=lambda _: "d", spent=lambda: None):
        check_files()
    monkeypatch.undo()
    with transaction(ledger.path, write=True, wait=1.0) as connection:
        append(connection, read_rows(connection)[-1], kind="note:x", dataset="adult", note="text")
        check_files()
    expected = {".key", "key part", ".result", ".journal", ".part", "sqlite journal"}
    assert expected <= endings
