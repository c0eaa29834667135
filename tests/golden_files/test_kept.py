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

KEPT = Path(__file__).parent
FIGURES = json.loads((KEPT / "figures.json").read_text(encoding="utf-8"))


@pytest.fixture
def office(tmp_path: Path) -> Path:
    shutil.copytree(KEPT, tmp_path / "kept")
    return tmp_path / "kept" / "office"


@pytest.mark.parametrize("name", FIGURES["plans"])
def test_load_plan_stored_file_has_stored_figures(name: str) -> None:
    text, told = (KEPT / f"{name}.plan.json").read_text(encoding="utf-8"), FIGURES["plans"][name]
    plan = load_plan(text)
    assert (plan.hash, plan.pcost) == (told["hash"], pytest.approx(told["pcost"], rel=1e-12))
    # small weights leave eigenvalues of 1e-12, of which a processor rounds the fourth digit
    near = 1e-5 if name == "largest" else 1e-9
    assert plan.rmse == pytest.approx(told["rmse"], rel=near)
    for group, variances in enumerate(told["variances"]):
        np.testing.assert_allclose(plan.variances(group), variances, rtol=near)
    assert load_plan(plan.to_json()).hash == plan.hash


@pytest.mark.parametrize("name", [n for n in FIGURES["answers"] if n != "finished"])
def test_load_measurement_stored_result_has_stored_answers(name: str, office: Path) -> None:
    plan = load_plan((KEPT / f"{name}.plan.json").read_text(encoding="utf-8"))
    found = load_measurement(Ledger(office), release_key(dataset="people", plan_hash=plan.hash, attempt=1))
    for group, answers in enumerate(FIGURES["answers"][name]):
        np.testing.assert_allclose(found.answers(group)["answer"], answers, rtol=1e-9, atol=1e-9)


def test_resume_stored_two_stage_release_is_valid(office: Path) -> None:
    book = Ledger(office)
    assert verify_ledger(office) == ()
    assert book.status("people").spent == FIGURES["spent"]
    steps = stepwise.resume(book, FIGURES["look"])
    assert steps.choice is not None
    assert steps.finished is not None
    assert steps.choice.option == "fine"
    for group, answers in enumerate(FIGURES["answers"]["finished"]):
        np.testing.assert_allclose(steps.finished.answers(group)["answer"], answers, rtol=1e-9, atol=1e-9)
    kept = CommonPlan.from_json((KEPT / "common.json").read_text(encoding="utf-8"))
    assert kept.spends == steps.common.spends
