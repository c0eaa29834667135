"""Difficult labels in every format: draft, count, publish and read back."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import ibis
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pyreadstat
import pytest
import xlsxwriter

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.publish import write_answers
from engine.records import count_marginals
from engine.release import measure
from engine.release.public_draft import draft_of_public
from engine.workload import Workload

pytestmark = pytest.mark.usefixtures("in_process_readers")
LABELS = [
    "01", "007", "0", "-0", "+1", "1.0", "1.50", "1e5", "1E-3", "0x1F", "9007199254740993", "99999999999999999999",
    "NA", "N/A", "nan", "NaN", "null", "None", ".", "-", "?", "missing", "TRUE", "False", "true", "inf", "-inf",
    "2020-01-02", "2.1.2020", "01/02/2020", "2020-01-02T03:04:05", "12:30", "1,5", "1.200", "1,200", "1 200", "10%",
    " a", "a ", " ", "a  b", "ü", "Köln", "日本", "é́", "🙂", "a|b", "a;b", "a,b", "a\tb", 'say "so"', "it's", "a\\b",
    "=1+1", "+a", "-a", "@a", "#1", "a\nb", "x" * 300, "x" * 1_001,
]  # fmt: skip
OTHER = "7"  # second label of each column, which makes some columns numeric
FRAME = pd.DataFrame(
    {f"c{i}": [label, label, OTHER] for i, label in enumerate(LABELS)}, dtype=object
)


def _sheet(path: Path) -> Path:
    with xlsxwriter.Workbook(
        str(path), {"strings_to_formulas": False, "strings_to_urls": False}
    ) as book:
        page = book.add_worksheet()
        for column, name in enumerate(FRAME):
            for row, value in enumerate([name, *FRAME[name]]):
                page.write_string(row, column, value)
    return path


def _writer(write: Callable[[Path], Any]) -> Callable[[Path], Path]:
    def write_and_return(path: Path) -> Path:
        write(path)
        return path

    return write_and_return


def _lines(path: Path) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in FRAME.to_dict("records")))
    return path


def _duckdb(path: Path) -> Any:
    connection = duckdb.connect(str(path))
    connection.register("frame", pa.Table.from_pandas(FRAME))
    connection.execute("CREATE TABLE t AS SELECT * FROM frame")
    connection.close()
    return ibis.duckdb.connect(str(path)).table("t")


def _sqlite(path: Path) -> Any:
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE t ({', '.join(f'{name} TEXT' for name in FRAME)})")
        connection.executemany(
            f"INSERT INTO t VALUES ({', '.join('?' * len(FRAME.columns))})",
            FRAME.to_numpy().tolist(),
        )
    return ibis.sqlite.connect(str(path)).table("t")


FORMATS: dict[str, Callable[[Path], Any]] = {
    "csv": _writer(lambda path: FRAME.to_csv(path, index=False)),
    "tsv": _writer(lambda path: FRAME.to_csv(path, index=False, sep="\t")),
    "parquet": _writer(lambda path: pq.write_table(pa.Table.from_pandas(FRAME), path)),
    "feather": _writer(lambda path: pyarrow.feather.write_feather(FRAME, str(path))),
    "json": _writer(lambda path: FRAME.to_json(path, orient="records")),
    "jsonl": _lines,
    "xlsx": _sheet,
    "dta": _writer(lambda path: pyreadstat.write_dta(FRAME, str(path))),
    "sav": _writer(lambda path: pyreadstat.write_sav(FRAME, str(path))),
    "xpt": _writer(
        lambda path: pyreadstat.write_xport(FRAME.drop(columns=f"c{len(LABELS) - 1}"), str(path))
    ),
    "duckdb": _duckdb,
    "sqlite": _sqlite,
    "pandas": lambda path: FRAME,
}
CUT = ("sav", "xpt")  # formats that store no blanks at the ends of texts


@pytest.mark.parametrize("form", FORMATS)
def test_hard_labels_survive_or_have_reason(tmp_path: Path, form: str) -> None:
    data = FORMATS[form](tmp_path / f"x.{form}")
    draft = draft_of_public(data)
    assert {*draft.schema, *draft.reasons} >= {f"c{i}" for i in range(len(LABELS) - 1)}
    assert all(draft.reasons.values())
    workload, sets = Workload(draft.schema), [(name,) for name in draft.schema]
    for names in sets:
        workload = workload.add(names, "marginal")
    ignore = list(draft.unlabelled)
    counts = count_marginals(data, draft.schema, sets, on_refused="drop", ignore=ignore)
    assert not counts.refused
    # with this budget the noise is far below one count
    result = plan(workload, Budget(pcost=1e8))
    measurement = measure(result, data, rehearsal=True, ignore=ignore)
    table = pd.read_parquet(write_answers(measurement, tmp_path / "answers.parquet"))
    for name, label in zip(FRAME, LABELS, strict=True):
        if name in draft.schema and draft.schema[name].labels is not None:
            stored = [value.rstrip(" ") if form in CUT else value for value in FRAME[name]]
            expected = Counter(f"{name} = {value}" for value in stored if value)
            rows = table[table["attributes"] == name]
            answers = zip(rows["query"], rows["answer"].round().astype(int), strict=True)
            assert dict(answers) == expected, label
