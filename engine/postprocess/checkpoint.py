"""Checkpoints of long fits, from which an interrupted fit continues.

A checkpoint is a file with the intermediate arrays of a fit in full precision, so that a continued
fit returns bit-identical results.  Files are written atomically; an unreadable file is ignored.
Each fit has its own folder.  The name of the folder is a hash of the released numbers, the options,
the code of this package and the versions of NumPy and SciPy.
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

AnyArray = npt.NDArray[Any]
WRITE_INTERVAL_S = 5.0  # seconds between two checkpoints of one search
SUFFIX = ".npz"


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoints:
    """Reads and writes the checkpoint files of one fit.

    Attributes
    ----------
    folder : folder of the files; None disables reading and writing.
    part : prefix of the file names.  Every step of a fit that writes checkpoints has its own
        prefix.
    """

    folder: Path | None = None
    part: str = ""
    # The time of the last checkpoint, or of the creation of this object if there is none yet.  It
    # is in a list, because the class is frozen.
    _last_write: list[float] = field(default_factory=lambda: [time.monotonic()], repr=False)

    def of_part(self, part: str) -> Checkpoints:
        """Return checkpoints in the same folder whose file names also start with ``part``."""
        return Checkpoints(folder=self.folder, part=f"{self.part}{part} ")

    @property
    def due(self) -> bool:
        """Whether files are enabled and `WRITE_INTERVAL_S` has passed since the last one.

        Before the first file, the time since the creation of this object counts.
        """
        age = time.monotonic() - self._last_write[0]
        return self.folder is not None and age >= WRITE_INTERVAL_S

    def read(self, name: str) -> dict[str, AnyArray] | None:
        """Return the arrays of a checkpoint by name; None without a readable file."""
        if self.folder is None:
            return None
        try:
            with np.load(self.folder / f"{self.part}{name}{SUFFIX}", allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def write(self, name: str, arrays: Mapping[str, AnyArray]) -> None:
        """Write named arrays of any shape to the file of a checkpoint, which is overwritten.

        Nothing is written if ``folder`` is None.

        Raises: PlanError if the file cannot be written.
        """
        if self.folder is None:
            return
        path = self.folder / f"{self.part}{name}{SUFFIX}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_file(path, overwrite=True, sync=False) as file:
                np.savez(file, **dict[str, Any](arrays))
        except OSError as reason:
            raise PlanError(
                f"Checkpoints cannot be written to {self.folder}: {reason.strerror}. Give the"
                " path of a writable folder with free space as resume, or leave resume out."
            ) from None
        self._last_write[0] = time.monotonic()

    def write_result(self, name: str, arrays: Mapping[str, AnyArray]) -> None:
        """Write the final arrays of this part of the fit and delete its other checkpoints."""
        self.write(name, arrays)
        if self.folder is None:
            return
        for file in self.folder.glob(f"{self.part}*{SUFFIX}"):
            if file.name != f"{self.part}{name}{SUFFIX}":
                file.unlink(missing_ok=True)


NO_CHECKPOINTS = Checkpoints()


def checkpoints_of(folder: str | os.PathLike[str] | None, inputs: Sequence[Any]) -> Checkpoints:
    """Return the checkpoints of a fit, in a subfolder named by the hash of its inputs.

    Parameters
    ----------
    folder : parent folder of the subfolder; None disables checkpoints.
    inputs : released numbers and options of the fit; they must be serializable as JSON.

    Raises: PlanError if ``folder`` is not a path.
    """
    if folder is None:
        return NO_CHECKPOINTS
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise PlanError(
            f"resume is {folder!r:.60}, but it must be the path of a folder. Give a path, or leave"
            " resume out."
        )
    digest = hashlib.sha256(json.dumps([_code_hash(), *inputs]).encode()).hexdigest()
    return Checkpoints(folder=Path(folder) / digest[:32])


def arrays_by_name(arrays: Mapping[Axes, AnyArray], prefix: str = "") -> dict[str, AnyArray]:
    """Replace attribute sets as keys by names: (0, 2) becomes "error on 0,2" for prefix "error".

    `arrays_by_axes` is the inverse.
    """
    return {f"{prefix} on " + ",".join(map(str, axes)): values for axes, values in arrays.items()}


def arrays_by_axes(arrays: Mapping[str, AnyArray], prefix: str = "") -> dict[Axes, AnyArray]:
    """Select the arrays that `arrays_by_name` named with ``prefix``; return them by attribute set.

    >>> arrays_by_axes(arrays_by_name({(): np.ones(()), (0, 2): np.ones((2, 3))})).keys()
    dict_keys([(), (0, 2)])
    """
    start = f"{prefix} on "
    selected = {
        name.removeprefix(start): values
        for name, values in arrays.items()
        if name.startswith(start)
    }
    return {
        tuple(int(a) for a in axes.split(",") if a): values for axes, values in selected.items()
    }


def state_of(generator: np.random.Generator) -> AnyArray:
    """Return the state of a random generator as an array of bytes, for a checkpoint."""
    return np.frombuffer(json.dumps(generator.bit_generator.state).encode(), np.uint8)


def set_state(generator: np.random.Generator, state: AnyArray) -> None:
    """Set a random generator to a state that `state_of` returned."""
    generator.bit_generator.state = json.loads(state.tobytes())


@cache
def _code_hash() -> str:
    """Return the SHA-256 of this package's code and of the versions of NumPy and SciPy."""
    digest = hashlib.sha256(f"{np.__version__} {scipy.__version__}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
