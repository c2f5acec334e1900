"""The Parquet files of a store, as ``store/FORMAT.md`` describes them."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ._errors import StoreError

#: The supported version of the files.
_VERSION = b"1"
#: The largest decompressed index, in bytes.
_INDEX_BYTES_MAX = 1 << 30
#: How often a directory is listed again because files were added or removed meanwhile.
_LISTINGS_MAX = 1_000

_NAME = re.compile(r"(-?\d+)-(\d+)-(int|float)\.parquet")


class Damaged(Exception):
    """A file that cannot be read."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The rows of one sensor in a file."""

    path: str
    #: The first row.
    row: int
    rows: int
    #: For a tier: the first and last time of the readings behind the windows.
    first_time: int
    last_time: int


@dataclass(frozen=True, slots=True)
class Footer:
    """The contents of a file's footer."""

    path: Path
    #: The number in its name; later files have greater numbers.
    number: int
    is_float: bool
    first_time: int
    last_time: int
    #: If two files have a reading of one sensor and time, the one with the greater rank counts.
    rank: tuple[int, int]


class File:
    """An open file. It stays readable after its removal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = _NAME.fullmatch(path.name)
        if found is None:
            raise Damaged(f"{path}: its name is not that of a block")
        self.number, self.is_float = int(found.group(2)), found.group(3) == "float"
        try:
            self._handle = open(path, "rb")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Damaged(f"{path}: {error}; may you read it?") from error
        try:
            self._file = pq.ParquetFile(self._handle, page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            self.close()
            raise Damaged(f"{path}: {_line(error)}") from error
        self._groups = self._file.metadata
        self._metadata: dict[bytes, bytes] = self._groups.metadata or {}
        version = self._metadata.get(b"wholegrain.version")
        if version != _VERSION:
            self.close()
            shown = "none" if version is None else version.decode("utf-8", "replace")
            raise StoreError(
                f"{path} is of version {shown}, this package reads version 1; take the wholegrain package of the server's release"
            )

    def footer(self) -> Footer:
        """The footer; reads no column."""
        entries = self.entries()
        first = min((entry.first_time for entry in entries), default=0)
        last = max((entry.last_time for entry in entries), default=-1)
        segments = self._metadata.get(b"wholegrain.segments", b"0-0").decode("ascii", "replace")
        try:
            segment = int(segments.rpartition("-")[2])
        except ValueError as error:
            raise Damaged(f"{self.path}: wholegrain.segments is {segments!r}") from error
        return Footer(self.path, self.number, self.is_float, first, last, (segment, self.number))

    def entries(self) -> list[Entry]:
        """The rows of each sensor, sorted by path."""
        try:
            entries = _index(self._metadata.get(b"wholegrain.index", b""))
        except (ValueError, IndexError, OSError, pa.ArrowException) as error:
            raise Damaged(f"{self.path}: its index cannot be read: {_line(error)}") from error
        rows = entries[-1].row + entries[-1].rows if entries else 0
        if rows != self._groups.num_rows:
            raise Damaged(f"{self.path}: its index tells of {rows} rows, it has {self._groups.num_rows}")
        return entries

    def read(self, start: int, end: int, columns: list[str]) -> Any:
        """Reads rows from ``start`` (inclusive) to ``end`` (exclusive)."""
        groups: list[int] = []
        before, first = 0, 0
        for group in range(self._groups.num_row_groups):
            rows = self._groups.row_group(group).num_rows
            if before < end and start < before + rows:
                if not groups:
                    first = before
                groups.append(group)
            before += rows
        try:
            table = self._file.read_row_groups(groups, columns=columns, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"{self.path}: {_line(error)}") from error
        return table.slice(start - first, end - start)

    def close(self) -> None:
        """Closes the file."""
        self._handle.close()


def listed(top: Path) -> list[Path]:
    """Lists all files below a directory in one consistent state: repeats the listing until two in a row are equal, so that no merge falls
    between two names.
    """
    before: set[Path] | None = None
    for _ in range(_LISTINGS_MAX):
        now = set(_walk(top))
        if now == before:
            return sorted(now)
        before = now
    raise StoreError(f"{top} changed during each of {_LISTINGS_MAX} listings; does another program than the server write there?")


def _walk(top: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(top):
        for name in names:
            if _NAME.fullmatch(name):
                yield Path(folder) / name


def first_time(path: Path) -> int:
    """The first time in a file, from its name."""
    found = _NAME.fullmatch(path.name)
    return int(found.group(1)) if found else 0


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _index(text: bytes) -> list[Entry]:
    length, colon, packed = text.partition(b":")
    if not colon or int(length) > _INDEX_BYTES_MAX:
        raise ValueError("no index, or an index above its bound")
    packed += b"=" * (-len(packed) % 4)
    data = pa.Codec("zstd").decompress(base64.b64decode(packed, validate=True), int(length), asbytes=True)
    # The last four bytes are a CRC-32C, for which Python has no function; the counts are checked instead.
    body, at = data[:-4], 0

    def varint() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte: int = body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    entries: list[Entry] = []
    path, first, row = b"", 0, 0
    for _ in range(varint()):
        shared, more = varint(), varint()
        path = path[:shared] + body[at : at + more]
        at += more
        rows, step = varint(), varint()
        first = _wrapped(first + ((step >> 1) ^ -(step & 1)))
        entries.append(Entry(path.decode(), row, rows, first, _wrapped(first + varint())))
        row += rows
    if at != len(body):
        raise ValueError("the index has extra bytes")
    return entries


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
