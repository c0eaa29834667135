"""The audit exceeds the stated rho only for releases with a planted bug."""

from __future__ import annotations

import numpy as np
import pytest

from engine.records import count_marginals
from engine.release import measure
from engine.workload import Workload
from tests.audit.__main__ import main
from tests.audit.auditing import BUGS, SCHEMA, audit, audited_plan, shown_rho

AUDITED = audited_plan(Workload(SCHEMA).add((), "total").add(("b",), "marginal"))
# with these numbers of runs a wrong verdict is four to five standard deviations away
RUNS = {"no bug": 200, "noise of a block used again": 150}


@pytest.mark.parametrize("name", BUGS)
def test_audit_exceeds_stated_rho_only_with_bug(name: str) -> None:
    sound = name == "no bug"
    with BUGS[name]():
        cached_counts = {}  # counting takes longer than drawing

        def release(table):
            if len(table) not in cached_counts:
                cached_counts[len(table)] = count_marginals(table, SCHEMA, [("b",)])
            return measure(AUDITED, cached_counts[len(table)], rehearsal=True)

        result = audit(
            AUDITED, release, runs=RUNS.get(name, 300), confidence=0.999 if sound else 0.99
        )
    assert result.exceeded != sound, result


def test_command_audits_releases_with_a_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    """So few releases show no bug, so the exit code is 1."""
    assert main(["--runs", "6"]) == 1
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(name) for line, name in zip(lines, BUGS, strict=True)] == [True] * 4


def test_rho_bound_of_gaussian_answers_is_half_to_all_of_rho() -> None:
    """One answer differs by ``mu`` standard deviations, so rho is mu^2 / 2."""
    rng = np.random.default_rng(1)
    for mu in (0.0, 1.0, 2.0):
        one, other = rng.normal(size=(2, 4000, 5)) @ np.diag([1.0, 3.0, 0.5, 2.0, 1.0])
        other[:, 2] += 0.5 * mu
        assert mu**2 / 4 - 0.01 <= shown_rho(one, other) <= mu**2 / 2
