"""Resumed fits: a cancelled or killed fit continues to bitwise equal numbers."""

from __future__ import annotations

import itertools
import os
import signal

import numpy as np
import pytest

from engine.errors import Cancelled, PlanError
from engine.postprocess import checkpoint, publish, uncertainty
from engine.postprocess import shrinkage as shrunk
from engine.privacy import Budget
from engine.release import Measurement
from engine.workload import Workload
from tests.publish.measured import SCHEMA, measured_on
from tests.release.ledger_worker import FORK
from tests.waiting import CEILING

# Attempt k is cancelled after k * MORE_CALLS progress calls.  Steps that are read from a checkpoint
# also call progress.  With a much smaller value, an attempt could end before it does new work.
MORE_CALLS = 5


@pytest.fixture(autouse=True)
def save_every_checkpoint(monkeypatch):
    monkeypatch.setattr(checkpoint, "WRITE_INTERVAL_S", 0.0)


def simulated(ways=(1, 2, 3), seed=1):
    return measured_on(
        Workload.all_ways(SCHEMA, ways, family="marginal"), Budget(pcost=0.05), seed=seed
    )[0]


def run_with_interruptions(work):
    """Repeat ``work`` until it is not cancelled; return (result, number of attempts).

    Each attempt is cancelled a little later than the one before.
    """
    for attempt in range(1, 400):
        shares = []

        def progress(share, words, shares=shares, max_calls=MORE_CALLS * attempt):
            shares.append(share)
            return len(shares) < max_calls

        try:
            return work(progress), attempt
        except Cancelled:
            continue
    raise AssertionError("the work did not finish")


def assert_equal(first, second):
    # the order of the contrasts is part of the result, because it determines synthetic records
    assert list(first.contrasts) == list(second.contrasts)
    for axes, values in first.contrasts.items():
        np.testing.assert_array_equal(second.contrasts[axes], values)
    if first.people is None:
        assert second.people is None
    else:
        np.testing.assert_array_equal(second.people, first.people)


@pytest.mark.parametrize("integer", [False, True], ids=["real", "integer"])
@pytest.mark.parametrize("fit", ["shrunk", "nonnegative"])
def test_publish_cancelled_repeatedly_resumes_to_same_tables(tmp_path, fit, integer):
    measurement = simulated()
    resumed, attempts = run_with_interruptions(
        lambda progress: publish(
            measurement, fit, integer=integer, progress=progress, resume=tmp_path
        )
    )
    assert attempts > 2
    assert_equal(publish(measurement, fit, integer=integer), resumed)


def test_uncertainty_cancelled_repeatedly_resumes_to_same_errors(tmp_path):
    published = publish(simulated((1, 2)))
    resumed, attempts = run_with_interruptions(
        lambda progress: uncertainty(published, draws=12, progress=progress, resume=tmp_path)
    )
    assert attempts > 1
    uninterrupted = uncertainty(published, draws=12)
    for resumed_draws, expected_draws in (
        (resumed.errors, uninterrupted.errors),
        (resumed.truths, uninterrupted.truths),
    ):
        for resumed_tables, expected in zip(resumed_draws, expected_draws, strict=True):
            assert list(resumed_tables) == list(expected)
            assert all(np.array_equal(resumed_tables[axes], expected[axes]) for axes in expected)


def test_records_cancelled_repeatedly_resume_to_same_records(tmp_path):
    published = publish(simulated())
    resumed, attempts = run_with_interruptions(
        lambda progress: published.records(500, progress=progress, resume=tmp_path)
    )
    assert attempts > 1
    assert resumed.equals(published.records(500))


def test_resumed_publish_fits_each_table_once(tmp_path, monkeypatch):
    fitted_sets, shrink = [], shrunk.shrink_table

    def recorded_shrink(axes, *args, **options):
        fitted_sets.append(axes)
        return shrink(axes, *args, **options)

    monkeypatch.setattr(shrunk, "shrink_table", recorded_shrink)
    measurement = simulated()
    run_with_interruptions(
        lambda progress: publish(measurement, progress=progress, resume=tmp_path)
    )
    fitted_triples = [axes for axes in fitted_sets if len(axes) == 3]
    assert sorted(fitted_triples) == list(itertools.combinations(range(len(SCHEMA)), 3))


def publish_and_die(measured, folder, kill_share):
    """Publish a saved measurement; kill this process when the progress reaches ``kill_share``."""

    def progress(share, words):
        if share >= kill_share:
            os.kill(os.getpid(), signal.SIGKILL)

    publish(Measurement.load(measured), integer=True, progress=progress, resume=folder)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_killed_publish_resumes_to_same_integers(tmp_path):
    measurement, folder = simulated(), tmp_path / "checkpoints"
    saved = tmp_path / "measured"
    measurement.save(saved)
    for kill_share in (0.1, 0.3, 0.7, 0.9):
        process = FORK.Process(target=publish_and_die, args=(saved, folder, kill_share))
        process.start()
        process.join(CEILING)
        assert process.exitcode == -signal.SIGKILL
        assert list(folder.rglob("*.npz"))
    steps = []
    resumed = publish(
        measurement,
        integer=True,
        progress=lambda share, words: steps.append(words),
        resume=folder,
    )
    assert "Fitting tables" not in steps
    assert_equal(publish(measurement, integer=True), resumed)


def test_damaged_checkpoint_is_ignored(tmp_path):
    measurement = simulated()
    expected = publish(measurement, resume=tmp_path)
    (checkpoint_file,) = tmp_path.rglob("*.npz")
    content = checkpoint_file.read_bytes()
    # the archive can still be read, but its checksum differs
    middle = len(content) // 2
    changed_bit = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (b"", content[:-100], b"no archive", changed_bit):
        checkpoint_file.write_bytes(damaged)
        assert_equal(expected, publish(measurement, resume=tmp_path))


def test_checkpoint_folder_separates_publications(tmp_path):
    cases = [(simulated(seed=seed), fit) for seed in (1, 2) for fit in ("shrunk", "nonnegative")]
    for measurement, fit in cases * 2:  # the second time, checkpoints of all cases exist
        assert_equal(publish(measurement, fit), publish(measurement, fit, resume=tmp_path))
    assert len(list(tmp_path.iterdir())) == len(cases)


def test_checkpoint_of_other_code_is_ignored(tmp_path, monkeypatch):
    measurement = simulated((1, 2))
    publish(measurement, resume=tmp_path)
    monkeypatch.setattr(checkpoint, "_code_hash", lambda: "other")
    publish(measurement, resume=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix", reason="POSIX file permissions")
def test_checkpoint_files_are_private_to_owner(tmp_path):
    publish(simulated((1, 2)), resume=tmp_path)
    folder, checkpoint_file = tmp_path.rglob("*")
    assert folder.stat().st_mode & 0o077 == 0
    assert checkpoint_file.stat().st_mode & 0o077 == 0


def test_unusable_checkpoint_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("content")
    with pytest.raises(PlanError, match="resume"):
        publish(simulated((1, 2)), resume=tmp_path / "file")
    with pytest.raises(PlanError, match="resume"):
        publish(simulated((1, 2)), resume=3)
