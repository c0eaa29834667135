"""Files written with the oldest OpenBLAS kernels, read with the native ones."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ortho_group

import engine.release.measure
from engine.common_mechanism import stepwise
from engine.ledger import Ledger, verify_ledger
from engine.mechanisms import load_plan
from engine.publish.package_files import NAMES as FILES
from engine.publish.package_files import read_measurements, write_measurements
from engine.publish.release_package import write_package
from engine.publish.verify import verify_package
from engine.release import Measurement
from engine.residuals import dual_solver as solvers
from tests.processors import office

OTHER = "Prescott"  # runs on every x86-64 processor
NAMES = list(office.PLANS)


@pytest.fixture(scope="module")
def other_office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of results that were computed with the kernels of another processor type."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("no Prescott kernels on this processor family")
    folder = tmp_path_factory.mktemp("other_office")
    process = subprocess.run(
        [sys.executable, "-m", "tests.processors.office", str(folder)],
        env={**os.environ, "OPENBLAS_CORETYPE": OTHER},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return folder


@pytest.mark.parametrize("name", [*NAMES, "tables"])
def test_verify_package_of_other_processor_is_valid(other_office: Path, name: str) -> None:
    ledger = other_office / "office.ledger" if name in NAMES else None
    assert verify_package(other_office / f"{name}.zip", ledger=ledger) == ()


@pytest.mark.parametrize("name", ["ranges", "sums", "cells"])
def test_verify_package_other_eigenvectors_is_valid(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions stored eigenvectors that depend on the processor."""
    with monkeypatch.context() as patch:
        patch.setattr(
            solvers, "canonical_rotation", lambda rows: ortho_group.rvs(len(rows), random_state=3)
        )
        measurement = engine.release.measure(
            office.build_plan(name), office.RECORDS, rehearsal=True
        )
        path = write_package(measurement, tmp_path / "earlier.zip")
        earlier, rewritten = tmp_path / "earlier", tmp_path / "rewritten"
        earlier.mkdir()
        rewritten.mkdir()
        write_measurements(measurement, earlier)
    assert verify_package(path) == ()
    plan = load_plan(office.build_plan(name).to_json())
    files = [earlier / name for name in FILES]
    stored = read_measurements(plan, *files, rehearsal=True, dataset="", key="", utc="")
    write_measurements(stored, rewritten)
    numbers = "measurements.json"
    assert (rewritten / numbers).read_bytes() == (earlier / numbers).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_measurement_of_other_processor_has_equal_answers(other_office: Path, name: str) -> None:
    other = Measurement.load(other_office / f"{name}.measured")
    native = sys.modules["engine.release.measure"].measurement_of(
        other.plan, other.answers_on_grid, dataset="", key="", utc="", rehearsal=False
    )
    for group in range(len(other.plan.workload.groups)):
        std = np.sqrt(other.plan.variances(group))
        difference = np.abs(native.values(group) - other.values(group))
        assert (difference <= 1e-5 * std + 1e-9).all()


@pytest.mark.parametrize("name", NAMES)
def test_measure_interrupted_on_other_processor_spends_once(other_office: Path, name: str) -> None:
    ledger = Ledger(other_office / "office.ledger")
    spent = ledger.status("broken").spent
    measurement = engine.release.measure(
        office.build_plan(name), office.RECORDS, dataset="broken", ledger=ledger
    )
    assert ledger.status("broken").spent == spent
    assert ledger.find(measurement.key) is not None
    assert verify_ledger(ledger.path) == ()


@pytest.mark.parametrize("family", office.STEPS)
def test_finish_look_of_other_processor_spends_exact_price(other_office: Path, family: str) -> None:
    ledger = Ledger(other_office / "office.ledger")
    (key,) = stepwise.looks(ledger, family)
    stepwise.decide(ledger, key, option="fine", by="An office", reason="The noise allows it.")
    measurement = stepwise.finish(ledger, key, office.RECORDS)
    assert float(ledger.status(family).spent) == pytest.approx(measurement.plan.pcost, rel=1e-12)
    assert verify_ledger(ledger.path) == ()
