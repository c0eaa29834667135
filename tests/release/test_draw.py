"""Noisy answers of a release: table and noise of each block."""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demo_data.make_synthetic import synthetic
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.plans import Block, Plan
from engine.privacy import Budget
from engine.records import Counts, count_marginals
from engine.release import add_noise as grid
from engine.release import measure
from engine.release.add_noise import draw
from engine.release.measurement import estimate, write_archive
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size(name, 3) for name in "abcd"])  # many blocks of one shape
RECORDS = synthetic(SCHEMA, 500, seed=2)
WORKLOAD = Workload.all_ways(SCHEMA, ways=(1, 2))
SETS = list(itertools.combinations("abcd", 2))


def explicit_rows(block: Block) -> np.ndarray:
    """Return the strategy of a block as one matrix, shape (measurements, cells of its table)."""
    assert [axes for axes, _ in block.factors] == [(axis,) for axis in range(len(block.factors))]
    rows = functools.reduce(np.kron, [s.rows for _, s in block.factors], np.ones((1, 1)))
    return rows if block.weights is None else rows * block.weights.reshape(-1, 1)


@pytest.fixture(scope="module", params=["querysmasher", "gaussian", "laplace"])
def small_plan(request: pytest.FixtureRequest) -> Plan:
    budget = Budget.pure(0.7) if request.param == "laplace" else Budget(pcost=0.5)
    return plan(WORKLOAD, budget, request.param)


@pytest.fixture(scope="module")
def counts() -> Counts:
    return count_marginals(RECORDS, SCHEMA, SETS)


def without_noise(small_plan: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch) -> dict:
    with monkeypatch.context() as patched:
        for law in ("discrete_gaussian", "discrete_laplace"):
            patched.setattr(grid, law, lambda *, size, **_: np.zeros(size, np.int64))
        return dict(draw(small_plan, counts, lambda *_: None))


def test_draw_without_noise_returns_strategy_answers(
    small_plan: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = without_noise(small_plan, counts, monkeypatch)
    assert exact.keys() == small_plan.blocks.keys()
    for space, block in small_plan.blocks.items():
        names = list(block.attributes)
        table = np.zeros(SCHEMA.sizes(names))
        np.add.at(table, tuple(RECORDS[name] for name in names), 1)
        answers = exact[space] * block.grid
        np.testing.assert_allclose(
            answers, explicit_rows(block) @ (table.ravel() if names else [len(RECORDS)]), atol=1e-6
        )


def test_draw_noise_never_repeats(
    small_plan: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales are at least 2^30 grid steps, so that some hundred numbers are all different."""
    exact = without_noise(small_plan, counts, monkeypatch)
    noise = [
        dict(draw(small_plan, counts, lambda *_: None))[s] - answers
        for _ in range(2)
        for s, answers in exact.items()
    ]
    numbers = np.abs(np.concatenate(noise))
    assert numbers.min() > 0
    assert len(np.unique(numbers)) == len(numbers)


def test_measure_twice_draws_different_noise(small_plan: Plan, tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "book")
    book.add_dataset(
        "survey", total=Budget.pure(9.0) if small_plan.budget.pure_epsilon else Budget(pcost=9.0)
    )
    releases = [measure(small_plan, RECORDS, rehearsal=True)]
    releases += [
        measure(small_plan, RECORDS, dataset="survey", ledger=book, attempt=n) for n in (1, 2)
    ]
    for one, other in itertools.combinations(releases, 2):
        for space in small_plan.blocks:
            assert not (one.answers_on_grid[space] == other.answers_on_grid[space]).any()


def test_draw_uses_noise_scale_of_each_block(
    small_plan: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []
    for law in ("gaussian", "laplace"):

        def drawn(*, size: int, law: str = law, **scale: int) -> np.ndarray:
            requests.append((law, *scale.values(), size))
            return np.zeros(size, np.int64)

        monkeypatch.setattr(grid, f"discrete_{law}", drawn)
    list(draw(small_plan, counts, lambda *_: None))
    expected = []
    for block in small_plan.blocks.values():
        if small_plan.budget.pure_epsilon is None:
            expected.append(("gaussian", round(block.noise / block.grid) ** 2, block.measurements))
        else:
            expected.append(
                ("laplace", round(block.noise / 2**0.5 / block.grid), block.measurements)
            )
    assert requests == expected


def test_draw_above_max_records_uses_integer_arithmetic(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, real = [], grid._on_grid

    def on_grid(block, table, within_max_records):
        flags.append(within_max_records)  # without this flag, `_on_grid` computes in integers
        return real(block, table, within_max_records)

    monkeypatch.setattr(grid, "_on_grid", on_grid)
    for max_records in (counts.records - 1, counts.records):
        small_plan = plan(WORKLOAD, Budget(pcost=0.5), max_records=max_records)
        flags.clear()
        list(draw(small_plan, counts, lambda *_: None))
        assert set(flags) == {max_records >= counts.records}


def test_measure_holds_answers_of_one_block(
    small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of a block are freed when they are written, and again when they are estimated."""
    measuring = sys.modules["engine.release.measure"]
    references = list[weakref.ref[np.ndarray]]()
    alive = 0

    def count(answers: np.ndarray) -> None:
        nonlocal alive
        references.append(weakref.ref(answers))
        alive = max(alive, sum(reference() is not None for reference in references))

    def draw_counted(*args: Any) -> Iterator[tuple[Any, np.ndarray]]:
        for space, answers in draw(*args):
            count(answers)
            yield space, answers

    def estimate_counted(block: Block, answers: np.ndarray) -> np.ndarray:
        count(answers)
        return estimate(block, answers)

    # The check of blocks calls `estimate` as well, so it is left out.
    monkeypatch.setattr(measuring, "check_blocks", lambda part: None)
    monkeypatch.setattr(measuring, "draw", draw_counted)
    monkeypatch.setattr(measuring, "estimate", estimate_counted)
    book = Ledger.create(tmp_path / "book")
    book.add_dataset(
        "survey", total=Budget.pure(9.0) if small_plan.budget.pure_epsilon else Budget(pcost=9.0)
    )
    measure(small_plan, RECORDS, dataset="survey", ledger=book)
    assert len(references) == 2 * len(small_plan.blocks) >= 8
    assert alive <= 2, "the next block is drawn before the answers of the last one are freed"


def test_write_archive_computed_estimates_equal_supplied_ones(
    small_plan: Plan, counts: Counts, tmp_path: Path
) -> None:
    answers = dict(draw(small_plan, counts, lambda *_: None))
    ready = ((space, estimate(small_plan.blocks[space], drawn)) for space, drawn in answers.items())
    estimates_by_name = {
        "supplied": ready,
        "computed": lambda space, drawn: estimate(small_plan.blocks[space], drawn),
    }
    contents = {}
    for name, estimates in estimates_by_name.items():
        with open(tmp_path / name, "w+b") as file:
            write_archive(
                file, {}, None, texts={"a": "b"}, answers=answers.items(), estimates=estimates
            )
        with zipfile.ZipFile(tmp_path / name) as archive:
            contents[name] = {member: archive.read(member) for member in archive.namelist()}
    assert list(contents["computed"].items()) == list(contents["supplied"].items())
    # the metadata, the text, and the answers and estimates of each block
    assert len(contents["computed"]) == 2 + 2 * len(small_plan.blocks)
