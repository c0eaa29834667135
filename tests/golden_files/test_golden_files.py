"""Stored plans of every mechanism, a ledger, its results and a two-stage release stay readable.

`figures.json` contains the hashes, errors and answers of these files when they were written.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from engine.common_mechanism import CommonPlan, stepwise
from engine.ledger import Ledger, release_key, verify_ledger
from engine.mechanisms import load_plan
from engine.release.measure import load_measurement

FOLDER = Path(__file__).parent
FIGURES = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))


@pytest.fixture
def office(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "golden")
    return tmp_path / "golden" / "office"


@pytest.mark.parametrize("name", FIGURES["plans"])
def test_load_plan_stored_file_has_stored_figures(name: str) -> None:
    text = (FOLDER / f"{name}.plan.json").read_text(encoding="utf-8")
    figures = FIGURES["plans"][name]
    plan = load_plan(text)
    assert (plan.hash, plan.pcost) == (figures["hash"], pytest.approx(figures["pcost"], rel=1e-12))
    # small weights give eigenvalues of 1e-12 that differ between processors in the fourth digit
    tolerance = 1e-5 if name == "minimax" else 1e-9
    assert plan.rmse == pytest.approx(figures["rmse"], rel=tolerance)
    for group, variances in enumerate(figures["variances"]):
        np.testing.assert_allclose(plan.variances(group), variances, rtol=tolerance)
    assert load_plan(plan.to_json()).hash == plan.hash


@pytest.mark.parametrize("name", [n for n in FIGURES["answers"] if n != "finished"])
def test_load_measurement_stored_result_has_stored_answers(name: str, office: Path) -> None:
    plan = load_plan((FOLDER / f"{name}.plan.json").read_text(encoding="utf-8"))
    measurement = load_measurement(
        Ledger(office), release_key(dataset="people", plan_hash=plan.hash, attempt=1)
    )
    for group, answers in enumerate(FIGURES["answers"][name]):
        np.testing.assert_allclose(
            measurement.answers(group)["answer"], answers, rtol=1e-9, atol=1e-9
        )


def test_resume_stored_two_stage_release_is_valid(office: Path) -> None:
    ledger = Ledger(office)
    assert verify_ledger(office) == ()
    assert ledger.status("people").spent == FIGURES["spent"]
    steps = stepwise.resume(ledger, FIGURES["look"])
    assert steps.choice is not None
    assert steps.finished is not None
    assert steps.choice.option == "fine"
    for group, answers in enumerate(FIGURES["answers"]["finished"]):
        np.testing.assert_allclose(
            steps.finished.answers(group)["answer"], answers, rtol=1e-9, atol=1e-9
        )
    common = CommonPlan.from_json((FOLDER / "common.json").read_text(encoding="utf-8"))
    assert common.spends == steps.common.spends
