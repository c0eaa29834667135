"""Text files, also compressed: CSV of any delimiter and encoding, JSON lines."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from engine.errors import DataError
from engine.records import count_marginals
from engine.records.csv_reader import TextFile
from engine.release.ingest import records_fit
from engine.workload import Attribute, Schema
from tests.records.mixed import FRAME, SCHEMA, SETS, check


def packed(path: Path, content: bytes) -> Path:
    """Write a file, compressed if its ending is that of a compressed format; return its path."""
    match path.suffix:
        case ".gz":
            path.write_bytes(gzip.compress(content))
        case ".bz2":
            path.write_bytes(bz2.compress(content))
        case ".zst":
            path.write_bytes(pa.Codec("zstd").compress(content, asbytes=True))
        case ".zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("inside.txt", content)
        case _:
            path.write_bytes(content)
    return path


def jsonl(frame: pd.DataFrame) -> bytes:
    rows = ({k: v for k, v in row.items() if v is not None} for row in frame.to_dict("records"))
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


@pytest.mark.parametrize("pack", ["", ".gz", ".bz2", ".zst", ".zip"])
@pytest.mark.parametrize("form", [".csv", ".tsv", ".jsonl", ".ndjson"])
def test_text_files_are_counted_and_damage_is_refused(tmp_path: Path, form: str, pack: str) -> None:
    if form in (".jsonl", ".ndjson"):
        content = jsonl(FRAME)
    else:
        content = FRAME.to_csv(index=False, sep="\t" if form == ".tsv" else ",").encode()
    path = packed(tmp_path / f"x{form}{pack}", content)
    check(path)
    if pack:
        sound = path.read_bytes()
        for damaged in (sound[: len(sound) // 2], sound[:30], b"no pack"):
            path.write_bytes(damaged)
            with pytest.raises(DataError) as caught:
                count_marginals(path, SCHEMA, SETS, on_refused="drop")
            assert caught.value.__context__ is None


def every_second(*factors: Any) -> list[Any]:
    """Return all combinations of values as test parameters, one value per factor.

    Every second combination is marked "full".  Ordinary runs leave these combinations out.  Two
    combinations that differ only in neighbouring values of one factor are never both left out.
    """
    params = []
    for combination in itertools.product(*map(enumerate, factors)):
        values = [value for _, value in combination]
        is_full = sum(position for position, _ in combination) % 2 == 1
        params.append(pytest.param(*values, marks=[pytest.mark.full] if is_full else []))
    return params


@pytest.mark.parametrize(
    ("delimiter", "encoding"),
    every_second([",", ";", "\t", "|", "~"], ["utf-8", "latin-1", "utf-16", "utf-16-be"]),
)
def test_csv_delimiter_and_encoding_do_not_change_counts(
    tmp_path: Path, delimiter: str, encoding: str, monkeypatch: Any
) -> None:
    text = FRAME.to_csv(index=False, sep=delimiter)
    path = packed(tmp_path / "x.csv", text.encode(encoding))
    # Blocks may end inside a character.  A block is longer than the header.
    for csv_block, head in ((200, 61), (4_000_000, 4_000_000)):
        monkeypatch.setattr("engine.records.csv_reader.CSV_BLOCK", csv_block)
        monkeypatch.setattr("engine.records.csv_reader.HEAD", head)
        check(TextFile(path=path, delimiter=delimiter, encoding=encoding))

    def check_refusal(data: Path | TextFile, words: str) -> None:
        with pytest.raises(DataError, match=words):
            count_marginals(data, SCHEMA, SETS, on_refused="drop")

    if encoding == "utf-8":
        if delimiter != "~":  # all other delimiters are recognised
            check(path)
        path.write_bytes(text.replace("F", 'F"F', 1).encode())
        quoted = TextFile(path=path, delimiter=delimiter)
        check_refusal(quoted, "a quote in the middle of a field")
    else:
        check_refusal(path, r"UTF-8.*or give its encoding|column")
    path.write_bytes(text.encode("utf-16")[:-1])
    truncated = TextFile(path=path, delimiter=delimiter, encoding="utf-16")
    check_refusal(truncated, "not in the encoding utf-16")


def test_invalid_delimiter_or_encoding_is_refused() -> None:
    for delimiter in ("", ";;", '"', "é"):
        with pytest.raises(DataError, match="delimiter"):
            TextFile(path="x.csv", delimiter=delimiter)
    for encoding in ("latin-99", "rot13", "zip", None):
        with pytest.raises(DataError, match=r"encoding .* is unknown"):
            TextFile(path="x.csv", encoding=encoding)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line", ["[1]", "{", "7391", "\ud800", "nul", '{"sex": "F"', "[" * 100_000]
)
def test_invalid_json_line_is_reported_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b'{"sex": "F", "age": 1, "code": 1}\n\n' + line.encode("utf-8", "surrogatepass")
    )
    with pytest.raises(DataError, match=r"line 3 of the file 'x\.jsonl'") as caught:
        count_marginals(path, SCHEMA, SETS, on_refused="drop")
    assert "7391" not in str(caught.value)
    path.write_bytes(b'{"sex": "F", "age": 1, "cod": 1}\n')
    with pytest.raises(DataError, match="no column 'code'"):
        count_marginals(path, SCHEMA, SETS, on_refused="drop", ignore=["cod"])


def test_repeated_json_key_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    row = '{"sex": "F", "age": 1, "code": 1, "note": {"age": 1, "age": 2}, "more": 1, "more": 2}\n'
    path.write_text(row)
    assert count_marginals(path, SCHEMA, SETS, ignore=["more"]).records == 1
    path.write_text(row + '{"sex": "F", "age": 7391, "code": 1, "age": 2}\n')
    with pytest.raises(
        DataError, match=r"line 2 of the file 'x\.jsonl' has the key 'age' twice"
    ) as caught:
        count_marginals(path, SCHEMA, SETS, on_refused="drop", ignore=["more"])
    assert "7391" not in str(caught.value)


@pytest.mark.parametrize("pack", ["", ".gz", ".bz2", ".zst", ".zip"])
@pytest.mark.parametrize("form", [".csv", ".jsonl"])
def test_binary_file_error_names_its_format(tmp_path: Path, form: str, pack: str) -> None:
    for content, kind in (
        (b"%PDF-1.7\n7391", "a PDF document"),
        (b"PAR1" + bytes(99), "a Parquet file"),
    ):
        path = packed(tmp_path / f"x{form}{pack}", content)
        with pytest.raises(DataError, match=f"contains {kind}, but") as caught:
            count_marginals(path, SCHEMA, SETS, on_refused="drop")
        assert "7391" not in str(caught.value)


def test_keys_absent_from_first_object_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for name in ("people", "n"):
        second_object = f'{{"sex": "F", "age": 1, "code": 1, "{name}": 70}}'
        path.write_text(f'{{"sex": "F", "code": 1}}\n{second_object}\n')
        with pytest.raises(DataError, match=f"numeric column '{name}'"):
            count_marginals(path, SCHEMA, SETS)
        assert all(column.is_present for column in records_fit(SCHEMA, path))


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_character_cut_off_at_end_is_refused(tmp_path: Path, end: bytes) -> None:
    schema = Schema([Attribute.categorical("town", ["a", "b"])])
    (tmp_path / "x.csv").write_bytes(b"town\na\ncaf\xc3" + end)
    with pytest.raises(DataError, match=r"line 3 .* is not UTF-8, .*'CSV UTF-8'"):
        count_marginals(tmp_path / "x.csv", schema, [("town",)])


def test_utf16_file_read_as_utf8_is_named(tmp_path: Path) -> None:
    schema = Schema([Attribute.categorical("town", ["a", "b"])])
    (tmp_path / "x.csv").write_text("town\na\n", encoding="utf-16")
    with pytest.raises(DataError, match=r"is UTF-16, but UTF-8 was tried; .*'CSV UTF-8'"):
        count_marginals(tmp_path / "x.csv", schema, [("town",)])
