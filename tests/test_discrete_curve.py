"""The Gaussian curve for discrete noise: lemmas by exact sums, the theorem by brute force."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.special

from engine.errors import LedgerError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.plans import Plan
from engine.plans.blocks import is_on_curve
from engine.privacy import MAX_GRID_LOAD, MAX_GRID_STEP, Budget, discrete_log_delta
from engine.release import measure
from engine.workload import Attribute, Schema, Workload

SCALES = sorted({max(1, round(1.25**i)) for i in range(37)})
# Noise is summed up to this number of scales; larger noise has a probability of 1e-32.
REACH = 12


def support(scale: float) -> np.ndarray:
    """Return the integers up to ``REACH`` scales from 0."""
    return np.arange(-math.ceil(REACH * scale), math.ceil(REACH * scale) + 1)


def discrete(scale: float) -> np.ndarray:
    """Return probabilities of the discrete Gaussian on its `support`."""
    k = support(scale)
    weights = np.exp(-(k**2) / (2 * scale**2))
    return weights / math.fsum(weights)


def rounded(scale: float) -> np.ndarray:
    """Return probabilities of the rounded continuous Gaussian on the same integers."""
    k = np.abs(support(scale))
    near, far = ((k + side) / scale for side in (-0.5, 0.5))
    return scipy.special.ndtr(-near) - scipy.special.ndtr(-far)


@pytest.mark.parametrize("scale", SCALES)
def test_total_variation_per_answer_is_within_constant(scale: int) -> None:
    variation = math.fsum(np.abs(discrete(scale) - rounded(scale))) / 2
    assert variation <= 1 / (24 * scale**2)
    # The constant 1/24 is at most 3 times as large as necessary.
    assert variation >= 1 / (72 * scale**2)


@pytest.mark.parametrize("scale", SCALES)
def test_probability_ratio_is_within_both_lemmas(scale: int) -> None:
    p, q = discrete(scale), rounded(scale)
    z = support(scale) / scale
    inside = np.abs(z) <= 8
    ratio = q[inside] / p[inside]
    rounding_error = 1e-11
    assert np.all(ratio >= (1 - 1 / (24 * scale**2)) * (1 - rounding_error))
    assert np.all(ratio <= np.exp(z[inside] ** 2 / (24 * scale**2)) * (1 + rounding_error))


@pytest.mark.parametrize("scale", SCALES[:12])
@pytest.mark.parametrize("r", [0.1, 0.5, 0.9, 1.0])
def test_square_exponential_moment_is_within_lemma(scale: int, r: float) -> None:
    k = np.arange(-60 * scale, 60 * scale + 1)
    weights = -(k**2) / (2 * scale**2)
    mean = math.fsum(np.exp(weights + r * k**2 / (4 * scale**2))) / math.fsum(np.exp(weights))
    assert mean <= 2 ** (r / 2) * (1 + 1e-12)


def exact_delta(scale: int, shifts: tuple[int, ...], epsilons: np.ndarray) -> np.ndarray:
    """Return delta at every epsilon for discrete Gaussian noise on one or two shifted answers."""
    span = REACH * scale + max(map(abs, shifts))
    k = np.arange(-span, span + 1)
    total = math.fsum(np.exp(-(k**2) / (2 * scale**2)))
    logs = [-(k**2) / (2 * scale**2) - math.log(total) for _ in shifts]
    losses = [((k - d) ** 2 - k**2) / (2 * scale**2) for d in shifts]
    log_p, loss = logs[0], losses[0]
    for one, other in zip(logs[1:], losses[1:], strict=True):
        log_p, loss = np.add.outer(log_p, one).ravel(), np.add.outer(loss, other).ravel()
    p = np.exp(log_p)
    return np.array([np.sum(p * -np.expm1(np.minimum(e - loss, 0))) for e in epsilons])


CASES = [
    (1, (1,)),
    (1, (1, 1)),
    (2, (1,)),
    (2, (2, 1)),
    (3, (4,)),
    (4, (3, 3)),
    (6, (5,)),
    (6, (2, 7)),
]
EPSILONS = np.concatenate([np.linspace(0, 4, 161), np.linspace(4, 12, 60)])


def bounds(scale: int, shifts: tuple[int, ...], wrong: float = 1.0) -> np.ndarray:
    """Return the bound on delta at every epsilon of `EPSILONS`.

    Its correction terms for discrete noise are divided by ``wrong``; 1 gives the correct bound.
    """
    mu = math.sqrt(sum(d * d for d in shifts)) / scale
    load, step = len(shifts) / scale**2 / wrong, 1 / scale**2 / wrong
    return np.exp([discrete_log_delta(e, mu, load, step) for e in EPSILONS])


@pytest.mark.parametrize(("scale", "shifts"), CASES)
def test_theorem_holds_for_discrete_mechanism(scale: int, shifts: tuple[int, ...]) -> None:
    assert np.all(exact_delta(scale, shifts, EPSILONS) <= bounds(scale, shifts))


# The last case (shifts 2 and 7) is left out, because the theorem holds for it even with constants
# that are 100 times smaller.
@pytest.mark.parametrize(("scale", "shifts"), CASES[:-1])
def test_theorem_with_hundredth_of_constants_fails(scale: int, shifts: tuple[int, ...]) -> None:
    assert np.any(exact_delta(scale, shifts, EPSILONS) > bounds(scale, shifts, wrong=100.0))


def test_each_of_two_bounds_is_used() -> None:
    # On a fine grid the additive bound is smaller near epsilon 0, the multiplicative bound where
    # delta is tiny.
    # On a fine grid the additive bound is smaller near epsilon 0, the multiplicative bound where
    # delta is tiny.
    load, step, mu = 2.0**-40, 2.0**-60, 1.0
    # at epsilon 0, Gaussian noise has the delta 2 Phi(mu / 2) - 1 = 0.38292
    assert discrete_log_delta(0.0, mu, load, step) < math.log(0.383)
    variation = load / 24
    assert discrete_log_delta(10.0, mu, load, step) < 10.0 + math.log(variation)


def survey(size: int = 4, **kind: float) -> Plan:
    schema = Schema(
        [Attribute.of_size("age", size), Attribute.of_size("sex", 2, kind="categorical")]
    )
    return plan(Workload.all_ways(schema, (1, 2)), Budget(**kind or {"pcost": 1.0}))


def load_of(*plans: Plan) -> float:
    return sum(b.measurements / b.grid_noise**2 for p in plans for b in p.blocks.values())


def test_plan_load_counts_every_released_answer() -> None:
    small, large = survey(), survey(30, pcost=0.5)
    answers = sum(b.measurements for result in (small, large) for b in result.blocks.values())
    grid_noises = [b.grid_noise for result in (small, large) for b in result.blocks.values()]
    assert load_of(small, large) <= answers / min(grid_noises) ** 2
    # the loads and the costs of two releases add up, so their ratio stays within the limit
    assert load_of(small, large) <= MAX_GRID_LOAD * (small.pcost + large.pcost)
    assert is_on_curve([small.blocks, large.blocks], small.pcost + large.pcost)


def test_curve_condition_is_exact_at_its_limits() -> None:
    result = survey()
    least_pcost = load_of(result) / MAX_GRID_LOAD
    assert is_on_curve([result.blocks], least_pcost * 1.001)
    assert not is_on_curve([result.blocks], least_pcost * 0.999)
    steps = [block.grid_noise**-2 for block in result.blocks.values()]
    assert max(steps) <= MAX_GRID_STEP
    coarse_blocks = {
        space: replace(block, grid=block.grid * 2**9) for space, block in result.blocks.items()
    }
    assert not is_on_curve([coarse_blocks], 1.0)


def test_too_coarse_noise_states_zcdp() -> None:
    result = survey(pcost=1e-12)
    assert not result.on_curve
    assert result.epsilon(1e-9) == result.budget.epsilon_zcdp(1e-9)
    assert result.epsilon(1e-9) > result.budget.epsilon(1e-9)
    fine = survey()
    assert fine.epsilon(1e-6) == Budget(pcost=fine.budget.pcost).epsilon(1e-6)


def test_epsilon_total_refuses_noise_off_the_curve(tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "a.ledger")
    book.add_dataset("people", total=Budget.approx(1.0, 1e-6), kind="gdp")
    book.add_dataset("others", total=Budget.zcdp(1.0))
    result = survey(pcost=1e-12)
    records = pd.DataFrame({"age": [0, 1], "sex": [0, 1]})
    with pytest.raises(LedgerError, match="rounding"):
        measure(result, records, dataset="people", ledger=book)
    assert book.status("people").spent == 0
    assert measure(result, records, dataset="others", ledger=book).plan == result


def test_laplace_noise_is_on_the_curve() -> None:
    schema = Schema([Attribute.of_size("age", 4)])
    result = plan(Workload.all_ways(schema, (1,)), Budget.pure(1e-6), mechanism="laplace")
    assert result.on_curve
    assert result.epsilon(1e-6) <= 1e-6


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 2.0, 4.887, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-6, 1e-3])
def test_requested_epsilon_is_never_exceeded_in_print(epsilon: float, delta: float) -> None:
    budget = Budget.approx(epsilon, delta)
    (printed_epsilon,) = re.findall(r"epsilon (\S+)", budget.numbers(delta))
    assert float(printed_epsilon) == epsilon
    # The budget is not smaller than requested, either.
    assert budget.epsilon(delta) >= epsilon * (1 - 1e-9)


def test_description_names_one_epsilon() -> None:
    text = Budget(pcost=1.0).describe()
    assert text.count("epsilon") == 1
    assert "4.887" in text
