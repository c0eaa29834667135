"""Two-stage release: look, decide, finish, with the files of its results.

    look      measure the common part of all options: spend, draw noise and save the result
    decide    write the decision to the ledger: the option, the rule and its result, and the person
              who decided if there is no rule or the rule chose another option
    finish    measure the residual of the chosen option (what remains after the look), and combine
              both measurements into the answers of its plan

The ledger and its result files contain the complete state; the result file of a look also contains
its options.  If a step was interrupted, the same call continues it.

The decision "stop" releases only the answers of the look.  It can be followed by a decision for an
option, which is final.

Privacy: the choice depends on released answers only, and look and residual together cost each
record at most as much as the chosen plan.  Therefore only one option can be chosen per look.

**Same records.**  Look and residual cost as much as the chosen plan only if both are measured on
the same records.  To check this, both stages count the same tables.  The ledger stores a keyed
digest of the tables of the first stage, and the second stage compares its tables with this digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, BinaryIO, Unpack

import numpy as np

from engine._arrays import Array
from engine._format import cost as cost_text
from engine._untrusted import parse_json
from engine._validation import check_choice, check_type
from engine.common_mechanism.common_plan import CommonPlan, Residual, option_cost
from engine.common_mechanism.selection_rule import Decision
from engine.errors import BudgetExceeded, LedgerError, OtherRecords, PlanError, ResultLost
from engine.ledger import Ledger, Receipt, release_key
from engine.ledger.balance import Fingerprint
from engine.plans import Block, Plan
from engine.plans.blocks import ROUNDING_FACTOR
from engine.progress import Progress
from engine.records import MEMORY_LIMIT, Counts, RecordKeywords, RecordOptions
from engine.release import Intake, Measurement
from engine.release.ingest import (
    MOST_CELLS,
    check_repeat,
    count,
    fingerprint_of,
    maximal_sets,
    one_cell_attributes,
    status_reporter,
    table_digest,
)
from engine.release.measure import (
    Answers,
    Release,
    check_curve,
    check_intake,
    is_unfinished,
    refuse_ledger,
    rehearse,
)
from engine.release.measurement import Archive, Drawn, estimate, write_archive
from engine.release.rehearsal_noise import refuse_seed, rehearsal_bits
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


STOP = "stop"
_REMEDY = (
    "To release these records, start a new first measurement with another attempt, which spends again,"
    " or, for records of other people, give another dataset. resume() returns the stored answers."
)
Book = Ledger | str | os.PathLike[str]


def look(
    common: CommonPlan,
    data: Any,
    *,
    dataset: str = "",
    ledger: Book | None = None,
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
    """Measure the common part of all options (the look), and return its measurement.

    Other arguments and errors are those of `engine.release.measure.measure`.  The plan of the
    result is `common.look`.  The `key` of the result identifies the look in calls of `decide`,
    `finish` and `resume`.

    The tables of all options are counted, but only those of the look are measured.  The ledger
    stores a keyed digest of all counted tables, from which `finish` finds out whether it gets the
    same records.  With a ``person`` column, `look` and `finish` count the same rows of each person.

    Guarantee: `common.look.budget.pcost` is spent exactly once; a rehearsal spends nothing.  The
    same attempt on the same records returns the stored result.
    """
    give = "what coarse_or_fine() or nested_choices() returns"
    check_type("analyses", common, CommonPlan, give=give, error=PlanError)
    check_intake(intake)
    options = RecordOptions(
        on_refused=on_refused or ("error" if rehearsal else "drop"),
        person=person,
        count_column=count_column,
        ignore=ignore,
        progress=status_reporter(progress),
        memory_limit=memory_limit,
    )
    count = lambda: step_counts(common, common.look, data, options)  # noqa: E731
    if rehearsal:
        refuse_ledger(dataset, ledger)
        bits = rehearsal_bits(seed, "look", common.hash)
        answers = rehearse(common.look, bits, count, options, intake)
        return look_measurement(common, answers, key="", dataset="", utc="", rehearsal=True)
    refuse_seed(seed)
    if not dataset or ledger is None:
        raise PlanError(
            "The first measurement spends budget, so it needs a dataset and a ledger. Give both, or"
            " use rehearsal=True."
        )
    book, key = Ledger.at(ledger), look_key(common, dataset=dataset, attempt=attempt)
    hash_ = _step_hash(common, LOOK)
    cost = common.look.budget.pcost

    def check(is_paid: bool) -> None:
        """Raise an error if the look (first stage) must not be measured.

        If it is not paid yet, the remaining budget must suffice for the look and the cheapest
        option.
        """
        if CommonPlan.from_json(common.to_json()).spends != common.spends:
            raise PlanError(
                "The costs of these options change when they are written to a file and read again,"
                " which is an error of this program. Nothing was spent. Please report the error."
            )
        book.status(dataset).definition.check_guarantee(common.look.budget)
        _check_remaining_budget(
            book, dataset, 0 if is_paid else min(option_cost(p) for p in common.options)
        )
        if not is_paid:
            for plan, residual in zip(common.options, common.residuals, strict=True):
                check_curve(book, dataset, [common.look.blocks, residual.blocks], option_cost(plan))

    def accept(counts: Counts) -> Callable[[], Receipt]:
        """Return a function that spends the cost of the look, the first stage.

        The function also writes a digest of ``counts`` to the ledger.
        """
        records = fingerprint_of(book, dataset, counts, step_sets(common), intake)
        return lambda: book.spend(
            dataset=dataset, key=key, pcost=cost, plan_hash=hash_, note=LOOK, records=records
        )

    release = Release(
        measurable=common.look,
        ledger=book,
        key=key,
        sets=step_sets(common),
        remedy=lambda: _REMEDY,
        check=check,
        count=count,
        accept=accept,
        write=lambda file, receipt, drawn: write_look(file, common, receipt, drawn),
        load=lambda: stored_look(book, key, common)[1],
        done_text="Looked",
    )
    return release.run(options, intake, stored_only=data is None)


def decide(
    ledger: Book,
    key: str,
    *,
    option: int | str | None = None,
    verdict: Decision | None = None,
    rule: Mapping[str, Any] | None = None,
    by: str = "",
    reason: str = "",
) -> Choice:
    """Write the decision after a look (first stage) to the ledger; this costs nothing.

    Parameters
    ----------
    key : key of the look.
    option : position or name of the option to take, or "stop"; by default the option of
        ``verdict``.
    verdict : decision of a rule.
    rule : name and options of the rule, such as {"rule": "nested", "share": 0.5, "snr": 5}.
    by : name of the person who decides; required without a verdict, and if ``option`` is not that
        of the verdict.
    reason : the person's reason.

    Guarantee: a decision for an option is final; only "stop" can be followed by another decision.
    If two processes decide at the same time, one of the calls fails.

    Raises
    ------
    LedgerError
        There is no look under this key, an option was chosen already, or "stop" would follow
        "stop".
    ResultLost
        The result of the look is lost.
    PlanError
        There is neither an option nor a verdict, there is no such option, or ``by`` is required and
        missing.
    """
    book = Ledger.at(ledger)
    steps = resume(book, key)
    if steps.choice is not None and steps.choice.option != STOP:
        raise LedgerError(
            f"The option '{steps.choice.option}' was chosen after this first measurement, in row"
            f" {steps.choice.seq} of the ledger, and a choice is final. Finish this option, or"
            " start a new first measurement, which spends again."
        )
    rule_option = None
    if verdict is not None:
        rule_option = STOP if verdict.choice is None else steps.common.names[verdict.choice]
    if option is None and rule_option is None:
        raise PlanError("No decision was given. Give an option, 'stop', or the verdict of a rule.")
    if option is None:
        chosen_option = rule_option
    elif option == STOP:
        chosen_option = STOP
    else:
        chosen_option = steps.common.names[steps.common.position(option)]
    if steps.choice is not None and chosen_option == STOP:
        raise LedgerError(
            "The decision to stop is on the ledger already, and only a decision for an option can"
            " follow it. Give an option, or leave the decision as it is."
        )
    if chosen_option != rule_option and not by.strip():
        raise PlanError(
            (
                "The decision does not follow from a rule."
                if rule_option is None
                else f"The rule chose {rule_option!r}, but the decision is {chosen_option!r}."
            )
            + " Give the name of the person who decided (by)."
        )
    text = json.dumps(
        {
            "option": chosen_option,
            "verdict": rule_option,
            "certain": verdict.certain if verdict else None,
            "shares": (
                {name: round(value, 6) for name, value in verdict.shares.items()} if verdict else {}
            ),
            "rule": dict(rule or {}),
            "by": by.strip(),
            "reason": reason.strip(),
        },
        ensure_ascii=False,
        sort_keys=True,
    )
    book.note(
        dataset=steps.look.dataset, kind="decision", text=text, key=key, earlier=len(steps.choices)
    )
    return _choices(book, key)[-1]


def finish(
    ledger: Book,
    key: str,
    data: Any,
    *,
    attempt: int = 1,
    on_changed: str = "refuse",
    on_refused: str | None = None,
    person: str | None = None,
    count_column: str | None = None,
    ignore: Collection[str] = (),
    progress: Progress | None = None,
    intake: Callable[[Intake], object] | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Measurement:
    """Measure the second stage of the chosen option, and return the final measurement.

    The estimates of the result combine both stages, weighted by precision; its `answers_on_grid`
    are the answers of this stage only.  If the option "look closer" of a chain was chosen, the
    result is the look of the next choice: call `decide` and `finish` again with the `key` of the
    result.

    Parameters
    ----------
    key : key of the look.
    data : the records of the look; None returns the stored result without reading records.
    attempt : number of the attempt.  The same number returns the stored result; a new number draws
        noise again and spends the full cost of this stage again.
    on_changed : what to do if the records are not those of the look, or if this cannot be checked.
        "refuse" raises an error.  "charge" charges this stage as a separate release, which costs at
        least as much as the plan's cost minus that of the look.
    person, count_column, ignore : the same arguments as in the call of `look`.

    Other arguments are those of `engine.release.measure.measure`.

    Guarantee: the answers have the distribution of the chosen plan measured alone.  On the same
    records, the look and the first attempt at this stage together spend the pcost of the plan to
    the last digit.  The same attempt on the same records returns the stored result and draws no
    noise again.  A charge as a separate release is written to the ledger in a note and reported to
    `intake`.

    Raises
    ------
    LedgerError, BudgetExceeded, ResultLost, DataError
        As for `measure`; LedgerError also if there is no look or no choice.
    PlanError
        An argument is not allowed, or nothing is left to measure and ``attempt`` is not 1.
    """
    check_intake(intake)
    book = Ledger.at(ledger)
    steps = resume(book, key)
    choice = steps.choice
    if choice is None or choice.option == STOP:
        state = "No decision" if choice is None else "The decision to stop"
        raise LedgerError(
            f"{state} is on the ledger for this first measurement. Decide for one of the"
            f" options {', '.join(steps.common.names)}."
        )
    stage = _SecondStage(
        book=book,
        key=key,
        steps=steps,
        option=steps.common.names.index(choice.option),
        attempt=attempt,
        on_changed=on_changed,
        data=data,
        options=RecordOptions(
            on_refused=on_refused or "drop",
            person=person,
            count_column=count_column,
            ignore=ignore,
            progress=status_reporter(progress),
            memory_limit=memory_limit,
        ),
        intake=intake,
    )
    if not stage.residual.blocks:
        if steps.finished is not None and attempt != 1 and book.find(stage.stage_key) is None:
            raise PlanError(
                f"The first measurement has everything that {choice.option!r} needs, so"
                f" attempt={attempt} would return the same answers. Leave out attempt, or start a"
                " new first measurement with another attempt, which spends again."
            )
        # all answers are from the look (first stage), so compare ``data`` with the records of the
        # look
        if on_changed == "refuse":
            stage.check_same_records()
        if stage.cost == 0:
            return stage.unpaid_result()
    release = Release(
        measurable=stage.residual,
        ledger=book,
        key=stage.stage_key,
        sets=stage.sets if stage.residual.blocks else None,
        remedy=lambda: _REMEDY,
        check=stage.check,
        count=stage.count,
        accept=stage.accept,
        write=lambda file, receipt, drawn: write_second_stage(
            file, steps.common, stage.option, steps.look, receipt, drawn
        ),
        load=lambda: stored_second_stage(book, steps.common, stage.option, stage.stage_key),
    )
    return release.run(stage.options, intake, stored_only=data is None)


@dataclass(frozen=True, kw_only=True)
class _SecondStage:
    """One attempt to measure what remains after the first stage for the chosen option.

    Attributes
    ----------
    book, key : ledger, and key of the look in it.
    steps : state of the two-stage release.
    option : position of the chosen option.
    attempt, on_changed, data, options, intake : arguments of `finish`; ``options`` collects those
        for the reading of records.
    """

    book: Ledger
    key: str
    steps: Steps
    option: int
    attempt: int
    on_changed: str
    data: Any
    options: RecordOptions
    intake: Callable[[Intake], object] | None

    @property
    def residual(self) -> Residual:
        """Plan of what remains to be measured."""
        return self.steps.common.residuals[self.option]

    @property
    def stage_key(self) -> str:
        """Key of this attempt in the ledger."""
        return _second_stage_key(self.steps.common, self.option, self.key, self.attempt)

    @property
    def cost(self) -> float:
        """Cost of this attempt in pcost, on the records of the look (first stage)."""
        return _remaining_cost(self.steps.common, self.option, self.steps.costs, self.attempt)

    @property
    def sets(self) -> list[Space]:
        """Attribute sets of the tables that are counted."""
        common = self.steps.common
        following = common.following if has_next_choice(common, self.option) else None
        return step_sets(following or common)

    def check_same_records(self) -> None:
        """Raise `OtherRecords` if records are given that differ from those of the first stage."""
        if self.data is None:
            return
        common = self.steps.common
        options = replace(self.options, on_refused="drop")
        counts = step_counts(common, self.residual, self.data, options)
        look_spend = self.book.spent(self.key)
        check_repeat(self.book, look_spend, counts, step_sets(common), self.intake, remedy=_REMEDY)

    def unpaid_result(self) -> Measurement:
        """Return the result if the first stage has measured everything that the option needs.

        The first call writes a note to the ledger.
        """
        book, look_result = self.book, self.steps.look
        if not book.notes(kind="finish", key=self.key):
            book.note(
                dataset=look_result.dataset,
                kind="finish",
                text="Nothing was left to measure or spend.",
                key=self.key,
            )
        return chosen_measurement(
            self.steps.common, self.option, look_result, {}, key=self.key, utc=look_result.utc
        )

    def check(self, is_paid: bool) -> None:
        """Raise an error if ``on_changed`` is not valid or this stage cannot be paid."""
        dataset = self.steps.look.dataset
        check_choice("on_changed", self.on_changed, ("refuse", "charge"), error=PlanError)
        _check_remaining_budget(self.book, dataset, 0 if is_paid else self.cost)
        if is_paid:
            return
        # The look (first stage) and the first attempt at the second stage are charged the cost of
        # the plan together; a later attempt is charged in addition.
        blocks, cost = [self.residual.blocks], self.cost
        if self.attempt == 1:
            common = self.steps.common
            blocks = [common.look.blocks, self.residual.blocks]
            cost = option_cost(common.options[self.option])
        check_curve(self.book, dataset, blocks, cost)

    def count(self) -> Counts:
        """Count the records; without residual spaces to measure, no records are read."""
        common = self.steps.common
        if not self.residual.blocks:
            return no_counts(common)
        return step_counts(common, self.residual, self.data, self.options)

    def accept(self, counts: Counts) -> Callable[[], Receipt]:
        """Return a function that spends the cost of this stage, with a digest of ``counts``."""
        cost, records = self.cost, None
        if self.residual.blocks:
            cost, records = self._accept_records(counts)
        return lambda: self.book.spend(
            dataset=self.steps.look.dataset,
            key=self.stage_key,
            pcost=cost,
            plan_hash=_step_hash(self.steps.common, f"{REST}{self.option}"),
            note=f"{REST} of {self.key}",
            records=records,
        )

    def _accept_records(self, counts: Counts) -> tuple[float, Fingerprint]:
        """Return the cost of this stage on the counted records in pcost, and their fingerprint.

        Raises OtherRecords if the records are not those of the look (first stage) and
        ``on_changed`` is "refuse".
        """
        book, dataset = self.book, self.steps.look.dataset
        # If records changed, a changed record can be in the most expensive cell of both stages.
        # Therefore this stage is charged at least the cost of a separate release.
        separate_cost = max(self.cost, self.residual.pcost)
        look_spend = book.find(self.key)
        look_digest = look_spend.digest if look_spend else ""
        changed = changed_records(book, look_digest, counts, self.steps.common)
        if changed and self.on_changed == "refuse":
            charge = f'on_changed="charge", which spends pcost {cost_text(separate_cost)}'
            # no records avoid the charge if the look was measured on other records than the look
            # before it
            advice = (
                f"Use {charge}"
                if look_digest.startswith(OTHER_RECORDS_PREFIX)
                else "Give the records of the first measurement, which spends pcost"
                f" {cost_text(self.cost)}, or use {charge}"
            )
            raise OtherRecords(changed, f"Nothing was spent. {advice}.")
        report_intake = report_separate_charges(self.intake, changed, separate_cost)
        records = fingerprint_of(book, dataset, counts, self.sets, report_intake)
        if not changed:
            return self.cost, records
        if book.find(self.stage_key) is None:
            book.note(
                dataset=dataset,
                kind="records",
                text=f"{changed} This step is charged alone.",
                key=self.key,
            )
        # The prefix in the ledger marks that this stage was measured on other records than the look
        # (first stage). If this stage is in turn the look of a next choice, the second stage of
        # that choice must be charged as a separate release, too.
        records = replace(records, tables=f"{OTHER_RECORDS_PREFIX}{records.tables}")
        return separate_cost, records


def rehearse_finish(
    common: CommonPlan,
    look_result: Measurement,
    data: Any,
    *,
    option: int | str,
    seed: int | None = None,
    **keywords: Unpack[RecordKeywords],
) -> Measurement:
    """Rehearse the second stage of an option after a rehearsed look; return the measurement.

    A rehearsal spends nothing, runs on simulated or public data, and must not be published.
    ``seed`` is that of `engine.release.measure.measure`.

    Raises
    ------
    PlanError
        The look was a release, there is no such option, or the seed is not allowed.
    DataError
        The data cannot be read, or do not fit the schema.
    """
    if not look_result.rehearsal:
        raise PlanError(
            "The first measurement was a release, so the second measurement cannot be a"
            " rehearsal. Finish as a release, or rehearse the first measurement as well."
        )
    position = common.position(option)
    bits = rehearsal_bits(seed, "finish", common.hash, str(position))
    options = RecordOptions(**keywords)
    residual = common.residuals[position]

    def count() -> Counts:
        return (
            step_counts(common, residual, data, options) if residual.blocks else no_counts(common)
        )

    answers = rehearse(residual, bits, count, options)
    return chosen_measurement(common, position, look_result, answers, key="", utc="")


def resume(ledger: Book, key: str) -> Steps:
    """Return the state of a two-stage release from the ledger, given the key of the first stage.

    The call reads no records and spends nothing.

    Raises
    ------
    ResultLost
        The look was spent but not saved, or its result file is missing or was changed.
    LedgerError
        Nothing was spent under this key, the key is not that of a look, or the result file or a
        decision on the ledger cannot be read.
    """
    book = Ledger.at(ledger)
    common, look_result, costs = stored_look(book, key)
    choices = _choices(book, key)
    finished = None
    lost_attempts = list[int]()
    is_interrupted = False
    if choices and choices[-1].option != STOP:
        position = common.names.index(choices[-1].option)
        attempt = 1
        if (
            not common.residuals[position].blocks
            and _remaining_cost(common, position, costs, attempt) == 0
        ):
            finished = chosen_measurement(
                common, position, look_result, {}, key=key, utc=look_result.utc
            )
        # find the first attempt with a result; attempts without a result are interrupted or lost
        while finished is None:
            attempt_key = _second_stage_key(common, position, key, attempt)
            if book.find(attempt_key) is None:
                break
            try:
                finished = stored_second_stage(book, common, position, attempt_key)
            except ResultLost:
                is_interrupted = is_unfinished(book, attempt_key)
                if is_interrupted:
                    break
                lost_attempts.append(attempt)
            attempt += 1
    return Steps(
        common=common,
        look=look_result,
        choices=choices,
        finished=finished,
        costs=costs,
        lost=(*lost_attempts,),
        is_interrupted=is_interrupted,
    )


def compare_records(ledger: Book, key: str, data: Any, **keywords: Unpack[RecordKeywords]) -> Steps:
    """Check that all stages of a two-stage release were measured on the records ``data``.

    The check spends nothing.  The result is the state of the release, as from `resume`.

    Raises
    ------
    OtherRecords
        The look, or a later stage, was measured on other records.
    LedgerError, ResultLost, DataError
        As for `resume` and `look`.
    """
    book, options = Ledger.at(ledger), RecordOptions(on_refused="drop", **keywords)
    steps = resume(book, key)
    # In a chain, the second stage of one choice can be the look (first stage) of the next choice.
    # Each round checks one look, and the last round also checks the second stage.
    look_of_choice, state = key, steps
    while True:
        common, finished = state.common, state.finished
        counts, sets = step_counts(common, common.look, data, options), step_sets(common)
        check_repeat(book, book.spent(look_of_choice), counts, sets, intake=None, remedy=_REMEDY)
        # A second stage that measured nothing and cost nothing has the key of its look (first
        # stage).
        if finished is None or finished.key == look_of_choice:
            return steps
        chosen = common.names.index(state.choice.option) if state.choice is not None else 0
        if not has_next_choice(common, chosen):
            # a stage without blocks to measure reads no records, so it stores no digest
            if common.residuals[chosen].blocks:
                check_repeat(
                    book, book.spent(finished.key), counts, sets, intake=None, remedy=_REMEDY
                )
            return steps
        look_of_choice = finished.key
        state = resume(book, finished.key)


def looks(ledger: Book, dataset: str) -> list[str]:
    """Return the ledger keys of all two-stage releases of a dataset, oldest first.

    The key of a release is that of its look, its first stage.
    """
    rows = Ledger.at(ledger).rows()
    return [
        r.key
        for r in rows
        if r.kind == "spend" and r.dataset == dataset and r.plan_hash.startswith(f"{LOOK}:")
    ]


def paid_keys(steps: Steps) -> list[str]:
    """Return the ledger keys of the first stage and of the paid attempts at the second stage.

    The attempts are those up to the first one with a stored result.
    """
    keys = [steps.look.key]
    if steps.choice is None or steps.choice.option == STOP:
        return keys
    position = steps.common.names.index(steps.choice.option)
    attempts = list(steps.lost)
    if steps.is_interrupted:
        attempts.append(max(attempts, default=0) + 1)
    keys += [
        _second_stage_key(steps.common, position, steps.look.key, attempt) for attempt in attempts
    ]
    if steps.finished is not None and steps.finished.key not in keys:
        keys.append(steps.finished.key)
    return keys


def look_key(common: CommonPlan, *, dataset: str, attempt: int = 1) -> str:
    """Return the key of the look (first stage) for these options, dataset and attempt."""
    return release_key(dataset=dataset, plan_hash=_step_hash(common, LOOK), attempt=attempt)


def _step_hash(common: CommonPlan, step: str) -> str:
    """Return "{step}:{hash of the options}".

    The ledger stores it in place of a plan hash in the row of the spend of this stage.
    """
    return f"{step}:{common.hash}"


def _second_stage_key(common: CommonPlan, position: int, key: str, attempt: int) -> str:
    """Return the key of the second stage of an option, given the key of the first stage."""
    dataset, *_ = key.rsplit("|", 2)
    # because the key contains a hash of the key of the look (first stage), second stages of
    # different looks differ
    look_hash = hashlib.sha256(key.encode()).hexdigest()[:16]
    return release_key(
        dataset=dataset, plan_hash=f"{REST}{position}:{look_hash}:{common.hash}", attempt=attempt
    )


def _remaining_cost(common: CommonPlan, position: int, costs: StepCosts, attempt: int) -> float:
    """Return the cost of an attempt at the second stage of an option, in pcost.

    The first attempt costs the pcost of the plan minus that of the look (first stage).  A later
    attempt measures the residual again, so it costs at least as much as the residual alone.
    """
    remaining_cost = costs.remaining(position)
    return remaining_cost if attempt == 1 else max(remaining_cost, common.residuals[position].pcost)


def _check_remaining_budget(book: Ledger, dataset: str, cost: float) -> None:
    """Raise BudgetExceeded if the dataset cannot pay ``cost``, before any record is read.

    Raises LedgerError if the budget of the dataset is in pure epsilon, which Gaussian noise cannot
    be charged to.
    """
    status = book.status(dataset)
    remaining = status.left
    if cost > 0 and status.takes(cost) > remaining:
        raise BudgetExceeded(
            f"Dataset {dataset!r} has pcost {remaining!r} left, but the stages of this release that"
            f" are not paid yet need at least {cost!r}. Nothing was spent. Plan the options with a"
            f" budget of at most {remaining!r}, or increase the total by `budget change`."
        )


def _choices(book: Ledger, key: str) -> tuple[Choice, ...]:
    """Return the decisions after a first stage from the notes of the ledger, oldest first."""
    choices = []
    for row in book.notes(kind="decision", key=key):
        try:
            data = parse_json(row.note)
            fields = {name: data[name] for name in ("option", "verdict", "rule", "by", "reason")}
        except (ValueError, KeyError, TypeError):
            raise LedgerError(
                f"Row {row.seq} of the ledger does not have the fields of a decision."
                " Start a new first measurement, which spends again."
            ) from None
        choices.append(Choice(**fields, seq=row.seq, utc=row.utc))
    return tuple(choices)
