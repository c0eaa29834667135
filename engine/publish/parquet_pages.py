"""Memory needed to read a parquet file, from the headers of its pages.

The footer of a parquet file may say anything about sizes; a reader allocates what the header before each page says.
Headers have the compact protocol of Thrift, see the format specification of Apache Parquet.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

MAX_FOOTER = 1_000_000  # bytes, and one more per row
STOP, BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = 0, (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
UNCOMPRESSED, COMPRESSED = 2, 3  # fields of a page header
MAX_NESTING = 8


def check_pages(path: Path, max_bytes: int, rows: int) -> None:
    """Raise ValueError unless all pages together unfold to at most ``max_bytes``.

    >>> import pyarrow as pa, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "a.parquet")
    ...     pq.write_table(pa.table({"a": ["x" * 10**6]}), file, compression="zstd")
    ...     check_pages(file, 2 * 10**5, rows=1)
    Traceback (most recent call last):
    ValueError: a.parquet unfolds to more bytes than the plan allows
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if len(content) < 12 or content[-4:] != b"PAR1":
            raise ValueError(f"{path.name} is no parquet file")
        if int.from_bytes(content[-8:-4], "little") > min(len(content), MAX_FOOTER + rows):
            raise ValueError(f"{path.name} has a longer footer than the plan allows")
        metadata, total = pq.read_metadata(path), 0
        if metadata.num_rows != rows:
            raise ValueError(f"{path.name} has another number of rows than the plan has queries")
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                place = column.data_page_offset
                if column.dictionary_page_offset is not None and 0 < column.dictionary_page_offset < place:
                    place = column.dictionary_page_offset
                end = place + column.total_compressed_size
                if not 0 < place <= end <= len(content):
                    raise ValueError(f"{path.name} has pages outside the file")
                while place < end:
                    header = _Reader(content, place)
                    fields = header.struct()
                    unfolded, stored = fields.get(UNCOMPRESSED, -1), fields.get(COMPRESSED, -1)
                    if unfolded < 0 or stored < 0:
                        raise ValueError(f"{path.name} has a page without a size")
                    total, place = total + unfolded, header.place + stored
                    if total > max_bytes:
                        raise ValueError(f"{path.name} unfolds to more bytes than the plan allows")


@dataclass
class _Reader:
    """Values of the compact protocol, from one place of a file on."""

    content: mmap.mmap
    place: int

    def struct(self, depth: int = 0) -> dict[int, int]:
        """Return the integers of a struct by the numbers of their fields; everything else is passed over."""
        if depth > MAX_NESTING:
            raise ValueError("a page header is nested too deeply")
        found, number = dict[int, int](), 0
        while (head := self._byte()) != STOP:
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            if kind in INTEGERS:
                found[number] = self._integer()
            elif kind not in BOOLEANS:  # whose value is their kind
                self._skip(kind, depth)
        return found

    def _skip(self, kind: int, depth: int) -> None:
        if kind in INTEGERS:
            self._integer()
        elif kind in (BYTE, *BOOLEANS):
            self._byte()
        elif kind == DOUBLE:
            self.place += 8
        elif kind == BINARY:
            length = self._varint()
            self.place += length
        elif kind in LISTS:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            if count > len(self.content):
                raise ValueError("a page header has a longer list than the file")
            for _ in range(count):
                self._skip(head & 15, depth + 1)
        elif kind == STRUCT:
            self.struct(depth + 1)
        else:
            raise ValueError("a page header has a field of another kind")

    def _byte(self) -> int:
        if not 0 <= self.place < len(self.content):
            raise ValueError("a page header leaves the file")
        self.place += 1
        return self.content[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value, shift = value | (byte & 0x7F) << shift, shift + 7
            if shift > 63:
                raise ValueError("a page header has a number of more than 64 bits")
        return value | byte << shift

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
