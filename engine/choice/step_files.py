"""Files of the steps of `engine.choice.stepwise`: what was drawn, what follows from it, and the options themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from engine.arrays import Array
from engine.choice.common_plan import CommonPlan
from engine.choice.look_plan import price
from engine.choice.step_state import Paid
from engine.plans import GUARD, Block, Plan
from engine.release import Answers, Archive, Drawn, Ledger, Measurement, Receipt, estimate, write_archive
from engine.spaces import Space
from engine.untrusted import parse_json

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
