"""Escaping of labels that contain HTML, Markdown, formulas or R code."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import zipfile
from html.parser import HTMLParser

import pandas as pd
import pytest

from engine._format import escape_formula, markdown
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.postprocess import publish, uncertainty
from engine.privacy import Budget
from engine.publish import write_answers
from engine.publish.release_package import write_package
from engine.publish.report import write_published, write_records
from engine.publish.tables_package import write_tables, write_workbook
from engine.publish.verify import verify_package
from engine.release import measure
from engine.workload import Attribute, Schema, Workload

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "![x](https://evil.example/x)",
    "a | b",
    "`code` ``x``",
    "=cmd()",
    "@SUM(1)",
    "+1",
    '"); system("id"); ("',
    "back\\slash",
    'it\'s "quoted", twice',
    "*bold* _it_ # no",
    "https://evil.example www.evil.example a@evil.example",
    "</textarea></title></style>",
    "{{7*7}} ${x} %{y}",
)
NAMES = ("=a<b>", '"); system("id"); ("')
SCHEMA = Schema(
    [Attribute.categorical(NAMES[0], HOSTILE), Attribute.categorical(NAMES[1], HOSTILE[:3])]
)
DATASET = "<b>[x](y)"


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    ledger = Ledger.create(tmp_path_factory.mktemp("office") / "office.ledger")
    ledger.add_dataset(DATASET, total=Budget(pcost=9.0))
    records = pd.DataFrame({NAMES[0]: [*HOSTILE] * 9, NAMES[1]: [*HOSTILE[:3]] * 48})
    chosen_plan = plan(
        Workload.all_ways(SCHEMA, ways=(0, 1, 2), family="marginal"),
        Budget(pcost=4.0),
        centers="uniform",
    )
    measurement = measure(chosen_plan, records, dataset=DATASET, ledger=ledger)
    return measurement, ledger.find(measurement.key), ledger


@pytest.fixture(scope="module")
def tables(released):
    return uncertainty(publish(released[0], integer=True), draws=2)


class Page(HTMLParser):
    """Tags and attribute values of a page, without scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.values: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.add(tag)
        self.values += [f"{name}={value}" for name, value in attrs]


def check_csv(text: str) -> None:
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            assert cell == escape_formula(cell) or re.fullmatch(
                r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", cell
            ), cell


def check_page(text: str) -> None:
    page = Page(text)
    assert not page.tags & {"img", "iframe", "a", "textarea"}
    assert not [value for value in page.values if value.startswith("on") or "javascript" in value]
    assert "svg" in page.tags
    assert "script" not in page.tags


def test_package_hostile_labels_are_escaped(released, tmp_path) -> None:
    measurement, receipt, ledger = released
    path = write_package(measurement, tmp_path / "release.zip", receipt=receipt, ledger=ledger)
    assert verify_package(path) == ()
    with zipfile.ZipFile(path) as archive:
        check_csv(archive.read("answers.csv").decode())
        check_page(archive.read("report.html").decode())


def test_answers_and_records_hostile_labels_are_escaped(released, tables, tmp_path) -> None:
    measurement, _, _ = released
    records = tables.published.records()
    for path in (
        write_answers(measurement, tmp_path / "answers.csv", format="csv"),
        write_published(tables, tmp_path / "published.csv", format="csv"),
        write_records(measurement, records, tmp_path / "records.csv"),
    ):
        check_csv(path.read_text())


def test_tables_hostile_labels_are_escaped(tables, tmp_path) -> None:
    path = write_tables(tables, tmp_path / "tables.zip")
    assert verify_package(path) == ()
    with zipfile.ZipFile(path) as archive:
        texts = {
            name: archive.read(name).decode("utf-8-sig")
            for name in archive.namelist()
            if not name.endswith(".npz")
        }
    for name, text in texts.items():
        if name.endswith(".csv"):
            check_csv(text)
    for table in json.loads(texts["tables.csv-metadata.json"])["tables"]:
        titles = [column["titles"] for column in table["tableSchema"]["columns"]]
        header = next(csv.reader(io.StringIO(texts[table["url"]])))
        assert titles == header
    for name in ("README.md", "codebook.md"):
        # Without escaped characters and code spans, the text must contain no markup and no address.
        prose = re.sub(r"(`+).*?\1(?!`)", "", re.sub(r"\\.", "", texts[name]))
        assert not re.search(r"<|\]\(|://|www\.|`", prose), prose
    # the rows of the codebook are "| code | label |", first all of the first attribute
    rows = [line for line in texts["codebook.md"].splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == len(HOSTILE) + 3
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)
    assert rows[: len(HOSTILE)] == [
        f"| {code} | {markdown(label)} |" for code, label in enumerate(HOSTILE)
    ]


@pytest.mark.needs("R")
def test_tables_hostile_labels_recompute_in_r(tables, tmp_path) -> None:
    folder = tmp_path / "tables"
    with zipfile.ZipFile(write_tables(tables, tmp_path / "tables.zip")) as archive:
        archive.extractall(folder)
    run = subprocess.run(
        ["Rscript", "recompute.R"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_workbook_hostile_labels_are_texts(tables, tmp_path) -> None:
    with zipfile.ZipFile(write_workbook(tables, tmp_path / "t.xlsx")) as archive:
        for name in archive.namelist():
            text = archive.read(name).decode()
            assert "<f>" not in text, name
            assert "<script" not in text, name
            if name.endswith(".rels"):
                assert "evil" not in text, name
