"""Files and ledger entries of two-stage releases.

The first stage is the look, the common part of all options; the second is the residual of the
chosen option.  A record is in the same cell in both stages, so together they cost the maximum over
cells of their summed costs.  This holds for the same records only: both stages count the same
tables, and the ledger stores a keyed digest of the tables of the first stage, by which the second
stage recognises the records.
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

# Prefix of the stored digest of a second stage that was measured on other records than its look.
OTHER_RECORDS_PREFIX = "other:"


def step_counts(
    common: CommonPlan, part: Plan | Residual, data: Any, options: RecordOptions
) -> Counts:
    """Return the exact tables of all options, in both stages.

    Both stages count the same tables, so they use the same rows and have comparable digests.  Of
    each person, as many rows are counted as the budget protects.  ``part`` is what this stage
    measures: the look or a residual.
    """
    options = replace(options, rows_per_person=common.look.budget.rows_per_person)
    return count(part, data, options, step_checks(common), step_sets(common))


def counts_for_steps(common: CommonPlan, data: Any, **keywords: Unpack[RecordKeywords]) -> Counts:
    """Count the exact tables of both stages on a part of the records; private.

    The sum of the counts of all parts can be passed to `look` and `finish` in place of the records;
    see `engine.release.ingest.counts_for`.
    """
    options = RecordOptions(on_refused="drop", **keywords)
    return step_counts(common, common.look, data, options)


def no_counts(common: CommonPlan) -> Counts:
    """Return counts without tables, for a second stage that has nothing to measure."""
    return Counts(schema=common.look.schema, tables={}, records=0)


def step_sets(common: CommonPlan) -> list[Space]:
    """Return the attribute sets of the look and of all options that are small enough to release."""
    plans = [common.look, *(plan for _, plan in common.analyses)]
    sets = {space for plan in plans for space in maximal_sets(plan)}
    return sorted(
        space for space in sets if math.prod(common.look.schema.sizes(space)) <= MOST_CELLS
    )


def step_checks(common: CommonPlan) -> list[str]:
    """Return the attributes with a single cell that occur in an option.

    Records with another value of such an attribute are dropped.
    """
    return one_cell_attributes(*(plan.workload for _, plan in common.analyses))


def changed_records(book: Ledger, digest: str, counts: Counts, common: CommonPlan) -> str:
    """Return why the counted records are not those of the look, or "" if they are the same.

    ``digest`` is the digest of the look's tables on the ledger.
    """
    if digest.startswith(OTHER_RECORDS_PREFIX):
        return "This look was measured on other records than the look before it in the chain."
    same = hmac.compare_digest(
        digest, table_digest(counts, step_sets(common), book.secret("records"))
    )
    if same:
        return ""
    return "These are not the records of the look, or the ledger's key file was replaced."


def report_separate_charges(
    intake: Callable[[Intake], object] | None, changed: str, cost: float
) -> Callable[[Intake], object] | None:
    """Return ``intake`` with a warning added to its report if the records have changed.

    ``changed`` is the reason, or "" if they have not; ``cost`` is the charge in pcost.
    """
    if intake is None or not changed:
        return intake
    text = f"{changed} This step is charged alone: pcost {cost!r}."
    return lambda seen: intake(replace(seen, warnings=(*seen.warnings, text)))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Decision for an option after a look, as it is written on the ledger.

    Attributes
    ----------
    option : name of the option that was chosen, or "stop".
    verdict : name of the option that the rule chose, or "stop"; None without a rule.
    rule : name and options of the rule.
    by, reason : who decided, and why; "" if the rule decided.
    seq, utc : number and time of the row on the ledger.
    """

    option: str
    verdict: str | None
    rule: Mapping[str, Any]
    by: str
    reason: str
    seq: int
    utc: str


@dataclass(frozen=True)
class StepCosts:
    """Costs of a look and of its options in pcost, as decimal texts from the file of the look.

    They are stored because another machine may compute them with another last digit.

    Attributes
    ----------
    spent : cost of this look and of all looks before it in a chain.
    totals : total cost of each option, including `spent`.
    """

    spent: str
    totals: tuple[str, ...]

    def remaining(self, i: int) -> float:
        """Return the cost that remains for option i after the look, in pcost.

        The difference is exact in decimal arithmetic, in which the ledger sums.

        Raises
        ------
        LedgerError
            The difference is negative or not a float, so the file was changed.

        >>> StepCosts("0.4", ("0.9999999999999998",)).remaining(0)
        0.5999999999999998
        """
        exact = Decimal(self.totals[i]) - Decimal(self.spent)
        if exact < 0 or Decimal(repr(float(exact))) != exact:
            raise LedgerError(
                "The result file of the look was changed: its costs do not match its options."
                " Restore the file from a copy."
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
    finished : measurement of the chosen option, or None before the second stage.
    costs : cost of the look, and total cost of each option.
    lost : numbers of the attempts at the second stage that were spent but have no result; the last
        one may still be running.
    is_interrupted : whether the second stage was spent and then interrupted; `finish` completes it
        from the same records and spends nothing.
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
    common: CommonPlan, i: int, look_result: Measurement, answers: Answers, *, key: str, utc: str
) -> Measurement:
    """Return the measurement of option i, which combines the look with the residual's answers.

    ``answers`` maps residual spaces to the released answers of the residual in grid steps.
    """
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
        dataset=look_result.dataset,
        key=key,
        utc=utc,
        rehearsal=look_result.rehearsal,
        answers_on_grid=answers,
        estimates=common.combine(i, look_result.estimates, in_counts),
    )


def write_look(file: BinaryIO, common: CommonPlan, receipt: Receipt, drawn: Drawn) -> None:
    """Write the result file of a look, with all options, so that `finish` needs no other file."""
    measurement = look_measurement(common, dict(drawn), key="", dataset="", utc="", rehearsal=False)
    texts = _next_step_texts(common, receipt.pcost)
    _write(file, receipt, LOOK, measurement, texts)


def write_rest(
    file: BinaryIO,
    common: CommonPlan,
    i: int,
    look_result: Measurement,
    receipt: Receipt,
    drawn: Drawn,
) -> None:
    """Write the result file of the second stage: the chosen option i with the combined estimates.

    If option i is a closer look, which another choice follows (`has_next_choice`), its measurement
    is the first stage of that choice, and the file has the format of `write_look`.
    """
    measurement = chosen_measurement(common, i, look_result, dict(drawn), key="", utc="")
    if has_next_choice(common, i) and common.following is not None:
        texts = _next_step_texts(common.following, common.options[i].budget.pcost)
        _write(file, receipt, LOOK, measurement, texts | {"look.txt": look_result.key})
        return
    _write(
        file,
        receipt,
        REST,
        measurement,
        {"plan.json": common.options[i].to_json(), "look.txt": look_result.key},
    )


def _next_step_texts(common: CommonPlan, spent: float) -> dict[str, str]:
    """Return a mapping from file name to text: the options, the cost so far, and the total costs."""
    totals = [repr(option_cost(option)) for option in common.options]
    return {
        "common.json": common.to_json(),
        "spent.txt": repr(spent),
        "prices.json": json.dumps(totals),
    }


def has_next_choice(common: CommonPlan, i: int) -> bool:
    """Return whether option i is a closer look, after which a chain has another choice."""
    return common.following is not None and i == len(common.options) - 1


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
    """Return the options, the measurement and the costs from the result file of a look.

    ``common`` has the options; if it is None, they are read from the file.

    Raises
    ------
    ResultLost
        The look was spent but never saved, or its file is missing or was changed.
    LedgerError
        Nothing was spent under this key, the result is not a look, or its file cannot be read.
    """
    with Archive(path=book.result_path(key)) as archive:
        header = archive.head(key=key, format=FORMAT, step=LOOK)
        common = common or CommonPlan.from_json(archive.text("common.json"))
        costs = _stored_costs(archive, common)
        # the file of a closer look has answers to the residual after the look before it, and not to
        # the blocks of its own plan, so no answers are read; its estimates are complete
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
    return common, measurement, costs


def _stored_costs(archive: Archive, common: CommonPlan) -> StepCosts:
    """Return the costs in the file of a look; raise ValueError if they are those of other options."""
    stored_prices = [str(price) for price in parse_json(archive.text("prices.json"))]
    if not np.allclose(
        [float(price) for price in stored_prices],
        [option_cost(option) for option in common.options],
        rtol=ROUNDING_FACTOR - 1.0,
        atol=0.0,
    ):
        raise ValueError("the prices are not those of the options")
    return StepCosts(archive.text("spent.txt").decode(), tuple(stored_prices))


def stored_rest(book: Ledger, common: CommonPlan, i: int, key: str) -> Measurement:
    """Return the measurement of option i from the result file of its second stage.

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
