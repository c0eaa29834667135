"""JSON replies of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import engine
from demo_data.make_synthetic import synthetic
from engine.cli.main import main
from engine.ledger import Ledger
from engine.mechanisms import load_plan
from engine.release.measure import load_measurement
from engine.workload import Schema
from tests.cli.commands import Capture, run, run_json


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text('{"age": 5, "hours": 4}')
    schema = Schema.from_json((tmp_path / "schema.json").read_bytes())
    synthetic(schema, 300, seed=1).to_csv(tmp_path / "people.csv", index=False)
    return tmp_path


def test_plan_commands_return_json(folder: Path, capsys: Capture) -> None:
    request = ["--schema", "schema.json", "--ways", 1, 2]
    reply = run_json(capsys, "plan", *request, "--pcost", 0.25, "--out", "plan.json")
    result = load_plan((folder / "plan.json").read_bytes())
    assert (reply["plan"], reply["hash"], reply["rmse"]) == ("plan.json", result.hash, result.rmse)
    assert reply["budget"] == {
        "pcost": 0.25,
        "rho": 0.125,
        "mu": 0.5,
        "pure_epsilon": None,
        "rows_per_person": 1,
        "neighbours": "add_remove",
        "delta": 1e-6,
    }
    show_reply = run_json(capsys, "show", "--plan", "plan.json")
    only_planned = {"plan", "centers", "single", "weights"}
    assert set(reply) - set(show_reply) == only_planned
    assert all(show_reply[key] == reply[key] for key in set(reply) - only_planned)
    assert reply["centers"].startswith("tuned centers: planning takes about")
    assert [(g["attributes"], g["queries"]) for g in show_reply["groups"]] == [
        (["age"], 5),
        (["hours"], 4),
        (["age", "hours"], 20),
    ]
    assert result.options["centers"] == "tuned"
    predicted = run_json(capsys, "forecast", *request)
    assert predicted["seconds"] > 0
    assert predicted["centers"] == reply["centers"]
    comparison = run_json(
        capsys, "compare", *request, "--pcost", 1, "--mechanisms", "laplace", "querysmasher"
    )
    assert [row["mechanism"] for row in comparison["mechanisms"]] == ["querysmasher", "laplace"]
    assert [row["rmse"] is None for row in comparison["mechanisms"]] == [False, True]
    assert comparison["bound"] > 0


def prepare_release(capsys: Capture) -> tuple[dict[str, Any], list[str]]:
    """Write a plan and create a ledger in the current folder.

    Returns the reply of the command that added the dataset "people", and the arguments that name
    the plan and the records.
    """
    assert run("plan --schema schema.json --ways 1 --pcost 0.25 --out plan.json") == 0
    created = run_json(capsys, "budget", "create", "--ledger", "office")
    assert created["public_key"] == Ledger("office").public_key()
    dataset = ["--ledger", "office", "--dataset", "people"]
    added = run_json(capsys, "budget", "add", *dataset, "--rho", 1)
    return added, ["--plan", "plan.json", "--data", "people.csv"]


def test_check_and_rehearse_return_json(folder: Path, capsys: Capture) -> None:
    _, records = prepare_release(capsys)
    checked = run_json(capsys, "check", *records)
    assert checked["private"] is True
    assert checked["rows_in"] == checked["counted"] == 300
    assert checked["warnings"] == []
    rehearsed = run_json(capsys, "rehearse", *records, "--simulated", "--out", "c.csv")
    assert rehearsed["rehearsal"] is True
    assert rehearsed["spent"] == 0
    assert rehearsed["key"] is None
    assert rehearsed["receipt"] is None


def test_release_and_verify_return_json(folder: Path, capsys: Capture) -> None:
    _, records = prepare_release(capsys)
    release = ["release", *records, "--dataset", "people", "--ledger", "office"]
    first = run_json(capsys, *release, "--out", "a.csv")
    ledger = Ledger("office")
    receipt = ledger.find(first["key"])
    assert receipt is not None
    assert first["spent"] == receipt.pcost
    assert first["receipt"]["hash"] == receipt.hash
    assert first["dataset"] == "people"
    assert load_measurement(ledger, first["key"]).plan.hash == receipt.plan_hash
    repeated = run_json(capsys, *release, "--out", "b.csv")
    assert repeated == first | {"out": "b.csv", "spent": 0.0}
    assert run_json(capsys, "verify", "--ledger", "office") == {
        "sound": True,
        "problems": [],
        "signer": None,
    }
    wrong_receipt = f"{receipt.seq}:00"
    reply = run_json(capsys, "verify", "--ledger", "office", "--receipt", wrong_receipt, code=1)
    assert not reply["sound"]
    assert len(reply["problems"]) == 1


def test_budget_commands_return_json(folder: Path, capsys: Capture) -> None:
    added, records = prepare_release(capsys)
    # rho 1 is pcost 2
    assert (added["left"], added["counts"]) == (2.0, "pcost")
    release = ["release", *records, "--dataset", "people", "--ledger", "office"]
    assert main([*release, "--out", "a.csv"]) == 0
    capsys.readouterr()
    for name in ("status", "list"):
        (row,) = run_json(capsys, "budget", name, "--ledger", "office")["datasets"]
        status = Ledger("office").status("people")
        assert row == added | {"spent": status.spent, "left": status.left}
        assert status.spent > 0
    change = ["budget", "change", "--ledger", "office", "--dataset", "people", "--pcost", "7"]
    raised = run_json(capsys, *change, "--by", "R. Office", "--reason", "a second wave")
    assert raised == row | {"total": 7.0, "left": Ledger("office").status("people").left}
    assert raised["left"] > row["left"]


def test_two_stage_commands_return_json(folder: Path, capsys: Capture) -> None:
    command = "plan --schema schema.json --pcost 0.5 --options centers=uniform"
    assert run(f"{command} --ways 1 --out coarse.json") == 0
    assert run(f"{command} --ways 1 2 --out fine.json") == 0
    assert run("budget create --ledger office") == 0
    assert run("budget add --ledger office --dataset people --pcost 1") == 0
    inputs = ["--ledger", "office", "--data", "people.csv"]
    options = ["--options", "coarse.json", "fine.json", "--dataset", "people"]
    look = run_json(capsys, "look", *options, *inputs, "--out", "a.csv")
    assert look["options"] == ["coarse", "fine"]
    assert look["queries"] == 5 + 4  # the cells of the 1-way tables
    decide = ["decide", "--ledger", "office", "--look", look["key"], "--share", 0.5]
    decision = run_json(capsys, *decide, "--option", "fine", "--by", "curator")
    assert decision["option"] == "fine"
    assert decision["verdict"]
    finish = run_json(capsys, "finish", "--look", look["key"], *inputs, "--out", "b.csv")
    assert finish["option"] == "fine"
    assert finish["queries"] == 5 + 4 + 20
    assert finish["decide_again"] is False
    look_pcost, finish_pcost = finish["pcost"]
    assert look_pcost == look["pcost"]
    assert look_pcost + finish_pcost == pytest.approx(0.5)


def test_error_with_json_prints_only_to_stderr(folder: Path, capsys: Capture) -> None:
    assert main(["show", "--plan", "nowhere.json", "--json"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "nowhere.json" in output.err
    assert output.err.count("\n") == 1


def test_version_option_prints_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--version"])
    assert error.value.code == 0
    assert capsys.readouterr().out == f"{engine.__version__}\n"


def test_budget_add_confusable_name_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_json(capsys, "budget", "create", "--ledger", "office")
    add = ["budget", "add", "--ledger", "office", "--pcost", "1", "--dataset"]
    assert main([*add, "adult"]) == 0
    assert "Warning" not in capsys.readouterr().err
    assert main([*add, "\N{CYRILLIC SMALL LETTER A}dult"]) == 0
    assert capsys.readouterr().err.count("Warning") == 1
    assert main([*add, "adult\N{VARIATION SELECTOR-16}"]) == 1
    assert "invisible" in capsys.readouterr().err


def test_release_repeated_with_other_records_is_refused(folder: Path, capsys: Capture) -> None:
    assert run("plan --schema schema.json --ways 2 --pcost 0.25 --out plan.json") == 0
    assert run("budget create --ledger office") == 0
    assert run("budget add --ledger office --dataset people --pcost 1") == 0
    release = ["release", "--plan", "plan.json", "--dataset", "people", "--ledger", "office"]
    assert main([*release, "--data", "people.csv", "--out", "1.csv"]) == 0
    capsys.readouterr()
    pd.read_csv("people.csv").iloc[1:].to_csv("corrected.csv", index=False)
    pd.read_csv("people.csv").iloc[::-1].to_parquet("shuffled.parquet")
    assert main([*release, "--data", "corrected.csv", "--out", "again.csv"]) == 1
    message = capsys.readouterr().err
    assert "OtherRecords" in message
    assert "--attempt" in message
    assert "attempt=" not in message
    assert not Path("again.csv").exists()
    assert main([*release, "--data", "shuffled.parquet", "--out", "again.csv"]) == 0
    assert Path("again.csv").read_bytes() == Path("1.csv").read_bytes()
    assert main([*release, "--data", "corrected.csv", "--out", "second.csv", "--attempt", "2"]) == 0


def test_ignore_option_with_attribute_is_refused(folder: Path, capsys: Capture) -> None:
    assert run("plan --schema schema.json --ways 2 --pcost 0.25 --out plan.json") == 0
    name = Schema.from_json(Path("schema.json").read_bytes()).names[0]
    assert main(["check", "--plan", "plan.json", "--data", "people.csv", "--ignore", name]) == 1
    assert f"--ignore {name}" in capsys.readouterr().err


def test_sheet_option_chooses_sheet_of_workbook(folder: Path, capsys: Capture) -> None:
    rows = pd.read_csv("people.csv")
    with pd.ExcelWriter("people.xlsx", engine="xlsxwriter") as book:
        rows.iloc[:100].to_excel(book, sheet_name="2023", index=False)
        rows.to_excel(book, sheet_name="2024", index=False)
    assert run("plan --schema schema.json --ways 2 --pcost 0.25 --out plan.json") == 0
    check = ["check", "--plan", "plan.json"]
    assert run_json(capsys, *check, "--data", "people.xlsx", "--sheet", "2023")["rows_in"] == 100
    assert run_json(capsys, *check, "--data", "people.xlsx", "--sheet", "2024")["rows_in"] == 300
    sheet = ["--data", "people.xlsx", "--sheet", "2023"]
    counted = run_json(capsys, "count", "--plan", "plan.json", *sheet, "--out", "a.counts")
    assert counted["rows_in"] == 100
    for arguments, word in (
        (["--data", "people.xlsx"], "by --sheet"),
        (["--data", "people.xlsx", "--sheet", "2022"], "2022"),
        (["--data", "people.csv", "--sheet", "2023"], "people.csv"),
        (["--counts", "a.counts", "--sheet", "2023"], "a.counts"),
        ([*sheet, "--delimiter", ";"], "--delimiter"),
        (["--source", "census", "--sheet", "2023"], "--source"),
        (["--source", "census", "--delimiter", ";"], "--source"),
        (["--source", "census", "--encoding", "latin-1"], "--source"),
    ):
        assert main([*check, *arguments]) == 1
        assert word in capsys.readouterr().err
