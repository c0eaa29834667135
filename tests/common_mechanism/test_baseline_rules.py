"""Baselines of the selection rule, such as the exponential mechanism."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.baseline_rules import exponential_probabilities, reserved_look
from benchmarks.matrix_rules import threshold_rule
from engine.common_mechanism.common_mechanism import CommonMechanism
from engine.errors import PlanError
from tests.common_mechanism.matrices import PAIRS


@pytest.mark.parametrize(
    ("name", "smallest_pcost"), list(zip(PAIRS, (0.738417, 0.051920, 0.504367), strict=True))
)
def test_reserved_look_costs_less_than_common_mechanism(name, smallest_pcost):
    coarse, fine = PAIRS[name]
    pair = CommonMechanism(coarse, fine)
    queries = coarse.B
    variances = np.diag(pair.common.covariance(queries))
    look = reserved_look(queries, variances)
    assert look.mechanism.pcost == pytest.approx(smallest_pcost, abs=1e-6)
    assert look.bound <= look.mechanism.pcost <= look.bound * (1 + 1e-6)
    assert look.mechanism.pcost < pair.saved
    assert (np.diag(look.mechanism.covariance(queries)) <= variances * (1 + 1e-9)).all()


def test_reserved_look_of_disjoint_counts_is_optimal():
    counts_of_two_cells = np.repeat(np.eye(3), 2, axis=1)
    look = reserved_look(counts_of_two_cells, [2.0, 4.0, 8.0])
    # each record is in one count, so the cost is that of the smallest variance
    assert look.mechanism.pcost == pytest.approx(1 / 2.0, rel=1e-6)
    assert look.bound == pytest.approx(1 / 2.0, rel=1e-6)
    for variances in ([1.0, 2.0], [1.0, 0.0, 1.0], [1.0, math.inf, 1.0]):
        with pytest.raises(PlanError, match="variances has shape"):
            reserved_look(np.eye(3), variances)


def test_threshold_rule_chooses_by_noisy_total():
    choices = [
        threshold_rule(total, [50, 200, 1000]).choice for total in (-3.0, 49.9, 50.0, 199.0, 1e9)
    ]
    assert choices == [0, 0, 1, 1, 3]
    with pytest.raises(PlanError, match="must not decrease"):
        threshold_rule(10, [50, 20])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-5, 5), min_size=2, max_size=5),
    st.floats(0.01, 2),
    st.floats(0.5, 3),
    st.data(),
)
def test_exponential_mechanism_renyi_divergence_is_bounded(scores, pcost, sensitivity, data):
    shift = [data.draw(st.floats(-sensitivity, sensitivity)) for _ in scores]
    P = exponential_probabilities(scores, sensitivity=sensitivity, pcost=pcost)
    Q = exponential_probabilities(np.add(scores, shift), sensitivity=sensitivity, pcost=pcost)
    for alpha in (1.5, 2.0, 8.0):
        divergence = math.log(float((P**alpha * Q ** (1 - alpha)).sum())) / (alpha - 1)
        assert divergence <= alpha * pcost / 2 + 1e-9


def test_exponential_mechanism_uses_and_checks_its_budget():
    pcost, sensitivity = 1.0, 1.0
    # both scores change by the sensitivity, in opposite directions
    first, second = exponential_probabilities(
        [0.0, 2.0 * sensitivity], sensitivity=sensitivity, pcost=pcost
    )
    assert math.log(second / first) == pytest.approx(2 * math.sqrt(pcost))  # epsilon
    for sensitivity, pcost in ((0.0, 1.0), (1.0, -1.0)):
        with pytest.raises(PlanError, match="above 0"):
            exponential_probabilities([0, 1], sensitivity=sensitivity, pcost=pcost)
