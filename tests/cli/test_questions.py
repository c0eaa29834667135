"""Questions on the command line: further ones to a release, the rule of a choice foretold, workloads from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.general_rule import rows_of_group
from demo_data.make_synthetic import synthetic
from engine.analysis import condition_query
from engine.analysis.ad_hoc_queries import further_answers
from engine.cli.main import main
from engine.errors import NotAnswerable, WorkloadError
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.release import measure
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload
from tests.cli.asking import SCHEMA, Said, asked, released


def estimate(row: dict[str, Any]) -> tuple[float, ...]:
    return tuple(row[name] for name in ("answer", "std", "low", "high"))


def test_a_release_answers_on(folder: Path, capsys: Said) -> None:
    released(folder, 1)
    conditions = ["age >= 2 and sex == 'F'", "hours == 0"]
    where = ["--ledger", "office", "--dataset", "people"]
    told = asked(capsys, "ask", *where, "--where", *conditions, "--times", 1, -1, "--confidence", 0.9)
    found = load_measurement("office", told["key"])
    one, other = np.zeros((5, 2)), np.eye(4)[0]
    one[2:, 0] = 1
    right = [found.answer(["age", "sex"], one, 0.9), found.answer(["hours"], other, 0.9)]
    assert [estimate(row) for row in told["answers"]] == [estimate(vars(e)) for e in right]
    assert [row["query"] for row in told["answers"]] == conditions
    both = found.combination([(["age", "sex"], one), (["hours"], other)], [1, -1], 0.9)
    assert estimate(told["together"]) == estimate(vars(both))
    assert (told["dataset"], told["rehearsal"], told["released"]) == ("people", False, found.utc)
    by_sql = asked(capsys, "ask", *where, "--workload", "asked.sql")["answers"]
    young = np.zeros((5, 2))
    young[:3, 1] = 1
    assert estimate(by_sql[1]) == pytest.approx(estimate(vars(found.answer(["age", "sex"], young))))
    total = asked(capsys, "ask", *where, "--total")["answers"][0]
    assert estimate(by_sql[2]) == pytest.approx(estimate(total))
    found.save(folder / "kept")
    kept = asked(capsys, "ask", "--measurement", "kept", "--where", *conditions, "--times", 1, -1, "--confidence", 0.9)
    assert kept == told
    assert main(["ask", *where, "--where", conditions[0]]) == 0
    assert f"standard error {right[0].std:.4g}" in capsys.readouterr().out


def test_which_release_is_asked_must_be_plain(folder: Path, capsys: Said) -> None:
    released(folder, 1, 2)
    capsys.readouterr()
    where = ["ask", "--ledger", "office", "--dataset"]
    for given, words in (
        ([*where, "people", "--total"], "2 releases of 'people'|--key"),
        ([*where, "nobody", "--total"], "0 releases of 'nobody'"),
        (["ask", "--ledger", "office", "--total"], "no --dataset|--key"),
        (["ask", "--ledger", "office", "--key", "none", "--total"], "none"),
        (["ask", "--measurement", "plan.json", "--key", "k", "--total"], "--key|--ledger"),
        (["ask", "--measurement", "plan.json", "--total"], "plan.json"),
        ([*where, "people", "--total", "--times", "1"], "--times|--where"),
        ([*where, "people", "--where", "age > 1", "--times", "1", "2"], "2 numbers for 1 conditions"),
    ):
        assert main(given) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert all(word in said.err for word in words.split("|")), said.err


@pytest.mark.parametrize("mechanism", ["querysmasher", "identity", "hdmm", "gaussian", "wff"])
def test_further_answers_are_those_of_one_query_after_the_other(mechanism: str) -> None:
    made = plan(Workload.all_ways(SCHEMA, (2,)), Budget(pcost=1.0), mechanism)
    found = measure(made, synthetic(SCHEMA, 200, seed=2), rehearsal=True)
    more = Workload(SCHEMA).add("age", "range", weight=3.0)
    more = more.add(("hours", "sex"), {"hours": "prefix", "sex": "marginal"})
    rows = further_answers(found, more)
    assert list(rows["query"]) == [more.describe(i) for i in range(len(more))]
    tensors = np.concatenate([rows_of_group(SCHEMA, group) for group in more.groups]).reshape(-1, 5, 2, 4)
    for row, tensor in zip(rows.drop(columns="query").to_numpy(), tensors, strict=True):
        right = found.answer(SCHEMA.names, tensor)
        if mechanism == "gaussian":  # the group has one source, where each query alone takes its own best
            assert row[1] >= right.std * (1 - 1e-6)
        else:
            assert row == pytest.approx([right.answer, right.std, right.low, right.high])
    ages = tensors[:15, :, 0, 0]
    single = ages.sum(axis=1) == 1
    values = rows["answer"].to_numpy()[:15]
    assert values == pytest.approx(ages @ (ages[single].T @ values[single]))


def test_what_was_not_measured_is_not_answered() -> None:
    made = plan(Workload(SCHEMA).add("age", "total"), Budget(pcost=1.0))
    found = measure(made, synthetic(SCHEMA, 50, seed=2), rehearsal=True)
    with pytest.raises(NotAnswerable, match="marginal queries on age"):
        further_answers(found, Workload(SCHEMA).add("age"))
    with pytest.raises(WorkloadError, match="another schema"):
        further_answers(found, Workload(Schema([Attribute.of_size("age", 5)])).add("age"))
    for condition, words in (("agee > 1", "'agee'; close names: 'age'"), ("1 < 2", "no attribute"), ("age >", "read")):
        with pytest.raises(WorkloadError, match=words):
            condition_query(SCHEMA, condition)


def test_a_workload_is_read_from_json_or_sql(folder: Path, capsys: Said) -> None:
    budget = ["--pcost", "1", "--out"]
    assert main(["plan", "--workload", "asked.sql", "--schema", "schema.json", *budget, "sql.json"]) == 0
    made = load_plan((folder / "sql.json").read_bytes())
    assert [made.workload.describe(i) for i in range(3)] == [
        "sex = F and age <= 2",
        "sex = M and age <= 2",
        "all records",
    ]
    (folder / "w.json").write_text(made.workload.to_json())
    assert main(["plan", "--workload", "w.json", *budget, "json.json"]) == 0
    assert load_plan((folder / "json.json").read_bytes()).hash == made.hash
    (folder / "other.json").write_text('{"age": 5}')
    (folder / "latin.sql").write_bytes("SELECT sex, COUNT(*) FROM t WHERE sex = '\xe4'".encode("latin-1"))
    capsys.readouterr()
    for given, words in (
        ([], "--workload, or --schema"),
        (["--workload", "asked.sql"], "asked.sql|--schema"),
        (["--workload", "w.json", "--ways", "1"], "--ways|one of them"),
        (["--workload", "w.json", "--schema", "other.json"], "another schema"),
        (["--workload", "asked.sql", "--schema", "other.json"], "Statement 1|sex"),
        (["--workload", "latin.sql", "--schema", "schema.json"], "latin.sql|UTF-8"),
        (["--workload", "schema.json"], "workload"),
    ):
        assert main(["forecast", *given]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert all(word in said for word in words.split("|")), said


def test_a_choice_is_foretold(folder: Path, capsys: Said) -> None:
    """The rule on evenly spread records, from a schema and two analyses: the threshold is where a look would turn."""
    what = ["coarse-or-fine", "--schema", "schema.json", "--ways", 1, 2, "--pcost", 0.5, "--sigmas", 0]
    told = asked(capsys, *what, "--share", 0.5, "--snr", 2)
    coarse, fine = told["analyses"]
    assert (coarse["option"], fine["option"], coarse["even_records"]) == ("1-way", "2-way", None)
    assert coarse["shared"] == fine["shared"] == told["look_pcost"]
    assert fine["stands_out_from"] == pytest.approx(2 * fine["typical_std"])
    least = fine["even_records"]
    for records, expected in ((int(least) - 1, "1-way"), (int(least) + 1, "2-way")):
        assert asked(capsys, *what, "--share", 0.5, "--snr", 2, "--records", records)["predicted"] == expected
    seen = asked(capsys, *what, "--share", 0.5, "--snr", 1e-6, "--simulated", "people.csv")
    assert seen["verdict"]["option"] == "2-way"
    for name, ways in (("coarse", (1,)), ("fine", (2,))):
        workload = Workload.all_ways(SCHEMA, ways, family="marginal")
        (folder / f"{name}.json").write_text(workload.to_json())
        (folder / f"{name}-plan.json").write_text(plan(workload, Budget(pcost=0.5)).to_json())
    rule = ["--sigmas", 0, "--share", 0.5, "--snr", 2]
    by_plans = asked(capsys, "coarse-or-fine", "--plans", "coarse-plan.json", "fine-plan.json", *rule)
    by_files = asked(capsys, "coarse-or-fine", "--workloads", "coarse.json", "fine.json", "--pcost", 0.5, *rule)
    assert [row["even_records"] for row in by_plans["analyses"]] == [None, least]
    assert [row["even_records"] for row in by_files["analyses"]] == [None, least]
    for given, words in (
        (["--ways", "1", "2", "--pcost", "1"], "--schema"),
        (["--workloads", "coarse.json", "fine.json"], "no budget"),
        (["--plans", "coarse-plan.json"], "at least two plans"),
        (["--plans", "coarse-plan.json", "fine-plan.json", "--options", "centers=tuned"], "--options is for planning"),
        (["--plans", "coarse-plan.json", "fine-plan.json", "--pure-epsilon", "1"], "--pure-epsilon is for planning"),
        (["--plans", "fine-plan.json", "coarse-plan.json", "--share", "2"], "2.0"),
        (["--plans", "coarse-plan.json", "fine-plan.json", "--primary", "finest"], "finest"),
        (["--plans", "coarse-plan.json", "fine-plan.json", "--records", "-1"], "-1"),
    ):
        assert main(["coarse-or-fine", *given]) == 1
        assert words in capsys.readouterr().err


def test_a_look_answers_on_by_its_key(folder: Path, capsys: Said) -> None:
    for ways in (1, 2):
        made = plan(Workload.all_ways(SCHEMA, (ways,), family="marginal"), Budget(pcost=0.5))
        (folder / f"{ways}.json").write_text(made.to_json())
    assert main(["budget", "create", "--ledger", "office"]) == 0
    assert main(["budget", "add", "--ledger", "office", "--dataset", "people", "--pcost", "1"]) == 0
    given = ["--ledger", "office", "--data", "people.csv", "--out", "a.csv", "--json"]
    capsys.readouterr()
    assert main(["look", "--plans", "1.json", "2.json", "--dataset", "people", *given]) == 0
    key = json.loads(capsys.readouterr().out)["key"]
    told = asked(capsys, "ask", "--ledger", "office", "--key", key, "--where", "age == 1")
    assert told["answers"][0]["std"] > 0
