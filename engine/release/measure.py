"""Measure: count, spend, draw noise and save, in this order.

Exact counts to noisy whole numbers: strategy answers on the plan's grid, and the noise on them.

Measuring: the only place where exact counts meet noise.

Order under any crash: count (nothing is released), keep a journal, spend durably, draw, save under the same key, forget
the journal, return.  The same key always returns the stored result and never draws twice.  After a crash between spend
and save the same call with the same records draws the same noise from the journal, saves it, and is not charged again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import set_name
from engine._threads import threads_for
from engine._validation import instance
from engine.errors import LedgerError, PlanError, ResultLost
from engine.ledger import Ledger, Receipt, release_key
from engine.ledger.balance import EXACT
from engine.ledger.ledger import NOTE
from engine.ledger.noise_journal import broken_off, journal
from engine.mechanisms import load_plan
from engine.plans import Block, Plan
from engine.plans.blocks import DEVIATION, apply_factors, on_curve
from engine.progress import Progress, unbroken
from engine.records import MEMORY_LIMIT, Counts, count_marginals
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
from engine.release.measurement import Measurement, estimate, strategy_answers
from engine.release.noise import MOST_DRAWS, Entropy, discrete_gaussian, discrete_laplace, fresh_seed
from engine.release.rehearsal_noise import refuse_seed, rehearsal_bits
from engine.release.result_file import Archive, Drawn, write_archive
from engine.residuals import Space

MOST_BITS = 62  # of an answer before noise; noise itself has far fewer
MOST_NOISE_BITS = 36  # of the noise scale in steps of the grid: noise beyond 2^22 scales, which fits, is never drawn


def check_blocks(part: Measurable) -> None:
    """Measure every kind of block on an empty table, so that nothing can fail once the budget is spent.

    Raises
    ------
    PlanError : the strategy, noise or grid of a block cannot be measured on its attributes.
    """
    seen = set[tuple[object, ...]]()
    for block in part.blocks.values():
        sizes = part.schema.sizes(block.attributes)
        kind = (sizes, block.factors, block.noise, block.grid, block.law, block if block.weights is not None else None)
        if kind not in seen:
            seen.add(kind)
            _check_grid(block)
            _check_on_zeros(block, sizes, estimated=isinstance(part, Plan))
            if not block.column_norm * part.max_records / block.grid < 2.0**MOST_BITS:
                raise PlanError(_refused(block, "has answers that do not fit its grid"))
    if isinstance(part, Plan):
        try:
            # broadcast, zeros of any shape take no memory
            part.combine({key: np.broadcast_to(0.0, b.coordinates) for key, b in part.blocks.items()})
        except Exception:
            raise PlanError(_refused(None, "gives no estimates")) from None


def _check_grid(block: Block) -> None:
    """Raise PlanError unless the noise of a block can be drawn exactly and fits into 64 bits."""
    if block.law not in DEVIATION:
        raise PlanError(_refused(block, "has noise of another law"))
    if not 0.0 < block.grid < math.inf or math.frexp(block.grid)[0] != 0.5:
        raise PlanError(_refused(block, "has a grid that is no power of two"))
    if not 0.0 < block.noise < math.inf or not 1 <= block.grid_noise < 1 << MOST_NOISE_BITS:
        raise PlanError(_refused(block, "has noise that its grid cannot hold"))
    if not math.isclose(block.grid_noise * block.grid * DEVIATION[block.law], block.noise, rel_tol=1e-12):
        raise PlanError(_refused(block, "has noise that is no multiple of its grid"))
    if not 0 <= block.measurements < MOST_DRAWS:
        raise PlanError(_refused(block, "has too many measurements"))


def _check_on_zeros(block: Block, sizes: tuple[int, ...], *, estimated: bool) -> None:
    """Raise PlanError unless a block measures an empty table as zeros, and estimates it as zeros where it does."""
    try:
        matrices = [m for _, s in block.factors for m in (s.rows, s.pinv)]
        finite = all(np.isfinite(m).all() for m in (*matrices, *([] if block.weights is None else [block.weights])))
        answers = _on_grid(block, np.zeros(sizes, np.int64), within=True)
        sound = finite and block.sizes == sizes and answers.shape == (block.measurements,) and not answers.any()
        if sound and estimated:
            with np.errstate(invalid="ignore"):  # what has no weight is not estimated
                found = estimate(block, answers)
            sound = found.shape == block.coordinates and found.dtype == np.float64 and not np.nan_to_num(found).any()
    except Exception:  # matrices of other shapes lead to errors of many kinds
        sound = False
    if not sound:
        raise PlanError(_refused(block, "cannot be measured"))


def _refused(block: Block | None, reason: str) -> str:
    what = "its strategy" if block is None else f"the block on {set_name(block.attributes)}"
    return f"The plan is refused: {what} {reason}. Nothing was spent. Make the plan again."


def draw(
    part: Measurable, counts: Counts, tell: Callable[[float, str], None], entropy: Entropy | None = None
) -> Iterator[tuple[Space, npt.NDArray[np.int64]]]:
    """Yield z = rint(B x / grid) + exact discrete noise of every block, shapes (measurements,), each when it is asked.

    Tables that no block has to itself are held until the last, of answers those of one block at a time.
    """
    wanted = list(dict.fromkeys(b.attributes for b in part.blocks.values()))
    tables = count_marginals(counts, part.schema, wanted, memory_limit=10**15)
    bits = {"entropy": entropy} if entropy else {}
    for i, (space, block) in enumerate(part.blocks.items()):
        with threads_for(max((len(s.rows) for _, s in block.factors), default=1)):
            exact = _on_grid(block, tables[block.attributes], counts.records <= part.max_records)
        if block.law == "laplace":
            noise = discrete_laplace(scale=block.grid_noise, size=block.measurements, **bits)
        else:
            noise = discrete_gaussian(variance=block.grid_noise**2, size=block.measurements, **bits)
        yield space, exact + noise
        tell(0.8 + 0.2 * (i + 1) / len(part.blocks), "Adding noise")


def _on_grid(block: Block, table: npt.NDArray[np.int64], within: bool) -> npt.NDArray[np.int64]:
    """Return rint(B x / grid).

    The charged bound on rounding errors holds up to the plan's number of records.  Past it B x is computed in whole
    numbers, without any error, and what leaves 62 bits is clipped, which brings no two answers farther apart.
    """
    if within:
        return np.rint(strategy_answers(block, table).ravel() / block.grid).astype(np.int64)
    answers, shift = np.asarray(table, object), -math.frexp(block.grid)[1] + 1
    bits = [_fraction_bits(s.rows) for _, s in block.factors]
    whole = {s: _whole_numbers(s.rows, b) for (_, s), b in zip(block.factors, bits, strict=True)}
    answers = apply_factors(block, answers, whole.__getitem__)
    if block.weights is not None:
        bits.append(_fraction_bits(block.weights))
        answers = answers * _whole_numbers(block.weights, bits[-1])
    down = sum(bits) - shift
    limit = 2**MOST_BITS
    return np.array(
        [max(-limit, min(limit, _halved(int(z), down))) for z in np.asarray(answers, object).ravel()], np.int64
    )


def _fraction_bits(matrix: Array) -> int:
    """Return how many binary digits after the point make every entry a whole number."""
    return max(0, int(53 - np.frexp(matrix[matrix != 0])[1].min(initial=53)))


def _whole_numbers(matrix: Array, bits: int) -> npt.NDArray[np.object_]:
    """Return matrix * 2^bits, exactly, as Python integers."""
    return np.array([int(Fraction(v) * 2**bits) for v in matrix.ravel().tolist()], object).reshape(matrix.shape)


def _halved(number: int, bits: int) -> int:
    """Return number / 2^bits, rounded to the nearest whole number."""
    return number << -bits if bits <= 0 else (number + (1 << (bits - 1))) >> bits


FORMAT, REHEARSAL = "measurement/1", "rehearsal/1"
_BLANK = Receipt(
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
    """Measure a plan's strategy on records, spending its privacy cost exactly once.

    Parameters
    ----------
    data : a DataFrame, a path to CSV or parquet, an Arrow or Ibis table, or Counts; see `count_marginals`.  None
        returns the stored result of an earlier release without comparing records.
    dataset : name of the dataset in the ledger; its budget pays.
    ledger : the ledger, or the path of an existing one.
    attempt : the same attempt returns the stored result if the records that count are the same, in any order and
        format; a new number spends and draws again.
    rehearsal : run the same code on simulated or public data without a ledger; nothing of it may be published.
    seed : of the noise of a rehearsal, which is then the same at every call with the same plan and records; a release
        takes none.
    on_refused : a release leaves out rows outside the public domain ("drop"), each by its own values alone; to be told
        of them first, use `check_records`.  A rehearsal refuses the whole table ("error") unless told to drop.
    person : column that tells whose row it is, by default the one that the schema declares; at most
        ``plan.budget.rows_per_person`` rows of each person are counted, by a rule on that person's rows alone.  Without
        any the budget's number of rows is what the curator declares.
    count_column, ignore : what numbers are that the schema does not know; see `count_marginals`.
    intake : called, before anything is spent, with the numbers of rows and with what the curator must know of them.

    Guarantee: the whole procedure, whether it ends or not, is ``plan.pcost / 2``-zCDP for one person's rows, added,
    removed or replaced as ``plan.budget`` says (exact discrete noise, rounding charged), for every table that can be
    read; budget is spent before noise is drawn; one key never draws twice.  No number of records makes a release fail.
    Where the schema has invariants it puts those public tables in, not the records' own, and is subspace differential
    privacy beside them: a release of records that disagree fails, and that it did not says what the tables say.

    Memory: that of the exact tables, and of the answers and estimates of one block at a time, which go to the ledger's
    file as they come; what is returned reads them from there.  A rehearsal, which has no file, holds all of them.

    Raises
    ------
    OtherRecords : this plan was released for the dataset from other records; nothing was spent.
    DataError : the records cannot be read, lack a column, or disagree with an invariant; nothing was spent.  Also where
        they are not those that this release was begun with, before a crash; nothing is drawn then.
    LedgerError, BudgetExceeded : the ledger refuses, or another run is at work on this release; nothing was spent.
    ResultLost : the key was spent, its result was never saved, and no journal is left or another run is at work.
    """
    instance("plan", plan, Plan, give="a Plan, as plan() and load_plan() make them", error=PlanError)
    if intake is not None and not callable(intake):
        raise PlanError(
            f"intake was given as {type(intake).__name__}. Give a function of the rows' numbers, or nothing."
        )
    tell = teller(progress)
    of_rows: dict[str, Any] = {"person": person, "count_column": count_column, "ignore": ignore}
    of_rows |= {"progress": tell, "memory_limit": memory_limit}
    if rehearsal:
        if dataset or ledger is not None:
            raise PlanError("A rehearsal spends nothing. Leave out dataset and ledger, or use rehearsal=False.")
        bits = rehearsal_bits(seed, "measure", plan.hash)
        counts = counted_for(plan, data, on_refused=on_refused or "error", **of_rows)
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
    earlier = book.find(key)
    finished = earlier is not None and not left_open(book, key)
    if finished and data is None:
        return load_measurement(book, key)
    left_out(on_refused)
    cost: dict[str, Any] = {"dataset": dataset, "pcost": plan.pcost, "pure_epsilon": plan.budget.pure_epsilon}
    book.status(dataset).definition.check_unit(plan.budget)
    if earlier is None:
        book.afford(**cost)
        check_curve(book, dataset, [plan.blocks], plan.pcost)
    counts = counted_for(plan, data, **of_rows)
    if earlier is not None and finished:
        return _repeated(book, plan, earlier, counts, intake)
    check_invariants(counts, plan.schema)
    records = recognised(book, dataset, counts, maximal_sets(plan), intake)
    done = spend_draw_save(
        plan,
        counts,
        ledger=book,
        key=key,
        spend=lambda: _spend(book, plan, key=key, records=records, **cost),
        write=lambda file, receipt, drawn: _write(file, plan, receipt, drawn),
    )
    if not done:  # another run has released under this key in the meantime, perhaps other records
        return _repeated(book, plan, book.spent(key), counts, None)
    tell(1.0, "Released")
    # from the file, which takes memory only where it is looked at
    with Archive(path=book.result_path(key)) as archive:
        return _stored(archive, plan, key)


def check_curve(ledger: Ledger, dataset: str, parts: Iterable[Mapping[Space, Block]], pcost: float) -> None:
    """Raise LedgerError where a total in mu or epsilon would pay for noise that is not on the curve of Gaussian DP."""
    if ledger.status(dataset).definition.kind == "gdp" and not on_curve(parts, pcost):
        raise LedgerError(
            "The total of this dataset is a number on the curve of Gaussian noise. The plan releases too many answers "
            "at too small a budget, or allows too many records, to be on it. Nothing was spent. Ask fewer queries, "
            "lower max_records or raise the plan's budget."
        )


def _repeated(
    book: Ledger, plan: Plan, earlier: Receipt, counts: Counts, intake: Callable[[Intake], object] | None
) -> Measurement:
    """Return the stored result of a release after checking that it was measured on the records counted now."""
    attempt = int(earlier.key.rpartition("|")[2])
    while book.find(release_key(dataset=earlier.dataset, plan_hash=plan.hash, attempt=attempt)) is not None:
        attempt += 1
    remedy = (
        f"To release these records, set attempt={attempt}, which spends again, or give another dataset, with a budget "
        "of its own. load_measurement() returns the stored answers."
    )
    check_repeat(book, earlier, counts, maximal_sets(plan), intake, remedy=remedy)
    return load_measurement(book, earlier.key)


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
    """Return the stored result of a release if `data` are the records that it was measured on; spends nothing.

    Raises
    ------
    OtherRecords : the release was measured on other records.
    LedgerError, ResultLost, DataError : as for `load_measurement` and `measure`.
    """
    book = Ledger.at(ledger)
    plan = load_measurement(book, key).plan
    columns: dict[str, Any] = {"person": person, "count_column": count_column, "ignore": ignore}
    counts = counted_for(plan, data, **columns, progress=progress, memory_limit=memory_limit)
    return _repeated(book, plan, book.spent(key), counts, None)


def _spend(book: Ledger, plan: Plan, *, dataset: str, key: str, **cost: Any) -> Receipt:
    """Spend for a plan.  What is exact beside its noise is noted before, so that no spend stands without it."""
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
    """Draw and save the answers of a part, once ``spend`` has durably spent for them; False when it was done before.

    ``write`` gets the answers block by block, each drawn when it is asked for, so that beside the counts nobody has to
    hold more than one of them.

    Guarantee: of all calls with one key exactly one draws, or another one the same after a crash, and it returns only
    after its result is saved.  The space that the result needs on the disk is taken before the spend.
    """

    def digest(seed: bytes) -> str:
        return table_digest(counts, maximal_sets(part), seed)

    def blank() -> Drawn:
        return ((space, np.zeros(block.measurements, np.int64)) for space, block in part.blocks.items())

    check_blocks(part)
    own_journal = journal(ledger.path, key, seed=fresh_seed(), digest=digest, spent=lambda: ledger.find(key))
    with ledger.room_for(lambda file: write(file, _BLANK, blank())) as room, unbroken(), own_journal as (own, again):
        if own is None:
            return False
        if taken_up := again and _unsaved(ledger, key):
            own.check(digest(own.seed))
        # spend before drawing: a crash in between loses time, never privacy
        receipt = spend()
        if not receipt.fresh and not taken_up:
            own.remove()
            return False
        # who holds the journal of a spend stands for the run that made it: the noise is the same
        receipt = replace(receipt, fresh=True)
        # from here on nothing may stop the run until the result is saved: no listener, no cancelling, no Ctrl-C
        bits = partial(own.bits, receipt.hash)  # from the first on: written twice it is drawn twice, the same
        drawn = partial(draw, part, counts, _silent)
        ledger.save_result(receipt=receipt, content=lambda file: write(file, receipt, drawn(bits())), draft=room)
        # with its key and the result anyone could take the noise away
        own.remove()
    return True


def left_open(ledger: Ledger, key: str) -> bool:
    """Return whether a spend waits for its result and the same records end it, with no run at work on it."""
    return broken_off(ledger.path, key) and _unsaved(ledger, key)


def _unsaved(ledger: Ledger, key: str) -> bool:
    try:
        ledger.result_path(key)
    except ResultLost:
        return True
    return False


def releases(ledger: Ledger, dataset: str) -> list[Receipt]:
    """Return the receipts of all releases of a dataset that `load_measurement` opens, oldest first.

    Looks and what followed them are not among them; `engine.common_mechanism.stepwise` names those.
    """
    rows = ledger.rows()
    return [
        Receipt.of(row, fresh=False)
        for row in rows
        if row.kind == "spend" and row.dataset == dataset and ":" not in row.plan_hash  # steps put a word before it
    ]


def load_measurement(ledger: Ledger | str | os.PathLike[str], key: str) -> Measurement:
    """Return the stored result of a release.

    Raises
    ------
    ResultLost : budget was spent under this key, but its result was never saved.
    LedgerError : nothing was spent under this key, or the stored file is damaged.
    """
    with Archive(path=Ledger.at(ledger).result_path(key)) as archive:
        return _stored(archive, load_plan(archive.text("plan.json")), key)


def _stored(archive: Archive, plan: Plan, key: str) -> Measurement:
    """The result of a release of a plan."""
    head = archive.head(key=key, format=FORMAT)
    answers = archive.answers({space: (block.measurements,) for space, block in plan.blocks.items()})
    estimates = archive.estimates({space: block.coordinates for space, block in plan.blocks.items()})
    return Measurement(
        plan=plan,
        dataset=head["dataset"],
        key=key,
        utc=head["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=plan.combine(estimates),
    )


def keep_rehearsal(found: Measurement, path: str | os.PathLike[str]) -> None:
    """Write the numbers of a rehearsal, without its plan, to a file that `kept_rehearsal` reads in pieces."""
    with open(path, "wb") as file:
        answers, estimates = found.answers_on_grid.items(), found.estimates.items()
        write_archive(file, {"format": REHEARSAL}, None, texts={}, answers=answers, estimates=estimates)


def kept_rehearsal(plan: Plan, path: str | os.PathLike[str]) -> Measurement:
    """Return the rehearsal of a plan from its file; of large arrays only what is looked at is read.

    Raises: LedgerError when the file is gone or damaged.
    """
    with Archive(path=Path(path)) as archive:
        archive.head(format=REHEARSAL)
        answers, estimates = archive.everything("answers"), archive.everything("estimates")
    return Measurement(
        plan=plan, dataset="", key="", utc="", rehearsal=True, answers_on_grid=answers, estimates=estimates
    )


def _write(file: BinaryIO, plan: Plan, receipt: Receipt, drawn: Drawn) -> None:
    # of a blank only the size is asked
    made = _no_estimate if receipt is _BLANK else estimate
    texts = {"plan.json": plan.to_json()}
    estimates = lambda space, answers: made(plan.blocks[space], answers)  # noqa: E731
    write_archive(file, {"format": FORMAT}, receipt, texts=texts, answers=drawn, estimates=estimates)


def _no_estimate(block: Block, _answers: npt.NDArray[np.int64]) -> Array:
    return np.zeros(block.coordinates)


def measured(
    plan: Plan, answers: Mapping[Space, npt.NDArray[np.int64]], *, dataset: str, key: str, utc: str, rehearsal: bool
) -> Measurement:
    """Return a measurement from the released integers of a plan's blocks, each of shape (measurements,)."""
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
    """Say nothing: after the spend nobody may stop the run."""


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Return the plan in a JSON file."""
    try:
        return load_plan(Path(path).read_bytes())
    except OSError as error:
        raise PlanError(f"The plan file {path} cannot be read: {error.strerror}.") from None
