"""The audit of releases finds nothing above the stated cost, and something wherever a bug is planted."""

from __future__ import annotations

import numpy as np
import pytest

from engine.records import count_marginals
from engine.release import measure
from engine.workload import Workload
from tests.audit.auditing import BUGS, SCHEMA, audit, audited_plan, shown_rho

MADE = audited_plan(Workload(SCHEMA).add((), "total").add(("b",), "marginal"))
# with so many runs a false verdict is four to five standard deviations away
RUNS = {"as it is": 200, "noise of a block used again": 150}


@pytest.mark.parametrize("name", BUGS)
def test_a_release_shows_no_more_than_is_stated_and_a_planted_bug_does(name: str) -> None:
    sound = name == "as it is"
    with BUGS[name]():
        counted = {}  # counting again every time would cost more than drawing

        def release(table):
            if len(table) not in counted:
                counted[len(table)] = count_marginals(table, SCHEMA, [("b",)])
            return measure(MADE, counted[len(table)], rehearsal=True)

        found = audit(MADE, release, runs=RUNS.get(name, 300), confidence=0.999 if sound else 0.99)
    assert found.exceeded != sound, found


def test_what_is_shown_of_gaussian_answers_is_below_their_rho_and_not_far() -> None:
    rng = np.random.default_rng(1)
    for mu in (0.0, 1.0, 2.0):
        one, other = rng.normal(size=(2, 4000, 5)) @ np.diag([1.0, 3.0, 0.5, 2.0, 1.0])
        other[:, 2] += 0.5 * mu
        assert mu**2 / 4 - 0.01 <= shown_rho(one, other) <= mu**2 / 2
