"""Measuring: the only place where exact counts meet noise.

Order under any crash: count (nothing is released), spend durably, draw, save under the same key, return.  The same key
always returns the stored result and never draws twice.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from engine.errors import Cancelled, DataError, LimitExceeded, PlanError
from engine.mechanisms import load_plan
from engine.plans import Block, Plan
from engine.release.archive import Archive, write_archive
from engine.release.ledger import Ledger, Receipt, release_key
from engine.release.noise import discrete_gaussian, discrete_laplace
from engine.release.reconstruct import Measurement, estimate, estimate_shape, strategy_answers
from engine.release.records import MEMORY_LIMIT, Counts, count_marginals
from engine.spaces import Space
from engine.threads import threads_for
from engine.workload import Schema, Workload

FORMAT = "measurement/1"
MOST_CELLS = 2**27  # cells of one table; a release works on a few arrays of that many numbers
Progress = Callable[[float, str], object]
Answers = Mapping[Space, npt.NDArray[np.int64]]


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
    """What happened to the rows that were read: private, for the curator's screen only, never part of a release."""

    rows_in: int
    counted: int
    refused: int
    reasons: Mapping[str, Mapping[str, int]]


def measure(
    plan: Plan,
    data: Any,
    *,
    dataset: str = "",
    ledger: Ledger | str | os.PathLike[str] | None = None,
    attempt: int = 1,
    rehearsal: bool = False,
    on_refused: str = "error",
    progress: Progress | None = None,
    intake: Callable[[Intake], object] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Measurement:
    """Measure a plan's strategy on records, spending its privacy cost exactly once.

    Parameters
    ----------
    data : a DataFrame, a path to CSV or parquet, an Arrow or Ibis table, or Counts; see `count_marginals`.
    dataset : name of the dataset in the ledger; its budget pays.
    ledger : the ledger, or the path of an existing one.
    attempt : the same attempt returns the stored result; a new number spends and draws again.
    rehearsal : run the same code on simulated or public data without a ledger; nothing of it may be published.
    on_refused : "error" refuses tables with rows outside the public domain, "drop" leaves such rows out.
    intake : called with the numbers of rows read, counted and refused.

    Guarantee: the released integers are ``plan.pcost / 2``-zCDP for adding or removing one record (exact discrete
    Gaussian noise, rounding charged); budget is spent before noise is drawn; one key never draws twice.

    Raises
    ------
    DataError : the records do not fit the schema, or are more than the plan's public cap; nothing was spent.
    LedgerError, BudgetExceeded : the ledger refuses; nothing was spent.
    ResultLost : the key was spent, but its result was never saved.
    """
    tell = teller(progress)
    if rehearsal:
        if dataset or ledger is not None:
            raise PlanError("A rehearsal spends nothing. Leave out dataset and ledger, or set rehearsal=False.")
        counts = count(plan, data, on_refused, tell, intake, memory_limit, single_cells(plan.workload))
        return _measured(plan, draw(plan, counts, tell), dataset="", key="", utc="", rehearsal=True)
    if not dataset or ledger is None:
        raise PlanError("A release needs the dataset's name and a ledger. Give both, or set rehearsal=True.")
    book = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
    key = release_key(dataset=dataset, plan_hash=plan.hash, attempt=attempt)
    if book.find(key) is not None:
        return load_measurement(book, key)
    status = book.status(dataset)
    if plan.pcost > status.left:
        # the ledger would refuse as well, but only after the records were read
        book.spend(dataset=dataset, key=key, pcost=plan.pcost, plan_hash=plan.hash)
    counts = count(plan, data, on_refused, tell, intake, memory_limit, single_cells(plan.workload))
    done = spend_draw_save(
        plan,
        counts,
        ledger=book,
        spend=lambda: book.spend(dataset=dataset, key=key, pcost=plan.pcost, plan_hash=plan.hash),
        write=lambda file, receipt, answers: _write(file, plan, receipt, answers),
    )
    if done is None:
        return load_measurement(book, key)
    tell(1.0, "Released")
    receipt, answers = done
    return _measured(plan, answers, dataset=dataset, key=key, utc=receipt.utc, rehearsal=False)


def spend_draw_save(
    part: Measurable,
    counts: Counts,
    *,
    ledger: Ledger,
    spend: Callable[[], Receipt],
    write: Callable[[BinaryIO, Receipt, Answers], object],
) -> tuple[Receipt, Answers] | None:
    """Draw and save the answers of a part, once ``spend`` has durably spent for them; None when it was done before.

    Guarantee: of all calls with one key exactly one draws, and it returns only after its result is saved.
    """
    receipt = spend()
    if not receipt.fresh:
        return None
    # from here on nothing may stop the run: no progress callback, no cancelling, until the result is saved
    answers = draw(part, counts, _silent)
    ledger.save_result(receipt=receipt, content=lambda file: write(file, receipt, answers))
    return receipt, answers


def load_measurement(ledger: Ledger, key: str) -> Measurement:
    """Return the stored result of a release.

    Raises
    ------
    ResultLost : budget was spent under this key, but its result was never saved.
    LedgerError : nothing was spent under this key, or the stored file is damaged.
    """
    with Archive(path=ledger.result_path(key)) as archive:
        head = archive.head(key=key, format=FORMAT)
        plan = load_plan(archive.text("plan.json"))
        answers = archive.answers({space: (block.measurements,) for space, block in plan.blocks.items()})
        estimates = archive.estimates({space: estimate_shape(block) for space, block in plan.blocks.items()})
    return Measurement(
        plan=plan,
        dataset=head["dataset"],
        key=key,
        utc=head["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=plan.combine(estimates),
    )


def _write(file: BinaryIO, plan: Plan, receipt: Receipt, answers: Answers) -> None:
    estimates = {space: estimate(block, answers[space]) for space, block in plan.blocks.items()}
    texts = {"plan.json": plan.to_json()}
    write_archive(file, {"format": FORMAT}, receipt, texts=texts, answers=answers, estimates=estimates)


def _measured(
    plan: Plan, answers: Mapping[Space, npt.NDArray[np.int64]], *, dataset: str, key: str, utc: str, rehearsal: bool
) -> Measurement:
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


def count(
    part: Measurable,
    data: Any,
    on_refused: str,
    tell: Callable[[float, str], None],
    intake: Callable[[Intake], object] | None,
    memory_limit: int,
    checked: Iterable[str] = (),
) -> Counts:
    """Return the exact tables that a part is measured on; nothing is released.

    A row counts when it fits the domain of every attribute that is measured, or ``checked``.

    Raises: DataError when the records do not fit the schema, or are more than the part's public cap; LimitExceeded when
    a table is larger than a release can hold.
    """
    for block in part.blocks.values():
        if (cells := math.prod(part.schema.sizes(block.attributes))) > MOST_CELLS:
            raise LimitExceeded(
                f"This plan measures the table on {len(block.attributes)} attributes, which has {cells:.2e} cells; a "
                f"release holds at most {MOST_CELLS:,}. Its errors are exact, but it cannot be released: choose a "
                "mechanism that measures smaller tables, such as 'querysmasher'."
            )
    sets = maximal_sets(part)
    if not isinstance(data, Counts):
        sets += [(name,) for name in checked]
    counts = count_marginals(
        data,
        part.schema,
        sets,
        on_refused=on_refused,
        progress=lambda fraction, text: tell(0.8 * fraction, text),
        memory_limit=memory_limit,
    )
    if intake is not None:
        intake(
            Intake(rows_in=counts.rows_in, counted=counts.records, refused=counts.rows_refused, reasons=counts.refused)
        )
    if counts.records > part.max_records:
        raise DataError(
            f"The table has more records than the plan's public cap of {part.max_records:,}. Plan again with a larger "
            "max_records."
        )
    return counts


def single_cells(*workloads: Workload) -> list[str]:
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
            covered.update(_subsets(space))
    return kept


def _subsets(space: Space) -> list[Space]:
    out: list[Space] = [()]
    for name in space:
        out += [(*s, name) for s in out]
    return out


def draw(part: Measurable, counts: Counts, tell: Callable[[float, str], None]) -> dict[Space, npt.NDArray[np.int64]]:
    """Return z = rint(B x / grid) + exact discrete noise for every block."""
    wanted = list(dict.fromkeys(b.attributes for b in part.blocks.values()))
    tables = count_marginals(counts, part.schema, wanted, memory_limit=10**15)
    released = {}
    for i, (space, block) in enumerate(part.blocks.items()):
        with threads_for(max((len(s.rows) for _, s in block.factors), default=1)):
            exact = np.rint(strategy_answers(block, tables[block.attributes]).ravel() / block.grid).astype(np.int64)
        if block.law == "laplace":
            noise = discrete_laplace(scale=block.grid_noise, size=block.measurements)
        else:
            noise = discrete_gaussian(variance=block.grid_noise**2, size=block.measurements)
        released[space] = exact + noise
        tell(0.8 + 0.2 * (i + 1) / len(part.blocks), "Adding noise")
    return released


def teller(progress: Progress | None) -> Callable[[float, str], None]:
    def tell(fraction: float, text: str) -> None:
        if progress is not None and progress(fraction, text) is False:
            raise Cancelled("The measurement was cancelled before anything was spent.")

    return tell


def _silent(fraction: float, text: str) -> None:
    """Say nothing: after the spend nobody may stop the run."""


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Return the plan in a JSON file."""
    try:
        return load_plan(Path(path).read_bytes())
    except OSError as error:
        raise PlanError(f"The plan file {path} cannot be read: {error.strerror}.") from None


def rounding_share(plan: Plan) -> float:
    """Return the share of the privacy cost that pays for rounding and floating point error."""
    ideal = math.fsum((b.column_norm / b.noise) ** 2 for b in plan.blocks.values())
    return 1.0 - ideal / plan.pcost
