"""Ways to publish beside each other: adaptive methods keep their budget, and where the order changes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.errors import Cancelled, LimitExceeded, NotApplicable, PlanError
from engine.mechanisms import plan
from engine.postprocess.simulation import published_errors
from engine.privacy import Budget
from engine.publish import aim_mst as adaptive
from engine.publish.aim_mst import ADAPTIVE
from engine.publish.publication_comparison import PublishedComparison, published_comparison
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size(name, n) for name, n in zip("abcd", (4, 3, 2, 1), strict=True)])
PAIRS = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
BUDGET = Budget(pcost=0.5)


@dataclass(frozen=True, kw_only=True)
class Joint:
    """A model that holds all cells of a few attributes, fitted by scaling."""

    names: tuple[str, ...]
    cells: np.ndarray

    def _sums(self, names):
        out = tuple(i for i, name in enumerate(self.names) if name not in names)
        return self.cells.sum(axis=out, keepdims=True)

    def table(self, names):
        kept = [name for name in self.names if name in names]
        return (
            self._sums(names)
            .reshape([self.cells.shape[self.names.index(n)] for n in kept])
            .transpose([kept.index(name) for name in names])
        )

    def refitted(self, measured):
        made = Joint(names=self.names, cells=np.full(self.cells.shape, 1.0))
        for _ in range(50):
            for names, (cells, _) in measured.items():
                wanted = np.maximum(cells, 1e-3).reshape(made._sums(names).shape)
                made = Joint(names=self.names, cells=made.cells * wanted / made._sums(names))
        return made

    def megabytes(self, sets):
        return 0.0


@pytest.fixture
def joint(monkeypatch):
    def made(schema, names):
        own = tuple(n for n in schema.names if n in names)
        return Joint(names=own, cells=np.zeros(schema.sizes(own)))

    monkeypatch.setattr(adaptive, "graphical_model", made)


def records(n=4_000):
    """Attributes of which b follows a, and c follows nothing."""
    generator = np.random.default_rng(3)
    a, c = generator.integers(0, 4, n), generator.integers(0, 2, n)
    return pd.DataFrame({"a": a, "b": np.minimum(a, 2), "c": c, "d": np.zeros(n, np.int64)})


RECORDS = records()


def counted(names):
    table = np.zeros(SCHEMA.sizes(names))
    if not names:
        return np.array(float(len(RECORDS)))
    np.add.at(table, tuple(RECORDS[name].to_numpy() for name in names), 1.0)
    return table


def run(method, monkeypatch, budget=BUDGET, workload=PAIRS):
    """Return the tables, what noise was drawn for which tables, and what the choices cost."""
    noise: list[tuple[Any, float]] = []
    paid: list[float] = []
    measure, choose = adaptive._Search.measure, adaptive._Search.choose
    with monkeypatch.context() as patch:
        patch.setattr(adaptive._Search, "measure", lambda s, n, sigma: (noise.append((n, sigma)), measure(s, n, sigma)))
        patch.setattr(adaptive._Search, "choose", lambda s, x, d, e: (paid.append(e**2 / 8), choose(s, x, d, e))[1])
        tables = adaptive.adaptive_tables(method, workload, budget, counted, 1)
    return tables, noise, paid


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("rows", [1, 3])
def test_noise_and_choices_cost_together_what_one_row_may(method, rows, joint, monkeypatch):
    budget = Budget(pcost=0.5, rows_per_person=rows)
    _, noise, paid = run(method, monkeypatch, budget)
    spent = sum(0.5 / sigma**2 for _, sigma in noise) + sum(paid)
    assert spent == pytest.approx(0.25 / rows**2, rel=1e-9)
    assert {names for names, _ in noise} >= {("a",), ("b",), ("c",)}
    assert all("d" not in names for names, _ in noise)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_what_the_model_misses_most_is_measured_first_and_much_budget_finds_the_truth(method, joint, monkeypatch):
    tables, noise, _ = run(method, monkeypatch, Budget(pcost=1e6))
    assert next(names for names, _ in noise if len(names) > 1) == ("a", "b")
    for names in (("a", "b"), ("b", "a"), ("c", "d", "b"), ()):
        np.testing.assert_allclose(tables(names), counted(names), atol=120.0)
        assert tables(names).shape == counted(names).shape
    assert np.abs(tables(("a", "b")) - counted(("a", "b"))).max() < 1.0


def test_a_choice_follows_the_exponential_mechanism(joint):
    """Scores are worth epsilon / 2 over their sensitivity: odds of two are known."""
    search = adaptive._Search(
        table=counted, model=None, rho=1.0, generator=np.random.default_rng(1), tell=print, until=math.inf
    )
    scores, n = {("a",): 3.0, ("b",): 0.0}, 4_000
    drawn = sum(search.choose(scores, 2.0, 1.0) == ("a",) for _ in range(n))
    share = 1.0 / (1.0 + math.exp(-0.5 * 3.0 / 2.0))
    assert abs(drawn - n * share) < 7.0 * math.sqrt(n * share * (1.0 - share))
    assert search.spent == pytest.approx(n / 8.0)


def test_a_table_that_is_measured_twice_is_joined_by_its_variances(joint):
    search = adaptive._Search(
        table=lambda names: np.zeros(4), model=None, rho=1.0, generator=None, tell=print, until=math.inf
    )
    draws = iter([np.full(4, 3.0), np.full(4, 8.0)])
    search.generator = type("", (), {"normal": lambda self, scale, size: next(draws)})()
    search.measure(("a",), 1.0)
    search.measure(("a",), 2.0)
    cells, variance = search.measured["a",]
    np.testing.assert_allclose(cells, 4.0)
    assert variance == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("budget", "workload", "words"),
    [
        (Budget.pure(1.0), PAIRS, "Gaussian noise"),
        (Budget(pcost=1.0, neighbours="replace_one"), PAIRS, "there or not"),
        (BUDGET, Workload(SCHEMA).add((), "total"), "the total alone"),
    ],
)
def test_what_an_adaptive_method_does_not_know_is_refused_by_name(budget, workload, words, joint, monkeypatch):
    with pytest.raises(NotApplicable, match=words):
        run("AIM", monkeypatch, budget, workload)


def test_without_its_package_the_rows_say_how_to_get_it_and_the_others_stay(monkeypatch):
    monkeypatch.setattr(adaptive, "find_spec", lambda name: None)
    found = published_comparison(PAIRS, BUDGET, RECORDS, [("identity", {})], ADAPTIVE, factors=(1.0,), rehearsals=2)
    status = found.frame.groupby("way")["status"].first()
    assert "pip install" in status["AIM"]
    assert "table of its own" in status["Identity, published"]
    assert found.frame["kind"].tolist() == ["simulated, biased", "unbiased", *["simulated, biased"] * 2]
    assert found.turns().empty


def test_errors_are_those_of_rehearsals_and_unbiased_ones_fall_with_the_budget(joint):
    found = published_comparison(
        PAIRS, BUDGET, RECORDS, [("residualplanner", {})], ["AIM"], factors=(0.01, 1.0), rehearsals=2
    )
    rows = found.frame.set_index(["way", "pcost"])
    made = plan(PAIRS, BUDGET, "residualplanner")
    for fit, way in (("none", "unbiased"), ("shrunk", "published")):
        own = published_errors(made, RECORDS, fit=fit, rehearsals=2)
        row = rows.loc[f"ResidualPlanner, {way}", 0.5]
        assert row["error"] == pytest.approx(own.mean())
        assert row["spread"] == pytest.approx(own.std(ddof=1) / math.sqrt(2))
    unbiased = rows.loc["ResidualPlanner, unbiased"]["error"]
    assert unbiased.loc[0.005] == pytest.approx(10.0 * unbiased.loc[0.5], rel=0.05)  # the same noise, but for rounding
    assert rows.loc["AIM"]["error"].loc[0.005] > 2.0 * rows.loc["AIM"]["error"].loc[0.5]


def stood(*ways):
    """A comparison of ways of (name, errors, spread) at pcost 0.01, 0.1, 1 and 10."""
    rows = [
        {"way": way, "label": "", "kind": "", "pcost": pcost, "error": error, "spread": spread, "status": "ok"}
        for way, errors, spread in ways
        for pcost, error in zip((0.01, 0.1, 1.0, 10.0), errors, strict=True)
    ]
    return PublishedComparison(frame=pd.DataFrame(rows))


def test_the_order_changes_where_the_lines_meet():
    falling, flat = [10.0, 10**0.5, 1.0, 10**-0.5], [2.0] * 4
    (row,) = stood(("A", falling, 0.0), ("B", flat, 0.0)).turns().to_dict("records")
    assert (row["below"], row["above"], row["low"], row["high"]) == ("B", "A", 0.1, 1.0)
    assert row["pcost"] == pytest.approx(0.25)
    (words,) = stood(("A", falling, 0.0), ("B", flat, 0.0)).words()
    assert words.startswith("B misses less up to about 0.25 pcost")
    # what rehearsals cannot tell apart is no order: 1 and 2 differ by less than two spreads of each
    (row,) = stood(("A", falling, 0.4), ("B", flat, 0.4)).turns().to_dict("records")
    assert (row["low"], row["high"]) == (0.1, 10.0)
    assert stood(("A", falling, 9.0), ("B", flat, 9.0)).words() == []
    assert stood(("A", falling, 0.0), ("B", [0.1] * 4, 0.0)).words() == []


def test_time_and_cancelling_stop_the_search(joint, monkeypatch):
    with pytest.raises(Cancelled):
        published_comparison(PAIRS, BUDGET, RECORDS, [], ["AIM"], progress=lambda share, words: "Fitting" not in words)
    found = published_comparison(PAIRS, BUDGET, RECORDS, [("residualplanner", {})], ["AIM"], seconds=-1.0)
    assert found.frame["status"].str.contains("time limit").all()
    with pytest.raises(LimitExceeded, match="seconds"):
        adaptive.adaptive_tables("AIM", PAIRS, BUDGET, counted, 1, seconds=-1.0)
    with pytest.raises(PlanError, match="at least 2"):
        published_comparison(PAIRS, BUDGET, RECORDS, [], ["AIM"], rehearsals=1)
    with pytest.raises(PlanError, match="method"):
        adaptive.adaptive_tables("magic", PAIRS, BUDGET, counted, 1)


def test_progress_goes_up_to_the_end(joint):
    heard: list[float] = []
    published_comparison(
        PAIRS, BUDGET, RECORDS, [("identity", {})], ["MST"], rehearsals=2, progress=lambda s, w: heard.append(s) is None
    )
    assert heard == sorted(heard)
    assert 0.9 < heard[-1] <= 1.0 + 1e-9
