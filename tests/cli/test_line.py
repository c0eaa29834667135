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
    command = f"compare --schema {small} --ways 1 2 --pcost 1"
    assert run(f"{command} --mechanisms identity querysmasher laplace") == 0
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
        certificate = json.loads(archive.read("certificate.json"))
    assert certificate["pure_epsilon"] == 0.5
    assert certificate["pcost"] <= 0.5**2  # pcost of a pure epsilon: at most its square
    assert certificate["ledger"]["pcost"] == pytest.approx(certificate["pcost"])
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
    assert run(f"{command} --out {tmp_path}/by_reference.json") == 0
    workload, budget = Workload.all_ways(schema, (1, 2)), Budget.zcdp(0.01)
    for name, reference in (("plan", None), ("by_reference", tmp_path / "public.csv")):
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
    command = f"release --plan {files[plan]} --data {files['records.csv']} --dataset people"
    return main([*command.split(), "--ledger", files["ledger"], "--out", out, *more])


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
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    for confidence in ("95", "0"):
        assert run_release(files, "plan", str(tmp_path / "a.csv"), "--confidence", confidence) == 1
        assert "confidence" in capsys.readouterr().err
    inputs = ["--ledger", files["ledger"], "--data", files["records.csv"]]
    for command in (
        ["look", "--plans", files["plan"], files["laplace"], "--dataset", "people", *inputs],
        ["finish", "--look", "key", *inputs],
    ):
        assert main([*command, "--out", str(tmp_path / "a.xlsx")]) == 1
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
    command = f"release --plan {files['plan']} --dataset people --ledger {files['ledger']}"
    command += f" --out {tmp_path}/a.csv --source"
    assert run(f"{command} censas") == 1
    assert "close names: 'census'" in capsys.readouterr().err
    assert Ledger(files["ledger"]).status("people").spent == 0
    assert run(f"{command} census") == 0
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
    ("error_number", "advice"),
    [(errno.ENOSPC, "is not charged again"), (errno.EACCES, "permissions")],
    ids=["disk full", "no permission"],
)
def test_release_with_failed_write_can_be_repeated(
    error_number: int,
    advice: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, path = create_files(tmp_path, "--pcost", "1"), str(tmp_path / "a.csv")

    def failing_write(*_: object, **__: object) -> None:
        raise OSError(error_number, os.strerror(error_number))

    with monkeypatch.context() as patched:
        patched.setattr("engine.cli.release.write_answers", failing_write)
        assert run_release(files, "plan", path) == 1
    assert advice in capsys.readouterr().err
    assert run_release(files, "plan", path) == 0
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
    output = run_and_read("show", "--plan", plan)
    assert name in output
    assert f"{name} {'×' if encoding != 'ascii' else 'x'} age" in output
    reply = json.loads(run_and_read("show", "--plan", plan, "--json"))
    assert ["Größe", "age"] in [group["attributes"] for group in reply["groups"]]
    # In a separate process, Python sets the encoding of the output from PYTHONIOENCODING.
    if encoding == "ascii":
        environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
        command = [sys.executable, "-m", "engine", "show", "--plan", plan]
        process = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, check=True
        )
        assert process.stdout.decode(encoding) == output
        assert process.stderr == b""


def test_release_of_counted_table_requires_count_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    Path(files["records.csv"]).write_text("age,hours,n\n0,0,5\n1,1,7\n")
    assert run_release(files, "plan", str(tmp_path / "a.csv")) == 1
    assert "--count-column n" in capsys.readouterr().err
    assert run_release(files, "plan", str(tmp_path / "a.csv"), "--count-column", "n") == 0
    assert "Rows read 12 = counted 12" in capsys.readouterr().err
    inputs = f"--plan {files['plan']} --data {files['records.csv']} --count-column n"
    assert run(f"check {inputs}") == 0
    output = capsys.readouterr().err
    assert "Rows read 12 = counted 12" in output
    assert "not sampling weights" in output
    # the release above makes the records confidential, so they cannot be declared public
    rehearse = f"rehearse {inputs} --public published --ledger {files['ledger']} --dataset people"
    assert run(f"{rehearse} --out {tmp_path}/b.csv") == 1
    assert "so they are confidential" in capsys.readouterr().err


def test_count_column_that_is_attribute_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    # the option is refused before the file is read
    inputs = f"--plan {files['plan']} --data {tmp_path}/missing.csv --count-column age"
    for command in (
        f"check {inputs}",
        f"count {inputs} --out {tmp_path}/a.counts",
        f"rehearse {inputs} --out {tmp_path}/a.csv --simulated",
    ):
        assert run(command) == 1
        output = capsys.readouterr().err
        assert "also an attribute" in output
        assert "count_column" not in output
    assert run_release(files, "plan", str(tmp_path / "a.csv"), "--count-column", "age") == 1
    assert "also an attribute" in capsys.readouterr().err


def test_two_stage_release_reads_count_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pcost", "1")
    Path(files["records.csv"]).write_text("age,hours,n\n0,0,5\n1,1,7\n")
    fine, ledger = tmp_path / "fine.json", files["ledger"]
    command = f"plan --schema {files['schema.json']} --ways 1 2 --pcost 0.08"
    assert run(f"{command} --options centers=uniform --out {fine}") == 0
    inputs = f"--ledger {ledger} --data {files['records.csv']}"
    look = f"look {inputs} --options {files['plan']} {fine} --dataset people --out {tmp_path}/a.csv"
    assert run(look) == 1
    assert "--count-column n" in capsys.readouterr().err
    assert run(f"{look} --count-column n") == 0
    output = capsys.readouterr()
    assert "Rows read 12 = counted 12" in output.err
    key = output.out.splitlines()[-1].removeprefix("key").strip()
    assert run(f"decide --ledger {ledger} --look {key} --option fine --by curator") == 0
    assert run(f"finish {inputs} --look {key} --out {tmp_path}/b.csv --count-column n") == 0


def test_pure_epsilon_budget_refuses_gaussian_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = create_files(tmp_path, "--pure-epsilon", "1")
    exit_codes = [
        run_release(files, "laplace", str(tmp_path / f"{i}.csv"), "--attempt", str(i))
        for i in range(1, 7)
    ]
    assert exit_codes == [0, 0, 0, 0, 0, 1]  # each release spends epsilon 0.2
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
    ("total", "releases"),
    # with this delta, pcost 1 is epsilon 4.887
    [(["--pcost", "1"], 24), (["--epsilon", "4.887", "--delta", "1e-6"], 15)],
    ids=["pcost", "epsilon and delta"],
)
def test_number_of_laplace_releases_depends_on_unit(
    tmp_path: Path, total: list[str], releases: int
) -> None:
    """Releases of the same epsilon cost more of a total in epsilon and delta than in pcost."""
    files = create_files(tmp_path, *total)
    status = Ledger(files["ledger"]).status("people")
    epsilon = 0.2
    cost = status.takes(pcost=epsilon**2, pure_epsilon=epsilon)
    assert int(status.left / cost) == releases


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
    dataset = ["--ledger", files["ledger"], "--dataset", "people"]
    assert main([*command, str(tmp_path / "b.csv"), "--public", "published", *dataset]) == 0
    assert run_release(files, "plan", str(tmp_path / "c.csv")) == 0
    assert "Warning" in capsys.readouterr().err, "the released records were declared public"
    # after a release, the records cannot be declared public
    assert main([*command, str(tmp_path / "d.csv"), "--public", "published", *dataset]) == 1
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
    assert "age: 1 outside the schema" in output.err
    assert "77" not in output.err + output.out
    assert run_release(files, "plan", str(tmp_path / "a.csv")) == 0
    assert "dropped 1" in capsys.readouterr().err


def test_schema_with_person_column_caps_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema([Attribute.of_size("age", 5)], person="pid", rows_per_person=3)
    data = tmp_path / "panel.csv"
    (tmp_path / "schema.csv").write_text(schema.to_csv())
    synthetic(schema, 60, seed=1).to_csv(data, index=False)

    def plan_and_rehearse(name: str, options: str) -> tuple[str, str]:
        """Return the output of `plan` and the summary of the records by `rehearse`."""
        plan, out = tmp_path / f"{name}.json", tmp_path / f"{name}.csv"
        command = f"plan --schema {tmp_path}/schema.csv --ways 1 --pcost 1 {options}"
        assert run(f"{command} --out {plan}") == 0
        output = capsys.readouterr().out
        assert run(f"rehearse --plan {plan} --data {data} --simulated --out {out}") == 0
        return output, capsys.readouterr().err

    # 20 persons with 3 rows each, as many as the schema declares
    output, summary = plan_and_rehearse("declared", "")
    assert "rows       The schema declares" not in output
    assert "Rows read 60" in summary
    assert "over the cap" not in summary
    # a cap of 2 rows leaves out one row of each person
    output, summary = plan_and_rehearse("capped", "--rows-per-person 2")
    assert "rows       The schema declares" in output
    assert "at most 2 of each" in output
    assert "Rows read 60" in summary
    assert "over the cap 20 (20 of 20 persons" in summary


def test_two_stage_release_charges_for_corrected_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"age": 5, "hours": 4}')
    records = synthetic(Schema.from_json(schema.read_bytes()), 300, seed=1)
    records["pid"] = [i % 60 for i in range(300)]
    data, corrected = tmp_path / "panel.csv", tmp_path / "corrected.csv"
    records.to_csv(data, index=False)
    records[records["pid"] > 0].to_csv(corrected, index=False)
    plans, ledger = [tmp_path / "ways1.json", tmp_path / "ways2.json"], tmp_path / "ledger"
    for ways, plan in zip(("1", "1 2"), plans, strict=True):
        command = f"plan --schema {schema} --ways {ways} --pcost 0.5 --rows-per-person 3"
        assert run(f"{command} --options centers=uniform --out {plan}") == 0
    assert run(f"budget create --ledger {ledger}") == 0
    command = f"budget add --ledger {ledger} --dataset panel --pcost 2 --rows-per-person 3"
    assert run(command) == 0
    look = f"look --options {plans[0]} {plans[1]} --dataset panel --ledger {ledger} --person pid"
    capsys.readouterr()
    assert run(f"{look} --data {data} --out {tmp_path}/look.csv") == 0
    output = capsys.readouterr()
    # each of the 60 persons has 5 rows, 2 more than the cap
    assert "over the cap 120 (60 of 60 persons" in output.err
    key = output.out.split("key")[-1].strip()
    decide = f"decide --ledger {ledger} --look {key} --share 0.1 --snr 0.001"
    # The option is given, because the decision of the rule depends on the noise.
    assert run(f"{decide} --option ways2 --by curator") == 0
    assert "'ways2', recorded" in capsys.readouterr().out
    finish = f"finish --ledger {ledger} --person pid --look {key}"
    finish_corrected = f"{finish} --data {corrected} --out {tmp_path}/answers.csv"
    assert run(finish_corrected) == 1
    assert "not the records of the first measurement" in capsys.readouterr().err
    assert Ledger(ledger).status("panel").spent < 0.5
    assert run(f"{finish_corrected} --on-changed charge") == 0
    assert "charged alone" in capsys.readouterr().err
    for repeated in (
        f"{finish} --data {data} --on-changed charge",
        f"{look} --data {corrected} --attempt 1",
    ):
        assert run(f"{repeated} --out {tmp_path}/b.csv") == 1
        output = capsys.readouterr().err
        assert "OtherRecords" in output
        assert "--attempt" in output
        assert "attempt=" not in output
    assert not (tmp_path / "b.csv").exists()
    # a header, two tables of one attribute, and the table of both
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 1 + 5 + 4 + 20
    assert run(f"verify --ledger {ledger}") == 0
