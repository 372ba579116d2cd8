"""RocksDB's logs and lists are looked through before it reads them, as damage can hold it for ever.

Both are records in blocks: checksum, length, kind, data. Some kinds are only in logs that were used
before, which there are none of here. Where damage makes such a kind of another one, RocksDB finds
the record bad and looks at the same one again (`log::Reader::ReadPhysicalRecord` of RocksDB 9.8, at
"should have started with a recycled record"), and Python waits for it with all its threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct

from headrace.state.errors import StoreCorruptedError

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
