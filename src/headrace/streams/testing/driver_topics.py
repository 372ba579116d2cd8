"""Inputs and outputs of a topology under test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, Literal, TypeVar

from headrace.streams.config.dead_letter_headers import HEADER
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.testing.memory_cluster import MemoryCluster, MemoryMessage
from headrace.topology.context.environment import Headers
from headrace.topology.errors import SerdeError, about, require_timedelta
from headrace.topology.java_names import hinting
from headrace.topology.serdes import Serde
from headrace.topology.serdes._serde import for_topic
from headrace.topology.serdes.partials import Take

K = TypeVar("K")
V = TypeVar("V")

Isolation = Literal["read_committed", "read_uncommitted"]
Time = datetime | int
"""A datetime with a time zone, or milliseconds since 1970."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(time: Time, name: str = "timestamp") -> int:
    """Convert to milliseconds since 1970; raise ValueError for a datetime without a time zone.

    >>> to_ms(datetime(1970, 1, 2, tzinfo=UTC))
    86400000
    """
    if not isinstance(time, datetime):
        if not isinstance(time, int) or isinstance(time, bool):
            raise TypeError(
                f"{name} must be a datetime with a time zone, or an int of milliseconds since "
                f"1970, not a {type(time).__name__}"
            )
        return time
    if time.tzinfo is None:
        raise ValueError(f"{name}: {time!r} has no time zone. Write datetime(..., tzinfo=UTC).")
    return (time - _EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class OutputRecord(Generic[K, V]):
    """Output record of a topology; the timestamp is in milliseconds since 1970.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", key=serdes.string, value=serdes.long).to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("in").send("a", 1, timestamp=5_000)
        ...     driver.output("out").read()
        OutputRecord(key='a', value=1, timestamp=5000, headers=(), partition=0, offset=0)
    """

    key: K | None
    value: V | None
    timestamp: int
    headers: Headers
    partition: int
    offset: int


@hinting
class TestInput(Generic[K, V]):
    """Writer of a source topic; created by ``TopologyTestDriver.input``.

    A record without an explicit timestamp gets the driver's time, and each such record is `step`
    later than the record before it.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", key=serdes.string, value=serdes.long).to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     numbers: TestInput[str, int] = driver.input("in")
        ...     numbers.send("a", 1, timestamp=5_000, headers=[("trace", b"7")])
        ...     numbers.send_many([("b", 2), ("c", None)])
        ...     numbers.send_bytes(b"d", (4).to_bytes(8, "big"))
        ...     _ = numbers.append(b"e", None)  # not processed before the next run
        ...     driver.run()
        ...     list(driver.output("out").as_dict().items())
        [('a', 1), ('b', 2), ('d', 4)]
    """

    __test__: ClassVar = False  # the name begins as pytest's classes do

    def __init__(
        self,
        topic: str,
        key: Serde[K],
        value: Serde[V],
        *,
        cluster: MemoryCluster,
        run: Callable[[], None],
        now_ms: Callable[[], int],
        step_ms: int,
    ) -> None:
        self._topic = topic
        self.key_serde = for_topic(key, topic, is_key=True)
        """The serde with which keys are written."""
        self.value_serde = for_topic(value, topic, is_key=False)
        """The serde with which values are written."""
        self._cluster = cluster
        self._run = run
        self._now_ms = now_ms
        self._step_ms = step_ms
        self._sent = 0

    def __repr__(self) -> str:
        return (
            f"<TestInput of {self._topic} key={self.key_serde.name} value={self.value_serde.name}>"
        )

    def send(
        self,
        key: K | None,
        value: V | None,
        *,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Write a record, and run the topology.

        Args:
            key: None is a null key.
            value: None is a null value.
            timestamp: a datetime or milliseconds since 1970; None is the driver's time.
            headers: pairs of a name and bytes.
            partition: None is the partition of the key, and round-robin for a null key.

        Raises:
            SerdeError: the serdes refuse the key or the value; nothing was written.
            StreamsError: the error that stopped the worker.
        """
        self.append(
            *self._encoded(key, value), timestamp=timestamp, headers=headers, partition=partition
        )
        self._run()

    def send_many(self, records: Iterable[tuple[K | None, V | None]]) -> None:
        """Write several records before the topology runs, so that it can receive them as a batch.

        Args:
            records: pairs of a key and a value.
        """
        for encoded in [self._encoded(key, value) for key, value in records]:
            self.append(*encoded)
        self._run()

    def send_bytes(
        self,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Write a record of encoded bytes, and run the topology."""
        self.append(key, value, timestamp=timestamp, headers=headers, partition=partition)
        self._run()

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> tuple[TopicPartition, int]:
        """Write a record of encoded bytes without running the topology; the next `run` reads it.

        Returns:
            The partition and the offset of the record.

        Raises:
            ValueError: the partition does not exist.
        """
        count = len(self._cluster.topics[self._topic].logs)
        if partition is not None and not 0 <= partition < count:
            raise ValueError(
                f"topic {self._topic!r} has {count} partitions, and no {partition}. Use 0 to "
                f"{count - 1}."
            )
        message = self._cluster.append(
            self._topic,
            value,
            key,
            -1 if partition is None else partition,
            self._time_ms() if timestamp is None else to_ms(timestamp),
            headers,
        )
        return message.tp, message.offset()

    def _encoded(self, key: K | None, value: V | None) -> tuple[bytes | None, bytes | None]:
        with about("key"):
            key_bytes = None if key is None else self.key_serde.serialize(key)
        with about("value"):
            value_bytes = None if value is None else self.value_serde.serialize(value)
        return key_bytes, value_bytes

    def _time_ms(self) -> int:
        time_ms = self._now_ms() + self._sent * self._step_ms
        self._sent += 1
        return time_ms


@hinting
class TestOutput(Generic[K, V]):
    """Reader of a topic; created by ``TopologyTestDriver.output``.

    Records of a partition are in the order of their offsets, and records of several partitions in
    the order in which they were written.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> builder = StreamsBuilder()
        >>> builder.stream("in", key=serdes.string, value=serdes.long).to("out")
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     results: TestOutput[str, int] = driver.output("out")
        ...     driver.input("in").send_many([("a", 1), ("a", 2), ("b", 3)])
        ...     print(results.read().value, results.is_empty)
        ...     print([record.value for record in results.read_all()], results.is_empty)
        ...     print(results.as_dict())
        1 False
        [2, 3] True
        {'a': 2, 'b': 3}
    """

    __test__: ClassVar = False  # the name begins as pytest's classes do

    def __init__(
        self,
        topic: str,
        key: Serde[K],
        value: Serde[V],
        *,
        cluster: MemoryCluster,
        isolation: Isolation,
        take: Take | None = None,
    ) -> None:
        self._topic = topic
        self._take = take
        self.key_serde = for_topic(key, topic, is_key=True)
        """The serde with which keys are read."""
        self.value_serde = for_topic(value, topic, is_key=False)
        """The serde with which values are read."""
        self._cluster = cluster
        self._committed = isolation == "read_committed"
        self._next: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        return (
            f"<TestOutput of {self._topic} key={self.key_serde.name} value={self.value_serde.name}>"
        )

    def read(self) -> OutputRecord[K, V]:
        """Return the next record.

        Raises:
            LookupError: no record is left.
        """
        found = self._after(self._next, limit=1)
        if not found:
            raise LookupError(
                f"topic {self._topic!r} has no further record. Send more, commit, or read it with "
                "isolation='read_uncommitted'."
            )
        self._next[found[0].tp] = found[0].offset() + 1
        return self._record(found[0])

    def read_all(self) -> list[OutputRecord[K, V]]:
        """Return all unread records."""
        found = self._after(self._next)
        for message in found:
            self._next[message.tp] = message.offset() + 1
        return [self._record(message) for message in found]

    def as_dict(self) -> dict[K | None, V]:
        """Return the last value of each key in the whole topic; a null value removes the key.

        This does not change which record `read` returns next.
        """
        last: dict[K | None, V] = {}
        for message in self._after({}):
            record = self._record(message)
            if record.value is None:
                last.pop(record.key, None)
            else:
                last[record.key] = record.value
        return last

    @property
    def is_empty(self) -> bool:
        """Whether all records were read."""
        return not self._after(self._next, limit=1)

    def _after(
        self, offsets: dict[TopicPartition, int], limit: int = 1 << 62
    ) -> list[MemoryMessage]:
        """Return the records from these offsets on, up to `limit` per partition, in write order."""
        found: list[MemoryMessage] = []
        for tp in self._cluster.partitions(self._topic):
            log = self._cluster.log(tp)
            begin = max(log.start, offsets.get(tp, 0))
            found += log.read(begin, limit, committed=self._committed)[0]
        return sorted(found, key=lambda message: message.number)

    def _record(self, message: MemoryMessage) -> OutputRecord[K, V]:
        key_bytes, value_bytes = message.key(), message.value()
        headers = message.headers() or ()
        # Show a partial aggregate by its value: a number for a count.
        result = None if self._take is None else self._take(headers, value_bytes)[0]
        value: Any = None
        try:
            with about("key"):
                key = None if key_bytes is None else self.key_serde.deserialize(key_bytes)
            with about("value"):
                if value_bytes is not None:
                    value = self.value_serde.deserialize(value_bytes) if result is None else result
        except SerdeError as error:
            raise SerdeError(
                f"{error} ({_read_at(message)}){_dead_letter_hint(headers)}"
            ) from error
        return OutputRecord(
            key,
            value,
            message.timestamp()[1],
            headers,
            message.partition(),
            message.offset(),
        )


def _read_at(message: MemoryMessage) -> str:
    return f"topic {message.topic()}, partition {message.partition()}, offset {message.offset()}"


def _dead_letter_hint(headers: Headers) -> str:
    if not any(name.startswith(HEADER) for name, _ in headers):
        return ""
    return (
        ". It is a dead letter with the bytes of the failed record. Read it with key=serdes.bytes, "
        "value=serdes.bytes."
    )


def step_to_ms(step: timedelta, name: str = "step") -> int:
    require_timedelta(name, step)
    if step < timedelta(0):
        raise ValueError(f"{name} {step} is negative. Use a duration of 0 or more")
    return step // timedelta(milliseconds=1)
