"""Small sample files of records with the irregularities of real files."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pyreadstat
import xlsxwriter

TEXTS: dict[str, str] = {
    "big_integers.csv": "id,sex\n9007199254740993,F\n9007199254740995,M\n",
    "byte_order_mark.csv": '\ufeff"sex","age"\n"F",31\n"M",4\n',
    "carriage_returns.csv": "sex;age\rF;31\rM;4\r",
    "comment.csv": "# made 2024\nsex,age\nF,31\nM,4\n",
    "dates.csv": "born,sex\n2001-02-03,F\n1999-12-31,M\n",
    "decimal_comma.csv": "age;income\n31;1200,5\n4;800,25\n",
    "fewer_fields.csv": "sex,age\nF\nM,4\n",
    "fractions.csv": "p,sex\n0.1,F\n0.9,M\n0.4,M\n",
    "header_break.csv": '"age\n(years)";sex\n31;F\n4;M\n',
    "header_comma.csv": "sex,age,\nF,31\nM,4\n",
    "infinite.csv": "x,sex\n1,F\ninf,M\n2,F\n",
    "json_array.json": '[{"x": "01", "sex": "F"}, {"x": "02", "sex": "M"}]',
    "json_lines.jsonl": '{"x": true, "y": null}\n{"x": false, "y": 2}\n{"x": true, "y": 3}\n',
    "leading_zeros.csv": "county,sex\n01,F\n02,M\n01,M\n",
    "line_break.csv": 'note,sex\n"a\nb",F\n"c",M\n',
    "long_value.csv": f"name,sex\n{'x' * 1_200},F\ny,M\n",
    "negative_zero.csv": "x,sex\n-0,F\n0,M\n",
    "one_point_zero.csv": "region,sex\n1.0,F\n2.0,M\n,M\n",
    "pandas_index.csv": ",sex\n0,F\n1,M\n",
    "r_missing.csv": "age,sex\n31,F\nNA,M\n17,F\n",
    "r_row_names.csv": '"","sex","age"\n"1","F",31\n"2","M",4\n"3","F",17\n',
    "same_name.csv": "a,a,b\n1,2,3\n4,5,6\n",
    "semicolon.tsv": "sex;age\nF;31\nM;4\n",
    "sep_line.csv": "sep=;\nsex;age\nF;31\nM;4\n",
    "spaces.csv": "work, sex\nprivate, M\nstate, F\n",
    "text.dat": "sex\tage\nF\t31\nM\t4\n",
    "text.txt": "sex,age\nF,31\nM,4\n",
    "thousands.csv": "age;income\n31;1.200\n4;800\n",
    "trailing_delimiter.csv": "sex,age,\nF,31,\nM,4,\n",
    "trailing_delimiter_in_rows.csv": "sex,age\nF,31,\nM,4,\n",
    "write_table.txt": '"sex" "age"\n"1" "F" 31\n"2" "M" 4\n',
}
ARROW: dict[str, pa.Array] = {
    "boolean": pa.array([True, False]),
    "date": pa.array([dt.date(2020, 1, 2), dt.date(2021, 1, 2)]),
    "decimal": pa.array([Decimal("1.50"), Decimal("2.00")]),
    "dictionary": pa.array(["01", "02"]).dictionary_encode(),
    "float32": pa.array([0.1, 0.25], pa.float32()),
    "list": pa.array([[1], [2]]),
    "nulls": pa.nulls(2),
    "timestamp": pa.array([dt.datetime(2020, 1, 2), dt.datetime(2021, 1, 2)]),
    "unsigned": pa.array([2**64 - 1, 1], pa.uint64()),
}
LABELS: dict[str, tuple[dict[float, str], list[float], list[float]]] = {
    "empty": ({1.0: "yes", 2.0: "", 3.0: ""}, [], [1.0, 2.0, 3.0]),
    "fractions": ({1.0: "low", 1.5: "mid", 2.0: "high"}, [], [1.0, 1.5, 2.0]),
    "missing_only": ({99999.0: "refused"}, [99999.0], [1200.0, 3400.0, 99999.0]),
    "other_code": ({1.0: "2", 3.0: "x"}, [], [1.0, 2.0, 3.0]),
    "scale_ends": ({0.0: "none", 10.0: "10 or more"}, [], [0.0, 4.0, 10.0]),
    "two_missing": (
        {1.0: "yes", 2.0: "no", 8.0: "unknown", 9.0: "refused"},
        [8.0, 9.0],
        [1.0, 8.0, 9.0],
    ),
    "two_of_one_label": ({1.0: "other", 2.0: "other", 3.0: "farmer"}, [], [1.0, 2.0, 3.0]),
}
SHEETS: dict[str, dict[str, list[list[Any]]]] = {
    "booleans": {"a": [["code", "x"], ["01", True], ["02", False]]},
    "empty_sheets": {"a": [["code", "age"], ["01", 31], ["02", 4]], "b": [], "c": []},
    "mixed": {"a": [["code", "age"], ["01", 31], [1, 4], ["2", 17]]},
    "number_head": {"a": [[2019, "age"], ["01", 3], ["02", 4]]},
    "two_sheets": {"a": [["code"], ["01"], ["02"]], "notes": [["made by me"]]},
}


def write_samples(folder: Path) -> None:
    """Write all samples into a folder."""
    for name, text in TEXTS.items():
        (folder / name).write_bytes(text.encode())
    for name, column in ARROW.items():
        pq.write_table(pa.table({"x": column, "y": ["a", "b"]}), folder / f"arrow_{name}.parquet")
    for name, (labels, missing, values) in LABELS.items():
        frame = pd.DataFrame({"x": values, "sex": [1.0, 2.0, 1.0]})
        pyreadstat.write_sav(
            frame,
            str(folder / f"labels_{name}.sav"),
            variable_value_labels={"x": labels, "sex": {1.0: "F", 2.0: "M"}},
            missing_ranges={"x": missing},
        )
    types = pd.DataFrame(
        {"d": [dt.date(2020, 1, 2), dt.date(2021, 1, 2)], "z": ["01", "02"], "f": [1.0, 2.5]}
    )
    pyreadstat.write_dta(types, str(folder / "types.dta"))
    pyreadstat.write_xport(types, str(folder / "types.xpt"))
    for name, sheets in SHEETS.items():
        with xlsxwriter.Workbook(str(folder / f"sheet_{name}.xlsx")) as book:
            for title, rows in sheets.items():
                page = book.add_worksheet(title)
                for number, row in enumerate(rows):
                    page.write_row(number, 0, row)
