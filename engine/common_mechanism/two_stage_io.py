"""Files and ledger state of two-stage releases.

The cost of both stages together is the maximum over cells of their summed costs, because a record is
in one cell in both stages.  This holds for the same records only, so both stages count the same
tables, and the ledger stores a keyed digest of the tables of the first stage.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, BinaryIO

import numpy as np

from engine._arrays import Array
from engine._untrusted import parse_json
from engine.common_mechanism.common_plan import CommonPlan, Residual, price
from engine.errors import LedgerError
from engine.ledger import Ledger, Receipt
from engine.plans import Block, Plan
from engine.plans.blocks import GUARD
from engine.progress import Progress
from engine.records import MEMORY_LIMIT, Counts
from engine.records.fingerprint import table_digest
from engine.release import Intake, Measurement
from engine.release.ingest import MOST_CELLS, count, maximal_sets, one_cell_attributes, teller
from engine.release.measure import Answers
from engine.release.measurement import estimate
from engine.release.result_file import Archive, Drawn, write_archive
from engine.residuals import Space

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

    Guarantee: that of `engine.release.ingest.counted_for`; a sum of parts equals the records of the first stage.
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


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A decision as it stands on the ledger.

    Attributes
    ----------
    option : name of the option taken, or "stop".
    verdict : what the rule said, or None where there was no rule.
    rule : name and numbers of the rule.
    by, reason : who chose, and why, where it was not the rule; empty otherwise.
    seq, utc : the row of the ledger.
    """

    option: str
    verdict: str | None
    rule: Mapping[str, Any]
    by: str
    reason: str
    seq: int
    utc: str


@dataclass(frozen=True)
class Paid:
    """What was paid until a look, and what each option costs in all, in pcost as decimal numbers: the ledger's digits.

    They are those of the machine that looked: another one may differ in the last digit of what it adds up.
    """

    spent: str
    prices: tuple[str, ...]

    def left(self, i: int) -> float:
        """Return what option i still costs, in decimals, as the ledger sums: floats would miss the last digit.

        Raises: LedgerError if what was spent fits no such option.

        >>> Paid("0.4", ("0.9999999999999998",)).left(0)
        0.5999999999999998
        """
        exact = Decimal(self.prices[i]) - Decimal(self.spent)
        if exact < 0 or Decimal(repr(float(exact))) != exact:
            raise LedgerError("What the look spent does not fit these options; the file of the look was changed.")
        return float(exact)


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """What was done so far with one look: what a page shows when it is opened again.

    Attributes
    ----------
    common : the options.
    look : the measured common part.
    choices : the decisions so far, oldest first; only a "stop" can be followed by another.
    finished : the measurement of the chosen plan, once it is there.
    paid : what was spent for this look and all before it, and what is left to pay for each option.
    lost : attempts at the last step whose result was spent for and never saved, and which may still be at work.
    begun : the next attempt was paid for and broke off: `finish` ends it with the same records and spends nothing.
    """

    common: CommonPlan
    look: Measurement
    choices: tuple[Choice, ...]
    finished: Measurement | None
    paid: Paid
    lost: tuple[int, ...] = ()
    begun: bool = False

    @property
    def choice(self) -> Choice | None:
        """The decision that holds."""
        return self.choices[-1] if self.choices else None


FORMAT = "step/1"
LOOK, REST = "look", "rest"


def look_measurement(
    common: CommonPlan, answers: Answers, *, key: str, dataset: str, utc: str, rehearsal: bool
) -> Measurement:
    """Return the measurement of the common part from its released answers."""
    plan = common.look
    return Measurement(
        plan=plan,
        dataset=dataset,
        key=key,
        utc=utc,
        rehearsal=rehearsal,
        answers_on_grid=answers,
        estimates={s: estimate(plan.blocks[s], a) for s, a in answers.items()},
    )


def chosen_measurement(
    common: CommonPlan, i: int, looked: Measurement, answers: Answers, *, key: str, utc: str
) -> Measurement:
    """Return the measurement of option i from a look and the released answers of what was left."""
    blocks = common.residuals[i].blocks
    in_counts: dict[Space, Array] = {
        s: a.reshape([len(f.rows) for _, f in blocks[s].factors]).astype(np.float64) * blocks[s].grid
        for s, a in answers.items()
    }
    return Measurement(
        plan=common.options[i],
        dataset=looked.dataset,
        key=key,
        utc=utc,
        rehearsal=looked.rehearsal,
        answers_on_grid=answers,
        estimates=common.combine(i, looked.estimates, in_counts),
    )


def write_look(file: BinaryIO, common: CommonPlan, receipt: Receipt, drawn: Drawn) -> None:
    """Write a look with all options, so that it can be finished from this file and the ledger alone."""
    found = look_measurement(common, dict(drawn), key="", dataset="", utc="", rehearsal=False)
    texts = _going_on(common, receipt.pcost)
    _write(file, receipt, LOOK, found, texts)


def write_rest(file: BinaryIO, common: CommonPlan, i: int, looked: Measurement, receipt: Receipt, drawn: Drawn) -> None:
    """Write the step with the combined estimates; where it leads to the next choice of a chain, as the look of that."""
    found = chosen_measurement(common, i, looked, dict(drawn), key="", utc="")
    if leads_on(common, i) and common.following is not None:
        texts = _going_on(common.following, common.options[i].budget.pcost)
        _write(file, receipt, LOOK, found, texts | {"look.txt": looked.key})
        return
    _write(file, receipt, REST, found, {"plan.json": common.options[i].to_json(), "look.txt": looked.key})


def _going_on(common: CommonPlan, spent: float) -> dict[str, str]:
    """What the next step needs: the options, what was spent, and what each costs in all, as decimal numbers."""
    prices = [repr(price(option)) for option in common.options]
    return {"common.json": common.to_json(), "spent.txt": repr(spent), "prices.json": json.dumps(prices)}


def leads_on(common: CommonPlan, i: int) -> bool:
    """Whether an option is the look of the next choice of a chain."""
    return common.following is not None and i == len(common.options) - 1


def _write(file: BinaryIO, receipt: Receipt, step: str, found: Measurement, texts: Mapping[str, str]) -> None:
    head, drawn, made = {"format": FORMAT, "step": step}, found.answers_on_grid.items(), found.estimates.items()
    write_archive(file, head, receipt, texts=texts, answers=drawn, estimates=made)


def _shapes(blocks: Mapping[Space, Block]) -> dict[Space, tuple[int, ...]]:
    """Return the shapes of the drawn answers of blocks."""
    return {space: (block.measurements,) for space, block in blocks.items()}


def _coordinates(plan: Plan) -> dict[Space, tuple[int, ...]]:
    """Return the shapes of the class coordinates of a plan's spaces."""
    return {space: tuple(n - 1 for n in plan.schema.sizes(space)) for space in plan.blocks}


def stored_look(book: Ledger, key: str, common: CommonPlan | None = None) -> tuple[CommonPlan, Measurement, Paid]:
    """Return the options, the measurement of a look, and what was paid until then.

    Options that are known already need not be made again.
    Raises: ResultLost if it was spent but never saved; LedgerError if it is no look, or its file is damaged.
    """
    with Archive(path=book.result_path(key)) as archive:
        head = archive.head(key=key, format=FORMAT, step=LOOK)
        common = common or CommonPlan.from_json(archive.text("common.json"))
        paid = _paid(archive, common)
        # what a closer look drew were the answers of another choice's rest; its estimates hold them
        answers = archive.answers({} if "look.txt" in archive else _shapes(common.look.blocks))
        estimates = archive.estimates(_coordinates(common.look))
    found = Measurement(
        plan=common.look,
        dataset=head["dataset"],
        key=key,
        utc=head["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=estimates,
    )
    return common, found, paid


def _paid(archive: Archive, common: CommonPlan) -> Paid:
    """What a file says was paid; earlier ones leave the prices to the plans that they hold."""
    spent, prices = archive.text("spent.txt").decode(), [repr(price(option)) for option in common.options]
    if "prices.json" not in archive:
        return Paid(spent, tuple(prices))
    told = [str(one) for one in parse_json(archive.text("prices.json"))]
    if not np.allclose([float(one) for one in told], [float(one) for one in prices], rtol=GUARD - 1.0, atol=0.0):
        raise ValueError("these are the prices of other plans")
    return Paid(spent, tuple(told))


def stored_rest(book: Ledger, common: CommonPlan, i: int, key: str) -> Measurement:
    """Return the measurement of option i that was stored under the key of its last step; raises as `stored_look`."""
    with Archive(path=book.result_path(key)) as archive:
        head = archive.head(key=key, format=FORMAT, step=LOOK if leads_on(common, i) else REST)
        answers = archive.answers(_shapes(common.residuals[i].blocks))
        estimates = archive.estimates(_coordinates(common.options[i]))
    return Measurement(
        plan=common.options[i],
        dataset=head["dataset"],
        key=key,
        utc=head["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=estimates,
    )
