"""Code lists on the command line: from their file to answers by level."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from engine.cli.main import main
from engine.workload import Schema
from tests.cli.commands import Capture, run, run_json

COUNTIES = (
    "code,label,parent,level\n39,Ohio,,state\n19,Iowa,,state\n"
    "39001,Adams,39,\n39003,Allen,39,\n19001,Adair,19,\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.json").write_text('{"age": 3}')
    (tmp_path / "counties.csv").write_text(COUNTIES)
    (tmp_path / "zones.hrc").write_text("north\n@39001\n@19001\nsouth\n@39003\n")
    return tmp_path


SCHEMA = "schema --schema base.json --code-list county counties.csv --out schema.json"


def test_schema_command_adds_code_lists(folder: Path, capsys: Capture) -> None:
    command = [*SCHEMA.split(), "--code-list", "county", "zones.hrc"]
    reply = run_json(capsys, *command)
    assert reply["attributes"] == 2
    levels = [(level["hierarchy"], level["level"], level["areas"]) for level in reply["levels"]]
    assert levels == [
        ("counties", "state", 2),
        ("zones", "level 1", 2),
    ]
    schema = Schema.from_json((folder / "schema.json").read_bytes())
    assert schema["county"].labels == ("39001", "39003", "19001")
    assert run_json(capsys, *command, "--overwrite")["schema"] == "schema.json"


def test_levels_option_gives_answers_by_area(folder: Path, capsys: Capture) -> None:
    assert run(SCHEMA) == 0
    plan = "plan --schema schema.json --ways 1 2 --levels county state county --rho 50"
    assert run(f"{plan} --out plan.json") == 0
    records = {"age": [0, 1, 2, 0] * 100, "county": ["39001", "39003", "19001", "19001"] * 100}
    pd.DataFrame(records).to_csv("people.csv", index=False)
    command = "rehearse --plan plan.json --data people.csv --simulated --seed 1 --out answers.csv"
    assert run(command) == 0
    answers = pd.read_csv("answers.csv").set_index("query")["answer"]
    # at rho = 50, the standard errors are below 1
    assert answers["state = Ohio"] == pytest.approx(200, abs=5)
    assert answers["state = Iowa"] == pytest.approx(200, abs=5)
    assert answers["county = 39003"] == pytest.approx(100, abs=5)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("schema --code-list county base.json --out s.json", ".csv or .hrc"),
        ("schema --code-list county missing.csv --out s.json", "cannot be read"),
        ("schema --code-list county counties.csv --out base.json", "base.json"),
        (f"{SCHEMA} --code-list county counties.csv", "same name"),
        (
            "plan --schema base.json --ways 1 --levels age state --rho 1 --out p.json",
            "no hierarchy",
        ),
        ("plan --schema base.json --levels age --rho 1 --out p.json", "at least one level"),
        ("plan --schema base.json --ways 1 --levels town state --rho 1 --out p.json", "town"),
        ("plan --schema base.json --levels age a --levels age b --rho 1 --out p.json", "twice"),
        ("plan --workload base.json --levels age a --rho 1 --out p.json", "--levels"),
    ],
)
def test_unfit_code_list_options_are_refused(
    command: str, words: str, folder: Path, capsys: Capture
) -> None:
    assert main(command.split()) == 1
    assert words in capsys.readouterr().err
    assert not (folder / "s.json").exists()
    assert not (folder / "p.json").exists()
