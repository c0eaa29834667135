"""Selection rules, and chains of more than two analyses, on matrices, compared with the paper."""

import itertools
import math

import numpy as np
import pytest

from benchmarks.matrix_rules import NestedChain, NestedRule, census_cascade, spread_rule
from engine.common_mechanism.common_mechanism import CommonMechanism
from engine.errors import NotAnswerable, PlanError
from tests.common_mechanism.matrices import (
    IDENTITY,
    TOTAL,
    assert_close,
    cost_of,
    exact,
    marginals,
    mechanism,
    random_mechanism,
)


def test_census_cascade_matches_the_paper():
    chain = census_cascade(pcost=0.25)
    assert [M.B.shape for M in chain.analyses] == [(2, 206), (8, 206), (18, 206), (46, 206)]
    # the number of Age23 bins in every bin of the three coarser analyses
    fine_bins = [(23,), (4, 8, 5, 6), (1, 3, 4, 2, 2, 2, 3, 3, 3)]
    for look, M, bins in zip(chain.looks, chain.analyses[:-1], fine_bins, strict=True):
        assert_close(look.covariance(M.B), np.diag(np.repeat(bins, 2)) / 0.25)
    assert len(chain.looks) == 3
    for look, finer_look in itertools.pairwise(chain.looks):
        assert finer_look.answers(look)
        assert not look.answers(finer_look)
    x = np.random.default_rng(0).integers(0, 50, 206)
    for i, M in enumerate(chain.analyses):
        steps, maps = chain.path(i), chain.recreation(i).maps
        assert M.pcost == 0.25
        assert sum(exact(step.pcost) for step in steps) == exact(0.25)
        assert_close(sum(cost_of(step.mechanism) for step in steps), cost_of(M))
        answers = sum(A @ step.mechanism.B @ x for A, step in zip(maps, steps, strict=True))
        assert_close(answers, M.B @ x)
        assert_close(sum(A @ A.T for A in maps), M.Sigma)
    # the paths of the last two analyses have the three looks in common
    for step, other_step in zip(chain.path(2)[:3], chain.path(3)[:3], strict=True):
        assert step.mechanism == other_step.mechanism


def test_chain_without_nested_looks_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(PlanError, match="first"):
        NestedChain(
            *(random_mechanism(rng, 4) for _ in range(3)), names=("first", "second", "third")
        )
    with pytest.raises(PlanError, match="1 analyses"):
        NestedChain(TOTAL)
    with pytest.raises(PlanError, match="1 names"):
        NestedChain(TOTAL, TOTAL, names=["one"])


# --- decisions ---


def nested_rule(**options):
    """Return a rule that chooses between 1-way marginals and all cells of a 4 x 3 table."""
    coarse, fine = mechanism(marginals((4, 3), 1), 2), mechanism(np.eye(12))
    look = CommonMechanism(coarse, fine).common
    return NestedRule(look=look, coarse=coarse, fine=fine, **{"share": 0.5, "snr": 5.0} | options)


def test_nested_rule_bounds_match_section_6_2():
    rule = nested_rule(sigmas=1.0)
    B = rule.coarse.B
    answers = rule.look.B @ np.random.default_rng(3).poisson(2, 12)
    variance = np.diag(B @ np.linalg.pinv(cost_of(rule.look), hermitian=True) @ B.T)
    low, high = rule.bounds(answers)
    assert_close((low + high) / 2, B @ np.linalg.lstsq(rule.look.B, answers)[0])
    assert_close(high - low, 2 * np.sqrt(variance))
    coarse_error, fine_error = np.sqrt(np.diag(rule.coarse.covariance(B))), np.sqrt(B.sum(axis=1))
    ratios = {
        "coarse, upper": high / coarse_error,
        "fine, lower": low / fine_error,
        "fine, upper": high / fine_error,
    }
    shares = {name: np.mean(ratio >= 5) for name, ratio in ratios.items()}
    assert list(rule.decide(answers).shares.values()) == list(shares.values())
    # rounding does not change the comparisons, and exchanged shares would be noticed
    assert all(np.abs(ratio - 5).min() > 0.1 for ratio in ratios.values())
    assert len({*shares.values(), np.mean(low / coarse_error >= 5)}) == 4


@pytest.mark.parametrize(
    ("records_per_cell", "sigmas", "choice", "certain", "start"),
    [
        (50, 3, 1, True, "Choose Fine"),
        (0.1, 3, None, True, "Stop"),
        (4.5, 3, 0, False, "Choose Coarse: between"),
        (2.6, 0, 0, True, "Choose Coarse: at most"),
    ],
)
def test_nested_rule_chooses_by_precision_of_coarse_answers(
    records_per_cell, sigmas, choice, certain, start
):
    rule = nested_rule(sigmas=sigmas)
    decision = rule.decide(rule.look.B @ np.full(12, records_per_cell))
    assert (decision.choice, decision.certain) == (choice, certain)
    assert decision.sentence.startswith(start)
    assert "50.0% of 7 cells above 5 standard errors" in decision.sentence


def test_nested_rule_thresholds_are_inclusive():
    # A count of 3 with variance 3 has exactly the required signal-to-noise ratio, sqrt(3).
    M = mechanism(np.eye(10), 3.0)
    rule = NestedRule(look=M, coarse=M, fine=M, share=0.3, snr=math.sqrt(3.0), sigmas=0)
    counts = np.zeros((2, 10))
    counts[0, :3], counts[1, :2] = 3.0, 3.0
    np.testing.assert_array_equal(rule.fine_enough(counts), [True, False])


def test_fine_enough_of_many_looks_matches_decide():
    rule = nested_rule(sigmas=0.0)
    looks = np.random.default_rng(0).poisson(2.8, (200, 12)) @ rule.look.B.T
    fine = rule.fine_enough(looks @ rule.map.T)
    assert 20 < fine.sum() < 180  # of 200: both decisions occur often
    assert fine.tolist() == [rule.decide(answers).choice == 1 for answers in looks]


@pytest.mark.parametrize(
    "option", [{"share": 0.0}, {"share": 1.1}, {"snr": 0.0}, {"snr": math.inf}, {"sigmas": -1.0}]
)
def test_nested_rule_with_bad_options_is_refused(option):
    with pytest.raises(PlanError, match=next(iter(option))):
        nested_rule(**option)


def test_nested_rule_with_misshaped_answers_is_refused():
    with pytest.raises(PlanError, match="answers has shape"):
        nested_rule().decide([1.0, 2.0])


def test_nested_rule_of_other_analyses_is_refused():
    with pytest.raises(NotAnswerable):
        NestedRule(look=TOTAL, coarse=IDENTITY, fine=IDENTITY, share=0.5, snr=5)


def spread(answers, *, look=None, **options):
    analyses = mechanism(marginals((3, 2), 1), 2.0), mechanism(np.eye(6), 2.0)
    look = look or mechanism(analyses[0].B[:3], 2.0)
    return spread_rule(
        look=look, analyses=analyses, answers=answers, **{"draws": 6, "seed": 1} | options
    )


def test_general_rule_compares_spread_with_noise():
    large, small = spread([300.0, 200.0, 100.0]), spread([0.5, 0.5, 0.5], radius=1.0)
    assert large.choice is not None
    assert large.shares["radius"] == 2.0
    assert small.choice is None
    assert small.sentence.startswith("Stop")
    assert large == spread([300.0, 200.0, 100.0]) != spread([300.0, 200.0, 100.0], seed=2)
    # The first stage has measured the 1-way answers, so these answers vary little.
    one_way_look = mechanism(marginals((3, 2), 1), 2.0)
    decision = spread([30.0, 20.0, 10.0, 35.0, 25.0], look=one_way_look)
    assert decision.shares["analysis 1"] < 4 < decision.shares["analysis 2"]


def test_general_rule_variance_is_over_extreme_tables():
    total, cells = mechanism([[1, 1]]), mechanism(np.eye(2), 3)
    decision = spread_rule(look=total, analyses=(total, cells), answers=[100.0], draws=20, seed=5)
    corners, random = np.array([[98, 0], [102, 0], [0, 98], [0, 102]]), np.random.default_rng(5)
    goals = [random.standard_normal(len(M.B)) @ M.B for M in (total, cells) for _ in range(20)]
    # Corners with equal totals are equivalent under the rule, so only their totals are compared.
    minimizers = [(corners @ goal).argmin() for goal in goals]
    expected = np.var(corners[minimizers].sum(axis=1), ddof=1)
    assert decision.shares["analysis 1"] == pytest.approx(expected, rel=1e-6)
    assert 6 * decision.shares["analysis 2"] > 2 * 40**2


def test_general_rule_radius_reaches_nearest_nonnegative_table():
    # the nearest table has 0 in place of -30, and the noise of a count has variance 2
    assert spread([-30.0, 20.0, 10.0]).shares["radius"] == pytest.approx(
        30 / math.sqrt(2), rel=1e-6
    )


def test_general_rule_with_bad_arguments_is_refused():
    # one answer leaves the other cells unbounded, unless the number of records is limited
    one_row = mechanism([[1, 1, 0, 0, 0, 0]])
    assert spread([5.0], look=one_row, max_records=1000).choice is not None
    for answers, options, words in (
        ([5.0], {}, "unbounded"),
        ([1.0, 2.0], {}, "shape"),
        ([1.0], {"draws": 1}, "draws"),
    ):
        with pytest.raises(PlanError, match=words):
            spread(answers, look=one_row, **options)
