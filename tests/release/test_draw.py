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
from engine.residuals.basis import Space
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


def answers_without_noise(
    small_plan: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> dict[Space, np.ndarray]:
    with monkeypatch.context() as patched:
        for law in ("discrete_gaussian", "discrete_laplace"):
            patched.setattr(grid, law, lambda *, size, **_: np.zeros(size, np.int64))
        return draw_all(small_plan, counts)


def draw_all(small_plan: Plan, counts: Counts) -> dict[Space, np.ndarray]:
    """Return the noisy integers of all blocks, in units of the grid."""
    return dict(draw(small_plan, counts, lambda *_: None))


def ledger_for(small_plan: Plan, path: Path) -> Ledger:
    """Return a ledger with the dataset "survey", which has a large budget of the same kind."""
    ledger = Ledger.create(path)
    is_pure = small_plan.budget.pure_epsilon is not None
    ledger.add_dataset("survey", total=Budget.pure(9.0) if is_pure else Budget(pcost=9.0))
    return ledger


def test_draw_without_noise_returns_strategy_answers(
    small_plan: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = answers_without_noise(small_plan, counts, monkeypatch)
    assert exact.keys() == small_plan.blocks.keys()
    for space, block in small_plan.blocks.items():
        codes = [RECORDS[name] for name in block.attributes]
        table = np.zeros(SCHEMA.sizes(block.attributes))
        np.add.at(table, tuple(codes), 1 if codes else len(RECORDS))
        expected = explicit_rows(block) @ table.ravel()
        np.testing.assert_allclose(exact[space] * block.grid, expected, atol=1e-6)


def test_draw_noise_never_repeats(
    small_plan: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales are at least 2^30 grid steps, so that some hundred numbers are all different."""
    exact = answers_without_noise(small_plan, counts, monkeypatch)
    noise = []
    for _ in range(2):
        drawn = draw_all(small_plan, counts)
        noise += [drawn[space] - exact[space] for space in exact]
    sizes = np.abs(np.concatenate(noise))
    assert sizes.min() > 0
    assert len(np.unique(sizes)) == len(sizes)


def test_measure_twice_draws_different_noise(small_plan: Plan, tmp_path: Path) -> None:
    release = {"dataset": "survey", "ledger": ledger_for(small_plan, tmp_path / "ledger")}
    measurements = [
        measure(small_plan, RECORDS, rehearsal=True),
        measure(small_plan, RECORDS, **release, attempt=1),
        measure(small_plan, RECORDS, **release, attempt=2),
    ]
    for first, second in itertools.combinations(measurements, 2):
        for space in small_plan.blocks:
            assert not (first.answers_on_grid[space] == second.answers_on_grid[space]).any()


def test_draw_uses_noise_scale_of_each_block(
    small_plan: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = []

    def recorded_gaussian(*, variance: int, size: int) -> np.ndarray:
        requests.append(("gaussian", variance, size))
        return np.zeros(size, np.int64)

    def recorded_laplace(*, scale: int, size: int) -> np.ndarray:
        requests.append(("laplace", scale, size))
        return np.zeros(size, np.int64)

    monkeypatch.setattr(grid, "discrete_gaussian", recorded_gaussian)
    monkeypatch.setattr(grid, "discrete_laplace", recorded_laplace)
    draw_all(small_plan, counts)
    expected = []
    for block in small_plan.blocks.values():
        std = block.noise / block.grid
        if small_plan.budget.pure_epsilon is None:
            expected.append(("gaussian", round(std) ** 2, block.measurements))
        else:
            expected.append(("laplace", round(std / 2**0.5), block.measurements))
    assert requests == expected


def test_draw_above_max_records_uses_integer_arithmetic(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, on_grid = [], grid._on_grid

    def recorded_on_grid(block, table, within_max_records):
        flags.append(within_max_records)  # without this flag, `_on_grid` computes in integers
        return on_grid(block, table, within_max_records)

    monkeypatch.setattr(grid, "_on_grid", recorded_on_grid)
    for max_records, is_within in ((counts.records - 1, False), (counts.records, True)):
        small_plan = plan(WORKLOAD, Budget(pcost=0.5), max_records=max_records)
        flags.clear()
        draw_all(small_plan, counts)
        assert set(flags) == {is_within}


def test_measure_holds_answers_of_one_block(
    small_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of a block are freed when they are written, and again when they are estimated."""
    measuring = sys.modules["engine.release.measure"]
    references = list[weakref.ref[np.ndarray]]()
    most_alive = 0

    def record(answers: np.ndarray) -> None:
        nonlocal most_alive
        references.append(weakref.ref(answers))
        most_alive = max(most_alive, sum(reference() is not None for reference in references))

    def recorded_draw(*args: Any) -> Iterator[tuple[Any, np.ndarray]]:
        for space, answers in draw(*args):
            record(answers)
            yield space, answers

    def recorded_estimate(block: Block, answers: np.ndarray) -> np.ndarray:
        record(answers)
        return estimate(block, answers)

    # The check of blocks calls `estimate` as well, so it is left out.
    monkeypatch.setattr(measuring, "check_blocks", lambda part: None)
    monkeypatch.setattr(measuring, "draw", recorded_draw)
    monkeypatch.setattr(measuring, "estimate", recorded_estimate)
    ledger = ledger_for(small_plan, tmp_path / "ledger")
    measure(small_plan, RECORDS, dataset="survey", ledger=ledger)
    # each block is drawn and estimated
    assert len(references) == 2 * len(small_plan.blocks) >= 8
    assert most_alive <= 2, "the next block is drawn before the answers of the last one are freed"


def test_write_archive_computed_estimates_equal_supplied_ones(
    small_plan: Plan, counts: Counts, tmp_path: Path
) -> None:
    answers = draw_all(small_plan, counts)

    def estimate_of(space: Space, drawn: np.ndarray) -> np.ndarray:
        return estimate(small_plan.blocks[space], drawn)

    def archive_members(name: str, estimates: Any) -> list[tuple[str, bytes]]:
        with open(tmp_path / name, "w+b") as file:
            write_archive(
                file, {}, None, texts={"a": "b"}, answers=answers.items(), estimates=estimates
            )
        with zipfile.ZipFile(tmp_path / name) as archive:
            return [(member, archive.read(member)) for member in archive.namelist()]

    supplied = ((space, estimate_of(space, drawn)) for space, drawn in answers.items())
    members = archive_members("computed", estimate_of)
    assert members == archive_members("supplied", supplied)
    # the metadata, the text, and the answers and estimates of each block
    assert len(members) == 2 + 2 * len(small_plan.blocks)
