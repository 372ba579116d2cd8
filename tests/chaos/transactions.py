"""What became of an application's transactions, by the coordinators' own log.

The topic ``__transaction_state`` has each change of each transaction's state. Its segments are
larger than what a run writes, so nothing of it is compacted away before it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from tests.chaos.cluster import TRANSACTIONS_TOPIC
from tests.chaos.reader import TopicReader

_PREPARE_COMMIT, _PREPARE_ABORT = 2, 3
_STATUS_AT = 16
"""Behind version, producer's id and epoch, and time-out, in both versions that there are."""


@dataclass(frozen=True, slots=True)
class Decided:
    """How many transactions were decided how; those that never reached a coordinator are in none.

    Args:
        aborted: by whomever: the worker, its successor, or the broker when its time was up.
    """

    committed: int
    aborted: int


def read_decided(bootstrap: str, prefix: str) -> Decided:
    """Count the transactions of all producers whose ids begin so.

    Raises:
        KafkaException: the cluster does not answer.
    """
    reader = TopicReader(bootstrap)
    try:
        logs = reader.read(TRANSACTIONS_TOPIC).values()
    finally:
        reader.close()
    return decided(((r.key, r.value) for log in logs for r in log), prefix)


def decided(records: Iterable[tuple[bytes | None, bytes | None]], prefix: str) -> Decided:
    """Count by records of the topic, those of a producer in their order."""
    last: dict[str, int] = {}
    counts = {_PREPARE_COMMIT: 0, _PREPARE_ABORT: 0}
    for key, value in records:
        name = None if key is None else transactional_id(key)
        if name is None or not name.startswith(prefix) or value is None:
            continue
        status = value[_STATUS_AT]
        # A coordinator that did not hear whether this was written writes it again.
        if status in counts and last.get(name) != status:
            counts[status] += 1
        last[name] = status
    return Decided(counts[_PREPARE_COMMIT], counts[_PREPARE_ABORT])


def transactional_id(key: bytes) -> str | None:
    """Whose state a record is; None for what is something else.

    >>> transactional_id(b"\\x00\\x00\\x00\\x03app")
    'app'
    """
    version, length = struct.unpack_from(">hh", key) if len(key) >= 4 else (-1, 0)
    return key[4 : 4 + length].decode() if version == 0 else None
