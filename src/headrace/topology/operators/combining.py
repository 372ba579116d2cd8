"""Partial aggregates of the records of each key, before they are written to a repartition topic.

Hot path: the generated code uses them as a dictionary for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from headrace.topology.serdes.partials import COUNT, marked, unmarked

Send = Callable[..., None]

_FIXED: frozenset[type] = frozenset({int, float, bool})
"""Classes whose values need no more memory than an entry itself."""
_SAMPLE = 256
_MIN_RECORDS = 1000
"""Minimum number of records after which to decide whether pre-aggregation saves records."""
_MIN_SAVED = 2
"""Minimum average number of records that a partial aggregate must save."""
_PAUSE_FACTOR = 10
"""Length of a pause, as a multiple of the records that were pre-aggregated before it."""
_RESULT, _RECORDS = itemgetter(1), itemgetter(4)
_MEASURE_INTERVAL = 1000
"""Minimum number of records between two measurements, which limits the cost per record."""


class Partials(dict["bytes | str", list[Any]]):
    """Partial aggregates of a sink by key.

    A value is a list of the key's bytes, the partial aggregate, its latest timestamp, the last
    headers, and the number of records. A count does not use the number of records. A partial
    aggregate that is the value of a single record is written as that record, so that a failing
    reader can identify it.

    Keys are bytes, or strings if equal strings have equal bytes. Mutable values are stored as
    bytes, except for numbers and strings.

    Args:
        node: the sink that writes them.
        send: takes topic, value, key, partition, timestamp and headers.
        topic: the full name of the repartition topic.
        call: the DSL call of the aggregation.
        write: encodes a partial aggregate.
        singles: whether the partial aggregate of a single record is its value, and is written as a
            record.
        partition_of: returns the partition of a key; None leaves it to the producer.
    """

    __slots__ = (
        "_call",
        "_mark",
        "_partition_of",
        "_paused_records",
        "_payload_bytes",
        "_records",
        "_records_since_write",
        "_send",
        "_singles",
        "_topic",
        "_write",
        "node",
        "rests",
    )

    def __init__(
        self,
        node: str,
        send: Send,
        topic: str,
        call: str,
        write: Callable[[Any], bytes],
        partition_of: Callable[[bytes], int] | None = None,
        *,
        singles: bool = False,
    ) -> None:
        super().__init__()
        self.node = node
        self._send = send
        self._topic = topic
        self._call = call
        self._mark = marked(None, call)
        self._write = write
        self._partition_of = partition_of
        self._singles = singles
        self.rests = False
        """Whether pre-aggregation is paused and records are written as they are."""
        self._paused_records = 0
        self._records = self._records_since_write = 0
        """Records since the last measurement, and since the last write."""
        self._payload_bytes = 0

    def send(self) -> None:
        partials = list(self.values())
        self.clear()
        self._records = self._payload_bytes = 0
        self._pause_if_ineffective(partials)
        self._send_all(partials)

    def send_one(self, key: bytes) -> None:
        """Write and remove the partial aggregate of a key, to send its next record separately."""
        partial = self.pop(key, None)
        if partial is not None:
            self._send_all((partial,))

    def _send_all(self, partials: Sequence[list[Any]]) -> None:
        send, topic, write, partition_of = self._send, self._topic, self._write, self._partition_of
        call, mark, singles = self._call, self._mark, self._singles
        for key, value, timestamp, headers, records in partials:
            partition = -1 if partition_of is None else partition_of(key)
            if singles and records == 1:
                record_headers = headers and unmarked(headers)
            else:
                record_headers = marked(headers, call) if headers else mark
            send(topic, write(value), key, partition, timestamp, record_headers)

    # -- pause -----------------------------------------------------------------------------------

    def _pause_if_ineffective(self, partials: Sequence[list[Any]]) -> None:
        """Pause if too few records were merged: a partial of a single record costs more than it.

        The pause starts with no partial aggregates, so the records of a key keep their order.
        """
        written = len(partials)
        is_count = self._call == COUNT
        records = sum(map(_RESULT if is_count else _RECORDS, partials))
        if records >= _MIN_RECORDS and records - written < written * _MIN_SAVED:
            self.rests = True
            self._paused_records = self._records_since_write * _PAUSE_FACTOR
        self._records_since_write = 0

    # -- memory --------------------------------------------------------------------------------

    def memory_bytes(self, records: int) -> int:
        """Estimate the memory; `records` were processed by the task since the last call."""
        if self.rests:
            self._paused_records -= records
            self.rests = self._paused_records > 0
        else:
            self._records_since_write += records
        self._records += records
        if self._records >= max(_MEASURE_INTERVAL, len(self)):
            self._records = 0
            self._payload_bytes = self._measure()
        return len(self) * CACHED_UPDATE_BYTES + self._payload_bytes

    def _measure(self) -> int:
        if self._call == COUNT:
            return 0
        total, others = 0, 0
        for _, value, *_ in self.values():
            kind = value.__class__
            if kind is bytes or kind is str:
                total += len(value)
            elif kind not in _FIXED:
                others += 1
        if not others:
            return total
        step = -(-len(self) // _SAMPLE)
        sample = [value for _, value, *_ in islice(self.values(), 0, None, step)]
        return total + step * sum(map(self._size, sample))

    def _size(self, value: Any) -> int:
        if value.__class__ in (bytes, str, *_FIXED):
            return 0
        try:
            return len(self._write(value))
        except Exception:
            return 0  # reported when the value is written


def partials_in(pending: Iterable[object]) -> Iterator[Partials]:
    return (cache for cache in pending if isinstance(cache, Partials))


def partials_bytes(pending: Iterable[object], records: int) -> int:
    return sum(partials.memory_bytes(records) for partials in partials_in(pending))


def caches_bytes(pending: Iterable[Mapping[Any, Any]]) -> int:
    """Estimate the memory of the other pending updates; their rows are counted elsewhere."""
    caches = (cache for cache in pending if not isinstance(cache, Partials))
    return sum(map(len, caches)) * CACHED_UPDATE_BYTES


CACHED_UPDATE_BYTES = 250
"""Approximate memory of a cached update; its value is counted with the uncommitted rows."""
