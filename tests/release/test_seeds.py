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
from engine.workload import Attribute, Schema, Workload

module = sys.modules["engine.release.measure"]
ROOT = Path(__file__).parents[2]
SCHEMA = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 2)])
RECORDS = pd.DataFrame({"a": [0, 1, 2, 2], "b": [0, 1, 1, 0]})


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
    measurement = module.measure(small_plan, RECORDS, rehearsal=True, **options)
    assert measurement.rehearsal
    return answers(measurement)


def test_rehearsal_same_seed_repeats_noise(small_plan) -> None:
    one = rehearsed_answers(small_plan, seed=7)
    np.testing.assert_array_equal(one, rehearsed_answers(small_plan, seed=7))
    assert not np.isclose(one, rehearsed_answers(small_plan, seed=8)).any()
    assert not np.isclose(one, rehearsed_answers(small_plan)).any()
    assert not np.isclose(rehearsed_answers(small_plan), rehearsed_answers(small_plan)).any()


def test_rehearsal_seed_is_same_in_other_process(small_plan, tmp_path) -> None:
    (tmp_path / "plan.json").write_text(small_plan.to_json())
    code = (
        "import pandas as pd; from engine import load_plan, measure\nsmall_plan ="
        f" load_plan(open({str(tmp_path / 'plan.json')!r}).read())\nmeasurement ="
        f" measure(small_plan, pd.DataFrame({RECORDS.to_dict('list')!r}), rehearsal=True,"
        " seed=7)\nprint([float(x) for i in range(len(small_plan.workload.groups)) for x in"
        " measurement.values(i)])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    np.testing.assert_allclose(
        np.array(run.stdout.strip()[1:-1].split(", "), float), rehearsed_answers(small_plan, seed=7)
    )


def test_rehearsal_seeds_have_planned_variances(small_plan) -> None:
    """Answers of successive seeds are also uncorrelated."""
    draws = np.array([rehearsed_answers(small_plan, seed=s) for s in range(400)])
    std = np.sqrt(
        np.concatenate([small_plan.variances(i) for i in range(len(small_plan.workload.groups))])
    )
    scores = (draws - draws.mean(axis=0)) / std
    assert np.abs(scores.std(axis=0) - 1.0).max() < 0.15
    assert np.abs(np.corrcoef(draws[:-1].T, draws[1:].T)[: len(std), len(std) :]).max() < 0.25


def test_rehearsed_steps_same_seed_repeat_noise(common) -> None:
    def steps(seed):
        stage = stepwise.look(common, RECORDS, rehearsal=True, seed=seed)
        return stage, stepwise.rehearse_finish(common, stage, RECORDS, option=1, seed=seed)

    one, again, other = steps(3), steps(3), steps(4)
    for first, second, third in zip(one, again, other, strict=True):
        assert first.rehearsal
        np.testing.assert_array_equal(answers(first), answers(second))
        assert not np.array_equal(answers(first), answers(third))


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True, 2**63, np.float64(2)])
def test_rehearsal_other_seed_is_refused(small_plan, seed) -> None:
    with pytest.raises(PlanError, match="seed"):
        rehearsed_answers(small_plan, seed=seed)


@pytest.mark.parametrize("seed", [0, 7, -1, "x"])
def test_release_with_seed_spends_nothing(small_plan, common, ledger, seed) -> None:
    with pytest.raises(PlanError, match="seed"):
        module.measure(small_plan, RECORDS, dataset="survey", ledger=ledger, seed=seed)
    with pytest.raises(PlanError, match="seed"):
        stepwise.look(common, RECORDS, dataset="survey", ledger=ledger, seed=seed)
    assert not [row for row in ledger.rows() if row.kind == "spend"]


def test_releases_use_no_seeded_bits(small_plan, common, ledger, monkeypatch) -> None:
    def refuse(*args):
        raise AssertionError("a release uses bits of a rehearsal")

    monkeypatch.setattr("engine.release.rehearsal_noise.hashlib", None)
    for place in (module, sys.modules["engine.common_mechanism.stepwise"]):
        monkeypatch.setattr(place, "rehearsal_bits", refuse)
    releases = [
        answers(
            module.measure(small_plan, RECORDS, dataset="survey", ledger=ledger, attempt=attempt)
        )
        for attempt in (1, 2)
    ]
    assert not np.isclose(*releases).any()
    key = stepwise.look(common, RECORDS, dataset="survey", ledger=ledger).key
    stepwise.decide(ledger, key, option=1, by="A. Reader")
    assert stepwise.finish(ledger, key, RECORDS).key


def test_commands_seed_repeats_rehearsal_and_refuses_release(
    small_plan, ledger, tmp_path, capsys
) -> None:
    (tmp_path / "plan.json").write_text(small_plan.to_json())
    RECORDS.to_csv(tmp_path / "records.csv", index=False)
    options = [
        "--plan",
        str(tmp_path / "plan.json"),
        "--data",
        str(tmp_path / "records.csv"),
        "--seed",
        "5",
    ]
    for number in (1, 2):
        out = str(tmp_path / f"{number}.csv")
        assert main(["rehearse", *options, "--simulated", "--out", out]) == 0
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "2.csv").read_bytes()
    assert "REHEARSAL" in (tmp_path / "1.csv").read_text()
    where = ["--dataset", "survey", "--ledger", str(ledger.path), "--out", str(tmp_path / "3.csv")]
    capsys.readouterr()
    assert main(["release", *options, *where]) != 0
    assert "--seed" in capsys.readouterr().err
    assert not [row for row in ledger.rows() if row.kind == "spend"]


@pytest.mark.parametrize("command", ["look", "finish"])
def test_commands_of_steps_refuse_seed(command, ledger, tmp_path, capsys) -> None:
    where = [
        "--ledger",
        str(ledger.path),
        "--data",
        "records.csv",
        "--out",
        str(tmp_path / "a.csv"),
        "--seed",
        "5",
    ]
    inputs = (
        ["--plans", "a.json", "b.json", "--dataset", "survey"]
        if command == "look"
        else ["--look", "key"]
    )
    assert main([command, *inputs, *where]) != 0
    assert "--seed" in capsys.readouterr().err
