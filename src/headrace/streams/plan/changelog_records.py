"""Digests that identify the last record of a changelog, or of a table's source topic.

A topic id and an offset do not identify a record: after a cluster is restored from a snapshot, or
after an unclean leader election, the same offsets can hold different records once the log has grown
past its old end. So a position stores a digest of the last record in its rows. The last record of
each commit has the commit id as a header, because the same key may get the same value again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from headrace.state.store import LastRecord
from headrace.streams.kafka.protocols import ReceivedMessage
from headrace.streams.plan.progress import COMMIT_ID
from headrace.topology.context.environment import Headers
from headrace.topology.timestamps import Stamped

Row = tuple[bytes, "bytes | None", int]


def commit_header(commit_id: int) -> Headers:
    return [(COMMIT_ID, b"%d" % commit_id)]


def last_written(rows: Sequence[Row], end: int, commit_id: int) -> LastRecord:
    """Identify the last record that a commit wrote; `end` is the offset after it."""
    key, value, _ = rows[-1]
    return LastRecord(end - 1, _digest(key, value, b"%d" % commit_id))


def last_restored(record: ReceivedMessage) -> LastRecord:
    """Return offset and digest of a changelog record that a restore has read.

    >>> from confluent_kafka import Message
    >>> record = Message(offset=7, key=b"k", value=b"v", headers=commit_header(5))
    >>> last_restored(record) == last_written([(b"k", b"v", 0)], 8, 5)
    True
    """
    headers = dict(record.headers() or ())
    commit = headers.get(COMMIT_ID)
    commit = commit.encode() if isinstance(commit, str) else commit
    return LastRecord(record.offset(), _digest(record.key(), record.value(), commit))


def last_read(record: ReceivedMessage) -> LastRecord:
    """Identify an input's record by its timestamp: its headers belong to its producers."""
    received = record.received if isinstance(record, Stamped) else record
    time = b"%d" % received.timestamp()[1]
    return LastRecord(record.offset(), _digest(record.key(), record.value(), time))


def _digest(*parts: bytes | None) -> int:
    digest = hashlib.blake2b(digest_size=7)
    for part in parts:
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return int.from_bytes(digest.digest())
