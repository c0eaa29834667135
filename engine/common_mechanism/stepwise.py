"""Two-stage release: look, decide, finish.

    look      spend -> draw -> save the common part, under the key of the look
    decide    one note on the ledger: rule, result, option chosen, and who chose it if not the rule
    finish    spend -> draw -> save the residual of the chosen plan; the answers are those of the plan

All state is in the ledger and its saved results: the file of a look stores the options as well.  To
continue after a killed step, call it again.  As for any release, the result of a step that was
killed between its spend and its save may be lost; a new attempt, which spends again, repeats it.

To stop is a decision too: only the answers of the look are released.  It is the only decision that
another one may follow, which then spends the residual of its option.

Privacy: look and residual together cost each record at most what the chosen plan costs, and the
choice between the options uses released answers only.  So each look is finished with one option.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Unpack

from engine._untrusted import parse_json
from engine._validation import check_choice, check_type
from engine.common_mechanism.common_plan import CommonPlan, option_cost
from engine.common_mechanism.selection_rule import Decision
from engine.common_mechanism.two_stage_io import (
    LOOK,
    OTHER,
    REST,
    Choice,
    Paid,
    Steps,
    changed_records,
    chosen_measurement,
    has_next_choice,
    look_measurement,
    no_counts,
    report_separate_charges,
    step_counts,
    step_sets,
    stored_look,
    stored_rest,
    write_look,
    write_rest,
)
from engine.errors import BudgetExceeded, DataError, LedgerError, PlanError, ResultLost
from engine.ledger import Ledger, Receipt, release_key
from engine.ledger.balance import Fingerprint
from engine.progress import Progress
from engine.records import MEMORY_LIMIT, Counts, RecordKeywords, RecordOptions
from engine.release import Intake, Measurement
from engine.release.ingest import check_repeat, fingerprint_of, status_reporter
from engine.release.measure import (
    Release,
    check_curve,
    check_intake,
    is_unfinished,
    refuse_ledger,
    rehearse,
)
from engine.release.rehearsal_noise import refuse_seed, rehearsal_bits
from engine.residuals import Space

STOP = "stop"
_REMEDY = (
    "To release these records, start a new look with another attempt, which spends again, or give"
    " another dataset with a separate budget. resume() returns the stored answers."
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
    """Measure the common part of all options.

    Arguments and errors are those of `engine.release.measure.measure`.  The plan of the returned
    measurement is `common.look`; its `key` identifies the look in `decide`, `finish` and `resume`.

    The tables of all options are counted, but only those of the look are measured.  The ledger
    stores a keyed digest of all tables, with which `finish` recognises the records.  With a
    ``person`` column both steps use the same rows of each person.

    Guarantee: spends `common.look.budget.pcost` exactly once.  The same attempt on the same records
    returns the stored result.
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
            "A look is a release: it needs the dataset's name and a ledger. Or use rehearsal=True."
        )
    book, key = Ledger.at(ledger), look_key(common, dataset=dataset, attempt=attempt)
    hash_, cost = _hash(common, LOOK), common.look.budget.pcost

    def check(is_paid: bool) -> None:
        if CommonPlan.from_json(common.to_json()).spends != common.spends:
            raise PlanError(
                "These options change when they are stored in a file. Nothing was spent; please"
                " report."
            )
        book.status(dataset).definition.check_unit(common.look.budget)
        _check_remaining_budget(
            book, dataset, 0 if is_paid else min(option_cost(p) for p in common.options)
        )
        for plan, residual in (
            zip(common.options, common.residuals, strict=True) if not is_paid else ()
        ):
            check_curve(book, dataset, [common.look.blocks, residual.blocks], option_cost(plan))

    def accept(counts: Counts) -> Callable[[], Receipt]:
        records = fingerprint_of(book, dataset, counts, step_sets(common), intake)
        return lambda: book.spend(
            dataset=dataset, key=key, pcost=cost, plan_hash=hash_, note=LOOK, records=records
        )

    release = Release(
        part=common.look,
        ledger=book,
        key=key,
        sets=step_sets(common),
        remedy=lambda: _REMEDY,
        check=check,
        count=count,
        accept=accept,
        write=lambda file, receipt, drawn: write_look(file, common, receipt, drawn),
        load=lambda: stored_look(book, key, common)[1],
        done="Looked",
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
    """Record a decision about a look on the ledger; it costs nothing.

    Parameters
    ----------
    key : key of the look.
    option : position or name of the option to take, or "stop"; None takes the option of the
        verdict.
    verdict, rule : result of a rule, and its name and options, such as
        {"rule": "nested", "share": 0.5, "snr": 5}.
    by, reason : who decides, and why; required without a verdict, or for another option.

    Guarantee: of two decisions at the same time one is refused; only "stop" can be followed by
    another decision.

    Raises
    ------
    LedgerError
        There is no look under this key, or there is a decision already.
    PlanError
        There is no such option, or ``by`` is missing where the decision is not that of the rule.
    """
    book = Ledger.at(ledger)
    steps = resume(book, key)
    if steps.choice is not None and steps.choice.option != STOP:
        raise LedgerError(
            f"'{steps.choice.option}' was chosen for this look in row {steps.choice.seq}; a choice"
            " is final. Finish it, or start a new look, which spends again."
        )
    rule_option = (
        None
        if verdict is None
        else STOP
        if verdict.choice is None
        else steps.common.names[verdict.choice]
    )
    if option is None and rule_option is None:
        raise PlanError("Nothing was chosen. Give an option, 'stop', or the verdict of a rule.")
    chosen_option = (
        rule_option
        if option is None
        else STOP
        if option == STOP
        else steps.common.names[steps.common.position(option)]
    )
    if steps.choice is not None and chosen_option == STOP:
        raise LedgerError("To stop was decided already; only an option can follow.")
    if chosen_option != rule_option and not by.strip():
        raise PlanError(
            (
                "No rule was applied."
                if rule_option is None
                else f"The option {chosen_option!r} is not that of the rule, {rule_option!r}."
            )
            + " Give the name of the person who decided."
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
    """Measure the residual of the option that was chosen for a look, and return its measurement.

    Its `answers_on_grid` are those of this step; its estimates combine both steps, weighted by
    precision.  If the option was to look closer, the result is the look of the next choice: decide
    and finish again under its `key`.

    Parameters
    ----------
    key : key of the look.
    attempt : the same attempt returns the stored result; a new number draws again and spends the
        full cost of this step again.
    person, count_column, ignore : the same as for the look; otherwise these are other records.
    on_changed : what to do if the records are not those of the look, or if this is not certain:
        "refuse", or "charge" this step alone, because a record may then be in the cell of largest
        cost in each step.

    Guarantee: the answers have the distribution of the chosen plan measured alone.  For the same
    records, look and this step together spend its pcost to the last digit.  The same attempt on the
    records of this step returns the stored result and never draws twice.  With ``data=None`` the
    stored result is returned without a comparison of records.  Any additional charge is recorded in
    a note on the ledger and reported to `intake`.

    Raises
    ------
    LedgerError, BudgetExceeded, ResultLost, DataError
        As for `measure`; LedgerError also if there is no look or no choice.
    """
    check_intake(intake)
    book = Ledger.at(ledger)
    steps = resume(book, key)
    choice = steps.choice
    if choice is None or choice.option == STOP:
        state = "Nothing was decided" if choice is None else "To stop was decided"
        raise LedgerError(
            f"{state} about this look. Decide for one of {', '.join(steps.common.names)} first."
        )
    common, i = steps.common, steps.common.names.index(choice.option)
    residual, rest_key = common.residuals[i], _rest_key(common, i, key, attempt)
    cost = _remaining_cost(common, i, steps.paid, attempt)
    step_hash, dataset = _hash(common, f"{REST}{i}"), steps.look.dataset
    following = common.following if has_next_choice(common, i) else None
    sets = step_sets(following or common)
    options = RecordOptions(
        on_refused=on_refused or "drop",
        person=person,
        count_column=count_column,
        ignore=ignore,
        progress=status_reporter(progress),
        memory_limit=memory_limit,
    )

    def check_stored(step_key: str, step_tables: list[Space]) -> None:
        """Raise OtherRecords unless ``data`` has the records of a stored step."""
        if data is not None:
            counts = step_counts(common, residual, data, replace(options, on_refused="drop"))
            check_repeat(book, book.spent(step_key), counts, step_tables, intake, remedy=_REMEDY)

    if (
        not residual.blocks
        and steps.finished is not None
        and attempt != 1
        and book.find(rest_key) is None
    ):
        raise PlanError(
            f"Nothing is left to measure for {choice.option!r} after this look, so"
            f" attempt={attempt} would return the same answers. Leave out attempt, or start a new"
            " look with another attempt, which spends again."
        )
    # without blocks the answers are those of the look
    if not residual.blocks and on_changed == "refuse":
        check_stored(key, step_sets(common))
    if not residual.blocks and cost == 0:
        if not book.notes(kind="finish", key=key):
            book.note(
                dataset=steps.look.dataset,
                kind="finish",
                text="Nothing was left to measure or spend.",
                key=key,
            )
        return chosen_measurement(common, i, steps.look, {}, key=key, utc=steps.look.utc)

    def check(is_paid: bool) -> None:
        check_choice("on_changed", on_changed, ("refuse", "charge"), error=PlanError)
        _check_remaining_budget(book, dataset, 0 if is_paid else cost)
        if not is_paid:
            parts = [common.look.blocks, residual.blocks] if attempt == 1 else [residual.blocks]
            check_curve(
                book, dataset, parts, option_cost(common.options[i]) if attempt == 1 else cost
            )

    def count() -> Counts:
        return (
            step_counts(common, residual, data, options) if residual.blocks else no_counts(common)
        )

    def accept(counts: Counts) -> Callable[[], Receipt]:
        step_cost, records = cost, None
        if residual.blocks:
            step_cost, records = accept_records(counts)
        return lambda: book.spend(
            dataset=dataset,
            key=rest_key,
            pcost=step_cost,
            plan_hash=step_hash,
            note=f"{REST} of {key}",
            records=records,
        )

    def accept_records(counts: Counts) -> tuple[float, Fingerprint]:
        """Return the cost of the step for these records, and their fingerprint."""
        look_spend = book.find(key)
        changed = changed_records(book, look_spend.digest if look_spend else "", counts, common)
        if changed and on_changed == "refuse":
            raise DataError(
                f"{changed} The cost of both steps together holds only for the same records."
                " Nothing was spent. Give "
                'the records of the look, or use on_changed="charge", which spends'
                f" {max(cost, residual.pcost)!r} "
                f"instead of {cost!r}."
            )
        report_intake = report_separate_charges(intake, changed, residual.pcost)
        records = fingerprint_of(book, dataset, counts, sets, report_intake)
        if not changed:
            return cost, records
        if book.find(rest_key) is None:
            book.note(
                dataset=dataset,
                kind="records",
                text=f"{changed} This step is charged alone.",
                key=key,
            )
        # later steps can no longer rely on one cell per record in all steps
        records = replace(records, tables=f"{OTHER}{records.tables}")
        # a record of other data may be in any cell of each step, so this step costs what it
        # would alone
        return max(cost, residual.pcost), records

    release = Release(
        part=residual,
        ledger=book,
        key=rest_key,
        sets=sets if residual.blocks else None,
        remedy=lambda: _REMEDY,
        check=check,
        count=count,
        accept=accept,
        write=lambda file, receipt, drawn: write_rest(file, common, i, steps.look, receipt, drawn),
        load=lambda: stored_rest(book, common, i, rest_key),
    )
    return release.run(options, intake, stored_only=data is None)


def rehearse_finish(
    common: CommonPlan,
    looked: Measurement,
    data: Any,
    *,
    option: int | str,
    seed: int | None = None,
    **keywords: Unpack[RecordKeywords],
) -> Measurement:
    """Run the last step after a rehearsed look, on simulated or public data; spends nothing.

    The result must not be published.  ``seed`` is as in `engine.release.measure.measure`.
    """
    if not looked.rehearsal:
        raise PlanError(
            "This look was released, so its next step is a release too. Use decide and finish."
        )
    i = common.position(option)
    bits = rehearsal_bits(seed, "finish", common.hash, str(i))
    options, residual = RecordOptions(**keywords), common.residuals[i]

    def count() -> Counts:
        return (
            step_counts(common, residual, data, options) if residual.blocks else no_counts(common)
        )

    answers = rehearse(residual, bits, count, options)
    return chosen_measurement(common, i, looked, answers, key="", utc="")


def resume(ledger: Book, key: str) -> Steps:
    """Return the state of a look: everything done so far; reads no records and spends nothing.

    Raises
    ------
    ResultLost
        The look was spent but never saved.
    LedgerError
        Nothing was spent under this key, it is not a look, or a stored file is damaged.
    """
    book = Ledger.at(ledger)
    common, look_result, paid = stored_look(book, key)
    choices, finished, lost_attempts, is_interrupted = _choices(book, key), None, list[int](), False
    if choices and choices[-1].option != STOP:
        i, attempt = common.names.index(choices[-1].option), 1
        if not common.residuals[i].blocks and _remaining_cost(common, i, paid, attempt) == 0:
            finished = chosen_measurement(common, i, look_result, {}, key=key, utc=look_result.utc)
        # a spend whose result was never saved is paid for; only a new attempt may draw again
        while finished is None and book.find(_rest_key(common, i, key, attempt)) is not None:
            try:
                finished = stored_rest(book, common, i, _rest_key(common, i, key, attempt))
            except ResultLost:
                if is_interrupted := is_unfinished(book, _rest_key(common, i, key, attempt)):
                    break
                lost_attempts.append(attempt)
            attempt += 1
    return Steps(
        common=common,
        look=look_result,
        choices=choices,
        finished=finished,
        paid=paid,
        lost=(*lost_attempts,),
        is_interrupted=is_interrupted,
    )


def compare_records(ledger: Book, key: str, data: Any, **keywords: Unpack[RecordKeywords]) -> Steps:
    """Return the state of a look if ``data`` are the records of all its steps; spends nothing.

    Raises
    ------
    OtherRecords
        The look, or a later step, was measured on other records.
    LedgerError, ResultLost, DataError
        As for `resume` and `look`.
    """
    book, options = Ledger.at(ledger), RecordOptions(on_refused="drop", **keywords)
    steps = resume(book, key)
    step_key, current = key, steps
    while True:
        common, finished = current.common, current.finished
        counts = step_counts(common, common.look, data, options)
        check_repeat(book, book.spent(step_key), counts, step_sets(common), None, remedy=_REMEDY)
        # a last step without blocks has the key of its look
        if finished is None or finished.key == step_key:
            return steps
        step_key = finished.key
        chosen = common.names.index(current.choice.option) if current.choice is not None else 0
        if not has_next_choice(common, chosen):
            # a last step without blocks measures nothing, so it has no digest
            if common.residuals[chosen].blocks:
                check_repeat(
                    book, book.spent(step_key), counts, step_sets(common), None, remedy=_REMEDY
                )
            return steps
        current = resume(book, step_key)


def looks(ledger: Book, dataset: str) -> list[str]:
    """Return the keys of all looks at a dataset, oldest first."""
    rows = Ledger.at(ledger).rows()
    return [
        r.key
        for r in rows
        if r.kind == "spend" and r.dataset == dataset and r.plan_hash.startswith(f"{LOOK}:")
    ]


def look_key(common: CommonPlan, *, dataset: str, attempt: int = 1) -> str:
    """Return the key of a look: one per options, dataset and attempt."""
    return release_key(dataset=dataset, plan_hash=_hash(common, LOOK), attempt=attempt)


def _hash(common: CommonPlan, step: str) -> str:
    return f"{step}:{common.hash}"


def _rest_key(common: CommonPlan, i: int, key: str, attempt: int) -> str:
    dataset, *_ = key.rsplit("|", 2)
    # the key of the look is part of the key, so two looks never share a residual
    look_hash = hashlib.sha256(key.encode()).hexdigest()[:16]
    return release_key(
        dataset=dataset, plan_hash=f"{REST}{i}:{look_hash}:{common.hash}", attempt=attempt
    )


def _remaining_cost(common: CommonPlan, i: int, paid: Paid, attempt: int) -> float:
    """Return the cost of the last step: the plan's remaining pcost, or more in a new attempt.

    A new attempt draws the residual once more, so it costs at least the residual alone.
    """
    remaining_cost = paid.left(i)
    return remaining_cost if attempt == 1 else max(remaining_cost, common.residuals[i].pcost)


def _check_remaining_budget(book: Ledger, dataset: str, cost: float) -> None:
    """Raise BudgetExceeded before any record is read; the ledger would refuse only later."""
    remaining = book.status(dataset).left
    if cost > remaining:
        raise BudgetExceeded(
            f"Dataset {dataset!r} has pcost {remaining!r} left; to finish takes at least {cost!r}."
            " Nothing was spent. Plan the options with a budget of at most what is left."
        )


def _choices(book: Ledger, key: str) -> tuple[Choice, ...]:
    choices = []
    for row in book.notes(kind="decision", key=key):
        try:
            data = parse_json(row.note)
            fields = {name: data[name] for name in ("option", "verdict", "rule", "by", "reason")}
        except (ValueError, KeyError, TypeError):
            raise LedgerError(
                f"The decision in row {row.seq} cannot be read; it was not written by decide()."
            ) from None
        choices.append(Choice(**fields, seq=row.seq, utc=row.utc))
    return tuple(choices)
