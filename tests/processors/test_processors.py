"""An office with the oldest kernels of OpenBLAS, whose files this machine reads with its own."""

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
from engine.publish.release_package import NAMES as FILES
from engine.publish.release_package import read_measurements, write_measurements, write_package
from engine.publish.verify import verify_package
from engine.release import Measurement
from engine.residuals import dual_solver as solvers
from tests.processors import office

OTHER = "Prescott"  # every processor of this family can run it
NAMES = list(office.PLANS)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("the other kernels are those of another family of processors")
    folder = tmp_path_factory.mktemp("elsewhere")
    said = subprocess.run(
        [sys.executable, "-m", "tests.processors.office", str(folder)],
        env={**os.environ, "OPENBLAS_CORETYPE": OTHER},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return folder


@pytest.mark.parametrize("name", [*NAMES, "tables"])
def test_a_package_is_sound_on_another_processor(elsewhere: Path, name: str) -> None:
    assert (
        verify_package(elsewhere / f"{name}.zip", ledger=elsewhere / "office.ledger" if name in NAMES else None) == ()
    )


@pytest.mark.parametrize("name", ["ranges", "sums", "cells"])
def test_packages_are_sound_that_hold_the_rows_of_an_earlier_version(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had the eigenvectors that some processor took."""
    with monkeypatch.context() as patched:
        patched.setattr(solvers, "canonical_rotation", lambda rows: ortho_group.rvs(len(rows), random_state=3))
        found = engine.release.measure(office.made(name), office.RECORDS, rehearsal=True)
        path = write_package(found, tmp_path / "earlier.zip")
    assert verify_package(path) == ()
    plan = load_plan(office.made(name).to_json())
    for folder in (tmp_path / "written", tmp_path / "again"):
        folder.mkdir()
    write_measurements(found, tmp_path / "written")
    files = [tmp_path / "written" / name for name in FILES]
    told = read_measurements(plan, *files, rehearsal=True, dataset="", key="", utc="")
    write_measurements(told, tmp_path / "again")
    one, other = ((tmp_path / folder / "measurements.json").read_bytes() for folder in ("written", "again"))
    assert one == other


@pytest.mark.parametrize("name", NAMES)
def test_a_release_answers_there_what_it_answers_here(elsewhere: Path, name: str) -> None:
    found = Measurement.load(elsewhere / f"{name}.measured")
    again = sys.modules["engine.release.measure"].measured(
        found.plan, found.answers_on_grid, dataset="", key="", utc="", rehearsal=False
    )
    for group in range(len(found.plan.workload.groups)):
        std = np.sqrt(found.plan.variances(group))
        assert (np.abs(found.values(group) - again.values(group)) <= 1e-5 * std + 1e-9).all()


@pytest.mark.parametrize("name", NAMES)
def test_what_broke_off_there_is_ended_here_and_paid_once(elsewhere: Path, name: str) -> None:
    book = Ledger(elsewhere / "office.ledger")
    spent = book.status("broken").spent
    found = engine.release.measure(office.made(name), office.RECORDS, dataset="broken", ledger=book)
    assert book.status("broken").spent == spent
    assert book.find(found.key) is not None
    assert verify_ledger(book.path) == ()


@pytest.mark.parametrize("family", office.STEPS)
def test_a_look_from_there_is_finished_here_to_the_last_digit_of_its_price(elsewhere: Path, family: str) -> None:
    book = Ledger(elsewhere / "office.ledger")
    (key,) = stepwise.looks(book, family)
    stepwise.decide(book, key, option="fine", by="An office", reason="The noise allows it.")
    found = stepwise.finish(book, key, office.RECORDS)
    assert float(book.status(family).spent) == pytest.approx(found.plan.pcost, rel=1e-12)
    assert verify_ledger(book.path) == ()
