"""Seeds repeat the noise of rehearsals and are refused by releases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine.cli.main import main
from engine.common_mechanism import stepwise
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.errors import PlanError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.workload import Attribute, Schema, Workload

measuring = sys.modules["engine.release.measure"]
ROOT = Path(__file__).parents[2]
SCHEMA = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 2)])
RECORDS = pd.DataFrame({"a": [0, 1, 2, 2], "b": [0, 1, 1, 0]})
COUNTS = count_marginals(RECORDS, SCHEMA, [("a", "b")])


@pytest.fixture(scope="module")
def small_plan():
    return plan(Workload.all_ways(SCHEMA, ways=(1, 2)), Budget(pcost=1.0))


@pytest.fixture(scope="module")
def common():
    return coarse_or_fine(
        *(
            plan(Workload.all_ways(SCHEMA, ways=k), Budget(pcost=1.0), centers="uniform")
            for k in (1, 2)
        )
    )


@pytest.fixture
def ledger(tmp_path):
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=9.0))
    return book


def answers(measurement) -> np.ndarray:
    return np.concatenate(
        [measurement.values(i) for i in range(len(measurement.plan.workload.groups))]
    )


def rehearsed_answers(small_plan, **options) -> np.ndarray:
    measurement = measuring.measure(small_plan, COUNTS, rehearsal=True, **options)
    assert measurement.rehearsal
    return answers(measurement)


def test_rehearsal_same_seed_repeats_noise(small_plan) -> None:
    first = rehearsed_answers(small_plan, seed=7)
    np.testing.assert_array_equal(first, rehearsed_answers(small_plan, seed=7))
    assert not np.isclose(first, rehearsed_answers(small_plan, seed=8)).any()
    unseeded = rehearsed_answers(small_plan)
    assert not np.isclose(first, unseeded).any()
    assert not np.isclose(unseeded, rehearsed_answers(small_plan)).any()


def test_rehearsal_seed_is_same_in_other_process(small_plan, tmp_path) -> None:
    plan_path, records_path = tmp_path / "plan.json", tmp_path / "records.csv"
    plan_path.write_text(small_plan.to_json())
    RECORDS.to_csv(records_path, index=False)
    script = f"""
from engine import load_plan, measure
small_plan = load_plan(open({str(plan_path)!r}).read())
measurement = measure(small_plan, {str(records_path)!r}, rehearsal=True, seed=7)
for i in range(len(small_plan.workload.groups)):
    print(*measurement.values(i))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    answers_of_process = np.array(run.stdout.split(), float)
    np.testing.assert_allclose(answers_of_process, rehearsed_answers(small_plan, seed=7))


def test_rehearsal_seeds_have_planned_variances_and_no_correlation(small_plan) -> None:
    seeds = 400
    draws = np.array([rehearsed_answers(small_plan, seed=seed) for seed in range(seeds)])
    groups = range(len(small_plan.workload.groups))
    std = np.sqrt(np.concatenate([small_plan.variances(i) for i in groups]))
    # The bounds are more than 4 standard errors: 1 / sqrt(2 * 400) and 1 / sqrt(400).
    assert np.abs(draws.std(axis=0) / std - 1.0).max() < 0.15
    correlations = np.corrcoef(draws[:-1].T, draws[1:].T)
    successive_correlations = correlations[: len(std), len(std) :]
    assert np.abs(successive_correlations).max() < 0.25


def test_rehearsed_steps_same_seed_repeat_noise(common) -> None:
    def rehearse_steps(seed):
        stage = stepwise.look(common, RECORDS, rehearsal=True, seed=seed)
        return stage, stepwise.rehearse_finish(common, stage, RECORDS, option=1, seed=seed)

    runs = zip(rehearse_steps(3), rehearse_steps(3), rehearse_steps(4), strict=True)
    for step, same_seed_step, other_seed_step in runs:
        assert step.rehearsal
        np.testing.assert_array_equal(answers(step), answers(same_seed_step))
        assert not np.array_equal(answers(step), answers(other_seed_step))


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True, 2**63, np.float64(2)])
def test_rehearsal_other_seed_is_refused(small_plan, seed) -> None:
    with pytest.raises(PlanError, match="seed"):
        rehearsed_answers(small_plan, seed=seed)


@pytest.mark.parametrize("seed", [0, 7, -1, "x"])
def test_release_with_seed_spends_nothing(small_plan, common, ledger, seed) -> None:
    with pytest.raises(PlanError, match="seed"):
        measuring.measure(small_plan, RECORDS, dataset="survey", ledger=ledger, seed=seed)
    with pytest.raises(PlanError, match="seed"):
        stepwise.look(common, RECORDS, dataset="survey", ledger=ledger, seed=seed)
    assert not [row for row in ledger.rows() if row.kind == "spend"]


def test_releases_use_no_seeded_bits(small_plan, common, ledger, monkeypatch) -> None:
    def refuse(*args):
        raise AssertionError("a release uses bits of a rehearsal")

    monkeypatch.setattr("engine.release.rehearsal_noise.hashlib", None)
    for user in (measuring, sys.modules["engine.common_mechanism.stepwise"]):
        monkeypatch.setattr(user, "rehearsal_bits", refuse)
    first, second = (
        measuring.measure(small_plan, RECORDS, dataset="survey", ledger=ledger, attempt=attempt)
        for attempt in (1, 2)
    )
    assert not np.isclose(answers(first), answers(second)).any()
    key = stepwise.look(common, RECORDS, dataset="survey", ledger=ledger).key
    stepwise.decide(ledger, key, option=1, by="A. Reader")
    assert stepwise.finish(ledger, key, RECORDS).key


def test_commands_seed_repeats_rehearsal_and_refuses_release(
    small_plan, ledger, tmp_path, capsys, monkeypatch
) -> None:
    (tmp_path / "plan.json").write_text(small_plan.to_json())
    RECORDS.to_csv(tmp_path / "records.csv", index=False)
    monkeypatch.chdir(tmp_path)
    options = ["--plan", "plan.json", "--data", "records.csv", "--seed", "5"]
    for file in ("first.csv", "second.csv"):
        assert main(["rehearse", *options, "--simulated", "--out", file]) == 0
    assert Path("first.csv").read_bytes() == Path("second.csv").read_bytes()
    assert "REHEARSAL" in Path("first.csv").read_text()
    capsys.readouterr()
    target = ["--dataset", "survey", "--ledger", str(ledger.path), "--out", "release.csv"]
    assert main(["release", *options, *target]) != 0
    assert "--seed" in capsys.readouterr().err
    assert not [row for row in ledger.rows() if row.kind == "spend"]


@pytest.mark.parametrize(
    "command",
    ["look --plans a.json b.json --dataset survey", "finish --look key"],
    ids=["look", "finish"],
)
def test_commands_of_steps_refuse_seed(command, ledger, tmp_path, capsys) -> None:
    files = [
        "--ledger",
        str(ledger.path),
        "--data",
        "records.csv",
        "--out",
        str(tmp_path / "a.csv"),
    ]
    assert main([*command.split(), *files, "--seed", "5"]) != 0
    assert "--seed" in capsys.readouterr().err
