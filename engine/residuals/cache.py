"""What searches found, kept by content: in memory always, on disk as well unless that is switched off.

The key of a search is a hash of everything that determines it (`Search.key`), what is kept are its dual
weights.  Weights from a file are hints: the strategy, its value, bound and privacy cost are computed from them again,
and when they do not prove the gap that was asked, the search goes on from them.  A wrong file costs time, no accuracy.

Nothing here comes from records: a search knows the schema, the queries and their weights.  The folder may be deleted at
any time.  It is the user's cache folder, or the one that DP_WORKBENCH_CACHE names; "off" keeps everything in memory.

A file holds one JSON line (format, key, number of weights, checksum) and the weights as little-endian doubles.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import platformdirs

from engine._arrays import Array
from engine._untrusted import parse_json
from engine.residuals.dual_solver import Solution
from engine.residuals.strategy_search import Search

VARIABLE = "DP_WORKBENCH_CACHE"
FORMAT = "weights/1"
SUFFIX = ".weights"
MEMORY_BYTES = 192 * 2**20
HINT_BYTES = 32 * 2**20
DISK_BYTES = 256 * 2**20
WORTH = 2_000  # squared class coordinates below which a search is quicker than opening a file
NEIGHBOURS = 8  # hints kept for one shape
TIMED = "time limit"  # what the status of a search says that was ended before it was over
Hints = Mapping[str, tuple[tuple[Array, Array], ...]]
_Kept = TypeVar("_Kept")


class Bounded(Generic[_Kept]):
    """Values by key up to a number of bytes; the one that was not used for longest goes first."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._values: OrderedDict[str, tuple[_Kept, Mapping[Hashable, int]]] = OrderedDict()
        self._holders: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def get(self, key: str) -> _Kept | None:
        """Return the value, or None when it is not there."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: str, value: _Kept, size: int | Mapping[Any, int]) -> None:
        """Keep a value of ``size`` bytes, unless it alone is too large.

        A size by parts counts each part once, however many values are made of it; a part takes the same in all of them.
        """
        parts: Mapping[Hashable, int] = size if isinstance(size, Mapping) else {("alone", key): size}
        with self._lock:
            if key in self._values:
                self._drop(key)
            if sum(parts.values()) <= self.limit:
                self._values[key] = (value, parts)
                self.used += sum(taken for part, taken in parts.items() if not self._holders[part])
                self._holders.update(parts.keys())
            while self.used > self.limit:
                self._drop(next(iter(self._values)))

    def _drop(self, key: str) -> None:
        _, parts = self._values.pop(key)
        self._holders.subtract(parts.keys())
        for part, taken in parts.items():
            if not self._holders[part]:
                del self._holders[part]
                self.used -= taken

    def snapshot(self) -> dict[str, _Kept]:
        """Return all values by key."""
        with self._lock:
            return {key: value for key, (value, _) in self._values.items()}


class SolveCache:
    """Solutions of searches by content.

    Parameters
    ----------
    folder : where weights are written too; None keeps them in memory only.
    memory, disk : most bytes to hold in memory and in the folder.
    """

    def __init__(self, folder: Path | None = None, memory: int = MEMORY_BYTES, disk: int = DISK_BYTES) -> None:
        self.folder, self.disk = folder, disk
        self._solutions = Bounded[Solution](memory)
        self._hints = Bounded[tuple[tuple[Array, Array], ...]](HINT_BYTES)
        self._numbers = Bounded[Array](HINT_BYTES)
        self._written = 0
        self._lock = threading.Lock()

    def recall(self, search: Search) -> Solution | None:
        """Return what this process found for an equal search, or None."""
        return self._solutions.get(search.key)

    def weights(self, search: Search) -> Array | None:
        """Return the weights that a file holds for an equal search, unchecked, or None. Shape (orbits,)."""
        return self._read(search.key) if _worth_a_file(search) else None

    def _read(self, key: str) -> Array | None:
        if self.folder is None:
            return None
        path = self.folder / (key + SUFFIX)
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            if parse_json(head) != _head(key, body):
                return None
            with suppress(OSError):
                os.utime(path)
            return np.frombuffer(body, "<f8").astype(float)
        except (OSError, ValueError):
            return None

    def numbers(self, key: str) -> tuple[Array | None, bool]:
        """Return numbers kept under a key, or None, and whether this process found them itself. Any shape."""
        own = self._numbers.get(key)
        return (own, True) if own is not None else (self._read(key), False)

    def keep_numbers(self, key: str, values: Array) -> None:
        """Keep numbers under a key: the centers and complements of a request. Any shape."""
        self._numbers.put(key, values, values.nbytes)
        self._save(key, values)

    def hints(self) -> Hints:
        """Return weights to start from, by the shape of a search; see `nearest`."""
        return self._hints.snapshot()

    def keep(self, search: Search, found: Solution) -> None:
        """Keep a solution, unless a limit of time ended its search."""
        if TIMED in found.status or search.method == "fourier":  # Fourier strategies are no search, they are a formula
            return
        self._solutions.put(search.key, found, _bytes(found))
        if _worth_a_file(search):
            self._save(search.key, found.dual)

    def suggest(self, search: Search, found: Solution) -> None:
        """Offer the weights, whatever ended the search, to later searches of the same shape."""
        others = [h for h in self._hints.get(search.shape) or () if not np.array_equal(h[0], search.fingerprint)]
        kept = ((search.fingerprint, found.dual), *others[: NEIGHBOURS - 1])
        self._hints.put(search.shape, kept, sum(a.nbytes + b.nbytes for a, b in kept))

    def _save(self, key: str, values: Array) -> None:
        if self.folder is not None:
            with suppress(OSError):  # a full disk or a folder that is read only: then memory has to do
                self._write(self.folder, key, values)

    def _write(self, folder: Path, key: str, mass: Array) -> None:
        body = mass.astype("<f8").tobytes()
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(_head(key, body)).encode() + b"\n" + body)
            Path(name).replace(folder / (key + SUFFIX))
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
        with self._lock:
            first = self._written == 0
            self._written += len(body)
            # the folder is measured at the first write, and whenever an eighth of the bound was added since
            due = first or self._written > self.disk // 8
            if due:
                self._written = 1
        if due:
            self._trim(folder)

    def _trim(self, folder: Path) -> None:
        """Delete the files that were not used for longest, until the folder is within its bound."""
        found = []
        for path in folder.iterdir():
            if path.suffix in (SUFFIX, ".part"):
                with suppress(OSError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in found) - 7 * self.disk // 8
        for _, size, path in sorted(found):
            if excess <= 0:
                break
            with suppress(OSError):
                path.unlink()
                excess -= size


def nearest(hints: Hints, search: Search) -> Array | None:
    """Return the weights of the search of the same shape whose Gram is most alike, or None."""
    alike = hints.get(search.shape, ())
    if not alike:
        return None
    return min(alike, key=lambda hint: float(np.abs(hint[0] - search.fingerprint).sum()))[1]


def default_folder() -> Path | None:
    """Return the folder that the environment asks for, the user's cache folder, or None when it is switched off."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked.lower() == "off":
        return None
    return Path(asked).expanduser() if asked else platformdirs.user_cache_path("dp-query-workbench") / "searches"


@lru_cache(maxsize=4)
def _cache(folder: Path | None) -> SolveCache:
    return SolveCache(folder)


def default_cache() -> SolveCache:
    """Return the cache that `plan` uses; one for all threads of a process and for each folder."""
    return _cache(default_folder())


def _head(key: str, body: bytes) -> dict[str, str | int]:
    checksum = hashlib.sha256(key.encode() + body).hexdigest()
    return {"format": FORMAT, "key": key, "weights": len(body) // 8, "sha256": checksum}


def _worth_a_file(search: Search) -> bool:
    return search.factor.dimension**2 >= WORTH


def _bytes(found: Solution) -> int:
    # a strategy that is used for variances keeps a span of the size of its reconstruction, too
    return found.strategy.rows.nbytes + 2 * found.strategy.pinv.nbytes + found.dual.nbytes
