"""Result files of measurements.

The one form of a file of drawn numbers: a zip of a head (JSON), texts, int64 answers and float64 estimates.

Estimates are kept beside the answers so that no later change of a library can alter them.  Arrays are named by the
attributes of their residual space; releases that were written before by the number of the block.

A measurement as a file of its own, apart from any ledger.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._atomic_io import fresh_file
from engine._untrusted import array_header, open_zip, parse_json, read_member
from engine._validation import instance
from engine.errors import EngineError, LedgerError, PlanError
from engine.ledger import Receipt
from engine.mechanisms import load_plan, mechanism_class
from engine.residuals import Space

if TYPE_CHECKING:
    from engine.release.measurement import Measurement


HEAD = 4096  # bytes in which the description of an array ends
HEAD_TEXTS = ("format", "key", "dataset", "utc")
Shapes = Mapping[Space, tuple[int, ...]]
Drawn = Iterable[tuple[Space, npt.NDArray[np.int64]]]  # answers in steps of their grids, each drawn when it is asked


def write_archive(
    file: BinaryIO,
    head: Mapping[str, Any],
    receipt: Receipt | None,
    *,
    texts: Mapping[str, str],
    answers: Drawn,
    estimates: Iterable[tuple[Space, Array]] | Callable[[Space, npt.NDArray[np.int64]], Array],
) -> None:
    """Write drawn numbers, arrays of any shape, one after the other as they come.

    The head gets key, dataset, time and cost of a receipt.  Estimates come by themselves, or from a function of the
    space and its answers: these are then read back from the file one after the other, and never held together.
    """
    spent = {} if receipt is None else {n: getattr(receipt, n) for n in ("key", "dataset", "utc", "pcost")}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("release.json", json.dumps({**head, **spent}))
        for name, text in texts.items():
            archive.writestr(name, text)
        places: dict[Space, tuple[int, int]] = {}

        def write(folder: str, space: Space, array: npt.NDArray[Any]) -> None:
            with archive.open(_member(folder, space), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
                places.setdefault(space, (file.tell() - array.nbytes, array.nbytes))

        def read(space: Space) -> npt.NDArray[np.int64]:
            file.seek(places[space][0])  # the archive goes to its end before it writes
            return np.frombuffer(file.read(places[space][1]), np.int64)

        for space, drawn in answers:
            write("answers", space, drawn)
        made = ((space, estimates(space, read(space))) for space in list(places)) if callable(estimates) else estimates
        for space, found in made:
            write("estimates", space, found)


@dataclass(kw_only=True)
class Archive:
    """A stored file of drawn numbers; used in a `with`, where any damage becomes a LedgerError in plain words.

    Arrays must have exactly the type and the shape that are asked for.  They are read-only windows on the file, which
    take memory only where they are looked at; the file stays open until the last of them is gone.
    """

    path: Path

    def __enter__(self) -> Archive:
        try:
            self._opened = open_zip(
                self.path, self.path.name, error=LedgerError, plain_names=False, max_members=math.inf
            )
            self._zip = self._opened.__enter__()
            # one window for all arrays: each of its own would hold a file descriptor
            self._content = np.memmap(self.path, np.uint8, "r").view(np.ndarray)
        except (OSError, ValueError, LedgerError):
            raise self._damaged() from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(None, None, None)
        # a damaged file leads its readers to errors of many kinds; what is wrong with its plan has been said
        if isinstance(error, Exception) and (
            not isinstance(error, EngineError) or (isinstance(error, ValueError) and not isinstance(error, PlanError))
        ):
            raise self._damaged() from None

    def __contains__(self, name: str) -> bool:
        return name in self._zip.namelist()

    def head(self, **expected: str) -> dict[str, Any]:
        """Return the head.  Raises: LedgerError unless it holds what is expected."""
        found = parse_json(self.text("release.json"))
        if not isinstance(found, dict) or not all(type(found.get(name, "")) is str for name in HEAD_TEXTS):
            raise ValueError("the head has other fields")
        if any(found.get(name) != value for name, value in expected.items()):
            raise LedgerError(
                f"What is stored as {self.path.name} is not this step. Give the key of a look to go on from it; "
                "restore the file of a release from a copy."
            )
        return found

    def text(self, name: str) -> bytes:
        """Return the bytes of a text."""
        # stored as it is, a text is never larger than the file
        return read_member(self._zip, name, self.path.stat().st_size)

    def answers(self, shapes: Shapes) -> dict[Space, npt.NDArray[np.int64]]:
        """Return the released strategy answers of some spaces, of the shapes given, in steps of their grids."""
        return {s: self._array("answers", s, i, np.int64, shape) for i, (s, shape) in enumerate(shapes.items())}

    def estimates(self, shapes: Shapes) -> dict[Space, Array]:
        """Return the estimates of some spaces, of the shapes given, in counts."""
        return {s: self._array("estimates", s, i, np.float64, shape) for i, (s, shape) in enumerate(shapes.items())}

    def everything(self, folder: str) -> dict[Space, npt.NDArray[Any]]:
        """Return all "answers" or all "estimates", each of the shape that it was written with."""
        names = [name for name in self._zip.namelist() if name.startswith(f"{folder}/")]
        spaces = {name: parse_json(name[len(folder) + 1 : -len(".npy")]) for name in names}
        if not all(isinstance(s, list) and all(isinstance(a, str) for a in s) for s in spaces.values()):
            raise ValueError("an array has another name")
        return {tuple(space): self._window(name) for name, space in spaces.items()}

    def _array(self, folder: str, space: Space, number: int, dtype: Any, shape: Iterable[int]) -> npt.NDArray[Any]:
        name = _member(folder, space)
        array = self._window(name if name in self else f"{folder}/{number}.npy")
        if array.dtype != dtype or array.shape != tuple(shape):
            raise ValueError(f"{name} has another shape")
        return array

    def _window(self, name: str) -> npt.NDArray[Any]:
        """Return an array of the file without reading it."""
        member = self._zip.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is packed")
        lengths = self._content[member.header_offset + 26 : member.header_offset + 30].view("<u2")
        start = member.header_offset + 30 + int(lengths.sum())
        stored = self._content[start : start + member.file_size]
        head = io.BytesIO(stored[:HEAD].tobytes())
        shape, by_columns, dtype = array_header(head)
        if by_columns:
            raise ValueError(f"{name} is no array of ours")
        return stored[head.tell() :].view(dtype).reshape(shape)

    def _damaged(self) -> LedgerError:
        return LedgerError(f"The stored result {self.path.name} cannot be read. Restore it from a copy.")


def _member(folder: str, space: Space) -> str:
    """One file per residual space, named by its attributes, whatever characters these have."""
    return f"{folder}/{json.dumps(list(space), ensure_ascii=True)}.npy"


FORMAT = "saved/1"
NAMES = ("dataset", "key", "utc", "rehearsal")


def save_measurement(found: Measurement, path: str | os.PathLike[str]) -> None:
    """Write a measurement with its plan; see `Measurement.save`."""
    mechanism_class(found.plan.mechanism)  # what cannot be planned could not be loaded
    head = {"format": FORMAT} | {name: getattr(found, name) for name in NAMES}
    answers, estimates = found.answers_on_grid.items(), found.estimates.items()
    with fresh_file(_place(path), "measurement", error=PlanError) as file:
        texts = {"plan.json": found.plan.to_json()}
        write_archive(file, head, None, texts=texts, answers=answers, estimates=estimates)


def _place(path: str | os.PathLike[str]) -> Path:
    instance("file", path, (str, os.PathLike), give="its path", error=PlanError)
    return Path(path)


def saved_measurement(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of the measurement in a file; see `Measurement.load`."""
    with Archive(path=_place(path)) as archive:
        head = archive.head(format=FORMAT)
        plan = load_plan(archive.text("plan.json"))
        answers, estimates = archive.everything("answers"), archive.everything("estimates")
        if estimates.keys() != plan.answering.keys():
            raise ValueError("these are estimates of another plan")
        return {name: head[name] for name in NAMES} | {
            "plan": plan,
            "answers_on_grid": answers,
            "estimates": estimates,
        }
