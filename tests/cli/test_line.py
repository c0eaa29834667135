"""The command line: comparisons, pure epsilon, and the package of a release."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import duckdb
import pytest

import demo_data
from demo_data.make_synthetic import synthetic
from engine.cli.main import main
from engine.ledger import Ledger
from engine.mechanisms import load_plan
from engine.postprocess import publication_weights as aim
from engine.postprocess import simulation as rehearsed
from engine.postprocess.publication_weights import weighed_for_publishing
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = str(demo_data.schemas()["cps"])


def test_compare_ranks_and_gives_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tmp_path / "schema.json"
    small.write_text('{"age": 5, "hours": 4}')
    assert main(["compare", "--schema", str(small), "--ways", "1", "2", "--pcost", "1"]) == 0
    said = capsys.readouterr().out
    ranked = said[: said.index("laplace:")]
    assert ranked.index("querysmasher") < ranked.index("identity")
    assert "pure epsilon" in said
    assert "No matrix mechanism, whatever it measures, can go below the bound" in said
    assert "Methods that allow bias" in said


def test_a_pure_plan_is_released_as_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, data, ledger, out = (str(tmp_path / name) for name in ("plan.json", "cps.csv", "office.ledger", "out.zip"))
    schema = Schema.from_json(Path(SCHEMA).read_bytes())
    synthetic(schema, 200, seed=1).to_csv(data, index=False)
    asked = ["--schema", SCHEMA, "--ways", "1", "--pure-epsilon", "0.5"]
    assert main(["plan", *asked, "--mechanism", "querysmasher", "--out", plan]) == 1
    assert "pure epsilon" in capsys.readouterr().err
    assert main(["plan", *asked, "--mechanism", "laplace", "--out", plan]) == 0
    said = capsys.readouterr().out
    assert "Pure epsilon 0.5" in said
    assert "above what any matrix mechanism can reach, whatever it measures" in said
    assert main(["budget", "create", "--ledger", ledger]) == 0
    assert main(["budget", "add", "--ledger", ledger, "--dataset", "cps", "--pcost", "0.3"]) == 0
    release = ["release", "--plan", plan, "--data", data, "--dataset", "cps", "--ledger", ledger, "--out", out]
    assert main(release) == 0
    assert main(release) == 1, "nothing is overwritten without being told"
    assert main([*release, "--overwrite"]) == 0  # the same key: nothing is spent again
    with zipfile.ZipFile(out) as archive:
        seal = json.loads(archive.read("certificate.json"))
    assert seal["pure_epsilon"] == 0.5
    assert seal["pcost"] <= 0.25
    assert seal["ledger"]["pcost"] == pytest.approx(seal["pcost"])
    assert main(["verify", "--ledger", ledger]) == 0


def test_a_plan_aims_at_published_tables_with_public_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsed, "REHEARSALS", (1, 1))
    monkeypatch.setattr(aim, "QUERY_POWERS", (0.0, 0.5))
    schema = Schema([Attribute.of_size("a", 12, "categorical"), Attribute.of_size("b", 2, "categorical")])
    (tmp_path / "schema.json").write_text(schema.to_json())
    synthetic(schema, 200, seed=1).to_csv(tmp_path / "public.csv", index=False)
    asked = [
        "plan",
        "--schema",
        str(tmp_path / "schema.json"),
        "--ways",
        "1",
        "2",
        "--rho",
        "0.1",
        "--aim",
        "published",
    ]
    assert main([*asked, "--out", str(tmp_path / "no.json")]) == 1
    assert "needs a reference" in capsys.readouterr().err
    asked += ["--reference", str(tmp_path / "public.csv")]
    assert main([*asked, "--out", str(tmp_path / "public.csv")]) == 1, "the reference stays"
    assert main([*asked, "--out", str(tmp_path / "plan.json")]) == 0
    made = load_plan((tmp_path / "plan.json").read_bytes())
    weighed = weighed_for_publishing(Workload.all_ways(schema, (1, 2)), Budget.zcdp(0.1), tmp_path / "public.csv")
    assert made.workload.to_json() == weighed.to_json()


def office(tmp_path: Path, *total: str) -> dict[str, str]:
    """A plan, records and a ledger; the names of their files."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"age": 5, "hours": 4}')
    files = {name: str(tmp_path / name) for name in ("plan", "laplace", "records.csv", "ledger", "schema.json")}
    synthetic(Schema.from_json(schema.read_bytes()), 300, seed=1).to_csv(files["records.csv"], index=False)
    asked = ["plan", "--schema", str(schema), "--ways", "1"]
    assert main([*asked, "--pcost", "0.04", "--options", "centers=uniform", "--out", files["plan"]]) == 0
    assert main([*asked, "--pure-epsilon", "0.2", "--mechanism", "laplace", "--out", files["laplace"]]) == 0
    assert main(["budget", "create", "--ledger", files["ledger"]]) == 0
    assert main(["budget", "add", "--ledger", files["ledger"], "--dataset", "people", *total]) == 0
    return files


def released(files: dict[str, str], plan: str, out: str, *more: str) -> int:
    given = ["release", "--plan", files[plan], "--data", files["records.csv"], "--dataset", "people"]
    return main([*given, "--ledger", files["ledger"], "--out", out, *more])


def test_a_release_is_refused_before_anything_is_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = office(tmp_path, "--pcost", "1")
    capsys.readouterr()
    for out, words in (
        (tmp_path / "missing" / "a.csv", "There is no folder"),
        (tmp_path / "a.xlsx", "ends in none of .parquet, .csv, .zip"),
        (tmp_path, "ends in none of"),
        (Path(files["ledger"] + ".results") / "a.csv", "There is no folder"),
    ):
        assert released(files, "plan", str(out)) == 1
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
    for confidence in ("95", "0"):
        assert released(files, "plan", str(tmp_path / "a.csv"), "--confidence", confidence) == 1
        assert "above 0 and below 1" in capsys.readouterr().err
    where = ["--dataset", "people", "--ledger", files["ledger"], "--data", files["records.csv"]]
    for step in (["look", "--plans", files["plan"], files["laplace"], *where], ["finish", "--look", "key", *where[2:]]):
        assert main([*step, "--out", str(tmp_path / "a.xlsx")]) == 1
        assert "ends in none of .parquet, .csv. Give one of them." in capsys.readouterr().err
    assert Ledger(files["ledger"]).status("people").spent == 0
    assert released(files, "plan", str(tmp_path / "a.xlsx"), "--format", "csv") == 0


def test_records_are_taken_from_a_table_that_settings_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = office(tmp_path, "--pcost", "1")
    with duckdb.connect(str(tmp_path / "held.duckdb")) as database:
        database.execute(f"create table people as from read_csv('{files['records.csv']}')")
    (tmp_path / "sources.toml").write_text(
        f'[census]\naddress = "duckdb://{tmp_path / "held.duckdb"}"\ntable = "people"\n'
    )
    monkeypatch.setenv("DP_WORKBENCH_SOURCES", str(tmp_path / "sources.toml"))
    where = ["release", "--plan", files["plan"], "--dataset", "people", "--ledger", files["ledger"]]
    out = str(tmp_path / "a.csv")
    assert main([*where, "--source", "censas", "--out", out]) == 1
    assert "close names: 'census'" in capsys.readouterr().err
    assert Ledger(files["ledger"]).status("people").spent == 0
    assert main([*where, "--source", "census", "--out", out]) == 0
    assert released(files, "plan", str(tmp_path / "b.csv")) == 0  # the same records, and so the same release
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_repeated_release_says_that_nothing_new_was_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = office(tmp_path, "--pcost", "1")
    assert released(files, "plan", str(tmp_path / "a.csv")) == 0
    assert "; spent pcost" in capsys.readouterr().out
    assert released(files, "plan", str(tmp_path / "b.csv")) == 0
    assert "nothing new was spent" in capsys.readouterr().out
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "is not paid for twice"), (errno.EACCES, "who may use it")]
)
def test_a_disk_without_room_for_the_answers_is_no_release_lost(
    number: int, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, out = office(tmp_path, "--pcost", "1"), str(tmp_path / "a.csv")

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr("engine.cli.release.write_answers", fails)
        assert released(files, "plan", out) == 1
    assert capsys.readouterr().err.endswith(f"{advice}.\n")
    assert released(files, "plan", out) == 0
    assert "nothing new was spent" in capsys.readouterr().out


def test_a_reader_may_stop_early(tmp_path: Path) -> None:
    files = office(tmp_path, "--pcost", "1")
    command = [sys.executable, "-m", "engine", "show", "--plan", files["plan"]]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as show:
        assert show.stdout is not None
        assert show.stderr is not None
        show.stdout.close()
        assert show.stderr.read() == b""
    assert show.returncode == 141


@pytest.mark.parametrize(("encoding", "name"), [("ascii", "Gr\\xf6\\xdfe"), ("latin-1", "Größe"), ("utf-8", "Größe")])
def test_a_terminal_may_have_few_signs(
    encoding: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, plan = tmp_path / "schema.json", str(tmp_path / "plan.json")
    schema.write_text(
        Schema([Attribute.categorical("Größe", ["≤ 3 €", "→ 4"]), Attribute.of_size("age", 4)]).to_json(),
        encoding="utf-8",
    )
    asked = ["--schema", str(schema), "--ways", "1", "2", "--pcost", "1", "--out", plan]

    def said(*command: str) -> str:
        terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", terminal)
        with contextlib.suppress(SystemExit):  # after what --help says
            assert main(list(command)) == 0
        terminal.flush()
        return terminal.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]

    assert ("at most" in said("plan", *asked), "usage" in said("plan", "--help")) == (True, True)
    shown = said("show", "--plan", plan)
    assert name in shown
    assert f"{name} {'×' if encoding != 'ascii' else 'x'} age" in shown
    told = json.loads(said("show", "--plan", plan, "--json"))
    assert ["Größe", "age"] in [group["attributes"] for group in told["groups"]]
    if encoding == "ascii":  # as a program of its own, where Python sets the terminal up
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
        run = [sys.executable, "-m", "engine", "show", "--plan", plan]
        found = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, check=True)
        assert (found.stdout.decode(encoding), found.stderr) == (shown, b"")


def test_a_counted_table_is_released_by_its_column_of_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = office(tmp_path, "--pcost", "1")
    Path(files["records.csv"]).write_text("age,hours,n\n0,0,5\n1,1,7\n")
    assert released(files, "plan", str(tmp_path / "a.csv")) == 1
    assert "--count-column n" in capsys.readouterr().err
    assert released(files, "plan", str(tmp_path / "a.csv"), "--count-column", "n") == 0
    assert "Rows read 12 = counted 12" in capsys.readouterr().err
    named = ["--count-column", "n"]
    assert main(["check", "--plan", files["plan"], "--data", files["records.csv"], *named]) == 0
    said = capsys.readouterr().err
    assert "Rows read 12 = counted 12" in said
    assert "not sampling weights" in said
    public = ["rehearse", "--plan", files["plan"], "--data", files["records.csv"], "--public", "in the yearbook"]
    where = ["--ledger", files["ledger"], "--dataset", "people", "--out", str(tmp_path / "b.csv")]
    assert main([*public, *where, *named]) == 1
    assert "so they are not public" in capsys.readouterr().err


def test_count_column_that_is_attribute_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = office(tmp_path, "--pcost", "1")
    data, named = ["--data", str(tmp_path / "not there.csv")], ["--count-column", "age"]
    out = ["--out", str(tmp_path / "a.counts")]
    for command in (["check", *data], ["count", *data, *out], ["rehearse", *data, *out[:1], "a.csv", "--simulated"]):
        assert main([*command, "--plan", files["plan"], *named]) == 1
        said = capsys.readouterr().err
        assert "also an attribute" in said
        assert "count_column" not in said
    assert released(files, "plan", str(tmp_path / "a.csv"), *named) == 1
    assert "also an attribute" in capsys.readouterr().err


def test_a_look_and_its_last_step_read_a_column_of_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = office(tmp_path, "--pcost", "1")
    Path(files["records.csv"]).write_text("age,hours,n\n0,0,5\n1,1,7\n")
    fine = str(tmp_path / "fine.json")
    asked = ["--schema", files["schema.json"], "--ways", "1", "2", "--pcost", "0.08", "--options", "centers=uniform"]
    assert main(["plan", *asked, "--out", fine]) == 0
    given = ["--ledger", files["ledger"], "--data", files["records.csv"], "--out", str(tmp_path / "a.csv")]
    look = ["look", "--options", files["plan"], fine, "--dataset", "people", *given]
    assert main(look) == 1
    assert "--count-column n" in capsys.readouterr().err
    assert main([*look, "--count-column", "n"]) == 0
    said = capsys.readouterr()
    assert "Rows read 12 = counted 12" in said.err
    key = said.out.splitlines()[-1].removeprefix("key").strip()
    taken = ["--ledger", files["ledger"], "--look", key, "--option", "fine", "--by", "A. Reader"]
    assert main(["decide", *taken]) == 0
    given[-1] = str(tmp_path / "b.csv")
    assert main(["finish", "--look", key, *given, "--count-column", "n"]) == 0


def test_a_pure_total_grants_its_epsilon_and_no_gaussian_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = office(tmp_path, "--pure-epsilon", "1")
    granted = [released(files, "laplace", str(tmp_path / f"{i}.csv"), "--attempt", str(i)) for i in range(1, 8)]
    assert granted == [0] * 5 + [1] * 2
    assert released(files, "plan", str(tmp_path / "g.csv")) == 1
    assert "Gaussian noise does not keep" in capsys.readouterr().err
    assert main(["budget", "status", "--ledger", files["ledger"]]) == 0
    said = capsys.readouterr().out
    assert "people: epsilon total 1, spent 1, left 0; pure epsilon" in said


@pytest.mark.parametrize(
    ("total", "granted"), [(["--pcost", "1"], 24), (["--epsilon", "4.887", "--delta", "1e-6"], 15)]
)
def test_laplace_releases_are_counted_by_what_the_total_means(tmp_path: Path, total: list[str], granted: int) -> None:
    files = office(tmp_path, *total)
    book = Ledger(files["ledger"])
    status = book.status("people")
    assert int(status.left / status.takes(0.2**2, 0.2)) == granted


def test_a_rehearsal_says_what_its_records_are_and_marks_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = office(tmp_path, "--pcost", "1")
    given = ["rehearse", "--plan", files["plan"], "--data", files["records.csv"], "--out"]
    with pytest.raises(SystemExit):
        main([*given, str(tmp_path / "a.csv")])
    assert main([*given, str(tmp_path / "a.csv"), "--simulated"]) == 0
    rows = (tmp_path / "a.csv").read_text().splitlines()[1:]
    assert len(rows) == 9
    assert all("REHEARSAL" in row for row in rows)
    named = ["--ledger", files["ledger"], "--dataset", "people"]
    assert main([*given, str(tmp_path / "b.csv"), "--public", "in the yearbook", *named]) == 0
    assert released(files, "plan", str(tmp_path / "c.csv")) == 0
    assert "Warning: The same records were rehearsed as public" in capsys.readouterr().err
    assert main([*given, str(tmp_path / "d.csv"), "--public", "so they say", *named]) == 1
    assert not (tmp_path / "d.csv").exists()


def test_the_strict_check_is_for_the_curator_and_a_release_leaves_rows_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = office(tmp_path, "--pcost", "1")
    with open(files["records.csv"], "a", encoding="utf-8") as file:
        file.write("77,1\n")
    capsys.readouterr()  # the public key of the ledger may hold any digits
    assert main(["check", "--plan", files["plan"], "--data", files["records.csv"]]) == 0
    said = capsys.readouterr()
    assert "For your eyes only" in said.err
    assert "age: 1 outside the public domain" in said.err
    assert "77" not in said.err + said.out
    assert released(files, "plan", str(tmp_path / "a.csv")) == 0
    assert "left out 1" in capsys.readouterr().err


def test_a_schema_may_declare_whose_rows_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = Schema([Attribute.of_size("age", 5)], person="pid", rows_per_person=3)
    place, data = tmp_path / "schema.csv", tmp_path / "panel.csv"
    place.write_text(schema.to_csv())
    synthetic(schema, 60, seed=1).to_csv(data, index=False)
    for rows, told, beyond in (([], "", 0), (["--rows-per-person", "2"], "no more than 2 of each", 20)):
        made = tmp_path / f"plan{len(rows)}.json"
        assert main(["plan", "--schema", str(place), "--ways", "1", "--pcost", "1", *rows, "--out", str(made)]) == 0
        said = capsys.readouterr().out
        assert told in said
        assert ("rows       The schema declares" in said) == bool(told)
        out = str(tmp_path / f"answers{len(rows)}.csv")
        assert main(["rehearse", "--plan", str(made), "--data", str(data), "--simulated", "--out", out]) == 0
        assert f"beyond the cap {beyond}, which cost {beyond} of 20 persons" in capsys.readouterr().err


def test_a_panel_is_looked_at_decided_and_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"age": 5, "hours": 4}')
    records = synthetic(Schema.from_json(schema.read_bytes()), 300, seed=1).assign(pid=[i % 60 for i in range(300)])
    data, other, ledger = tmp_path / "panel.csv", tmp_path / "corrected.csv", str(tmp_path / "ledger")
    records.to_csv(data, index=False)
    records[records["pid"] > 0].to_csv(other, index=False)
    unit = ["--rows-per-person", "3"]
    files = []
    for ways in ("1", "2"):
        files.append(str(tmp_path / f"ways{ways}.json"))
        asked = ["plan", "--schema", str(schema), "--ways", "1", ways, "--pcost", "0.5", *unit, "--out", files[-1]]
        assert main([*asked, "--options", "centers=uniform"]) == 0
    assert main(["budget", "create", "--ledger", ledger]) == 0
    assert main(["budget", "add", "--ledger", ledger, "--dataset", "panel", "--pcost", "2", *unit]) == 0
    read = ["--ledger", ledger, "--person", "pid"]
    look = ["look", "--options", *files, "--data", str(data), "--dataset", "panel", *read]
    capsys.readouterr()
    assert main([*look, "--out", str(tmp_path / "look.csv")]) == 0
    said = capsys.readouterr()
    assert "beyond the cap 120, which cost 60 of 60 persons" in said.err
    key = said.out.split("key")[-1].strip()
    decide = ["decide", "--ledger", ledger, "--look", key, "--share", "0.1", "--snr", "0.001"]
    decide += ["--option", "ways2", "--by", "A. Reader"]  # whatever the noise makes the rule say
    assert main(decide) == 0
    assert "'ways2' is noted" in capsys.readouterr().out
    finish = ["finish", *read, "--look", key, "--out", str(tmp_path / "answers.csv")]
    assert main([*finish, "--data", str(other)]) == 1
    assert "not the records that were looked at" in capsys.readouterr().err
    assert Ledger(ledger).status("panel").spent < 0.5
    assert main([*finish, "--data", str(other), "--on-changed", "charge"]) == 0
    assert "charged alone" in capsys.readouterr().err
    for repeated in (
        [*finish[:-1], str(tmp_path / "b.csv"), "--on-changed", "charge"],
        [*look, "--out", str(tmp_path / "b.csv"), "--attempt", "1"],
    ):
        wrong = [*repeated, "--data", str(data if repeated[0] == "finish" else other)]
        assert main(wrong) == 1
        said = capsys.readouterr().err
        assert "OtherRecords" in said
        assert "--attempt" in said
        assert "attempt=" not in said
    assert not (tmp_path / "b.csv").exists()
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 1 + 5 + 4 + 20
    assert main(["verify", "--ledger", ledger]) == 0
