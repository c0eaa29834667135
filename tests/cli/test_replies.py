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
    assert reply["budget"] == {"pcost": 0.25, "rho": 0.125, "mu": 0.5, "pure_epsilon": None} | {
        "rows_per_person": 1,
        "neighbours": "add_remove",
        "delta": 1e-6,
    }
    shown = run_json(capsys, "show", "--plan", "plan.json")
    assert {name: shown[name] for name in reply if name in shown} == {
        k: v for k, v in reply.items() if k in shown
    }
    assert set(reply) - set(shown) == {"plan", "centers", "single", "weights"}
    assert reply["centers"].startswith("tuned centers: planning takes about")
    assert [(g["attributes"], g["queries"]) for g in shown["groups"]] == [
        (["age"], 5),
        (["hours"], 4),
        (["age", "hours"], 20),
    ]
    assert result.options["centers"] == "tuned"
    takes = run_json(capsys, "forecast", *request)
    assert takes["seconds"] > 0
    assert takes["centers"] == reply["centers"]
    ranked = run_json(
        capsys, "compare", *request, "--pcost", 1, "--mechanisms", "laplace", "querysmasher"
    )
    assert [row["mechanism"] for row in ranked["mechanisms"]] == ["querysmasher", "laplace"]
    assert [row["rmse"] is None for row in ranked["mechanisms"]] == [False, True]
    assert ranked["bound"] > 0


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
    assert (checked["private"], checked["rows_in"], checked["counted"], checked["warnings"]) == (
        True,
        300,
        300,
        [],
    )
    rehearsed = run_json(capsys, "rehearse", *records, "--simulated", "--out", "c.csv")
    assert (rehearsed["rehearsal"], rehearsed["spent"], rehearsed["key"], rehearsed["receipt"]) == (
        True,
        0,
        None,
        None,
    )


def test_release_and_verify_return_json(folder: Path, capsys: Capture) -> None:
    _, records = prepare_release(capsys)
    release = ["release", *records, "--dataset", "people", "--ledger", "office"]
    first = run_json(capsys, *release, "--out", "a.csv")
    ledger = Ledger("office")
    receipt = ledger.find(first["key"])
    assert receipt is not None
    assert (first["spent"], first["receipt"]["hash"], first["dataset"]) == (
        receipt.pcost,
        receipt.hash,
        "people",
    )
    assert load_measurement(ledger, first["key"]).plan.hash == receipt.plan_hash
    again = run_json(capsys, *release, "--out", "b.csv")
    assert again == first | {"out": "b.csv", "spent": 0.0}
    assert run_json(capsys, "verify", "--ledger", "office") == {
        "sound": True,
        "problems": [],
        "signer": None,
    }
    wrong = run_json(
        capsys, "verify", "--ledger", "office", "--receipt", f"{receipt.seq}:00", code=1
    )
    assert not wrong["sound"]
    assert len(wrong["problems"]) == 1


def test_budget_commands_return_json(folder: Path, capsys: Capture) -> None:
    added, records = prepare_release(capsys)
    # rho 1 is pcost 2
    assert (added["left"], added["counts"]) == (2.0, "pcost")
    release = ["release", *records, "--dataset", "people", "--ledger", "office"]
    assert main([*release, "--out", "a.csv"]) == 0
    capsys.readouterr()
    for name in ("status", "list"):
        (row,) = run_json(capsys, "budget", name, "--ledger", "office")["datasets"]
        left = Ledger("office").status("people")
        assert row == added | {"spent": left.spent, "left": left.left}
        assert left.spent > 0
    change = ["budget", "change", "--ledger", "office", "--dataset", "people", "--pcost", "7"]
    raised = run_json(capsys, *change, "--by", "R. Office", "--reason", "a second wave")
    assert raised == row | {"total": 7.0, "left": Ledger("office").status("people").left}
    assert raised["left"] > row["left"]


def test_two_stage_commands_return_json(folder: Path, capsys: Capture) -> None:
    for ways in ("1", "2"):
        assert (
            run(
                f"plan --schema schema.json --ways 1 {ways} --pcost 0.5"
                f" --options centers=uniform --out {ways}.json"
            )
            == 0
        )
    assert run("budget create --ledger office") == 0
    assert run("budget add --ledger office --dataset people --pcost 1") == 0
    where = ["--ledger", "office", "--data", "people.csv", "--out"]
    seen = run_json(
        capsys, "look", "--options", "1.json", "2.json", "--dataset", "people", *where, "a.csv"
    )
    # the 1-way tables have 9 cells together, the 1-way and 2-way tables 29
    assert (seen["options"], seen["queries"]) == (["1", "2"], 9)
    named = ["--ledger", "office", "--look", seen["key"], "--option", "2", "--by", "A. Reader"]
    decision = run_json(capsys, "decide", *named, "--share", 0.5)
    assert decision["option"] == "2"
    assert decision["verdict"]
    last = run_json(capsys, "finish", "--look", seen["key"], *where, "b.csv")
    assert (last["option"], last["queries"], last["decide_again"]) == ("2", 29, False)
    assert sum(last["pcost"]) == pytest.approx(0.5)
    assert last["pcost"][0] == seen["pcost"]


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
    assert main([*add, "\u0430dult"]) == 0
    assert capsys.readouterr().err.count("Warning") == 1
    assert main([*add, "adult\ufe0f"]) == 1
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
