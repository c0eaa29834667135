"""Ingest records: count the marginals that a plan measures and report to the curator.

`records_fit` counts for each column how many values fit the schema. `fingerprint` computes keyed
digests that recognise equal records. `check_records` and `count` count the tables that a release
measures. All results are private.
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

from engine._format import percent, quote_public, set_name
from engine.errors import DataError, LimitExceeded, OtherRecords, PlanError
from engine.ledger import Ledger, Receipt
from engine.ledger.balance import Fingerprint
from engine.ledger.ledger import REHEARSAL_NOTE_KIND
from engine.ledger.sqlite_file import Row
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

# Largest number of values outside the domain that the report lists per column, most frequent first.
MAX_SHOWN_VALUES = 5
# Largest number of distinct values outside the domain that memory holds per column.
MAX_UNKNOWN_VALUES = 10_000
# Number of characters to which longer values in the report are cut.
MAX_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, kw_only=True, repr=False)
class ColumnFit:
    """Report of how many values of one column are in the domain, missing or unknown; private.

    A row is included even if its values in other columns do not fit.

    Attributes
    ----------
    column : name of the column.
    is_present : whether the records have the column.
    in_domain : number of rows with a value in the domain of the attribute.
    missing : number of rows without a value in this column.
    unknown : number of rows with a value outside the domain.
    refused : number of rows that a release drops because of this column: those with a missing or
        unknown value that no cell of the attribute collects.
    values : unknown value -> number of rows, for the `MAX_SHOWN_VALUES` most frequent unknown
        values; each value is cut to `MAX_SHOWN_CHARACTERS`. If a column has more than
        `MAX_UNKNOWN_VALUES` distinct unknown values, these numbers may be too small.
    """

    column: str
    is_present: bool = True
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
    """Report for each attribute how many values of its column fit the domain; spends nothing.

    An Ibis table is counted in its database if the database can compare the values exactly. All
    other records are read once. The report is for the curator only: it contains exact numbers of
    rows and values of records.

    Returns
    -------
    One `ColumnFit` per attribute, in the order of the schema.

    Raises
    ------
    DataError
        The records cannot be read.
    """
    report_progress = progress_reporter(
        progress, "The check of columns and values was cancelled. It spent nothing."
    )
    columns = column_names(data)
    # ``columns`` is empty if the data do not list their columns
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
    return tuple(fits.get(name) or ColumnFit(column=name, is_present=False) for name in schema)


def _without_collecting_cells(attribute: Attribute) -> Attribute:
    """Return the attribute without the cells that collect missing, unlisted or out-of-range values.

    An encoder of the returned attribute gives such values a negative code.
    """
    return replace(
        attribute,
        other=None,
        missing=None,
        clip=False,
        size=attribute.date_cells if attribute.is_dated else attribute.size,
    )


def _fit(attribute: Attribute, rows: Mapping[int, int], values: Mapping[Any, int]) -> ColumnFit:
    """Return the report on the column of one attribute.

    Parameters
    ----------
    rows : code -> number of rows. The code is 0 for all values in the domain. For other values it
        is negative: `MISSING`, or the reason why the value is outside the domain.
    values : unknown value -> number of rows.
    """
    missing = rows.get(MISSING, 0)
    unknown = sum(number for code, number in rows.items() if code < MISSING)
    # A release counts these rows in cells of the attribute: the cell for missing values, and the
    # cell for unlisted values or the first and last cells for values out of range.
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
    """Read the records once and count the codes and the unknown values of each column.

    Returns
    -------
    One pair per name: the arguments ``rows`` and ``values`` of `_fit`.
    """
    rows: list[Counter[int]] = [Counter() for _ in names]
    values: list[Counter[Any]] = [Counter() for _ in names]
    read = 0
    for batch in read_batches(data, names):
        for i, (encoder, column, row_counts) in enumerate(
            zip(encoders, batch.columns, rows, strict=True)
        ):
            unknown_values = values[i]
            codes = encoder.encode_column(column, batch.clocks.get(encoder.attribute.name))
            # all codes in the domain become 0, so position i counts the rows with code -i
            rows_by_negated_code = np.bincount(
                -np.minimum(codes, 0).astype(np.int64), minlength=1 + len(REASONS)
            )
            row_counts.update({-i: int(n) for i, n in enumerate(rows_by_negated_code) if n})
            unknown_values.update(_count_selected(column, codes < MISSING))
            # to limit the memory, the counts of the least frequent values are deleted
            if len(unknown_values) > MAX_UNKNOWN_VALUES:
                values[i] = Counter(dict(unknown_values.most_common(MAX_UNKNOWN_VALUES // 2)))
        read += batch.rows
        report_progress(
            # if the number of rows is unknown, the reported fraction grows slowly towards 1
            read / (read + 1e6) if batch.fraction is None else batch.fraction,
            "Checking columns and values",
        )
    return list(zip(rows, values, strict=True))


def _count_selected(column: Any, selection: np.ndarray) -> dict[Any, int]:
    """Count the values of the selected rows of a column.

    Parameters
    ----------
    selection : whether each row is selected, shape (rows,).

    Returns
    -------
    dict
        Text of a value -> number of selected rows.
    """
    if not selection.any():
        return {}
    if isinstance(column, list):
        return Counter(_text(column[i]) for i in np.flatnonzero(selection))
    selected = column.filter(pa.array(selection))
    try:
        pairs = selected.value_counts().to_pylist()
    # pyarrow cannot count values of nested types
    except pa.ArrowNotImplementedError:
        return Counter(map(_text, selected.to_pylist()))
    return {_text(pair["values"]): pair["counts"] for pair in pairs}


def _text(value: Any) -> str:
    """Return the text of a value, cut to `MAX_SHOWN_CHARACTERS` characters."""
    text = str(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 1]}…"


# Largest number of columns in a fingerprint: its text must fit in a note of the ledger, and a note
# has at most 2,000 characters.
MAX_DIGEST_COLUMNS = 80


def fingerprint(counts: Counts, attribute_sets: Iterable[Sequence[str]], key: bytes) -> Fingerprint:
    """Return keyed digests of the measured tables and of counted columns (see `column_digests`).

    The ledger compares this fingerprint with stored ones to recognise records of earlier releases.
    """
    return Fingerprint(
        tables=table_digest(counts, attribute_sets, key), columns=column_digests(counts, key)
    )


def table_digest(counts: Counts, attribute_sets: Iterable[Sequence[str]], key: bytes) -> str:
    """Return one keyed digest of the exact tables on ``attribute_sets``, as hexadecimal text.

    Guarantee: equal tables on equal domains have equal digests. The order and the file format of
    the records do not matter.
    """
    sets = sorted({tuple(names) for names in attribute_sets})
    tables = count_marginals(counts, counts.schema, sets, memory_limit=10**15)
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for names in sets:
        digest.update(_table_bytes(counts.schema, names, tables[names]))
    return digest.hexdigest()


def column_digests(counts: Counts, key: bytes) -> dict[str, str]:
    """Return shortened digests of the one-way tables of counted attributes.

    Included are the first `MAX_DIGEST_COLUMNS` attributes in alphabetical order that have more than
    one cell.

    Returns
    -------
    dict
        First 8 hexadecimal digits of the digest of an attribute's domain -> first 12 hexadecimal
        digits of the keyed digest of domain and table.
    """
    names = sorted({name for names in counts for name in names if counts.schema[name].size > 1})[
        :MAX_DIGEST_COLUMNS
    ]
    tables = count_marginals(counts, counts.schema, [(name,) for name in names])
    digests = {}
    for name in names:
        domain_digest = hashlib.sha256(_domain_json(counts.schema, (name,))).hexdigest()
        table_bytes = _table_bytes(counts.schema, (name,), tables[(name,)])
        table_digest = hmac.digest(key, table_bytes, hashlib.sha256).hex()
        digests[domain_digest[:8]] = table_digest[:12]
    return digests


def _domain_json(schema: Schema, names: Sequence[str]) -> bytes:
    """Return names and cells of some attributes as JSON; "[]" for no attributes."""
    return Schema([schema[name] for name in names]).to_json().encode() if names else b"[]"


def _table_bytes(schema: Schema, names: Sequence[str], table: np.ndarray) -> bytes:
    """Return domain and counts of a table as bytes: length of the domain, domain, counts.

    The length is part of the bytes so that two different tables never have equal bytes.
    """
    domain = _domain_json(schema, names)
    return len(domain).to_bytes(8, "big") + domain + np.ascontiguousarray(table, "<i8").tobytes()


# Limit of cells of one table. A release has a few arrays of this size in memory.
MOST_CELLS = 2**27


class Measurable(Protocol):
    """Strategy that can be measured.

    Examples are a plan, and what remains of a plan after the first stage of a two-stage release.
    """

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
    rows_in : number of rows read.
    counted : number of rows counted.
    refused : number of rows dropped because they do not fit the schema.
    reasons : column -> reason for dropping a row -> number of rows. If several columns together are
        the reason, their names are joined by commas.
    warnings : sentences for the curator, for example that the same records were released under
        another dataset name.
    people : number of persons; None without a person column.
    over_cap : number of rows dropped because their person has more rows than the cap allows.
    people_over_cap : number of persons with more rows than the cap allows.
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
        >>> Intake(**(rows | {"counted": 8}), people=4).describe()
        'Rows read 9 = counted 8 + dropped 1.'
        """
        text = f"Rows read {self.rows_in:,} = counted {self.counted:,} + dropped {self.refused:,}"
        if self.people is None or not self.over_cap:
            return f"{text}."
        persons = f"{self.people_over_cap:,} of {self.people:,} persons"
        return f"{text} + over the cap {self.over_cap:,} ({persons})."

    def describe_dropped(self, *, before_release: bool = False) -> str:
        """Return the number and share of the rows that do not fit the schema, as one sentence.

        If ``before_release`` is true, the sentence states that a release will drop these rows, and
        otherwise that these rows were dropped.

        >>> Intake(rows_in=200, counted=188, refused=12, reasons={}).describe_dropped()
        '12 of 200 rows (6.0%) were dropped.'
        """
        share = self.refused / max(self.rows_in, 1)
        verb = "will be" if before_release else "were"
        return f"{self.refused:,} of {self.rows_in:,} rows ({percent(share)}) {verb} dropped."

    @property
    def many_dropped(self) -> bool:
        """Whether more than 1% of the rows do not fit the schema."""
        return self.refused > 0.01 * self.rows_in


def check_rows_are_dropped(on_refused: str | None) -> None:
    """Raise PlanError unless ``on_refused`` is "drop" or None: a release drops refused rows."""
    if on_refused not in (None, "drop"):
        raise PlanError(
            f"on_refused={on_refused!r} is not possible for a release, because an error would"
            " reveal that some row does not fit the schema. Leave out on_refused: such rows are"
            " dropped. Check the records first: only the curator sees the report of refused rows."
        )


def disagreements(counts: Counts, schema: Schema) -> str:
    """Compare counted records with the exact totals (invariants) of the schema.

    Returns
    -------
    str
        Warning that names the attributes of the invariants which the records contradict; "" if the
        records agree with all invariants. The warning is for the curator only. It names neither
        cells nor differences.
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
        " declares. Correct the records or the invariants, or declare no invariants. This"
        " disagreement is confidential, because it depends on the records."
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
    """Return the fingerprint of counted records, and call ``intake`` with the curator's report.

    The report contains warnings if the same records were released under another dataset name, or
    were declared public for a rehearsal.

    Parameters
    ----------
    sets : attribute sets of the measured tables.
    intake : function that receives the report; None for no report.
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

    The records are compared by a keyed digest of their tables on ``sets``, so the order and the
    file format of the records do not matter. If the digests are equal, ``intake`` receives the
    report of the counted rows.

    Parameters
    ----------
    remedy : last sentence of the error message: what to do.
    """
    # The second stage of a two-stage release stores its digest with a prefix and a colon if its
    # records are not those of the first stage.
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
    """Return the warning that records were used before, under the dataset name of a ledger row.

    ``row`` is the spend of a release of the same records, or the note of `declare_public` on them.
    """
    if row.kind == REHEARSAL_NOTE_KIND:
        return (
            "The same records were declared public for a rehearsal, under the name"
            f" {row.dataset!r} at {row.utc}."
            " If they are confidential, this declaration was wrong."
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
    """Report how many rows a release of the plan would count and drop; spends nothing.

    The report depends on single records. It is for the curator only: do not publish it, and do not
    publish a decision that depends on it. If ``ledger`` is given, the report contains a warning if
    the same records were released under another name than ``dataset``, or declared public.

    Raises
    ------
    DataError
        The data cannot be read or lack a column, or nothing limits the rows per person to the
        number that the budget protects; see `count`.
    LimitExceeded
        A table is too large.
    """
    counts = counts_for(plan, data, **keywords)
    warnings = list(filter(None, [disagreements(counts, plan.schema)]))
    # A database returns only counts. Some values are read in addition, to detect for example dates
    # in a format that the schema does not declare.
    if is_table(data):
        hints = Hints()
        names = {name for names in maximal_sets(plan) for name in names}
        for name, values in some_values(
            data, [name for name in plan.schema if name in names], MAX_VALUES
        ):
            hints.add_values(Encoder(attribute=plan.schema[name]), values)
        warnings += [text for text in hints.texts if text not in counts.doubts]
    if counts.records > plan.max_records:
        warnings.append(
            f"There are more records than the plan's max_records of {plan.max_records:,}. A release"
            " remains private, but takes longer. Plan again with a larger max_records."
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
    """Write to a ledger that records are public, which allows a rehearsal with these records.

    A later release of the same records causes a warning.

    Parameters
    ----------
    why : reason of the declaration, stored in the ledger.

    Raises
    ------
    DataError
        The ledger has a release of the same records, so they are confidential. A rehearsal of
        confidential records would be a release without a charge, because its seed may be known.
    """
    # rows per person are limited as in a release, so that the same records have the same digests
    counts = counts_for(plan, data, **keywords)
    records = fingerprint(counts, maximal_sets(plan), ledger.secret("records"))
    for row in ledger.same_records(records):
        if row.kind != REHEARSAL_NOTE_KIND:
            raise DataError(
                f"The same records were released under the name {row.dataset!r} at {row.utc}, so"
                " they are confidential and cannot be declared public. Rehearse with simulated"
                " records."
            )
    ledger.note(
        dataset=dataset,
        kind=REHEARSAL_NOTE_KIND.removeprefix("note:"),
        text=f"{records.to_text()}: {why}",
        key=dataset,
    )


def counts_for(plan: Plan, data: Any, **keywords: Unpack[RecordKeywords]) -> Counts:
    """Return the exact tables that a release of the plan measures; private.

    The records may be counted in several parts, for example one per file. The sum of the counts of
    all parts can be passed to `measure` in place of the records.

    Guarantee: the sum over disjoint parts equals the counts of all records and has the same digest.
    If the plan limits the rows per person, all rows of one person must be in the same part.

    Raises the errors of `count` and `count_marginals`.
    """
    return count_for(plan, data, RecordOptions(on_refused="drop", **keywords))


def count_for(plan: Plan, data: Any, options: RecordOptions) -> Counts:
    """Return the exact tables that a release of the plan measures, and the tables of invariants."""
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
    part : plan that will be measured, or what remains of it after the first of two stages.
    options : options for reading the records. At most ``options.rows_per_person`` rows of each
        person are counted; None means one row.
    checked : attributes that no block measures, but whose values are checked: a row with a value
        outside their domain is dropped too. They have no effect if ``data`` are counts.
    also : attribute sets whose tables are counted in addition.

    Raises
    ------
    DataError
        The records cannot be read. Or the schema allows more rows per person than the budget
        protects, and no person column is given by which the rows could be limited. Or ``data`` are
        counts that include more rows per person than the budget protects, or that were counted
        without the person column of the schema.
    LimitExceeded
        A table has more than `MOST_CELLS` cells, or counting needs more memory than the options
        allow.
    """
    for block in part.blocks.values():
        if (cells := math.prod(part.schema.sizes(block.attributes))) > MOST_CELLS:
            raise LimitExceeded(
                f"This plan measures a table of {len(block.attributes)} attributes with"
                f" {cells:.2e} cells. A release allows at most {MOST_CELLS:,} cells per table."
                " Choose a mechanism that measures smaller tables, such as 'querysmasher'."
            )
    data = read_counts(data)
    rows_per_person = options.rows_per_person or 1
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
        raise DataError(part.schema.rows_per_person_conflict(rows_per_person))
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

    No block measures these attributes. A row with another value than that of the cell is
    dropped nevertheless, like any row outside the schema.
    """
    sizes = {
        name: w.schema[name].size
        for w in workloads
        for group in w.groups
        for name in group.attributes
    }
    return [name for name, size in sizes.items() if size == 1]


def maximal_sets(part: Measurable) -> list[Space]:
    """Return the attribute sets of blocks, without sets that are contained in another one.

    Of the measured tables, only those on the returned sets are counted. The other tables are
    margins of them.
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
