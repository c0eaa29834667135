"""A fit that was stopped or killed goes on where it stood, to the same numbers to the last digit."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from engine.errors import Cancelled, PlanError
from engine.postprocess import checkpoint as resume
from engine.postprocess import publish, uncertainty
from engine.postprocess import shrinkage as shrunk
from engine.privacy import Budget
from engine.release import Measurement
from engine.workload import Workload
from tests.publish.measured import SCHEMA, measured_on
from tests.release.ledger_worker import FORK
from tests.waiting import CEILING

MORE = 5  # times that an attempt may tell its progress, beyond the one before: what is there already is told, too


@pytest.fixture(autouse=True)
def every_state_is_kept(monkeypatch):
    monkeypatch.setattr(resume, "SECONDS", 0.0)


def released(ways=(1, 2, 3), seed=1):
    return measured_on(Workload.all_ways(SCHEMA, ways, family="marginal"), Budget(pcost=0.05), seed=seed)[0]


def attempted(work):
    """What the work returns, and how many attempts it took, when each is stopped."""
    for attempt in range(1, 400):
        told = []

        def heard(share, words, told=told, most=MORE * attempt):
            told.append(share)
            return len(told) < most

        try:
            return work(heard), attempt
        except Cancelled:
            continue
    raise AssertionError("it never came to an end")


def same(first, second):
    assert list(first.contrasts) == list(second.contrasts)  # in the same order, by which records are drawn
    for axes, values in first.contrasts.items():
        np.testing.assert_array_equal(second.contrasts[axes], values)
    if first.people is None:
        assert second.people is None
    else:
        np.testing.assert_array_equal(second.people, first.people)


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("fit", ["shrunk", "nonnegative"])
def test_a_fit_that_is_stopped_again_and_again_ends_at_the_same_numbers(tmp_path, fit, integer):
    found = released()
    made, attempts = attempted(lambda told: publish(found, fit, integer=integer, progress=told, resume=tmp_path))
    assert attempts > 2
    same(publish(found, fit, integer=integer), made)


def test_errors_that_are_stopped_again_and_again_are_the_same(tmp_path):
    published = publish(released((1, 2)))
    made, attempts = attempted(lambda told: uncertainty(published, draws=12, progress=told, resume=tmp_path))
    whole = uncertainty(published, draws=12)
    for one, other in zip((*whole.errors, *whole.truths), (*made.errors, *made.truths), strict=True):
        assert list(one) == list(other)
        assert all(np.array_equal(one[axes], other[axes]) for axes in one)
    assert attempts > 1


def test_records_that_are_stopped_again_and_again_are_the_same(tmp_path):
    published = publish(released())
    made, attempts = attempted(lambda told: published.records(500, progress=told, resume=tmp_path))
    assert attempts > 1
    assert made.equals(published.records(500))


def test_no_table_is_fitted_twice(tmp_path, monkeypatch):
    fitted, made = [], shrunk.shrink_table

    def counted(axes, *given):
        fitted.append(axes)
        return made(axes, *given)

    monkeypatch.setattr(shrunk, "shrink_table", counted)
    found = released()
    attempted(lambda told: publish(found, progress=told, resume=tmp_path))
    triples = [axes for axes in fitted if len(axes) == 3]
    assert len(triples) == len(set(triples)) == 4


def publish_and_die(measured, folder, at):
    """Be killed where this share of the work is done."""

    def told(share, words):
        if share >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    publish(Measurement.load(measured), integer=True, progress=told, resume=folder)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="nothing is killed so here")
def test_a_fit_that_is_killed_goes_on_to_the_same_integers(tmp_path):
    found, folder = released(), tmp_path / "reached"
    found.save(tmp_path / "measured")
    for share in (0.1, 0.3, 0.7, 0.9):
        process = FORK.Process(target=publish_and_die, args=(tmp_path / "measured", folder, share))
        process.start()
        process.join(CEILING)
        assert process.exitcode == -signal.SIGKILL
        assert list(folder.rglob("*.npz"))
    begun = []
    made = publish(found, integer=True, progress=lambda share, words: begun.append(words), resume=folder)
    assert "Fitting tables" not in begun
    same(publish(found, integer=True), made)


def test_a_state_that_is_torn_counts_as_none(tmp_path):
    found = released()
    publish(found, resume=tmp_path)
    (kept,) = tmp_path.rglob("*.npz")
    for torn in (b"", kept.read_bytes()[:-100], b"no archive"):
        kept.write_bytes(torn)
        same(publish(found), publish(found, resume=tmp_path))
    kept.write_bytes(kept.read_bytes().replace(b"\x00\x00\xf0?", b"\x00\x00\xf0@"))
    same(publish(found), publish(found, resume=tmp_path))


def test_a_folder_serves_many_without_mixing_them(tmp_path):
    asked = [(released(seed=seed), fit) for seed in (1, 2) for fit in ("shrunk", "nonnegative")]
    for found, fit in asked * 2:
        same(publish(found, fit), publish(found, fit, resume=tmp_path))
    assert len(list(tmp_path.iterdir())) == 4


def test_other_code_does_not_go_on_with_a_state(tmp_path, monkeypatch):
    found = released((1, 2))
    publish(found, resume=tmp_path)
    monkeypatch.setattr(resume, "_code", lambda: "other")
    publish(found, resume=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix", reason="rights are another matter here")
def test_a_state_is_its_owners_alone(tmp_path):
    publish(released((1, 2)), resume=tmp_path)
    places = list(tmp_path.rglob("*"))
    assert len(places) == 2
    assert all(place.stat().st_mode & 0o077 == 0 for place in places)


def test_folders_that_cannot_be_used_are_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("taken")
    with pytest.raises(PlanError, match=r"cannot be kept in .*Give resume a folder"):
        publish(released((1, 2)), resume=tmp_path / "file")
    with pytest.raises(PlanError, match=r"resume was 3\. Give the path of a folder"):
        publish(released((1, 2)), resume=3)
