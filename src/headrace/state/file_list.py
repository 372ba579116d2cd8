"""RocksDB's list of its files, the MANIFEST, and whether it is still what it has been.

RocksDB takes what it cannot read of a list for a line that was not written to its end, and does
without the files and families that come from there on. Where rows were in them, and what says up to
where they go was not, they would be gone in silence. So the length and a checksum of the list are
kept beside the rows: it only grows.
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

# RocksDB's logs and lists are looked through before it reads them, as damage can hold it for ever.
#
# Both are records in blocks: checksum, length, kind, data. Some kinds are only in logs that were
# used
# before, which there are none of here. Where damage makes such a kind of another one, RocksDB finds
# the record bad and looks at the same one again (`log::Reader::ReadPhysicalRecord` of RocksDB 9.8,
# at
# "should have started with a recycled record"), and Python waits for it with all its threads.


_BLOCK_BYTES = 32 << 10
_HEAD_BYTES = 7
_LENGTH_AND_KIND = Struct("<HB")
_CHECKSUM_BYTES = 4
_OF_USED_LOGS = frozenset({5, 6, 7, 8, 11})


def require_readable(path: Path) -> None:
    """See that RocksDB comes to an end with its logs and lists.

    Args:
        path: the RocksDB's directory; another process may write there.

    Raises:
        StoreCorruptedError: it would not with one of them.
    """
    for file in (*path.glob("MANIFEST-*"), *path.glob("*.log")):
        if any(kind in _OF_USED_LOGS for kind in _kinds(file)):
            raise StoreCorruptedError(
                f"local state cannot be read: {file} has a record of a kind that is never written"
            )


def _kinds(file: Path) -> Iterator[int]:
    """The kind of each record but the first, which decides what others there may be."""
    is_first = True
    with suppress(FileNotFoundError), file.open("rb", buffering=0) as opened:  # or just deleted
        while block := opened.read(_BLOCK_BYTES):
            for kind in _kinds_in(block):
                if not is_first:
                    yield kind
                is_first = False
            if len(block) < _BLOCK_BYTES:
                return  # the end, or where it was: a writer may go on meanwhile


def _kinds_in(block: bytes) -> Iterator[int]:
    at, last = 0, len(block) - _HEAD_BYTES
    while at <= last:
        length, kind = _LENGTH_AND_KIND.unpack_from(block, at + _CHECKSUM_BYTES)
        yield kind
        if not kind:
            return  # nothing was written from here on
        at += _HEAD_BYTES + length


_CHUNK_BYTES = 1 << 20


class FileList(NamedTuple):
    """The list that is in use, by its name and its length in bytes."""

    name: str
    size: int


class KeptList(NamedTuple):
    """What is kept of a list: its name, its length in bytes, and the checksum of so much of it."""

    name: str
    size: int
    checksum: int | None = None
    """None of an older release."""

    def encode(self) -> bytes:
        """As it is kept.

        >>> KeptList.decode(KeptList("MANIFEST-000005", 180, 7).encode())
        KeptList(name='MANIFEST-000005', size=180, checksum=7)
        """
        return orjson.dumps([*self])

    @classmethod
    def decode(cls, data: bytes) -> KeptList:
        """Read what was kept."""
        return cls(*orjson.loads(data))

    def is_damaged(self, found: OpenList | None) -> bool:
        """Whether the list that was found is this one, and is not as it was."""
        if found is None or found.listed.name != self.name:
            return False
        if found.listed.size < self.size:
            return True
        return self.checksum is not None and found.checksum(self.size) != self.checksum


class OpenList:
    """A list that can be read when RocksDB has begun another one, too.

    Args:
        path: of the list.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.listed = FileList(path.name, self.size_now())
        """What it was when it was opened."""
        self._summed = 0
        self._checksum = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def size_now(self) -> int:
        """Its length in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def checksum(self, size: int) -> int:
        """The checksum of so many bytes from its begin on; only what is new is read."""
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


def open_list(path: Path) -> OpenList | None:
    """Open the list that a RocksDB uses, or return None where there is none that can be read."""
    try:
        return OpenList(path / _name(path))
    except (OSError, ValueError):
        return None


def list_of_files(path: Path) -> FileList | None:
    """The list that a RocksDB uses, or None where there is none that can be read."""
    try:
        name = _name(path)
        return FileList(name, (path / name).stat().st_size)
    except (OSError, ValueError):
        return None


def _name(path: Path) -> str:
    return (path / "CURRENT").read_text(encoding="ascii").strip()
