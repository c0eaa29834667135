"""Cache of strategy searches, in memory and optionally on disk.

The key of a search is a hash of everything that determines it (`Search.key`), and the stored value
is its dual weights.  Weights from a file are not trusted.  The strategy, its value, bound and
privacy cost are computed from the weights.  If the weights do not prove the required gap, the
search continues from them.  So a wrong file costs time, but no accuracy.

A search depends only on the schema, the queries and their weights, so no entry depends on records.
The folder may be deleted at any time.  The environment variable DP_WORKBENCH_CACHE can hold its
path, or "off" to keep all entries in memory.  By default, the folder is inside the user's cache
folder.

A file holds one JSON line (format, key, number of values, checksum) and the values as little-endian
doubles.  The values are dual weights, or the parameters of tuned centers or complements (splits of
pairs).
"""

from __future__ import annotations

import hashlib
import json
import os
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
from engine._atomic_io import atomic_file
from engine._untrusted import parse_json
from engine.residuals.dual_solver import Solution
from engine.residuals.strategy_search import Search

VARIABLE = "DP_WORKBENCH_CACHE"
FORMAT = "weights/1"
SUFFIX = ".weights"
# default limits in bytes of the solutions in memory, of the initial weights in memory, and of the
# files on disk
MEMORY_BYTES = 192 * 2**20
HINT_BYTES = 32 * 2**20
DISK_BYTES = 256 * 2**20
# a search is not stored in a file if the square of its number of residual coordinates is below this
# value, because such a search takes less time than reading the file
MIN_CACHED_COORDINATES_SQUARED = 2_000
# largest number of initial weights stored for searches of one shape (equal sizes, centers, method)
MAX_HINTS_PER_SHAPE = 8
# text in the status of a search that a time limit ended
TIME_LIMIT_STATUS = "time limit"
# `Search.shape` -> pairs (fingerprint of the Gram, dual weights) of earlier searches of that shape
Hints = Mapping[str, tuple[tuple[Array, Array], ...]]
_Value = TypeVar("_Value")


class LruCache(Generic[_Value]):
    """Least-recently-used cache with a limit in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._values: OrderedDict[str, tuple[_Value, Mapping[Hashable, int]]] = OrderedDict()
        self._holders: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def get(self, key: str) -> _Value | None:
        """Return the value, or None if the key is absent."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: str, value: _Value, size: int | Mapping[Any, int]) -> None:
        """Store a value of ``size`` bytes, unless it alone exceeds the limit.

        An earlier value with the same key is removed in either case.  To stay within the limit, the
        least recently used values are removed.

        If values share parts, ``size`` maps the identifiers of the parts to their bytes.  A part of
        several stored values counts once towards the limit.
        """
        parts: Mapping[Hashable, int] = (
            size if isinstance(size, Mapping) else {("unshared", key): size}
        )
        with self._lock:
            if key in self._values:
                self._drop(key)
            if sum(parts.values()) <= self.limit:
                self._values[key] = (value, parts)
                self.used += sum(
                    part_size for part, part_size in parts.items() if not self._holders[part]
                )
                self._holders.update(parts.keys())
            while self.used > self.limit:
                self._drop(next(iter(self._values)))

    def _drop(self, key: str) -> None:
        """Remove a value, and subtract the sizes of its parts that no other value shares."""
        _, parts = self._values.pop(key)
        self._holders.subtract(parts.keys())
        for part, part_size in parts.items():
            if not self._holders[part]:
                del self._holders[part]
                self.used -= part_size

    def snapshot(self) -> dict[str, _Value]:
        """Return all values by key."""
        with self._lock:
            return {key: value for key, (value, _) in self._values.items()}


class SolveCache:
    """Store of the results of strategy searches, by the hash of all inputs of a search.

    Parameters
    ----------
    folder : folder of the files; None keeps all entries in memory only.
    memory, disk : largest size of the solutions in memory and of the folder, in bytes.
    """

    def __init__(
        self, folder: Path | None = None, memory: int = MEMORY_BYTES, disk: int = DISK_BYTES
    ) -> None:
        self.folder, self.disk = folder, disk
        self._solutions = LruCache[Solution](memory)
        self._hints = LruCache[tuple[tuple[Array, Array], ...]](HINT_BYTES)
        self._numbers = LruCache[Array](HINT_BYTES)
        self._written = 0
        self._lock = threading.Lock()

    def recall(self, search: Search) -> Solution | None:
        """Return the solution of a search with the same key from memory, or None."""
        return self._solutions.get(search.key)

    def weights(self, search: Search) -> Array | None:
        """Return the dual weights that a file holds for this search, shape (orbits,), or None.

        The file may be wrong: neither the shape nor the values are checked here.
        """
        return self._read(search.key) if _worth_a_file(search) else None

    def _read(self, key: str) -> Array | None:
        """Return the numbers in an entry's file; None if it is absent or damaged."""
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
        """Return the array that `keep_numbers` stored under a key, and whether it was in memory.

        If the array was read from a file, the second value is False and only its checksum was
        verified. If nothing is stored, the result is (None, False).
        """
        values = self._numbers.get(key)
        return (values, True) if values is not None else (self._read(key), False)

    def keep_numbers(self, key: str, values: Array) -> None:
        """Store the parameters of a tuned split in memory, and in a file if possible."""
        self._numbers.put(key, values, values.nbytes)
        self._save(key, values)

    def hints(self) -> Hints:
        """Return the stored initial weights of searches, by the shape of the search."""
        return self._hints.snapshot()

    def keep(self, search: Search, solution: Solution) -> None:
        """Store a solution, unless a time limit ended its search or it has a closed form."""
        if TIME_LIMIT_STATUS in solution.status or search.method == "fourier":
            return
        self._solutions.put(search.key, solution, _solution_bytes(solution))
        if _worth_a_file(search):
            self._save(search.key, solution.dual)

    def suggest(self, search: Search, solution: Solution) -> None:
        """Store the dual weights of a search as initial values for later searches of its shape."""
        older_hints = [
            hint
            for hint in self._hints.get(search.shape) or ()
            if not np.array_equal(hint[0], search.fingerprint)
        ]
        hints = ((search.fingerprint, solution.dual), *older_hints[: MAX_HINTS_PER_SHAPE - 1])
        size = sum(fingerprint.nbytes + weights.nbytes for fingerprint, weights in hints)
        self._hints.put(search.shape, hints, size)

    def _save(self, key: str, values: Array) -> None:
        if self.folder is not None:
            with suppress(OSError):  # a full disk or a read-only folder: only memory is used
                self._write(self.folder, key, values)

    def _write(self, folder: Path, key: str, values: Array) -> None:
        """Write an entry's file, and delete old files if the folder may exceed its limit."""
        body = values.astype("<f8").tobytes()
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / (key + SUFFIX), overwrite=True, sync=False) as file:
            file.write(json.dumps(_head(key, body)).encode() + b"\n" + body)
        with self._lock:
            is_first_write = self._written == 0
            self._written += len(body)
            # the size of the folder is computed at the first write of the process, and whenever an
            # eighth of the limit has been written since
            needs_trim = is_first_write or self._written > self.disk // 8
            if needs_trim:
                self._written = 1
        if needs_trim:
            self._trim(folder)

    def _trim(self, folder: Path) -> None:
        """Delete the least recently used files until 7/8 of the limit or less remains."""
        files = []
        for path in folder.iterdir():
            if path.suffix in (SUFFIX, ".part"):
                with suppress(OSError):
                    status = path.stat()
                    files.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in files) - 7 * self.disk // 8
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            with suppress(OSError):
                path.unlink()
                excess -= size


def most_similar(hints: Hints, search: Search) -> Array | None:
    """Return the dual weights of the stored search with the most similar Gram.

    The result is None if no search of the same shape is stored.  Searches of the same shape are
    compared by the diagonal of the Gram divided by its trace.
    """
    candidates = hints.get(search.shape, ())
    if not candidates:
        return None
    return min(candidates, key=lambda hint: float(np.abs(hint[0] - search.fingerprint).sum()))[1]


def default_folder() -> Path | None:
    """Return the folder of the cache files, or None if DP_WORKBENCH_CACHE is "off".

    The environment variable DP_WORKBENCH_CACHE can hold the path of the folder.  If the variable is
    empty or not set, the folder is inside the user's cache folder.
    """
    setting = os.environ.get(VARIABLE, "").strip()
    if setting.lower() == "off":
        return None
    if setting:
        return Path(setting).expanduser()
    return platformdirs.user_cache_path("dp-query-workbench") / "searches"


@lru_cache(maxsize=4)
def _cache(folder: Path | None) -> SolveCache:
    return SolveCache(folder)


def default_cache() -> SolveCache:
    """Return the cache that `plan` uses by default: one per process, shared by all threads."""
    return _cache(default_folder())


def _head(key: str, body: bytes) -> dict[str, str | int]:
    """Return the first line of an entry's file as a mapping; ``body`` is the rest of the file."""
    checksum = hashlib.sha256(key.encode() + body).hexdigest()
    return {"format": FORMAT, "key": key, "weights": len(body) // 8, "sha256": checksum}


def _worth_a_file(search: Search) -> bool:
    """Return whether reading a file is expected to take less time than the search."""
    return search.factor.dimension**2 >= MIN_CACHED_COORDINATES_SQUARED


def _solution_bytes(solution: Solution) -> int:
    # ``pinv`` counts twice: a strategy that has computed variances stores another array of its size
    return solution.strategy.rows.nbytes + 2 * solution.strategy.pinv.nbytes + solution.dual.nbytes
