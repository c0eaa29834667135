"""Common mechanisms, chains and decisions against dense linear algebra and the numbers of the paper."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.matrix_rules import NestedChain, NestedRule, census_cascade, spread_rule, threshold_rule
from engine.choice import CommonMechanism, LinearMechanism
from engine.choice.common_mechanism import upper_bound
from engine.choice.linear import recreation, residual, round_up
from engine.choice.rivals import exponential_probabilities, reserved_look
from engine.errors import NotAnswerable, PlanError

SEEDS = st.integers(0, 2**32 - 1)


def marginals(sizes, ways):
    """All k-way marginals on a small domain, one row per cell."""
    tables = []
    for kept in itertools.combinations(range(len(sizes)), ways):
        rows = np.ones((1, 1))
        for i, size in enumerate(sizes):
            rows = np.kron(rows, np.eye(size) if i in kept else np.ones((1, size)))
        tables.append(rows)
    return np.vstack(tables)


def mechanism(rows, variance=1.0):
    return LinearMechanism(rows, np.eye(len(rows)) * variance)


def random_mechanism(rng, cells, *, rank=None):
    """Correlated noise of unequal levels on one row more than the rank, so that the rows are dependent."""
    rank = rank or cells
    # directions at right angles: of nearly parallel ones, the reference with an inverse would lose all digits
    directions = np.linalg.qr(rng.standard_normal((cells, rank)))[0] * np.exp(rng.standard_normal(rank))
    rows = rng.standard_normal((rank + 1, rank)) @ directions.T
    half = rng.standard_normal((rank + 1, rank + 3)) * np.exp(rng.standard_normal((rank + 1, 1)))
    return LinearMechanism(rows, half @ half.T)


TOTAL, IDENTITY = mechanism(np.ones((1, 3))), mechanism(np.eye(3))
BINARY = (2,) * 7
PAIRS = {
    "1-way vs 2-way on 2^7": (mechanism(marginals(BINARY, 1), 7), mechanism(marginals(BINARY, 2), 21)),
    "1-way vs identity on 2^7": (mechanism(marginals(BINARY, 1), 7), mechanism(np.eye(128))),
    "1-way vs 2-way on 101 x 2": (mechanism(marginals((101, 2), 1), 2), mechanism(marginals((101, 2), 2))),
}


def cost_of(M):
    """The privacy cost matrix from its definition."""
    return M.B.T @ np.linalg.inv(M.Sigma) @ M.B


def close(given, expected, *, share=1e-9):
    np.testing.assert_allclose(given, expected, rtol=0, atol=share * np.abs(expected).max(initial=1e-300))


def assert_identities(both):
    """M* <= M_i, and M* + residual = M_i."""
    common = cost_of(both.common)
    for M, rest in zip(both.mechanisms, both.residuals, strict=True):
        assert np.linalg.eigvalsh(cost_of(M) - common)[0] >= -1e-9 * cost_of(M).max()
        close(common + cost_of(rest), cost_of(M))


def assert_maximal(B, mechanisms):
    """No larger mechanism than B x + N(0, I) is common: the null spaces of I - C_i, together, are everything.

    The range of a step down from Sigma lies in the range of every slack Sigma - C_i; it is {0} if what is orthogonal to
    those ranges spans the space.  Computed with pseudo-inverses, apart from the engine.
    """
    null = np.zeros((len(B), len(B)))
    for M in mechanisms:
        sizes, P = np.linalg.eigh(np.eye(len(B)) - B @ np.linalg.pinv(cost_of(M), rcond=1e-11, hermitian=True) @ B.T)
        assert sizes[0] > -1e-6
        null += P[:, sizes < 1e-6] @ P[:, sizes < 1e-6].T
    assert np.linalg.eigvalsh(null)[0] > 1e-3


# --- the examples and savings of the paper ---


def test_example_3_3_two_ways_to_say_the_same():
    Ma = mechanism([[1, 1], [1, 0], [0, 1]], 2)
    Mb = LinearMechanism(np.eye(2), np.array([[4, -2], [-2, 4]]) / 3)
    assert Ma.equivalent(Mb)
    assert Ma.pcost == Mb.pcost == 1.0
    close(Ma.estimates(np.eye(2)), np.array([[1, 2, -1], [1, -1, 2]]) / 3)
    close(recreation(Ma, Mb).extra, 2 / 3 * np.outer([1, -1, -1], [1, -1, -1]))


def test_example_3_8_the_better_of_two_common_mechanisms():
    M2, M3 = mechanism(np.vstack([TOTAL.B, np.eye(3)]), 2), mechanism(TOTAL.B, 2)
    common = CommonMechanism(TOTAL, M2).common
    close(common.covariance(TOTAL.B), [[1.5]])
    assert common.equivalent(mechanism(TOTAL.B, 1.5))
    assert TOTAL.answers(M3)
    assert M2.answers(M3)
    assert not M3.answers(common)


def test_example_3_12_two_marginals_share_their_total():
    tables = np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))
    both, total = CommonMechanism(*map(mechanism, tables)), mechanism(np.ones((1, 9)), 3)
    assert both.common.equivalent(total)
    for i, table in enumerate(tables):
        differences = np.array([[0, 1, -1], [-1, 1, 0]]) @ table
        close(both.residuals[i].covariance(differences), [[2, 1], [1, 2]])
        printed = LinearMechanism(differences, [[2, 1], [1, 2]])
        assert both.residuals[i].equivalent(printed)
        for_total, for_differences = recreation(both.mechanisms[i], total, printed).maps
        close(for_differences, np.array([[1, -2], [1, 1], [-2, 1]]) / 3)
        close(for_total, np.full((3, 1), 1 / 3))  # printed as (1/3, 1/3, -2/3), which does not give the total back


@pytest.mark.parametrize(("name", "share"), list(zip(PAIRS, (0.75, 0.0625, 102 / 202), strict=True)))
def test_the_share_of_the_budget_saved_is_the_printed_one(name, share):
    both = CommonMechanism(*PAIRS[name])
    assert [M.pcost for M in PAIRS[name]] == [1.0, 1.0]
    assert both.saved == pytest.approx(share, abs=1e-11)
    assert_identities(both)
    assert_maximal(both.common.B, both.mechanisms)


# --- common mechanisms in general ---


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(2, 3), st.integers(2, 6), st.floats(-8, 8), st.data())
def test_common_and_residual_split_every_mechanism(seed, count, cells, magnitude, data):
    rng = np.random.default_rng(seed)
    ranks = [data.draw(st.integers(max(1, cells - 1), cells)) for _ in range(count)]
    Ms = [random_mechanism(rng, cells, rank=rank) for rank in ranks]
    both = CommonMechanism(*(LinearMechanism(M.B, M.Sigma * 10.0**magnitude) for M in Ms))
    assert both.common.rank == max(0, cells - sum(cells - rank for rank in ranks))
    assert both.gap < 1e-7
    assert_identities(both)
    for i, M in enumerate(both.mechanisms):
        assert M.answers(both.common)
        # the law of M_i: the same mean for every table, the same covariance
        (A, A_residual), extra = both.recreation(i).maps, both.recreation(i).extra
        close(A @ both.common.B + A_residual @ both.residuals[i].B, M.B, share=1e-7)
        close(A @ A.T + A_residual @ A_residual.T + extra, M.Sigma, share=1e-8)
        assert np.linalg.eigvalsh(extra)[0] > -1e-9 * M.Sigma.max()


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_the_common_mechanism_is_maximal(count, seed):
    rng = np.random.default_rng(seed)
    both = CommonMechanism(*(random_mechanism(rng, 5) for _ in range(count)))
    assert_maximal(both.common.B, both.mechanisms)
    assert not all(M.answers(mechanism(both.common.B, 1 - 1e-6)) for M in both.mechanisms)
    with pytest.raises(AssertionError):  # and 1% less of one direction is not maximal
        assert_maximal(both.common.B * np.array([[1, 1, 1, 1, 0.99]]).T, both.mechanisms)


def test_three_covariances_at_120_degrees_have_the_round_bound():
    half_turns = [math.pi * i / 3 for i in range(3)]
    axes = [np.array([[math.cos(a), math.sin(a)]]) for a in half_turns]
    C = [0.1 * np.eye(2) + 0.9 * axis.T @ axis for axis in axes]
    sizes, _, gap = upper_bound(C)
    close(sizes, [1, 1], share=1e-7)
    assert gap < 1e-8
    close(CommonMechanism(*(LinearMechanism(np.eye(2), c) for c in C)).common.covariance(np.eye(2)), np.eye(2))


def test_where_covariances_commute_the_formula_of_stott_holds_in_any_basis():
    rng = np.random.default_rng(3)
    turn, levels = np.linalg.qr(rng.standard_normal((6, 6)))[0], rng.uniform(0.1, 5, (3, 6))
    C = [(turn * level) @ turn.T for level in levels]
    sizes, P = np.linalg.eigh(C[1] - C[0])
    Ms = [LinearMechanism(np.eye(6), c) for c in C]
    two, three = (CommonMechanism(*Ms[:n]).common.covariance(np.eye(6)) for n in (2, 3))
    close(two, (C[0] + C[1]) / 2 + (P * np.abs(sizes)) @ P.T / 2)
    close(three, (turn * levels.max(axis=0)) @ turn.T)


def test_the_result_does_not_depend_on_order_copies_units_or_undivided_cells():
    rng = np.random.default_rng(1)
    Ms = one, other = random_mechanism(rng, 5, rank=4), random_mechanism(rng, 5)
    common = cost_of(CommonMechanism(one, other).common)
    more_than_one = LinearMechanism(np.vstack([one.B, np.eye(5)]), scipy.linalg.block_diag(one.Sigma, np.eye(5)))
    for same in ((other, one), (one, other, one, other), (one, more_than_one, other)):
        close(cost_of(CommonMechanism(*same).common), common)
    for change in (np.repeat(np.eye(5), 2, axis=1), np.diag(10.0 ** rng.uniform(-3, 3, 5))):
        changed = CommonMechanism(*(LinearMechanism(M.B @ change, M.Sigma) for M in Ms)).common
        close(cost_of(changed), change.T @ common @ change)


def test_mechanisms_on_separate_cells_share_nothing():
    both = CommonMechanism(mechanism([[1, 0]]), mechanism([[0, 1]]))
    assert both.common.B.shape == (0, 2)
    assert (both.saved, both.spends) == (0, ((0.0, 1.0), (0.0, 1.0)))
    close(both.recreation(0).maps[1] @ both.residuals[0].B @ [7, 5], [7])


def test_the_recreation_gives_the_answers_of_the_chosen_mechanism():
    both = CommonMechanism(*PAIRS["1-way vs identity on 2^7"])
    x = np.random.default_rng(0).integers(0, 1000, (128, 3))
    for i, M in enumerate(both.mechanisms):
        A, A_residual = both.recreation(i).maps
        close(A @ both.common.B @ x + A_residual @ both.residuals[i].B @ x, M.B @ x)


@pytest.mark.parametrize("arguments", [(), (TOTAL,), (TOTAL, np.eye(3)), (TOTAL, mechanism(np.eye(4)))])
def test_a_common_mechanism_needs_two_mechanisms_on_one_domain(arguments):
    with pytest.raises(PlanError, match=r"at least two|\[3, 4\] cells"):
        CommonMechanism(*arguments)


# --- rank and order are relative ---


@pytest.mark.parametrize("noise", [1e-12, 1.0, 1e12])
def test_no_decision_depends_on_the_noise_level(noise):
    both = CommonMechanism(mechanism(marginals((3, 4), 1), 2 * noise), mechanism(np.eye(12), noise))
    assert [M.rank for M in (both.common, *both.residuals)] == [6, 6, 6]
    assert both.saved == pytest.approx(0.5, rel=1e-9)
    assert_identities(both)


@pytest.mark.parametrize("apart", [1e-2, 1e-5, 1e-7])
def test_nearly_parallel_rows_are_two_queries(apart):
    both = CommonMechanism(mechanism([[1, 1, 1, 1], [1, 1, 1, 1 + apart], [1, -1, 0, 0]]), mechanism(np.eye(4)))
    assert both.common.rank == both.mechanisms[0].rank == 3
    assert_identities(both)


def test_little_more_information_is_a_residual_all_the_same():
    both = CommonMechanism(mechanism(np.eye(3), 1.0), mechanism(np.eye(3), 1 + 1e-6))
    assert [rest.rank for rest in both.residuals] == [3, 0]
    assert_identities(both)


def test_an_exact_combination_is_no_new_query():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, 30))
    M = mechanism(np.vstack([rows, rng.standard_normal((20, 4)) @ rows * 1e6, np.zeros((1, 30))]))
    standard = LinearMechanism(M.standard_rows)
    assert standard.B.shape == (4, 30)
    assert standard.equivalent(M)


@pytest.mark.parametrize(("angle", "shared"), [(1e-3, 1), (1e-6, 1), (1e-8, 1), (0.0, 2)])
def test_queries_are_shared_up_to_rounding_and_no_further(angle, shared):
    rng = np.random.default_rng(0)
    frame = np.linalg.qr(rng.standard_normal((40, 40)))[0]
    tilted = np.vstack([frame[0], math.cos(angle) * frame[1] + math.sin(angle) * frame[2]])
    both = CommonMechanism(*(mechanism(rng.standard_normal((2, 2)) @ plane) for plane in (frame[:2], tilted)))
    assert both.common.rank == shared
    assert_identities(both)


def test_noise_levels_a_million_apart_keep_their_small_information():
    rows, levels = np.random.default_rng(0).standard_normal((4, 4)), 10.0 ** np.array([-3, 0, 3, 0])
    both = CommonMechanism(*(LinearMechanism(rows, np.diag(noise**2)) for noise in (levels, levels[::-1])))
    for i, M in enumerate(both.mechanisms):
        A, A_residual = both.recreation(i).maps
        errors = np.sqrt(np.diag(M.Sigma))
        close((A @ A.T + A_residual @ A_residual.T) / np.outer(errors, errors), np.eye(4), share=1e-7)


def test_a_quiet_direction_does_not_hide_a_noisy_one():
    def pair(variance):
        return LinearMechanism([[1, 1], [0, 1]], np.diag([1.0, variance]))

    assert pair(1e12).answers(pair(1.1e12))
    assert not pair(1e12).answers(pair(0.9e12))  # by 1e-13 of the largest cost
    assert not pair(1e12).equivalent(mechanism([[1, 1]]))


# --- one mechanism ---


@pytest.mark.parametrize(
    ("B", "Sigma", "words"),
    [
        ([1, 2], None, "must be a matrix"),
        ([[1, 2], [3]], None, "equal length"),
        ([[1, math.nan]], None, "finite"),
        (np.zeros((2, 0)), None, "a column or more"),
        ([[1, 2]], np.eye(2), r"must be \(1, 1\)"),
        ([[1, 2]], [[0.0]], "not above 0"),
        (np.eye(2), [[1, 0.5], [0.4, 1]], "not symmetric"),
        (np.eye(2), [[1, 1], [1, 1]], "singular or indefinite"),
        (np.eye(2), [[1, 2], [2, 1]], "singular or indefinite"),
    ],
)
def test_what_is_no_mechanism_is_refused(B, Sigma, words):
    with pytest.raises(PlanError, match=words):
        LinearMechanism(B, Sigma)


def test_a_mechanism_owns_its_matrices():
    B = np.eye(2)
    M = LinearMechanism(B)
    B[0, 0] = 9
    assert M.pcost == 1.0
    with pytest.raises(ValueError, match="read-only"):
        M.B[0, 0] = 9


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 6), st.data())
def test_cost_estimates_and_covariance_are_those_of_least_squares(seed, cells, data):
    rng = np.random.default_rng(seed)
    M = random_mechanism(rng, cells, rank=data.draw(st.integers(1, cells)))
    close(M.privacy_cost_matrix(), cost_of(M), share=1e-8)
    assert M.pcost == pytest.approx(cost_of(M).max(), rel=1e-8)
    queries = rng.standard_normal((2, len(M.B))) @ M.B
    A = M.estimates(queries)
    close(A @ M.B, queries, share=1e-8)
    close(M.covariance(queries), A @ M.Sigma @ A.T, share=1e-8)
    inverse = np.linalg.pinv(cost_of(M), rcond=1e-11, hermitian=True)
    close(M.covariance(queries), queries @ inverse @ queries.T, share=1e-6)


def test_answers_need_the_row_space_and_the_precision():
    assert IDENTITY.answers(mechanism(TOTAL.B, 3))
    assert not IDENTITY.answers(mechanism(TOTAL.B, 3 - 1e-6))
    assert not TOTAL.answers(mechanism([[1, 1, 1 + 1e-5]], 1e9))
    with pytest.raises(NotAnswerable, match="row 1 is no combination of the 1 rows"):
        TOTAL.covariance([[2, 2, 2], [1, 1, 1 + 1e-6]])
    for wrong in (lambda: TOTAL.estimates([[1, 1]]), lambda: TOTAL.answers(mechanism(np.eye(2)))):
        with pytest.raises(PlanError, match=r"2 columns, but the domain has 3|3 and 2 cells"):
            wrong()


def test_a_residual_or_recreation_of_the_wrong_parts_is_refused():
    total = mechanism(TOTAL.B, 3)
    rest = residual(IDENTITY, total)
    with pytest.raises(PlanError, match="not answerable from the whole"):
        residual(IDENTITY, TOTAL)
    for parts in ((), (total,), (rest,), (total, rest, total), (TOTAL, rest)):
        with pytest.raises(PlanError, match="do not add up"):
            recreation(IDENTITY, *parts)
    with pytest.raises(PlanError, match="do not add up"):
        recreation(total, total, mechanism([[1, -1, 0]]))


@pytest.mark.parametrize(
    ("cost", "rounded"), [(1.0000000000000002, 1.0), (2 / 3, 0.666666666667), (1.00000000000101, 1.00000000001), (0, 0)]
)
def test_a_cost_is_rounded_up_but_for_rounding_errors(cost, rounded):
    assert round_up(cost) == rounded


# --- spends and chains ---


def exact(spend):
    """A spend as the ledger counts it: the decimal number that its repr shows."""
    return Fraction(repr(spend))


@settings(max_examples=40, deadline=None)
@given(st.floats(1e-4, 1e3), st.floats(0.3, 3), st.floats(1, 1e8))
def test_look_and_residual_cost_what_the_choice_costs_alone_to_the_last_digit(variance, ratio, faint):
    levels = [np.diag([variance, variance * faint]), np.diag([variance * ratio, variance * faint])]
    own_rows = np.array([[1, 0, 0], [1, 1, 1]]), np.array([[0, 1, 0], [1, 1, 1]])
    both = CommonMechanism(*map(LinearMechanism, own_rows, levels))
    assert both.common.pcost == pytest.approx(1 / (variance * faint), rel=1e-9)
    for (look, left), M in zip(both.spends, both.mechanisms, strict=True):
        assert exact(look) + exact(left) == exact(M.pcost)
        assert left >= 0
        assert look >= both.common.pcost or look == M.pcost


def test_costs_too_far_apart_to_be_split_exactly_are_refused():
    both = CommonMechanism(mechanism(np.eye(2)), mechanism(np.eye(2), 3e7))
    with pytest.raises(PlanError, match="cannot be split exactly"):
        _ = both.spends


def test_the_census_cascade():
    chain = census_cascade(pcost=0.25)
    finer = [23, (4, 8, 5, 6), (1, 3, 4, 2, 2, 2, 3, 3, 3)]  # Age23 bins in every coarser bin
    for look, M, bins in zip(chain.looks, chain.analyses, finer, strict=False):
        close(look.covariance(M.B), np.diag(np.repeat(bins, 2)) * 4.0)
    assert [M.B.shape for M in chain.analyses] == [(2, 206), (8, 206), (18, 206), (46, 206)]
    assert [b.answers(a) and not a.answers(b) for a, b in itertools.pairwise(chain.looks)] == [True, True]
    x = np.random.default_rng(0).integers(0, 50, 206)
    for i, M in enumerate(chain.analyses):
        steps, maps = chain.path(i), chain.recreation(i).maps
        assert sum(exact(step.pcost) for step in steps) == exact(M.pcost) == Fraction(1, 4)
        close(sum(cost_of(step.mechanism) for step in steps), cost_of(M))
        close(sum(A @ step.mechanism.B @ x for A, step in zip(maps, steps, strict=True)), M.B @ x)
        close(sum(A @ A.T for A in maps), M.Sigma)
    assert [step.mechanism for step in chain.path(2)[:3]] == [step.mechanism for step in chain.path(3)[:3]]


def test_analyses_whose_looks_do_not_nest_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(PlanError, match=r"What first shares .* what second shares"):
        NestedChain(*(random_mechanism(rng, 4) for _ in range(3)), names=("first", "second", "third"))
    for analyses, names in (((TOTAL,), None), ((TOTAL, TOTAL), ["one"])):
        with pytest.raises(PlanError, match=r"1 analyses|1 names"):
            NestedChain(*analyses, names=names)


# --- decisions ---


def nested_rule(**options):
    """One-way marginals on 4 x 3, or all cells."""
    coarse, fine = mechanism(marginals((4, 3), 1), 2), mechanism(np.eye(12))
    look = CommonMechanism(coarse, fine).common
    return NestedRule(look=look, coarse=coarse, fine=fine, **{"share": 0.5, "snr": 5.0} | options)


def test_the_nested_rule_computes_the_bounds_of_section_6_2():
    rule = nested_rule(sigmas=1.0)
    B = rule.coarse.B
    answers = rule.look.B @ np.random.default_rng(0).poisson(2, 12)
    variance = np.diag(B @ np.linalg.pinv(cost_of(rule.look), hermitian=True) @ B.T)
    low, high = rule.bounds(answers)
    close((low + high) / 2, B @ np.linalg.lstsq(rule.look.B, answers)[0])
    close(high - low, 2 * np.sqrt(variance))
    by_coarse, by_fine = np.sqrt(np.diag(rule.coarse.covariance(B))), np.sqrt(B.sum(axis=1))
    ratios = low / by_fine, high / by_fine, low / by_coarse, high / by_coarse
    shares = [np.mean(ratio >= 5) for ratio in ratios]
    assert len(set(shares)) == 4
    assert list(rule.decide(answers).shares.values()) == [shares[3], shares[0], shares[1]]


@pytest.mark.parametrize(
    ("per_cell", "sigmas", "choice", "certain", "start"),
    [
        (50, 3, 1, True, "Fine"),
        (0.1, 3, None, True, "Stop"),
        (4.5, 3, 0, False, "Coarse, t"),
        (2.6, 0, 0, True, "Coarse:"),
    ],
)
def test_the_nested_rule_takes_the_fine_analysis_only_if_it_serves_the_coarse_one(
    per_cell, sigmas, choice, certain, start
):
    rule = nested_rule(sigmas=sigmas)
    decision = rule.decide(rule.look.B @ np.full(12, per_cell))
    assert (decision.choice, decision.certain) == (choice, certain)
    assert decision.sentence.startswith(start)
    assert "50.0% of 7 cells above 5 standard errors" in decision.sentence


def test_a_share_and_a_ratio_that_are_met_exactly_are_enough():
    M = mechanism(np.eye(10), 3.0)
    rule = NestedRule(look=M, coarse=M, fine=M, share=0.3, snr=math.sqrt(3.0), sigmas=0)
    counts = np.zeros((2, 10))
    counts[0, :3], counts[1, :2] = 3.0, 3.0
    np.testing.assert_array_equal(rule.fine_enough(counts), [True, False])


def test_many_looks_are_decided_at_once():
    rule = nested_rule(sigmas=0.0)
    looks = np.random.default_rng(0).poisson(2.8, (200, 12)) @ rule.look.B.T
    fine = rule.fine_enough(looks @ rule.map.T)
    assert 20 < fine.sum() < 180
    assert fine.tolist() == [rule.decide(answers).choice == 1 for answers in looks]


@pytest.mark.parametrize("option", [{"share": 0.0}, {"share": 1.1}, {"snr": 0.0}, {"snr": math.inf}, {"sigmas": -1.0}])
def test_options_of_the_nested_rule_are_checked(option):
    with pytest.raises(PlanError, match=next(iter(option))):
        nested_rule(**option)
    with pytest.raises(PlanError, match="answers has shape"):
        nested_rule().decide([1.0, 2.0])


def test_the_nested_rule_needs_nested_analyses():
    with pytest.raises(NotAnswerable):
        NestedRule(look=TOTAL, coarse=IDENTITY, fine=IDENTITY, share=0.5, snr=5)


def spread(answers, *, look=None, **options):
    analyses = mechanism(marginals((3, 2), 1), 2.0), mechanism(np.eye(6), 2.0)
    look = look or mechanism(analyses[0].B[:3], 2.0)
    return spread_rule(look=look, analyses=analyses, answers=answers, **{"draws": 6, "seed": 1} | options)


def test_the_general_rule_compares_what_can_vary_with_the_noise():
    large, small = spread([300.0, 200.0, 100.0]), spread([0.5, 0.5, 0.5], radius=1.0)
    assert large.choice is not None
    assert large.shares["radius"] == 2.0
    assert small.choice is None
    assert small.sentence.startswith("Stop")
    assert large == spread([300.0, 200.0, 100.0]) != spread([300.0, 200.0, 100.0], seed=2)
    # what the look has told already cannot vary much
    known = spread([30.0, 20.0, 10.0, 35.0, 25.0], look=mechanism(marginals((3, 2), 1), 2.0))
    assert known.shares["analysis 1"] < 4 < known.shares["analysis 2"]


def test_the_general_rule_takes_the_variance_over_extreme_tables():
    total, cells = mechanism([[1, 1]]), mechanism(np.eye(2), 3)
    decision = spread_rule(look=total, analyses=(total, cells), answers=[100.0], draws=20, seed=5)
    corners, random = np.array([[98, 0], [102, 0], [0, 98], [0, 102]]), np.random.default_rng(5)
    goals = [random.standard_normal(len(M.B)) @ M.B for M in (total, cells) for _ in range(20)]
    # the total alone does not tell the corners of one side apart; compare the answers to it only
    sums = [(corners @ goal).argmin() for goal in goals]
    expected = np.var(corners[sums].sum(axis=1), ddof=1)
    assert decision.shares["analysis 1"] == pytest.approx(expected, rel=1e-6)
    assert 6 * decision.shares["analysis 2"] > 2 * 40**2


def test_the_general_rule_says_when_no_table_fits():
    assert spread([-30.0, 20.0, 10.0]).shares["radius"] == pytest.approx(30 / math.sqrt(2), rel=1e-6)
    one_row = mechanism([[1, 1, 0, 0, 0, 0]])
    assert spread([5.0], look=one_row, max_records=1000).choice is not None
    for answers, options, words in (
        ([5.0], {}, "unbounded"),
        ([1.0, 2.0], {}, "shape"),
        ([1.0], {"draws": 1}, "draws"),
    ):
        with pytest.raises(PlanError, match=words):
            spread(answers, look=one_row, **options)


# --- rivals ---


@pytest.mark.parametrize(("name", "best"), list(zip(PAIRS, (0.738417, 0.051920, 0.504367), strict=True)))
def test_the_cheapest_look_of_equal_variances_costs_less_than_the_common_mechanism(name, best):
    both = CommonMechanism(*PAIRS[name])
    queries = both.mechanisms[0].B
    variances = np.diag(both.common.covariance(queries))
    look = reserved_look(queries, variances)
    assert look.mechanism.pcost == pytest.approx(best, abs=1e-6)
    assert look.bound <= look.mechanism.pcost <= look.bound * (1 + 1e-6)
    assert look.mechanism.pcost < both.saved
    assert (np.diag(look.mechanism.covariance(queries)) <= variances * (1 + 1e-9)).all()


def test_separate_counts_have_no_cheaper_look_than_themselves():
    look = reserved_look(np.repeat(np.eye(3), 2, axis=1), [2.0, 4.0, 8.0])
    assert (look.mechanism.pcost, look.bound) == pytest.approx((0.5, 0.5), rel=1e-6)
    for variances in ([1.0, 2.0], [1.0, 0.0, 1.0], [1.0, math.inf, 1.0]):
        with pytest.raises(PlanError, match="variances has shape"):
            reserved_look(np.eye(3), variances)


def test_thresholds_choose_by_the_noisy_total():
    choices = [threshold_rule(total, [50, 200, 1000]).choice for total in (-3.0, 49.9, 50.0, 199.0, 1e9)]
    assert choices == [0, 0, 1, 1, 3]
    with pytest.raises(PlanError, match="must not decrease"):
        threshold_rule(10, [50, 20])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=5), st.floats(0.01, 2), st.floats(0.5, 3), st.data())
def test_the_exponential_mechanism_keeps_its_cost(scores, pcost, sensitivity, data):
    shift = [data.draw(st.floats(-sensitivity, sensitivity)) for _ in scores]
    P = exponential_probabilities(scores, sensitivity=sensitivity, pcost=pcost)
    Q = exponential_probabilities(np.add(scores, shift), sensitivity=sensitivity, pcost=pcost)
    for alpha in (1.5, 2.0, 8.0):
        divergence = math.log(float((P**alpha * Q ** (1 - alpha)).sum())) / (alpha - 1)
        assert divergence <= alpha * pcost / 2 + 1e-9


def test_the_exponential_mechanism_uses_its_budget_and_checks_it():
    P, Q = (exponential_probabilities([0, score], sensitivity=1, pcost=1.0) for score in (0.0, 2.0))
    assert math.log(Q[1] / Q[0]) - math.log(P[1] / P[0]) == pytest.approx(2.0)  # epsilon = 2 sqrt(pcost)
    for sensitivity, pcost in ((0.0, 1.0), (1.0, -1.0)):
        with pytest.raises(PlanError, match="above 0"):
            exponential_probabilities([0, 1], sensitivity=sensitivity, pcost=pcost)
