"""The records of the steps of `engine.choice.stepwise`: the same tables are known in every step, by a keyed digest.

What a look and a last step cost together is the largest sum over the cells, because a record sits in one cell in both.
That holds for the same records only.  So both steps count the same tables, and the look's digest stands on the ledger.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from engine.choice.common_plan import CommonPlan, Residual
from engine.plans import Plan
from engine.progress import Progress
from engine.release import (
    MEMORY_LIMIT,
    MOST_CELLS,
    Counts,
    Intake,
    Ledger,
    count,
    maximal_sets,
    one_cell_attributes,
    table_digest,
    teller,
)
from engine.spaces import Space

OTHER = "other:"  # before the digest of a step that was measured on other records than its look


def step_counts(
    common: CommonPlan,
    part: Plan | Residual,
    data: Any,
    tell: Callable[[float, str], None],
    memory_limit: int,
    on_refused: str = "drop",
    *,
    person: str | None,
    count_column: str | None,
    ignore: Collection[str],
) -> Counts:
    """Return the tables of all options, so that in every step the same rows count and the same tables are known.

    With the column of a ``person``, at most as many rows of each count as the options' budgets protect.
    """
    return count(
        part,
        data,
        on_refused,
        tell,
        memory_limit,
        step_checks(common),
        step_sets(common),
        person=person,
        rows_per_person=common.look.budget.rows_per_person,
        count_column=count_column,
        ignore=ignore,
    )


def counted_for_steps(
    common: CommonPlan,
    data: Any,
    *,
    person: str | None = None,
    count_column: str | None = None,
    ignore: Collection[str] = (),
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Counts:
    """Return what a look and its last step count of a part of the records: private, for both on the sum of all parts.

    Guarantee: as of `engine.release.counted_for`; the sum of the parts is known as the records that were looked at.
    """
    tell = teller(progress)
    return step_counts(
        common, common.look, data, tell, memory_limit, person=person, count_column=count_column, ignore=ignore
    )


def no_counts(common: CommonPlan) -> Counts:
    """What is read where nothing is measured."""
    return Counts(schema=common.look.schema, tables={}, records=0)


def step_sets(common: CommonPlan) -> list[Space]:
    """Return the attribute sets of the look and all options that can be released at all."""
    plans = [common.look, *(plan for _, plan in common.analyses)]
    sets = {space for plan in plans for space in maximal_sets(plan)}
    return sorted(space for space in sets if math.prod(common.look.schema.sizes(space)) <= MOST_CELLS)


def step_checks(common: CommonPlan) -> list[str]:
    """Return the attributes of one cell that a row must fit in every step."""
    return one_cell_attributes(*(plan.workload for _, plan in common.analyses))


def changed_records(book: Ledger, digest: str, counts: Counts, common: CommonPlan) -> str:
    """Say why a step may not count on the records of its look; nothing if they are the same."""
    if digest.startswith(OTHER):
        return "The look itself was measured on other records than the one before it."
    if not digest:
        return "The look was taken before looks kept a digest of their records, so nobody can tell if these are they."
    same = hmac.compare_digest(digest, table_digest(counts, step_sets(common), book.secret("records")))
    return "" if same else "These are not the records that were looked at, or the ledger's key file was replaced."


def telling_too(
    intake: Callable[[Intake], object] | None, changed: str, cost: float
) -> Callable[[Intake], object] | None:
    """Return a teller of what happened to the rows that also tells why a step is charged alone."""
    if intake is None or not changed:
        return intake
    text = f"{changed} This step is charged alone: pcost {cost!r}."
    return lambda seen: intake(replace(seen, warnings=(*seen.warnings, text)))
