"""How far published numbers may be off: coverage, bias, and flags of numbers that should not be read alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.coverage import coverage
from engine.errors import Cancelled, LimitExceeded, NotAnswerable, PlanError
from engine.mechanisms import plan
from engine.postprocess import QualityRule, uncertainty
from engine.postprocess.residual_estimates import evidence
from engine.postprocess.uncertainty import REASONS, SHARES, hidden_tables, simulate_measurement
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import SCHEMA, measured_on, people

PAIRS = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
MANY = Schema([Attribute.of_size(name, n) for name, n in zip("abcdef", (5, 6, 7, 6, 4, 6), strict=True)])
WIDE = Schema([Attribute.of_size(name, n) for name, n in zip("abcd", (14, 10, 8, 3), strict=True)])


def counted(codes):
    """Tables of coded records, shape (attributes, records): a function from attributes to their exact table."""

    def table(names):
        shape, cells = MANY.sizes(names), codes[[MANY.order[name] for name in names]]
        at = np.ravel_multi_index(tuple(cells), shape) if shape else np.zeros(codes.shape[1], np.int64)
        return np.bincount(at, minlength=int(np.prod(shape))).reshape(shape).astype(float)

    return table


def test_intervals_of_tables_that_have_little_in_common_are_not_too_wide():
    """One attribute follows another in part, while all others know nothing of each other."""
    rng = np.random.default_rng(1)
    codes = np.stack([rng.choice(n, 6_000, p=rng.dirichlet(np.ones(n))) for n in MANY.sizes(MANY.names)])
    tied = rng.random(6_000) < 0.3
    codes[1, tied] = codes[0, tied]
    workload = Workload.all_ways(MANY, (1, 2), family="marginal")
    found = coverage(workload, Budget(pcost=4e-4), counted(codes), rehearsals=2, draws=8)[2]
    assert found["cells"] > 600
    assert 0.92 <= found["covered"] <= 0.985
    assert found["half"] < 0.46 * found["unbiased half"]  # what each table alone might hide would be .50


def test_what_attributes_have_in_common_is_learned_from_all_tables_together():
    """All follow the same in part, by two standard errors of a single table."""
    rng = np.random.default_rng(1)
    same = rng.integers(0, 3, 6_000)
    codes = [np.where(rng.random(6_000) < 0.5, same, rng.integers(0, n, 6_000)) for n in MANY.sizes(MANY.names)]
    table, workload = counted(np.stack(codes)), Workload.all_ways(MANY, (1, 2), family="marginal")
    made, true = plan(workload, Budget(pcost=4e-4), mechanism="residualplanner"), []
    for group in (g for g in workload.groups if len(g.attributes) == 2):
        own = table(group.attributes)
        rows, columns = own.sum(axis=1), own.sum(axis=0)
        even = np.outer(rows, columns) / own.sum()
        most = min(np.sum(rows**2), np.sum(columns**2)) - np.sum(even**2)
        true.append(np.sum((own - even) ** 2) / most)
    published = simulate_measurement(made, table, np.random.default_rng(0)).publish()
    hidden = hidden_tables(evidence(published.measurement), published.contrasts).values()
    assert np.median([h.odds @ SHARES for h in hidden]) == pytest.approx(np.mean(true), rel=0.2)  # alone: 0.4 of it
    assert max(h.drawn(rng).max() for h in hidden) <= max(h.variance for h in hidden)


@pytest.mark.parametrize("pcost", [0.05, 2.0])
def test_intervals_hold_about_as_often_as_they_say(pcost):
    workload = Workload.all_ways(WIDE, (1, 2), family="marginal")
    found = coverage(workload, Budget(pcost=pcost), people(WIDE, 20_000, 4), rehearsals=3, draws=8)[2]
    assert found["cells"] > 300
    assert 0.85 <= found["covered"] <= 0.985
    assert found["half"] < 1.3 * found["unbiased half"]  # few draws, large cells: nothing is gained


def test_errors_of_a_sum_are_those_of_its_query_and_not_of_its_cells():
    workload = Workload(SCHEMA).add(("a", "b"), "marginal").add(("a",), "prefix")
    found, _ = measured_on(workload, Budget(pcost=0.05), mechanism="querysmasher")
    made = found.publish().uncertainty(draws=8)
    rows = made.answers(1)
    assert rows["error"].to_numpy()[-1] == pytest.approx(float(made.table_errors([])), rel=1e-9)
    cells = made.table_errors(["a"])
    assert rows["error"].to_numpy()[0] == pytest.approx(cells[0], rel=1e-9)
    np.testing.assert_allclose(made.table_errors(["b", "a"]), made.table_errors(["a", "b"]).T)


def test_intervals_stand_beside_the_unbiased_ones():
    found, _ = measured_on(PAIRS)
    published = found.publish()
    rule = QualityRule(doubtful_cv=1e9, suppressed_cv=1e9)
    rows, plain = published.uncertainty(draws=4).answers(4, 2, 9, 0.9, rule=rule), found.answers(4, 2, 9, 0.9)
    told = ["query", "published", "error", "published_low", "published_high", "flag", "reason"]
    assert list(rows) == [*told, "answer", "std", "low", "high"]
    for name in ("answer", "std", "low", "high"):
        np.testing.assert_array_equal(rows[name], plain[name])
    np.testing.assert_array_equal(rows["published"], published.values(4, 2, 9))
    assert (rows["published_low"] >= 0).all()
    assert (rows["published_low"] <= rows["published"]).all()
    assert (rows["published_high"] > rows["published"]).all()


def test_whole_tables_have_the_errors_of_their_rounding_too():
    found, _ = measured_on(PAIRS, records=200)
    plain, integer = found.publish(), found.publish(integer=True)
    moved = integer.table(["a", "b"]) - plain.table(["a", "b"])
    one, other = (p.uncertainty(draws=3).table_errors(["a", "b"]) for p in (plain, integer))
    np.testing.assert_allclose(other**2, one**2 + moved**2, atol=1e-8)
    assert np.abs(moved).max() > 0.3


def test_bias_is_told_by_the_size_of_the_cells_and_adds_up():
    found, table = measured_on(PAIRS, Budget(pcost=0.01))
    published = found.publish()
    made = published.uncertainty(draws=10)
    bias = made.bias(["a", "b"])
    assert list(bias) == ["true", "cells", "bias", "error"]
    assert bias["cells"].sum() == pytest.approx(63)
    missed = np.mean([float(e[()]) for e in made.errors])  # over all cells of a table what the total misses
    assert (bias["cells"] * bias["bias"]).sum() == pytest.approx(missed, abs=1e-6)
    exact = table(["a", "b"])
    off = published.table(["a", "b"]) - exact
    assert bias["bias"][0] > 0  # empty cells are too large
    assert off[exact == 0].mean() > 0


def test_the_same_tables_have_the_same_errors_and_others_have_others():
    found, _ = measured_on(PAIRS)
    one, same = (found.publish().uncertainty(draws=2).table_errors(["a", "b"]) for _ in range(2))
    np.testing.assert_array_equal(one, same)
    other, _ = measured_on(PAIRS, seed=2)
    assert (one != other.publish().uncertainty(draws=2).table_errors(["a", "b"])).any()


def test_more_noise_means_larger_errors_and_no_noise_none():
    table = people(SCHEMA, 3_000, 1)
    last = 0.0
    for pcost in (1e6, 1.0, 1e-2):
        found = simulate_measurement(measured_on(PAIRS, Budget(pcost=pcost))[0].plan, table, np.random.default_rng(0))
        typical = float(found.publish().uncertainty(draws=4).table_errors(["a", "b"]).mean())
        assert typical > 3 * last
        last = typical
        assert pcost < 1e6 or typical < 0.05


@pytest.mark.parametrize(
    ("value", "error", "signal", "told"),
    [
        (100.0, 10.0, 1.0, ("publishable", "")),
        (100.0, 17.0, 1.0, ("doubtful", "cv")),
        (100.0, 34.0, 1.0, ("suppressed", "cv")),
        (4.0, 0.1, 1.0, ("suppressed", "count")),
        (100.0, 10.0, 0.1, ("doubtful", "signal")),
        (100.0, 34.0, 0.1, ("suppressed", "cv")),
        (0.0, 1.0, 1.0, ("suppressed", "count")),
    ],
)
def test_a_rule_marks_numbers_with_its_gravest_reason(value, error, signal, told):
    rule = QualityRule(least_count=5.0, least_signal=0.2)
    flags, reasons = rule.flags(*(np.array([x]) for x in (value, error, signal)))
    assert (flags[0], reasons[0]) == told
    assert reasons[0] in REASONS


def test_an_empty_cell_that_is_known_to_be_empty_is_publishable():
    flags, _ = QualityRule().flags(np.zeros(2), np.array([0.0, 1e-3]), np.ones(2))
    assert flags.tolist() == ["publishable", "suppressed"]


def test_suppressed_cells_are_not_shown_and_stay_in_the_sums():
    found, _ = measured_on(PAIRS, Budget(pcost=1.0))
    published = found.publish()
    made = published.uncertainty(draws=4)
    number = next(i for i, g in enumerate(PAIRS.groups) if g.attributes == ("a", "b"))
    rows = made.answers(number, rule=QualityRule(least_count=40.0))
    hidden = (rows["flag"] == "suppressed").to_numpy()
    assert hidden.any()
    assert not hidden.all()
    assert rows.loc[hidden, ["published", "error", "published_low", "published_high"]].isna().all(axis=None)
    assert rows.loc[~hidden, "published"].notna().all()
    sums = made.answers(0, rule=QualityRule(suppressed_cv=1e9))["published"]
    np.testing.assert_allclose(sums, published.table(["a", "b"]).sum(axis=1))
    assert set(rows["reason"]) <= set(REASONS)


def test_the_share_of_signal_goes_from_what_is_drawn_to_what_was_measured():
    at_much = measured_on(PAIRS, Budget(pcost=1e4))[0].publish().uncertainty(draws=2)
    at_little = measured_on(PAIRS, Budget(pcost=1e-5))[0].publish().uncertainty(draws=2)
    large = at_much.published.table(["a", "b"]) > 20
    a, b = (made.published.positions(["a", "b"]) for made in (at_much, at_little))
    assert at_much.signal[a][large].min() > 0.99
    assert at_little.signal[b][large].max() < 0.5
    flags = at_little.answers(4, rule=QualityRule(doubtful_cv=1e9, suppressed_cv=1e9, least_signal=0.9))
    shown = flags["published"].notna()
    assert shown.sum() > 10
    assert set(flags["reason"][shown]) == {"signal"}


def test_errors_that_cannot_be_had_are_refused_by_name():
    found, _ = measured_on(PAIRS)
    with pytest.raises(PlanError, match="exact intervals"):
        found.publish("none").uncertainty()
    with pytest.raises(PlanError, match="number of draws was 1"):
        uncertainty(found.publish(), draws=1)
    with pytest.raises(LimitExceeded, match="fewer draws"):
        uncertainty(found.publish(), memory_limit=1_000)
    with pytest.raises(Cancelled):
        uncertainty(found.publish(), progress=lambda share, words: False)
    with pytest.raises(PlanError, match="least count was -1"):
        QualityRule(least_count=-1)
    lost = (measured_on(PAIRS, Budget(pcost=1e-6), records=5, seed=s)[0] for s in range(8))
    with pytest.raises(NotAnswerable, match="lost in its noise"):
        next(f for f in lost if f.marginal([]) < 0).publish().uncertainty()


def test_tables_that_were_measured_on_more_attributes_than_any_group_has_have_errors_too() -> None:
    schema = Schema([Attribute.of_size(name, n) for name, n in zip("abc", (5, 2, 4), strict=True)])
    workload = Workload.all_ways(schema, (1, 2))
    made = plan(workload, Budget(pcost=1.0), centers="tuned")
    assert max(len(block.attributes) for block in made.blocks.values()) == 3
    even = simulate_measurement(
        made, lambda names: np.full(schema.sizes(names), 1e6 / schema.cells(names)), np.random.default_rng(1)
    )
    published = even.publish("nonnegative")
    draws = 500
    found = uncertainty(published, draws=draws)
    for number, group in enumerate(workload.groups):  # nothing is cut off so large counts: what is left is the noise
        exact = published.answers(number)["std"].mean()
        near = 5 / math.sqrt(2 * draws)  # five standard errors of an error that so many draws tell
        assert found.answers(number)["error"].mean() == pytest.approx(exact, rel=near), group.attributes
