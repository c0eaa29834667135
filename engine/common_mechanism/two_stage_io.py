"""Files and ledger entries of two-stage releases.

A record is in one cell in both stages.  So the cost of both stages together is the maximum over
cells of their summed costs.  This holds for the same records only: both stages count the same
tables, and the ledger stores a keyed digest of the tables of the first stage.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, BinaryIO, Unpack

import numpy as np

from engine._arrays import Array
from engine._untrusted import parse_json
from engine.common_mechanism.common_plan import CommonPlan, Residual, option_cost
from engine.errors import LedgerError
from engine.ledger import Ledger, Receipt
from engine.plans import Block, Plan
from engine.plans.blocks import ROUNDING_FACTOR
from engine.records import Counts, RecordKeywords, RecordOptions
from engine.release import Intake, Measurement
from engine.release.ingest import MOST_CELLS, count, maximal_sets, one_cell_attributes, table_digest
from engine.release.measure import Answers
from engine.release.measurement import Archive, Drawn, estimate, write_archive
from engine.residuals import Space

# Prefix of the digest of a step that was measured on other records than its look.
OTHER = "other:"


def step_counts(
    common: CommonPlan, part: Plan | Residual, data: Any, options: RecordOptions
) -> Counts:
    """Return the tables of all options, so that every step uses the same rows and the same tables.

    With a ``person`` column, at most as many rows of each person as the budgets protect are used.
    """
    options = replace(options, rows_per_person=common.look.budget.rows_per_person)
    return count(part, data, options, step_checks(common), step_sets(common))


def counts_for_steps(common: CommonPlan, data: Any, **keywords: Unpack[RecordKeywords]) -> Counts:
    """Count a part of the records for a look and its last step; private, for the sum of all parts.

    Guarantee: that of `engine.release.ingest.counts_for`; a sum of parts equals the records of the
    first stage.
    """
    options = RecordOptions(on_refused="drop", **keywords)
    return step_counts(common, common.look, data, options)


def no_counts(common: CommonPlan) -> Counts:
    """Return counts without tables, for a step that measures nothing."""
    return Counts(schema=common.look.schema, tables={}, records=0)


def step_sets(common: CommonPlan) -> list[Space]:
    """Return the attribute sets of the look and of all options that are small enough to release."""
    plans = [common.look, *(plan for _, plan in common.analyses)]
    sets = {space for plan in plans for space in maximal_sets(plan)}
    return sorted(
        space for space in sets if math.prod(common.look.schema.sizes(space)) <= MOST_CELLS
    )


def step_checks(common: CommonPlan) -> list[str]:
    """Return the one-cell attributes whose cell a row must have in every step."""
    return one_cell_attributes(*(plan.workload for _, plan in common.analyses))


def changed_records(book: Ledger, digest: str, counts: Counts, common: CommonPlan) -> str:
    """Return why the records of a step are not those of its look, or "" if they are the same."""
    if digest.startswith(OTHER):
        return "The look itself was measured on other records than the one before it."
    same = hmac.compare_digest(
        digest, table_digest(counts, step_sets(common), book.secret("records"))
    )
    return (
        ""
        if same
        else "These are not the records that were looked at, or the ledger's key file was replaced."
    )


def report_separate_charges(
    intake: Callable[[Intake], object] | None, changed: str, cost: float
) -> Callable[[Intake], object] | None:
    """Return an intake callback that also reports why a step is charged alone."""
    if intake is None or not changed:
        return intake
    text = f"{changed} This step is charged alone: pcost {cost!r}."
    return lambda seen: intake(replace(seen, warnings=(*seen.warnings, text)))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A decision on the ledger.

    Attributes
    ----------
    option : name of the option taken, or "stop".
    verdict : option of the rule, or None without a rule.
    rule : name and options of the rule.
    by, reason : who decided, and why, if it was not the rule; otherwise empty.
    seq, utc : row of the ledger and its time.
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
    """Costs of a look and of the options, in pcost, as the decimal texts on the ledger.

    They were computed on the machine of the look; another machine may differ in the last digit.

    Attributes
    ----------
    spent : cost of this look and of all looks before it.
    prices : total cost of each option.
    """

    spent: str
    prices: tuple[str, ...]

    def left(self, i: int) -> float:
        """Return the remaining cost of option i in decimal arithmetic, as the ledger sums.

        Binary arithmetic would miss the last digit.

        Raises
        ------
        LedgerError
            The cost of the look does not match this option.

        >>> Paid("0.4", ("0.9999999999999998",)).left(0)
        0.5999999999999998
        """
        exact = Decimal(self.prices[i]) - Decimal(self.spent)
        if exact < 0 or Decimal(repr(float(exact))) != exact:
            raise LedgerError(
                "What the look spent does not fit these options; the file of the look was changed."
            )
        return float(exact)


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """State of a look: everything done so far, for a page that is opened again.

    Attributes
    ----------
    common : the options.
    look : the measured common part.
    choices : the decisions so far, oldest first; only a "stop" can be followed by another one.
    finished : measurement of the chosen plan, or None before it is finished.
    paid : cost of this look and of all looks before it, and the total cost of each option.
    lost : attempts at the last step that were spent but not saved; one may still be running.
    is_interrupted : whether the next attempt is spent and was interrupted.  `finish` completes it
        from the same records and spends nothing.
    """

    common: CommonPlan
    look: Measurement
    choices: tuple[Choice, ...]
    finished: Measurement | None
    paid: Paid
    lost: tuple[int, ...] = ()
    is_interrupted: bool = False

    @property
    def choice(self) -> Choice | None:
        """The decision in force, or None."""
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
    """Return the measurement of option i from a look and the released answers of the residual."""
    blocks = common.residuals[i].blocks
    in_counts: dict[Space, Array] = {
        s: (
            a.reshape([len(f.rows) for _, f in blocks[s].factors]).astype(np.float64)
            * blocks[s].grid
        )
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
    """Write a look with all options; to finish it takes this file and the ledger only."""
    measurement = look_measurement(common, dict(drawn), key="", dataset="", utc="", rehearsal=False)
    texts = _next_step_texts(common, receipt.pcost)
    _write(file, receipt, LOOK, measurement, texts)


def write_rest(
    file: BinaryIO, common: CommonPlan, i: int, looked: Measurement, receipt: Receipt, drawn: Drawn
) -> None:
    """Write the second stage: the chosen option with the combined estimates.

    If a further choice follows in the chain, this measurement is the look (first stage) of that
    choice, and is written as such.
    """
    measurement = chosen_measurement(common, i, looked, dict(drawn), key="", utc="")
    if has_next_choice(common, i) and common.following is not None:
        texts = _next_step_texts(common.following, common.options[i].budget.pcost)
        _write(file, receipt, LOOK, measurement, texts | {"look.txt": looked.key})
        return
    _write(
        file,
        receipt,
        REST,
        measurement,
        {"plan.json": common.options[i].to_json(), "look.txt": looked.key},
    )


def _next_step_texts(common: CommonPlan, spent: float) -> dict[str, str]:
    """Return the texts for the next step: the options, the cost so far and each option's total."""
    prices = [repr(option_cost(option)) for option in common.options]
    return {
        "common.json": common.to_json(),
        "spent.txt": repr(spent),
        "prices.json": json.dumps(prices),
    }


def has_next_choice(common: CommonPlan, i: int) -> bool:
    """Return whether an option is the look of the next choice of a chain."""
    return common.following is not None and i == len(common.options) - 1


def _write(
    file: BinaryIO, receipt: Receipt, step: str, measurement: Measurement, texts: Mapping[str, str]
) -> None:
    header = {"format": FORMAT, "step": step}
    drawn, estimates = measurement.answers_on_grid.items(), measurement.estimates.items()
    write_archive(file, header, receipt, texts=texts, answers=drawn, estimates=estimates)


def _answer_shapes(blocks: Mapping[Space, Block]) -> dict[Space, tuple[int, ...]]:
    """Return the shapes of the drawn answers of blocks."""
    return {space: (block.measurements,) for space, block in blocks.items()}


def _coordinate_shapes(plan: Plan) -> dict[Space, tuple[int, ...]]:
    """Return the shapes of the residual coordinates of a plan's spaces."""
    return {space: tuple(n - 1 for n in plan.schema.sizes(space)) for space in plan.blocks}


def stored_look(
    book: Ledger, key: str, common: CommonPlan | None = None
) -> tuple[CommonPlan, Measurement, Paid]:
    """Return the options, the measurement of a look, and the costs up to it.

    ``common`` are the options, if the caller has them; otherwise they are read from the file.

    Raises
    ------
    ResultLost
        The look was spent but never saved.
    LedgerError
        The result is not a look, or its file is damaged.
    """
    with Archive(path=book.result_path(key)) as archive:
        header = archive.head(key=key, format=FORMAT, step=LOOK)
        common = common or CommonPlan.from_json(archive.text("common.json"))
        paid = _stored_costs(archive, common)
        # the answers of a closer look are those of the previous residual; its estimates include
        # them
        answers = archive.answers(
            {} if "look.txt" in archive else _answer_shapes(common.look.blocks)
        )
        estimates = archive.estimates(_coordinate_shapes(common.look))
    measurement = Measurement(
        plan=common.look,
        dataset=header["dataset"],
        key=key,
        utc=header["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=estimates,
    )
    return common, measurement, paid


def _stored_costs(archive: Archive, common: CommonPlan) -> Paid:
    """Return the costs in a file."""
    spent, prices = (
        archive.text("spent.txt").decode(),
        [repr(option_cost(option)) for option in common.options],
    )
    told = [str(one) for one in parse_json(archive.text("prices.json"))]
    if not np.allclose(
        [float(one) for one in told],
        [float(one) for one in prices],
        rtol=ROUNDING_FACTOR - 1.0,
        atol=0.0,
    ):
        raise ValueError("these are the prices of other plans")
    return Paid(spent, tuple(told))


def stored_rest(book: Ledger, common: CommonPlan, i: int, key: str) -> Measurement:
    """Return the measurement of option i that is stored under the key of its last step.

    Raises the errors of `stored_look`.
    """
    with Archive(path=book.result_path(key)) as archive:
        header = archive.head(
            key=key, format=FORMAT, step=LOOK if has_next_choice(common, i) else REST
        )
        answers = archive.answers(_answer_shapes(common.residuals[i].blocks))
        estimates = archive.estimates(_coordinate_shapes(common.options[i]))
    return Measurement(
        plan=common.options[i],
        dataset=header["dataset"],
        key=key,
        utc=header["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=estimates,
    )
