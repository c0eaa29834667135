"""The command `publish`: same tables as from Python, synthetic records, resume."""

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
from tests.cli.commands import Capture, release, run_json

WHERE = ["--ledger", "office", "--dataset", "people"]
FOUR_DRAWS = [*WHERE, "--draws", "4"]


def test_publish_command_matches_library(folder: Path, capsys: Capture) -> None:
    release(folder, 1)
    reply = run_json(capsys, "publish", *FOUR_DRAWS, "--out", "tables.csv")
    measurement = load_measurement("office", reply["key"])
    expected = uncertainty(publish(measurement), draws=4)
    groups = range(len(measurement.plan.workload.groups))
    expected_rows = pd.concat([expected.answers(group) for group in groups])
    rows = pd.read_csv("tables.csv")
    published = ["published", "error", "published_low", "published_high"]
    for column in (*published, "answer", "std", "low", "high"):
        np.testing.assert_allclose(rows[column], expected_rows[column], atol=1e-6)
    assert reply["total"] == publish(measurement).total
    assert reply["groups"] == json.loads(
        expected.summary().to_json(orient="records", double_precision=15)
    )
    assert (reply["records"], reply["people"], reply["criteria"]) == (None, None, None)


def test_publish_integer_tables_match_synthetic_records(folder: Path, capsys: Capture) -> None:
    release(folder, 1)
    out = ["--out", "tables.zip", "--records", "people_like.csv", "--least-count", 5]
    # no number is suppressed because of its standard error
    out += ["--doubtful-cv", 1_000, "--suppressed-cv", 1_000]
    reply = run_json(capsys, "publish", *FOUR_DRAWS, "--whole", *out)
    records = pd.read_csv("people_like.csv")
    assert len(records) == reply["people"] == reply["total"]
    assert set(records["status"]) == {"SIMULATED"}
    with zipfile.ZipFile("tables.zip") as archive:
        assert json.loads(archive.read("how.json"))["rule"]["least_count"] == 5
        table = pd.read_csv(archive.open("table1_age_sex.csv")).set_index("query")
    for age in range(5):
        for sex in "FM":
            row = table.loc[f"age <= {age} and sex = {sex}"]
            count = ((records["age"] <= age) & (records["sex"] == sex)).sum()
            if count >= 5:
                assert row["published"] == count
            else:
                assert row["reason"] == "count"
    assert main(["verify", "--package", "tables.zip"]) == 0
    assert all(isinstance(row["met"], bool) for row in reply["criteria"])
    assert all(row["cost"] == 0.0 for row in reply["criteria"])


def test_publish_overwrites_only_its_own_files_on_request(folder: Path, capsys: Capture) -> None:
    release(folder, 1)
    command = [
        "publish",
        *FOUR_DRAWS,
        "--whole",
        "--out",
        "tables.zip",
        "--records",
        "people_like.csv",
    ]
    assert main(command) == 0
    records = Path("people_like.csv").read_bytes()
    assert main(command) == 1
    assert main([*command, "--overwrite"]) == 0
    assert Path("people_like.csv").read_bytes() == records
    reply = run_json(capsys, "publish", *FOUR_DRAWS, "--overwrite", "--out", "people_like.csv")
    assert reply["people"] is None
    for path in ("people.csv", "plan.json", "office.key"):
        assert main(["publish", *FOUR_DRAWS, "--overwrite", "--format", "csv", "--out", path]) == 1
    assert "office.key" in capsys.readouterr().err


def test_interrupted_publish_resumes_to_same_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(folder, 1)
    assert main(["publish", *FOUR_DRAWS, "--out", "complete.csv"]) == 0
    calls: list[object] = []

    def interrupted_publish(*args: object, **more: object) -> object:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return publish(*args, **more)

    monkeypatch.setattr(
        sys.modules["engine.postprocess.uncertainty"], "publish", interrupted_publish
    )
    command = ["publish", *FOUR_DRAWS, "--resume", "checkpoint", "--out", "resumed.csv"]
    assert main(command) == 130  # the exit code after an interrupt
    assert not Path("resumed.csv").exists()
    assert main(command) == 0
    # The first run saved two rehearsals and was interrupted in the third; the second run
    # computes the other two.
    assert len(calls) == 3 + 2
    assert Path("resumed.csv").read_bytes() == Path("complete.csv").read_bytes()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--out", "office", "--format", "csv"], "office"),
        (["--out", "tables"], "--format"),
        (["--out", "t.csv", "--people", "7"], "--people"),
        (["--out", "t.csv", "--records", "t.csv"], "t.csv"),
        (["--out", "t.csv", "--records", "t.json"], "t.json"),
        (["--out", "t.csv", "--confidence", "1"], "confidence"),
        (["--out", "t.csv", "--doubtful-cv", "0.9"], "doubtful"),
        (["--out", "t.csv", "--fit", "none"], "fit"),
        (["--out", "t.csv", "--key", "absent"], "absent"),
    ],
)
def test_publish_with_invalid_options_writes_nothing(
    folder: Path, capsys: Capture, args: list[str], words: str
) -> None:
    release(folder, 1)
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert main(["publish", *FOUR_DRAWS, *args]) == 1
    assert words in capsys.readouterr().err
    assert {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()} == sizes


def test_publish_package_is_signed_and_verified(folder: Path, capsys: Capture) -> None:
    release(folder, 1)
    reply = run_json(capsys, "publish", *FOUR_DRAWS, "--out", "release.zip", "--format", "package")
    assert reply["format"] == "package"
    assert main(["verify", "--ledger", "office", "--package", "release.zip"]) == 0
    with zipfile.ZipFile("release.zip") as archive:
        names = set(archive.namelist())
    assert {"signature.json", "answers.parquet", "published/how.json"} <= names
