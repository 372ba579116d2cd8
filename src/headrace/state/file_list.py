"""RocksDB's list of its files (MANIFEST), and the check that it is not truncated.

RocksDB treats an unreadable part of a MANIFEST as an incomplete last write, and ignores the files
and column families listed from there on. If rows are in those files but their positions are not,
the rows would be lost silently. Therefore the length and a checksum of the MANIFEST, which only
grows, are stored with the rows.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

import orjson

from headrace.state.errors import StoreCorruptedError

# RocksDB's logs and MANIFESTs are checked before RocksDB reads them, because damage can make it
# loop forever.
#
# Both consist of records in blocks: checksum, length, type, data. Some types occur only in recycled
# logs, which are not used here. If damage changes a type to one of these, RocksDB rejects the
# record and reads the same record again (`log::Reader::ReadPhysicalRecord` of RocksDB 9.8, at
# "should have started with a recycled record"), and all threads of Python wait for it.


_BLOCK_BYTES = 32 << 10
_HEAD_BYTES = 7
_LENGTH_AND_KIND = Struct("<HB")
_CHECKSUM_BYTES = 4
_RECYCLED_KINDS = frozenset({5, 6, 7, 8, 11})


def require_readable(path: Path) -> None:
    """Raise StoreCorruptedError if damage would make RocksDB read a log or MANIFEST forever."""
    for file in (*path.glob("MANIFEST-*"), *path.glob("*.log")):
        if any(kind in _RECYCLED_KINDS for kind in _kinds(file)):
            raise StoreCorruptedError(
                f"local state cannot be read: {file} has a record of an unknown kind"
            )


def _kinds(file: Path) -> Iterator[int]:
    """Yield the type of each record except the first, which determines the legal types."""
    is_first = True
    with suppress(FileNotFoundError), file.open("rb", buffering=0) as opened:  # or just deleted
        while block := opened.read(_BLOCK_BYTES):
            for kind in _kinds_in(block):
                if not is_first:
                    yield kind
                is_first = False
            if len(block) < _BLOCK_BYTES:
                return  # the end at the time of the read: a writer may append more


def _kinds_in(block: bytes) -> Iterator[int]:
    at, last = 0, len(block) - _HEAD_BYTES
    while at <= last:
        length, kind = _LENGTH_AND_KIND.unpack_from(block, at + _CHECKSUM_BYTES)
        yield kind
        if not kind:
            return  # the rest of the block is unused
        at += _HEAD_BYTES + length


_CHUNK_BYTES = 1 << 20


class FileList(NamedTuple):
    """Name and length in bytes of the MANIFEST in use."""

    name: str
    size: int


class StoredFileList(NamedTuple):
    """Stored description of a MANIFEST: its name, its length in bytes, and the checksum of that
    length.
    """

    name: str
    size: int
    checksum: int | None = None
    """None if an older release wrote it."""

    def encode(self) -> bytes:
        """Return the stored form.

        >>> StoredFileList.decode(StoredFileList("MANIFEST-000005", 180, 7).encode())
        StoredFileList(name='MANIFEST-000005', size=180, checksum=7)
        """
        return orjson.dumps([*self])

    @classmethod
    def decode(cls, data: bytes) -> StoredFileList:
        return cls(*orjson.loads(data))

    def is_damaged(self, open_list: OpenFileList | None) -> bool:
        if open_list is None or open_list.listed.name != self.name:
            return False
        if open_list.listed.size < self.size:
            return True
        return self.checksum is not None and open_list.checksum(self.size) != self.checksum


class OpenFileList:
    """Open MANIFEST, readable even after RocksDB has replaced and deleted it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.listed = FileList(path.name, self.size_now())
        """Name and length when it was opened."""
        self._summed = 0
        self._checksum = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def size_now(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def checksum(self, size: int) -> int:
        """Return the checksum of the first `size` bytes; repeated calls read only new bytes."""
        if size < self._summed:
            self._summed = self._checksum = 0
        while self._summed < size:
            data = os.pread(
                self._file.fileno(), min(_CHUNK_BYTES, size - self._summed), self._summed
            )
            if not data:
                break
            self._checksum = zlib.crc32(data, self._checksum)
            self._summed += len(data)
        return self._checksum


def open_file_list(path: Path) -> OpenFileList | None:
    try:
        return OpenFileList(path / _name(path))
    except (OSError, ValueError):
        return None


def current_file_list(path: Path) -> FileList | None:
    try:
        name = _name(path)
        return FileList(name, (path / name).stat().st_size)
    except (OSError, ValueError):
        return None


def _name(path: Path) -> str:
    return (path / "CURRENT").read_text(encoding="ascii").strip()
