"""Privacy costs of blocks and parts against dense matrices and the formula of the proof."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest

from engine.errors import PlanError
from engine.mechanisms import plan
from engine.plans import Block
from engine.plans.blocks import calibrate, joint_pcost, total_pcost
from engine.plans.replace_one import replaced_pcost
from engine.plans.table_plan import explicit_strategy
from engine.privacy import Budget
from engine.residuals import Strategy
from engine.workload import Attribute, Schema, Workload

RECORDS = 10**8
WORKLOAD = Workload.all_ways(Schema([Attribute.of_size(name, 3) for name in "abc"]), ways=(1, 2))


def strategy(rows: list[list[float]]) -> Strategy:
    B = np.array(rows)
    return Strategy(sizes=(B.shape[1],), rows=B, pinv=np.linalg.pinv(B), complete=True)


UNEVEN = strategy([[1.0, -0.5, 0.2], [0.3, -0.9, 0.1]])
OTHER = strategy([[0.2, 0.4, 1.0], [0.3, 0.1, -0.9]])
NARROW = strategy([[0.5, 2.0]])


def block(*factors: Strategy, law: str = "gaussian", grid: float = 2.0**-5, weights: np.ndarray | None = None) -> Block:
    axes = tuple(((axis,), factor) for axis, factor in enumerate(factors))
    names = tuple("abc"[: len(factors)])
    return Block(attributes=names, factors=axes, noise=3.0, grid=grid, law=law, weights=weights)


BLOCKS = [
    block(UNEVEN),
    block(UNEVEN, NARROW),
    block(UNEVEN, OTHER, weights=np.array([[1.5, 0.5], [0.7, 2.5]])),
    block(OTHER, law="laplace"),
    block(OTHER, NARROW, law="laplace"),
]


def columns(made: Block) -> np.ndarray:
    """Return B as a dense matrix, shape (measurements, cells)."""
    rows = functools.reduce(np.kron, [s.rows for _, s in made.factors])
    return rows if made.weights is None else rows * made.weights.reshape(-1, 1)


@pytest.mark.parametrize("made", BLOCKS)
@pytest.mark.parametrize("grid", [2.0**-5, 2.0**-40])
def test_the_cost_of_a_block_is_that_of_its_formula(made: Block, grid: float) -> None:
    made = dataclasses.replace(made, grid=grid)
    B = columns(made)
    norm = np.abs(B).sum(axis=0).max() if made.law == "laplace" else np.sqrt((B**2).sum(axis=0).max())
    terms = sum(s.cells + 1 for _, s in made.factors) + 1
    gamma = terms * 2.0**-53 / (1 - terms * 2.0**-53)
    rounding = len(B) if made.law == "laplace" else math.sqrt(len(B))
    scale = made.noise / math.sqrt(2) if made.law == "laplace" else made.noise
    expected = ((norm * (1 + gamma * (2 * RECORDS + 1)) + grid * rounding) / scale) ** 2
    assert expected <= made.pcost(RECORDS) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("name", ["querysmasher", "gaussian", "laplace", "hdmm", "wff"])
def test_the_noise_that_is_drawn_is_the_noise_that_is_charged(name: str) -> None:
    pure = name == "laplace"
    made = plan(WORKLOAD, Budget.pure(0.3) if pure else Budget(pcost=0.3), name)
    for found in made.blocks.values():
        scale = math.sqrt(2.0) if pure else 1.0
        assert found.grid_noise * found.grid * scale == pytest.approx(found.noise, rel=1e-15)
        assert math.frexp(found.grid)[0] == 0.5


def test_blocks_add_up() -> None:
    one, other = block(UNEVEN), block(OTHER, grid=2.0**-7)
    costs = [b.pcost(RECORDS) for b in (one, other)]
    assert total_pcost({("a",): one, ("b",): other}, RECORDS) == pytest.approx(sum(costs), rel=1e-11)
    laplace = [block(UNEVEN, law="laplace"), block(NARROW, law="laplace")]
    epsilons = [math.sqrt(b.pcost(RECORDS)) for b in laplace]
    assert total_pcost(dict(enumerate(laplace)), RECORDS) == pytest.approx(sum(epsilons) ** 2, rel=1e-11)


def test_parts_on_the_same_records_cost_the_largest_sum_over_cells() -> None:
    one, other, alone = block(UNEVEN), block(OTHER), block(NARROW)
    twice = joint_pcost([{("a",): one}, {("a",): one, ("b",): alone}], RECORDS)
    assert twice == pytest.approx(2 * one.pcost(RECORDS) + alone.pcost(RECORDS), rel=1e-11)
    mixed = joint_pcost([{("a",): one}, {("a",): other}], RECORDS)
    cells = one.cell_pcosts(RECORDS) + other.cell_pcosts(RECORDS)
    assert mixed == pytest.approx(cells.max(), rel=1e-11)
    assert max(one.pcost(RECORDS), other.pcost(RECORDS)) < mixed < one.pcost(RECORDS) + other.pcost(RECORDS)


@pytest.mark.parametrize("name", ["querysmasher", "gaussian", "hdmm"])
def test_a_plan_over_its_budget_cannot_be_made(name: str) -> None:
    made = plan(WORKLOAD, Budget(pcost=0.3), name)
    assert made.pcost <= 0.3
    with pytest.raises(PlanError, match="over the budget"):
        dataclasses.replace(made, budget=Budget(pcost=made.pcost * 0.999))
    louder = {space: dataclasses.replace(b, noise=b.noise * 0.99) for space, b in made.blocks.items()}
    with pytest.raises(PlanError, match="over the budget"):
        dataclasses.replace(made, blocks=louder)


def test_replacing_is_charged_for_rounding_too() -> None:
    for made in (block(UNEVEN), block(UNEVEN, NARROW)):
        B = columns(made)
        apart = max(float(np.linalg.norm(B[:, i] - B[:, j])) for i in range(B.shape[1]) for j in range(i))
        least = ((apart + made.grid * math.sqrt(len(B))) / made.noise) ** 2
        assert replaced_pcost({("a",): made}, RECORDS) >= least
    made = block(OTHER, law="laplace")
    B = columns(made)
    apart = max(float(np.abs(B[:, i] - B[:, j]).sum()) for i in range(B.shape[1]) for j in range(i))
    assert replaced_pcost({("a",): made}, RECORDS) >= ((apart + made.grid * len(B)) * math.sqrt(2) / made.noise) ** 2


def test_rows_are_scaled_by_their_largest_column() -> None:
    rows = np.array([[3.0, -1.0], [4.0, 1.0]])
    assert explicit_strategy(rows, (2,)).column_norm == pytest.approx(1.0)
    assert explicit_strategy(rows, (2,), "laplace").column_sum == pytest.approx(1.0)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_blocks_of_few_kinds_cost_what_each_of_them_costs(law: str) -> None:
    spaces = [(name,) for name in "abcdef"]
    factors = [(((0,), own),) for own in (UNEVEN, OTHER, UNEVEN, UNEVEN, OTHER, UNEVEN)]
    noises = dict(zip(spaces, (2.0, 2.0, 3.0, 2.0, 2.0, 2.0), strict=True))
    made = calibrate(dict(zip(spaces, factors, strict=True)), noises, 1.0, RECORDS, law)
    assert len(made.kinds) == 3
    assert total_pcost(made, RECORDS) == total_pcost(dict(made), RECORDS) <= 1.0
    alone = [block.pcost(RECORDS) for block in made.values()]
    power = 0.5 if law == "laplace" else 1.0
    assert total_pcost(made, RECORDS) == pytest.approx(sum(cost**power for cost in alone) ** (1.0 / power), rel=1e-9)
    assert [block.attributes for block in made.values()] == spaces
    assert [own for own, _ in made.measured()] == spaces
    assert made["a",] is made["a",]


@pytest.mark.parametrize("seed", range(20))
def test_replacing_is_bounded_over_all_pairs_whatever_the_signs(seed: int) -> None:
    """More pairs than bins: the worst pair is equal in some attributes and differs in others."""
    rng = np.random.default_rng(seed)
    sizes = dict(zip("abc", rng.integers(2, 7, 3).tolist(), strict=True))
    blocks, moved = {}, []
    for names in ("a", "b", "ab", "bc", "abc"):
        factors = [strategy((rng.standard_normal((2, sizes[n])) + 0.5).tolist()) for n in names]
        made = dataclasses.replace(
            block(*factors), attributes=tuple(names), noise=float(rng.uniform(1, 3)), grid=2.0**-40
        )
        blocks[made.attributes] = made
        table = columns(made).reshape(-1, *(sizes[n] if n in names else 1 for n in "abc")) / made.noise
        moved.append(np.broadcast_to(table, (len(table), *sizes.values())).reshape(len(table), -1))
    B = np.concatenate(moved)
    gram = B.T @ B
    truth = float((np.diag(gram)[:, None] + np.diag(gram) - 2.0 * gram).max())
    bound = replaced_pcost(blocks, RECORDS)
    assert truth <= bound <= 4.0 * total_pcost(blocks, RECORDS)
    assert bound <= 2.5 * truth
