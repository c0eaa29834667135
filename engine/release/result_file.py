"""Result files of measurements.

A result file is a zip archive of a JSON header, texts, int64 answers and float64 estimates.  It
contains the estimates as well as the answers, so that later versions of libraries cannot change
them.  Arrays are named by the attributes of their residual space.  `save_measurement` writes a
measurement to a separate file, without a ledger.
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
from engine._validation import check_type
from engine.errors import EngineError, LedgerError, PlanError
from engine.ledger import Receipt
from engine.mechanisms import load_plan, mechanism_class
from engine.residuals import Space

if TYPE_CHECKING:
    from engine.release.measurement import Measurement


# Limit in bytes of the header of an array.
MAX_ARRAY_HEADER_BYTES = 4096
HEAD_TEXTS = ("format", "key", "dataset", "utc")
Shapes = Mapping[Space, tuple[int, ...]]
# Answers in grid steps, each drawn when it is requested.
Drawn = Iterable[tuple[Space, npt.NDArray[np.int64]]]


def write_archive(
    file: BinaryIO,
    head: Mapping[str, Any],
    receipt: Receipt | None,
    *,
    texts: Mapping[str, str],
    answers: Drawn,
    estimates: Iterable[tuple[Space, Array]] | Callable[[Space, npt.NDArray[np.int64]], Array],
) -> None:
    """Write answers and estimates, arrays of any shape, one after the other as they are produced.

    Parameters
    ----------
    head : fields of the header; key, dataset, time and cost of the receipt are added.
    estimates : pairs of space and array, or a function of the space and its answers.  For a
        function, the answers are read back from the file one at a time, so that memory never holds
        all.
    """
    spent = {} if receipt is None else {n: getattr(receipt, n) for n in ("key", "dataset", "utc", "pcost")}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("release.json", json.dumps({**head, **spent}))
        for name, text in texts.items():
            archive.writestr(name, text)
        positions: dict[Space, tuple[int, int]] = {}

        def write(folder: str, space: Space, array: npt.NDArray[Any]) -> None:
            with archive.open(_member(folder, space), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
                positions.setdefault(space, (file.tell() - array.nbytes, array.nbytes))

        def read(space: Space) -> npt.NDArray[np.int64]:
            # the archive moves to its end before it writes
            file.seek(positions[space][0])
            return np.frombuffer(file.read(positions[space][1]), np.int64)

        for space, drawn in answers:
            write("answers", space, drawn)
        named_estimates = (
            ((space, estimates(space, read(space))) for space in list(positions)) if callable(estimates) else estimates
        )
        for space, array in named_estimates:
            write("estimates", space, array)


@dataclass(kw_only=True)
class Archive:
    """Reader of a result file, as a context manager; any damage raises LedgerError.

    Arrays must have exactly the expected type and shape.  They are read-only views of the
    memory-mapped file, so their data are read on access; the file stays open until the last view is
    deleted.
    """

    path: Path

    def __enter__(self) -> Archive:
        try:
            self._opened = open_zip(
                self.path, self.path.name, error=LedgerError, plain_names=False, max_members=math.inf
            )
            self._zip = self._opened.__enter__()
            # one memory map for all arrays, because each map holds a file descriptor
            self._content = np.memmap(self.path, np.uint8, "r").view(np.ndarray)
        except (OSError, ValueError, LedgerError):
            raise self._damaged() from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(None, None, None)
        # a damaged file raises errors of many types; a PlanError already explains what is wrong
        if isinstance(error, Exception) and (
            not isinstance(error, EngineError) or (isinstance(error, ValueError) and not isinstance(error, PlanError))
        ):
            raise self._damaged() from None

    def __contains__(self, name: str) -> bool:
        return name in self._zip.namelist()

    def head(self, **expected: str) -> dict[str, Any]:
        """Return the header.

        Raises
        ------
        LedgerError
            The header does not have the expected values.
        """
        header = parse_json(self.text("release.json"))
        if not isinstance(header, dict) or not all(type(header.get(name, "")) is str for name in HEAD_TEXTS):
            raise ValueError("the head has other fields")
        if any(header.get(name) != value for name, value in expected.items()):
            raise LedgerError(
                f"The result {self.path.name} is not this step. Give the key of a look to continue from it; "
                "restore the file of a release from a copy."
            )
        return header

    def text(self, name: str) -> bytes:
        """Return the bytes of a text."""
        # texts are stored without compression, so no text is larger than the file
        return read_member(self._zip, name, self.path.stat().st_size)

    def answers(self, shapes: Shapes) -> dict[Space, npt.NDArray[np.int64]]:
        """Return the released strategy answers of some spaces, in grid steps, with these shapes."""
        return {space: self._array("answers", space, np.int64, shape) for space, shape in shapes.items()}

    def estimates(self, shapes: Shapes) -> dict[Space, Array]:
        """Return the estimates of some spaces, in counts, with these shapes."""
        return {space: self._array("estimates", space, np.float64, shape) for space, shape in shapes.items()}

    def everything(self, folder: str) -> dict[Space, npt.NDArray[Any]]:
        """Return all arrays of the folder "answers" or "estimates", with their stored shapes."""
        names = [name for name in self._zip.namelist() if name.startswith(f"{folder}/")]
        spaces = {name: parse_json(name[len(folder) + 1 : -len(".npy")]) for name in names}
        if not all(isinstance(s, list) and all(isinstance(a, str) for a in s) for s in spaces.values()):
            raise ValueError("an array has another name")
        return {tuple(space): self._window(name) for name, space in spaces.items()}

    def _array(self, folder: str, space: Space, dtype: Any, shape: Iterable[int]) -> npt.NDArray[Any]:
        name = _member(folder, space)
        array = self._window(name)
        if array.dtype != dtype or array.shape != tuple(shape):
            raise ValueError(f"{name} has another shape")
        return array

    def _window(self, name: str) -> npt.NDArray[Any]:
        """Return a view of an array in the file, without reading it."""
        member = self._zip.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is packed")
        lengths = self._content[member.header_offset + 26 : member.header_offset + 30].view("<u2")
        start = member.header_offset + 30 + int(lengths.sum())
        stored = self._content[start : start + member.file_size]
        head = io.BytesIO(stored[:MAX_ARRAY_HEADER_BYTES].tobytes())
        shape, by_columns, dtype = array_header(head)
        if by_columns:
            raise ValueError(f"{name} is no array of ours")
        return stored[head.tell() :].view(dtype).reshape(shape)

    def _damaged(self) -> LedgerError:
        return LedgerError(f"The stored result {self.path.name} cannot be read. Restore it from a copy.")


def _member(folder: str, space: Space) -> str:
    """Return the name of the member for a residual space: JSON of its attributes, for any names."""
    return f"{folder}/{json.dumps(list(space), ensure_ascii=True)}.npy"


FORMAT = "saved/1"
NAMES = ("dataset", "key", "utc", "rehearsal")


def save_measurement(measurement: Measurement, path: str | os.PathLike[str]) -> None:
    """Write a measurement with its plan; see `Measurement.save`."""
    # a mechanism that cannot be planned could not be loaded
    mechanism_class(measurement.plan.mechanism)
    head = {"format": FORMAT} | {name: getattr(measurement, name) for name in NAMES}
    answers, estimates = measurement.answers_on_grid.items(), measurement.estimates.items()
    with fresh_file(_checked_path(path), "measurement", error=PlanError) as file:
        texts = {"plan.json": measurement.plan.to_json()}
        write_archive(file, head, None, texts=texts, answers=answers, estimates=estimates)


def _checked_path(path: str | os.PathLike[str]) -> Path:
    check_type("file", path, (str, os.PathLike), give="its path", error=PlanError)
    return Path(path)


def saved_measurement(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of the measurement in a file; see `Measurement.load`."""
    with Archive(path=_checked_path(path)) as archive:
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
