"""Release packages: complete, sealed, readable without the network, and checkable without the records."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from demo_data.make_synthetic import synthetic
from engine import Attribute, Budget, Schema, Workload, plan
from engine.errors import Cancelled
from engine.publish import write_package
from engine.release import Ledger

measure = sys.modules["engine.release.measure"].measure
SCHEMA = Schema([Attribute.categorical("<b>sex", ["F", "=M"]), Attribute.of_size("age", 6)])
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made():
    return plan(Workload.all_ways(SCHEMA, ways=(0, 1, 2)), Budget(pcost=0.5))


@pytest.fixture
def released(made, tmp_path):
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    found = measure(made, synthetic(SCHEMA, 500, seed=3), dataset="survey", ledger=ledger)
    return found, ledger.find(found.key)


def unpacked(path: Path, folder: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder


def test_a_package_is_sealed_and_holds_every_answer(released, tmp_path) -> None:
    found, receipt = released
    folder = unpacked(write_package(found, tmp_path / "release.zip", receipt=receipt), tmp_path / "out")
    seal = json.loads((folder / "certificate.json").read_text())
    assert set(seal["files"]) == {p.name for p in folder.iterdir()} - {"certificate.json"}
    for name, digest in seal["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert seal["pcost"] == found.plan.pcost
    assert seal["ledger"] == {"seq": receipt.seq, "hash": receipt.hash, "pcost": receipt.pcost, "utc": receipt.utc}
    table = pq.read_table(folder / "answers.parquet")
    assert table.num_rows == found.plan.workload.queries
    with open(folder / "answers.csv", newline="", encoding="utf-8") as file:
        assert sum(1 for _ in csv.reader(file)) == found.plan.workload.queries + 1
    assert not list(tmp_path.glob("*.part"))


def test_certificate_and_report_say_first_what_any_mechanism_could_reach(released, tmp_path) -> None:
    found, receipt = released
    plan_, words = found.plan, "above what any matrix mechanism can reach, whatever it measures"
    with zipfile.ZipFile(write_package(found, tmp_path / "r.zip", receipt=receipt)) as archive:
        seal = json.loads(archive.read("certificate.json"))
        report = archive.read("report.html").decode()
    assert seal["global_gap"] == pytest.approx(plan_.certificate.global_gap)
    assert seal["global_bound_counts"] * (1 + seal["global_gap"]) == pytest.approx(plan_.weighted_rmse)
    assert words in seal["claim"]
    assert report.index(words) < report.index(plan_.certificate.statement[:40])


def test_the_report_loads_nothing_and_escapes_names(released, tmp_path) -> None:
    found, receipt = released
    page = (
        unpacked(write_package(found, tmp_path / "r.zip", receipt=receipt), tmp_path / "out") / "report.html"
    ).read_text()
    body = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", page)
    assert "<b>sex" not in body
    assert "&lt;b&gt;sex" in body
    assert receipt.key in page
    assert "REHEARSAL" not in body


def test_the_script_in_the_package_passes_and_notices_changes(released, tmp_path) -> None:
    found, receipt = released
    folder = unpacked(write_package(found, tmp_path / "r.zip", receipt=receipt), tmp_path / "out")
    run = lambda: subprocess.run(  # noqa: E731
        [sys.executable, "check.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    good = run()
    assert good.returncode == 0, good.stderr
    assert f"{found.plan.workload.queries:,} standard errors" in good.stdout
    (folder / "plan.json").write_text((folder / "plan.json").read_text().replace('"pcost"', ' "pcost"', 1))
    assert run().returncode != 0


def test_rehearsals_are_marked_everywhere(made, tmp_path) -> None:
    found = measure(made, synthetic(SCHEMA, 500, seed=3), rehearsal=True)
    folder = unpacked(write_package(found, tmp_path / "r.zip"), tmp_path / "out")
    assert "REHEARSAL" in (folder / "report.html").read_text()
    assert json.loads((folder / "certificate.json").read_text())["status"].startswith("REHEARSAL")


def test_cancelling_leaves_nothing_behind(made, tmp_path) -> None:
    found = measure(made, synthetic(SCHEMA, 500, seed=3), rehearsal=True)
    with pytest.raises(Cancelled):
        write_package(found, tmp_path / "r.zip", progress=lambda fraction, text: fraction < 0.7)
    assert not list(tmp_path.iterdir())
