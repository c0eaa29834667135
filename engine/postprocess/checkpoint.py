"""Checkpoints of long fits.

A step is a file of arrays to the last digit, there as a whole or not at all, so that what follows from it is what it
would have been.  Reached are found by all that they follow from: the released numbers, the options, this very code and
the versions of what it computes with.  A step that cannot be read was not taken.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
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

from engine.errors import PlanError
from engine.residuals import Axes

Kept = npt.NDArray[Any]
SECONDS = 5.0  # between the states of one long search
ENDING = ".npz"


@dataclass(frozen=True, kw_only=True, eq=False)
class Reached:
    """The steps of one piece of work; without a folder none are kept.

    Attributes
    ----------
    folder : where its files are.
    part : begins the names of all its steps.
    """

    folder: Path | None = None
    part: str = ""
    _since: list[float] = field(default_factory=lambda: [time.monotonic()], repr=False)

    def within(self, part: str) -> Reached:
        """Return the steps of a part of the work."""
        return Reached(folder=self.folder, part=f"{self.part}{part} ")

    @property
    def due(self) -> bool:
        """Whether a search has gone on for so long that its state should be kept."""
        return self.folder is not None and time.monotonic() - self._since[0] >= SECONDS

    def taken(self, name: str) -> dict[str, Kept] | None:
        """Return the arrays of a step; None where it was not taken."""
        if self.folder is None:
            return None
        try:
            with np.load(self.folder / f"{self.part}{name}{ENDING}", allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def take(self, name: str, arrays: Mapping[str, Kept]) -> None:
        """Keep the arrays of a step, of any shapes.

        Raises: PlanError when the folder cannot be written to.
        """
        if self.folder is None:
            return
        place = self.folder / f"{self.part}{name}{ENDING}"
        draft = place.with_name(f".{secrets.token_hex(8)}.draft")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                    np.savez(file, **dict[str, Any](arrays))
                os.replace(draft, place)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as reason:
            raise PlanError(
                f"What was reached cannot be kept in {self.folder}: {reason.strerror}. Give resume a folder that can "
                "be written to and has room, or leave it out."
            ) from None
        self._since[0] = time.monotonic()

    def settle(self, name: str, arrays: Mapping[str, Kept]) -> None:
        """Keep the arrays of the last step of a part, and none of the steps that led to it."""
        self.take(name, arrays)
        for file in self.folder.glob(f"{self.part}*{ENDING}") if self.folder is not None else ():
            if file.name != f"{self.part}{name}{ENDING}":
                file.unlink(missing_ok=True)


NONE = Reached()


def steps_of(folder: str | os.PathLike[str] | None, follows: Sequence[Any]) -> Reached:
    """Return the steps of the work that follows from some numbers and words, in a folder of its own within ``folder``.

    Raises: PlanError when ``folder`` is no path.
    """
    if folder is None:
        return NONE
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise PlanError(f"resume was {folder!r:.60}. Give the path of a folder, or leave it out.")
    made = hashlib.sha256(json.dumps([_code(), *follows]).encode()).hexdigest()
    return Reached(folder=Path(folder) / made[:32])


def by_axes(arrays: Mapping[Axes, Kept], word: str = "") -> dict[str, Kept]:
    """Return arrays by names that a file may have, which begin with a word; see `of_axes`."""
    return {f"{word} on " + ",".join(map(str, axes)): values for axes, values in arrays.items()}


def of_axes(arrays: Mapping[str, Kept], word: str = "") -> dict[Axes, Kept]:
    """Return the arrays whose names begin with a word, by sets of attributes.

    >>> of_axes(by_axes({(): np.ones(()), (0, 2): np.ones((2, 3))})).keys()
    dict_keys([(), (0, 2)])
    """
    begin = f"{word} on "
    own = {name.removeprefix(begin): values for name, values in arrays.items() if name.startswith(begin)}
    return {tuple(int(a) for a in axes.split(",") if a): values for axes, values in own.items()}


def state_of(generator: np.random.Generator) -> Kept:
    """Return where a generator stands, as an array of bytes."""
    return np.frombuffer(json.dumps(generator.bit_generator.state).encode(), np.uint8)


def set_state(generator: np.random.Generator, state: Kept) -> None:
    """Let a generator stand where another one stood."""
    generator.bit_generator.state = json.loads(state.tobytes())


@cache
def _code() -> str:
    """What the numbers of a step follow from beside what was given."""
    made = hashlib.sha256(f"{np.__version__} {scipy.__version__}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        made.update(file.read_bytes())
    return made.hexdigest()
