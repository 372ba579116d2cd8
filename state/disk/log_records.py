"""RocksDB's logs and lists are looked through before it reads them, as damage can hold it for ever.

Both are records in blocks: checksum, length, kind, data. Some kinds are only in logs that were used
before, which there are none of here. Where damage makes such a kind of another one, RocksDB finds
the record bad and looks at the same one again (`log::Reader::ReadPhysicalRecord` of RocksDB 9.8, at
"should have started with a recycled record"), and Python waits for it with all its threads.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
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
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as data:
            yield from _kinds_in(data)
    except (FileNotFoundError, ValueError):  # deleted at this very moment, or empty
        return


def _kinds_in(data: mmap.mmap) -> Iterator[int]:
    at, last = 0, len(data) - _HEAD_BYTES
    while at <= last:
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEAD_BYTES:
            at += left
            continue
        length, kind = _LENGTH_AND_KIND.unpack_from(data, at + _CHECKSUM_BYTES)
        if at:
            yield kind
        # What is no record takes the rest of its block with it.
        is_record = kind and _HEAD_BYTES + length <= left
        at += _HEAD_BYTES + length if is_record else left
