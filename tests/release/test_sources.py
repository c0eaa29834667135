"""The same records from files of every kind, from folders and from frames of other libraries: the same integers."""

from __future__ import annotations

import base64
import bz2
import gzip
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.dataframe
import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pyreadstat
import pytest
import xlsxwriter

from engine import Attribute, Schema, TextFile, count_marginals, draft_schema
from engine.errors import Cancelled, DataError, EngineError, LimitExceeded, SchemaError
from engine.release import draft_of_public, named_sources, named_table, records_fit
from engine.release.records.apart import asking
from engine.release.records.database.dask import count_partitions
from engine.release.records.sources import read_batches

SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M", "ü"], missing="M"),
        Attribute.numeric("age", [0, 20, 65, 120]),
        Attribute.of_size("code", 5),
    ]
)
SETS = [("sex", "age"), ("code", "sex"), ()]


def records(rows: int = 250) -> pd.DataFrame:
    """Records with a value of every bad kind that all formats can hold."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "sex": rng.choice(["F", "M", "ü", "f", None], rows).astype(object),
            "age": rng.uniform(-5, 130, rows).round(2),
            "code": rng.integers(-1, 6, rows),
            "note": ["a, b; c"] * rows,
        }
    )


FRAME = records()
WHOLE = count_marginals(FRAME, SCHEMA, SETS, on_refused="drop")


def check(data: Any, **options: Any) -> None:
    found = count_marginals(data, SCHEMA, SETS, on_refused="drop", **options)
    assert all((found[names] == table).all() for names, table in WHOLE.items())
    assert found.refused == WHOLE.refused
    assert (found.records, found.rows_in) == (WHOLE.records, len(FRAME))


def packed(path: Path, content: bytes) -> Path:
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
def test_text_files_packed_or_not(tmp_path: Path, form: str, pack: str) -> None:
    separator = "\t" if form == ".tsv" else ","
    content = jsonl(FRAME) if "j" in form else FRAME.to_csv(index=False, sep=separator).encode()
    place = packed(tmp_path / f"x{form}{pack}", content)
    check(place)
    body = place.read_bytes()
    if pack:
        for spoiled in (body[: len(body) // 2], body[:30], b"no pack"):
            place.write_bytes(spoiled)
            with pytest.raises(DataError) as caught:
                count_marginals(place, SCHEMA, SETS, on_refused="drop")
            assert caught.value.__context__ is None


def every_second(*factors: Any) -> list[Any]:
    """Rows of which every value of one meets half of the others' in every run, all of them in full ones."""
    rows = itertools.product(*map(enumerate, factors))
    return [pytest.param(*(v for _, v in r), marks=[pytest.mark.full] * (sum(k for k, _ in r) % 2)) for r in rows]


@pytest.mark.parametrize(
    ("delimiter", "encoding"), every_second([",", ";", "\t", "|", "~"], ["utf-8", "latin-1", "utf-16", "utf-16-be"])
)
def test_csv_of_any_delimiter_and_encoding(tmp_path: Path, delimiter: str, encoding: str, monkeypatch: Any) -> None:
    text = FRAME.to_csv(index=False, sep=delimiter)
    place = packed(tmp_path / "x.csv", text.encode(encoding))
    given = delimiter if delimiter == "~" else None
    for block in (61, 4_000_000):  # blocks may end inside a character
        monkeypatch.setattr("engine.release.records.csv.CSV_BLOCK", block if block > len(text.split("\n")[0]) else 200)
        monkeypatch.setattr("engine.release.records.csv.HEAD", block)
        check(TextFile(path=place, delimiter=given or delimiter, encoding=encoding))
    if encoding == "utf-8":
        if given is None:
            check(place)
        place.write_bytes(text.replace("F", 'F"F', 1).encode())
        with pytest.raises(DataError, match="a quote in the middle of a field"):
            count_marginals(TextFile(path=place, delimiter=delimiter), SCHEMA, SETS, on_refused="drop")
    else:
        with pytest.raises(DataError, match=r"UTF-8.*or give its encoding|column"):
            count_marginals(place, SCHEMA, SETS, on_refused="drop")
    place.write_bytes(text.encode("utf-16")[:-1])
    with pytest.raises(DataError, match="not in the encoding utf-16"):
        count_marginals(TextFile(path=place, delimiter=delimiter, encoding="utf-16"), SCHEMA, SETS, on_refused="drop")


def test_what_is_no_delimiter_or_encoding_is_refused() -> None:
    for wrong in ({"delimiter": ""}, {"delimiter": ";;"}, {"delimiter": '"'}, {"delimiter": "é"}):
        with pytest.raises(DataError, match="delimiter"):
            TextFile(path="x.csv", **wrong)
    for name in ("latin-99", "rot13", "zip", None):
        with pytest.raises(DataError, match="no encoding"):
            TextFile(path="x.csv", encoding=name)  # type: ignore[arg-type]


def feather(path: Path) -> Path:
    pa.feather.write_feather(pa.Table.from_pandas(FRAME), path, chunksize=70)
    return path


def stream(path: Path) -> Path:
    table = pa.Table.from_pandas(FRAME)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    return path


def parts(path: Path) -> Path:
    path.mkdir()
    for i in range(4):
        (path / f"year={i}").mkdir()
        FRAME.iloc[i::4].to_parquet(path / f"year={i}" / "part.parquet")
    (path / "_SUCCESS").write_text("")
    (path / ".part.crc").write_text("")
    return path


def by_sex(path: Path) -> Path:
    pa.parquet.write_to_dataset(pa.Table.from_pandas(FRAME.fillna({"sex": pd.NA})), path, partition_cols=["sex"])
    return path


def generated() -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_pandas(FRAME).to_batches(max_chunksize=60)


class Polars:
    """Stands for a plan of a data frame library that is carried out when its rows are asked for."""

    def collect_schema(self) -> None:
        raise AssertionError("not needed")

    def collect(self, *, engine: str) -> pa.RecordBatchReader:
        assert engine == "streaming"
        return pa.Table.from_pandas(FRAME).to_reader()


def polars_file(path: Path) -> Path:
    import_module("polars").from_pandas(FRAME).write_ipc(path, compression="zstd")
    return path


SOURCES: dict[str, Callable[[Path], Any]] = {
    "feather": lambda path: feather(path / "x.feather"),
    "arrow file": lambda path: feather(path / "x.arrow"),
    "arrow stream": lambda path: stream(path / "x.arrow"),
    "folder": lambda path: parts(path / "set"),
    "pattern": lambda path: str(parts(path / "set") / "*" / "*.parquet"),
    "folder by sex": lambda path: by_sex(path / "set"),
    "generator": lambda path: generated(),
    "generator of tables": lambda path: iter([pa.Table.from_pandas(FRAME[:99]), pa.Table.from_pandas(FRAME[99:])]),
    "plan": lambda path: Polars(),
    "dask": lambda path: dask.dataframe.from_pandas(FRAME, npartitions=3),
    "relation": lambda path: duckdb.connect().from_arrow(pa.Table.from_pandas(FRAME)),
}
if find_spec("polars"):  # which is too large to be installed for tests alone
    SOURCES |= {
        "polars": lambda path: import_module("polars").from_pandas(FRAME),
        "polars plan": lambda path: import_module("polars").from_pandas(FRAME).lazy(),
        "polars file": lambda path: polars_file(path / "x.arrow"),
    }


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_integers(kind: str, tmp_path: Path) -> None:
    check(SOURCES[kind](tmp_path))


@pytest.mark.parametrize("kind", SOURCES)
def test_columns_of_numbers_are_asked_about_wherever_they_come_from(kind: str, tmp_path: Path) -> None:
    known = Schema(SCHEMA.attributes[:2])
    for name in "ab":
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="'code', which holds numbers"):
        count_marginals(SOURCES[kind](tmp_path / "a"), known, [("sex",)], on_refused="drop")
    found = count_marginals(SOURCES[kind](tmp_path / "b"), known, [("sex",)], on_refused="drop", ignore=["code"])
    assert found.records == (FRAME["sex"] != "f").sum()


@pytest.mark.parametrize("kind", SOURCES)
def test_rows_that_are_counted_already_count_alike_wherever_they_come_from(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.random.default_rng(1).choice([-1, 0, 1, 2, 2.5, 7, 1e15, np.nan], len(FRAME))
    monkeypatch.setitem(globals(), "FRAME", FRAME.assign(n=numbers))
    asked: dict[str, Any] = {"count_column": "n", "on_refused": "drop"}
    here = count_marginals(FRAME, SCHEMA, SETS, **asked)
    assert len(here.refused["n"]) == 3
    there = count_marginals(SOURCES[kind](tmp_path), SCHEMA, SETS, **asked)
    assert all((there[names] == here[names]).all() for names in here)
    assert (there.records, there.rows_in, there.refused) == (here.records, here.rows_in, here.refused)


def test_folders_must_hold_the_same_columns_everywhere(tmp_path: Path) -> None:
    place = parts(tmp_path / "set")
    FRAME.drop(columns="age").to_parquet(place / "year=2" / "more.parquet")
    with pytest.raises(DataError, match="no column 'age'"):
        count_marginals(place, SCHEMA, SETS, on_refused="drop")
    (place / "year=2" / "more.parquet").write_bytes(b"")
    (place / "readme.txt").write_text("nothing")
    with pytest.raises(DataError, match=r"'readme.txt' is of no known kind"):
        count_marginals(place, SCHEMA, SETS, on_refused="drop")
    (tmp_path / "counted").mkdir()
    (tmp_path / "counted" / "a.counts").write_text("nothing")
    with pytest.raises(DataError, match=r"'a\.counts' holds counts of a part.*'counts merge'"):
        count_marginals(tmp_path / "counted", SCHEMA, SETS, on_refused="drop")
    both = by_sex(tmp_path / "both")
    FRAME.to_parquet(both / "sex=F" / "more.parquet")
    with pytest.raises(DataError, match=r"'sex' is in 'more\.parquet' and in its folder"):
        count_marginals(both, SCHEMA, SETS, on_refused="drop")
    for none in (tmp_path / "empty", tmp_path / "*.parquet"):
        with pytest.raises(DataError, match="no file"):
            count_marginals(none, SCHEMA, SETS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="or none in it"):
        count_marginals(tmp_path / "empty", SCHEMA, SETS)


def test_generators_of_something_else_are_refused() -> None:
    for wrong in (iter([]), iter([1, 2]), iter([pa.Table.from_pandas(FRAME), 3]), (row for row in ({"sex": "F"},))):
        with pytest.raises(DataError):
            count_marginals(wrong, SCHEMA, SETS, on_refused="drop")

    def broken() -> Iterator[pa.RecordBatch]:
        yield from generated()
        raise RuntimeError("CANARY7391")

    with pytest.raises(DataError) as caught:
        count_marginals(broken(), SCHEMA, SETS, on_refused="drop")
    assert "7391" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("line", ["[1]", "{", "7391", "\ud800", "nul", '{"sex": "F"', "[" * 100_000])
def test_lines_that_are_no_object_are_named_by_their_number(tmp_path: Path, line: str) -> None:
    place = tmp_path / "x.jsonl"
    place.write_bytes(b'{"sex": "F", "age": 1, "code": 1}\n\n' + line.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=r"line 3 of the file 'x\.jsonl'") as caught:
        count_marginals(place, SCHEMA, SETS, on_refused="drop")
    assert "7391" not in str(caught.value)
    place.write_bytes(b'{"sex": "F", "age": 1, "cod": 1}\n')
    with pytest.raises(DataError, match="no column 'code'"):
        count_marginals(place, SCHEMA, SETS, on_refused="drop", ignore=["cod"])


def test_a_key_that_an_object_has_twice_is_named_where_it_is_asked_for(tmp_path: Path) -> None:
    place = tmp_path / "x.jsonl"
    row = '{"sex": "F", "age": 1, "code": 1, "note": {"age": 1, "age": 2}, "more": 1, "more": 2}\n'
    place.write_text(row)
    assert count_marginals(place, SCHEMA, SETS, ignore=["more"]).records == 1
    place.write_text(row + '{"sex": "F", "age": 7391, "code": 1, "age": 2}\n')
    with pytest.raises(DataError, match=r"line 2 of the file 'x\.jsonl' has the key 'age' twice") as caught:
        count_marginals(place, SCHEMA, SETS, on_refused="drop", ignore=["more"])
    assert "7391" not in str(caught.value)


@pytest.mark.parametrize("pack", ["", ".gz", ".bz2", ".zst", ".zip"])
@pytest.mark.parametrize("form", [".csv", ".jsonl"])
def test_what_is_no_text_is_called_by_its_name(tmp_path: Path, form: str, pack: str) -> None:
    for begins, kind in ((b"%PDF-1.7\n7391", "a PDF document"), (b"PAR1" + bytes(99), "a parquet file")):
        place = packed(tmp_path / f"x{form}{pack}", begins)
        with pytest.raises(DataError, match=f"holds {kind} and no lines of text") as caught:
            count_marginals(place, SCHEMA, SETS, on_refused="drop")
        assert "7391" not in str(caught.value)


def test_keys_that_the_first_object_leaves_out_are_columns(tmp_path: Path) -> None:
    place = tmp_path / "x.jsonl"
    place.write_text('{"sex": "F", "code": 1}\n{"sex": "F", "age": 1, "code": 1, "people": 70}\n')
    with pytest.raises(DataError, match="'people', which holds numbers"):
        count_marginals(place, SCHEMA, SETS)
    assert all(column.there for column in records_fit(SCHEMA, place))
    place.write_text('{"sex": "F", "code": 1}\n{"sex": "F", "age": 1, "code": 1, "n": 70}\n')
    with pytest.raises(DataError, match="'n', which holds numbers"):
        count_marginals(place, SCHEMA, SETS, on_refused="drop")


# what a program of its own has loaded already when it becomes, again and again, the process that reads a file
READY = """
import json, os, runpy, socket, sys
import pandas, pyreadstat  # the one needs the other when it reads
with socket.socket(fileno=int(sys.argv[1])) as asked:
    while (found := socket.recv_fds(asked, 2**16, 1))[0]:
        command = json.loads(found[0])
        if isinstance(command, int):
            asked.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(command, 0)[1]))
        elif child := os.fork():
            os.close(found[1][0])
            asked.send(b"%d" % child)
        else:
            asked.close()
            os.dup2(found[1][0], 1)
            os.close(found[1][0])
            sys.argv = command
            code = 0
            try:
                runpy.run_path(command[0], run_name="__main__")
            except SystemExit as ended:
                code = ended.code
            os._exit(code)  # what was said is flushed
"""


class Copied:
    """The part of `subprocess.Popen` that is used, for a process that need not load its libraries anew."""

    asked: socket.socket

    def __init__(self, command: list[str], **_: Any) -> None:
        held, given = os.pipe()
        socket.send_fds(self.asked, [json.dumps(command[2:]).encode()], [given])
        os.close(given)
        self.pid, self.code, self.stdout = int(self.asked.recv(99)), None, os.fdopen(held, "rb")

    def __enter__(self) -> Copied:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stdout.close()
        self.wait()

    def wait(self) -> int:
        if self.code is None:
            self.asked.send(b"%d" % self.pid)
            self.code = int(self.asked.recv(99))
        return self.code

    def kill(self) -> None:
        if self.code is None:  # it is not gone before it was waited for
            os.kill(self.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def ready() -> Iterator[None]:
    here, there = socket.socketpair()
    silent = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-I", "-c", READY, str(there.fileno())]
    with subprocess.Popen(command, pass_fds=[there.fileno()], **silent), here:
        there.close()
        Copied.asked = here
        yield
        here.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def copies(ready: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file has a process of its own, as always, but a copied one: that a new one starts is shown elsewhere."""
    monkeypatch.setattr(asking, "subprocess", SimpleNamespace(**(vars(subprocess) | {"Popen": Copied})))


LABELS = {"sex": {1: "woman", 2: "man", 8: "no answer", 9: "refused"}, "work": {1.0: "paid", 2.0: "none"}}
SURVEY = pd.DataFrame(
    {"sex": [1, 2, 2, 8, 9, 3, np.nan], "work": [1, 2, 2, 1, 1, 2, 1], "age": [30.0, 41.5, 7, 80, 99, 12, 3]}
)


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("form", ["sav", "dta"])
def test_labels_make_a_schema_that_the_records_fit(tmp_path: Path, form: str) -> None:
    place, labels = tmp_path / f"x.{form}", {"variable_value_labels": LABELS}
    if form == "sav":
        pyreadstat.write_sav(SURVEY, place, **labels, missing_ranges={"sex": [9, {"lo": 20, "hi": 30}]})
    else:
        pyreadstat.write_dta(SURVEY, place, **labels)
    draft = draft_schema(place)
    assert draft.unlabelled == ("age",)
    assert draft.schema["sex"].labels == ("woman", "man", "no answer", "refused")
    assert draft.schema["sex"].missing == ("refused" if form == "sav" else None)
    found = count_marginals(place, draft.schema, [("sex", "work")], on_refused="drop", ignore=["age"])
    rows = [[1, 0], [0, 2], [1, 0], [2, 0]] if form == "sav" else [[1, 0], [0, 2], [1, 0], [1, 0]]
    assert found["sex", "work"].tolist() == rows
    reasons = {"outside the public domain": 1} | ({} if form == "sav" else {"missing": 1})
    assert found.refused == {"sex": reasons}
    ages = Schema([Attribute.numeric("age", [0, 50, 100])])
    assert count_marginals(place, ages, [("age",)])["age",].tolist() == [5, 2]
    with pytest.raises(DataError, match="'age', which holds numbers"):
        count_marginals(place, draft.schema, [("sex",)], on_refused="drop")


def test_numbers_whose_missing_codes_alone_have_labels_are_asked_about(tmp_path: Path) -> None:
    rows = pd.DataFrame({"sex": [1.0, 2.0], "region": [1.0, 2.0], "people": [70.0, -9.0]})
    labels = {"sex": {1.0: "F", 2.0: "M"}, "region": {1.0: "north", 2.0: "south"}, "people": {-9.0: "unknown"}}
    place, schema = tmp_path / "x.sav", Schema([Attribute.categorical("sex", ["F", "M"])])
    pyreadstat.write_sav(rows, place, variable_value_labels=labels, missing_ranges={"people": [-9.0]})
    with pytest.raises(DataError, match="column 'people', which holds numbers"):
        count_marginals(place, schema, [("sex",)], on_refused="drop")
    assert count_marginals(place, schema, [("sex",)], ignore=["people"]).records == 2


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("form", ["sav", "dta", "xpt"])
def test_a_file_that_breaks_off_is_refused(tmp_path: Path, form: str) -> None:
    place = tmp_path / f"x.{form}"
    rows = pd.DataFrame({"sex": [1.0] * 999, "age": [30.0] * 999})
    {"sav": pyreadstat.write_sav, "dta": pyreadstat.write_dta, "xpt": pyreadstat.write_xport}[form](rows, place)
    schema = Schema([Attribute.of_size("sex", 3), Attribute.numeric("age", [0, 65])])
    assert count_marginals(place, schema, [("sex",)]).records == 999
    place.write_bytes(place.read_bytes()[:-4321])
    with pytest.raises(DataError, match=rf"the file 'x\.{form}' (cannot be read|breaks off)"):
        count_marginals(place, schema, [("sex",)], on_refused="drop")


def test_a_damaged_file_ends_its_reader_alone(tmp_path: Path) -> None:
    place = tmp_path / "x.sav"
    rows = pd.DataFrame({"sex": ["F", "M"], "code": [0.0, 1.0]})
    pyreadstat.write_sav(rows, place, variable_value_labels={"code": {0.0: "no", 1.0: "yes"}})
    assert draft_schema(place).schema["code"].labels == ("no", "yes")
    held = place.read_bytes()
    numbers, texts = (struct.pack("<iii", 4, 1, column) for column in (2, 1))
    assert held.count(numbers) == 1
    place.write_bytes(held.replace(numbers, texts))  # labels of numbers for texts: readers fall over
    for read in (draft_schema, draft_of_public, lambda file: count_marginals(file, SCHEMA, SETS)):
        with pytest.raises(DataError, match=r"the file 'x.sav' cannot be read"):
            read(place)


@pytest.mark.usefixtures("copies")
def test_public_columns_of_which_some_values_have_labels_have_a_cell_for_each(tmp_path: Path) -> None:
    place, rows = tmp_path / "x.sav", pd.DataFrame({"work": [1.0, 2.0, 2.5, 99.0, np.nan]})
    pyreadstat.write_sav(rows, place, variable_value_labels={"work": {99.0: "refused", 1.0: "none"}})
    schema = draft_of_public(place).schema
    assert schema["work"].labels == ("2", "2.5", "none", "refused")
    found = count_marginals(place, schema, [("work",)], on_refused="drop")
    assert found["work",].tolist() == [1, 1, 1, 1]
    assert found.refused == {"work": {"missing": 1}}


def test_files_without_labels_make_no_schema(tmp_path: Path) -> None:
    pyreadstat.write_sav(SURVEY, tmp_path / "x.sav")
    with pytest.raises(SchemaError, match="no column"):
        draft_schema(tmp_path / "x.sav")
    (tmp_path / "y.sav").write_bytes(b"CANARY7391")
    for wrong in (tmp_path / "y.sav", tmp_path / "z.sav", tmp_path / "x.csv"):
        with pytest.raises(EngineError) as caught:
            draft_schema(wrong)
        assert "7391" not in str(caught.value)


def sheet(path: Path, rows: list[list[Any]], sheets: int = 1, merged: str = "") -> Path:
    """A workbook as small as it can be, written by hand: no library that writes them is needed."""

    def cell(value: Any) -> str:
        if value is None:
            return "<c/>"
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t>{value}</t></is></c>'
        return f"<c><v>{value}</v></c>"

    ns = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    body = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    named = "".join(f'<sheet name="S{i}" sheetId="{i + 1}" r:id="r{i}"/>' for i in range(sheets))
    links = "".join(f'<Relationship Id="r{i}" Type="{office}/worksheet" Target="s.xml"/>' for i in range(sheets))
    merge = f'<mergeCells count="1"><mergeCell ref="{merged}"/></mergeCells>' if merged else ""
    root = f'<Relationship Id="r" Type="{office}/officeDocument" Target="xl/workbook.xml"/>'
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("_rels/.rels", f'<Relationships xmlns="{relations}">{root}</Relationships>')
        book.writestr("xl/workbook.xml", f'<workbook {ns} xmlns:r="{office}"><sheets>{named}</sheets></workbook>')
        book.writestr("xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{relations}">{links}</Relationships>')
        book.writestr("xl/s.xml", f"<worksheet {ns}><sheetData>{body}</sheetData>{merge}</worksheet>")
    return path


def test_a_sheet_of_a_workbook(tmp_path: Path) -> None:
    rows = [list(FRAME.columns), *FRAME.to_numpy(object).tolist(), [None] * 4]
    check(sheet(tmp_path / "x.xlsx", rows))
    with pytest.raises(DataError, match="2 sheets"):
        count_marginals(sheet(tmp_path / "y.xlsx", rows, 2), SCHEMA, SETS)
    (tmp_path / "z.xlsx").write_bytes(b"no workbook")
    with pytest.raises(DataError, match="cannot be read"):
        count_marginals(tmp_path / "z.xlsx", SCHEMA, SETS)


def test_a_forgotten_cell_far_away_is_told_and_ends_nothing(tmp_path: Path) -> None:
    place = tmp_path / "x.xlsx"
    with xlsxwriter.Workbook(str(place)) as book:
        page = book.add_worksheet()
        page.write_row(0, 0, list(FRAME.columns))
        page.write(2**20 - 1, 2**14 - 1, " ")
    for read in (lambda: count_marginals(place, SCHEMA, SETS), lambda: draft_of_public(place)):
        with pytest.raises(LimitExceeded, match=r"'x.xlsx' needs more memory .* forgotten cell"):
            read()


@pytest.mark.parametrize(("merged", "where"), [("A1:B1", "in its header"), ("A2:A4", "in its rows")])
def test_merged_cells_are_not_taken_for_missing_values(tmp_path: Path, merged: str, where: str) -> None:
    rows = [list(FRAME.columns), *FRAME.to_numpy(object).tolist()]
    place = sheet(tmp_path / "x.xlsx", rows, merged=merged)
    with pytest.raises(DataError, match=f"'x.xlsx' has merged cells {where}; unmerge them"):
        count_marginals(place, SCHEMA, SETS, on_refused="drop")


SMALL = pd.DataFrame(
    {"SEX": ["F", "M", "", "x", "f", "F"], "AGE": [30.0, 19.5, None, 80, -3, 120], "CODE": [0, 4, 2, 5, 1, 3]}
)
# what nothing at hand writes: the same records as files of SAS and of an old Excel, packed
WRITTEN = {
    ".sas7bdat": (
        "c-rmSze@sP9LMpm8e!CMf`dcQ5e-doqC_p_k!J)-fesB3O+iajL0h&rME^>2AT5s77BsXsHC50LJH5vr&r_E*G)V84!}p%gJ>N$hPWZx!bY0vZ"
        "ZJi|(m*=N(8L6j_QxjGqBQhxwNz1pA+N$i9?ZQgY%exh~>{aYA(nqsD*jK%+@7=lGYG|HhiA0Tfe#S{V>5}8utY2q~JG=V_0ssI2000000002M"
        "e-!sWA~$2fYC5Lht*Ja^be*W&X$O&@Y^XeI<d({dMt(IK)SP*KNWK=50{{R3f8qV5(K4w0uR(ib?$Z<?G9=Mf?XDxu*KW0SFLhMI?j++9j1RV|"
        "Q+|)`P4$fTWaj(AWp7>FWlxq?^WLMcnHgh=Jo$d|d)sr%aLD~wzXPnV<A#AJ0|O}%JQ)QoT<DC~rQW!jQMsj$-`CHF>MEzde_v7ilDTdD-=-GS"
        "heiE+H`V?)<2?WX0002L@BvSSdb0"
    ),
    ".xls": (
        "c-rk)O=uHA6n?YW-Tcs|NlXi^5JJJKZ7<@*OB-8Fb84;jU=cx68$nu92_Ce9R%?!e;7RdP=*3Ibi$AEKH$kDI2SE^$dh{e%@z7>{^X+U+>K+=<"
        "`on(9yqS43-<!8HZ)Sg9FGfpq_u9&|4!z`~iWMZYN+&o4ol1nb-LhoS$pf4$5C0T`0bWScpvR4`{BjNDdY4I~yZUpML`$5G(rFr+%IA`sh<^Bx"
        "71D<umV$1vCQPmHDh7E1atq`g^n3!j7n-Y(J>0h>j?iLisB@2s;!&*~ZDEpjAAs{7nqAaPFJu&7ye90v2K5zAWhej6hJ@Zg^Tg|x$>no}>|}}J"
        "ynyqxY$b`lI6L)O($jCQUJ&cQ)$08&`s<obG(*;L1bC4T*Oxwffk#%T3+Jial&l*`kFxB`q?xeq!2UGH!2qX0PG>ot49TMzTRBp*l^YS_4J^m0"
        "3FRmPJ;KIUZhw9=I5wO*2F(nHvk&=g(l4^;l4LMBj20M`&QK>9U67Yybt}qkkZ}%A&O3&iRbgNjeXgLjgU8toyiIMdD(~QO@zcSFiQ>o9PA)HG"
        "%G2?Mcd0pQ=Xn`tzPx6sTXc(?HzXdVoLr~_;R9srPlrQ5izweM^(1SeRSKaPg|usOcEnmuQ*$NR!i6osmh<tH#}{BvL#Kf)d72APLmyr7>@_)`"
        "kh<6!&$o_uK?`wRdK6L~=`NOaST>Yp9hUor)U~WxHe7fHc&6eR;C<zXgRQf9rVG!knE?~LC5#sauUCuFeR;clB>zB&Jb3Wn!Gi}69z6Up2)wA-"
        "ul4fv(NG@_e)V5xl~cw0P4eI35KZxQhCfWxl;^xa=jw`|7BYlmOKgzi{4bO^%%c}*g2v#-MBVYrA5fzDel|>u{JJev@A#E^{QS-1e+O1p)dB"
    ),
}


def open_document(path: Path) -> None:
    """A sheet of Open Document as small as it can be."""

    def cell(value: Any) -> str:
        if value is None or value == "" or value != value:
            return "<table:table-cell/>"
        if isinstance(value, str):
            return f'<table:table-cell office:value-type="string"><text:p>{value}</text:p></table:table-cell>'
        return f'<table:table-cell office:value-type="float" office:value="{value}"/>'

    spaces = "".join(f' xmlns:{n}="urn:oasis:names:tc:opendocument:xmlns:{n}:1.0"' for n in ("office", "table", "text"))
    rows = "".join(
        f"<table:table-row>{''.join(map(cell, row))}</table:table-row>"
        for row in [list(SMALL.columns), *SMALL.to_numpy(object).tolist()]
    )
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        book.writestr("META-INF/manifest.xml", "<manifest/>")
        book.writestr(
            "content.xml",
            f"<office:document-content{spaces}><office:body><office:spreadsheet><table:table table:name='S'>{rows}"
            "</table:table></office:spreadsheet></office:body></office:document-content>",
        )


def written(path: Path) -> Path:
    """The small records as a file of the kind that its name says."""
    match path.suffix:
        case ".xpt":
            pyreadstat.write_xport(SMALL, path)
        case ".por":
            pyreadstat.write_por(SMALL, path)
        case ".zsav":
            pyreadstat.write_sav(SMALL, path, compress=True)
        case ".ods":
            open_document(path)
        case kind:
            path.write_bytes(zlib.decompress(base64.b85decode(WRITTEN[kind])))
    return path


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("form", [".sas7bdat", ".xpt", ".por", ".zsav", ".xls", ".ods"])
def test_files_of_other_programs_hold_the_same_records(tmp_path: Path, form: str) -> None:
    schema = Schema(
        [
            Attribute.categorical("SEX", ["F", "M"], missing="M"),
            Attribute.numeric("AGE", [0, 20, 65, 120]),
            Attribute.of_size("CODE", 5),
        ]
    )
    sets = [("SEX", "CODE"), ("AGE",)]
    place, here = written(tmp_path / f"x{form}"), count_marginals(SMALL, schema, sets, on_refused="drop")
    found = count_marginals(place, schema, sets, on_refused="drop")
    assert all((found[names] == table).all() for names, table in here.items())
    assert found.refused == here.refused
    assert found.rows_in == len(SMALL)
    with pytest.raises(DataError, match=r"'CODE', which holds numbers"):
        count_marginals(place, Schema(schema.attributes[:2]), [("SEX",), ("AGE",)])
    body = place.read_bytes()
    for spoiled in (body[: len(body) // 2], b"CANARY7391"):
        place.write_bytes(spoiled)
        with pytest.raises(DataError) as caught:
            count_marginals(place, schema, sets, on_refused="drop")
        assert "7391" not in str(caught.value)
        assert caught.value.__context__ is None


def test_row_groups_are_read_one_after_the_other(tmp_path: Path) -> None:
    """What a row group took in memory is given back before the next one, however many there are."""
    rows, groups, place = 20_000, 48, tmp_path / "x.parquet"
    numbers = np.random.default_rng(0).integers(0, 2**40, (2, rows * groups))
    pa.parquet.write_table(
        pa.table({"a": numbers[0], "b": numbers[1]}), place, row_group_size=rows, use_dictionary=False
    )
    before, most = pa.total_allocated_bytes(), 0
    for _ in read_batches(place, ["a", "b"]):
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 8 * 16 * rows < groups / 3 * 16 * rows


def test_dictionaries_of_arrow_files_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, long = tmp_path / "x.arrow", 100_000
    labels = pa.DictionaryArray.from_arrays(pa.array([0]), [" " * long])
    table = pa.table({"code": pa.array([0]), **{f"other{i}": labels for i in range(3)}})
    with pa.ipc.new_file(place, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    schema = Schema([Attribute.of_size("code", 5)])
    monkeypatch.setattr("engine.release.records.packed.UNFOLDED_BYTES", 4 * long)
    assert count_marginals(place, schema, [("code",)]).records == 1
    monkeypatch.setattr("engine.release.records.packed.UNFOLDED_BYTES", 2 * long)
    with pytest.raises(LimitExceeded, match="with its dictionaries"):
        count_marginals(place, schema, [("code",)])


@pytest.mark.parametrize("packing", ["lz4", "zstd", None])
@pytest.mark.parametrize("form", ["file", "stream", "labels"])
def test_arrow_files_that_unfold_to_too_much_are_refused_before_they_do(
    tmp_path: Path, form: str, packing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, small = tmp_path / "x.arrow", 100_000
    column: Any = pa.array(np.zeros(small, np.int64))
    if form == "labels":
        column = pa.DictionaryArray.from_arrays(pa.array([0]), [" " * (8 * small)])
    table = pa.table({"code": column})
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with new(place, table.schema, options=pa.ipc.IpcWriteOptions(compression=packing)) as writer:
        writer.write_table(table)
    schema = Schema([Attribute.of_size("code", 5)])
    assert count_marginals(place, schema, [("code",)], on_refused="drop").rows_in == len(column)
    monkeypatch.setattr("engine.release.records.packed.UNFOLDED_BYTES", 8 * small - 1)
    if packing is None:
        assert count_marginals(place, schema, [("code",)], on_refused="drop").rows_in == len(column)
        return
    assert place.stat().st_size < small
    with pytest.raises(LimitExceeded, match="unfolds to 8"):
        next(read_batches(place, ["code"]))
    if form != "stream":  # which is no file of a dataset
        with pytest.raises(LimitExceeded, match="unfolds to 8"):
            next(read_batches(pa.dataset.dataset(tmp_path, format="arrow"), ["code"]))
    place.write_bytes(place.read_bytes()[:-30].replace(b"code", b"cod\xff"))
    with pytest.raises(DataError):
        count_marginals(place, schema, [("code",)], on_refused="drop")


def test_an_arrow_file_whose_end_names_batches_that_were_not_looked_at_is_refused(tmp_path: Path) -> None:
    place, table = tmp_path / "x.arrow", pa.table({"code": [0, 1, 1]})
    with pa.ipc.new_file(place, table.schema) as writer:
        writer.write_table(table)
    found = pa.dataset.dataset(tmp_path, format="arrow")
    assert sum(batch.rows for batch in read_batches(found, ["code"])) == 3
    held = place.read_bytes()
    batch = held.index(b"\xff\xff\xff\xff", 16)  # what every message begins with; the first is the schema
    named = held.index(struct.pack("<q", batch), batch)
    place.write_bytes(held[:named] + struct.pack("<q", batch + 8) + held[named + 8 :])
    for whole in (found, place):
        with pytest.raises(DataError, match="names batches that the file does not hold"):
            next(read_batches(whole, ["code"]))


def test_an_arrow_file_is_read_by_the_list_at_its_end(tmp_path: Path) -> None:
    """Polars begins such files otherwise, and nothing keeps a program from leaving old batches in between."""
    place = feather(tmp_path / "x.arrow")
    held = place.read_bytes()
    length = struct.unpack_from("<i", held, 12)[0]
    assert held[8:12] == b"\xff\xff\xff\xff"
    place.write_bytes(held[:8] + bytes(8 + length) + held[16 + length :])  # without the schema at its start
    check(place)
    check(pa.dataset.dataset(place, format="arrow"))


@pytest.mark.parametrize("library", ["pyreadstat", "python_calamine"])
def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(
    tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    place = tmp_path / ("x.sav" if library == "pyreadstat" else "x.xlsx")
    place.write_bytes(b"")
    with pytest.raises(DataError, match=rf"needs {library}.*pip install 'dp-query-workbench\[sources\]'"):
        count_marginals(place, SCHEMA, SETS)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings that name the records in a database, whose place is a secret of the environment."""
    place = tmp_path / "office-secret.duckdb"
    with duckdb.connect(str(place)) as database:
        database.register("frame", FRAME)
        database.execute("create schema held; create table held.people as from frame")
    settings = tmp_path / "sources.toml"
    settings.write_text('[census]\naddress = "duckdb://${PLACE}"\ntable = "people"\ndatabase = "held"\n')
    monkeypatch.setenv("DP_WORKBENCH_SOURCES", str(settings))
    monkeypatch.setenv("PLACE", str(place))
    return settings


def test_a_table_that_settings_name_is_counted_where_it_is(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.release.records.tables.read_batches", lambda *_: pytest.fail("rows travelled"))
    assert named_sources() == ("census",)
    check(named_table("census"))


def test_settings_of_sources_that_are_wrong_say_so_and_tell_no_secret(
    named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(name: str = "census", text: str | None = None) -> str:
        if text is not None:
            named.write_text(text)
        with pytest.raises(DataError) as caught:
            named_table(name)
        assert "office-secret" not in str(caught.value)
        assert caught.value.__context__ is None
        return str(caught.value)

    good = named.read_text()
    assert "close names: 'census'" in said("cencus")
    assert "has another table" in said(text=good.replace("people", "persons"))
    assert "cannot be reached" in said(text=good.replace("${PLACE}", "${PLACE}/no/office-secret"))
    assert "the variable 'PLACES'" in said(text=good.replace("PLACE", "PLACES"))
    for wrong in (
        "address",
        "[census]\ntable = 'x'",
        good + "port = '1'",
        "[census]\naddress = 1\ntable = 'x'",
        "x = 1",
    ):
        assert "DP_WORKBENCH_SOURCES" in said(text=wrong)
    named.unlink()
    assert "DP_WORKBENCH_SOURCES" in said()
    monkeypatch.delenv("DP_WORKBENCH_SOURCES")
    assert named_sources() == ()
    assert "the variable DP_WORKBENCH_SOURCES" in said()


def partitions(frame: pd.DataFrame = FRAME) -> Any:
    return dask.dataframe.from_pandas(frame, npartitions=5)


def test_partitions_are_counted_by_the_workers_and_only_counts_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.release.records.sources._partitions", lambda *_: pytest.fail("rows travelled"))
    heard: list[float] = []
    monkeypatch.setattr("engine.release.records.database.dask.TOGETHER", 2)
    check(partitions(), progress=lambda fraction, text: bool(heard.append(fraction)) or True)
    assert heard == sorted(heard)
    assert {0.4, 0.8, 1.0} < set(heard)
    assert heard[-1] == 1.0
    refusals = []
    for data in (FRAME, partitions()):
        with pytest.raises(DataError) as caught:
            count_marginals(data, SCHEMA, SETS)
        refusals.append(str(caught.value))
    assert refusals[0] == refusals[1]
    weighted = FRAME.assign(n=np.arange(len(FRAME)))
    one, other = (
        count_marginals(data, SCHEMA, SETS, count_column="n", on_refused="drop")
        for data in (weighted, partitions(weighted))
    )
    assert one.refused == other.refused
    assert all((one[names] == other[names]).all() for names in one)
    assert count_marginals(partitions(FRAME.iloc[:0]), SCHEMA, SETS).records == 0


@pytest.mark.parametrize("error", [Cancelled, OSError])
def test_one_who_hears_of_partitions_stops_all_that_wait(error: type[Exception], tmp_path: Path) -> None:
    def counted(part: pd.DataFrame) -> Any:
        (tmp_path / f"{len(list(tmp_path.iterdir()))}").touch()
        return count_marginals(part, SCHEMA, SETS, on_refused="drop")

    def stop(fraction: float, text: str) -> None:
        raise error("stopped")

    frame = dask.dataframe.from_pandas(FRAME, npartitions=40)
    with dask.config.set(scheduler="sync"), pytest.raises(error, match="stopped"):
        count_partitions(frame, list(FRAME.columns), counted, stop)
    assert len(list(tmp_path.iterdir())) <= 1


def test_rows_of_a_person_are_capped_across_partitions() -> None:
    panel = FRAME.assign(pid=np.arange(len(FRAME)) % 40)
    capped = {"person": "pid", "rows_per_person": 2, "on_refused": "drop"}
    one, other = (count_marginals(data, SCHEMA, SETS, **capped) for data in (panel, partitions(panel)))
    assert (one.people, one.rows_over_cap) == (other.people, other.rows_over_cap)
    assert all((one[names] == other[names]).all() for names in one)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (type("KilledWorker", (Exception,), {}), "were lost before the counts were complete"),
        (ModuleNotFoundError, "lack this library"),
        (ValueError, r"the Dask frame cannot be read \(ValueError\)"),
    ],
)
def test_workers_that_fail_are_named_without_a_value(error: type[Exception], words: str) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise error("a secret value")

    with dask.config.set(scheduler=lost), pytest.raises(DataError, match=words) as caught:
        count_marginals(partitions(), SCHEMA, SETS)
    assert "secret" not in str(caught.value)
    assert caught.value.__context__ is None
