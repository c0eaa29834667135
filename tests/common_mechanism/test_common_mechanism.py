"""Common mechanisms, compared with dense linear algebra and the paper."""

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.common_mechanism.common_mechanism import (
    CommonMechanism,
    LinearMechanism,
    recreation,
    upper_bound,
)
from engine.errors import PlanError
from tests.common_mechanism.matrices import (
    PAIRS,
    TOTAL,
    assert_close,
    assert_maximal,
    cost_of,
    marginals,
    mechanism,
    random_mechanism,
)

SEEDS = st.integers(0, 2**32 - 1)


def assert_identities(both):
    """Assert common <= M_i and common + residual_i = M_i for the cost matrices of mechanisms i."""
    common = cost_of(both.common)
    for M, rest in zip(both.mechanisms, both.residuals, strict=True):
        assert np.linalg.eigvalsh(cost_of(M) - common)[0] >= -1e-9 * cost_of(M).max()
        assert_close(common + cost_of(rest), cost_of(M))


# --- the examples and savings of the paper ---


def test_example_3_3_mechanisms_are_equivalent():
    Ma = mechanism([[1, 1], [1, 0], [0, 1]], 2)
    Mb = LinearMechanism(np.eye(2), np.array([[4, -2], [-2, 4]]) / 3)
    assert Ma.equivalent(Mb)
    assert Ma.pcost == Mb.pcost == 1.0
    assert_close(Ma.estimates(np.eye(2)), np.array([[1, 2, -1], [1, -1, 2]]) / 3)
    assert_close(recreation(Ma, Mb).extra, 2 / 3 * np.outer([1, -1, -1], [1, -1, -1]))


def test_example_3_8_common_mechanism_is_largest():
    M2, M3 = mechanism(np.vstack([TOTAL.B, np.eye(3)]), 2), mechanism(TOTAL.B, 2)
    common = CommonMechanism(TOTAL, M2).common
    assert_close(common.covariance(TOTAL.B), [[1.5]])
    assert common.equivalent(mechanism(TOTAL.B, 1.5))
    assert TOTAL.answers(M3)
    assert M2.answers(M3)
    assert not M3.answers(common)


def test_example_3_12_marginals_share_their_total():
    tables = np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))
    both, total = CommonMechanism(*map(mechanism, tables)), mechanism(np.ones((1, 9)), 3)
    assert both.common.equivalent(total)
    for i, table in enumerate(tables):
        differences = np.array([[0, 1, -1], [-1, 1, 0]]) @ table
        assert_close(both.residuals[i].covariance(differences), [[2, 1], [1, 2]])
        printed = LinearMechanism(differences, [[2, 1], [1, 2]])
        assert both.residuals[i].equivalent(printed)
        for_total, for_differences = recreation(both.mechanisms[i], total, printed).maps
        assert_close(for_differences, np.array([[1, -2], [1, 1], [-2, 1]]) / 3)
        # The paper prints (1/3, 1/3, -2/3), but these weights do not give the total.
        assert_close(for_total, np.full((3, 1), 1 / 3))


@pytest.mark.parametrize(
    ("name", "share"), list(zip(PAIRS, (0.75, 0.0625, 102 / 202), strict=True))
)
def test_saved_budget_share_matches_the_paper(name, share):
    both = CommonMechanism(*PAIRS[name])
    assert [M.pcost for M in PAIRS[name]] == [1.0, 1.0]
    assert both.saved == pytest.approx(share, abs=1e-11)
    assert_identities(both)
    assert_maximal(both.common.B, both.mechanisms)


# --- common mechanisms in general ---


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(2, 3), st.integers(2, 6), st.floats(-8, 8), st.data())
def test_common_part_and_residual_recreate_every_mechanism(seed, count, cells, magnitude, data):
    rng = np.random.default_rng(seed)
    ranks = [data.draw(st.integers(max(1, cells - 1), cells)) for _ in range(count)]
    Ms = [random_mechanism(rng, cells, rank=rank) for rank in ranks]
    both = CommonMechanism(*(LinearMechanism(M.B, M.Sigma * 10.0**magnitude) for M in Ms))
    assert both.common.rank == max(0, cells - sum(cells - rank for rank in ranks))
    assert both.gap < 1e-7
    assert_identities(both)
    for i, M in enumerate(both.mechanisms):
        assert M.answers(both.common)
        # The recreated mechanism has the mean and the covariance of M_i for every table.
        (A, A_residual), extra = both.recreation(i).maps, both.recreation(i).extra
        assert_close(A @ both.common.B + A_residual @ both.residuals[i].B, M.B, share=1e-7)
        assert_close(A @ A.T + A_residual @ A_residual.T + extra, M.Sigma, share=1e-8)
        assert np.linalg.eigvalsh(extra)[0] > -1e-9 * M.Sigma.max()


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_common_mechanism_is_maximal(count, seed):
    rng = np.random.default_rng(seed)
    both = CommonMechanism(*(random_mechanism(rng, 5) for _ in range(count)))
    assert_maximal(both.common.B, both.mechanisms)
    assert not all(M.answers(mechanism(both.common.B, 1 - 1e-6)) for M in both.mechanisms)
    with pytest.raises(AssertionError):  # with 1% less of one direction it is not maximal
        assert_maximal(both.common.B * np.array([[1, 1, 1, 1, 0.99]]).T, both.mechanisms)


def test_upper_bound_of_symmetric_covariances_is_identity():
    angles = [math.pi * i / 3 for i in range(3)]
    axes = [np.array([[math.cos(a), math.sin(a)]]) for a in angles]
    C = [0.1 * np.eye(2) + 0.9 * axis.T @ axis for axis in axes]
    sizes, _, gap = upper_bound(C)
    assert_close(sizes, [1, 1], share=1e-7)
    assert gap < 1e-8
    assert_close(
        CommonMechanism(*(LinearMechanism(np.eye(2), c) for c in C)).common.covariance(np.eye(2)),
        np.eye(2),
    )


def test_commuting_covariances_match_stott_formula():
    rng = np.random.default_rng(3)
    rotation, levels = np.linalg.qr(rng.standard_normal((6, 6)))[0], rng.uniform(0.1, 5, (3, 6))
    C = [(rotation * level) @ rotation.T for level in levels]
    sizes, P = np.linalg.eigh(C[1] - C[0])
    Ms = [LinearMechanism(np.eye(6), c) for c in C]
    two, three = (CommonMechanism(*Ms[:n]).common.covariance(np.eye(6)) for n in (2, 3))
    assert_close(two, (C[0] + C[1]) / 2 + (P * np.abs(sizes)) @ P.T / 2)
    assert_close(three, (rotation * levels.max(axis=0)) @ rotation.T)


def test_common_mechanism_is_invariant_to_representation():
    rng = np.random.default_rng(1)
    Ms = one, other = random_mechanism(rng, 5, rank=4), random_mechanism(rng, 5)
    common = cost_of(CommonMechanism(one, other).common)
    more_than_one = LinearMechanism(
        np.vstack([one.B, np.eye(5)]), scipy.linalg.block_diag(one.Sigma, np.eye(5))
    )
    for mechanisms in ((other, one), (one, other, one, other), (one, more_than_one, other)):
        assert_close(cost_of(CommonMechanism(*mechanisms).common), common)
    for change in (np.repeat(np.eye(5), 2, axis=1), np.diag(10.0 ** rng.uniform(-3, 3, 5))):
        changed = CommonMechanism(*(LinearMechanism(M.B @ change, M.Sigma) for M in Ms)).common
        assert_close(cost_of(changed), change.T @ common @ change)


def test_mechanisms_on_disjoint_cells_share_nothing():
    both = CommonMechanism(mechanism([[1, 0]]), mechanism([[0, 1]]))
    assert both.common.B.shape == (0, 2)
    assert (both.saved, both.spends) == (0, ((0.0, 1.0), (0.0, 1.0)))
    assert_close(both.recreation(0).maps[1] @ both.residuals[0].B @ [7, 5], [7])


def test_recreation_returns_answers_of_chosen_mechanism():
    both = CommonMechanism(*PAIRS["1-way vs identity on 2^7"])
    x = np.random.default_rng(0).integers(0, 1000, (128, 3))
    for i, M in enumerate(both.mechanisms):
        A, A_residual = both.recreation(i).maps
        assert_close(A @ both.common.B @ x + A_residual @ both.residuals[i].B @ x, M.B @ x)


@pytest.mark.parametrize(
    "arguments", [(), (TOTAL,), (TOTAL, np.eye(3)), (TOTAL, mechanism(np.eye(4)))]
)
def test_common_mechanism_with_bad_arguments_is_refused(arguments):
    with pytest.raises(PlanError, match=r"at least two|\[3, 4\]"):
        CommonMechanism(*arguments)


# --- numerical rank ---


@pytest.mark.parametrize("noise", [1e-12, 1.0, 1e12])
def test_ranks_do_not_depend_on_noise_level(noise):
    both = CommonMechanism(mechanism(marginals((3, 4), 1), 2 * noise), mechanism(np.eye(12), noise))
    # The marginals have the rank 3 + 4 - 1; of the 12 cells, 6 remain.
    assert [M.rank for M in (both.common, *both.residuals)] == [6, 6, 6]
    assert both.saved == pytest.approx(0.5, rel=1e-9)
    assert_identities(both)


@pytest.mark.parametrize("difference", [1e-2, 1e-5, 1e-7])
def test_nearly_parallel_rows_are_two_queries(difference):
    both = CommonMechanism(
        mechanism([[1, 1, 1, 1], [1, 1, 1, 1 + difference], [1, -1, 0, 0]]), mechanism(np.eye(4))
    )
    assert both.common.rank == both.mechanisms[0].rank == 3
    assert_identities(both)


def test_residual_of_nearly_equal_mechanisms_has_full_rank():
    both = CommonMechanism(mechanism(np.eye(3), 1.0), mechanism(np.eye(3), 1 + 1e-6))
    assert [rest.rank for rest in both.residuals] == [3, 0]
    assert_identities(both)


def test_standard_rows_drop_linear_combinations():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, 30))
    M = mechanism(np.vstack([rows, rng.standard_normal((20, 4)) @ rows * 1e6, np.zeros((1, 30))]))
    standard = LinearMechanism(M.standard_rows)
    assert standard.B.shape == (4, 30)
    assert standard.equivalent(M)


@pytest.mark.parametrize(("angle", "shared"), [(1e-3, 1), (1e-6, 1), (1e-8, 1), (0.0, 2)])
def test_tilted_queries_are_shared_only_within_rounding(angle, shared):
    rng = np.random.default_rng(0)
    frame = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    tilted = np.vstack([frame[0], math.cos(angle) * frame[1] + math.sin(angle) * frame[2]])
    both = CommonMechanism(
        *(mechanism(rng.standard_normal((2, 2)) @ plane) for plane in (frame[:2], tilted))
    )
    assert both.common.rank == shared
    assert_identities(both)


def test_recreation_with_extreme_noise_ratios_is_accurate():
    rows, levels = np.random.default_rng(0).standard_normal((4, 4)), 10.0 ** np.array([-3, 0, 3, 0])
    both = CommonMechanism(
        *(LinearMechanism(rows, np.diag(noise**2)) for noise in (levels, levels[::-1]))
    )
    for i, M in enumerate(both.mechanisms):
        A, A_residual = both.recreation(i).maps
        errors = np.sqrt(np.diag(M.Sigma))
        assert_close(
            (A @ A.T + A_residual @ A_residual.T) / np.outer(errors, errors), np.eye(4), share=1e-7
        )


def test_answers_detects_small_cost_of_noisy_row():
    """One row has variance 1, the other about 10^12: its cost is 10^-12 of the largest cost."""

    def with_noisy_row(variance):
        return LinearMechanism([[1, 1], [0, 1]], np.diag([1.0, variance]))

    assert with_noisy_row(1e12).answers(with_noisy_row(1.1e12))
    assert not with_noisy_row(1e12).answers(with_noisy_row(0.9e12))
    assert not with_noisy_row(1e12).equivalent(mechanism([[1, 1]]))
