"""Command line: comparisons, releases, rehearsals and two-stage releases."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
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
from engine.postprocess.publication_weights import publication_weights
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.cli.commands import run

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = str(demo_data.schemas()["cps"])


def test_compare_prints_ranking_and_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "schema.json"
    small.write_text('{"age": 5, "hours": 4}')
    assert main(["compare", "--schema", str(small), "--ways", "1", "2", "--pcost", "1"]) == 0
    output = capsys.readouterr().out
    ranked = output[: output.index("laplace:")]
    assert ranked.index("querysmasher") < ranked.index("identity")
    assert "pure epsilon" in output
    assert "bound" in output
    assert "Biased" in output


def test_pure_epsilon_plan_is_released_as_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, data, ledger, out = (
        str(tmp_path / name) for name in ("plan.json", "cps.csv", "office.ledger", "out.zip")
    )
    schema = Schema.from_json(Path(SCHEMA).read_bytes())
    synthetic(schema, 200, seed=1).to_csv(data, index=False)
    args = ["--schema", SCHEMA, "--ways", "1", "--pure-epsilon", "0.5"]
    assert main(["plan", *args, "--mechanism", "querysmasher", "--out", plan]) == 1
    assert "pure epsilon" in capsys.readouterr().err
    assert main(["plan", *args, "--mechanism", "laplace", "--out", plan]) == 0
    output = capsys.readouterr().out
    assert "Pure epsilon 0.5" in output
    assert "any matrix mechanism" in output
    assert main(["budget", "create", "--ledger", ledger]) == 0
    assert main(["budget", "add", "--ledger", ledger, "--dataset", "cps", "--pcost", "0.3"]) == 0
    release = f"release --plan {plan} --data {data} --dataset cps --ledger {ledger} --out {out}"
    assert run(release) == 0
    assert run(release) == 1, "files are not overwritten by default"
    # the same key spends no further budget
    assert run(f"{release} --overwrite") == 0
    with zipfile.ZipFile(out) as archive:
        seal = json.loads(archive.read("certificate.json"))
    assert seal["pure_epsilon"] == 0.5
    assert seal["pcost"] <= 0.25
    assert seal["ledger"]["pcost"] == pytest.approx(seal["pcost"])
    assert main(["verify", "--ledger", ledger]) == 0


def test_plan_expected_records_sets_publication_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema(
        [Attribute.of_size("a", 12, "categorical"), Attribute.of_size("b", 2, "categorical")]
    )
    (tmp_path / "schema.json").write_text(schema.to_json())
    synthetic(schema, 200, seed=1).to_csv(tmp_path / "public.csv", index=False)
    command = f"plan --schema {tmp_path}/schema.json --ways 1 2 --rho 0.01"
    assert run(f"{command} --reference {tmp_path}/public.csv --out {tmp_path}/no.json") == 1
    assert "--expected-records" in capsys.readouterr().err
    assert run(f"{command} --expected-records 0 --out {tmp_path}/no.json") == 1
    assert "expected number of records" in capsys.readouterr().err
    command += " --expected-records 200"
    assert run(f"{command} --out {tmp_path}/plan.json") == 0
    assert "unbiased answers" in capsys.readouterr().out
    command += f" --reference {tmp_path}/public.csv"
    assert run(f"{command} --out {tmp_path}/public.csv") == 1, "the reference is not overwritten"
    assert run(f"{command} --out {tmp_path}/near.json") == 0
    workload, budget = Workload.all_ways(schema, (1, 2)), Budget.zcdp(0.01)
    for name, reference in (("plan", None), ("near", tmp_path / "public.csv")):
        weighted = publication_weights(workload, budget, expected_records=200, reference=reference)
        stored_plan = load_plan((tmp_path / f"{name}.json").read_bytes())
        assert stored_plan.workload.to_json() == weighted.to_json()


def create_files(tmp_path: Path, *total: str) -> dict[str, str]:
    """Create plans, records and a ledger; return their paths by name.

    ``total`` are the options of `budget add` that state the total budget of the dataset.
    """
    schema = tmp_path / "schema.json"
    schema.write_text('{"age": 5, "hours": 4}')
    files = {
        name: str(tmp_path / name)
        for name in ("plan", "laplace", "records.csv", "ledger", "schema.json")
    }
    synthetic(Schema.from_json(schema.read_bytes()), 300, seed=1).to_csv(
        files["records.csv"], index=False
    )
    command = ["plan", "--schema", str(schema), "--ways", "1"]
    assert (
        main([*command, "--pcost", "0.04", "--options", "centers=uniform", "--out", files["plan"]])
        == 0
    )
    assert (
        main(
            [*command, "--pure-epsilon", "0.2", "--mechanism", "laplace", "--out", files["laplace"]]
        )
        == 0
    )
    assert main(["budget", "create", "--ledger", files["ledger"]]) == 0
    assert main(["budget", "add", "--ledger", files["ledger"], "--dataset", "people", *total]) == 0
    return files


def run_release(files: dict[str, str], plan: str, out: str, *more: str) -> int:
    command = [
        "release",
        "--plan",
        files[plan],
        "--data",
        files["records.csv"],
        "--dataset",
        "people",
    ]
    return main([*command, "--ledger", files["ledger"], "--out", out, *more])


def test_release_with_invalid_options_spends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    capsys.readouterr()
    for out, words in (
        (tmp_path / "missing" / "a.csv", "not an existing folder"),
        (tmp_path / "a.xlsx", ".zip"),
        (tmp_path, ".parquet"),
        (Path(files["ledger"] + ".results") / "a.csv", "not an existing folder"),
    ):
        assert run_release(files, "plan", str(out)) == 1
        output = capsys.readouterr().err
        assert words in output
        assert output.count("\n") == 1
    for confidence in ("95", "0"):
        assert run_release(files, "plan", str(tmp_path / "a.csv"), "--confidence", confidence) == 1
        assert "confidence" in capsys.readouterr().err
    where = ["--dataset", "people", "--ledger", files["ledger"], "--data", files["records.csv"]]
    for step in (
        ["look", "--plans", files["plan"], files["laplace"], *where],
        ["finish", "--look", "key", *where[2:]],
    ):
        assert main([*step, "--out", str(tmp_path / "a.xlsx")]) == 1
        assert ".parquet" in capsys.readouterr().err
    assert Ledger(files["ledger"]).status("people").spent == 0
    assert run_release(files, "plan", str(tmp_path / "a.xlsx"), "--format", "csv") == 0


def test_release_from_configured_source_matches_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    with duckdb.connect(str(tmp_path / "source.duckdb")) as database:
        database.execute(f"create table people as from read_csv('{files['records.csv']}')")
    (tmp_path / "sources.toml").write_text(
        f'[census]\naddress = "duckdb://{tmp_path / "source.duckdb"}"\ntable = "people"\n'
    )
    monkeypatch.setenv("DP_WORKBENCH_SOURCES", str(tmp_path / "sources.toml"))
    where = ["release", "--plan", files["plan"], "--dataset", "people", "--ledger", files["ledger"]]
    out = str(tmp_path / "a.csv")
    assert main([*where, "--source", "censas", "--out", out]) == 1
    assert "close names: 'census'" in capsys.readouterr().err
    assert Ledger(files["ledger"]).status("people").spent == 0
    assert main([*where, "--source", "census", "--out", out]) == 0
    # the file has the same records, so the command returns the saved answers of the first release
    assert run_release(files, "plan", str(tmp_path / "b.csv")) == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_repeated_release_reports_no_new_spend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    assert run_release(files, "plan", str(tmp_path / "a.csv")) == 0
    assert "; spent pcost" in capsys.readouterr().out
    assert run_release(files, "plan", str(tmp_path / "b.csv")) == 0
    assert "nothing was spent now" in capsys.readouterr().out
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.ENOSPC, "is not charged again"), (errno.EACCES, "permissions")]
)
def test_release_with_failed_write_can_be_repeated(
    number: int,
    advice: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, out = create_files(tmp_path, "--pcost", "1"), str(tmp_path / "a.csv")

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr("engine.cli.release.write_answers", fails)
        assert run_release(files, "plan", out) == 1
    assert advice in capsys.readouterr().err
    assert run_release(files, "plan", out) == 0
    assert "nothing was spent now" in capsys.readouterr().out


def test_show_with_closed_output_exits_quietly(tmp_path: Path) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    command = [sys.executable, "-m", "engine", "show", "--plan", files["plan"]]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as show:
        assert show.stdout is not None
        assert show.stderr is not None
        show.stdout.close()
        assert show.stderr.read() == b""
    assert show.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("encoding", "name"), [("ascii", "Gr\\xf6\\xdfe"), ("latin-1", "Größe"), ("utf-8", "Größe")]
)
def test_output_in_limited_encoding_is_escaped(
    encoding: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, plan = tmp_path / "schema.json", str(tmp_path / "plan.json")
    schema.write_text(
        Schema(
            [Attribute.categorical("Größe", ["≤ 3 €", "→ 4"]), Attribute.of_size("age", 4)]
        ).to_json(),
        encoding="utf-8",
    )
    args = ["--schema", str(schema), "--ways", "1", "2", "--pcost", "1", "--out", plan]

    def run_and_read(*command: str) -> str:
        terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", terminal)
        # --help exits
        with contextlib.suppress(SystemExit):
            assert main(list(command)) == 0
        terminal.flush()
        return terminal.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]

    assert "at most" in run_and_read("plan", *args)
    assert "usage" in run_and_read("plan", "--help")
    shown = run_and_read("show", "--plan", plan)
    assert name in shown
    assert f"{name} {'×' if encoding != 'ascii' else 'x'} age" in shown
    reply = json.loads(run_and_read("show", "--plan", plan, "--json"))
    assert ["Größe", "age"] in [group["attributes"] for group in reply["groups"]]
    # In a separate process, Python sets the encoding of the output from PYTHONIOENCODING.
    if encoding == "ascii":
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
        run = [sys.executable, "-m", "engine", "show", "--plan", plan]
        process = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, check=True)
        assert (process.stdout.decode(encoding), process.stderr) == (shown, b"")


def test_release_of_counted_table_requires_count_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    Path(files["records.csv"]).write_text("age,hours,n\n0,0,5\n1,1,7\n")
    assert run_release(files, "plan", str(tmp_path / "a.csv")) == 1
    assert "--count-column n" in capsys.readouterr().err
    assert run_release(files, "plan", str(tmp_path / "a.csv"), "--count-column", "n") == 0
    assert "Rows read 12 = counted 12" in capsys.readouterr().err
    named = ["--count-column", "n"]
    assert main(["check", "--plan", files["plan"], "--data", files["records.csv"], *named]) == 0
    output = capsys.readouterr().err
    assert "Rows read 12 = counted 12" in output
    assert "not sampling weights" in output
    public = [
        "rehearse",
        "--plan",
        files["plan"],
        "--data",
        files["records.csv"],
        "--public",
        "in the yearbook",
    ]
    where = ["--ledger", files["ledger"], "--dataset", "people", "--out", str(tmp_path / "b.csv")]
    assert main([*public, *where, *named]) == 1
    assert "so they are confidential" in capsys.readouterr().err


def test_count_column_that_is_attribute_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    data, named = ["--data", str(tmp_path / "not there.csv")], ["--count-column", "age"]
    out = ["--out", str(tmp_path / "a.counts")]
    for command in (
        ["check", *data],
        ["count", *data, *out],
        ["rehearse", *data, *out[:1], "a.csv", "--simulated"],
    ):
        assert main([*command, "--plan", files["plan"], *named]) == 1
        output = capsys.readouterr().err
        assert "also an attribute" in output
        assert "count_column" not in output
    assert run_release(files, "plan", str(tmp_path / "a.csv"), *named) == 1
    assert "also an attribute" in capsys.readouterr().err


def test_two_stage_release_reads_count_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    Path(files["records.csv"]).write_text("age,hours,n\n0,0,5\n1,1,7\n")
    fine = str(tmp_path / "fine.json")
    command = f"plan --schema {files['schema.json']} --ways 1 2 --pcost 0.08"
    assert run(f"{command} --options centers=uniform --out {fine}") == 0
    source = [
        "--ledger",
        files["ledger"],
        "--data",
        files["records.csv"],
        "--out",
        str(tmp_path / "a.csv"),
    ]
    look = ["look", "--options", files["plan"], fine, "--dataset", "people", *source]
    assert main(look) == 1
    assert "--count-column n" in capsys.readouterr().err
    assert main([*look, "--count-column", "n"]) == 0
    output = capsys.readouterr()
    assert "Rows read 12 = counted 12" in output.err
    key = output.out.splitlines()[-1].removeprefix("key").strip()
    decision = ["--ledger", files["ledger"], "--look", key, "--option", "fine", "--by", "A. Reader"]
    assert main(["decide", *decision]) == 0
    source[-1] = str(tmp_path / "b.csv")
    assert main(["finish", "--look", key, *source, "--count-column", "n"]) == 0


def test_pure_epsilon_budget_refuses_gaussian_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pure-epsilon", "1")
    granted = [
        run_release(files, "laplace", str(tmp_path / f"{i}.csv"), "--attempt", str(i))
        for i in range(1, 8)
    ]
    assert granted == [0] * 5 + [1] * 2  # each release spends epsilon 0.2
    output = capsys.readouterr()
    rate = Budget.pure(1.0).guess
    assert f"sees all 5 releases guesses right at most {rate:g}%" in output.out
    assert "Change the total by `budget change`" in output.err
    assert "another" not in output.err
    assert run_release(files, "plan", str(tmp_path / "g.csv")) == 1
    assert "pure epsilon" in capsys.readouterr().err
    assert main(["budget", "status", "--ledger", files["ledger"]]) == 0
    output = capsys.readouterr().out
    assert "people: epsilon total 1, spent 1, left 0; pure epsilon" in output


@pytest.mark.parametrize(
    ("total", "granted"), [(["--pcost", "1"], 24), (["--epsilon", "4.887", "--delta", "1e-6"], 15)]
)
def test_number_of_laplace_releases_depends_on_unit_of_total(
    tmp_path: Path, total: list[str], granted: int
) -> None:
    """Releases of the same epsilon cost more of a total in epsilon and delta than in pcost."""
    files = create_files(tmp_path, *total)
    ledger = Ledger(files["ledger"])
    status = ledger.status("people")
    assert int(status.left / status.takes(0.2**2, 0.2)) == granted


def test_rehearsal_requires_record_status_and_marks_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    command = ["rehearse", "--plan", files["plan"], "--data", files["records.csv"], "--out"]
    with pytest.raises(SystemExit):
        main([*command, str(tmp_path / "a.csv")])
    assert main([*command, str(tmp_path / "a.csv"), "--simulated"]) == 0
    rows = (tmp_path / "a.csv").read_text().splitlines()[1:]
    assert len(rows) == 5 + 4  # the cells of age and of hours
    assert all("REHEARSAL" in row for row in rows)
    named = ["--ledger", files["ledger"], "--dataset", "people"]
    assert main([*command, str(tmp_path / "b.csv"), "--public", "in the yearbook", *named]) == 0
    assert run_release(files, "plan", str(tmp_path / "c.csv")) == 0
    assert "Warning" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "d.csv"), "--public", "so they say", *named]) == 1
    assert not (tmp_path / "d.csv").exists()


def test_check_reports_invalid_rows_only_to_curator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    with open(files["records.csv"], "a", encoding="utf-8") as file:
        file.write("77,1\n")
    # The output so far contains the public key of the ledger, in which these digits can occur.
    capsys.readouterr()
    assert main(["check", "--plan", files["plan"], "--data", files["records.csv"]]) == 0
    output = capsys.readouterr()
    assert "age" in output.err
    assert "age: 1 outside the schema" in output.err
    assert "77" not in output.err + output.out
    assert run_release(files, "plan", str(tmp_path / "a.csv")) == 0
    assert "dropped 1" in capsys.readouterr().err


def test_schema_with_person_column_caps_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema([Attribute.of_size("age", 5)], person="pid", rows_per_person=3)
    place, data = tmp_path / "schema.csv", tmp_path / "panel.csv"
    place.write_text(schema.to_csv())
    synthetic(schema, 60, seed=1).to_csv(data, index=False)
    # 20 persons with 3 rows each: a cap of 2 rows leaves out one row of each person
    for rows, message, excess in (("", "", 0), ("--rows-per-person 2", "at most 2 of each", 20)):
        plan_path = tmp_path / f"plan{len(rows)}.json"
        assert run(f"plan --schema {place} --ways 1 --pcost 1 {rows} --out {plan_path}") == 0
        output = capsys.readouterr().out
        assert message in output
        assert ("rows       The schema declares" in output) == bool(message)
        out = tmp_path / f"answers{len(rows)}.csv"
        assert run(f"rehearse --plan {plan_path} --data {data} --simulated --out {out}") == 0
        summary = capsys.readouterr().err
        assert "Rows read 60" in summary
        assert (f"over the cap {excess} ({excess} of 20 persons" in summary) == (excess > 0)


def test_two_stage_release_with_persons_charges_for_corrected_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"age": 5, "hours": 4}')
    records = synthetic(Schema.from_json(schema.read_bytes()), 300, seed=1).assign(
        pid=[i % 60 for i in range(300)]
    )
    data = tmp_path / "panel.csv"
    other = tmp_path / "corrected.csv"
    ledger = str(tmp_path / "ledger")
    records.to_csv(data, index=False)
    records[records["pid"] > 0].to_csv(other, index=False)
    unit = ["--rows-per-person", "3"]
    files = []
    for ways in ("1", "2"):
        files.append(str(tmp_path / f"ways{ways}.json"))
        command = f"plan --schema {schema} --ways 1 {ways} --pcost 0.5 --rows-per-person 3"
        assert run(f"{command} --options centers=uniform --out {files[-1]}") == 0
    assert main(["budget", "create", "--ledger", ledger]) == 0
    assert (
        main(["budget", "add", "--ledger", ledger, "--dataset", "panel", "--pcost", "2", *unit])
        == 0
    )
    read = ["--ledger", ledger, "--person", "pid"]
    look = ["look", "--options", *files, "--data", str(data), "--dataset", "panel", *read]
    capsys.readouterr()
    assert main([*look, "--out", str(tmp_path / "look.csv")]) == 0
    output = capsys.readouterr()
    # each of the 60 persons has 5 rows, 2 more than the cap
    assert "over the cap 120 (60 of 60 persons" in output.err
    key = output.out.split("key")[-1].strip()
    decide = ["decide", "--ledger", ledger, "--look", key, "--share", "0.1", "--snr", "0.001"]
    # The option is given, because the decision of the rule depends on the noise.
    decide += ["--option", "ways2", "--by", "A. Reader"]
    assert main(decide) == 0
    assert "'ways2', recorded" in capsys.readouterr().out
    finish = ["finish", *read, "--look", key, "--out", str(tmp_path / "answers.csv")]
    assert main([*finish, "--data", str(other)]) == 1
    assert "not the records of the first measurement" in capsys.readouterr().err
    assert Ledger(ledger).status("panel").spent < 0.5
    assert main([*finish, "--data", str(other), "--on-changed", "charge"]) == 0
    assert "charged alone" in capsys.readouterr().err
    for repeated in (
        [*finish[:-1], str(tmp_path / "b.csv"), "--on-changed", "charge"],
        [*look, "--out", str(tmp_path / "b.csv"), "--attempt", "1"],
    ):
        wrong = [*repeated, "--data", str(data if repeated[0] == "finish" else other)]
        assert main(wrong) == 1
        output = capsys.readouterr().err
        assert "OtherRecords" in output
        assert "--attempt" in output
        assert "attempt=" not in output
    assert not (tmp_path / "b.csv").exists()
    # a header, two tables of one attribute, and the table of both
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 1 + 5 + 4 + 20
    assert main(["verify", "--ledger", ledger]) == 0
