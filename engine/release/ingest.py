"""Ingest records: count the required marginals and build the curator's report."""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engine._format import set_name, shown
from engine.errors import DataError, LimitExceeded, OtherRecords, PlanError
from engine.ledger import Ledger, Receipt
from engine.ledger.balance import Fingerprint
from engine.ledger.hash_chain import Row
from engine.ledger.ledger import REHEARSED
from engine.plans import Block, Plan
from engine.progress import Progress, told
from engine.records import MEMORY_LIMIT, Counts, Encoder, count_marginals
from engine.records.counts import read_counts
from engine.records.database import is_table, some_values
from engine.records.fingerprint import fingerprint, table_digest
from engine.records.value_hints import MAX_VALUES, Hints
from engine.residuals import Space
from engine.workload import Schema, Workload, subsets

MOST_CELLS = 2**27  # cells of one table; a release works on a few arrays of that many numbers


class Measurable(Protocol):
    """A plan, or a part of one: blocks on a schema."""

    @property
    def schema(self) -> Schema: ...
    @property
    def blocks(self) -> Mapping[Space, Block]: ...
    @property
    def max_records(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Intake:
    """What happened to the rows that were read: private, for the curator's screen only, never part of a release.

    With a person column, `people` is the number of persons, `over_cap` the rows beyond the cap of theirs, and
    `people_over_cap` the persons who have such rows.
    `warnings` says in words where the same records were seen before: under another name, or as public ones.
    """

    rows_in: int
    counted: int
    refused: int
    reasons: Mapping[str, Mapping[str, int]]
    warnings: tuple[str, ...] = ()
    people: int | None = None
    over_cap: int = 0
    people_over_cap: int = 0

    @classmethod
    def of(cls, counts: Counts, warnings: Sequence[str] = ()) -> Intake:
        """What happened to the rows behind some counts."""
        return cls(
            rows_in=counts.rows_in,
            counted=counts.records,
            refused=counts.rows_refused,
            reasons=counts.refused,
            warnings=(*counts.doubts, *warnings),
            people=counts.people,
            over_cap=counts.rows_over_cap,
            people_over_cap=counts.people_over_cap,
        )

    def describe(self) -> str:
        """What happened to the rows, in words.

        >>> Intake(rows_in=9, counted=6, refused=1, reasons={}, people=4, over_cap=2, people_over_cap=1).describe()
        'Rows read 9 = counted 6 + left out 1 + beyond the cap 2, which cost 1 of 4 persons some of their rows.'
        """
        text = f"Rows read {self.rows_in:,} = counted {self.counted:,} + left out {self.refused:,}"
        if self.people is None:
            return f"{text}."
        cost = f"which cost {self.people_over_cap:,} of {self.people:,} persons some of their rows"
        return f"{text} + beyond the cap {self.over_cap:,}, {cost}."


def left_out(on_refused: str | None) -> None:
    """Raise PlanError if a release is asked to refuse a table because of its rows."""
    if on_refused not in (None, "drop"):
        raise PlanError(
            f"on_refused was {on_refused!r}. A release leaves rows out that do not fit the schema, each by its own "
            "values: refusing the table would tell of them. Use check_records first; what it says is for you only."
        )


def disagreeing(counts: Counts, schema: Schema) -> str:
    """Return in words which public tables the counted records disagree with; empty when they agree with all.

    Which cells differ, and by how much, is not told: that records differ from public figures is all that must be known
    to mend either, and it is for the curator alone.
    """
    told = [one.attributes for one in schema.invariants]
    wrong = [names for names in told if not np.array_equal(counts[names], schema.exact_table(names))]
    named = ", ".join(set_name(names) if names else "all records" for names in wrong)
    return named and (
        f"The records that count disagree with the exact totals on {named} that the schema declares. Correct the "
        "records, or the invariants, or declare none. That they disagree is itself told by the records: keep it to "
        "yourself."
    )


def check_invariants(counts: Counts, schema: Schema) -> None:
    """Raise DataError unless counted records agree with the public tables of a schema."""
    if text := disagreeing(counts, schema):
        raise DataError(f"{text} Nothing was spent.")


def recognised(
    book: Ledger,
    dataset: str,
    counts: Counts,
    sets: Iterable[Space],
    intake: Callable[[Intake], object] | None,
) -> Fingerprint:
    """Return the fingerprint of counted records, after telling the curator what happened to them and who they are."""
    found = fingerprint(counts, sets, book.secret("records"))
    warnings = [_warning(row) for row in book.same_records(found, dataset=dataset)]
    if intake is not None:
        intake(Intake.of(counts, warnings))
    return found


def check_repeat(
    book: Ledger,
    receipt: Receipt,
    counts: Counts,
    sets: Iterable[Space],
    intake: Callable[[Intake], object] | None,
    *,
    remedy: str,
) -> None:
    """Raise OtherRecords if the stored release under a receipt was measured on other records than those counted.

    Records are compared by a keyed digest of the tables that count, so their order and format do not matter.
    Otherwise `intake` is called; it gets a warning if the ledger has no digest of the records.
    """
    # a step that was charged alone has a word before its digest
    stored, warnings = receipt.digest.rpartition(":")[2], []
    if not stored:
        warnings.append(
            f"The release of {receipt.utc} was made before the ledger recorded digests, so it cannot be checked that "
            "these are the same records."
        )
    elif not hmac.compare_digest(stored, table_digest(counts, sets, book.secret("records"))):
        raise OtherRecords(
            f"These are not the records that were released for dataset {receipt.dataset!r} at {receipt.utc} with the "
            "same plan, or the ledger's key file was replaced. Nothing was returned or spent.",
            remedy,
        )
    if intake is not None:
        intake(Intake.of(counts, warnings))


def _warning(row: Row) -> str:
    if row.kind == REHEARSED:
        return f"The same records were rehearsed as public ones, under {row.dataset!r} at {row.utc}."
    return (
        f"The same records were released under the name {row.dataset!r} at {row.utc}. Each name has its own budget, "
        "so that together they may cost more than either total: release them under one name."
    )


def check_records(
    plan: Plan,
    data: Any,
    *,
    dataset: str = "",
    ledger: Ledger | None = None,
    person: str | None = None,
    count_column: str | None = None,
    ignore: Collection[str] = (),
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Intake:
    """Return how records fit a plan, exactly: for the curator's eyes only, for it depends on single records.

    With a ledger, also whether the same records were released under another name than ``dataset``.

    Spends nothing and is no release; what it says must not be published, nor decide in public whether to release.

    Raises: DataError when the data cannot be read at all, or lacks a column.
    """
    counts = counted_for(
        plan,
        data,
        person=person,
        count_column=count_column,
        ignore=ignore,
        progress=progress,
        memory_limit=memory_limit,
    )
    warnings = [text] if (text := disagreeing(counts, plan.schema)) else []
    if is_table(data):  # its values stayed where they are
        hints, names = Hints(), {name for names in maximal_sets(plan) for name in names}
        for name, values in some_values(data, [name for name in plan.schema if name in names], MAX_VALUES):
            hints.see_values(Encoder(attribute=plan.schema[name]), values)
        warnings += [text for text in hints.texts if text not in counts.doubts]
    if counts.records > plan.max_records:
        warnings.append(
            f"There are more records than the {plan.max_records:,} that the plan was made for. A release stays private "
            "and takes longer; plan again with a larger max_records."
        )
    if ledger is not None:
        found = fingerprint(counts, maximal_sets(plan), ledger.secret("records"))
        warnings += [_warning(row) for row in ledger.same_records(found, dataset=dataset)]
    return Intake.of(counts, warnings)


def declare_public(
    plan: Plan,
    data: Any,
    *,
    dataset: str,
    ledger: Ledger,
    why: str,
    person: str | None = None,
    count_column: str | None = None,
    ignore: Collection[str] = (),
    memory_limit: int = MEMORY_LIMIT,
) -> None:
    """Note on a ledger that records are public, so that they may be rehearsed; a later release of them is warned of.

    Raises: DataError if the same records were released as confidential ones, under whatever name: a rehearsal of them
    would be a release that nobody pays for.
    """
    # a release keeps the same rows of every person, so that it is known again
    counts = counted_for(plan, data, person=person, count_column=count_column, ignore=ignore, memory_limit=memory_limit)
    found = fingerprint(counts, maximal_sets(plan), ledger.secret("records"))
    for row in ledger.same_records(found):
        if row.kind != REHEARSED:
            raise DataError(
                f"The same records were released under the name {row.dataset!r} at {row.utc}, so they are not public. "
                "Rehearse simulated records."
            )
    ledger.note(dataset=dataset, kind=REHEARSED.removeprefix("note:"), text=f"{found.to_text()}: {why}", key=dataset)


def counted_for(
    plan: Plan,
    data: Any,
    *,
    on_refused: str = "drop",
    person: str | None = None,
    count_column: str | None = None,
    ignore: Collection[str] = (),
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Counts:
    """Return the exact tables that a release of a plan counts: private, for `measure` on the sum of such parts.

    Guarantee: every row counts by the same rules as in a release of all records at once, so that the sum over disjoint
    parts is what that release counts, to the last digit of the ledger's digests; with a cap of rows per person, where
    no person has rows in two parts.

    Raises: as for `count_marginals`.
    """
    return count(
        plan,
        data,
        on_refused,
        teller(progress),
        memory_limit,
        one_cell_attributes(plan.workload),
        also=[one.attributes for one in plan.schema.invariants],
        person=person,
        rows_per_person=plan.budget.rows_per_person,
        count_column=count_column,
        ignore=ignore,
    )


def count(
    part: Measurable,
    data: Any,
    on_refused: str,
    tell: Callable[[float, str], None],
    memory_limit: int,
    checked: Iterable[str] = (),
    also: Iterable[Space] = (),
    *,
    person: str | None = None,
    rows_per_person: int = 1,
    count_column: str | None = None,
    ignore: Collection[str] = (),
) -> Counts:
    """Return the exact tables that a part is measured on; nothing is released.

    With the column of a ``person``, given or declared by the schema, at most ``rows_per_person`` rows of each count.

    A row counts when it fits the domain of every attribute that is measured, or ``checked``, or in the sets that are
    counted ``also``.

    Raises: DataError when the records cannot be read, or nothing keeps to ``rows_per_person`` where the schema declares
    more; LimitExceeded when a table is larger than a release can hold.
    """
    for block in part.blocks.values():
        if (cells := math.prod(part.schema.sizes(block.attributes))) > MOST_CELLS:
            raise LimitExceeded(
                f"This plan measures the table on {len(block.attributes)} attributes, which has {cells:.2e} cells; a "
                f"release holds at most {MOST_CELLS:,}. Its errors are exact, but it cannot be released: choose a "
                "mechanism that measures smaller tables, such as 'querysmasher'."
            )
    data = read_counts(data)
    if isinstance(data, Counts):
        if data.cap is not None and data.cap > rows_per_person:
            raise DataError(
                f"These counts hold up to {data.cap:,} rows of a person, and the budget protects {rows_per_person:,}. "
                f"Count the records again with rows_per_person={rows_per_person}."
            )
        if data.cap is None and part.schema.person is not None:
            raise DataError(
                f"These counts were made without the person column {shown(part.schema.person)} of the schema. "
                "Count the records again."
            )
        capped = data.cap is not None
    else:
        capped = part.schema.person_column(person) is not None
    if not capped and rows_per_person < (part.schema.rows_per_person or 1):
        raise DataError(part.schema.other_rows(rows_per_person))
    sets = [*maximal_sets(part), *also]
    if not isinstance(data, Counts):
        sets += [(name,) for name in checked]
    return count_marginals(
        data,
        part.schema,
        sets,
        on_refused=on_refused,
        person=person,
        rows_per_person=rows_per_person,
        count_column=count_column,
        ignore=ignore,
        progress=lambda fraction, text: tell(0.8 * fraction, text),
        memory_limit=memory_limit,
    )


def one_cell_attributes(*workloads: Workload) -> list[str]:
    """Return the attributes of one cell that are asked about: no block measures them, and still a row must fit them."""
    named = {name: w.schema[name].size for w in workloads for group in w.groups for name in group.attributes}
    return [name for name, size in named.items() if size == 1]


def maximal_sets(part: Measurable) -> list[Space]:
    """Return the attribute sets of the blocks of a plan, or a part of one, that no other contains: what is counted."""
    spaces = sorted({b.attributes for b in part.blocks.values()}, key=len, reverse=True)
    covered: set[Space] = set()
    kept = []
    for space in spaces:
        if space not in covered:
            kept.append(space)
            covered.update(subsets(space))
    return kept


def teller(progress: Progress | None) -> Callable[[float, str], None]:
    return told(progress, "The measurement was cancelled. This run has spent nothing.")
