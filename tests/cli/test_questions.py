"""The commands `ask` and `coarse-or-fine`, and workloads read from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.general_rule import rows_of_group
from demo_data.make_synthetic import synthetic
from engine._format import format_number
from engine.analysis import condition_query
from engine.analysis.ad_hoc_queries import further_answers
from engine.cli.main import main
from engine.errors import NotAnswerable, WorkloadError
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.release import measure
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload
from tests.cli.commands import SCHEMA, Capture, release, run, run_json


def estimate(row: dict[str, Any]) -> tuple[float, ...]:
    return tuple(row[name] for name in ("answer", "std", "low", "high"))


def test_ask_matches_measurement_answers(folder: Path, capsys: Capture) -> None:
    release(folder, 1)
    conditions = ["age >= 2 and sex == 'F'", "hours == 0"]
    where = ["--ledger", "office", "--dataset", "people"]
    difference = ["--times", 1, -1, "--confidence", 0.9]
    reply = run_json(capsys, "ask", *where, "--where", *conditions, *difference)
    measurement = load_measurement("office", reply["key"])
    women_from_2, no_hours = np.zeros((5, 2)), np.zeros(4)
    women_from_2[2:, 0] = 1
    no_hours[0] = 1
    queries = [(["age", "sex"], women_from_2), (["hours"], no_hours)]
    expected = [measurement.answer(*query, 0.9) for query in queries]
    assert [estimate(row) for row in reply["answers"]] == [estimate(vars(e)) for e in expected]
    assert [row["query"] for row in reply["answers"]] == conditions
    expected_difference = measurement.combination(queries, [1, -1], 0.9)
    assert estimate(reply["together"]) == estimate(vars(expected_difference))
    assert reply["dataset"] == "people"
    assert reply["rehearsal"] is False
    assert reply["released"] == measurement.utc
    assert main(["ask", *where, "--where", conditions[0]]) == 0
    assert f"standard error {format_number(expected[0].std)}" in capsys.readouterr().out
    measurement.save(folder / "saved")
    saved = ["--measurement", "saved", "--where", *conditions]
    assert run_json(capsys, "ask", *saved, *difference) == reply


def test_ask_in_sql_or_for_total_matches_measurement(folder: Path, capsys: Capture) -> None:
    release(folder, 1)
    where = ["--ledger", "office", "--dataset", "people"]
    reply = run_json(capsys, "ask", *where, "--workload", "queries.sql")
    measurement = load_measurement("office", reply["key"])
    _, sql_men_below_3, sql_total = reply["answers"]
    men_below_3 = np.zeros((5, 2))
    men_below_3[:3, 1] = 1
    expected = measurement.answer(["age", "sex"], men_below_3)
    assert estimate(sql_men_below_3) == pytest.approx(estimate(vars(expected)))
    (total,) = run_json(capsys, "ask", *where, "--total")["answers"]
    assert estimate(sql_total) == pytest.approx(estimate(total))


def test_ask_with_unfit_options_is_refused(folder: Path, capsys: Capture) -> None:
    release(folder, 1, 2)
    capsys.readouterr()
    where = ["ask", "--ledger", "office", "--dataset"]
    for args, words in (
        ([*where, "people", "--total"], "2 releases|--key"),
        ([*where, "absent", "--total"], "0 releases"),
        (["ask", "--ledger", "office", "--total"], "--dataset|--key"),
        (["ask", "--ledger", "office", "--key", "none", "--total"], "none"),
        (["ask", "--measurement", "plan.json", "--key", "k", "--total"], "--key|--ledger"),
        (["ask", "--measurement", "plan.json", "--total"], "plan.json"),
        ([*where, "people", "--total", "--times", "1"], "--times|--where"),
        ([*where, "people", "--where", "age > 1", "--times", "1", "2"], "2 factors"),
    ):
        assert main(args) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert all(word in output.err for word in words.split("|")), output.err


@pytest.mark.parametrize("mechanism", ["querysmasher", "identity", "hdmm", "gaussian", "wff"])
def test_further_answers_match_single_query_answers(mechanism: str) -> None:
    result = plan(Workload.all_ways(SCHEMA, (2,)), Budget(pcost=1.0), mechanism)
    measurement = measure(result, synthetic(SCHEMA, 200, seed=2), rehearsal=True)
    workload = Workload(SCHEMA).add("age", "range", weight=3.0)
    workload = workload.add(("hours", "sex"), {"hours": "prefix", "sex": "marginal"})
    rows = further_answers(measurement, workload)
    assert list(rows["query"]) == [workload.describe(i) for i in range(len(workload))]
    tensors = np.concatenate([rows_of_group(SCHEMA, group) for group in workload.groups]).reshape(
        -1, 5, 2, 4
    )
    for row, tensor in zip(rows.drop(columns="query").to_numpy(), tensors, strict=True):
        expected = measurement.answer(SCHEMA.names, tensor)
        # All queries of a group use the same source; a single query uses its most precise source.
        if mechanism == "gaussian":
            _, std, _, _ = row
            assert std >= expected.std * (1 - 1e-6)
        else:
            assert row == pytest.approx(
                [expected.answer, expected.std, expected.low, expected.high]
            )
    # the answers of the 15 ranges of age are sums of the answers of its 5 cells
    age_ranges = tensors[:15, :, 0, 0]
    is_cell = age_ranges.sum(axis=1) == 1
    range_answers = rows["answer"].to_numpy()[:15]
    assert range_answers == pytest.approx(
        age_ranges @ (age_ranges[is_cell].T @ range_answers[is_cell])
    )


def test_unmeasured_queries_and_wrong_conditions_are_refused() -> None:
    result = plan(Workload(SCHEMA).add("age", "total"), Budget(pcost=1.0))
    measurement = measure(result, synthetic(SCHEMA, 50, seed=2), rehearsal=True)
    with pytest.raises(NotAnswerable, match="marginal queries on age"):
        further_answers(measurement, Workload(SCHEMA).add("age"))
    with pytest.raises(WorkloadError, match="schema of the queries differs"):
        further_answers(measurement, Workload(Schema([Attribute.of_size("age", 5)])).add("age"))
    for condition, words in (
        ("agee > 1", "'agee'; close names: 'age'"),
        ("1 < 2", "no attribute"),
        ("age >", "read"),
    ):
        with pytest.raises(WorkloadError, match=words):
            condition_query(SCHEMA, condition)


def test_workload_file_may_be_json_or_sql(folder: Path) -> None:
    budget = "--pcost 1 --out"
    assert run(f"plan --workload queries.sql --schema schema.json {budget} sql.json") == 0
    result = load_plan((folder / "sql.json").read_bytes())
    assert [result.workload.describe(i) for i in range(3)] == [
        "sex = F and age <= 2",
        "sex = M and age <= 2",
        "all records",
    ]
    (folder / "w.json").write_text(result.workload.to_json())
    assert run(f"plan --workload w.json {budget} json.json") == 0
    assert load_plan((folder / "json.json").read_bytes()).hash == result.hash


def test_workload_file_missing_or_unfit_is_refused(folder: Path, capsys: Capture) -> None:
    (folder / "w.json").write_text(Workload.all_ways(SCHEMA, (1,)).to_json())
    (folder / "other.json").write_text('{"age": 5}')
    (folder / "latin.sql").write_bytes(
        "SELECT sex, COUNT(*) FROM t WHERE sex = '\xe4'".encode("latin-1")
    )
    for args, words in (
        ([], "--workload|--schema"),
        (["--workload", "queries.sql"], "queries.sql|--schema"),
        (["--workload", "w.json", "--ways", "1"], "--ways|--workload"),
        (["--workload", "w.json", "--schema", "other.json"], "differs"),
        (["--workload", "queries.sql", "--schema", "other.json"], "Statement 1|sex"),
        (["--workload", "latin.sql", "--schema", "schema.json"], "latin.sql|UTF-8"),
        (["--workload", "schema.json"], "workload"),
    ):
        assert main(["forecast", *args]) == 1
        output = capsys.readouterr().err
        assert output.count("\n") == 1
        assert all(word in output for word in words.split("|")), output


def test_coarse_or_fine_predicts_choice(folder: Path, capsys: Capture) -> None:
    """The predicted option changes at the threshold for evenly spread records."""
    command = ["coarse-or-fine", "--schema", "schema.json", "--ways", 1, 2, "--pcost", 0.5]
    command += ["--sigmas", 0]
    rule = ["--share", 0.5, "--snr", 2]
    reply = run_json(capsys, *command, *rule)
    coarse, fine = reply["analyses"]
    assert (coarse["option"], fine["option"]) == ("1-way", "2-way")
    assert coarse["even_records"] is None
    assert coarse["shared"] == fine["shared"] == reply["look_pcost"]
    assert fine["stands_out_from"] == pytest.approx(2 * fine["typical_std"])
    threshold = int(fine["even_records"])
    for records, expected in ((threshold - 1, "1-way"), (threshold + 1, "2-way")):
        reply = run_json(capsys, *command, *rule, "--records", records)
        assert reply["predicted"] == expected
    # at a required signal-to-noise ratio of almost 0, all groups are large enough
    rule = ["--share", 0.5, "--snr", 1e-6]
    reply = run_json(capsys, *command, *rule, "--simulated", "people.csv")
    assert reply["verdict"]["option"] == "2-way"


def write_coarse_and_fine(folder: Path) -> None:
    """Write workloads of all tables of one and of two attributes, and their plans, to files."""
    for name, ways in (("coarse", (1,)), ("fine", (2,))):
        workload = Workload.all_ways(SCHEMA, ways, family="marginal")
        (folder / f"{name}.json").write_text(workload.to_json())
        (folder / f"{name}-plan.json").write_text(plan(workload, Budget(pcost=0.5)).to_json())


def test_coarse_or_fine_of_files_equals_ways(folder: Path, capsys: Capture) -> None:
    write_coarse_and_fine(folder)
    rule = ["--sigmas", 0, "--share", 0.5, "--snr", 2]
    by_ways = run_json(
        capsys,
        "coarse-or-fine",
        *("--schema", "schema.json", "--ways", 1, 2, "--pcost", 0.5),
        *rule,
    )
    even_records = [analysis["even_records"] for analysis in by_ways["analyses"]]
    by_plans = run_json(
        capsys, "coarse-or-fine", "--plans", "coarse-plan.json", "fine-plan.json", *rule
    )
    by_files = run_json(
        capsys, "coarse-or-fine", "--workloads", "coarse.json", "fine.json", "--pcost", 0.5, *rule
    )
    assert [analysis["even_records"] for analysis in by_plans["analyses"]] == even_records
    assert [analysis["even_records"] for analysis in by_files["analyses"]] == even_records


def test_coarse_or_fine_wrong_arguments_are_refused(folder: Path, capsys: Capture) -> None:
    write_coarse_and_fine(folder)
    for args, words in (
        (["--ways", "1", "2", "--pcost", "1"], "--schema"),
        (["--workloads", "coarse.json", "fine.json"], "No budget"),
        (["--plans", "coarse-plan.json"], "at least two plans"),
        (
            ["--plans", "coarse-plan.json", "fine-plan.json", "--options", "centers=tuned"],
            "--options",
        ),
        (
            ["--plans", "coarse-plan.json", "fine-plan.json", "--pure-epsilon", "1"],
            "--pure-epsilon",
        ),
        (["--plans", "fine-plan.json", "coarse-plan.json", "--share", "2"], "2.0"),
        (["--plans", "coarse-plan.json", "fine-plan.json", "--primary", "finest"], "finest"),
        (["--plans", "coarse-plan.json", "fine-plan.json", "--records", "-1"], "-1"),
    ):
        assert main(["coarse-or-fine", *args]) == 1
        assert words in capsys.readouterr().err


def test_ask_with_key_answers_from_look(folder: Path, capsys: Capture) -> None:
    for ways in (1, 2):
        result = plan(Workload.all_ways(SCHEMA, (ways,), family="marginal"), Budget(pcost=0.5))
        (folder / f"{ways}.json").write_text(result.to_json())
    assert main(["budget", "create", "--ledger", "office"]) == 0
    assert main(["budget", "add", "--ledger", "office", "--dataset", "people", "--pcost", "1"]) == 0
    args = ["--ledger", "office", "--data", "people.csv", "--out", "a.csv", "--json"]
    capsys.readouterr()
    assert main(["look", "--plans", "1.json", "2.json", "--dataset", "people", *args]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    reply = run_json(capsys, "ask", "--ledger", "office", "--key", key, "--where", "age == 1")
    assert reply["answers"][0]["std"] > 0
