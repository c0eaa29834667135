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


def assert_identities(pair):
    """Assert common <= M_i and common + residual_i = M_i for the cost matrices of mechanisms i."""
    common = cost_of(pair.common)
    for M, rest in zip(pair.mechanisms, pair.residuals, strict=True):
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
    pair, total = CommonMechanism(*map(mechanism, tables)), mechanism(np.ones((1, 9)), 3)
    assert pair.common.equivalent(total)
    for i, table in enumerate(tables):
        differences = np.array([[0, 1, -1], [-1, 1, 0]]) @ table
        assert_close(pair.residuals[i].covariance(differences), [[2, 1], [1, 2]])
        printed = LinearMechanism(differences, [[2, 1], [1, 2]])
        assert pair.residuals[i].equivalent(printed)
        for_total, for_differences = recreation(pair.mechanisms[i], total, printed).maps
        assert_close(for_differences, np.array([[1, -2], [1, 1], [-2, 1]]) / 3)
        # The paper prints (1/3, 1/3, -2/3), but these weights do not give the total.
        assert_close(for_total, np.full((3, 1), 1 / 3))


@pytest.mark.parametrize(
    ("name", "share"), list(zip(PAIRS, (0.75, 0.0625, 102 / 202), strict=True))
)
def test_saved_budget_share_matches_the_paper(name, share):
    pair = CommonMechanism(*PAIRS[name])
    assert [M.pcost for M in PAIRS[name]] == [1.0, 1.0]
    assert pair.saved == pytest.approx(share, abs=1e-11)
    assert_identities(pair)
    assert_maximal(pair.common.B, pair.mechanisms)


# --- common mechanisms in general ---


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(2, 3), st.integers(2, 6), st.floats(-8, 8), st.data())
def test_common_part_and_residual_recreate_every_mechanism(seed, count, cells, magnitude, data):
    rng = np.random.default_rng(seed)
    ranks = [data.draw(st.integers(max(1, cells - 1), cells)) for _ in range(count)]
    Ms = [random_mechanism(rng, cells, rank=rank) for rank in ranks]
    pair = CommonMechanism(*(LinearMechanism(M.B, M.Sigma * 10.0**magnitude) for M in Ms))
    assert pair.common.rank == max(0, cells - sum(cells - rank for rank in ranks))
    assert pair.gap < 1e-7
    assert_identities(pair)
    for i, M in enumerate(pair.mechanisms):
        assert M.answers(pair.common)
        # The recreated mechanism has the mean and the covariance of M_i for every table.
        (A, A_residual), extra = pair.recreation(i).maps, pair.recreation(i).extra
        assert_close(A @ pair.common.B + A_residual @ pair.residuals[i].B, M.B, share=1e-7)
        assert_close(A @ A.T + A_residual @ A_residual.T + extra, M.Sigma, share=1e-8)
        assert np.linalg.eigvalsh(extra)[0] > -1e-9 * M.Sigma.max()


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_common_mechanism_is_maximal(count, seed):
    rng = np.random.default_rng(seed)
    pair = CommonMechanism(*(random_mechanism(rng, 5) for _ in range(count)))
    assert_maximal(pair.common.B, pair.mechanisms)
    assert not all(M.answers(mechanism(pair.common.B, 1 - 1e-6)) for M in pair.mechanisms)
    with pytest.raises(AssertionError):  # with 1% less of one direction it is not maximal
        assert_maximal(pair.common.B * np.array([[1, 1, 1, 1, 0.99]]).T, pair.mechanisms)


def test_upper_bound_of_symmetric_covariances_is_identity():
    """The long axes of the covariances have length 1 and angles of 60 degrees to each other."""
    angles = (0, math.pi / 3, 2 * math.pi / 3)
    axes = [np.array([[math.cos(angle), math.sin(angle)]]) for angle in angles]
    covariances = [0.1 * np.eye(2) + 0.9 * axis.T @ axis for axis in axes]
    eigenvalues, _, gap = upper_bound(covariances)
    assert_close(eigenvalues, [1, 1], share=1e-7)
    assert gap < 1e-8
    mechanisms = [LinearMechanism(np.eye(2), covariance) for covariance in covariances]
    assert_close(CommonMechanism(*mechanisms).common.covariance(np.eye(2)), np.eye(2))


def test_commuting_covariances_match_stott_formula():
    rng = np.random.default_rng(3)
    rotation, _ = np.linalg.qr(rng.standard_normal((6, 6)))
    eigenvalues = rng.uniform(0.1, 5, (3, 6))  # a row per covariance
    A, B, C = ((rotation * row) @ rotation.T for row in eigenvalues)
    M_A, M_B, M_C = (LinearMechanism(np.eye(6), covariance) for covariance in (A, B, C))
    # Stott: the minimal upper bound of two matrices is (A + B) / 2 + |B - A| / 2
    differences, P = np.linalg.eigh(B - A)
    common_of_two = CommonMechanism(M_A, M_B).common.covariance(np.eye(6))
    assert_close(common_of_two, (A + B) / 2 + (P * np.abs(differences)) @ P.T / 2)
    common_of_three = CommonMechanism(M_A, M_B, M_C).common.covariance(np.eye(6))
    assert_close(common_of_three, (rotation * eigenvalues.max(axis=0)) @ rotation.T)


def test_common_mechanism_is_invariant_to_representation():
    rng = np.random.default_rng(1)
    M1, M2 = random_mechanism(rng, 5, rank=4), random_mechanism(rng, 5)
    common_cost = cost_of(CommonMechanism(M1, M2).common)
    stronger_than_M1 = LinearMechanism(
        np.vstack([M1.B, np.eye(5)]), scipy.linalg.block_diag(M1.Sigma, np.eye(5))
    )
    for mechanisms in ((M2, M1), (M1, M2, M1, M2), (M1, stronger_than_M1, M2)):
        assert_close(cost_of(CommonMechanism(*mechanisms).common), common_cost)
    split_cells = np.repeat(np.eye(5), 2, axis=1)
    scaled_cells = np.diag(10.0 ** rng.uniform(-3, 3, 5))
    for change in (split_cells, scaled_cells):
        changed = [LinearMechanism(M.B @ change, M.Sigma) for M in (M1, M2)]
        changed_cost = cost_of(CommonMechanism(*changed).common)
        assert_close(changed_cost, change.T @ common_cost @ change)


def test_mechanisms_on_disjoint_cells_share_nothing():
    pair = CommonMechanism(mechanism([[1, 0]]), mechanism([[0, 1]]))
    assert pair.common.B.shape == (0, 2)
    assert pair.saved == 0
    assert pair.spends == ((0.0, 1.0), (0.0, 1.0))  # of each mechanism: common part, residual
    _, A_residual = pair.recreation(0).maps
    assert_close(A_residual @ pair.residuals[0].B @ [7, 5], [7])


def test_recreation_returns_answers_of_chosen_mechanism():
    pair = CommonMechanism(*PAIRS["1-way vs identity on 2^7"])
    x = np.random.default_rng(0).integers(0, 1000, (128, 3))
    for i, M in enumerate(pair.mechanisms):
        A, A_residual = pair.recreation(i).maps
        assert_close(A @ pair.common.B @ x + A_residual @ pair.residuals[i].B @ x, M.B @ x)


@pytest.mark.parametrize(
    "arguments", [(), (TOTAL,), (TOTAL, np.eye(3)), (TOTAL, mechanism(np.eye(4)))]
)
def test_common_mechanism_with_bad_arguments_is_refused(arguments):
    with pytest.raises(PlanError, match=r"at least two|\[3, 4\]"):
        CommonMechanism(*arguments)


# --- numerical rank ---


@pytest.mark.parametrize("noise", [1e-12, 1.0, 1e12])
def test_ranks_do_not_depend_on_noise_level(noise):
    pair = CommonMechanism(mechanism(marginals((3, 4), 1), 2 * noise), mechanism(np.eye(12), noise))
    # The marginals have the rank 3 + 4 - 1; of the 12 cells, 6 remain.
    assert [M.rank for M in (pair.common, *pair.residuals)] == [6, 6, 6]
    assert pair.saved == pytest.approx(0.5, rel=1e-9)
    assert_identities(pair)


@pytest.mark.parametrize("difference", [1e-2, 1e-5, 1e-7])
def test_nearly_parallel_rows_are_two_queries(difference):
    pair = CommonMechanism(
        mechanism([[1, 1, 1, 1], [1, 1, 1, 1 + difference], [1, -1, 0, 0]]), mechanism(np.eye(4))
    )
    assert pair.common.rank == pair.mechanisms[0].rank == 3
    assert_identities(pair)


def test_residual_of_nearly_equal_mechanisms_has_full_rank():
    pair = CommonMechanism(mechanism(np.eye(3), 1.0), mechanism(np.eye(3), 1 + 1e-6))
    assert [rest.rank for rest in pair.residuals] == [3, 0]
    assert_identities(pair)


def test_standard_rows_drop_linear_combinations():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, 30))
    M = mechanism(np.vstack([rows, rng.standard_normal((20, 4)) @ rows * 1e6, np.zeros((1, 30))]))
    standard = LinearMechanism(M.standard_rows)
    assert standard.B.shape == (4, 30)
    assert standard.equivalent(M)


@pytest.mark.parametrize(("angle", "shared"), [(1e-3, 1), (1e-6, 1), (1e-8, 1), (0.0, 2)])
def test_tilted_queries_are_shared_only_within_rounding(angle, shared):
    """Two planes of queries have one axis in common; ``angle`` lies between their other axes."""
    rng = np.random.default_rng(0)
    orthogonal, _ = np.linalg.qr(rng.standard_normal((40, 40)))
    shared_axis, axis, normal = orthogonal[:3]
    plane = np.vstack([shared_axis, axis])
    tilted = np.vstack([shared_axis, math.cos(angle) * axis + math.sin(angle) * normal])
    pair = CommonMechanism(
        mechanism(rng.standard_normal((2, 2)) @ plane),
        mechanism(rng.standard_normal((2, 2)) @ tilted),
    )
    assert pair.common.rank == shared
    assert_identities(pair)


def test_recreation_with_extreme_noise_ratios_is_accurate():
    rows = np.random.default_rng(0).standard_normal((4, 4))
    noises = np.array([1e-3, 1.0, 1e3, 1.0]), np.array([1.0, 1e3, 1.0, 1e-3])
    pair = CommonMechanism(*(LinearMechanism(rows, np.diag(noise**2)) for noise in noises))
    for i, noise in enumerate(noises):
        A, A_residual = pair.recreation(i).maps
        covariance = A @ A.T + A_residual @ A_residual.T
        assert_close(covariance / np.outer(noise, noise), np.eye(4), share=1e-7)


def test_answers_detects_small_cost_of_noisy_row():
    """One row has variance 1, the other about 10^12: its cost is 10^-12 of the largest cost."""

    def with_noisy_row(variance):
        return LinearMechanism([[1, 1], [0, 1]], np.diag([1.0, variance]))

    assert with_noisy_row(1e12).answers(with_noisy_row(1.1e12))
    assert not with_noisy_row(1e12).answers(with_noisy_row(0.9e12))
    assert not with_noisy_row(1e12).equivalent(mechanism([[1, 1]]))
