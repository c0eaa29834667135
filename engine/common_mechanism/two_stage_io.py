"""Result files and ledger entries of two-stage releases.

The first stage, the look, measures the common part of all options; the second stage measures the
residual of the chosen option.  Both stages together cost as much as the plan of the option,
provided that they are measured on the same records.  To check this, both stages count the same
tables.  The ledger stores a keyed digest of the tables of the first stage, and the second stage
compares its tables with this digest.
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

# The ledger stores a digest of the records of each stage. This prefix marks a second stage that was
# measured on other records than its look (first stage).
OTHER_RECORDS_PREFIX = "other:"


def step_counts(
    common: CommonPlan, part: Plan | Residual, data: Any, options: RecordOptions
) -> Counts:
    """Count the exact tables of all options, for the first or the second stage.

    Both stages count the same tables, so that they count the same rows and have comparable digests.
    At most as many rows of each person are counted as the budget protects.  ``part`` is what this
    stage measures: the look (first stage) or a residual (second stage).
    """
    options = replace(options, rows_per_person=common.look.budget.rows_per_person)
    return count(part, data, options, _one_cell_attributes(common), step_sets(common))


def counts_for_steps(common: CommonPlan, data: Any, **keywords: Unpack[RecordKeywords]) -> Counts:
    """Count the tables of a two-stage release on one part of the records; the result is private.

    The sum of the counts of all parts can be passed to `look` and `finish` in place of records, see
    `engine.release.ingest.counts_for`.
    """
    options = RecordOptions(on_refused="drop", **keywords)
    return step_counts(common, common.look, data, options)


def no_counts(common: CommonPlan) -> Counts:
    """Return counts without tables, for a second stage that has nothing to measure."""
    return Counts(schema=common.look.schema, tables={}, records=0)


def step_sets(common: CommonPlan) -> list[Space]:
    """Return the attribute sets whose tables both stages count.

    These are the attribute sets that the look (first stage) and the plans measure.  A set that is
    contained in another set of the same plan is left out, and so is a set whose table has more than
    `MOST_CELLS` cells.
    """
    plans = [common.look, *(plan for _, plan in common.analyses)]
    sets = {space for plan in plans for space in maximal_sets(plan)}
    return sorted(
        space for space in sets if math.prod(common.look.schema.sizes(space)) <= MOST_CELLS
    )


def _one_cell_attributes(common: CommonPlan) -> list[str]:
    """Return the attributes of the options that have a single cell.

    No table is measured on them, but records with a value outside the cell are dropped.
    """
    return one_cell_attributes(*(plan.workload for _, plan in common.analyses))


def changed_records(book: Ledger, digest: str, counts: Counts, common: CommonPlan) -> str:
    """Return why this stage must be charged as a separate release; "" if there is no reason.

    There are two reasons.  The counted records are not the records of the look (first stage); or,
    in a chain of choices, the look was measured on other records than the look of the choice
    before.  ``digest`` is the digest of the look's tables from the ledger.
    """
    if digest.startswith(OTHER_RECORDS_PREFIX):
        return (
            "This first measurement was made on other records than that of the choice before it in"
            " the chain."
        )
    same = hmac.compare_digest(
        digest, table_digest(counts, step_sets(common), book.secret("records"))
    )
    if same:
        return ""
    return (
        "These are not the records of the first measurement, or the ledger's key file was replaced."
    )


def report_separate_charges(
    intake: Callable[[Intake], object] | None, changed: str, cost: float
) -> Callable[[Intake], object] | None:
    """Return ``intake``, extended by a warning that this stage is charged as a separate release.

    ``changed`` is the reason and ``cost`` the charge in pcost.  If the reason is "", there is no
    separate charge, and ``intake`` is returned unchanged.
    """
    if intake is None or not changed:
        return intake
    text = f"{changed} This step is charged alone: pcost {cost!r}."
    return lambda seen: intake(replace(seen, warnings=(*seen.warnings, text)))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Decision after a look (first stage), as it is written on the ledger.

    Attributes
    ----------
    option : name of the option that was chosen, or "stop".
    verdict : name of the option that the rule chose, or "stop"; None without a rule.
    rule : name and options of the rule.
    by, reason : person who decided, and the reason.  ``by`` is never "" if the option is not that
        of a rule.
    seq, utc : number and time of the row in the ledger.
    """

    option: str
    verdict: str | None
    rule: Mapping[str, Any]
    by: str
    reason: str
    seq: int
    utc: str

    @property
    def author(self) -> str:
        """Who decided, and why: "the rule", or the person, with the reason in parentheses.

        >>> what = {"option": "stop", "verdict": "1-way", "rule": {}}
        >>> Choice(**what, by="A. Reader", reason="too noisy.", seq=3, utc="").author
        'A. Reader, against the rule (too noisy)'
        """
        if not self.by:
            return "the rule"
        overruled = ", against the rule" if self.verdict not in (None, self.option) else ""
        reason = self.reason.rstrip(". ")
        return f"{self.by}{overruled}" + (f" ({reason})" if reason else "")


@dataclass(frozen=True)
class StepCosts:
    """Costs of a look (first stage) and of its options in pcost, as decimal texts.

    The texts are stored in the result file of the look, because other machines may compute costs
    that differ in the last digit.

    Attributes
    ----------
    spent : cost of this look, including all earlier looks of a chain.
    totals : cost of each option, including `spent`.
    """

    spent: str
    totals: tuple[str, ...]

    def remaining(self, position: int) -> float:
        """Return the cost of an option that remains to be paid after the first stage, in pcost.

        The difference is exact in decimal arithmetic, with which the ledger sums costs.

        Raises
        ------
        LedgerError
            The difference is negative or not a float, so the file was changed.

        >>> StepCosts("0.4", ("0.9999999999999998",)).remaining(0)
        0.5999999999999998
        """
        exact = Decimal(self.totals[position]) - Decimal(self.spent)
        if exact < 0 or Decimal(repr(float(exact))) != exact:
            raise LedgerError(
                "The result file of the first measurement was changed: the costs in it do not match"
                " the options in it. Restore the file from a copy."
            )
        return float(exact)


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """State of a two-stage release, read from the ledger and its result files.

    Attributes
    ----------
    common : the options.
    look : measurement of the common part.
    choices : the decisions, oldest first; only "stop" can be followed by another decision.
    finished : measurement of the chosen option; None if there is none yet.
    costs : cost of the look (first stage), and total cost of each option.
    lost : numbers of the attempts at the second stage that were spent but have no result; the last
        one may still be running.
    is_interrupted : whether an attempt at the second stage was spent and then interrupted; `finish`
        with the same records completes it and spends nothing more.
    """

    common: CommonPlan
    look: Measurement
    choices: tuple[Choice, ...]
    finished: Measurement | None
    costs: StepCosts
    lost: tuple[int, ...] = ()
    is_interrupted: bool = False

    @property
    def choice(self) -> Choice | None:
        """The latest decision, or None."""
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
    common: CommonPlan,
    position: int,
    look_result: Measurement,
    answers: Answers,
    *,
    key: str,
    utc: str,
) -> Measurement:
    """Return the measurement of the option at ``position``, which combines both stages.

    ``answers`` maps residual spaces to the released answers of the second stage, in grid steps.
    """
    blocks = common.residuals[position].blocks
    answers_in_counts: dict[Space, Array] = {}
    for space, grid_steps in answers.items():
        block = blocks[space]
        shape = [len(strategy.rows) for _, strategy in block.factors]
        answers_in_counts[space] = grid_steps.reshape(shape).astype(np.float64) * block.grid
    return Measurement(
        plan=common.options[position],
        dataset=look_result.dataset,
        key=key,
        utc=utc,
        rehearsal=look_result.rehearsal,
        answers_on_grid=answers,
        estimates=common.combine(position, look_result.estimates, answers_in_counts),
    )


def write_look(file: BinaryIO, common: CommonPlan, receipt: Receipt, drawn: Drawn) -> None:
    """Write the result file of a look (first stage).

    The file includes all options, so that `finish` needs no plan.
    """
    measurement = look_measurement(common, dict(drawn), key="", dataset="", utc="", rehearsal=False)
    texts = _next_step_texts(common, receipt.pcost)
    _write(file, receipt, LOOK, measurement, texts)


def write_second_stage(
    file: BinaryIO,
    common: CommonPlan,
    position: int,
    look_result: Measurement,
    receipt: Receipt,
    drawn: Drawn,
) -> None:
    """Write the result file of the second stage, with the estimates that combine both stages.

    If the option at ``position`` is a closer look (`has_next_choice`), it is the look (first stage)
    of the next choice.  In this case the file has the contents that `write_look` writes, and the
    key of the look before.
    """
    measurement = chosen_measurement(common, position, look_result, dict(drawn), key="", utc="")
    if has_next_choice(common, position) and common.following is not None:
        texts = _next_step_texts(common.following, common.options[position].budget.pcost)
        _write(file, receipt, LOOK, measurement, texts | {"look.txt": look_result.key})
        return
    _write(
        file,
        receipt,
        REST,
        measurement,
        {"plan.json": common.options[position].to_json(), "look.txt": look_result.key},
    )


def _next_step_texts(common: CommonPlan, spent: float) -> dict[str, str]:
    """Return the texts in the result file of a look (first stage), by file name.

    The texts have the options, the cost so far in pcost (``spent``), and the cost of each option.
    """
    totals = [repr(option_cost(option)) for option in common.options]
    return {
        "common.json": common.to_json(),
        "spent.txt": repr(spent),
        "prices.json": json.dumps(totals),
    }


def has_next_choice(common: CommonPlan, position: int) -> bool:
    """Return whether an option is the closer look of a chain, which leads to another choice."""
    return common.following is not None and position == len(common.options) - 1


def _write(
    file: BinaryIO, receipt: Receipt, step: str, measurement: Measurement, texts: Mapping[str, str]
) -> None:
    header = {"format": FORMAT, "step": step}
    drawn, estimates = measurement.answers_on_grid.items(), measurement.estimates.items()
    write_archive(file, header, receipt, texts=texts, answers=drawn, estimates=estimates)


def _answer_shapes(blocks: Mapping[Space, Block]) -> dict[Space, tuple[int, ...]]:
    """Return a mapping from residual space to the shape of its block's answers."""
    return {space: (block.measurements,) for space, block in blocks.items()}


def _coordinate_shapes(plan: Plan) -> dict[Space, tuple[int, ...]]:
    """Return a mapping from residual space to the shape of its residual coordinates."""
    return {space: tuple(n - 1 for n in plan.schema.sizes(space)) for space in plan.blocks}


def stored_look(
    book: Ledger, key: str, common: CommonPlan | None = None
) -> tuple[CommonPlan, Measurement, StepCosts]:
    """Return the options, measurement and costs from the result file of a look (first stage).

    The options are ``common``, or read from the file if it is None.

    Raises
    ------
    ResultLost
        The look was spent but not saved, or its file is missing or was changed.
    LedgerError
        Nothing was spent under this key, the result is not that of a look, or its file cannot be
        read.
    """
    with Archive(path=book.result_path(key)) as archive:
        header = archive.head(key=key, format=FORMAT, step=LOOK)
        common = common or CommonPlan.from_json(archive.text("common.json"))
        costs = _stored_costs(archive, common)
        # A file that contains look.txt is the second stage of one choice and the look of the next
        # choice. Its answers are not read, because they are those of the second stage only, not of
        # all of `common.look`. Its estimates combine all stages.
        is_second_stage = "look.txt" in archive
        answers = archive.answers({} if is_second_stage else _answer_shapes(common.look.blocks))
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
    return common, measurement, costs


def _stored_costs(archive: Archive, common: CommonPlan) -> StepCosts:
    """Return the costs in the file of a look (first stage).

    Raises ValueError if the costs of ``common`` differ by more than rounding.
    """
    stored_prices = [str(price) for price in parse_json(archive.text("prices.json"))]
    if not np.allclose(
        [float(price) for price in stored_prices],
        [option_cost(option) for option in common.options],
        rtol=ROUNDING_FACTOR - 1.0,
        atol=0.0,
    ):
        raise ValueError("the costs in the file are not the costs of the options")
    return StepCosts(archive.text("spent.txt").decode(), tuple(stored_prices))


def stored_second_stage(book: Ledger, common: CommonPlan, position: int, key: str) -> Measurement:
    """Return the measurement of an option from the result file of its second stage.

    Raises the errors of `stored_look`.
    """
    # If another choice follows, this second stage is stored as the first stage of that choice.
    step = LOOK if has_next_choice(common, position) else REST
    with Archive(path=book.result_path(key)) as archive:
        header = archive.head(key=key, format=FORMAT, step=step)
        answers = archive.answers(_answer_shapes(common.residuals[position].blocks))
        estimates = archive.estimates(_coordinate_shapes(common.options[position]))
    return Measurement(
        plan=common.options[position],
        dataset=header["dataset"],
        key=key,
        utc=header["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=estimates,
    )
