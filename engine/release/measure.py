"""Measure the strategy of a plan on records: count, spend, draw noise and save, in this order.

A release runs in six steps:

1. count the records, which reveals nothing,
2. write the seed of its noise to the noise journal,
3. spend budget on the ledger,
4. draw the noise,
5. save the result under the key of the spend,
6. delete the journal.

A second call with the same key returns the saved result. After a crash between steps 3 and 5, the
same call with the same records draws the same noise from the journal and saves the result without a
second spend. This needs an operating system with file locks, see `engine.ledger.release_files`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Unpack

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._validation import check_type
from engine.errors import Cancelled, LedgerError, PlanError, ResultLost
from engine.ledger import Ledger, Receipt, release_key
from engine.ledger.balance import INVARIANTS_NOTE_KIND
from engine.ledger.ledger import MAX_NOTE_CHARS
from engine.ledger.release_files import INTERRUPTED, journal, journal_state
from engine.mechanisms import load_plan
from engine.plans import Block, Plan
from engine.plans.blocks import is_on_curve
from engine.progress import Progress, defer_interrupts
from engine.records import MEMORY_LIMIT, Counts, RecordKeywords, RecordOptions
from engine.release.add_noise import check_blocks, draw
from engine.release.ingest import (
    Intake,
    Measurable,
    check_invariants,
    check_repeat,
    check_rows_are_dropped,
    count_for,
    counts_for,
    fingerprint_of,
    maximal_sets,
    status_reporter,
    table_digest,
)
from engine.release.measurement import Archive, Drawn, Measurement, estimate, write_archive
from engine.release.noise import Entropy, fresh_seed
from engine.release.rehearsal_noise import refuse_seed, rehearsal_bits
from engine.residuals import Space
from engine.residuals.marginals import IdentityStrategy

FORMAT, REHEARSAL = "measurement/1", "rehearsal/1"
# The longest possible receipt. The size of a result file with this receipt is the disk space to
# reserve before budget is spent.
_LONGEST_RECEIPT = Receipt(
    dataset="-" * 200,
    key="-" * 500,
    pcost=1 / 3,
    plan_hash="",
    note="",
    seq=0,
    utc="-" * 40,
    hash="",
    fresh=False,
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
        `count_marginals`.  None returns the stored result of an earlier release without comparing
        records.
    dataset : name of the dataset on the ledger whose budget is charged.
    ledger : ledger, or path of an existing ledger.
    attempt : number of the release of this plan, from 1.  If this number was released before, the
        stored result is returned, provided that the counted records are the same in any order and
        format.  A new number spends budget and draws noise again.
    rehearsal : whether to run without a ledger on simulated or public data.  The result must not be
        published.
    seed : seed of the noise of a rehearsal; the same seed, plan and records give the same result.
        A release has no seed.
    on_refused : what happens to rows outside the schema.  A release allows only "drop": each such
        row is dropped, whatever the other rows are, and `check_records` reports how many.  For a
        rehearsal the default is "error", which raises DataError.
    person : column that identifies the person of a row; by default the person column of the schema.
        At most ``plan.budget.rows_per_person`` rows of each person are counted.  Which rows are
        counted depends only on the rows of that person.  Without a person column, the curator
        declares that no person has more rows.
    count_column, ignore : columns that are not in the schema; see `count_marginals`.
    progress : function that receives a fraction from 0 to 1 and a text.
    intake : function that receives the curator's report, an `Intake`, before budget is spent.
    memory_limit : bytes that the exact tables may use.

    Guarantee: the complete procedure, even if it stops early, is ``plan.pcost / 2``-zCDP for the
    rows of one person under the neighbouring relation of ``plan.budget``.  The noise is
    discrete and exact, and the cost includes the rounding of floating-point numbers.  Budget is
    spent before noise is drawn.  For each key, noise is drawn once.  More than
    ``plan.max_records`` records do not make a release fail.

    If the schema has invariants, the release has subspace differential privacy with respect to
    them, and contains the declared totals instead of the totals of the records.  If the records
    contradict an invariant, an error is raised; a successful release reveals that they agree.

    Memory: a release needs memory for the exact tables and for the answers and estimates of one
    block at a time, which are written to the result file.  A rehearsal, which has no result file,
    needs memory for the answers and estimates of all blocks.

    Raises
    ------
    OtherRecords
        This attempt was released with other records.  This call spent nothing.
    DataError
        The records cannot be read, lack a column, or contradict an invariant; or an interrupted run
        of this release counted other records.  This call spent and drew nothing.
    PlanError
        An argument is not allowed, or a block of the plan cannot be measured.  Nothing was spent.
    LimitExceeded
        The tables, or the selection of rows per person, need too much memory.  Nothing was spent.
    LedgerError
        The ledger does not allow the release, or another run is working on it.  Nothing was spent.
    BudgetExceeded
        The remaining budget is too small.  Nothing was spent.
    ResultLost
        Budget was spent for this release, but its result cannot be returned: it was not saved, or
        its file is missing or was changed.  The noise cannot be drawn again either, because the
        journal is missing or another run has locked it.
    """
    check_type(
        "plan", plan, Plan, give="a Plan, as plan() and load_plan() return it", error=PlanError
    )
    check_intake(intake)
    options = RecordOptions(
        on_refused=on_refused or ("error" if rehearsal else "drop"),
        person=person,
        count_column=count_column,
        ignore=ignore,
        progress=status_reporter(progress),
        memory_limit=memory_limit,
    )
    if rehearsal:
        refuse_ledger(dataset, ledger)
        bits = rehearsal_bits(seed, "measure", plan.hash)
        answers = rehearse(plan, bits, lambda: count_for(plan, data, options), options, intake)
        return measurement_of(plan, answers, dataset="", key="", utc="", rehearsal=True)
    refuse_seed(seed)
    if not dataset or ledger is None:
        raise PlanError(
            "A release needs the name of a dataset and a ledger. Give both, or use rehearsal=True"
            " with simulated or public records."
        )
    book = Ledger.at(ledger)
    key = release_key(dataset=dataset, plan_hash=plan.hash, attempt=attempt)
    cost: dict[str, Any] = {
        "dataset": dataset,
        "pcost": plan.pcost,
        "pure_epsilon": plan.budget.pure_epsilon,
    }
    sets = maximal_sets(plan)

    def check(is_paid: bool) -> None:
        """Raise an error if the budget of the dataset does not allow the release."""
        book.status(dataset).definition.check_guarantee(plan.budget)
        if not is_paid:
            book.afford(**cost)
            check_curve(book, dataset, [plan.blocks], plan.pcost)

    def accept(counts: Counts) -> Callable[[], Receipt]:
        """Check the counted records; return the function that writes the spend to the ledger."""
        check_invariants(counts, plan.schema)
        records = fingerprint_of(book, dataset, counts, sets, intake)
        return lambda: _spend(book, plan, key=key, records=records, **cost)

    release = Release(
        measurable=plan,
        ledger=book,
        key=key,
        sets=sets,
        remedy=lambda: _remedy(book, plan, key),
        check=check,
        count=lambda: count_for(plan, data, options),
        accept=accept,
        write=lambda file, receipt, drawn: _write(file, plan, receipt, drawn),
        load=lambda: _stored(book, key, plan),
    )
    return release.run(options, intake, stored_only=data is None)


@dataclass(frozen=True, kw_only=True)
class Release:
    """Procedure of one release: of a plan, or of one stage of a two-stage release.

    Attributes
    ----------
    measurable : plan to measure, or what remains of a plan after the first stage.
    ledger : ledger whose budget is charged.
    key : key of the spend and of the result.
    sets : attribute sets of the tables by which records are compared with the records of a stored
        result; None if the release reads no records.
    remedy : function that returns a sentence for the error about other records: what to do.
    check : function that is called before records are read, with True if the key was spent already.
        It raises an error if the release is not allowed.
    count : function that counts the records.
    accept : function that is called with the counts.  It raises an error if they are not allowed,
        and otherwise returns the function that spends budget.
    write : function that writes the result file from the receipt and the answers of each block.
    load : function that returns the stored result.
    done_text : text of the last progress report.
    """

    measurable: Measurable
    ledger: Ledger
    key: str
    sets: list[Space] | None
    remedy: Callable[[], str]
    check: Callable[[bool], None]
    count: Callable[[], Counts]
    accept: Callable[[Counts], Callable[[], Receipt]]
    write: Callable[[BinaryIO, Receipt, Drawn], object]
    load: Callable[[], Measurement]
    done_text: str = "Released"

    def run(
        self,
        options: RecordOptions,
        intake: Callable[[Intake], object] | None,
        *,
        stored_only: bool = False,
    ) -> Measurement:
        """Return the stored result of the release; if there is none, count, spend, draw and save.

        If a stored result exists, the records are counted and compared with the records of that
        result; with ``stored_only`` it is returned without reading the records.
        """
        is_paid = self.ledger.find(self.key) is not None
        is_finished = is_paid and not is_unfinished(self.ledger, self.key)
        if is_finished and stored_only:
            return self.load()
        check_rows_are_dropped(options.on_refused)
        self.check(is_paid)
        counts = self.count()
        if is_finished:
            self._check_repeat(counts, intake)
            return self.load()
        saved = spend_draw_save(
            self.measurable,
            counts,
            ledger=self.ledger,
            key=self.key,
            spend=self.accept(counts),
            write=self.write,
        )
        if saved:
            # The release is paid and stored, so a callback that returns False no longer cancels it.
            with suppress(Cancelled):
                status_reporter(options.progress)(1.0, self.done_text)
        else:
            # another run released under this key after `is_finished` was computed, and it may have
            # counted other records
            self._check_repeat(counts, None)
        return self.load()

    def _check_repeat(self, counts: Counts, intake: Callable[[Intake], object] | None) -> None:
        """Raise OtherRecords if the stored result was measured on other records.

        If the records are the same, ``intake`` receives the curator's report.  Nothing is checked
        if ``sets`` is None.
        """
        if self.sets is not None:
            receipt, remedy = self.ledger.spent(self.key), self.remedy()
            check_repeat(self.ledger, receipt, counts, self.sets, intake, remedy=remedy)


def rehearse(
    part: Measurable,
    bits: Entropy | None,
    count: Callable[[], Counts],
    options: RecordOptions,
    intake: Callable[[Intake], object] | None = None,
) -> Answers:
    """Return noisy answers on simulated or public records, without a ledger.

    Parameters
    ----------
    part : plan to measure, or what remains of a plan after the first stage.
    bits : source of the random bits; None for the operating system.
    count : function that counts the records.
    options : options for reading the records; only the progress function is used.
    intake : function that receives the curator's report; None for no report.

    Returns
    -------
    Mapping from residual space to the noisy answers of its block in grid steps.
    """
    counts = count()
    check_invariants(counts, part.schema)
    check_blocks(part)
    if intake is not None:
        intake(Intake.of(counts))
    return dict(draw(part, counts, status_reporter(options.progress), bits))


def check_intake(intake: object) -> None:
    """Raise PlanError unless ``intake`` is a function or None."""
    if intake is not None and not callable(intake):
        raise PlanError(
            f"intake has type {type(intake).__name__}. Give a function that takes one argument, an"
            " Intake, or leave intake out."
        )


def refuse_ledger(dataset: str, ledger: object) -> None:
    """Raise PlanError if a rehearsal has a dataset or a ledger."""
    if dataset or ledger is not None:
        raise PlanError(
            "A rehearsal spends nothing, so it takes neither a dataset nor a ledger. Leave both"
            " out, or use rehearsal=False."
        )


def check_curve(
    ledger: Ledger, dataset: str, parts: Iterable[Mapping[Space, Block]], pcost: float
) -> None:
    """Raise LedgerError if the dataset has a budget in mu or (epsilon, delta) and a grid is coarse.

    A budget in mu or (epsilon, delta) requires that the privacy curve of a release, epsilon ->
    delta, is at most that of Gaussian noise of cost ``pcost``.  If answers are rounded to a coarse
    grid, the curve of the release can be higher.

    Parameters
    ----------
    parts : one mapping per measured plan, from residual space to block.
    pcost : privacy cost of all these blocks together.
    """
    if ledger.status(dataset).definition.kind == "gdp" and not is_on_curve(parts, pcost):
        raise LedgerError(
            "The total budget of this dataset is in mu or (epsilon, delta), which requires that the"
            " rounding of the answers is negligible. This plan has too many answers or too large a"
            " max_records for its budget. Nothing was spent. Remove queries, lower max_records, or"
            " raise the plan's budget."
        )


def _remedy(book: Ledger, plan: Plan, key: str) -> str:
    """Return what to do if the records are not those of the stored result under ``key``.

    The sentence names the lowest unused attempt number after that of the stored result.
    """
    dataset, _, number = key.rsplit("|", 2)
    attempt = int(number)
    while book.find(release_key(dataset=dataset, plan_hash=plan.hash, attempt=attempt)) is not None:
        attempt += 1
    return (
        f"To release these records, set attempt={attempt}, which spends again, or give another"
        " dataset with a separate budget. load_measurement() returns the stored answers."
    )


def compare_records(
    ledger: Ledger | str | os.PathLike[str],
    key: str,
    data: Any,
    **keywords: Unpack[RecordKeywords],
) -> Measurement:
    """Return the stored result of a release if it was measured on the records ``data``.

    Nothing is spent.

    Raises
    ------
    OtherRecords
        The release was measured on other records.
    LedgerError, ResultLost
        The stored result cannot be returned; see `load_measurement`.
    DataError
        The records cannot be read or lack a column.
    """
    book = Ledger.at(ledger)
    measurement = load_measurement(book, key)
    plan = measurement.plan
    counts, remedy = counts_for(plan, data, **keywords), _remedy(book, plan, key)
    check_repeat(book, book.spent(key), counts, maximal_sets(plan), intake=None, remedy=remedy)
    return measurement


def _spend(book: Ledger, plan: Plan, *, dataset: str, key: str, **cost: Any) -> Receipt:
    """Spend the cost of a plan and return the receipt.

    If the schema has exact totals, a note that names them is written to the ledger first.  In this
    order a crash cannot leave a spend without its note.
    """
    kind = INVARIANTS_NOTE_KIND.removeprefix("note:")
    if (exact := plan.schema.exact_text) and not book.notes(kind=kind, key=key):
        book.note(dataset=dataset, kind=kind, text=exact[:MAX_NOTE_CHARS].strip(), key=key)
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
    """Spend, then draw the noisy answers of ``part`` and save them under ``key``.

    Parameters
    ----------
    part : plan to measure, or what remains of a plan after the first stage.
    counts : exact tables of the records.
    spend : function that writes the spend durably to the ledger and returns its receipt.
    write : function that writes the result file from the receipt and the answers of the blocks.
        The answers of a block are drawn when `write` requests them, so that memory holds the
        answers of one block.

    Returns
    -------
    bool
        True if this call saved the result.  False if an earlier call spent under the same key, and
        either its result is saved or no journal is left from which its noise could be drawn again.

    Guarantee: the noise for one key is drawn once.  If the call that drew it crashes, the next call
    draws the same noise from its journal.  Disk space for the result is reserved before the spend.
    """

    def digest(seed: bytes) -> str:
        return table_digest(counts, maximal_sets(part), seed)

    def zeros() -> Drawn:
        return (
            (space, np.zeros(block.measurements, np.int64)) for space, block in part.blocks.items()
        )

    check_blocks(part)
    journal_lock = journal(
        ledger.path, key, seed=fresh_seed(), digest=digest, spent=lambda: ledger.find(key)
    )
    with (
        ledger.room_for(lambda file: write(file, _LONGEST_RECEIPT, zeros())) as reserved_file,
        defer_interrupts(),
        journal_lock as (own_journal, has_spend),
    ):
        if own_journal is None:
            return False
        if is_continued := has_spend and _unsaved(ledger, key):
            own_journal.check(digest(own_journal.seed))
        # the spend comes before the noise, so that a crash between the two does not harm privacy
        receipt = spend()
        if not receipt.fresh and not is_continued:
            own_journal.remove()
            return False
        # A receipt must be fresh to save a result. It is not fresh if an interrupted run wrote the
        # spend, but this run continues that run and has locked its journal.
        receipt = replace(receipt, fresh=True)
        # each call of `start_bits` starts the same stream of random bits again, so writing the file
        # again gives the same noise
        start_bits = partial(own_journal.bits, receipt.hash)

        def write_noisy_answers(file: BinaryIO) -> None:
            # no progress is reported, because a callback could interrupt before the result is saved
            write(file, receipt, draw(part, counts, _silent, start_bits()))

        ledger.save_result(receipt=receipt, content=write_noisy_answers, draft=reserved_file)
        # the noise could be computed from the seed in the journal, so the journal is deleted
        own_journal.remove()
    return True


def is_unfinished(ledger: Ledger, key: str) -> bool:
    """Return whether a release was interrupted after its spend and can be completed.

    This is true if no intact result is saved under ``key`` and the release has a journal that no
    active run has locked.  A call of `measure` with the same arguments and records then completes
    the release without a second spend.

    Raises
    ------
    LedgerError
        The journal is readable and no run has locked it, but nothing was spent under ``key``.  Or
        no intact result is saved, and the journal cannot be opened.  If the journal becomes
        readable again, the release can be completed, so it does not count as lost.
    """
    try:
        is_interrupted = journal_state(ledger.path, key) == INTERRUPTED
    except LedgerError:
        # a journal that cannot be opened does not matter if the result is saved
        if _unsaved(ledger, key):
            raise
        return False
    return is_interrupted and _unsaved(ledger, key)


def _unsaved(ledger: Ledger, key: str) -> bool:
    """Return whether the result under ``key`` was not saved, is missing or was changed."""
    try:
        ledger.result_path(key)
    except ResultLost:
        return True
    return False


def releases(ledger: Ledger, dataset: str) -> list[Receipt]:
    """Return the receipts of the releases of a dataset, oldest first.

    `load_measurement` returns the result for the key of a receipt.  Two-stage releases are not
    included; `engine.common_mechanism.stepwise` lists them.
    """
    rows = ledger.rows()
    return [
        Receipt.of(row, fresh=False)
        for row in rows
        # the plan hash of a stage of a two-stage release contains a colon
        if row.kind == "spend" and row.dataset == dataset and ":" not in row.plan_hash
    ]


def load_measurement(ledger: Ledger | str | os.PathLike[str], key: str) -> Measurement:
    """Return the stored result of a release.

    Raises
    ------
    ResultLost
        Budget was spent under this key, but its result was not saved, or its file is missing or was
        changed.
    LedgerError
        Nothing was spent under this key, or the stored file is damaged or of a two-stage release.
    """
    return _stored(Ledger.at(ledger), key)


def _stored(book: Ledger, key: str, plan: Plan | None = None) -> Measurement:
    """Return the stored release under ``key``; read its plan from the file if ``plan`` is None."""
    with Archive(path=book.result_path(key)) as archive:
        header = archive.head(key=key)
        if "step" in header:
            raise LedgerError(
                "This key is that of a step of a two-stage release, not of a one-step release. Read"
                " the steps with stepwise.resume(ledger, key), or open the page 'Coarse or fine' of"
                " the app."
            )
        archive.head(format=FORMAT)
        if plan is None:
            plan = load_plan(archive.text("plan.json"))
        # arrays are read from the file on access, which needs less memory
        answers = archive.answers({s: (block.measurements,) for s, block in plan.blocks.items()})
        estimates = archive.estimates({s: block.coordinates for s, block in plan.blocks.items()})
    return Measurement(
        plan=plan,
        dataset=header["dataset"],
        key=key,
        utc=header["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=plan.combine(estimates),
    )


def save_rehearsal(measurement: Measurement, path: str | os.PathLike[str]) -> None:
    """Write the answers and estimates of a rehearsal to a file, which `load_rehearsal` reads.

    The plan is not written.
    """
    with open(path, "wb") as file:
        answers, estimates = measurement.answers_on_grid.items(), measurement.estimates.items()
        write_archive(
            file,
            {"format": REHEARSAL},
            receipt=None,
            texts={},
            answers=answers,
            estimates=estimates,
        )


def load_rehearsal(plan: Plan, path: str | os.PathLike[str]) -> Measurement:
    """Return the rehearsal of ``plan`` that `save_rehearsal` wrote; arrays are read on access.

    Raises
    ------
    LedgerError
        The file is missing or damaged.
    """
    with Archive(path=Path(path)) as archive:
        archive.head(format=REHEARSAL)
        answers, estimates = archive.everything("answers"), archive.everything("estimates")
    return Measurement(
        plan=plan,
        dataset="",
        key="",
        utc="",
        rehearsal=True,
        answers_on_grid=answers,
        estimates=estimates,
    )


def _write(file: BinaryIO, plan: Plan, receipt: Receipt, drawn: Drawn) -> None:
    """Write the result file of a release: plan, answers, and the estimates computed from them."""
    # a file with the longest receipt is only written to measure its size, so its estimates are not
    # computed
    estimator = _zero_estimate if receipt is _LONGEST_RECEIPT else estimate
    texts = {"plan.json": plan.to_json()}
    estimates = lambda space, answers: estimator(plan.blocks[space], answers)  # noqa: E731
    write_archive(
        file, {"format": FORMAT}, receipt, texts=texts, answers=drawn, estimates=estimates
    )


def _zero_estimate(block: Block, _answers: npt.NDArray[np.int64]) -> Array:
    return np.zeros(block.coordinates)


def measurement_of(
    plan: Plan,
    answers: Mapping[Space, npt.NDArray[np.int64]],
    *,
    dataset: str,
    key: str,
    utc: str,
    rehearsal: bool,
) -> Measurement:
    """Return a measurement that contains noisy answers and the estimates computed from them.

    Parameters
    ----------
    answers : residual space -> noisy answers of its block in grid steps, shape (measurements,).
    """
    by_block = BlockEstimates(blocks=plan.blocks, answers=answers)
    # `plan.combine` returns ``by_block`` itself if the plan has nothing to combine.
    estimates = plan.combine(by_block)
    return Measurement(
        plan=plan,
        dataset=dataset,
        key=key,
        utc=utc,
        rehearsal=rehearsal,
        answers_on_grid=answers,
        estimates=by_block.stored() if estimates is by_block else estimates,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockEstimates(Mapping[Space, Array]):
    """Mapping from residual space to its estimate, in counts, computed on access.

    Attributes
    ----------
    blocks : residual space -> block.
    answers : residual space -> noisy answers of its block in grid steps.
    arrays : residual space -> estimate that was computed before; returned without computation.
    """

    blocks: Mapping[Space, Block]
    answers: Mapping[Space, npt.NDArray[np.int64]]
    arrays: Mapping[Space, Array] = field(default_factory=dict)

    def stored(self) -> BlockEstimates:
        """Return a copy of the mapping that holds estimates in memory.

        Only estimates of blocks with an identity factor are still computed on access.  Such an
        estimate is large and quickly computed from the answers.
        """
        arrays = {
            key: self[key]
            for key in self
            if not any(isinstance(s, IdentityStrategy) for _, s in self.blocks[key].factors)
        }
        return replace(self, arrays=arrays)

    def __getitem__(self, key: Space) -> Array:
        if key in self.arrays:
            return self.arrays[key]
        return estimate(self.blocks[key], self.answers[key])

    def __iter__(self) -> Iterator[Space]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)


def _silent(fraction: float, text: str) -> None:
    """Progress function that does nothing."""


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Return the plan in a JSON file."""
    try:
        return load_plan(Path(path).read_bytes())
    except OSError as error:
        raise PlanError(
            f"The plan file {path} cannot be read: {error.strerror}. Give the path of a"
            " readable plan file."
        ) from None
