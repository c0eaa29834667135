"""Where a file may be written: nothing that matters is ever replaced, by whatever name it is called."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pandas as pd
import pytest

from demo_data.make_synthetic import synthetic
from engine.cli.main import main
from engine.errors import PlanError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.publish import write_answers
from engine.publish.output_path import check_target, new_file
from engine.publish.release_package import write_package
from engine.release import measure
from engine.workload import Attribute, Schema, Workload
from tests.pairs import pairwise

SCHEMA = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3)])
MADE = plan(Workload.all_ways(SCHEMA, ways=(1, 2)), Budget(pcost=0.2))


@pytest.fixture
def office(tmp_path: Path) -> Path:
    """A folder with a plan, records, a ledger, and one release of it."""
    (tmp_path / "plan.json").write_text(MADE.to_json(), encoding="utf-8")
    synthetic(SCHEMA, 200, seed=1).to_csv(tmp_path / "records.csv", index=False)
    book = Ledger.create(tmp_path / "office")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    measure(MADE, tmp_path / "records.csv", dataset="survey", ledger=book)
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def asked(office: Path, command: str, out: str, *more: str) -> list[str]:
    given = [command, "--plan", str(office / "plan.json"), "--data", str(office / "records.csv")]
    where = ["--dataset", "survey", "--ledger", str(office / "office")] if command == "release" else ["--simulated"]
    return [*given, *where, "--out", str(office / out), "--format", "csv", *more]


OUTPUTS = "office", "office.key", "office.results", "office.results/new", "plan.json", "records.csv", "link", "hard"
ASKED = OUTPUTS, ("release", "rehearse"), ((), ("--overwrite",))
FEW = pairwise(*ASKED)


@pytest.mark.parametrize(
    ("out", "command", "overwrite"),
    [pytest.param(*row, marks=() if row in FEW else pytest.mark.full) for row in itertools.product(*ASKED)],
)
def test_no_output_replaces_what_must_stay(office: Path, out: str, command: str, overwrite: tuple[str, ...]) -> None:
    (office / "link").symlink_to(office / "office")
    os.link(office / "records.csv", office / "hard")
    before = content(office)
    assert main(asked(office, command, out, *overwrite)) == 1
    assert content(office) == before


def test_no_link_leads_to_a_ledger_and_no_result_is_replaced(office: Path) -> None:
    (office / "elsewhere").symlink_to(office / "office.results")
    (result,) = (office / "office.results").iterdir()
    for path in (office / "elsewhere" / result.name, office / "elsewhere" / "new", office / "dangling"):
        if path.name == "dangling":
            path.symlink_to(office / "nowhere")
        with pytest.raises(PlanError):
            check_target(path, overwrite=True)


def test_only_earlier_answers_are_replaced_and_only_when_asked(office: Path) -> None:
    found = measure(MADE, office / "records.csv", rehearsal=True)
    for name, write in (("a.csv", write_answers), ("a.parquet", write_answers), ("a.zip", write_package)):
        options = {} if write is write_package else {"format": name.split(".")[1]}
        path = write(found, office / name, **options)
        kept = path.read_bytes()
        with pytest.raises(PlanError, match="nothing is overwritten"):
            write(found, path, **options)
        assert path.read_bytes() == kept
        write(found, path, overwrite=True, **options)
        path.write_bytes(b"a letter to somebody")
        with pytest.raises(PlanError, match="no earlier file of answers"):
            write(found, path, overwrite=True, **options)
        assert path.read_bytes() == b"a letter to somebody"


def test_a_file_that_comes_up_meanwhile_stays_and_temporary_names_meet_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.csv.part").write_text("somebody's")

    def write() -> None:
        with new_file(tmp_path / "a.csv") as partial:
            partial.write_text("ours")
            (tmp_path / "a.csv").write_text("theirs")

    with pytest.raises(PlanError, match="meanwhile"):
        write()
    assert content(tmp_path) == {"a.csv": b"theirs", "a.csv.part": b"somebody's"}


def test_what_is_there_is_met_before_anything_is_done(office: Path) -> None:
    """Also where a writer would meet it later: by then a release has spent."""
    answers = write_answers(measure(MADE, office / "records.csv", rehearsal=True), office / "a.csv", format="csv")
    os.link(answers, office / "hard.csv")
    assert check_target(answers, overwrite=True) == answers
    with pytest.raises(PlanError, match="is there already"):
        check_target(answers)
    for path in (answers, office / "hard.csv"):
        with pytest.raises(PlanError, match="which this run needs"):
            check_target(path, keep=[answers], overwrite=True)


def test_every_writer_refuses_what_is_there(tmp_path: Path) -> None:
    found = measure(MADE, synthetic(SCHEMA, 200, seed=1), rehearsal=True)
    writers = {
        "a.csv": lambda path: write_answers(found, path, format="csv"),
        "a.parquet": lambda path: write_answers(found, path),
        "a.zip": lambda path: write_package(found, path),
        "a": found.save,
    }
    for name, write in writers.items():
        write(tmp_path / name)
        before = content(tmp_path)
        with pytest.raises(PlanError, match="nothing is overwritten"):
            write(tmp_path / name)
        assert content(tmp_path) == before


def test_a_plan_replaces_nothing(office: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(office)
    (office / "schema.json").write_text(SCHEMA.to_json(), encoding="utf-8")
    for out in ("plan.json", "office", "schema.json"):
        given = ["plan", "--schema", str(office / "schema.json"), "--ways", "1", "--pcost", "1"]
        assert main([*given, "--out", str(office / out)]) == 1
        assert "PlanError" in capsys.readouterr().err
    (office / "schema.json").unlink()
    assert content(office) == before


def test_a_ledger_is_not_made_where_another_left_its_traces(office: Path) -> None:
    (office / "lost.key").write_text("{}")
    assert main(["budget", "create", "--ledger", str(office / "lost")]) == 1
    assert not (office / "lost").exists()


def test_refused_outputs_spend_nothing(office: Path) -> None:
    ledger = Ledger(office / "office")
    spent = ledger.status("survey").spent
    assert main(asked(office, "release", "plan.json", "--attempt", "2")) == 1
    assert main(asked(office, "release", "no folder/a.csv", "--attempt", "2")) == 1
    assert ledger.status("survey").spent == spent
    assert main(asked(office, "release", "fresh.csv", "--attempt", "2")) == 0
    assert len(pd.read_csv(office / "fresh.csv")) == MADE.workload.queries
