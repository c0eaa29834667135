"""Tables that are handed out, from the command line: the same as from Python, and nothing is lost on the way."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine.cli.main import main
from engine.postprocess import publish, uncertainty
from engine.release.measure import load_measurement
from tests.cli.asking import Said, asked, released

WHERE = ["--ledger", "office", "--dataset", "people"]
FEW = [*WHERE, "--draws", "4"]


def test_what_is_published_is_what_the_library_publishes(folder: Path, capsys: Said) -> None:
    released(folder, 1)
    told = asked(capsys, "publish", *FEW, "--out", "tables.csv")
    found = load_measurement("office", told["key"])
    right = uncertainty(publish(found), draws=4)
    written = pd.read_csv("tables.csv")
    rows = pd.concat([right.answers(number) for number in range(len(found.plan.workload.groups))])
    for name in ("published", "error", "published_low", "published_high", "answer", "std", "low", "high"):
        np.testing.assert_allclose(written[name], rows[name], rtol=1e-12)
    assert told["total"] == publish(found).total
    assert told["groups"] == json.loads(right.summary().to_json(orient="records", double_precision=15))
    assert (told["records"], told["people"], told["criteria"]) == (None, None, None)


def test_whole_tables_come_with_the_records_that_they_count(folder: Path, capsys: Said) -> None:
    released(folder, 1)
    out = ["--out", "tables.zip", "--records", "people_like.csv", "--least-count", 5]
    out += ["--doubtful-cv", 1_000, "--suppressed-cv", 1_000]  # or a small number may be too uncertain as well
    told = asked(capsys, "publish", *FEW, "--whole", *out)
    records = pd.read_csv("people_like.csv")
    assert len(records) == told["people"] == told["total"]
    assert set(records["status"]) == {"SIMULATED"}
    with zipfile.ZipFile("tables.zip") as archive:
        assert json.loads(archive.read("how.json"))["rule"]["least_count"] == 5
        table = pd.read_csv(archive.open("table1.csv")).set_index("query")  # age up to 0, 1, ... and sex
    for age in range(5):
        for sex in "FM":
            row = table.loc[f"age <= {age} and sex = {sex}"]
            counted = int(((records["age"] <= age) & (records["sex"] == sex)).sum())
            assert row["published"] == counted if counted >= 5 else row["reason"] == "count"
    assert main(["verify", "--package", "tables.zip"]) == 0
    before = [Path(name).read_bytes() for name in ("people_like.csv", "tables.zip")]
    assert main(["publish", *FEW, "--whole", *map(str, out)]) == 1  # they are there
    assert main(["publish", *FEW, "--whole", "--overwrite", *map(str, out)]) == 0
    assert Path("people_like.csv").read_bytes() == before[0]
    again = asked(capsys, "publish", *FEW, "--overwrite", "--out", "people_like.csv")
    assert again["people"] is None
    for mine in ("people.csv", "plan.json", "office.key"):
        assert main(["publish", *FEW, "--overwrite", "--format", "csv", "--out", mine]) == 1
    assert "is no earlier file of answers" in capsys.readouterr().err
    assert all(row["met"] in (True, False) and row["cost"] == 0.0 for row in told["criteria"])


def test_what_was_stopped_goes_on_to_the_same_numbers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released(folder, 1)
    assert main(["publish", *FEW, "--out", "whole.csv"]) == 0
    calls: list[object] = []

    def stopped(*given: object, **more: object) -> object:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return publish(*given, **more)

    monkeypatch.setattr(sys.modules["engine.postprocess.uncertainty"], "publish", stopped)
    again = ["publish", *FEW, "--resume", "again", "--out", "cut.csv"]
    assert main(again) == 130
    assert not Path("cut.csv").exists()
    assert main(again) == 0
    assert len(calls) == 3 + 2  # two of the four rehearsals were kept
    assert Path("cut.csv").read_bytes() == Path("whole.csv").read_bytes()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--out", "office", "--format", "csv"], "belongs to, office"),
        (["--out", "tables"], "Give one of them, or name the --format"),
        (["--out", "t.csv", "--people", "7"], "--people says how many records"),
        (["--out", "t.csv", "--records", "t.csv"], "Give another file"),
        (["--out", "t.csv", "--records", "t.json"], "t.json ends in none of"),
        (["--out", "t.csv", "--confidence", "1"], "confidence"),
        (["--out", "t.csv", "--doubtful-cv", "0.9"], "A number is doubtful before it is suppressed"),
        (["--out", "t.csv", "--fit", "none"], "Write the answers, or take another fit"),
        (["--out", "t.csv", "--key", "nobody"], "nobody"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(folder: Path, capsys: Said, given: list[str], words: str) -> None:
    released(folder, 1)
    before = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert main(["publish", *FEW, *given]) == 1
    assert words in capsys.readouterr().err
    assert {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()} == before
