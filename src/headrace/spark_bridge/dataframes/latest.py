"""What a partition of a changelog says in the end: the last row of each key, exactly.

A key lives in one partition, so nothing needs to be shuffled. The last rows of a partition are held
in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from headrace.streams.seams.clients import ReceivedMessage


class Row(NamedTuple):
    """The last record of a key."""

    key: bytes
    value: bytes
    timestamp: int
    offset: int


class Version(NamedTuple):
    """What a key was from a time on, up to another one (None: it still is)."""

    key: bytes
    value: bytes
    valid_from: int
    valid_to: int | None
    offset: int


Batches = Iterable[Sequence[ReceivedMessage]]


def latest(batches: Batches) -> list[Row]:
    """The last record of each key, in the order of their offsets; those without a value are gone.

    Records without a key are passed over.
    """
    last: dict[bytes, tuple[bytes, int, int]] = {}
    for batch in batches:
        for record in batch:
            key = record.key()
            if key is None:
                continue
            # A key that is written again goes behind the others.
            last.pop(key, None)
            value = record.value()
            if value is not None:
                last[key] = value, record.timestamp()[1], record.offset()
    return [Row(key, *found) for key, found in last.items()]


def not_expired(
    rows: Sequence[Row], time_of: Callable[[bytes], int], retention_ms: int | None
) -> list[Row]:
    """Leave out the windows that the store has let go of, though the topic still has them.

    Args:
        time_of: the time of a row's window.
        retention_ms: how long the store keeps windows, counted from the newest one; None: for ever.
    """
    if retention_ms is None or not rows:
        return list(rows)
    horizon = max(time_of(row.key) for row in rows) - retention_ms
    return [row for row in rows if time_of(row.key) >= horizon]


def versions(batches: Batches, retention_ms: int | None) -> Iterator[Version]:
    """All versions that a versioned store still knows, by key and time.

    Args:
        batches: the records of one partition; the last one of a key and a time counts.
        retention_ms: how long a version that another one has followed is kept; None: for ever.
    """
    found: dict[tuple[bytes, int], tuple[bytes | None, int]] = {}
    for batch in batches:
        for record in batch:
            key = record.key()
            if key is not None:
                found[key, record.timestamp()[1]] = record.value(), record.offset()
    newest = max((time for _, time in found), default=0)
    horizon = -1 if retention_ms is None else newest - retention_ms
    for key, times in groupby(sorted(found), itemgetter(0)):
        starts = [time for _, time in times]
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            value, offset = found[key, start]
            if value is not None and (end is None or end > horizon):
                yield Version(key, value, start, end, offset)
