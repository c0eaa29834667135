"""Budgets: values against an oracle of 40 digits, rounding directions, invalid input.

The oracle uses `decimal` and is independent of the engine: the normal tail is a Taylor series (with
guard digits for cancellation) up to 6 and a continued fraction above.
"""

import json
import math
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.errors import BudgetError
from engine.privacy import Budget, gaussian_log_delta, mu_of_guess

PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
)


def tail(x: Decimal) -> Decimal:
    """Return Phi(-x) to more than 40 digits."""
    if x < 0:
        return 1 - tail(-x)
    density = (-x * x / 2).exp() / (2 * PI).sqrt()
    if x > 6:
        fraction = x
        for k in range(400, 0, -1):
            fraction = x + k / fraction
        return density / fraction
    term, total, k = x, x, 1
    while term > Decimal("1e-170"):
        term *= x * x / (2 * k + 1)
        total, k = total + term, k + 1
    return Decimal("0.5") - density * total


def exact_delta(pcost: float, epsilon: float) -> Decimal:
    """Return delta of Gaussian noise by decimal arithmetic with 98 digits."""
    with localcontext() as context:
        # The differences of the series lose at most 9 digits (at x = 6), and PI has 100 digits.
        context.prec, context.Emin = 98, -(10**9)
        mu, e = Decimal(pcost).sqrt(), Decimal(epsilon)
        second = e / mu + mu / 2
        return tail(e / mu - mu / 2) - (e.exp() * tail(second) if second < 5000 else 0)


def test_tail_oracle_matches_erfc():
    for x in (0.0, 0.3, 1.0, 4.5, 7.0):
        assert float(tail(Decimal(x))) == pytest.approx(math.erfc(x / math.sqrt(2)) / 2, rel=1e-14)
    with localcontext() as context:
        context.prec = 98
        below = tail(Decimal(6))
        above = tail(Decimal("6.00000000000000000000000000000000000000001"))
        # `tail` uses a series up to 6 and a continued fraction above.  Both agree at 6.
        assert 0 < below / above - 1 < Decimal("7e-41")


# pcost from mu = 1e-8 to 1e3; epsilon such that delta is between 1e-300 and almost 1
CASES = [
    (mu, z)
    for mu in (1e-8, 1e-5, 1e-3, 0.03, 0.3, 0.999, 1.001, 3.0, 20.0, 150.0, 1e3)
    for z in (-3, 0, 1, 5, 15, 36.9)
]


@pytest.mark.parametrize(("mu", "z"), CASES)
def test_gaussian_curve_matches_oracle(mu, z):
    epsilon = max(mu * mu / 2 + z * mu, 0.0)
    truth = exact_delta(mu * mu, epsilon)
    # Budget.mu is the smallest double whose square is at least mu * mu
    delta = Decimal(math.exp(gaussian_log_delta(epsilon, Budget(pcost=mu * mu).mu)))
    assert delta >= truth * (1 - Decimal("1e-15"))
    assert delta <= truth * (1 + Decimal("1e-9")) + Decimal("1e-322")


@pytest.mark.parametrize(("mu", "z"), CASES)
def test_delta_and_epsilon_bound_exact_curve(mu, z):
    budget = Budget(pcost=mu * mu)
    epsilon = max(mu * mu / 2 + z * mu, 0.0)
    truth = exact_delta(budget.pcost, epsilon)
    assert truth <= Decimal(budget.delta(epsilon))
    delta = min(float(truth), 1 - 1e-9)
    epsilon_at_delta = budget.epsilon(delta)
    assert exact_delta(budget.pcost, epsilon_at_delta) <= Decimal(delta)
    if delta <= 0.01:
        slack = (1e-7 if mu <= 20 else 3e-6) * max(epsilon_at_delta, 1.0)
        smaller_epsilon = epsilon_at_delta - slack
        assert smaller_epsilon <= 0 or exact_delta(budget.pcost, smaller_epsilon) > Decimal(delta)


@settings(deadline=None, max_examples=150)
@given(st.floats(min_value=-8, max_value=3), st.floats(min_value=-8, max_value=36.9))
def test_delta_is_upper_bound(log_mu, z):
    budget = Budget.gdp(10.0**log_mu)
    epsilon = max(budget.pcost / 2 + z * budget.mu, 0.0)
    assert exact_delta(budget.pcost, epsilon) <= Decimal(budget.delta(epsilon))


@pytest.mark.parametrize("epsilon", [1e-8, 1e-3, 0.1, 1.0, 10.0, 700.0, 1e4])
@pytest.mark.parametrize("delta", [1e-300, 1e-100, 1e-12, 1e-6, 1e-2, 0.5, 0.999])
def test_budget_approx_is_maximal(epsilon, delta):
    budget = Budget.approx(epsilon=epsilon, delta=delta)
    assert budget.epsilon(delta) <= epsilon
    assert budget.delta(epsilon) <= delta
    assert exact_delta(budget.pcost, epsilon) <= Decimal(delta)
    if delta <= 0.01 and epsilon >= 1e-3:
        loss = 3e-8 if epsilon <= 10 else 3e-7
        assert exact_delta(budget.pcost * (1 + loss), epsilon) > Decimal(delta)


def test_budget_approx_matches_published_value():
    assert 1 / Budget.approx(epsilon=1, delta=1e-6).mu == pytest.approx(4.224679, abs=5e-7)


def test_delta_at_epsilon_zero_is_total_variation():
    assert Budget.gdp(0.5).delta(0) == pytest.approx(2 * NormalDist().cdf(0.25) - 1, rel=1e-8)
    assert Budget.gdp(0.5).epsilon(0.5) == 0.0


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_rho_and_mu_are_rounded_up(value):
    budget = Budget(pcost=value)
    assert Fraction(budget.rho) * 2 >= Fraction(value)
    assert Fraction(budget.mu) ** 2 >= Fraction(value)
    assert Fraction(math.nextafter(budget.mu, 0)) ** 2 < Fraction(value)
    assert Budget.zcdp(budget.rho) == budget
    if 1e-150 < value < 1e150:
        assert Fraction(Budget.gdp(value).pcost) <= Fraction(value) ** 2
        assert Budget.gdp(value).mu <= value
        assert Budget.gdp(value).pcost == pytest.approx(value**2, rel=1e-15)


LOGS = st.floats(min_value=-8, max_value=3)


@settings(deadline=None, max_examples=60)
@given(
    LOGS,
    LOGS,
    st.floats(min_value=-300, max_value=-0.05),
    st.floats(min_value=-300, max_value=-0.05),
)
def test_epsilon_and_delta_increase_with_cost(first, second, log_delta, other_delta):
    small, large = (Budget.gdp(10.0**x) for x in sorted((first, second)))
    delta, larger_delta = (10.0**x for x in sorted((log_delta, other_delta)))
    assert small.epsilon(delta) <= large.epsilon(delta) * (1 + 1e-9) + 1e-9
    assert small.epsilon(larger_delta) <= small.epsilon(delta) * (1 + 1e-9) + 1e-9
    assert small.epsilon_zcdp(delta) <= large.epsilon_zcdp(delta) * (1 + 1e-9)
    # the bound from zCDP is never smaller than the exact value for the Gaussian
    assert large.epsilon_zcdp(delta) >= large.epsilon(delta) * (1 - 1e-9) - 1e-9
    assert small.delta(1.0) <= large.delta(1.0) * (1 + 1e-12)


@settings(deadline=None, max_examples=60)
@given(LOGS, st.floats(min_value=-300, max_value=-0.05))
def test_epsilon_round_trip_never_increases_budget(log_mu, log_delta):
    budget, delta = Budget.gdp(10.0**log_mu), 10.0**log_delta
    epsilon = budget.epsilon(delta)
    assume(epsilon > 0)
    assert budget.delta(epsilon) <= delta * (1 + 1e-12)
    round_trip = Budget.approx(epsilon=epsilon, delta=delta)
    assert round_trip.epsilon(delta) <= epsilon
    assert round_trip.pcost == pytest.approx(budget.pcost, rel=1e-9) or epsilon < 1e-6


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-3])
def test_zcdp_epsilon_holds_for_discrete_gaussian(sigma, shift, delta):
    """Brute force over the integers: delta(eps) = sum of max(0, p(k) - e^eps p(k - shift))."""
    k = np.arange(-int(40 * sigma) - 10, int(40 * sigma) + 10 + shift, dtype=float)
    weights = np.exp(-(k**2) / (2 * sigma**2))
    ratio = (shift**2 - 2 * k * shift) / (2 * sigma**2)
    epsilon = Budget(pcost=shift**2 / sigma**2).epsilon_zcdp(delta)

    def exact_delta_at(epsilon):
        return np.sum(weights * -np.expm1(np.minimum(epsilon - ratio, 0))) / np.sum(weights)

    assert exact_delta_at(epsilon) <= delta
    # the bound is tight up to a factor of 2
    assert exact_delta_at(epsilon / 2) > delta


@pytest.mark.parametrize("pcost", [1e-16, 1e-3, 1.0, 100.0, 1e6])
@pytest.mark.parametrize("delta", [1e-300, 1e-6, 0.3, 0.99])
def test_zcdp_epsilon_is_optimal_over_alpha(pcost, delta):
    t = np.exp(np.linspace(-40, 40, 400_001))  # alpha - 1, on a fine grid
    bound = pcost / 2 * (1 + t) + np.log(t) - np.log1p(t) + (-math.log(delta) - np.log1p(t)) / t
    optimum = max(bound.min(), 0)
    epsilon = Budget(pcost=pcost).epsilon_zcdp(delta)
    assert optimum * (1 - 1e-7) - 1e-12 <= epsilon <= optimum * (1 + 1e-12) + 1e-12


def test_fourfold_cost_of_replaced_record_occurs():
    # one query whose answer changes from -1 to +1 if a record is replaced
    rows = np.array([[1.0, -1.0]])
    cost_of_added_record = (rows**2).sum(axis=0).max()
    cost_of_replaced_record = ((rows[:, 0] - rows[:, 1]) ** 2).sum()
    assert cost_of_replaced_record == 4.0 * cost_of_added_record
    assert Budget(pcost=cost_of_added_record).replace_one_pcost == cost_of_replaced_record


def test_extreme_budgets_give_finite_safe_numbers():
    for pcost in (5e-324, 1e-300, 1e32, 1e300, 1.7e308):
        budget = Budget(pcost=pcost)
        numbers = [
            budget.mu,
            budget.rho,
            budget.epsilon(1e-300),
            budget.epsilon(0.9),
            budget.epsilon_zcdp(1e-9),
        ]
        assert all(math.isfinite(x) and x >= 0 for x in numbers)
        assert 0 < budget.delta(1.0) <= 1
        assert budget.describe().startswith("Privacy cost")
    # delta is rounded up to the smallest positive double, never down to 0
    assert Budget(pcost=1e-4).delta(1e4) == 5e-324
    assert Budget(pcost=1e8).delta(1.0) == 1.0


@pytest.mark.parametrize(
    "make",
    [
        Budget,
        Budget.zcdp,
        Budget.gdp,
        lambda x: Budget.approx(x, 1e-6),
        Budget(1.0).at,
        Budget.pure(1.0).at,
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        0,
        0.0,
        -1,
        -1e-9,
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        np.True_,
        None,
        "1.0",
        1j,
        [1.0],
        np.ones(1),
        10**400,
    ],
)
def test_budget_with_invalid_number_is_refused(make, value):
    with pytest.raises(BudgetError, match=r"Give a finite number above 0|too large") as caught:
        make(value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("delta", [0, 0.0, 1, 1.0, 2, -0.1, math.nan, math.inf, True, None, "1e-6"])
@pytest.mark.parametrize(
    "use",
    [
        Budget(1.0).epsilon,
        Budget(1.0).epsilon_zcdp,
        lambda d: Budget.approx(1.0, d),
        lambda d: Budget(1.0, report_delta=d),
        lambda d: Budget.from_dict({"pcost": 1.0, "delta": d}),
    ],
)
def test_delta_must_lie_between_zero_and_one(use, delta):
    with pytest.raises(BudgetError, match="between 0 and 1"):
        use(delta)


@pytest.mark.parametrize("delta", [0, 0.0, 1, 1.0, 2, -0.1, math.nan, math.inf, True, "1e-6"])
def test_describe_with_invalid_delta_is_refused(delta):
    with pytest.raises(BudgetError, match="between 0 and 1"):
        Budget(1.0).describe(delta)


@pytest.mark.parametrize("epsilon", [-1, math.nan, math.inf, True, "1"])
def test_delta_with_invalid_epsilon_is_refused(epsilon):
    with pytest.raises(BudgetError, match=r"epsilon .* 0 or above"):
        Budget(1.0).delta(epsilon)


def test_budget_outside_double_range_is_refused():
    for make in (
        lambda: Budget.gdp(1e-170),
        lambda: Budget.gdp(1e170),
        lambda: Budget.approx(1e-300, 1e-200),
    ):
        with pytest.raises(BudgetError):
            make()


def test_budget_error_never_shows_table():
    table = pd.DataFrame({"age": [424242]})
    for use in (Budget, Budget(1.0).epsilon, Budget(1.0).delta, Budget.from_dict):
        with pytest.raises(BudgetError) as caught:
            use(table)
        assert "424242" not in str(caught.value)


def test_number_types_round_down():
    third = Budget(Fraction(1, 3)).pcost
    assert Fraction(third) <= Fraction(1, 3) < Fraction(math.nextafter(third, 1))
    assert Budget(np.float32(0.1)).pcost == float(np.float32(0.1))
    assert Budget(2**60 + 1).pcost == 2.0**60
    assert Budget(np.int64(2)) == Budget(pcost=2.0)
    assert type(Budget(np.float64(2)).pcost) is float


def test_stored_budget_round_trips_and_refuses_damage():
    budget = Budget.approx(0.7, 1e-9)
    assert Budget.from_dict(json.loads(json.dumps(budget.to_dict()))) == budget
    for damaged in (
        {},
        {"pcost": "1"},
        {"pcost": 1.0, "rho": 2.0},
        {"pcost": None},
        [("pcost", 1.0)],
        None,
        "pcost",
    ):
        with pytest.raises(BudgetError):
            Budget.from_dict(damaged)


@pytest.mark.parametrize("epsilon", [-1.0, True, "1.0", math.nan, 2.0])
def test_budget_of_inconsistent_pure_epsilon_is_refused(epsilon):
    assert Budget(pcost=1.0, pure_epsilon=1.0) == Budget.pure(1.0)
    with pytest.raises(BudgetError):
        Budget(pcost=1.0, pure_epsilon=epsilon)


def test_budget_is_frozen():
    with pytest.raises(AttributeError):
        Budget(1.0).pcost = 2.0


def test_describe_rounds_numbers_up():
    budget = Budget(pcost=1.23456)
    assert "Privacy cost 1.235" in budget.describe()
    assert "rho 0.6173" in budget.describe()
    (printed_percent,) = re.findall(r"at most (\S+)%", budget.describe())
    exact_percent = 100 * NormalDist().cdf(budget.mu / 2)
    assert 0 <= float(printed_percent) - exact_percent < 0.1 + 1e-6


@pytest.mark.parametrize("percent", [50.1, 51, 69.2, 90.0, 99.9])
def test_mu_of_guess_is_maximal(percent: float) -> None:
    mu = mu_of_guess(percent)
    assert Budget.gdp(mu).guess <= percent < Budget.gdp(mu * 1.001 + 1e-3).guess
    assert NormalDist().cdf(mu / 2) <= percent / 100


@pytest.mark.parametrize(
    "percent", [50, 50.0000000001, 49.9, 100, 120.0, True, "60", float("nan"), float("inf")]
)
def test_mu_of_invalid_guess_is_refused(percent: object) -> None:
    with pytest.raises(BudgetError, match="coin flip"):
        mu_of_guess(percent)


def test_guess_zcdp_is_above_laplace_and_gaussian_guess():
    for epsilon in (0.01, 0.3, 1.0, 3.0, 10.0):
        # the charge of Laplace noise in zCDP is pcost = epsilon^2
        budget = Budget(pcost=epsilon**2)
        laplace_guess = 100 / (1 + math.exp(-epsilon))
        assert budget.guess_zcdp >= max(laplace_guess, budget.guess)
