"""The table of the sample files equals the stored one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.__main__ import main
from tests.cases.samples import write_samples

pytestmark = pytest.mark.usefixtures("in_process_readers")
GOLDEN = Path(__file__).with_name("samples.table.txt")


def test_table_of_samples_is_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_samples(tmp_path)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


def test_command_without_folder_says_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "FOLDER" in capsys.readouterr().err
