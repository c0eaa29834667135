"""Two-stage release: look, decide, finish.

    look      spend -> draw -> save the common part, under the key of the look
    decide    one note on the ledger: the rule, its verdict, what was chosen, and by whom if it was not the rule
    finish    spend -> draw -> save what is left of the chosen plan; answers are then those of that plan alone

Everything is found again from the ledger and its saved results: the file of a look holds the options as well.  A killed
step is done again by calling it again; like any release, one that was killed between its spend and its save is lost,
and only a new attempt, which spends again, repeats it.

To stop is a decision too: the look's own answers are all there is.  It is the only one that may be followed by another,
which then spends the rest of the option it takes.

Privacy: a look and one residual cost each record its own cells in both, in all at most what the chosen plan costs; the
choice between them is made from released numbers.  That is why each look is finished with one option only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from engine._untrusted import parse_json
from engine._validation import instance, one_of
from engine.common_mechanism.common_plan import CommonPlan, price
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
    leads_on,
    look_measurement,
    no_counts,
    step_counts,
    step_sets,
    stored_look,
    stored_rest,
    telling_too,
    write_look,
    write_rest,
)
from engine.errors import BudgetExceeded, DataError, LedgerError, PlanError, ResultLost
from engine.ledger import Ledger, release_key
from engine.progress import Progress
from engine.records import MEMORY_LIMIT
from engine.release import Intake, Measurement
from engine.release.ingest import check_repeat, left_out, recognised, teller
from engine.release.measure import check_curve, draw, left_open, spend_draw_save
from engine.release.rehearsal_noise import refuse_seed, rehearsal_bits
from engine.residuals import Space

STOP = "stop"
_REMEDY = (
    "To release these records, start a new look with another attempt, which spends again, or give another dataset, "
    "with a budget of its own. resume() returns the stored answers."
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
    """Measure what all options share; arguments and errors are those of `engine.release.measure.measure`.

    The measurement's plan is `common.look`; its `key` names the look in `decide`, `finish` and `resume`.

    The tables of all options are counted, though only the look's are measured: the ledger keeps a keyed digest of them,
    by which `finish` knows the records again.  With a ``person`` column both steps keep the same rows of each person.

    Guarantee: spends `common.look.budget.pcost` exactly once; the same attempt returns the stored result, if the
    records are the same.
    """
    give = "what coarse_or_fine() or nested_choices() returns"
    instance("analyses", common, CommonPlan, give=give, error=PlanError)
    tell = teller(progress)
    columns: dict[str, Any] = {"person": person, "count_column": count_column, "ignore": ignore}
    if rehearsal:
        _no_ledger(dataset, ledger)
        bits = rehearsal_bits(seed, "look", common.hash)
        counts = step_counts(common, common.look, data, tell, memory_limit, on_refused or "error", **columns)
        if intake is not None:
            intake(Intake.of(counts))
        answers = dict(draw(common.look, counts, tell, bits))
        return look_measurement(common, answers, key="", dataset="", utc="", rehearsal=True)
    refuse_seed(seed)
    book, key = _opened(dataset, ledger), look_key(common, dataset=dataset, attempt=attempt)
    earlier = book.find(key)
    finished = earlier is not None and not left_open(book, key)
    if finished and data is None:
        return resume(book, key).look
    if CommonPlan.from_json(common.to_json()).spends != common.spends:
        raise PlanError("These options do not come back from their file as they are. Nothing was spent; please report.")
    hash_, cost = _hash(common, LOOK), common.look.budget.pcost
    left_out(on_refused)
    book.status(dataset).definition.check_unit(common.look.budget)
    _check_left(book, dataset, 0 if earlier else min(price(p) for p in common.options))
    for plan, left in zip(common.options, common.residuals, strict=True) if not earlier else ():
        check_curve(book, dataset, [common.look.blocks, left.blocks], price(plan))
    counts = step_counts(common, common.look, data, tell, memory_limit, **columns)
    if earlier is not None and finished:
        check_repeat(book, earlier, counts, step_sets(common), intake, remedy=_REMEDY)
        return resume(book, key).look
    records = recognised(book, dataset, counts, step_sets(common), intake)
    done = spend_draw_save(
        common.look,
        counts,
        ledger=book,
        key=key,
        spend=lambda: book.spend(dataset=dataset, key=key, pcost=cost, plan_hash=hash_, note=LOOK, records=records),
        write=lambda file, receipt, drawn: write_look(file, common, receipt, drawn),
    )
    if not done:  # another run has looked under this key in the meantime, perhaps at other records
        check_repeat(book, book.spent(key), counts, step_sets(common), None, remedy=_REMEDY)
        return resume(book, key).look
    tell(1.0, "Looked")
    return stored_look(book, key, common)[1]


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
    """Keep a decision about the look under a key on the ledger; it costs nothing.

    Parameters
    ----------
    option : number or name of the option taken, or "stop"; None takes what the verdict says.
    verdict, rule : what a rule said, and its name and numbers, such as {"rule": "nested", "share": 0.5, "snr": 5}.
    by, reason : who decides, and why; needed when there is no verdict or the option is another one.

    Guarantee: of two decisions at the same time one is refused; only "stop" can be followed by another decision.

    Raises
    ------
    LedgerError : nothing was looked at under this key, or a decision is there already.
    PlanError : no such option, or nobody is named who overrides the rule.
    """
    book = _book(ledger)
    steps = resume(book, key)
    if steps.choice is not None and steps.choice.option != STOP:
        raise LedgerError(
            f"'{steps.choice.option}' was chosen for this look in row {steps.choice.seq}; a choice cannot be taken "
            "back. Finish it, or start a new look, which spends again."
        )
    said = None if verdict is None else STOP if verdict.choice is None else steps.common.names[verdict.choice]
    if option is None and said is None:
        raise PlanError("Nothing was chosen. Give an option, 'stop', or the verdict of a rule.")
    taken = said if option is None else STOP if option == STOP else steps.common.names[steps.common.position(option)]
    if steps.choice is not None and taken == STOP:
        raise LedgerError("To stop was decided already; only an option can follow.")
    if taken != said and not by.strip():
        raise PlanError(f"The rule says {said!r}, {taken!r} was given. Say who decides against, or without, a rule.")
    text = json.dumps(
        {
            "option": taken,
            "verdict": said,
            "certain": verdict.certain if verdict else None,
            "shares": {name: round(value, 6) for name, value in verdict.shares.items()} if verdict else {},
            "rule": dict(rule or {}),
            "by": by.strip(),
            "reason": reason.strip(),
        },
        ensure_ascii=False,
        sort_keys=True,
    )
    book.note(dataset=steps.look.dataset, kind="decision", text=text, key=key, earlier=len(steps.choices))
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
    """Measure what is left of the option that was chosen for a look, and return the measurement of its plan.

    Its `answers_on_grid` are those of this step; its estimates combine both steps, weighted by precision.  Where the
    option was to look closer, it is the look of the next choice: decide and finish again under its `key`.

    Parameters
    ----------
    attempt : a new number repeats a step whose result was lost; it spends the full cost of what is left again.
    person, count_column, ignore : as for the look; the same columns, or these are other records.
    on_changed : what to do when these are not the records that were looked at, or when that is not known: "refuse", or
        "charge" this step alone, because a record may then sit in the dearest cell of each step.

    Guarantee: answers have the law of the chosen plan measured alone; look and this step together spend its pcost to
    the last digit, where both are of the same records; the same attempt returns the stored result, if the records are
    those of this step, and never draws twice.  With ``data=None`` it returns the stored result without comparing them.
    Whatever is charged, a note on the ledger says so, and `intake` tells why.

    Raises
    ------
    LedgerError, BudgetExceeded, ResultLost, DataError : as for `measure`; also when there is no look or no choice.
    """
    book, tell = _book(ledger), teller(progress)
    steps = resume(book, key)
    choice = steps.choice
    if choice is None or choice.option == STOP:
        what = "Nothing was decided" if choice is None else "To stop was decided"
        raise LedgerError(f"{what} about this look. Decide for one of {', '.join(steps.common.names)} first.")
    common, i = steps.common, steps.common.names.index(choice.option)
    left, rest_key = common.residuals[i], _rest_key(common, i, key, attempt)
    cost = _left_to_spend(common, i, steps.paid, attempt)
    hash_, dataset = _hash(common, f"{REST}{i}"), steps.look.dataset
    following = common.following if leads_on(common, i) else None
    sets = step_sets(following or common)
    columns: dict[str, Any] = {"person": person, "count_column": count_column, "ignore": ignore}

    def check_stored(step_key: str, step_tables: list[Space]) -> None:
        """Raise OtherRecords unless the records given are those of a stored step."""
        if data is not None:
            counts = step_counts(common, left, data, tell, memory_limit, **columns)
            check_repeat(book, book.spent(step_key), counts, step_tables, intake, remedy=_REMEDY)

    if not left.blocks and on_changed == "refuse":  # the answers are those of the look
        check_stored(key, step_sets(common))
    if not left.blocks and cost == 0:
        if not book.notes(kind="finish", key=key):
            book.note(dataset=steps.look.dataset, kind="finish", text="Nothing was left to measure or spend.", key=key)
        return chosen_measurement(common, i, steps.look, {}, key=key, utc=steps.look.utc)
    if steps.finished is not None:
        if left.blocks:
            check_stored(steps.finished.key, sets)
        return steps.finished
    if (begun := book.find(rest_key) is not None) and not left_open(book, rest_key):
        if left.blocks:
            check_stored(rest_key, sets)
        return stored_rest(book, common, i, rest_key)
    left_out(on_refused)
    one_of("on_changed", on_changed, ("refuse", "charge"), error=PlanError)
    _check_left(book, dataset, 0 if begun else cost)
    if not begun:
        parts = [common.look.blocks, left.blocks] if attempt == 1 else [left.blocks]
        check_curve(book, dataset, parts, price(common.options[i]) if attempt == 1 else cost)
    counts, records = no_counts(common), None
    if left.blocks:
        looked = book.find(key)
        counts = step_counts(common, left, data, tell, memory_limit, **columns)
        changed = changed_records(book, looked.digest if looked else "", counts, common)
        if changed and on_changed == "refuse" and attempt == 1:
            raise DataError(
                f"{changed} The cost of both steps together holds only for the same records. Nothing was spent. Give "
                f'the records of the look, or use on_changed="charge", which spends {left.pcost!r} and not {cost!r}.'
            )
        told = telling_too(intake, changed, left.pcost)
        records = recognised(book, dataset, counts, sets, told)
        if changed:
            # on other records nothing joins the two steps in one cell, so that this one costs what it would alone
            cost = max(cost, left.pcost)
            # a later step cannot count on one cell in all steps any more
            records = replace(records, tables=f"{OTHER}{records.tables}")
            if not begun:
                book.note(dataset=dataset, kind="records", text=f"{changed} This step is charged alone.", key=key)
    done = spend_draw_save(
        left,
        counts,
        ledger=book,
        key=rest_key,
        spend=lambda: book.spend(
            dataset=dataset, key=rest_key, pcost=cost, plan_hash=hash_, note=f"{REST} of {key}", records=records
        ),
        write=lambda file, receipt, drawn: write_rest(file, common, i, steps.look, receipt, drawn),
    )
    if done:
        tell(1.0, "Released")
    elif left.blocks:  # another run has finished this step in the meantime, perhaps with other records
        check_repeat(book, book.spent(rest_key), counts, sets, None, remedy=_REMEDY)
    return stored_rest(book, common, i, rest_key)


def rehearse_finish(
    common: CommonPlan,
    looked: Measurement,
    data: Any,
    *,
    option: int | str,
    seed: int | None = None,
    person: str | None = None,
    count_column: str | None = None,
    ignore: Collection[str] = (),
) -> Measurement:
    """Run the last step on simulated or public data, after a rehearsed look; nothing is spent or may be published.

    ``seed`` is as in `engine.release.measure.measure`.
    """
    if not looked.rehearsal:
        raise PlanError("This look was released, so its next step is a release too. Use decide and finish.")
    i = common.position(option)
    bits = rehearsal_bits(seed, "finish", common.hash, str(i))
    tell, left, counts = teller(None), common.residuals[i], no_counts(common)
    if left.blocks:
        counts = step_counts(
            common, left, data, tell, MEMORY_LIMIT, "error", person=person, count_column=count_column, ignore=ignore
        )
    answers = dict(draw(left, counts, tell, bits))
    return chosen_measurement(common, i, looked, answers, key="", utc="")


def resume(ledger: Book, key: str) -> Steps:
    """Return everything that was done so far with the look under a key; reads no record and spends nothing.

    Raises
    ------
    ResultLost : the look was spent but never saved.
    LedgerError : nothing was ever spent under this key, it is no look, or a stored file is damaged.
    """
    book = _book(ledger)
    common, found, paid = stored_look(book, key)
    choices, finished, lost, begun = _choices(book, key), None, list[int](), False
    if choices and choices[-1].option != STOP:
        i, attempt = common.names.index(choices[-1].option), 1
        if not common.residuals[i].blocks and _left_to_spend(common, i, paid, attempt) == 0:
            finished = chosen_measurement(common, i, found, {}, key=key, utc=found.utc)
        # a spend whose result was never saved is paid for; only a new attempt may draw again
        while finished is None and book.find(_rest_key(common, i, key, attempt)) is not None:
            try:
                finished = stored_rest(book, common, i, _rest_key(common, i, key, attempt))
            except ResultLost:
                if begun := left_open(book, _rest_key(common, i, key, attempt)):
                    break
                lost.append(attempt)
            attempt += 1
    return Steps(common=common, look=found, choices=choices, finished=finished, paid=paid, lost=(*lost,), begun=begun)


def looks(ledger: Book, dataset: str) -> list[str]:
    """Return the keys of all looks at a dataset, oldest first."""
    rows = _book(ledger).rows()
    return [r.key for r in rows if r.kind == "spend" and r.dataset == dataset and r.plan_hash.startswith(f"{LOOK}:")]


def look_key(common: CommonPlan, *, dataset: str, attempt: int = 1) -> str:
    """Return the key of a look: the same options on the same dataset are looked at once per attempt."""
    return release_key(dataset=dataset, plan_hash=_hash(common, LOOK), attempt=attempt)


def _hash(common: CommonPlan, step: str) -> str:
    return f"{step}:{common.hash}"


def _rest_key(common: CommonPlan, i: int, key: str, attempt: int) -> str:
    dataset, *_ = key.rsplit("|", 2)
    # the key of the look is part of it: two looks never share a residual
    looked = hashlib.sha256(key.encode()).hexdigest()[:16]
    return release_key(dataset=dataset, plan_hash=f"{REST}{i}:{looked}:{common.hash}", attempt=attempt)


def _left_to_spend(common: CommonPlan, i: int, paid: Paid, attempt: int) -> float:
    """Return what the last step costs: the rest of the plan's pcost; all of its own when it is drawn once more."""
    left = paid.left(i)
    return left if attempt == 1 else max(left, common.residuals[i].pcost)


def _check_left(book: Ledger, dataset: str, cost: float) -> None:
    """Refuse before any record is read; the ledger would refuse as well, but later."""
    left = book.status(dataset).left
    if cost > left:
        raise BudgetExceeded(
            f"Dataset {dataset!r} has pcost {left!r} left; to finish takes {cost!r} at least. Nothing was spent. Plan "
            "the options with a budget of at most what is left."
        )


def _opened(dataset: str, ledger: Book | None) -> Ledger:
    if not dataset or ledger is None:
        raise PlanError("A look is a release: it needs the dataset's name and a ledger. Or use rehearsal=True.")
    return _book(ledger)


def _book(ledger: Book) -> Ledger:
    return ledger if isinstance(ledger, Ledger) else Ledger(ledger)


def _no_ledger(dataset: str, ledger: Book | None) -> None:
    if dataset or ledger is not None:
        raise PlanError("A rehearsal spends nothing. Leave out dataset and ledger, or use rehearsal=False.")


def _choices(book: Ledger, key: str) -> tuple[Choice, ...]:
    found = []
    for row in book.notes(kind="decision", key=key):
        try:
            data = parse_json(row.note)
            given = {name: data[name] for name in ("option", "verdict", "rule", "by", "reason")}
        except (ValueError, KeyError, TypeError):
            raise LedgerError(
                f"The decision in row {row.seq} cannot be read; it was not written by decide()."
            ) from None
        found.append(Choice(**given, seq=row.seq, utc=row.utc))
    return tuple(found)
