"""Samplers of exact discrete Gaussian and discrete Laplace noise.

The samplers draw an integer k with probability proportional to f(|k|), where f(m) = exp(-gamma(m))
and gamma(m) is the rational number m^2 / (2 variance) or m / scale.  They use rejection sampling:
proposals come from a histogram that lies above f, with one 64-bit random word per proposal.

The histogram has bins of w = 2^b integers: bin j contains the integers m from j w to (j + 1) w - 1.
A table of 2^14 entries selects the bin; c_j of its entries select bin j.  From the lowest bit, a
random word consists of

    14 bits   index of a table entry, which selects the bin
     1 bit    sign; minus zero is rejected, because zero would otherwise be proposed twice
     b bits   position in the bin, which determines m
     r bits   leading bits of a uniform number u in [0, 1); the proposal is accepted if
              u < height f(m) / c_j

The output distribution is exact:
    * c_j is at least height f(j w), the maximum over the bin.  Therefore height f(m) / c_j is at
      most 1, and P(m is proposed and accepted) = 2^-14 (height / w) f(m) in every bin.  The
      distribution is exact for all c_j with this property, so they are computed in floating point
      and rounded up.
    * The last table entry selects the tail, that is all integers after the bins: with probability
      1/2 the first 16 w of them, with probability 1/4 the next 16 w, and so on without end.  In the
      tail f falls by more than half over 16 w integers, so the histogram lies above f.  The
      distribution is therefore not truncated.
    * "u < p" is decided in float64 only if the computed p, whose error is below 2^-45, is farther
      than 2^-30 from the interval of width 2^-r that contains u.  Otherwise, and always in the
      tail, exact integers decide: exp(-gamma) is enclosed in smaller and smaller intervals, and
      further bits of u are drawn, until the two intervals are disjoint.
    * Products that could exceed int64 are computed in float64 (with errors below the margin 2^-30)
      or in Python integers.  A value beyond int64, which is more than 2^22 scales away from zero at
      the largest scale, raises OverflowError and never wraps around.

By default the random bits come from the operating system in every call: there is no seed, and no
state that a fork could copy.  Two callers pass another source of bits.  A release passes a stream
that is generated from a key of 256 bits of the operating system and used for one spend.  A
rehearsal with a seed passes a stream that is generated from this seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from math import isqrt
from numbers import Rational
from reprlib import repr as short

import numpy as np
from numpy.typing import NDArray

from engine._validation import check_int
from engine.errors import PlanError

ENTRY_BITS = 14  # bits of a random word that choose an entry of a table
TABLE_ENTRIES = 1 << ENTRY_BITS
# Random words per call of the entropy source: arrays of this length fit in the processor's cache.
WORDS_PER_PASS = 1 << 15
# Upper bound of the float64 error of an acceptance probability.  If the uniform number is closer to
# the probability than this bound, exact integers decide whether it is smaller.
MARGIN = 2.0**-30
# Largest variance parameter.  The largest Laplace scale is its square root, 2^40.
MAX_VARIANCE = 1 << 80
MAX_DRAWS = 1 << 31

# Function of a number of bytes that returns as many independent uniform bytes.
Entropy = Callable[[int], bytes]


def discrete_gaussian(
    *, variance: Fraction | int, size: int, entropy: Entropy | None = None
) -> NDArray[np.int64]:
    """Draw from the discrete Gaussian N_Z(0, variance).

    P(k) is proportional to exp(-k^2 / (2 variance)).

    Parameters
    ----------
    variance : int or Fraction, from 2^-80 to 2^80
        The parameter sigma^2, in squared output units.  The variance of the draws is at most this.
    size : int, from 0 to 2^31 - 1
    entropy : source of the random bits, by default the operating system.

    Returns
    -------
    int64 array (size,), independent draws.

    Guarantee
    ---------
    If the random bits are independent and uniform, the distribution of the draws is exact: no
    floating-point error changes it.

    Source
    ------
    Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), Definition
    1.  In place of their Algorithm 3, the bits of a uniform number are drawn one after the other
    until its comparison with exp(-gamma) is decided.

    >>> draws = discrete_gaussian(variance=Fraction(5, 2), size=1000)
    >>> draws.shape, draws.dtype, bool(abs(draws).max() < 40)
    ((1000,), dtype('int64'), True)
    """
    exact = _rational(variance, name="variance", largest=MAX_VARIANCE)
    envelope = _envelope(power=2, rate=1 / (2 * exact), floor_scale=isqrt(int(exact)))
    return _draw(envelope, size=_checked_size(size), entropy=entropy or os.urandom)


def discrete_laplace(
    *, scale: Fraction | int, size: int, entropy: Entropy | None = None
) -> NDArray[np.int64]:
    """Draw from the discrete Laplace distribution: P(k) is proportional to exp(-|k| / scale).

    Parameters
    ----------
    scale : int or Fraction, from 2^-40 to 2^40
        In output units.
    size : int, from 0 to 2^31 - 1
    entropy : source of the random bits, by default the operating system.

    Returns
    -------
    int64 array (size,), independent draws.

    Guarantee
    ---------
    If the random bits are independent and uniform, the distribution of the draws is exact: no
    floating-point error changes it.

    Source
    ------
    Ghosh, Roughgarden and Sundararajan (2009), the two-sided geometric mechanism with alpha =
    exp(-1 / scale).

    >>> draws = discrete_laplace(scale=3, size=1000)
    >>> draws.shape, draws.dtype, bool(abs(draws).max() < 200)
    ((1000,), dtype('int64'), True)
    """
    exact = _rational(scale, name="scale", largest=isqrt(MAX_VARIANCE))
    envelope = _envelope(power=1, rate=1 / exact, floor_scale=int(exact))
    return _draw(envelope, size=_checked_size(size), entropy=entropy or os.urandom)


def fresh_seed() -> bytes:
    """Return 32 random bytes from the operating system: the seed of the noise of one release."""
    return os.urandom(32)


def _rational(value: object, *, name: str, largest: int) -> Fraction:
    """Return ``value`` as a Fraction; raise PlanError unless 1 / largest <= value <= largest."""
    allowed = (
        f"an int or fractions.Fraction from 2**-{largest.bit_length() - 1} to"
        f" 2**{largest.bit_length() - 1}"
    )
    if isinstance(value, bool) or not isinstance(value, Rational):
        description = f"{name} is {short(value)} ({type(value).__name__})"
        raise PlanError(
            f"{description}, but exact noise needs {allowed}. Give Fraction(x) for a float x."
        )
    # the numerator of a NumPy integer has a fixed width, and the arithmetic below would wrap around
    exact = Fraction(int(value.numerator), int(value.denominator))
    if exact <= 0:
        raise PlanError(f"{name} is zero or negative. Give {allowed}.")
    if not 1 <= largest * exact <= largest * largest:
        power = exact.numerator.bit_length() - exact.denominator.bit_length()
        raise PlanError(
            f"{name} is about 2**{power}. Give {allowed}, or choose another grid for the noise."
        )
    return exact


def _checked_size(size: object) -> int:
    """Return the number of draws as a Python int; raise PlanError if it is out of range."""
    return check_int("size", size, 0, MAX_DRAWS - 1, error=PlanError)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Envelope:
    """Histogram above the function height exp(-gamma(m)) of m = 0, 1, 2, ...

    Attributes
    ----------
    power, rate : exponent and factor of gamma(m) = rate m^power.
    height : factor of the function, chosen so that the bins fill the table.
    width_bits : b; every bin has 2^b integers.
    counts : number of table entries of each bin, shape (bins,); at least the value of the function
        at the first integer of the bin.
    bin_of : index of the bin that each table entry selects, shape (TABLE_ENTRIES,).  The last entry
        has the index ``bins``, which stands for the tail: all integers after the bins.
    """

    power: int
    rate: Fraction
    height: int
    width_bits: int
    counts: NDArray[np.int64]
    bin_of: NDArray[np.int64]

    @property
    def head_bits(self) -> int:
        """Number of bits of a random word that are used as the first bits of the uniform number u.

        The number is 12 at the largest scale and 49 at the smallest scale.
        """
        return 63 - ENTRY_BITS - self.width_bits


def _envelope(*, power: int, rate: Fraction, floor_scale: int) -> _Envelope:
    """Return the histogram from which proposals are drawn.

    The width of a bin is 1/16 to 1/8 of the scale, and at least one integer.  `height` is chosen so
    that the bins fill the table.  The last bin ends where height exp(-gamma) falls below 2^-5.

    Parameters
    ----------
    power, rate : exponent and factor of gamma(m) = rate m^power.
    floor_scale : scale of the noise, rounded down.
    """
    # 16 bins are wider than the scale, so in the tail (the integers after the last bin) the density
    # exp(-gamma) falls by more than half every 16 bins, as `_sample_tail` requires
    width_bits = max(0, floor_scale.bit_length() - 4)
    # 256 bins cover at least 16 noise scales. Beyond the last bin, height exp(-gamma) is below
    # 2^-5.
    starts = np.arange(256, dtype=np.int64) << width_bits
    densities_at_starts = np.exp(-float(rate) * starts.astype(float) ** power)
    # one table entry is for the tail, and rounding up takes at most one more per bin
    height = int((TABLE_ENTRIES - 1 - len(starts)) / densities_at_starts.sum())
    # The factor 1 + MARGIN exceeds the rounding errors, so `upper` is at least the exact value of
    # height exp(-gamma) at the first integer of each bin.
    upper = height * densities_at_starts * (1 + MARGIN)
    bins = int(np.count_nonzero(upper > 2.0**-5))
    # the last table entry selects the tail; all others select bins, and bin 0 gets the entries that
    # remain after rounding
    counts = np.ceil(upper[:bins]).astype(np.int64)
    counts[0] += TABLE_ENTRIES - 1 - counts.sum()
    bin_of = np.repeat(np.arange(bins + 1), np.append(counts, 1))
    return _Envelope(
        power=power, rate=rate, height=height, width_bits=width_bits, counts=counts, bin_of=bin_of
    )


def _draw(
    envelope: _Envelope, *, size: int, entropy: Entropy, margin: float = MARGIN
) -> NDArray[np.int64]:
    """Return the first ``size`` accepted proposals, shape (size,).

    Each random word is an independent trial.  Discarding the accepted proposals after the first
    ``size`` therefore does not change the distribution.
    """
    draws = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        missing = size - filled
        # a few words more than draws are missing, because some proposals are rejected
        n_words = min(WORDS_PER_PASS, missing + missing // 8 + 16)
        words = np.frombuffer(entropy(8 * n_words), dtype=np.uint64)
        values, is_accepted = _propose(envelope, words, entropy=entropy, margin=margin)
        accepted = values[is_accepted][:missing]
        draws[filled : filled + len(accepted)] = accepted
        filled += len(accepted)
    return draws


def _propose(
    envelope: _Envelope, words: NDArray[np.uint64], *, entropy: Entropy, margin: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return one proposal per random word and whether it is accepted.

    Returns
    -------
    values : proposed integers with their signs, shape (words,).
    is_accepted : mask of the accepted proposals, shape (words,).
    """
    # from its lowest bit, a word consists of the table entry, the sign, the position in the bin,
    # and the first bits of the uniform number u
    width_bits, head_bits = envelope.width_bits, envelope.head_bits
    signed = words.view(np.int64)
    bin_ = envelope.bin_of[signed & (TABLE_ENTRIES - 1)]
    negative = (signed & TABLE_ENTRIES) != 0
    values = (bin_ << width_bits) | ((signed >> (ENTRY_BITS + 1)) & ((1 << width_bits) - 1))
    head = (words >> np.uint64(64 - head_bits)).view(np.int64)

    # ``gap`` is 2^head_bits times (acceptance probability minus the known bits of u).  The factor
    # is a power of two, so it adds no rounding error.
    ratio = np.append(envelope.height / envelope.counts, 0.0) * 2.0**head_bits
    gap = (
        ratio[bin_] * np.exp(-float(envelope.rate) * values.astype(float) ** envelope.power) - head
    )
    slack = margin * 2.0**head_bits
    is_accepted = gap >= 1 + slack
    is_rejected = gap <= -slack
    is_tail = bin_ == len(envelope.counts)
    # exact integers decide about proposals in the tail and where floating point is too inaccurate
    for i in np.flatnonzero(is_tail | ~(is_accepted | is_rejected)):
        if is_tail[i]:
            values[i], bound = _sample_tail(envelope, entropy=entropy)
        else:
            bound = Fraction(envelope.height, int(envelope.counts[bin_[i]]))
        gamma = envelope.rate * int(values[i]) ** envelope.power
        is_accepted[i] = _uniform_below(
            bound, gamma, head=int(head[i]), head_bits=head_bits, entropy=entropy
        )
    # zero must not be proposed twice, as plus zero and as minus zero
    is_accepted &= ~(negative & (values == 0))
    return np.where(negative, -values, values), is_accepted


def _sample_tail(envelope: _Envelope, *, entropy: Entropy) -> tuple[int, Fraction]:
    """Draw a proposal m from the tail, that is from the integers after the last bin.

    The tail is divided into blocks of 16 bin widths.  Block 0 is drawn with probability 1/2, block
    1 with probability 1/4, and so on.

    Returns
    -------
    m : proposed integer without sign.
    factor : height 2^(level + 5), where m is in block ``level``.  The proposal must be accepted
        with the probability factor exp(-gamma(m)).

    Notes
    -----
    The proposal of a bin or of the tail is drawn if a random entry of a table selects it.  One
    entry selects the tail.  Block ``level`` has the share 2^-(level + 1) of this entry and is 16
    bins wide, which is 2^-(level + 5) entries per bin width.
    """
    level = 0
    while _random_bits(1, entropy=entropy):
        level += 1
    block_bits = envelope.width_bits + 4
    start = (len(envelope.counts) << envelope.width_bits) + (level << block_bits)
    m = start + _random_bits(block_bits, entropy=entropy)
    return m, Fraction(envelope.height << (level + 5))


def _uniform_below(
    bound: Fraction, gamma: Fraction, *, head: int, head_bits: int, entropy: Entropy
) -> bool:
    """Return whether u < bound exp(-gamma) for a uniform number u in [0, 1).

    More bits of u are drawn, and exp(-gamma) is computed more precisely, until the comparison is
    decided.

    Parameters
    ----------
    head : integer of the first ``head_bits`` bits of u.
    """
    while True:
        # u is in [head, head + 1) / 2^head_bits.  To compare integers, u and bound exp(-gamma) are
        # multiplied by 2^(head_bits + 16) and by the denominator of ``bound``.
        low, high = _exp_enclosure(gamma, bits=head_bits + 16)
        if (head + 1) * bound.denominator << 16 <= bound.numerator * low:
            return True
        if head * bound.denominator << 16 >= bound.numerator * high:
            return False
        head, head_bits = (head << 32) | _random_bits(32, entropy=entropy), head_bits + 32


def _exp_enclosure(gamma: Fraction, *, bits: int) -> tuple[int, int]:
    """Return a lower and an upper integer bound of 2^bits exp(-gamma) that differ by at most 3."""
    # exp(-bits) < 2^-bits
    if gamma >= bits:
        return 0, 1
    # With this number of digits the relative error is below 2^-(bits + 29).  `decimal` rounds
    # correctly, but even an error of 1,000 units in the last place would stay within the bounds.
    digits = bits // 3 + 10
    context = Context(prec=digits, rounding=ROUND_HALF_EVEN)
    exponent = context.divide(Decimal(-gamma.numerator), Decimal(gamma.denominator))
    scaled = int(context.multiply(context.exp(exponent), Decimal(1 << bits)))
    return scaled - 1, scaled + 2


def _random_bits(count: int, *, entropy: Entropy) -> int:
    """Return a uniform random integer from 0 to 2^count - 1."""
    return int.from_bytes(entropy((count + 7) // 8), "big") >> (-count % 8)
