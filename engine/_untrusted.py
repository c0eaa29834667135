"""Bounded readers for JSON, zip archives and NumPy arrays from untrusted files.

The readers check sizes, types and shapes before they allocate memory.  Content that they refuse
raises `ValueError`; `open_zip` raises the error class that its caller names.  No reader runs code
of the file.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError

MAX_JSON_MEMORY = 250_000_000  # bytes of memory for an uploaded JSON document
MAX_JSON_DEPTH = 100  # levels of nested lists and objects
MAX_DIGITS = 300  # digits of an integer; longer ones may exceed the range of a float
BYTES_PER_VALUE = 80  # memory of an empty list and of the reference to it, in CPython
MAX_MEMBERS = 50_000  # files in an archive
BYTES_PER_MEMBER = 100  # bytes that the directory of an archive may have per file, on average
CHUNK = 1 << 20  # bytes read at a time
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
END_OF_DIRECTORY, END_OF_DIRECTORY_64, LOCATOR_64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"


def parse_json(
    text: str | bytes,
    *,
    max_memory: float = math.inf,
    constants: bool = False,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return the value of a JSON text, with bounded memory, depth and integers.

    Parameters
    ----------
    max_memory : bytes that text and values may take, as estimated from the text.
    constants : whether NaN and infinite numbers are allowed, which Python writes although JSON
        excludes them.
    object_pairs_hook : as for `json.loads`.

    Raises
    ------
    ValueError : the text is not JSON, needs more than ``max_memory``, is nested more than 100
        levels deep, has an integer of more than 300 digits, or has half of a surrogate pair.
        Without ``constants`` also: the text has NaN, or a number beyond the range of a double.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: the JSON is nested more than 100 levels deep
    """
    if not isinstance(text, (str, bytes)):
        raise ValueError(f"JSON is text or bytes, not {type(text).__name__}")
    _check_memory(text, max_memory)
    hooks: dict[str, Any] = (
        {} if constants else {"parse_constant": _refuse_constant, "parse_float": _finite}
    )
    try:
        value = json.loads(text, parse_int=_integer, object_pairs_hook=object_pairs_hook, **hooks)
        is_too_deep = _is_too_deep(value)
    except RecursionError:
        is_too_deep = True
    except UnicodeDecodeError:
        raise ValueError("the text is not valid UTF-8") from None
    if is_too_deep:
        raise ValueError(f"the JSON is nested more than {MAX_JSON_DEPTH} levels deep")
    if SURROGATE.search(text if isinstance(text, bytes) else text.encode(errors="surrogatepass")):
        _check_surrogates(value)
    return value


def _check_memory(text: str | bytes, max_memory: float) -> None:
    """Raise ValueError if a JSON text and its values are estimated to exceed ``max_memory``
    bytes."""
    marks = ",[{:"
    values = sum(
        text.count(mark) if isinstance(text, str) else text.count(mark.encode()) for mark in marks
    )
    # the text and its decoded copy, which has 1 byte per character if all are ASCII, else up to 4
    memory = len(text) * (2 if text.isascii() else 5) + BYTES_PER_VALUE * values
    if memory > max_memory:
        raise ValueError(
            f"the JSON has {len(text):,} characters and {values:,} values, which would take more"
            " memory than allowed"
        )


def _is_too_deep(value: Any) -> bool:
    """Return whether a JSON value has a list or object below `MAX_JSON_DEPTH` others."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, (dict, list))
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
    return bool(level)


def _check_surrogates(value: Any) -> None:
    """Raise ValueError if a text in a JSON value has half of a surrogate pair.

    Such a text cannot be encoded as UTF-8, so it could not be saved or hashed.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError(
            "the JSON has half of a surrogate pair, which is not a character"
        ) from None


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(
            f"the JSON has an integer of {len(digits):,} digits; at most {MAX_DIGITS} are read"
        )
    return int(digits)


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError("the JSON has a number beyond the range of floating-point numbers")
    return number


def _refuse_constant(word: str) -> float:
    raise ValueError(f"the JSON has {word}, which JSON does not allow")


@contextmanager
def open_zip(
    path: str | os.PathLike[str],
    what: str,
    *,
    error: type[EngineError],
    plain_names: bool = True,
    max_members: float = MAX_MEMBERS,
    folder: str = "",
) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive from an untrusted source and check the list of its members.

    Members must be stored or deflated.  They must not be encrypted, links or folders.  Each name
    must occur once.  Read members with `read_member` or `member_chunks`, which bound their unpacked
    size.

    Parameters
    ----------
    what : subject of messages, such as "The package".
    error : type of the exception for a damaged or refused archive, also if the damage is
        found later in the ``with`` block.
    plain_names : refuse members whose name is not a plain name (see `is_plain_name`), after
        ``folder`` and a slash are removed, and names that differ only in upper and lower case.
    max_members : largest number of members.
    folder : name of the only folder that may contain members; has no effect if ``plain_names`` is
        False.
    """
    with open(path, "rb") as file:
        try:
            _check_directory(file, max_members)
            archive = zipfile.ZipFile(file)
            _check_members(archive, plain_names, folder)
        # a damaged directory raises errors of many types
        except Exception as reason:
            words = str(reason) if type(reason) is ValueError else "it is damaged"
            raise error(f"{what} cannot be read: {words}.") from None
        try:
            yield archive
        except (
            zipfile.BadZipFile,
            zlib.error,
            OverflowError,
            struct.error,
            EOFError,
            NotImplementedError,
        ):
            raise error(f"{what} cannot be read: a file in it is damaged.") from None


def _check_directory(file: IO[bytes], max_members: float) -> None:
    """Raise ValueError if a file has no zip directory (list of members), or one that is too long.

    The directory itself is not read, only the records that state its length.
    """
    size = file.seek(0, os.SEEK_END)
    # The file ends with a record of 22 bytes and a comment of at most 65,535 bytes.  In the format
    # ZIP64, a locator of 20 bytes precedes this record.  The locator states the position of a
    # second record, of 56 bytes.
    file.seek(max(0, size - (1 << 16) - 42))
    tail = file.read()
    start = tail.rfind(END_OF_DIRECTORY)
    if start < 0 or len(tail) < start + 22:
        raise ValueError("it is not a zip archive")
    members = int.from_bytes(tail[start + 10 : start + 12], "little")
    length = int.from_bytes(tail[start + 12 : start + 16], "little")
    if tail[max(0, start - 20) : start].startswith(LOCATOR_64):
        stated_position = int.from_bytes(tail[start - 12 : start - 4], "little")
        position_before_locator = size - len(tail) + start - 20 - 56
        # readers differ in which of the two positions they use, so both are checked
        for position in (stated_position, position_before_locator):
            file.seek(max(0, min(size, position)))
            record = file.read(56)
            if record.startswith(END_OF_DIRECTORY_64):
                # 0xFFFF and 0xFFFFFFFF mean that only the ZIP64 record has the number; the modulo
                # makes them 0
                members = max(members % 0xFFFF, int.from_bytes(record[32:40], "little"))
                length = max(length % 0xFFFFFFFF, int.from_bytes(record[40:48], "little"))
    if members > max_members or length > min(BYTES_PER_MEMBER * max_members, size):
        raise ValueError(
            f"the archive lists {members:,} files in {length:,} bytes, which is more than allowed"
        )
    file.seek(0)


def _check_members(archive: zipfile.ZipFile, plain_names: bool, folder: str) -> None:
    """Raise ValueError for a member that `open_zip` refuses."""
    names = set[str]()
    for member in archive.infolist():
        # the upper 16 bits are the Unix mode, which contains the type of the file
        name, mode = member.filename, member.external_attr >> 16
        is_allowed = is_plain_name(name.removeprefix(f"{folder}/") if folder else name)
        if plain_names and not is_allowed:
            raise ValueError(
                f"the archive contains {name!r:.100}, which is in a wrong folder or has a name that"
                " is not allowed"
            )
        # case-insensitive file systems store one of two files whose names differ in case only
        key = name.casefold() if plain_names else name
        if key in names:
            raise ValueError("two files in the archive have the same name")
        names.add(key)
        if member.flag_bits & 0x1:
            raise ValueError("a file in the archive is encrypted; remove its password")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("a file in the archive is compressed by another method than deflate")
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG) or member.is_dir():
            raise ValueError("the archive contains a link or a folder")


def is_plain_name(name: str) -> bool:
    """Return whether a text is a file name without a path, allowed on all systems.

    Such a name has 1 to 255 printable characters, is not "." or "..", and has none of the
    characters / \\ : * ? " < > |.

    >>> is_plain_name("plan.json"), is_plain_name("../plan.json"), is_plain_name("a\\\\b"), is_plain_name("")
    (True, False, False, False)
    """
    return (
        0 < len(name) <= 255
        and name not in (".", "..")
        and name.isprintable()
        and not set(name) & set('/\\:*?"<>|')
    )


def member_chunks(archive: zipfile.ZipFile, name: str, max_bytes: int) -> Iterator[bytes]:
    """Yield a member of an archive in chunks; at its end the checksum is compared.

    Raises
    ------
    ValueError
        The member is missing, or has more than ``max_bytes`` bytes.
    zipfile.BadZipFile
        The checksum of the member is wrong, or the member is outside the archive.

    Notes
    -----
    Other damage of a member raises other errors, such as zlib.error or EOFError; `open_zip`
    replaces them all.
    """
    if name not in archive.NameToInfo:
        raise ValueError(f"the file {name} is missing in the archive")
    info = archive.getinfo(name)
    if info.file_size > max_bytes:
        raise ValueError(
            f"the file {name} has {info.file_size:,} bytes, more than the {max_bytes:,} expected"
        )
    try:
        with archive.open(info) as member:
            yield from bounded_chunks(member, max_bytes, name)
    # zipfile raises OSError if the stored offset of a member is negative
    except OSError:
        raise zipfile.BadZipFile(f"{name} is outside the archive") from None


def bounded_chunks(file: IO[bytes], max_bytes: int, name: str) -> Iterator[bytes]:
    """Yield the content of a file in chunks; raise ValueError once it exceeds ``max_bytes``."""
    length = 0
    while chunk := file.read(min(CHUNK, max_bytes - length + 1)):
        length += len(chunk)
        if length > max_bytes:
            raise ValueError(f"the file {name} has more than the {max_bytes:,} bytes expected")
        yield chunk


def read_member(archive: zipfile.ZipFile, name: str, max_bytes: int) -> bytes:
    """Return the content of a member of an archive; raises the errors of `member_chunks`."""
    return b"".join(member_chunks(archive, name, max_bytes))


def array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a ``.npy`` file; afterwards the file is at the beginning of the data.

    Returns
    -------
    Shape of the array, whether it is in Fortran order (column by column), and its NumPy type.

    Raises
    ------
    ValueError
        The file is not an array of format 1.0 or 2.0, contains Python objects, or has a negative
        length.
    """
    readers: dict[tuple[int, int], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        shape, by_columns, kind = readers[np.lib.format.read_magic(file)](file)
    # the header is a Python literal, and its readers raise errors of many types
    except Exception:
        raise ValueError("it is not a NumPy array of format 1.0 or 2.0") from None
    if kind.hasobject or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError("the array contains Python objects or has a negative length")
    return shape, bool(by_columns), kind


def read_array(
    content: bytes, *, kinds: str, shape: tuple[int, ...] | None = None
) -> npt.NDArray[Any]:
    """Return the array in the content of a ``.npy`` file.

    Parameters
    ----------
    kinds : allowed NumPy kinds, such as "if" for integers and floats.
    shape : required shape; None allows any.

    Raises
    ------
    ValueError
        The header is refused by `array_header`, the array has another type or shape than allowed,
        or the number of values differs from that of the header.
    """
    file = io.BytesIO(content)
    stored_shape, by_columns, kind = array_header(file)
    if kind.kind not in kinds or (shape is not None and stored_shape != shape):
        raise ValueError("the array has another type or shape than expected")
    if math.prod(stored_shape) * kind.itemsize != len(content) - file.tell():
        raise ValueError("the array has another size than its header states")
    flat = np.frombuffer(content, kind, offset=file.tell())
    return flat.reshape(stored_shape, order="F" if by_columns else "C").astype(
        kind.newbyteorder("="), order="C"
    )


def is_regular_file(path: Path) -> bool:
    """Return whether a path is a regular file: no link, folder, device or pipe."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False
