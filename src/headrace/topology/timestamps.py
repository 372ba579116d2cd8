"""Timestamp extractors, which determine the timestamp of a source's records.

An extractor is a function ``(record, partition_time)``: called with an `InputRecord` and the
largest timestamp of its partition so far (-1 for none), it returns milliseconds since 1970, or a
datetime with a time zone. A record with a negative timestamp is dropped and counted; a timestamp
larger than 2**62 is an error. The extractor is called once per record, in the order of the offsets,
before the task chooses among its partitions by timestamp.

Examples:
    >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
    >>> builder = StreamsBuilder()
    >>> orders = builder.stream("orders", timestamps=lambda record, _: record.value["at"])
    >>> orders.map_values(lambda order: order["id"]).to("ids")
    >>> driver = TopologyTestDriver(builder.build())
    >>> driver.input("orders").send("k", {"id": 7, "at": 1_700_000_000_000}, timestamp=5)
    >>> record = driver.output("ids").read()
    >>> record.value, record.timestamp
    (7, 1700000000000)
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.topology.errors import (
    LAST_TIME_MS,
    FutureTimestampError,
    NegativeTimestampError,
    NoTimestampError,
    UnknownTimeError,
    type_of,
)

Headers = Sequence[tuple[str, "bytes | None"]] | None

_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class InputRecord:
    """Record that is passed to a timestamp extractor.

    Args:
        key: the decoded key; None for a null key.
        value: the decoded value; None for a null value.
        timestamp: the record's own timestamp, in milliseconds since 1970; brokers accept negative
            timestamps.
        headers: the headers in order, or None.
        topic: the record's topic.
        partition: the record's partition.
        offset: the record's offset.
        now_ms: returns the wall-clock time in milliseconds since 1970.

    Examples:
        >>> record = InputRecord("ann", {"at": 5_000}, 9_000, None, "clicks", 0, 7, lambda: 10_000)
        >>> def extract(record: InputRecord, partition_time: int) -> int:
        ...     return record.value.get("at", record.timestamp)
        >>> extractor: TimestampExtractor = extract
        >>> extractor(record, -1)
        5000
    """

    key: Any
    value: Any
    timestamp: int
    headers: Headers
    topic: str
    partition: int
    offset: int
    now_ms: Callable[[], int]


TimestampExtractor = Callable[[InputRecord, int], int | datetime]


def fail_on_invalid_timestamp(record: InputRecord, partition_time: int) -> int:  # noqa: ARG001
    """Return the record's own timestamp, and raise if it is negative or too large: the default.

    Raises:
        NegativeTimestampError: the timestamp is negative, or the producer set none.
        FutureTimestampError: it is larger than 2**62.

    >>> record = InputRecord(None, None, 5, None, "orders", 0, 0, lambda: 9)
    >>> fail_on_invalid_timestamp(record, -1)
    5
    """
    if record.timestamp < 0:
        raise NegativeTimestampError(record.timestamp)
    return _possible(record.timestamp)


def log_and_skip_on_invalid_timestamp(record: InputRecord, partition_time: int) -> int:  # noqa: ARG001
    """Return the record's own timestamp, or -1 to drop the record if it is not valid.

    >>> record = InputRecord(None, None, -1, None, "orders", 0, 0, lambda: 9)
    >>> log_and_skip_on_invalid_timestamp(record, 3)
    -1
    """
    return record.timestamp if record.timestamp <= LAST_TIME_MS else -1


def use_partition_time_on_invalid_timestamp(record: InputRecord, partition_time: int) -> int:
    """Return the record's own timestamp, or the partition's largest timestamp so far if it is not
    valid.

    Raises:
        UnknownTimeError: no earlier record of the partition has a valid timestamp.

    >>> record = InputRecord(None, None, -1, None, "orders", 0, 0, lambda: 9)
    >>> use_partition_time_on_invalid_timestamp(record, 3)
    3
    """
    if 0 <= record.timestamp <= LAST_TIME_MS:
        return record.timestamp
    if partition_time < 0:
        _possible(record.timestamp)
        raise UnknownTimeError(record.timestamp)
    return partition_time


def wallclock_timestamp(record: InputRecord, partition_time: int) -> int:  # noqa: ARG001
    """Return the wall-clock time at which the record is read: processing time.

    >>> record = InputRecord(None, None, 5, None, "orders", 0, 0, lambda: 9)
    >>> wallclock_timestamp(record, -1)
    9
    """
    return record.now_ms()


BY_NAME: dict[str, TimestampExtractor] = {
    function.__name__: function
    for function in (
        fail_on_invalid_timestamp,
        log_and_skip_on_invalid_timestamp,
        use_partition_time_on_invalid_timestamp,
        wallclock_timestamp,
    )
}
"""Extractors that can be named in settings."""


def needed(
    own: TimestampExtractor | None, default: TimestampExtractor | None
) -> TimestampExtractor | None:
    """Return the extractor to call for a source, or None if the record's timestamp suffices."""
    chosen = own if own is not None else default
    return None if chosen is fail_on_invalid_timestamp else chosen


class Stamped:
    """Record with the timestamp from an extractor, and with its decoded key and value.

    Errors are raised when the record is processed, so that they are reported with the record.
    """

    __slots__ = ("_error", "_message", "_objects", "_timestamp")

    def __init__(self, message: Any) -> None:
        self._message = message
        self._objects: tuple[Any, Any] | None = None
        self._timestamp: int = message.timestamp()[1]
        self._error: BaseException | None = None

    @property
    def received(self) -> Any:
        return self._message

    def topic(self) -> str:
        topic: str = self._message.topic()
        return topic

    def partition(self) -> int:
        partition: int = self._message.partition()
        return partition

    def offset(self) -> int:
        offset: int = self._message.offset()
        return offset

    def key(self) -> bytes | None:
        key: bytes | None = self._message.key()
        return key

    def value(self) -> bytes | None:
        value: bytes | None = self._message.value()
        return value

    def headers(self) -> Headers:
        headers: Headers = self._message.headers()
        return headers

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp's type, and the timestamp from the extractor."""
        return self._message.timestamp()[0], self._timestamp

    def objects(self) -> tuple[Any, Any]:
        """Return the decoded key and value, or raise the error of their serdes."""
        if self._objects is None:
            assert self._error is not None
            raise self._error
        return self._objects

    def time(self) -> int:
        """Return the timestamp from the extractor, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._timestamp

    def stamp(self, assigner: TimestampAssigner) -> int:
        """Decode the record and call the extractor; return the timestamp, or -1 after an error."""
        message = self._message
        try:
            key, value = message.key(), message.value()
            self._objects = (
                None if key is None else assigner.decode_key(key),
                None if value is None else assigner.decode_value(value),
            )
            record = InputRecord(
                *self._objects,
                self._timestamp,
                message.headers(),
                message.topic(),
                message.partition(),
                message.offset(),
                assigner.now_ms,
            )
            timestamp = _milliseconds(assigner.extract(record, assigner.partition_time))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and _ends_python():
                raise
            self._error = error  # raised again where the record is processed
            return -1
        self._timestamp = timestamp
        return timestamp


def _ends_python() -> bool:
    """Return whether Ctrl-C raises KeyboardInterrupt, so that the user's code did not raise it."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _possible(timestamp: int) -> int:
    if timestamp > LAST_TIME_MS:
        raise FutureTimestampError(timestamp)
    return timestamp


def _milliseconds(time: Any) -> int:
    if time.__class__ is int:
        return _possible(time)
    if not isinstance(time, datetime):
        raise NoTimestampError(type_of(time))
    # A datetime without a time zone would be interpreted in the machine's time zone.
    if time.tzinfo is None:
        raise NoTimestampError("a datetime without a time zone")
    return (time - _1970) // _MS


@dataclass(slots=True, eq=False)
class TimestampAssigner:
    """Assigner of timestamps to the records of a partition, in offset order.

    Args:
        partition_time: the largest timestamp so far.
    """

    extract: TimestampExtractor
    decode_key: Callable[[bytes], Any]
    decode_value: Callable[[bytes], Any]
    now_ms: Callable[[], int]
    partition_time: int = -1

    def stamp(self, messages: Iterable[Any]) -> list[Stamped]:
        stamped = []
        for message in messages:
            record = Stamped(message)
            self.partition_time = max(self.partition_time, record.stamp(self))
            stamped.append(record)
        return stamped
