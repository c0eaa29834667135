"""Exact discrete Gaussian and discrete Laplace noise; the only module that draws randomness.

The samplers use rejection from a histogram, with one 64-bit random word per proposal.  Write
f(m) = exp(-gamma(m)), m = |k|, with gamma(m) rational: m^2 / (2 variance) or m / scale.  From low
to high, the bits of a word are

    14 bits   a table entry, which selects a bin: bin j has the w = 2^b integers from j w on, and c_j
              of the entries
     1 bit    the sign; minus zero is rejected, because zero would otherwise occur twice
     b bits   the position in the bin, which determines m
     r bits   the leading bits of a uniform u in [0, 1): the proposal is accepted if
              u < height f(m) / c_j

The output distribution is exact:
    * c_j >= height f(j w), the maximum of the bin.  So the right side is a probability, and
      P(propose m and accept it) = 2^-14 (height / w) f(m) for every bin.  Only this inequality
      matters, so the c_j may be computed in floating point.
    * The last entry represents all integers after the bins: half of it the first 16 w integers, a
      quarter the next 16 w, and so on without end.  There f falls by more than half over 16 w, so
      this is an envelope too, and the distribution is not truncated.
    * "u < p" is decided in float64 only if the interval of width 2^-r that contains u is farther
    than
      2^-30 from the computed p, whose error is below 2^-45.  Otherwise, and always after the bins,
      integers decide: exp(-gamma) is enclosed more and more tightly, and u gets further bits after
      its first r, until the two intervals are disjoint.
    * Products that could exceed int64 are computed in float64 (covered by the margin) or in Python
      integers.  A value beyond int64 (more than 2^22 scales away at the largest scale) raises
      OverflowError; it never wraps.

The random bits come from the operating system, anew for every call: there is no seed, and no state
that a fork could copy.  Only a release passes another source: a stream with a key of 256 bits from
the operating system, which is used for one spend.
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

ENTRY_BITS = 14
TABLE_ENTRIES = 1 << ENTRY_BITS
WORDS_PER_PASS = (
    1 << 15
)  # words per pass: the temporaries stay in the processor's cache, and memory stays bounded
MARGIN = 2.0**-30
MAX_VARIANCE = 1 << 80  # of a variance; the square of the largest Laplace scale
MAX_DRAWS = 1 << 31

Entropy = Callable[[int], bytes]  # number of bytes -> that many independent uniform bytes


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
    entropy : where the random bits come from, by default the operating system.

    Returns
    -------
    int64 array (size,), independent draws.

    Guarantee
    ---------
    The law is exact for independent uniform random bits; no floating-point error enters it.

    Source
    ------
    Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), Definition
    1.  Lazily revealed uniforms against exp(-gamma) replace their Algorithm 3.

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
    """Draw from the discrete Laplace law: P(k) proportional to exp(-|k| / scale).

    Parameters
    ----------
    scale : int or Fraction, from 2^-40 to 2^40
        In output units.
    size : int, from 0 to 2^31 - 1
    entropy : where the random bits come from, by default the operating system.

    Returns
    -------
    int64 array (size,), independent draws.

    Guarantee
    ---------
    The law is exact for independent uniform random bits; no floating-point error enters it.

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
    """Return 32 bytes from the operating system, as the key of the stream of one release."""
    return os.urandom(32)


def _rational(value: object, *, name: str, largest: int) -> Fraction:
    """Return the exact value; raise PlanError with the allowed range otherwise."""
    allowed = (
        f"an int or fractions.Fraction from 2**-{largest.bit_length() - 1} to"
        f" 2**{largest.bit_length() - 1}"
    )
    if isinstance(value, bool) or not isinstance(value, Rational):
        description = f"{name} is {short(value)} ({type(value).__name__})"
        raise PlanError(
            f"{description}, but exact noise needs {allowed}; Fraction(x) is the exact value of a"
            " float x."
        )
    # NumPy integers have fixed-width parts, which would wrap silently in the arithmetic below
    exact = Fraction(int(value.numerator), int(value.denominator))
    if exact <= 0:
        raise PlanError(f"{name} is zero or negative; pass {allowed}.")
    if not 1 <= largest * exact <= largest * largest:
        power = exact.numerator.bit_length() - exact.denominator.bit_length()
        raise PlanError(
            f"{name} is about 2**{power}; pass {allowed}, or choose another grid for the noise."
        )
    return exact


def _checked_size(size: object) -> int:
    """Return the number of draws as a Python int; raise PlanError if it is out of range."""
    return check_int("size", size, 0, MAX_DRAWS - 1, error=PlanError)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Envelope:
    """Histogram above height exp(-gamma(m)) for m = 0, 1, 2, ..., with gamma(m) = rate m^power."""

    power: int
    rate: Fraction
    height: int
    width_bits: int
    counts: NDArray[
        np.int64
    ]  # (bins,) table entries of each bin, at least height exp(-gamma(its first integer))
    bin_of: NDArray[
        np.int64
    ]  # (TABLE_ENTRIES,) the bin of each entry; the last entry is the tail's, numbered `bins`

    @property
    def head_bits(self) -> int:
        """Number of bits of a word for the uniform: 12 at the largest scale, 49 at the smallest."""
        return 63 - ENTRY_BITS - self.width_bits


def _envelope(*, power: int, rate: Fraction, floor_scale: int) -> _Envelope:
    """Return bins of 1/16 to 1/8 of the scale (or 1) in width, as far as height exp(-gamma) > 2^-5."""
    width_bits = max(
        0, floor_scale.bit_length() - 4
    )  # so 16 w > scale, and f falls by more than half over 16 w
    starts = np.arange(256, dtype=np.int64) << width_bits
    at_starts = np.exp(-float(rate) * starts.astype(float) ** power)
    height = int((TABLE_ENTRIES - 1 - len(starts)) / at_starts.sum())
    upper = (
        height * at_starts * (1 + MARGIN)
    )  # the slack makes these upper bounds in spite of float error
    bins = int(np.count_nonzero(upper > 2.0**-5))
    counts = np.ceil(upper[:bins]).astype(np.int64)
    counts[0] += TABLE_ENTRIES - 1 - counts.sum()
    bin_of = np.repeat(np.arange(bins + 1), np.append(counts, 1))
    return _Envelope(
        power=power, rate=rate, height=height, width_bits=width_bits, counts=counts, bin_of=bin_of
    )


def _draw(
    envelope: _Envelope, *, size: int, entropy: Entropy, margin: float = MARGIN
) -> NDArray[np.int64]:
    """Return the first `size` accepted proposals.

    Each word is an independent trial, so stopping at a number of draws does not change their
    distribution.
    """
    draws = np.empty(size, dtype=np.int64)
    filled = 0
    while filled < size:
        missing = size - filled
        words = np.frombuffer(
            entropy(8 * min(WORDS_PER_PASS, missing + missing // 8 + 16)), dtype=np.uint64
        )
        values, kept = _propose(envelope, words, entropy=entropy, margin=margin)
        found = values[kept][:missing]
        draws[filled : filled + len(found)] = found
        filled += len(found)
    return draws


def _propose(
    envelope: _Envelope, words: NDArray[np.uint64], *, entropy: Entropy, margin: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return signed proposals for n words, shape (n,), and which of them are accepted."""
    width_bits, head_bits = envelope.width_bits, envelope.head_bits
    signed = words.view(np.int64)
    bin_ = envelope.bin_of[signed & (TABLE_ENTRIES - 1)]
    negative = (signed & TABLE_ENTRIES) != 0
    values = (bin_ << width_bits) | ((signed >> (ENTRY_BITS + 1)) & ((1 << width_bits) - 1))
    head = (words >> np.uint64(64 - head_bits)).view(np.int64)

    # in units of 2^-head_bits, so that scaling adds no error
    ratio = np.append(envelope.height / envelope.counts, 0.0) * 2.0**head_bits
    gap = (
        ratio[bin_] * np.exp(-float(envelope.rate) * values.astype(float) ** envelope.power) - head
    )
    slack = margin * 2.0**head_bits
    kept = gap >= 1 + slack
    tail = bin_ == len(envelope.counts)
    for i in np.flatnonzero(tail | ~(kept | (gap <= -slack))):
        if tail[i]:
            values[i], bound = _sample_tail(envelope, entropy=entropy)
        else:
            bound = Fraction(envelope.height, int(envelope.counts[bin_[i]]))
        gamma = envelope.rate * int(values[i]) ** envelope.power
        kept[i] = _uniform_below(
            bound, gamma, head=int(head[i]), head_bits=head_bits, entropy=entropy
        )
    kept &= ~(negative & (values == 0))
    return np.where(negative, -values, values), kept


def _sample_tail(envelope: _Envelope, *, entropy: Entropy) -> tuple[int, Fraction]:
    """Return a proposal after the last bin, and height over its envelope there.

    The envelope has 2^-(level + 5) table entries per bin width.
    """
    level = 0
    while _random_bits(1, entropy=entropy):
        level += 1
    block_bits = envelope.width_bits + 4
    start = (len(envelope.counts) << envelope.width_bits) + (level << block_bits)
    return start + _random_bits(block_bits, entropy=entropy), Fraction(
        envelope.height << (level + 5)
    )


def _uniform_below(
    bound: Fraction, gamma: Fraction, *, head: int, head_bits: int, entropy: Entropy
) -> bool:
    """Return whether u < bound exp(-gamma), for the uniform u with leading bits `head`."""
    while True:
        low, high = _exp_enclosure(gamma, bits=head_bits + 16)
        if (head + 1) * bound.denominator << 16 <= bound.numerator * low:
            return True
        if head * bound.denominator << 16 >= bound.numerator * high:
            return False
        head, head_bits = (head << 32) | _random_bits(32, entropy=entropy), head_bits + 32


def _exp_enclosure(gamma: Fraction, *, bits: int) -> tuple[int, int]:
    """Return integers below and above 2^bits exp(-gamma), with a difference of at most 3."""
    if gamma >= bits:
        return 0, 1
    # 10^-digits is below 2^-(bits + 29), and gamma below bits.  The library promises correct
    # rounding; even an error of 1,000 units in the last place of exp() would stay within the one
    # unit allowed here.
    digits = bits // 3 + 10
    context = Context(prec=digits, rounding=ROUND_HALF_EVEN)
    exponent = context.divide(Decimal(-gamma.numerator), Decimal(gamma.denominator))
    scaled = int(context.multiply(context.exp(exponent), Decimal(1 << bits)))
    return scaled - 1, scaled + 2


def _random_bits(count: int, *, entropy: Entropy) -> int:
    """Return a uniform integer of `count` bits."""
    return int.from_bytes(entropy((count + 7) // 8), "big") >> (-count % 8)
