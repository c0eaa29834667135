"""Ingest records: count the marginals that a plan measures and report to the curator.

The module has three parts: `records_fit` counts how the values of each column fit the schema;
`fingerprint` computes keyed digests that recognise equal records; `check_records` and `count`
count the tables that a release measures.  All results are private.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Unpack

import numpy as np
import pyarrow as pa

from engine._format import quote_public, set_name
from engine.errors import DataError, LimitExceeded, OtherRecords, PlanError
from engine.ledger import Ledger, Receipt
from engine.ledger.balance import Fingerprint
from engine.ledger.hash_chain import Row
from engine.ledger.ledger import REHEARSAL_NOTE_KIND
from engine.plans import Block, Plan
from engine.progress import Progress, progress_reporter
from engine.records import (
    MISSING,
    OUTSIDE,
    REASONS,
    Counts,
    Encoder,
    RecordKeywords,
    RecordOptions,
    column_names,
    count_marginals,
    count_tables,
    read_batches,
)
from engine.records.counts import read_counts
from engine.records.database import fit_in_database, is_table, some_values
from engine.records.encoding import MAX_VALUES, Hints
from engine.residuals import Space
from engine.workload import Attribute, Schema, Workload, subsets

# Limit of values outside the domain that the report lists per column, most frequent first.
MAX_SHOWN_VALUES = 5
# Limit of distinct values outside the domain that are held in memory per column.
MAX_UNKNOWN_VALUES = 10_000
# Limit of characters to which a value in the report is cut.
MAX_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, kw_only=True, repr=False)
class ColumnFit:
    """Numbers of rows whose value of one column is in the domain, missing or unknown; private.

    The values of other columns do not matter.

    Attributes
    ----------
    column : name of the column.
    there : whether the records have the column.
    in_domain : number of rows with a value in the domain of the attribute.
    missing : number of rows without a value.
    unknown : number of rows with a value outside the domain.
    refused : number of missing and unknown rows that a release drops, because the attribute has no
        cell for missing, unlisted or out-of-range values.
    values : mapping from the most frequent unknown values, cut to `MAX_SHOWN_CHARACTERS`, to their
        numbers of rows; at most `MAX_SHOWN_VALUES`.
    """

    column: str
    there: bool = True
    in_domain: int = 0
    missing: int = 0
    unknown: int = 0
    refused: int = 0
    values: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<ColumnFit of {self.column!r}>"


def records_fit(
    schema: Schema, data: Any, *, progress: Progress | None = None
) -> tuple[ColumnFit, ...]:
    """Return for each attribute how its column of the records fits the domain; spends nothing.

    Ibis tables are counted in their database if it can compare the values exactly; all other
    records are read once.  The report is for the curator only: it contains exact numbers of rows
    and values of records.

    Raises
    ------
    DataError
        The records cannot be read.
    """
    report_progress = progress_reporter(
        progress, "The check of columns and values was cancelled. It spent nothing."
    )
    columns = column_names(data)
    names = [name for name in schema if not columns or name in columns]
    strict_encoders = [Encoder(attribute=_without_collecting_cells(schema[name])) for name in names]
    column_counts = (
        fit_in_database(data, strict_encoders, MAX_SHOWN_VALUES, report_progress)
        if is_table(data)
        else None
    )
    if column_counts is None:
        column_counts = _fit_batches(data, names, strict_encoders, report_progress)
    fits = {
        name: _fit(schema[name], *counts) for name, counts in zip(names, column_counts, strict=True)
    }
    return tuple(fits.get(name) or ColumnFit(column=name, there=False) for name in schema)


def _without_collecting_cells(attribute: Attribute) -> Attribute:
    """Return the attribute without its cells for missing, unlisted and out-of-range values.

    Its encoder then gives such values a negative code instead of the cell that collects them.
    """
    return replace(
        attribute,
        other=None,
        missing=None,
        clip=False,
        size=attribute.date_cells if attribute.is_dated else attribute.size,
    )


def _fit(attribute: Attribute, rows: Mapping[int, int], values: Mapping[Any, int]) -> ColumnFit:
    """Return how many rows of a column are in the domain, missing, unknown or dropped.

    Parameters
    ----------
    rows : mapping from code to number of rows; the code is 0 for every value in the domain, and
        negative for a missing value or the reason why a value is outside the domain.
    values : mapping from unknown value to number of rows.
    """
    missing = rows.get(MISSING, 0)
    unknown = sum(number for code, number in rows.items() if code < MISSING)
    # missing and unknown values that the attribute assigns to a cell
    counted = missing if attribute.missing is not None else 0
    if attribute.other is not None or attribute.clip:
        counted += rows.get(OUTSIDE, 0)
    return ColumnFit(
        column=attribute.name,
        in_domain=sum(number for code, number in rows.items() if code >= 0),
        missing=missing,
        unknown=unknown,
        refused=missing + unknown - counted,
        values={
            _text(value): number for value, number in Counter(values).most_common(MAX_SHOWN_VALUES)
        },
    )


def _fit_batches(
    data: Any, names: list[str], encoders: list[Encoder], report_progress: Any
) -> list[tuple[Any, Any]]:
    """Read the records once; return per column the numbers of rows by code and by unknown value."""
    rows: list[Counter[int]] = [Counter() for _ in names]
    values: list[Counter[Any]] = [Counter() for _ in names]
    read = 0
    for batch in read_batches(data, names):
        for i, (encoder, column, row_counts) in enumerate(
            zip(encoders, batch.columns, rows, strict=True)
        ):
            unknown_values = values[i]
            codes = encoder.encode_column(column, batch.clocks.get(encoder.attribute.name))
            rows_by_code = np.bincount(
                -np.minimum(codes, 0).astype(np.int64), minlength=1 + len(REASONS)
            )
            row_counts.update({-code: int(n) for code, n in enumerate(rows_by_code) if n})
            unknown_values.update(_count_selected(column, codes < MISSING))
            if len(unknown_values) > MAX_UNKNOWN_VALUES:
                values[i] = Counter(dict(unknown_values.most_common(MAX_UNKNOWN_VALUES // 2)))
        read += batch.rows
        report_progress(
            # without a known number of rows, the reported share approaches 1
            read / (read + 1e6) if batch.fraction is None else batch.fraction,
            "Checking columns and values",
        )
    return list(zip(rows, values, strict=True))


def _count_selected(column: Any, selection: np.ndarray) -> dict[Any, int]:
    """Return a mapping from the text of each selected value of a column to its number of rows.

    ``selection`` is a mask of rows, shape (rows,).
    """
    if not selection.any():
        return {}
    if isinstance(column, list):
        return Counter(_text(column[i]) for i in np.flatnonzero(selection))
    selected = column.filter(pa.array(selection))
    try:
        pairs = selected.value_counts().to_pylist()
    # nested types have no value counts
    except pa.ArrowNotImplementedError:
        return Counter(map(_text, selected.to_pylist()))
    return {_text(pair["values"]): pair["counts"] for pair in pairs}


def _text(value: Any) -> str:
    """Return the text of a value, cut to `MAX_SHOWN_CHARACTERS` characters."""
    text = str(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 1]}…"


# Largest number of columns in a fingerprint, whose text must fit in a line of the ledger, which has
# at most 2,000 characters.
MAX_DIGEST_COLUMNS = 80


def fingerprint(counts: Counts, attribute_sets: Iterable[Sequence[str]], key: bytes) -> Fingerprint:
    """Return the keyed digest of the measured tables, and one digest per counted column.

    The ledger compares it with stored fingerprints, to recognise records released before.
    """
    return Fingerprint(
        tables=table_digest(counts, attribute_sets, key), columns=column_digests(counts, key)
    )


def table_digest(counts: Counts, attribute_sets: Iterable[Sequence[str]], key: bytes) -> str:
    """Return one keyed digest of the exact tables on ``attribute_sets``, in hexadecimal.

    Guarantee: equal tables on equal domains have equal digests, whatever the order of the records
    and their file format.
    """
    sets = sorted({tuple(names) for names in attribute_sets})
    tables = count_marginals(counts, counts.schema, sets, memory_limit=10**15)
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for names in sets:
        digest.update(_table_bytes(counts.schema, names, tables[names]))
    return digest.hexdigest()


def column_digests(counts: Counts, key: bytes) -> dict[str, str]:
    """Return the start of a keyed digest of the one-way table of each counted attribute.

    Attributes with one cell are left out, and so are those after the first `MAX_DIGEST_COLUMNS` by
    name.  The keys of the mapping are the first 8 hexadecimal digits of the digests of the domains,
    its values the first 12 of the digests of domain and table.
    """
    names = sorted({name for names in counts for name in names if counts.schema[name].size > 1})[
        :MAX_DIGEST_COLUMNS
    ]
    tables = count_marginals(counts, counts.schema, [(name,) for name in names])
    return {
        hashlib.sha256(_domain_json(counts.schema, (name,))).hexdigest()[:8]: (
            hmac.digest(
                key, _table_bytes(counts.schema, (name,), tables[name,]), hashlib.sha256
            ).hex()[:12]
        )
        for name in names
    }


def _domain_json(schema: Schema, names: Sequence[str]) -> bytes:
    """Return names and cells of some attributes as JSON; no attributes are an empty list."""
    return Schema([schema[name] for name in names]).to_json().encode() if names else b"[]"


def _table_bytes(schema: Schema, names: Sequence[str], table: np.ndarray) -> bytes:
    """Return domain and counts of a table as bytes: length of the domain, domain, counts.

    The length makes the bytes of different tables different.
    """
    domain = _domain_json(schema, names)
    return len(domain).to_bytes(8, "big") + domain + np.ascontiguousarray(table, "<i8").tobytes()


# Limit of cells of one table: a release holds a few arrays of this size in memory.
MOST_CELLS = 2**27


class Measurable(Protocol):
    """What can be measured: a plan, or the residual of a plan after the look of two stages."""

    @property
    def schema(self) -> Schema: ...
    @property
    def blocks(self) -> Mapping[Space, Block]: ...
    @property
    def max_records(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Intake:
    """Report of the rows that were read: private, for the curator only, never part of a release.

    Attributes
    ----------
    rows_in, counted, refused : number of rows read, of rows counted, and of rows dropped because
        they do not fit the schema.
    reasons : mapping from column to reason of dropping to number of rows; the names of several
        columns are joined by commas.
    warnings : sentences for the curator, for example that the same records were released under
        another dataset name.
    people : number of persons; None without a person column.
    over_cap : number of rows dropped because their person has more rows than are counted.
    people_over_cap : number of persons with such rows.
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
        """Return the report of the rows that were read for ``counts``."""
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
        """Return the numbers of rows as one sentence.

        >>> rows = {"rows_in": 9, "counted": 6, "refused": 1, "reasons": {}}
        >>> intake = Intake(**rows, people=4, over_cap=2, people_over_cap=1)
        >>> intake.describe()
        'Rows read 9 = counted 6 + dropped 1 + over the cap 2 (1 of 4 persons).'
        """
        text = f"Rows read {self.rows_in:,} = counted {self.counted:,} + dropped {self.refused:,}"
        if self.people is None:
            return f"{text}."
        persons = f"{self.people_over_cap:,} of {self.people:,} persons"
        return f"{text} + over the cap {self.over_cap:,} ({persons})."

    def describe_dropped(self) -> str:
        """Return the number and share of the rows that do not fit the schema, as one sentence.

        >>> Intake(rows_in=200, counted=188, refused=12, reasons={}).describe_dropped()
        '12 of 200 rows (6.0%) were dropped.'
        """
        share = self.refused / max(self.rows_in, 1)
        return f"{self.refused:,} of {self.rows_in:,} rows ({share:.1%}) were dropped."

    @property
    def many_dropped(self) -> bool:
        """Whether more than 1% of the rows do not fit the schema."""
        return self.refused > 0.01 * self.rows_in


def check_rows_are_dropped(on_refused: str | None) -> None:
    """Raise PlanError unless ``on_refused`` drops rows outside the schema, as a release must."""
    if on_refused not in (None, "drop"):
        raise PlanError(
            f"on_refused={on_refused!r} is not possible for a release, because an error would"
            " reveal that some row does not fit the schema. Leave out on_refused: such rows are"
            " dropped. check_records() reports them to you only."
        )


def disagreements(counts: Counts, schema: Schema) -> str:
    """Return a warning that names the exact totals (invariants) which the records contradict.

    It is "" if the records agree with all of them.  It names neither cells nor differences, and
    is for the curator only.
    """
    public_sets = [invariant.attributes for invariant in schema.invariants]
    differing = [
        names
        for names in public_sets
        if not np.array_equal(counts[names], schema.exact_table(names))
    ]
    names_text = ", ".join(set_name(names) if names else "all records" for names in differing)
    return names_text and (
        f"The counted records disagree with the exact totals on {names_text} that the schema"
        " declares. Correct the records or the invariants, or declare none. This disagreement is"
        " confidential, because it depends on the records."
    )


def check_invariants(counts: Counts, schema: Schema) -> None:
    """Raise DataError if counted records contradict an exact total (invariant) of the schema."""
    if text := disagreements(counts, schema):
        raise DataError(f"{text} Nothing was spent.")


def fingerprint_of(
    book: Ledger,
    dataset: str,
    counts: Counts,
    sets: Iterable[Space],
    intake: Callable[[Intake], object] | None,
) -> Fingerprint:
    """Return the fingerprint of counted records, after `intake` received the curator's report.

    The report has a warning for each other dataset name under which the same records were released,
    and for each under which they were rehearsed.
    """
    records = fingerprint(counts, sets, book.secret("records"))
    warnings = [_same_records_warning(row) for row in book.same_records(records, dataset=dataset)]
    if intake is not None:
        intake(Intake.of(counts, warnings))
    return records


def check_repeat(
    book: Ledger,
    receipt: Receipt,
    counts: Counts,
    sets: Iterable[Space],
    intake: Callable[[Intake], object] | None,
    *,
    remedy: str,
) -> None:
    """Raise OtherRecords if the release with ``receipt`` was measured on other records.

    Records are compared by a keyed digest of the tables on ``sets``, so their order and file format
    do not matter.  If the digests are equal, `intake` receives the report of the counted rows.
    """
    # the stored digest of a second stage has a prefix if its records are not those of the first
    stored = receipt.digest.rpartition(":")[2]
    if not hmac.compare_digest(stored, table_digest(counts, sets, book.secret("records"))):
        raise OtherRecords(
            f"These are not the records that were released for dataset {receipt.dataset!r} at"
            f" {receipt.utc} with the same plan, or the ledger's key file was replaced. Nothing was"
            " returned or spent.",
            remedy,
        )
    if intake is not None:
        intake(Intake.of(counts, []))


def _same_records_warning(row: Row) -> str:
    """Return a warning that the ledger has ``row`` for the same records."""
    if row.kind == REHEARSAL_NOTE_KIND:
        return (
            f"The same records were rehearsed as public ones, under {row.dataset!r} at {row.utc}."
        )
    return (
        f"The same records were released under the name {row.dataset!r} at {row.utc}. Each name has"
        " its own budget, so that together they may cost more than either total. Release them"
        " under one name."
    )


def check_records(
    plan: Plan,
    data: Any,
    *,
    dataset: str = "",
    ledger: Ledger | None = None,
    **keywords: Unpack[RecordKeywords],
) -> Intake:
    """Return the numbers of rows that a release of the plan would count and drop; spends nothing.

    The report depends on single records.  It is for the curator only: do not publish it, and do not
    publish a decision that depends on it.  With a ledger it contains a warning if the same records
    were released under another name than ``dataset``, or rehearsed.

    Raises
    ------
    DataError, LimitExceeded
        As for `count`: the data cannot be read, lack a column, or a table is too large.
    """
    counts = counts_for(plan, data, **keywords)
    warnings = [text] if (text := disagreements(counts, plan.schema)) else []
    # a database returned counts and no values, so some values are read to detect, for example, a
    # date format that the schema does not declare
    if is_table(data):
        hints, names = Hints(), {name for names in maximal_sets(plan) for name in names}
        for name, values in some_values(
            data, [name for name in plan.schema if name in names], MAX_VALUES
        ):
            hints.add_values(Encoder(attribute=plan.schema[name]), values)
        warnings += [text for text in hints.texts if text not in counts.doubts]
    if counts.records > plan.max_records:
        warnings.append(
            f"There are more records than the {plan.max_records:,} of the plan. A release remains"
            " private, but takes longer; plan again with a larger max_records."
        )
    if ledger is not None:
        records = fingerprint(counts, maximal_sets(plan), ledger.secret("records"))
        warnings += [
            _same_records_warning(row) for row in ledger.same_records(records, dataset=dataset)
        ]
    return Intake.of(counts, warnings)


def declare_public(
    plan: Plan,
    data: Any,
    *,
    dataset: str,
    ledger: Ledger,
    why: str,
    **keywords: Unpack[RecordKeywords],
) -> None:
    """Declare on a ledger that records are public, which allows a rehearsal on them.

    A later release of the same records as confidential ones is reported as a warning.

    Raises
    ------
    DataError
        The ledger has a release of the same records, so they are confidential: a rehearsal, whose
        seed may be known, would be a release without a charge.
    """
    # rows per person are limited as in a release, so that equal records have equal digests
    counts = counts_for(plan, data, **keywords)
    records = fingerprint(counts, maximal_sets(plan), ledger.secret("records"))
    for row in ledger.same_records(records):
        if row.kind != REHEARSAL_NOTE_KIND:
            raise DataError(
                f"The same records were released under the name {row.dataset!r} at {row.utc}, so"
                " they are confidential. Only public records can be declared public. Rehearse on"
                " simulated records."
            )
    ledger.note(
        dataset=dataset,
        kind=REHEARSAL_NOTE_KIND.removeprefix("note:"),
        text=f"{records.to_text()}: {why}",
        key=dataset,
    )


def counts_for(plan: Plan, data: Any, **keywords: Unpack[RecordKeywords]) -> Counts:
    """Count the exact tables that a release of the plan measures, on a part of the records; private.

    The sum of the counts of all parts can be passed to `measure` in place of the records.

    Guarantee: the sum over disjoint parts of the records equals the counts of all records, and has
    the same digest.  If rows per person are limited, no person may have rows in two parts.

    Raises the errors of `count` and `count_marginals`.
    """
    return count_for(plan, data, RecordOptions(on_refused="drop", **keywords))


def count_for(plan: Plan, data: Any, options: RecordOptions) -> Counts:
    """Return the exact tables that a release of the plan measures, and those of its invariants."""
    return count(
        plan,
        data,
        replace(options, rows_per_person=plan.budget.rows_per_person),
        one_cell_attributes(plan.workload),
        also=[invariant.attributes for invariant in plan.schema.invariants],
    )


def count(
    part: Measurable,
    data: Any,
    options: RecordOptions,
    checked: Iterable[str] = (),
    also: Iterable[Space] = (),
) -> Counts:
    """Return the exact tables on which the blocks of ``part`` are measured; nothing is released.

    Parameters
    ----------
    part : the plan that will be measured, or its residual after the first stage.
    options : how to read the records; at most ``rows_per_person`` rows of each person are counted,
        one if it is None.
    checked : attributes without a block; a row with a value outside their domain is dropped too.
    also : further attribute sets whose tables are counted.

    Raises
    ------
    DataError
        The records cannot be read; or the schema allows more rows per person than the budget
        protects, and the rows of each person are not limited; or ``data`` are counts of more rows
        per person than the budget protects, or without the person column of the schema.
    LimitExceeded
        A table is larger than a release can hold.
    """
    for block in part.blocks.values():
        if (cells := math.prod(part.schema.sizes(block.attributes))) > MOST_CELLS:
            raise LimitExceeded(
                f"This plan measures a table of {len(block.attributes)} attributes with"
                f" {cells:.2e} cells. A table of a release has at most {MOST_CELLS:,} cells. Choose"
                " a mechanism that measures smaller tables, such as 'querysmasher'."
            )
    data, rows_per_person = read_counts(data), options.rows_per_person or 1
    if isinstance(data, Counts):
        if data.cap is not None and data.cap > rows_per_person:
            raise DataError(
                f"These counts include up to {data.cap:,} rows per person, but the budget protects"
                f" only {rows_per_person:,}. Count the records again with"
                f" rows_per_person={rows_per_person}."
            )
        if data.cap is None and part.schema.person is not None:
            raise DataError(
                "These counts were made without a person column, but the schema declares the person"
                f" column {quote_public(part.schema.person)}. Count the records again with this"
                " schema."
            )
        is_capped = data.cap is not None
    else:
        is_capped = part.schema.person_column(options.person) is not None
    if not is_capped and rows_per_person < (part.schema.rows_per_person or 1):
        raise DataError(part.schema.other_rows(rows_per_person))
    sets = [*maximal_sets(part), *also]
    if not isinstance(data, Counts):
        sets += [(name,) for name in checked]
    report_progress = status_reporter(options.progress)
    # counting is the first 80% of a release, and drawing noise the rest
    progress = lambda fraction, text: report_progress(0.8 * fraction, text)  # noqa: E731
    options = replace(options, rows_per_person=rows_per_person, progress=progress)
    return count_tables(data, part.schema, sets, options)


def one_cell_attributes(*workloads: Workload) -> list[str]:
    """Return the attributes of the workloads that have a single cell.

    No block measures them, but a row with another value is dropped like any row outside the schema.
    """
    sizes = {
        name: w.schema[name].size
        for w in workloads
        for group in w.groups
        for name in group.attributes
    }
    return [name for name, size in sizes.items() if size == 1]


def maximal_sets(part: Measurable) -> list[Space]:
    """Return the attribute sets of the blocks that are not subsets of another one.

    Only their tables are counted; all smaller tables are their margins.
    """
    spaces = sorted({b.attributes for b in part.blocks.values()}, key=len, reverse=True)
    covered: set[Space] = set()
    maximal = []
    for space in spaces:
        if space not in covered:
            maximal.append(space)
            covered.update(subsets(space))
    return maximal


def status_reporter(progress: Progress | None) -> Callable[[float, str], None]:
    """Return a function that reports progress and raises an error when the caller cancels."""
    return progress_reporter(progress, "The measurement was cancelled. This run has spent nothing.")
