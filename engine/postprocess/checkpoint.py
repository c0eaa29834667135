"""Checkpoints of long fits.

A checkpoint is a file with arrays in full precision.  It is written atomically, so that a fit that
continues from it has bit-identical results.  The folder of a fit is named by a hash of its inputs:
the released numbers, the options, the code of this package and the versions of its numerical
libraries.  An unreadable checkpoint is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._atomic_io import atomic_file
from engine.errors import PlanError
from engine.residuals import Axes

Saved = npt.NDArray[Any]
SECONDS = 5.0  # between checkpoints of one search
ENDING = ".npz"


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoints:
    """Checkpoints of one fit; without a folder, nothing is written.

    Attributes
    ----------
    folder : folder of the files.
    part : prefix of the file names.
    """

    folder: Path | None = None
    part: str = ""
    _since: list[float] = field(default_factory=lambda: [time.monotonic()], repr=False)

    def within(self, part: str) -> Checkpoints:
        """Return the checkpoints of a part of the fit."""
        return Checkpoints(folder=self.folder, part=f"{self.part}{part} ")

    @property
    def due(self) -> bool:
        """Whether the last checkpoint is old enough to write the next one."""
        return self.folder is not None and time.monotonic() - self._since[0] >= SECONDS

    def taken(self, name: str) -> dict[str, Saved] | None:
        """Read the arrays of a checkpoint; None if it is missing or unreadable."""
        if self.folder is None:
            return None
        try:
            with np.load(self.folder / f"{self.part}{name}{ENDING}", allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def take(self, name: str, arrays: Mapping[str, Saved]) -> None:
        """Write the arrays of a checkpoint, of any shapes.

        Raises: PlanError if the folder is not writable.
        """
        if self.folder is None:
            return
        path = self.folder / f"{self.part}{name}{ENDING}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_file(path, overwrite=True, sync=False) as file:
                np.savez(file, **dict[str, Any](arrays))
        except OSError as reason:
            raise PlanError(
                f"Checkpoints cannot be kept in {self.folder}: {reason.strerror}. Give resume a"
                " folder that is writable and has free space, or leave it out."
            ) from None
        self._since[0] = time.monotonic()

    def settle(self, name: str, arrays: Mapping[str, Saved]) -> None:
        """Write the result of a part and delete its intermediate checkpoints."""
        self.take(name, arrays)
        for file in self.folder.glob(f"{self.part}*{ENDING}") if self.folder is not None else ():
            if file.name != f"{self.part}{name}{ENDING}":
                file.unlink(missing_ok=True)


NONE = Checkpoints()


def checkpoints_of(folder: str | os.PathLike[str] | None, follows: Sequence[Any]) -> Checkpoints:
    """Return the checkpoints of a fit, in a subfolder named by the hash of its inputs.

    Parameters
    ----------
    folder : parent folder; None disables checkpoints.
    follows : inputs that determine the results, serializable as JSON.

    Raises: PlanError if ``folder`` is not a path.
    """
    if folder is None:
        return NONE
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise PlanError(f"resume was {folder!r:.60}. Give the path of a folder, or leave it out.")
    digest = hashlib.sha256(json.dumps([_code(), *follows]).encode()).hexdigest()
    return Checkpoints(folder=Path(folder) / digest[:32])


def arrays_by_name(arrays: Mapping[Axes, Saved], word: str = "") -> dict[str, Saved]:
    """Return arrays by array names with a prefix, for a checkpoint; the inverse of
    `arrays_by_axes`.
    """
    return {f"{word} on " + ",".join(map(str, axes)): values for axes, values in arrays.items()}


def arrays_by_axes(arrays: Mapping[str, Saved], word: str = "") -> dict[Axes, Saved]:
    """Return the arrays whose names have a prefix, by sets of attributes.

    >>> arrays_by_axes(arrays_by_name({(): np.ones(()), (0, 2): np.ones((2, 3))})).keys()
    dict_keys([(), (0, 2)])
    """
    prefix = f"{word} on "
    selected = {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }
    return {
        tuple(int(a) for a in axes.split(",") if a): values for axes, values in selected.items()
    }


def state_of(generator: np.random.Generator) -> Saved:
    """Return the state of a generator, as an array of bytes."""
    return np.frombuffer(json.dumps(generator.bit_generator.state).encode(), np.uint8)


def set_state(generator: np.random.Generator, state: Saved) -> None:
    """Restore the state of a generator from `state_of`."""
    generator.bit_generator.state = json.loads(state.tobytes())


@cache
def _code() -> str:
    """Hash of the code and library versions that determine the results."""
    digest = hashlib.sha256(f"{np.__version__} {scipy.__version__}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
