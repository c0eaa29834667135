"""Resumed fits: a cancelled or killed fit continues to bitwise equal numbers."""

from __future__ import annotations

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


@pytest.mark.parametrize("integer", [False, True])
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
    uninterrupted = uncertainty(published, draws=12)
    for one, other in zip(
        (*uninterrupted.errors, *uninterrupted.truths),
        (*resumed.errors, *resumed.truths),
        strict=True,
    ):
        assert list(one) == list(other)
        assert all(np.array_equal(one[axes], other[axes]) for axes in one)
    assert attempts > 1


def test_records_cancelled_repeatedly_resume_to_same_records(tmp_path):
    published = publish(simulated())
    resumed, attempts = run_with_interruptions(
        lambda progress: published.records(500, progress=progress, resume=tmp_path)
    )
    assert attempts > 1
    assert resumed.equals(published.records(500))


def test_resumed_publish_fits_each_table_once(tmp_path, monkeypatch):
    fitted, shrink = [], shrunk.shrink_table

    def counted(axes, *args, **options):
        fitted.append(axes)
        return shrink(axes, *args, **options)

    monkeypatch.setattr(shrunk, "shrink_table", counted)
    measurement = simulated()
    run_with_interruptions(
        lambda progress: publish(measurement, progress=progress, resume=tmp_path)
    )
    triples = [axes for axes in fitted if len(axes) == 3]
    assert len(triples) == len(set(triples)) == 4  # all triples of four attributes


def publish_and_die(measured, folder, at):
    """Publish a saved measurement; kill this process when the progress reaches ``at`` (0 to 1)."""

    def progress(share, words):
        if share >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    publish(Measurement.load(measured), integer=True, progress=progress, resume=folder)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no SIGKILL")
def test_killed_publish_resumes_to_same_integers(tmp_path):
    measurement, folder = simulated(), tmp_path / "reached"
    measurement.save(tmp_path / "measured")
    for share in (0.1, 0.3, 0.7, 0.9):
        process = FORK.Process(target=publish_and_die, args=(tmp_path / "measured", folder, share))
        process.start()
        process.join(CEILING)
        assert process.exitcode == -signal.SIGKILL
        assert list(folder.rglob("*.npz"))
    messages = []
    resumed = publish(
        measurement,
        integer=True,
        progress=lambda share, words: messages.append(words),
        resume=folder,
    )
    assert "Fitting tables" not in messages
    assert_equal(publish(measurement, integer=True), resumed)


def test_damaged_checkpoint_is_ignored(tmp_path):
    measurement = simulated()
    publish(measurement, resume=tmp_path)
    (file,) = tmp_path.rglob("*.npz")
    for damaged in (b"", file.read_bytes()[:-100], b"no archive"):
        file.write_bytes(damaged)
        assert_equal(publish(measurement), publish(measurement, resume=tmp_path))
    # If the end of a stored 1.0 becomes the end of 65,536.0, the archive can be read, but its
    # checksum differs.
    file.write_bytes(file.read_bytes().replace(b"\x00\x00\xf0?", b"\x00\x00\xf0@"))
    assert_equal(publish(measurement), publish(measurement, resume=tmp_path))


def test_checkpoint_folder_separates_publications(tmp_path):
    cases = [(simulated(seed=seed), fit) for seed in (1, 2) for fit in ("shrunk", "nonnegative")]
    for measurement, fit in cases * 2:
        assert_equal(publish(measurement, fit), publish(measurement, fit, resume=tmp_path))
    assert len(list(tmp_path.iterdir())) == 4


def test_checkpoint_of_other_code_is_ignored(tmp_path, monkeypatch):
    measurement = simulated((1, 2))
    publish(measurement, resume=tmp_path)
    monkeypatch.setattr(checkpoint, "_code_hash", lambda: "other")
    publish(measurement, resume=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix", reason="POSIX file permissions")
def test_checkpoint_files_are_private_to_owner(tmp_path):
    publish(simulated((1, 2)), resume=tmp_path)
    places = list(tmp_path.rglob("*"))
    assert len(places) == 2  # a folder and the checkpoint in it
    assert all(place.stat().st_mode & 0o077 == 0 for place in places)


def test_unusable_checkpoint_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("content")
    with pytest.raises(PlanError, match="resume"):
        publish(simulated((1, 2)), resume=tmp_path / "file")
    with pytest.raises(PlanError, match="resume"):
        publish(simulated((1, 2)), resume=3)
