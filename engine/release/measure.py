"""Measure: count, spend, draw noise and save, in this order.

The order is the same under any crash: count (which releases nothing), write the noise journal,
spend durably, draw, save under the same key, delete the journal, return.  One key always returns
the stored result and never draws twice.  After a crash between spend and save, the same call on the
same records draws the same noise from the journal, saves the result, and spends nothing more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._validation import instance
from engine.errors import LedgerError, PlanError, ResultLost
from engine.ledger import Ledger, Receipt, release_key
from engine.ledger.balance import EXACT
from engine.ledger.ledger import NOTE
from engine.ledger.noise_journal import broken_off, journal
from engine.mechanisms import load_plan
from engine.plans import Block, Plan
from engine.plans.blocks import on_curve
from engine.progress import Progress, unbroken
from engine.records import MEMORY_LIMIT, Counts
from engine.records.fingerprint import table_digest
from engine.release.ingest import (
    Intake,
    Measurable,
    check_invariants,
    check_repeat,
    counted_for,
    left_out,
    maximal_sets,
    recognised,
    teller,
)
from engine.release.measurement import Measurement, estimate
from engine.release.noise import fresh_seed
from engine.release.noisy_answers import check_blocks, draw
from engine.release.rehearsal_noise import refuse_seed, rehearsal_bits
from engine.release.result_file import Archive, Drawn, write_archive
from engine.residuals import Space

FORMAT, REHEARSAL = "measurement/1", "rehearsal/1"
_EMPTY = Receipt(
    dataset="-" * 200, key="-" * 500, pcost=1 / 3, plan_hash="", note="", seq=0, utc="-" * 40, hash="", fresh=False
)
Answers = Mapping[Space, npt.NDArray[np.int64]]


def measure(
    plan: Plan,
    data: Any,
    *,
    dataset: str = "",
    ledger: Ledger | str | os.PathLike[str] | None = None,
    attempt: int = 1,
    rehearsal: bool = False,
    seed: int | None = None,
    on_refused: str | None = None,
    person: str | None = None,
    count_column: str | None = None,
    ignore: Collection[str] = (),
    progress: Progress | None = None,
    intake: Callable[[Intake], object] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Measurement:
    """Measure a plan's strategy on records and spend its privacy cost exactly once.

    Parameters
    ----------
    plan : the plan to measure.
    data : a DataFrame, a path to CSV or parquet, an Arrow or Ibis table, or Counts; see
        `count_marginals`.  None returns the stored result of an earlier release without a
        comparison of records.
    dataset : name of the dataset on the ledger whose budget pays.
    ledger : the ledger, or the path of an existing one.
    attempt : the same attempt returns the stored result if the counted records are the same, in any
        order and format; a new number spends and draws again.
    rehearsal : run the same code on simulated or public data without a ledger.  The result must not
        be published.
    seed : seed of the noise of a rehearsal; the same seed, plan and records give the same result.
        A release has no seed.
    on_refused : a release drops rows outside the public domain ("drop"), each by its values alone;
        `check_records` reports them first.  A rehearsal refuses the table ("error") by default.
    person : column of the person of a row, by default the one in the schema.  At most
        ``plan.budget.rows_per_person`` rows of each person are counted, selected by that person's
        rows alone.  Without such a column, the curator declares that the data keep to this number.
    count_column, ignore : columns of numbers that are not in the schema; see `count_marginals`.
    intake : called before anything is spent, with the numbers of rows and the curator's warnings.

    Guarantee: the complete procedure, also if it stops early, is ``plan.pcost / 2``-zCDP for the
    rows of one person, added, removed or replaced as in ``plan.budget``: the noise is exact and
    discrete, rounding is charged, and the guarantee holds for every table that can be read.  Budget
    is spent before noise is drawn; one key never draws twice; no number of records makes a release
    fail.  If the schema has invariants, the release contains these public tables and not those of
    the records, and has subspace differential privacy with respect to them.  A release fails if the
    records disagree with an invariant, so success shows that they agree.

    Memory: the exact tables, and the answers and estimates of one block at a time, which are
    written to the result file and read from there.  A rehearsal has no file and holds all of them.

    Raises
    ------
    OtherRecords
        This plan was released for the dataset from other records; nothing was spent.
    DataError
        The records cannot be read, lack a column, or disagree with an invariant; nothing was spent.
        Or they are not those of the interrupted release; then nothing is drawn.
    LedgerError, BudgetExceeded
        The ledger refuses, or another run is working on this release; nothing was spent.
    ResultLost
        The key was spent, its result was not saved, and there is no journal or another run has it.
    """
    instance("plan", plan, Plan, give="a Plan, as plan() and load_plan() return it", error=PlanError)
    if intake is not None and not callable(intake):
        raise PlanError(f"intake has type {type(intake).__name__}. Give a function of an Intake, or leave it out.")
    tell = teller(progress)
    row_options: dict[str, Any] = {"person": person, "count_column": count_column, "ignore": ignore}
    row_options |= {"progress": tell, "memory_limit": memory_limit}
    if rehearsal:
        if dataset or ledger is not None:
            raise PlanError("A rehearsal spends nothing. Leave out dataset and ledger, or use rehearsal=False.")
        bits = rehearsal_bits(seed, "measure", plan.hash)
        counts = counted_for(plan, data, on_refused=on_refused or "error", **row_options)
        check_invariants(counts, plan.schema)
        check_blocks(plan)
        if intake is not None:
            intake(Intake.of(counts))
        answers = dict(draw(plan, counts, tell, bits))
        return measured(plan, answers, dataset="", key="", utc="", rehearsal=True)
    refuse_seed(seed)
    if not dataset or ledger is None:
        raise PlanError("A release needs the dataset's name and a ledger. Give both, or use rehearsal=True.")
    book = Ledger.at(ledger)
    key = release_key(dataset=dataset, plan_hash=plan.hash, attempt=attempt)
    previous_spend = book.find(key)
    is_finished = previous_spend is not None and not left_open(book, key)
    if is_finished and data is None:
        return load_measurement(book, key)
    left_out(on_refused)
    cost: dict[str, Any] = {"dataset": dataset, "pcost": plan.pcost, "pure_epsilon": plan.budget.pure_epsilon}
    book.status(dataset).definition.check_unit(plan.budget)
    if previous_spend is None:
        book.afford(**cost)
        check_curve(book, dataset, [plan.blocks], plan.pcost)
    counts = counted_for(plan, data, **row_options)
    if previous_spend is not None and is_finished:
        return _repeated(book, plan, previous_spend, counts, intake)
    check_invariants(counts, plan.schema)
    records = recognised(book, dataset, counts, maximal_sets(plan), intake)
    saved = spend_draw_save(
        plan,
        counts,
        ledger=book,
        key=key,
        spend=lambda: _spend(book, plan, key=key, records=records, **cost),
        write=lambda file, receipt, drawn: _write(file, plan, receipt, drawn),
    )
    # another run has released under this key in the meantime, perhaps other records
    if not saved:
        return _repeated(book, plan, book.spent(key), counts, None)
    tell(1.0, "Released")
    # arrays are read from the file on access, which needs less memory
    with Archive(path=book.result_path(key)) as archive:
        return _stored_measurement(archive, plan, key)


def check_curve(ledger: Ledger, dataset: str, parts: Iterable[Mapping[Space, Block]], pcost: float) -> None:
    """Raise LedgerError if a total in mu or epsilon would pay for noise off the Gaussian curve."""
    if ledger.status(dataset).definition.kind == "gdp" and not on_curve(parts, pcost):
        raise LedgerError(
            "The total of this dataset is a number on the curve of Gaussian noise. The plan is not on this curve: it "
            "releases too many answers at too small a budget, or allows too many records. Nothing was spent. Ask fewer "
            "queries, lower max_records or raise the plan's budget."
        )


def _repeated(
    book: Ledger, plan: Plan, previous_spend: Receipt, counts: Counts, intake: Callable[[Intake], object] | None
) -> Measurement:
    """Return the stored result of a release, after a check that the records are the same."""
    attempt = int(previous_spend.key.rpartition("|")[2])
    while book.find(release_key(dataset=previous_spend.dataset, plan_hash=plan.hash, attempt=attempt)) is not None:
        attempt += 1
    remedy = (
        f"To release these records, set attempt={attempt}, which spends again, or give another dataset with a separate "
        "budget. load_measurement() returns the stored answers."
    )
    check_repeat(book, previous_spend, counts, maximal_sets(plan), intake, remedy=remedy)
    return load_measurement(book, previous_spend.key)


def compare_records(
    ledger: Ledger | str | os.PathLike[str],
    key: str,
    data: Any,
    *,
    person: str | None = None,
    count_column: str | None = None,
    ignore: Collection[str] = (),
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Measurement:
    """Return the stored result of a release if `data` are its records; spends nothing.

    Raises
    ------
    OtherRecords
        The release was measured on other records.
    LedgerError, ResultLost, DataError
        As for `load_measurement` and `measure`.
    """
    book = Ledger.at(ledger)
    plan = load_measurement(book, key).plan
    columns: dict[str, Any] = {"person": person, "count_column": count_column, "ignore": ignore}
    counts = counted_for(plan, data, **columns, progress=progress, memory_limit=memory_limit)
    return _repeated(book, plan, book.spent(key), counts, None)


def _spend(book: Ledger, plan: Plan, *, dataset: str, key: str, **cost: Any) -> Receipt:
    """Note the exact totals of the schema, then spend, so that every spend has the note."""
    kind = EXACT.removeprefix("note:")
    if (exact := plan.schema.exact_text) and not book.notes(kind=kind, key=key):
        book.note(dataset=dataset, kind=kind, text=exact[:NOTE].strip(), key=key)
    return book.spend(dataset=dataset, key=key, plan_hash=plan.hash, **cost)


def spend_draw_save(
    part: Measurable,
    counts: Counts,
    *,
    ledger: Ledger,
    key: str,
    spend: Callable[[], Receipt],
    write: Callable[[BinaryIO, Receipt, Drawn], object],
) -> bool:
    """Draw and save the answers of a part after ``spend`` has spent durably for them.

    Parameters
    ----------
    part : the plan, or the part of one, to measure.
    counts : exact tables of the records.
    spend : spends for the part and returns the receipt.
    write : writes the result; it gets the answers block by block, each drawn when it is requested,
        so that memory holds only one of them.

    Returns
    -------
    False if the key was spent and drawn before.

    Guarantee: of all calls with one key exactly one draws, or after a crash another one the same
    noise, and returns only after the result is saved.  Disk space for the result is reserved before
    the spend.
    """

    def digest(seed: bytes) -> str:
        return table_digest(counts, maximal_sets(part), seed)

    def zeros() -> Drawn:
        return ((space, np.zeros(block.measurements, np.int64)) for space, block in part.blocks.items())

    check_blocks(part)
    own_journal = journal(ledger.path, key, seed=fresh_seed(), digest=digest, spent=lambda: ledger.find(key))
    with ledger.room_for(lambda file: write(file, _EMPTY, zeros())) as room, unbroken(), own_journal as (own, again):
        if own is None:
            return False
        if taken_up := again and _unsaved(ledger, key):
            own.check(digest(own.seed))
        # spend before drawing: a crash between the two loses time, but not privacy
        receipt = spend()
        if not receipt.fresh and not taken_up:
            own.remove()
            return False
        # the journal holder owns the spend and reproduces the same noise from its seed
        receipt = replace(receipt, fresh=True)
        # until the result is saved nothing may interrupt: no callback, no cancellation, no Ctrl-C;
        # if the file is written twice, the same noise is drawn twice
        bits = partial(own.bits, receipt.hash)
        drawn = partial(draw, part, counts, _silent)
        ledger.save_result(receipt=receipt, content=lambda file: write(file, receipt, drawn(bits())), draft=room)
        # the seed in the journal determines the noise, so the journal is deleted
        own.remove()
    return True


def left_open(ledger: Ledger, key: str) -> bool:
    """Return whether a spend has no saved result, and no run is working on it.

    The same call on the same records then completes it.
    """
    return broken_off(ledger.path, key) and _unsaved(ledger, key)


def _unsaved(ledger: Ledger, key: str) -> bool:
    try:
        ledger.result_path(key)
    except ResultLost:
        return True
    return False


def releases(ledger: Ledger, dataset: str) -> list[Receipt]:
    """Return the receipts of the releases of a dataset, oldest first, for `load_measurement`.

    Looks and last steps of two-stage releases are excluded; see `engine.common_mechanism.stepwise`.
    """
    rows = ledger.rows()
    return [
        Receipt.of(row, fresh=False)
        for row in rows
        # the plan hash of a two-stage step has a prefix with a colon
        if row.kind == "spend" and row.dataset == dataset and ":" not in row.plan_hash
    ]


def load_measurement(ledger: Ledger | str | os.PathLike[str], key: str) -> Measurement:
    """Return the stored result of a release.

    Raises
    ------
    ResultLost
        Budget was spent under this key, but its result was not saved.
    LedgerError
        Nothing was spent under this key, or the stored file is damaged.
    """
    with Archive(path=Ledger.at(ledger).result_path(key)) as archive:
        return _stored_measurement(archive, load_plan(archive.text("plan.json")), key)


def _stored_measurement(archive: Archive, plan: Plan, key: str) -> Measurement:
    """Return the stored release of a plan."""
    header = archive.head(key=key, format=FORMAT)
    answers = archive.answers({space: (block.measurements,) for space, block in plan.blocks.items()})
    estimates = archive.estimates({space: block.coordinates for space, block in plan.blocks.items()})
    return Measurement(
        plan=plan,
        dataset=header["dataset"],
        key=key,
        utc=header["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=plan.combine(estimates),
    )


def keep_rehearsal(found: Measurement, path: str | os.PathLike[str]) -> None:
    """Write the arrays of a rehearsal, without its plan, to a file for `kept_rehearsal`."""
    with open(path, "wb") as file:
        answers, estimates = found.answers_on_grid.items(), found.estimates.items()
        write_archive(file, {"format": REHEARSAL}, None, texts={}, answers=answers, estimates=estimates)


def kept_rehearsal(plan: Plan, path: str | os.PathLike[str]) -> Measurement:
    """Return the rehearsal of a plan from its file; arrays are read on access.

    Raises
    ------
    LedgerError
        The file is missing or damaged.
    """
    with Archive(path=Path(path)) as archive:
        archive.head(format=REHEARSAL)
        answers, estimates = archive.everything("answers"), archive.everything("estimates")
    return Measurement(
        plan=plan, dataset="", key="", utc="", rehearsal=True, answers_on_grid=answers, estimates=estimates
    )


def _write(file: BinaryIO, plan: Plan, receipt: Receipt, drawn: Drawn) -> None:
    # the placeholder only reserves disk space
    estimator = _zero_estimate if receipt is _EMPTY else estimate
    texts = {"plan.json": plan.to_json()}
    estimates = lambda space, answers: estimator(plan.blocks[space], answers)  # noqa: E731
    write_archive(file, {"format": FORMAT}, receipt, texts=texts, answers=drawn, estimates=estimates)


def _zero_estimate(block: Block, _answers: npt.NDArray[np.int64]) -> Array:
    return np.zeros(block.coordinates)


def measured(
    plan: Plan, answers: Mapping[Space, npt.NDArray[np.int64]], *, dataset: str, key: str, utc: str, rehearsal: bool
) -> Measurement:
    """Return a measurement from the released integers of a plan's blocks, shape (measurements,)."""
    estimates = plan.combine({s: estimate(plan.blocks[s], a) for s, a in answers.items()})
    return Measurement(
        plan=plan,
        dataset=dataset,
        key=key,
        utc=utc,
        rehearsal=rehearsal,
        answers_on_grid=answers,
        estimates=estimates,
    )


def _silent(fraction: float, text: str) -> None:
    """Ignore progress: after the spend no callback may interrupt the run."""


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Return the plan in a JSON file."""
    try:
        return load_plan(Path(path).read_bytes())
    except OSError as error:
        raise PlanError(f"The plan file {path} cannot be read: {error.strerror}.") from None
