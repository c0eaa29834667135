"""Output paths that must not be replaced: inputs, ledgers, results."""

from __future__ import annotations

import functools
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
SMALL_PLAN = plan(Workload.all_ways(SCHEMA, ways=(1, 2)), Budget(pcost=0.2))


@pytest.fixture
def office(tmp_path: Path) -> Path:
    """Folder with a plan, records, a ledger and one release."""
    (tmp_path / "plan.json").write_text(SMALL_PLAN.to_json(), encoding="utf-8")
    synthetic(SCHEMA, 200, seed=1).to_csv(tmp_path / "records.csv", index=False)
    book = Ledger.create(tmp_path / "office")
    book.add_dataset("survey", total=Budget(pcost=1.0))
    measure(SMALL_PLAN, tmp_path / "records.csv", dataset="survey", ledger=book)
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def command_line(office: Path, command: str, out: str, *more: str) -> list[str]:
    inputs = [command, "--plan", str(office / "plan.json"), "--data", str(office / "records.csv")]
    where = (
        ["--dataset", "survey", "--ledger", str(office / "office")]
        if command == "release"
        else ["--simulated"]
    )
    return [*inputs, *where, "--out", str(office / out), "--format", "csv", *more]


OUTPUTS = (
    "office",
    "office.key",
    "office.results",
    "office.results/new",
    "plan.json",
    "records.csv",
    "link",
    "hard",
)
CASES = OUTPUTS, ("release", "rehearse"), ((), ("--overwrite",))
PAIRWISE = pairwise(*CASES)


@pytest.mark.parametrize(
    ("out", "command", "overwrite"),
    [
        pytest.param(*row, marks=() if row in PAIRWISE else pytest.mark.full)
        for row in itertools.product(*CASES)
    ],
)
def test_commands_never_replace_inputs_or_ledger(
    office: Path, out: str, command: str, overwrite: tuple[str, ...]
) -> None:
    (office / "link").symlink_to(office / "office")
    os.link(office / "records.csv", office / "hard")
    before = content(office)
    assert main(command_line(office, command, out, *overwrite)) == 1
    assert content(office) == before


def test_check_target_refuses_links_and_results(office: Path) -> None:
    linked_folder, dangling = office / "linked", office / "dangling"
    linked_folder.symlink_to(office / "office.results")
    dangling.symlink_to(office / "nowhere")
    (result,) = (office / "office.results").iterdir()
    for path in (linked_folder / result.name, linked_folder / "new", dangling):
        with pytest.raises(PlanError):
            check_target(path, overwrite=True)


def test_overwrite_replaces_only_earlier_answers(office: Path) -> None:
    measurement = measure(SMALL_PLAN, office / "records.csv", rehearsal=True)
    for name, write in (
        ("answers.csv", functools.partial(write_answers, format="csv")),
        ("answers.parquet", functools.partial(write_answers, format="parquet")),
        ("release.zip", write_package),
    ):
        path = write(measurement, office / name)
        earlier = path.read_bytes()
        with pytest.raises(PlanError, match="not overwritten"):
            write(measurement, path)
        assert path.read_bytes() == earlier
        write(measurement, path, overwrite=True)
        path.write_bytes(b"another file")
        with pytest.raises(PlanError, match="earlier output"):
            write(measurement, path, overwrite=True)
        assert path.read_bytes() == b"another file"


def test_new_file_never_replaces_concurrent_files(tmp_path: Path) -> None:
    path, other_partial = tmp_path / "a.csv", tmp_path / "a.csv.part"
    other_partial.write_text("other")

    def write_while_another_process_writes() -> None:
        with new_file(path) as partial:
            partial.write_text("new")
            path.write_text("concurrent")

    with pytest.raises(PlanError, match="meantime"):
        write_while_another_process_writes()
    assert content(tmp_path) == {"a.csv": b"concurrent", "a.csv.part": b"other"}


def test_check_target_refuses_existing_and_input_files(office: Path) -> None:
    """The check comes before the release spends."""
    measurement = measure(SMALL_PLAN, office / "records.csv", rehearsal=True)
    answers, hard_link = office / "answers.csv", office / "hard link.csv"
    write_answers(measurement, answers, format="csv")
    os.link(answers, hard_link)
    assert check_target(answers, overwrite=True) == answers
    with pytest.raises(PlanError, match="exists already"):
        check_target(answers)
    for path in (answers, hard_link):
        with pytest.raises(PlanError, match="input file"):
            check_target(path, keep=[answers], overwrite=True)


def test_writers_refuse_existing_files(tmp_path: Path) -> None:
    measurement = measure(SMALL_PLAN, synthetic(SCHEMA, 200, seed=1), rehearsal=True)
    writers = {
        "a.csv": lambda path: write_answers(measurement, path, format="csv"),
        "a.parquet": lambda path: write_answers(measurement, path),
        "a.zip": lambda path: write_package(measurement, path),
        "a": measurement.save,
    }
    for name, write in writers.items():
        write(tmp_path / name)
        before = content(tmp_path)
        with pytest.raises(PlanError, match="overwritten"):
            write(tmp_path / name)
        assert content(tmp_path) == before


def test_plan_command_replaces_no_file(office: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(office)
    (office / "schema.json").write_text(SCHEMA.to_json(), encoding="utf-8")
    for out in ("plan.json", "office", "schema.json"):
        options = ["plan", "--schema", str(office / "schema.json"), "--ways", "1", "--pcost", "1"]
        assert main([*options, "--out", str(office / out)]) == 1
        assert "PlanError" in capsys.readouterr().err
    (office / "schema.json").unlink()
    assert content(office) == before


def test_create_ledger_with_leftover_key_is_refused(office: Path) -> None:
    (office / "lost.key").write_text("{}")
    assert main(["budget", "create", "--ledger", str(office / "lost")]) == 1
    assert not (office / "lost").exists()


def test_release_with_refused_output_spends_nothing(office: Path) -> None:
    ledger = Ledger(office / "office")
    spent = ledger.status("survey").spent
    for refused in ("plan.json", "no folder/a.csv"):
        assert main(command_line(office, "release", refused, "--attempt", "2")) == 1
        assert ledger.status("survey").spent == spent
    assert main(command_line(office, "release", "fresh.csv", "--attempt", "2")) == 0
    assert len(pd.read_csv(office / "fresh.csv")) == SMALL_PLAN.workload.queries
