"""Files of the steps of `engine.choice.stepwise`: what was drawn, what follows from it, and the options themselves.

Estimates are kept beside the answers so that no later change of a library can alter them.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from engine.choice.common_plan import CommonPlan
from engine.errors import LedgerError, PlanError
from engine.release import Answers, Ledger, Measurement, Receipt, estimate
from engine.spaces import Space

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
    in_counts: dict[Space, npt.NDArray[np.float64]] = {
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


def write_look(file: BinaryIO, common: CommonPlan, receipt: Receipt, answers: Answers) -> None:
    """Write a look with all options, so that it can be finished from this file and the ledger alone."""
    found = look_measurement(common, answers, key="", dataset="", utc="", rehearsal=False)
    texts = {"common.json": common.to_json(), "spent.txt": repr(receipt.pcost)}
    _write(file, receipt, LOOK, answers, found.estimates, texts)


def write_rest(
    file: BinaryIO, common: CommonPlan, i: int, looked: Measurement, receipt: Receipt, answers: Answers
) -> None:
    """Write the step with the combined estimates; where it leads to the next choice of a chain, as the look of that."""
    found = chosen_measurement(common, i, looked, answers, key="", utc="")
    if leads_on(common, i) and common.following is not None:
        texts = {"common.json": common.following.to_json(), "spent.txt": repr(common.options[i].budget.pcost)}
        _write(file, receipt, LOOK, answers, found.estimates, texts | {"look.txt": looked.key})
        return
    _write(
        file,
        receipt,
        REST,
        answers,
        found.estimates,
        {"plan.json": common.options[i].to_json(), "look.txt": looked.key},
    )


def leads_on(common: CommonPlan, i: int) -> bool:
    """Whether an option is the look of the next choice of a chain."""
    return common.following is not None and i == len(common.options) - 1


def _write(
    file: BinaryIO,
    receipt: Receipt,
    step: str,
    answers: Answers,
    estimates: Mapping[Space, npt.NDArray[np.float64]],
    texts: Mapping[str, str],
) -> None:
    head = {"format": FORMAT, "step": step, "key": receipt.key, "dataset": receipt.dataset}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("release.json", json.dumps(head | {"utc": receipt.utc, "pcost": receipt.pcost}))
        for name, text in texts.items():
            archive.writestr(name, text)
        for folder, arrays in (("answers", answers), ("estimates", estimates)):
            for space, array in arrays.items():
                with archive.open(_member(folder, space), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)


def _member(folder: str, space: Space) -> str:
    """One file per residual space, named by its attributes, whatever characters these have."""
    return f"{folder}/{json.dumps(list(space), ensure_ascii=True)}.npy"


class _Stored:
    """A stored step, read with plain words for every way in which a file can be damaged."""

    def __init__(self, book: Ledger, key: str) -> None:
        self.path = book.result_path(key)

    def __enter__(self) -> zipfile.ZipFile:
        try:
            self.archive = zipfile.ZipFile(self.path)
        except (OSError, zipfile.BadZipFile):
            raise self.damaged() from None
        return self.archive

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.archive.close()
        if isinstance(error, (OSError, KeyError, ValueError, zipfile.BadZipFile)) and not isinstance(error, PlanError):
            raise self.damaged() from None

    def damaged(self) -> LedgerError:
        return LedgerError(f"The stored result {self.path.name} cannot be read. Restore it from a copy.")


def _head(archive: zipfile.ZipFile, key: str, step: str) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(archive.read("release.json"))
    if head.get("format") != FORMAT or head.get("step") != step or head.get("key") != key:
        raise LedgerError(f"What is stored under key {key!r} is not this step. Give the key of a look.")
    return head


def _arrays(
    archive: zipfile.ZipFile, common: CommonPlan, blocks: Mapping[Space, Any], i: int | None = None
) -> tuple[dict[Space, npt.NDArray[np.int64]], dict[Space, npt.NDArray[np.float64]]]:
    """Return answers of blocks, and estimates of the spaces of the look, or of option i."""
    spaces = common.look.blocks if i is None else common.options[i].blocks
    shapes = {s: tuple(n - 1 for n in common.look.schema.sizes(s)) for s in spaces}
    answers = {s: _read(archive, _member("answers", s), np.int64, (b.measurements,)) for s, b in blocks.items()}
    return answers, {s: _read(archive, _member("estimates", s), np.float64, shape) for s, shape in shapes.items()}


def _read(archive: zipfile.ZipFile, name: str, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    array = np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{name} has another shape")
    return array


def stored_look(book: Ledger, key: str) -> tuple[CommonPlan, Measurement, str]:
    """Return the options, the measurement of a look, and what was spent until then, in pcost as a decimal number.

    Raises: ResultLost if it was spent but never saved; LedgerError if it is no look, or its file is damaged.
    """
    with _Stored(book, key) as archive:
        head = _head(archive, key, LOOK)
        common = CommonPlan.from_json(archive.read("common.json"))
        spent = archive.read("spent.txt").decode()
        # what a closer look drew were the answers of another choice's rest; its estimates hold them
        drawn = {} if "look.txt" in archive.namelist() else common.look.blocks
        answers, estimates = _arrays(archive, common, drawn)
    found = Measurement(
        plan=common.look,
        dataset=head["dataset"],
        key=key,
        utc=head["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=estimates,
    )
    return common, found, spent


def stored_rest(book: Ledger, common: CommonPlan, i: int, key: str) -> Measurement:
    """Return the measurement of option i that was stored under the key of its last step; raises as `stored_look`."""
    with _Stored(book, key) as archive:
        head = _head(archive, key, LOOK if leads_on(common, i) else REST)
        answers, estimates = _arrays(archive, common, common.residuals[i].blocks, i)
    return Measurement(
        plan=common.options[i],
        dataset=head["dataset"],
        key=key,
        utc=head["utc"],
        rehearsal=False,
        answers_on_grid=answers,
        estimates=estimates,
    )
