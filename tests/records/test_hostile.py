"""Hostile CSV and parquet files: exact counts or refusal, bounded memory."""

import csv
import gzip
import io
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from engine.errors import DataError, EngineError
from engine.records import Counts, count_marginals
from engine.workload import Schema
from tests.records.fitting import SCHEMA
from tests.records.silent import CANARY, assert_hides_values

BAD_ROWS = [
    b"1", b"1,2,3", b"1,2,3,4,5", b'1,"2,3', b'1,2"3,4', b'1,"2"x,3', b'"1,2,3', b"1,2,\xff", b"\xff,1,2", b"1,\xc3,2",
    b"1,2,\xed\xa0\x80", b",,", b"", b"\x00,1,2", b"1,2,nan", b"nan,1,F", b"inf,1,F", b"1e400,1,F", b"-1,1,F", b"5,1,F",
    b"1.5,1,F", b"99999999999999999999,1,F", b"0x1,1,F", b"1_0,1,F", b"1,121,F", b"1,-0.1,F", b"1,1e-400,F", b"1,x,F",
    b"1;2;3", b"1\t2\t3", "1,2,\u202e".encode(), "１,2,F".encode(), b"1,2," + b"F" * 100_000, b"1" * 4_400 + b",1,F",
    b"1,2,F\r", b"1,2,\"F\nM\"", b'1,2,""""', b'1,2," F"', b"1,2, F", b"True,1,F", b"null,1,F", b"NA,1,F", b"#N/A,1,F",
    b"=1+1,1,F", b"1,2,F\x1a", b"\xef\xbb\xbf1,2,F", b'1,"2",F', b"'1',2,F", b'1,2,"F', b'1,2,F"',
]  # fmt: skip
GOOD_ROWS = [f"{i % 5},{i},{'FM'[i % 2]}".encode() for i in range(20)]
SMALL = Schema([SCHEMA["code"], SCHEMA["age"], SCHEMA["sex"]])
SMALL_SETS = [("code", "age"), ("sex",)]


def csv_variants() -> list[tuple[str, bytes, bool]]:
    """Return about 200 small hostile files: name, bytes, and whether the file is gzipped."""
    variants = []
    for i, bad in enumerate(BAD_ROWS):
        for where in (0, 20):
            body = b"\n".join([b"code,age,sex", *GOOD_ROWS[:where], bad, *GOOD_ROWS[where:], b""])
            variants.append((f"row {i} at {where}", body, bool(i % 2)))
    plain = b"\n".join([b"code,age,sex", *GOOD_ROWS, b""])
    headers = [b"", b"code", b"code,age", b"code,age,sex,code", b"CODE,AGE,SEX", b"code;age;sex", b"code, age, sex",
               b'"code","age","sex"',
               b'\xef\xbb\xbf"code","age","sex"', b"\xef\xbb\xbfcode,age,sex", b"\xff,age,sex", b",,", b"code,age,sex,",
               b'"code,age,sex', b"code,age,sex\x00", b"0,1,F", b"code\nage\nsex"]  # fmt: skip
    rows = plain.removeprefix(b"code,age,sex")
    variants += [(f"header {i}", header + rows, False) for i, header in enumerate(headers)]
    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-7", "cp037"):
        variants.append((encoding, plain.decode().encode(encoding), False))
    variants += [
        (f"line ends {i}", plain.replace(b"\n", end), False)
        for i, end in enumerate([b"\r\n", b"\r", b"\n\n", b" "])
    ]
    variants += [(f"cut {i}", plain[:i], False) for i in range(0, len(plain), 12)]
    packed = gzip.compress(plain)
    variants += [(f"packed and cut {i}", packed[:i], True) for i in range(0, len(packed), 9)]
    variants += [("packed twice", gzip.compress(packed), True), ("packed with rest", packed + b"x" * 50, True),
              ("two packs", packed + gzip.compress(GOOD_ROWS[0] + b"\n"), True), ("packed, not said", packed, False),
              ("not packed", plain, True), ("parquet as csv", parquet_bytes(), False), ("zeros", b"\0" * 10_000, False),
              ("long row", b"code,age,sex\n" + b"1" * 9_000_000, False), ("long header", b"code" * 3_000_000, False),
              ("quotes", b'"' * 99_999, False), ("open at the end", plain + b'"', False),
              ("many columns", b"code" + b",x" * 200_000 + b"\n" + b"1" + b",2" * 200_000, False),
              ("blank lines", b"\n" * 1_000_000, False), ("commas", b"," * 1_000_000, False),
              ("blank block", plain + b"\n" * 5_000_000 + GOOD_ROWS[0] + b"\n", False)]  # fmt: skip
    rng = random.Random(0)
    for i in range(60):
        spoiled = bytearray(plain)
        for _ in range(rng.randint(1, 4)):
            spoiled[rng.randrange(len(spoiled))] = rng.choice(
                [0, 10, 13, 34, 44, 45, 46, 57, 101, 255]
            )
        variants.append((f"spoiled {i}", bytes(spoiled), False))
    return variants


def parquet_bytes(**options: object) -> bytes:
    out = io.BytesIO()
    table = pa.table({"code": [i % 5 for i in range(20)], "age": [float(i) for i in range(20)], "sex": ["F", "M"] * 10,
                      "note": [CANARY] * 20})  # fmt: skip
    pa.parquet.write_table(table, out, **options)
    return out.getvalue()


def parquet_variants() -> list[tuple[str, bytes]]:
    """Return pairs (name, content) of cut, spoiled and foreign versions of a Parquet file."""
    content = parquet_bytes()
    variants = [(f"cut {i}", content[:i]) for i in range(0, len(content), 97)]
    variants += [("text", b"code,age,sex\n1,2,F\n"), ("empty", b""), ("magic only", b"PAR1PAR1"),
                 ("zeros", b"\0" * 5_000), ("packed", gzip.compress(content)),
                 ("huge footer", content[:-8] + b"\xff\xff\xff\x7fPAR1")]  # fmt: skip
    rng = random.Random(0)
    for i in range(80):
        spoiled = bytearray(content)
        for _ in range(3):
            spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
        variants.append((f"spoiled {i}", bytes(spoiled)))
    return variants


def count_or_refuse(path: Path) -> Counts | None:
    """Count a file, or check that its error contains no value and return None."""
    try:
        counts = count_marginals(path, SMALL, SMALL_SETS, on_refused="drop")
    except EngineError as error:
        assert_hides_values(error)
        counts = None
    return counts


@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.full), 3], ids=["all variants", "every third"]
)
def test_hostile_csv_is_refused_or_counted_exactly(tmp_path: Path, step: int) -> None:
    variants = csv_variants()[::step]
    assert len(variants) >= 200 // step
    refused = 0
    for name, body, packed in variants:
        path = tmp_path / f"x.csv{'.gz' if packed else ''}"
        # Variants with these names are written unchanged. All other variants are compressed if
        # ``packed`` is true.
        is_unchanged = name.startswith(("packed", "two packs", "not packed"))
        path.write_bytes(gzip.compress(body) if packed and not is_unchanged else body)
        counts = count_or_refuse(path)
        if counts is None:
            refused += 1
            continue
        # the strict reader of the standard library is the reference
        text = (gzip.decompress(body) if packed and is_unchanged else body).decode("utf-8-sig")
        _, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        assert counts.rows_in == sum(1 for row in rows if row), name
        assert counts["sex",].sum() == counts.records
    assert refused > 90 // step


def test_common_csv_forms_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    plain = b"\n".join([b"code,age,sex", *GOOD_ROWS, b""])
    quoted = b"\n".join(b'"' + line.replace(b",", b'","') + b'"' for line in plain.split())
    field_with_line_breaks = plain.replace(b"\n", b',"a ""b""\n\n,c"\n')
    without_last_line_end = plain[:-1]
    for body in (
        plain,
        without_last_line_end,
        plain.replace(b"\n", b"\r\n"),
        plain.replace(b"\n", b"\r"),
        quoted,
        field_with_line_breaks,
    ):
        for content in (body, b"\xef\xbb\xbf" + body, b"\n\n" + body, body + b"\n\n"):
            path.write_bytes(content)
            assert count_marginals(path, SMALL, SMALL_SETS)["sex",].tolist() == [10, 10, 0]


def test_hostile_parquet_is_refused_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    variants = parquet_variants()
    assert len(variants) >= 100
    for name, body in variants:
        path.write_bytes(body)
        counts = count_or_refuse(path)
        if counts is not None:
            assert counts["sex",].sum() == counts.records, name
    path.write_bytes(parquet_bytes())
    assert count_or_refuse(path) is not None


def test_unusable_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {"code": [1], "age": [1.0], "sex": ["F"]}
    nested = ([[1]], [{"x": 1}], [{CANARY: 7391}])
    tables = [pa.table(columns | {"code": pa.array(code)}) for code in nested]
    for table in (*tables, pa.table({})):
        pa.parquet.write_table(table, path)
        assert count_or_refuse(path) is None
    names = ["code", "age", "sex", "code"]
    frame = pd.DataFrame([[1, 2.0, "F", 3]], columns=names)
    for data in (frame, pa.Table.from_arrays([[1], [2.0], ["F"], [3]], names=names)):
        with pytest.raises(DataError, match="2 columns have the name 'code'"):
            count_marginals(data, SMALL, SMALL_SETS)
        assert count_marginals(data, SMALL, [("sex",)]).records == 1
    for data in (frame[["age"]], pd.DataFrame({1: [2]}), pd.DataFrame()):
        with pytest.raises(DataError, match="no column 'code'"):
            count_marginals(data, SMALL, [("code", "sex")])


BOMB = """
import sys
from benchmarks import peak_megabytes
from engine import Attribute, Schema, count_marginals
from engine.errors import LimitExceeded

peak = lambda: int(peak_megabytes())
before = peak()
for path in sys.argv[1:]:
    label = Attribute.categorical("a", ["0"], other="else")
    schema = Schema([label if "label" in path else Attribute.of_size("a", 1)])
    try:
        print(count_marginals(path, schema, [("a",)])["a",].sum())
    except LimitExceeded:
        print("refused")
print(peak() - before)
"""


def test_decompression_bombs_use_bounded_memory(tmp_path: Path) -> None:
    rows = 52_000_000
    many_groups = tmp_path / "many groups.parquet"  # 0.4 GB of numbers in 0.3 MB
    batch = pa.record_batch({"a": np.zeros(4_000_000, np.int64)})
    with pa.parquet.ParquetWriter(many_groups, batch.schema, compression="zstd") as writer:
        for _ in range(rows // batch.num_rows):
            writer.write_batch(batch)
    one_label = tmp_path / "one label.parquet"  # 200 GB of text in 3 kB
    texts = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(100_000, np.int32)), pa.array(["x" * 2_000_000])
    )
    options = {"compression": "zstd", "dictionary_pagesize_limit": 2**30, "store_schema": False}
    pa.parquet.write_table(pa.table({"a": texts}), one_label, **options)
    one_group = tmp_path / "one group.parquet"  # 0.4 GB of numbers in one row group
    pa.parquet.write_table(
        pa.table({"a": np.zeros(rows, np.int64)}),
        one_group,
        row_group_size=rows,
        compression="zstd",
        use_dictionary=False,
    )
    csv_file = tmp_path / "packed.csv.gz"  # 12 MB of texts in 12 kB
    csv_file.write_bytes(gzip.compress(b"a\n" + b"0\n" * 6_000_000, 1))
    expected = {many_groups: str(rows), one_label: "100000", one_group: "refused"}
    expected[csv_file] = "6000000"
    assert all(file.stat().st_size < 2_000_000 for file in expected)
    # in a new process, so that the peak memory is that of the files
    command = [sys.executable, "-c", BOMB, *map(str, expected)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    *outputs, megabytes = run.stdout.split()
    assert outputs == list(expected.values())
    assert int(megabytes) < 300
