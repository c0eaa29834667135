"""Reading of query matrices from CSV and NumPy files."""

from __future__ import annotations

import csv
import io
import math
import tokenize
from typing import Any

import numpy as np

from engine._arrays import Array
from engine._format import csv_start
from engine.errors import WorkloadError
from engine.workload.families import MAX_DENSE_ENTRIES

MAX_FILE = 50_000_000  # bytes
_NPY_MAGIC = b"\x93NUMPY"


def read_matrix(content: bytes, name: str = "the file") -> Array:
    r"""Return the query matrix in a file, shape (queries, cells).

    Raises
    ------
    WorkloadError : if the file is too large, or is not a table of real numbers.

    >>> read_matrix(b"1,0\n0.5,1\n")
    array([[1. , 0. ],
           [0.5, 1. ]])
    """
    if len(content) > MAX_FILE:
        raise WorkloadError(f"The matrix file has {len(content):,} bytes; at most {MAX_FILE:,} are read.")
    return _npy(content, name) if content.startswith(_NPY_MAGIC) else _csv(content, name)


def _npy(content: bytes, name: str) -> Array:
    # The header is checked first: loading an array of objects would execute code, and a huge shape
    # would exhaust the memory.
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        header_readers: dict[tuple[int, int], Any] = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, _, dtype = header_readers[version](stream)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
        raise WorkloadError(f"{name} is not a readable array. Save it with numpy.save.") from None
    if len(shape) not in (1, 2) or dtype.kind not in "biuf":
        raise WorkloadError(
            f"{name} has an array of shape {str(tuple(shape))[:60]} and type {str(dtype)[:40]}. Save a table of real "
            "numbers, one row per query, one column per cell."
        )
    if math.prod(shape) > MAX_DENSE_ENTRIES or math.prod(shape) * dtype.itemsize != len(content) - stream.tell():
        raise WorkloadError(f"{name} does not hold the {math.prod(shape):,} numbers it announces. Save it again.")
    stream.seek(0)
    return np.atleast_2d(np.load(stream, allow_pickle=False).astype(float))


def _csv(content: bytes, name: str) -> Array:
    rows: list[list[float]] = []
    text, delimiter = csv_start(content.decode("utf-8-sig", errors="replace"))
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        for cells in reader:
            if cells:
                rows.append([float(cell) for cell in cells])
    except (ValueError, csv.Error):
        raise WorkloadError(f"Line {reader.line_num} of {name} is not a row of numbers. Correct it.") from None
    if len({len(row) for row in rows}) != 1:
        raise WorkloadError(f"The rows of {name} have different lengths, or there are none. Give a full table.")
    return np.array(rows)
