"""Exact samplers of discrete Gaussian and Laplace noise: laws, layout and limits.

The statistics reject a correct law with probability 1e-6 per p-value; wrong laws differ by many
standard deviations.
"""

import inspect
from collections.abc import Callable
from fractions import Fraction
from math import erfc, isqrt, sqrt

import numpy as np
import pytest
import scipy  # loads scipy.stats on first use
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.errors import PlanError
from engine.release import discrete_gaussian, noise
from engine.release.noise import discrete_laplace

FALSE_ALARM = 1e-6
DRAWS = 600_000  # detects a standard deviation that is wrong by 1 %
VARIANCES = [Fraction(1, 10), Fraction(1, 2), 1, 3, Fraction(1000, 7), 10**6, 2**40, 2**60, 2**62]
SCALES = [Fraction(1, 3), 1, Fraction(7, 2), 1000, 2**30 + 1]


def gaussian_cdf(edges, variance):
    """Return P(K <= edge) for discrete Gaussian noise K and every edge.

    For large variances it is an integral by the midpoint rule, with an error of 1 / (24 variance).
    """
    if variance > 10**6:
        return np.array([erfc(-(float(edge) + 0.5) / sqrt(2 * variance)) / 2 for edge in edges])
    reach = 12 * isqrt(int(variance)) + 40
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-(support.astype(float) ** 2) / (2 * float(variance)))
    return (np.cumsum(weights) / weights.sum())[edges + reach]


def laplace_cdf(edges, scale):
    below = np.exp(-np.abs(edges + (edges >= 0)) / float(scale)) / (1 + np.exp(-1 / float(scale)))
    return np.where(edges < 0, below, 1 - below)


def chi_squared_bins(cdf, parameter, *, spread, draws):
    """Return bins for a chi-squared test: their edges, and the probability of each bin.

    The first and the last bin are the tails, in which at least 20 of ``draws`` are expected.  The
    bins differ from the bins of the sampler.
    """
    edges = np.unique(np.rint(spread * np.linspace(-4.2, 4.2, 31)).astype(np.int64))
    below = cdf(edges, parameter)
    use = (below * draws >= 20) & ((1 - below) * draws >= 20)
    return edges[use], np.diff(below[use], prepend=0, append=1)


def fit_pvalue(samples, cdf, parameter, *, spread):
    """Return the p-value of a chi-squared test of samples against a distribution function."""
    edges, expected = chi_squared_bins(cdf, parameter, spread=spread, draws=len(samples))
    observed = np.bincount(np.searchsorted(edges, samples), minlength=len(expected))
    return scipy.stats.chisquare(observed, expected * len(samples)).pvalue


def same_law_pvalue(first, second, *, spread):
    """Return the p-value of a chi-squared test that two samples have one distribution."""
    edges = np.unique(np.rint(spread * np.linspace(-3, 3, 25)).astype(np.int64))
    counts = [
        np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1) for x in (first, second)
    ]
    return scipy.stats.chi2_contingency(counts).pvalue


def half_shift(draws, sigma, generator):
    """Return draws shifted up: by 0 or 1 at random if sigma < 1000, otherwise by half a bin.

    Half a bin is half the width of a bin of `chi_squared_bins`.
    """
    return draws + (
        generator.integers(0, 2, len(draws)) if sigma < 1000 else int(sigma * 8.4 / 30 / 2)
    )


def sign_bias(draws, generator):
    """Return draws with the sign of a tenth of the negative draws removed."""
    return np.where((draws < 0) & (generator.random(len(draws)) < 0.1), -draws, draws)


def zero_twice(draws):
    """Return draws with every zero duplicated, as if the sampler accepted +0 and -0."""
    return np.append(draws, np.zeros(np.count_nonzero(draws == 0), dtype=np.int64))


BETWEEN = {Fraction(1, 2), 3, 10**6, 2**60}  # variances with samplers similar to their neighbours


@pytest.mark.parametrize(
    "variance",
    [pytest.param(v, id=str(v), marks=[pytest.mark.full] * (v in BETWEEN)) for v in VARIANCES],
)
def test_gaussian_draws_follow_their_law_alone(variance):
    sigma = float(variance) ** 0.5
    generator = np.random.default_rng(1)
    draws = discrete_gaussian(variance=variance, size=DRAWS)
    assert draws.dtype == np.int64
    assert draws.shape == (DRAWS,)
    assert fit_pvalue(draws, gaussian_cdf, variance, spread=sigma) > FALSE_ALARM

    wrong_samples = [half_shift(draws, sigma, generator), sign_bias(draws, generator)]
    for sigma_factor in (Fraction(99, 100), Fraction(101, 100)):
        wrong_variance = variance * sigma_factor**2
        wrong_samples.append(discrete_gaussian(variance=wrong_variance, size=DRAWS))
    if variance < 1000:  # otherwise, too few draws are 0
        wrong_samples.append(zero_twice(draws))
    for samples in wrong_samples:
        assert fit_pvalue(samples, gaussian_cdf, variance, spread=sigma) < FALSE_ALARM


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_laplace_draws_follow_their_law_alone(scale):
    spread = float(scale)
    draws = discrete_laplace(scale=scale, size=DRAWS)
    assert fit_pvalue(draws, laplace_cdf, scale, spread=spread) > FALSE_ALARM
    shifted = half_shift(draws, scale, np.random.default_rng(2))
    assert fit_pvalue(shifted, laplace_cdf, scale, spread=spread) < FALSE_ALARM
    for factor in (Fraction(98, 100), Fraction(102, 100)):
        wrong_draws = discrete_laplace(scale=scale * factor, size=DRAWS)
        assert fit_pvalue(wrong_draws, laplace_cdf, scale, spread=spread) < FALSE_ALARM


def test_draws_have_independent_bits_and_signs():
    draws = discrete_gaussian(variance=2**62, size=400_000)
    for shift in range(0, 28, 4):  # the bits of a draw far below sigma, 2^31, are uniform
        four_bits = (draws >> shift) & 15
        frequencies = np.bincount(four_bits, minlength=16)
        assert scipy.stats.chisquare(frequencies).pvalue > FALSE_ALARM
    # Independent draws have few equal values. Equal random bits for two chunks of draws would give
    # tens of thousands.
    assert len(np.unique(draws)) > len(draws) - 100
    sign_products = np.sign(draws[1:]) * np.sign(draws[:-1])
    equal_signs = int(np.count_nonzero(sign_products > 0))
    assert scipy.stats.binomtest(equal_signs, len(sign_products)).pvalue > FALSE_ALARM


@pytest.mark.needs("opendp")
@pytest.mark.parametrize("scale", [1.5, 2.0**31])
def test_gaussian_draws_agree_with_opendp(scale):
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    opendp_draws = np.array(dp.m.make_gaussian(*space, scale=scale)([0] * 15_000))
    variance = Fraction(scale) ** 2
    draws = discrete_gaussian(variance=variance, size=DRAWS)
    assert same_law_pvalue(opendp_draws, draws, spread=scale) > FALSE_ALARM
    wrong_draws = discrete_gaussian(variance=variance * Fraction(9, 10) ** 2, size=DRAWS)
    assert same_law_pvalue(opendp_draws, wrong_draws, spread=scale) < FALSE_ALARM


@pytest.mark.needs("opendp")
def test_laplace_draws_agree_with_opendp():
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    opendp_draws = np.array(dp.m.make_laplace(*space, scale=2.5)([0] * 15_000))
    draws = discrete_laplace(scale=Fraction(5, 2), size=DRAWS)
    assert same_law_pvalue(opendp_draws, draws, spread=2.5) > FALSE_ALARM
    wrong_draws = discrete_laplace(scale=Fraction(9, 4), size=DRAWS)
    assert same_law_pvalue(opendp_draws, wrong_draws, spread=2.5) < FALSE_ALARM


def gaussian_envelope(variance):
    return noise._envelope(
        power=2, rate=1 / (2 * Fraction(variance)), floor_scale=isqrt(int(variance))
    )


def laplace_envelope(scale):
    return noise._envelope(power=1, rate=1 / Fraction(scale), floor_scale=int(scale))


def seeded_bytes(seed) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(1000, 7), 2**60], ids=str)
def test_law_is_exact_if_integers_decide_every_draw(variance):
    # With a margin of 2, every draw is close to the threshold, so integers decide it.
    draws = noise._draw(
        gaussian_envelope(variance), size=12_000, entropy=seeded_bytes(3), margin=2.0
    )
    assert fit_pvalue(draws, gaussian_cdf, variance, spread=float(variance) ** 0.5) > FALSE_ALARM
    wrong_variance = variance * Fraction(110, 100) ** 2
    wrong_sigma = float(wrong_variance) ** 0.5
    assert fit_pvalue(draws, gaussian_cdf, wrong_variance, spread=wrong_sigma) < FALSE_ALARM


def record_exact_decisions(monkeypatch):
    """Return a list to which every decision by integers appends its arguments from now on."""
    calls, decide = [], noise._uniform_below

    def record(*arguments, **options):
        calls.append(arguments)
        return decide(*arguments, **options)

    monkeypatch.setattr(noise, "_uniform_below", record)
    return calls


def test_close_float_decisions_are_left_to_integers(monkeypatch):
    exact_calls = record_exact_decisions(monkeypatch)
    words = np.frombuffer(seeded_bytes(4)(8 * 1_000), dtype=np.uint64)
    # Words closer to the acceptance threshold than the margin are decided by integers; with a
    # margin of 2 these are all words.
    for margin, fewest, most in ((0.0, 0, 5), (2.0**-6, 1, 100), (2.0, 1_000, 100_000)):
        exact_calls.clear()
        noise._propose(gaussian_envelope(1000), words, entropy=seeded_bytes(5), margin=margin)
        assert fewest <= len(exact_calls) <= most


def word_of_proposal(envelope, value, head):
    """Return the 64-bit word from which the sampler proposes ``value`` >= 0.

    ``head`` are the leading bits of the uniform number that decides whether it is accepted.
    """
    entry = int(np.flatnonzero(envelope.bin_of == value >> envelope.width_bits)[0])
    place = value & ((1 << envelope.width_bits) - 1)
    return (head << (64 - envelope.head_bits)) | (place << (noise.ENTRY_BITS + 1)) | entry


def acceptance_threshold(envelope, value):
    """Return 2^head_bits times the probability that a proposed value is accepted.

    The error of the result is below 2^-30.
    """
    bound = Fraction(envelope.height, int(envelope.counts[value >> envelope.width_bits]))
    low, _ = noise._exp_enclosure(
        envelope.rate * value**envelope.power, bits=envelope.head_bits + 40
    )
    return bound * Fraction(low, 1 << 40)


@pytest.mark.parametrize(
    "envelope",
    [gaussian_envelope(Fraction(1, 3)), gaussian_envelope(3), laplace_envelope(2)],
    ids=["gaussian-1/3", "gaussian-3", "laplace-2"],
)
def test_margin_leaves_close_decisions_to_integers(monkeypatch, envelope):
    """Floats decide by the leading bits of a uniform number unless it is near the threshold.

    Within 2^-30 of the threshold, integers decide.
    """
    exact_calls = record_exact_decisions(monkeypatch)
    margin = inspect.signature(noise._draw).parameters["margin"].default
    for value in range(1, min(4, len(envelope.counts))):
        threshold = int(acceptance_threshold(envelope, value))
        for power, is_close in (
            (-45, True),
            (-36, True),
            (-31, True),
            (-29, False),
            (-20, False),
        ):
            distance = 2 ** (envelope.head_bits + power)
            for leading_bits in (threshold - distance, threshold + distance):
                exact_calls.clear()
                words = np.array([word_of_proposal(envelope, value, leading_bits)], np.uint64)
                proposals, _ = noise._propose(
                    envelope, words, entropy=seeded_bytes(9), margin=margin
                )
                assert proposals.tolist() == [value]
                assert bool(exact_calls) == is_close


def test_margin_exceeds_float_error_of_acceptance():
    """The error of the float threshold of `_propose` is far below the margin."""
    for envelope in (
        gaussian_envelope(Fraction(1, 3)),
        gaussian_envelope(1000),
        laplace_envelope(Fraction(7, 2)),
    ):
        end = len(envelope.counts) << envelope.width_bits
        four_values_per_bin = range(0, end, 1 << max(envelope.width_bits - 2, 0))
        for value in four_values_per_bin:
            ratio = envelope.height / envelope.counts[value >> envelope.width_bits]
            probability = float(
                ratio * np.exp(-float(envelope.rate) * float(value) ** envelope.power)
            )
            exact_probability = acceptance_threshold(envelope, value) / 2**envelope.head_bits
            error = abs(Fraction(probability) - exact_probability)
            assert error < 2**-45 < noise.MARGIN / 2**10


def propose_by_integers(envelope, words, *, entropy):
    """Yield (proposed value, whether it is accepted) of each word, computed without floats."""
    for word in map(int, words):
        bin_, word = int(envelope.bin_of[word % noise.TABLE_ENTRIES]), word // noise.TABLE_ENTRIES
        negative, word = word % 2, word // 2
        head, place = divmod(word, 1 << envelope.width_bits)
        if bin_ == len(envelope.counts):
            m, bound = noise._sample_tail(envelope, entropy=entropy)
        else:
            m = (bin_ << envelope.width_bits) + place
            bound = Fraction(envelope.height, int(envelope.counts[bin_]))
        gamma, bits = envelope.rate * m**envelope.power, envelope.head_bits
        accepted = noise._uniform_below(bound, gamma, head=head, head_bits=bits, entropy=entropy)
        yield (-m if negative else m), accepted and not (negative and m == 0)


@pytest.mark.parametrize("margin", [noise.MARGIN, 2.0], ids=["floats", "integers"])
@pytest.mark.parametrize(
    "envelope",
    [gaussian_envelope(3), gaussian_envelope(2**96), laplace_envelope(2**48)],
    ids=["gaussian-3", "gaussian-2^96", "laplace-2^48"],
)
def test_float_filter_decides_as_integers_do(envelope, margin):
    """At scales above the public limit, 4 leading bits leave 1 decision in 16 to later bits."""
    words = np.frombuffer(seeded_bytes(4)(8 * 6_000), dtype=np.uint64)
    values, accepted = noise._propose(envelope, words, entropy=seeded_bytes(5), margin=margin)
    expected = propose_by_integers(envelope, words, entropy=seeded_bytes(5))
    assert list(zip(values.tolist(), accepted.tolist(), strict=True)) == list(expected)


# Sum of exp(-k^2 / (2 sigma^2)), or of exp(-|k| / scale), over all integers k, divided by sigma or
# the scale if these are large.
GAUSSIAN_MASS = sqrt(2 * np.pi)
LAPLACE_MASS = 2.0


@pytest.mark.parametrize(
    ("envelope", "cdf", "parameter", "spread", "mass"),
    [
        (gaussian_envelope(1000), gaussian_cdf, 1000, sqrt(1000), GAUSSIAN_MASS),
        (gaussian_envelope(2**60), gaussian_cdf, 2**60, 2**30, GAUSSIAN_MASS),
        (laplace_envelope(2**30), laplace_cdf, 2**30, 2**30, LAPLACE_MASS),
    ],
    ids=["gaussian-1000", "gaussian-2^60", "laplace-2^30"],
)
def test_tail_proposals_follow_the_law(envelope, cdf, parameter, spread, mass):
    words = np.frombuffer(seeded_bytes(6)(8 * 8_000), dtype=np.uint64).copy()
    words |= np.uint64(noise.TABLE_ENTRIES - 1)  # the last entry of the table is the tail
    values, accepted = noise._propose(envelope, words, entropy=seeded_bytes(7), margin=noise.MARGIN)
    start = len(envelope.counts) << envelope.width_bits
    assert abs(values).min() >= start

    tail = cdf(np.array([-start]), parameter)[0]  # P(K >= start)
    # Expected share of the proposals that are accepted.
    rate = envelope.height / 2**envelope.width_bits * tail * mass * spread
    successes = int(accepted.sum())
    assert scipy.stats.binomtest(successes, len(accepted), rate).pvalue > FALSE_ALARM
    assert scipy.stats.binomtest(successes, len(accepted), 1.4 * rate).pvalue < FALSE_ALARM

    edges = start + np.rint(spread * np.linspace(0.03, 0.5, 8)).astype(np.int64)
    bin_probabilities = np.diff(1 - cdf(-edges - 1, parameter) / tail, prepend=0, append=1)
    observed = np.bincount(
        np.searchsorted(edges, abs(values[accepted])), minlength=len(bin_probabilities)
    )
    expected = bin_probabilities * observed.sum()
    assert scipy.stats.chisquare(observed, expected).pvalue > FALSE_ALARM
    assert scipy.stats.chisquare(observed[::-1], expected).pvalue < FALSE_ALARM


def exp_by_series(gamma, *, terms=200):
    """Return exp(-gamma) as a Fraction with an error below 2^-400 for gamma up to 20."""
    term = total = Fraction(1)
    for n in range(1, terms):
        term *= -gamma / n
        total += term
    return total


@given(gamma=st.fractions(0, 20, max_denominator=10**6), bits=st.integers(1, 300))
@example(gamma=Fraction(20), bits=20)
@example(gamma=Fraction(19), bits=20)
@example(gamma=Fraction(12), bits=20)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_exp_enclosure_contains_exponential(gamma, bits):
    low, high = noise._exp_enclosure(gamma, bits=bits)
    assert low <= exp_by_series(gamma) * 2**bits <= high <= low + 3


@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(1, 3), Fraction(35, 4)])
@pytest.mark.parametrize("head_bits", [12, 49])
@pytest.mark.parametrize("above", [False, True], ids=["below", "above"])
def test_uniform_below_extends_its_leading_bits(gamma, head_bits, above):
    bound = Fraction(2, 3)
    # The uniform number differs from the acceptance probability in the last digit only.
    digits = int(bound * exp_by_series(gamma) * 2 ** (head_bits + 64)) + above
    # The sampler draws the last 64 bits as two words of 32 bits, and zeros after them.
    later_words = iter([(digits >> 32) & 0xFFFFFFFF, digits & 0xFFFFFFFF] + [0] * 9)

    def later_bytes(count):
        return next(later_words).to_bytes(count, "big")

    is_below = noise._uniform_below(
        bound, gamma, head=digits >> 64, head_bits=head_bits, entropy=later_bytes
    )
    assert is_below is not above


@given(st.booleans(), st.integers(-39, 40), st.fractions(1, 2, max_denominator=1000))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_envelope_lies_above_the_law(gaussian, power, mantissa):
    scale = min(mantissa * Fraction(2) ** power, Fraction(2**40))
    envelope = gaussian_envelope(scale**2) if gaussian else laplace_envelope(scale)
    assert envelope.counts.sum() + 1 == noise.TABLE_ENTRIES == len(envelope.bin_of)
    np.testing.assert_array_equal(np.bincount(envelope.bin_of), [*envelope.counts, 1])
    assert 16 << envelope.width_bits > scale
    assert envelope.head_bits >= 12
    assert len(envelope.counts) < 256
    tail_height = Fraction(1, 32)
    for bin_number, bin_height in enumerate([*map(int, envelope.counts), tail_height]):
        start = bin_number << envelope.width_bits
        _, largest_exp = noise._exp_enclosure(envelope.rate * start**envelope.power, bits=100)
        assert envelope.height * largest_exp <= bin_height * 2**100


@pytest.mark.parametrize(
    ("draw", "name"), [(discrete_gaussian, "variance"), (discrete_laplace, "scale")]
)
def test_samplers_draw_bits_only_from_operating_system(draw, name, monkeypatch):
    parameters = inspect.signature(draw).parameters
    assert set(parameters) == {name, "size", "entropy"}
    assert parameters["entropy"].default is None
    np.random.seed(0)
    first = draw(**{name: 2**30}, size=50)
    np.random.seed(0)
    assert not np.array_equal(first, draw(**{name: 2**30}, size=50))
    repeated_draws = []
    for _ in range(2):
        monkeypatch.setattr(noise.os, "urandom", seeded_bytes(8))
        repeated_draws.append(draw(**{name: 2**30}, size=100_000))
    np.testing.assert_array_equal(*repeated_draws)


def test_gaussian_draws_have_requested_size():
    for size in (0, 1, 7, np.int32(5)):
        assert discrete_gaussian(variance=1, size=size).shape == (size,)


def test_variance_of_type_int64_does_not_overflow():
    assert discrete_gaussian(variance=np.int64(2**62), size=100).std() > 2**30


TOO_LONG_TO_PRINT = pytest.param(10**9999, id="huge")


@pytest.mark.parametrize(
    "value", [0, -1, 0.5, True, "1", None, Fraction(-1, 3), Fraction(1, 2**81), TOO_LONG_TO_PRINT]
)
def test_bad_scales_are_refused(value):
    for draw, name in ((discrete_gaussian, "variance"), (discrete_laplace, "scale")):
        with pytest.raises(PlanError, match=rf"{name} is .*Give"):
            draw(**{name: value}, size=1)


@pytest.mark.parametrize("size", [-1, 1.0, True, None, (2, 3), 2**31])
def test_bad_sizes_are_refused(size):
    with pytest.raises(PlanError, match=r"size was .* from 0 to"):
        noise._checked_size(size)


def test_sizes_are_checked_by_both_laws():
    for draw in (
        lambda: discrete_gaussian(variance=1, size=-1),
        lambda: discrete_laplace(scale=1, size=-1),
    ):
        with pytest.raises(PlanError, match="size was -1"):
            draw()


def test_value_above_int64_raises(monkeypatch):
    monkeypatch.setattr(noise, "_sample_tail", lambda envelope, entropy: (1 << 63, Fraction(1)))
    tail_word = np.array([2**64 - 1], np.uint64)
    with pytest.raises(OverflowError):
        noise._propose(gaussian_envelope(1), tail_word, entropy=seeded_bytes(9), margin=0.0)
