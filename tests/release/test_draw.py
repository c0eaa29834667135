"""What a release draws: its own table for every block, and noise of the right scale, new for every answer."""

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
from engine.release import measure
from engine.release import noisy_answers as grid
from engine.release.measurement import estimate
from engine.release.noisy_answers import draw
from engine.release.result_file import write_archive
from engine.workload import Attribute, Schema, Workload

SCHEMA = Schema([Attribute.of_size(name, 3) for name in "abcd"])  # many blocks of one shape
RECORDS = synthetic(SCHEMA, 500, seed=2)
WORKLOAD = Workload.all_ways(SCHEMA, ways=(1, 2))
SETS = list(itertools.combinations("abcd", 2))


def explicit_rows(block: Block) -> np.ndarray:
    """The strategy of a block as one matrix, shape (measurements, cells of its table)."""
    assert [axes for axes, _ in block.factors] == [(axis,) for axis in range(len(block.factors))]
    rows = functools.reduce(np.kron, [s.rows for _, s in block.factors], np.ones((1, 1)))
    return rows if block.weights is None else rows * block.weights.reshape(-1, 1)


@pytest.fixture(scope="module", params=["querysmasher", "gaussian", "laplace"])
def made(request: pytest.FixtureRequest) -> Plan:
    budget = Budget.pure(0.7) if request.param == "laplace" else Budget(pcost=0.5)
    return plan(WORKLOAD, budget, request.param)


@pytest.fixture(scope="module")
def counts() -> Counts:
    return count_marginals(RECORDS, SCHEMA, SETS)


def without_noise(made: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch) -> dict:
    with monkeypatch.context() as patched:
        for law in ("discrete_gaussian", "discrete_laplace"):
            patched.setattr(grid, law, lambda *, size, **_: np.zeros(size, np.int64))
        return dict(draw(made, counts, lambda *_: None))


def test_every_block_measures_its_own_table(made: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = without_noise(made, counts, monkeypatch)
    assert exact.keys() == made.blocks.keys()
    for space, block in made.blocks.items():
        names = list(block.attributes)
        table = np.zeros(SCHEMA.sizes(names))
        np.add.at(table, tuple(RECORDS[name] for name in names), 1)
        found = exact[space] * block.grid
        np.testing.assert_allclose(found, explicit_rows(block) @ (table.ravel() if names else [500.0]), atol=1e-6)


def test_every_block_has_noise_of_its_own(made: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales are 2^30 grid steps and more, so that of some hundred numbers no two are equal."""
    exact = without_noise(made, counts, monkeypatch)
    noise = [dict(draw(made, counts, lambda *_: None))[s] - answers for _ in range(2) for s, answers in exact.items()]
    numbers = np.abs(np.concatenate(noise))
    assert numbers.min() > 0
    assert len(np.unique(numbers)) == len(numbers)


def test_noise_is_drawn_anew_for_every_release(made: Plan, tmp_path: Path) -> None:
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("survey", total=Budget.pure(9.0) if made.budget.pure_epsilon else Budget(pcost=9.0))
    found = [measure(made, RECORDS, rehearsal=True)]
    found += [measure(made, RECORDS, dataset="survey", ledger=book, attempt=n) for n in (1, 2)]
    for one, other in itertools.combinations(found, 2):
        for space in made.blocks:
            assert not (one.answers_on_grid[space] == other.answers_on_grid[space]).any()


def test_noise_is_asked_for_at_the_scale_of_every_block(
    made: Plan, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    for law in ("gaussian", "laplace"):

        def drawn(*, size: int, law: str = law, **scale: int) -> np.ndarray:
            asked.append((law, *scale.values(), size))
            return np.zeros(size, np.int64)

        monkeypatch.setattr(grid, f"discrete_{law}", drawn)
    list(draw(made, counts, lambda *_: None))
    expected = []
    for block in made.blocks.values():
        if made.budget.pure_epsilon is None:
            expected.append(("gaussian", round(block.noise / block.grid) ** 2, block.measurements))
        else:
            expected.append(("laplace", round(block.noise / 2**0.5 / block.grid), block.measurements))
    assert asked == expected


def test_more_records_than_were_charged_for_are_measured_in_whole_numbers(
    counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    within, real = [], grid._on_grid
    monkeypatch.setattr(grid, "_on_grid", lambda block, table, ok: within.append(ok) or real(block, table, ok))
    for most in (499, 500):
        made = plan(WORKLOAD, Budget(pcost=0.5), max_records=most)
        within.clear()
        list(draw(made, counts, lambda *_: None))
        assert set(within) == {most >= counts.records}


def test_a_release_holds_the_answers_of_one_block_at_a_time(
    made: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn and written, and read again for the estimates: what is let go of is not kept by anybody."""
    measuring, seen, most = sys.modules["engine.release.measure"], list[weakref.ref[np.ndarray]](), [0]

    def count(answers: np.ndarray) -> None:
        seen.append(weakref.ref(answers))
        most[0] = max(most[0], sum(one() is not None for one in seen))

    def drawn(*given: Any) -> Iterator[tuple[Any, np.ndarray]]:
        for space, answers in draw(*given):
            count(answers)
            yield space, answers

    def estimated(block: Block, answers: np.ndarray) -> np.ndarray:
        count(answers)
        return estimate(block, answers)

    monkeypatch.setattr(measuring, "check_blocks", lambda part: None)  # it measures blocks on zeros
    monkeypatch.setattr(measuring, "draw", drawn)
    monkeypatch.setattr(measuring, "estimate", estimated)
    book = Ledger.create(tmp_path / "book")
    book.add_dataset("survey", total=Budget.pure(9.0) if made.budget.pure_epsilon else Budget(pcost=9.0))
    measure(made, RECORDS, dataset="survey", ledger=book)
    assert len(seen) == 2 * len(made.blocks) >= 8
    assert most[0] <= 2, "the next one is made before the last one is let go"


def test_a_file_is_the_same_whether_its_estimates_come_or_are_made_of_what_was_written(
    made: Plan, counts: Counts, tmp_path: Path
) -> None:
    answers = dict(draw(made, counts, lambda *_: None))
    ready = ((space, estimate(made.blocks[space], drawn)) for space, drawn in answers.items())
    ways = {"ready": ready, "made": lambda space, drawn: estimate(made.blocks[space], drawn)}
    found = {}
    for name, estimates in ways.items():
        with open(tmp_path / name, "w+b") as file:
            write_archive(file, {}, None, texts={"a": "b"}, answers=answers.items(), estimates=estimates)
        with zipfile.ZipFile(tmp_path / name) as archive:
            found[name] = {member: archive.read(member) for member in archive.namelist()}
    assert list(found["made"].items()) == list(found["ready"].items())
    assert len(found["made"]) == 2 + 2 * len(made.blocks)
