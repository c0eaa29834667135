"""Noisy answers on the grid fit into 64 bits for up to max_records records."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import Counts
from engine.release import measure
from engine.release.measurement import strategy_answers
from engine.workload import Attribute, Custom, Schema, Workload

REACH = 2**63 - 1
SCALES = 40  # largest noise, in noise scales; Laplace noise is larger once in 10^17 draws
SCHEMA = Schema([Attribute.of_size("age", 4), Attribute.of_size("hours", 3)])


def exact_answers(block, table: np.ndarray) -> list[Fraction]:
    """Return B x divided by the grid, in exact arithmetic, for strategy rows B and a table x."""
    cells = {i: int(v) for i, v in enumerate(table.ravel()) if v}
    sums = []
    for row in np.ndindex(*(len(s.rows) for _, s in block.factors)):
        total = Fraction(0)
        for flat, count in cells.items():
            where = np.unravel_index(flat, table.shape)
            term = Fraction(count)
            for (axes, s), r in zip(block.factors, row, strict=True):
                column = np.ravel_multi_index([where[a] for a in axes], s.sizes)
                term *= Fraction(float(s.rows[r, column]))
            total += term
        sums.append(total / Fraction(block.grid))
    return sums


def concentrated(wide_plan: Plan, cell: tuple[int, int]) -> Counts:
    table = np.zeros((4, 3), dtype=np.int64)
    table[cell] = wide_plan.max_records
    return Counts.from_tables(SCHEMA, {("age", "hours"): table})


def test_measure_ninety_million_records_is_accurate() -> None:
    budget = Budget(pcost=1e4)
    pair_plan = plan(Workload(SCHEMA).add(("age", "hours"), "marginal"), budget, "identity")
    table = np.zeros((4, 3), dtype=np.int64)
    table[1, 2] = 90_000_000
    counts = Counts.from_tables(SCHEMA, {("age", "hours"): table})
    measurement = measure(pair_plan, counts, rehearsal=True)
    noise_std = 1 / math.sqrt(budget.pcost)
    np.testing.assert_allclose(measurement.values(0), table.ravel(), atol=100 * noise_std)
    assert pair_plan.pcost <= budget.pcost
    assert pair_plan.rmse == pytest.approx(noise_std, rel=1e-6)


@pytest.mark.parametrize("max_records", [1, 10**8, 2**43])
@pytest.mark.parametrize("pcost", [1e-6, 1.0, 2.0**8, 1e4, 1e8])
@pytest.mark.parametrize("mechanism", ["querysmasher", "identity", "gaussian", "laplace", "hdmm"])
def test_grid_answers_fit_int64_and_are_accurate(
    mechanism: str, pcost: float, max_records: int
) -> None:
    large_queries = Custom(np.array([[1e12, 0.0, -1e12, 3e11], [2e11, 1e12, 0.0, 0.0]]))
    workload = Workload(SCHEMA).add(("age", "hours"), "marginal", weight=1e24)
    workload = workload.add("age", large_queries)
    budget = Budget.pure(math.sqrt(pcost)) if mechanism == "laplace" else Budget(pcost=pcost)
    wide_plan = plan(workload, budget, mechanism, max_records=max_records)
    assert wide_plan.pcost <= budget.pcost
    for cell in ((0, 0), (2, 1)):
        counts = concentrated(wide_plan, cell)
        drawn = measure(wide_plan, counts, rehearsal=True).answers_on_grid
        for space, block in wide_plan.blocks.items():
            axes = [SCHEMA.order[name] for name in block.attributes]
            other_axes = tuple(axis for axis in (0, 1) if axis not in axes)
            table = counts["age", "hours"].sum(axis=other_axes)
            exact = exact_answers(block, table)
            largest_noise = SCALES * block.grid_noise
            assert max(map(abs, exact)) + largest_noise < REACH
            floats = strategy_answers(block, np.asarray(table)).ravel() / block.grid
            # Rounding moves an answer on the grid by at most `slack` from its exact value.
            slack = block.column_norm * max_records * 2.0**-46 / block.grid + 0.5
            for rounded, expected, noisy in zip(
                np.rint(floats).tolist(), exact, drawn[space].tolist(), strict=True
            ):
                assert abs(Fraction(rounded) - expected) <= slack
                assert abs(noisy - expected) <= largest_noise + slack


def test_grid_is_fine_unless_int64_is_nearly_full() -> None:
    workload = Workload(SCHEMA).add(("age", "hours"), "marginal")
    for max_records in (1, 10**6, 10**8, 2**40):
        small_noise_plan = plan(workload, Budget(pcost=1e4), "identity", max_records=max_records)
        (block,) = small_noise_plan.blocks.values()
        largest_answer_on_grid = block.column_norm * max_records / block.grid
        assert largest_answer_on_grid <= 2**62
        # The noise has less than 30 bits only if the answers already use 60 bits.
        assert block.grid_noise >= 2**30 or largest_answer_on_grid > 2**60
