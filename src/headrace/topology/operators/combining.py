"""What is folded of the records of each key before they would go to a repartition topic.

Hot path: the generated code folds each record into it, as into a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from headrace.topology.serdes.partials import COUNT, marked, unmarked

Send = Callable[..., None]

_FIXED: frozenset[type] = frozenset({int, float, bool})
"""Classes whose values take no more memory than an entry in any case."""
_SAMPLE = 256
_JUDGED = 1000
"""So many records at least are looked at to find whether folding them saves anything."""
_WORTH = 2
"""How many records must go into a partial result besides its first one, on average."""
_REST = 10
"""How many times as many records are written as they are before the next look."""
_RESULT, _RECORDS = itemgetter(1), itemgetter(4)
_MEASURED_AGAIN = 1000
"""Behind so many records at least they are measured again, so that it costs little for each."""


class Partials(dict["bytes | str", list[Any]]):
    """By key: its bytes, the partial result, its latest timestamp, the last headers, the records.

    Of how many records it is, a count says itself. One that is the value of a single record is
    written as that record, so that whoever fails on it can say which one it is.

    Keys are held by their bytes, or as they are where they are strings and equal ones have equal
    bytes. Values that somebody could change are held as their bytes, those of numbers and strings
    aside.

    Args:
        node: the sink that writes them.
        send: takes topic, value, key, partition, timestamp and headers.
        topic: the repartition topic, by its full name.
        call: what the partial results are of.
        write: makes the bytes of a partial result.
        singles: whether one of a single record is its value, and written as a record is.
        partition_of: tells the partition of a key; None leaves it to the producer.
    """

    __slots__ = (
        "_call",
        "_mark",
        "_partition_of",
        "_payload_bytes",
        "_records",
        "_rest_records",
        "_send",
        "_singles",
        "_taken",
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
        """Whether records are to be written as they are; nothing is held then."""
        self._rest_records = 0
        self._records = self._taken = 0
        """Processed since they were measured, and since they were written."""
        self._payload_bytes = 0

    def send(self) -> None:
        """Write them all, and hold none any more."""
        held = list(self.values())
        self.clear()
        self._records = self._payload_bytes = 0
        self._judge(held)
        self._send_all(held)

    def send_one(self, key: bytes) -> None:
        """Write that of a key, if there is one: what comes next of the key is written as it is."""
        partial = self.pop(key, None)
        if partial is not None:
            self._send_all((partial,))

    def _send_all(self, held: Sequence[list[Any]]) -> None:
        send, topic, write, partition_of = self._send, self._topic, self._write, self._partition_of
        call, mark, singles = self._call, self._mark, self._singles
        for key, value, timestamp, headers, records in held:
            partition = -1 if partition_of is None else partition_of(key)
            if singles and records == 1:
                said = headers and unmarked(headers)
            else:
                said = marked(headers, call) if headers else mark
            send(topic, write(value), key, partition, timestamp, said)

    # -- whether it saves anything -------------------------------------------------------------

    def _judge(self, held: Sequence[list[Any]]) -> None:
        """Rest for a while if few records went into a partial result that was there.

        One that is of a single record costs more than the record itself. They rest with none held,
        so a key's records keep their order.
        """
        written = len(held)
        is_count = self._call == COUNT
        folded = sum(map(_RESULT if is_count else _RECORDS, held))
        if folded >= _JUDGED and folded - written < written * _WORTH:
            self.rests = True
            self._rest_records = self._taken * _REST
        self._taken = 0

    # -- memory --------------------------------------------------------------------------------

    def held_bytes(self, records: int) -> int:
        """Estimate the memory that they take.

        Args:
            records: how many the task has processed since this was asked last.
        """
        if self.rests:
            self._rest_records -= records
            self.rests = self._rest_records > 0
        else:
            self._taken += records
        self._records += records
        if self._records >= max(_MEASURED_AGAIN, len(self)):
            self._records = 0
            self._payload_bytes = self._measured()
        return len(self) * HELD_BACK_BYTES + self._payload_bytes

    def _measured(self) -> int:
        """The bytes of the values: of all where they are at hand, else of some."""
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
            return 0  # it is told when the value is to be written


def partials_among(pending: Iterable[object]) -> Iterator[Partials]:
    """The partial results among what a task holds back."""
    return (held for held in pending if isinstance(held, Partials))


def partials_bytes(pending: Iterable[object], records: int) -> int:
    """Estimate the memory of the partial results among what a task holds back.

    Args:
        records: how many the task has processed since this was asked last.
    """
    return sum(held.held_bytes(records) for held in partials_among(pending))


def caches_bytes(pending: Iterable[Mapping[Any, Any]]) -> int:
    """Estimate the memory of the other things among it; the rows are counted elsewhere."""
    return sum(len(held) for held in pending if not isinstance(held, Partials)) * HELD_BACK_BYTES


HELD_BACK_BYTES = 250
"""What one held-back update costs, roughly; its value is counted with the uncommitted rows."""
