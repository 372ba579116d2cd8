"""The ends of a topology under test: what goes in, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Generic, Literal, TypeVar

from headrace.streams.config.dead_letter_headers import HEADER
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.testing.memory_cluster import MemoryCluster, MemoryMessage
from headrace.topology.context.environment import Headers
from headrace.topology.errors import SerdeError, about
from headrace.topology.serdes import Serde
from headrace.topology.serdes._serde import for_topic
from headrace.topology.serdes.partials import Take

K = TypeVar("K")
V = TypeVar("V")

Isolation = Literal["read_committed", "read_uncommitted"]
Time = datetime | int
"""A moment: a datetime with a time zone, or milliseconds since 1970."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(time: Time, name: str = "timestamp") -> int:
    """Return milliseconds since 1970.

    Args:
        time: the moment.
        name: of the argument that it was given as.

    Raises:
        TypeError: it is neither a datetime nor an int.
        ValueError: a datetime has no time zone.

    >>> to_ms(datetime(1970, 1, 2, tzinfo=UTC))
    86400000
    """
    if not isinstance(time, datetime):
        if not isinstance(time, int) or isinstance(time, bool):
            raise TypeError(
                f"{name} must be a datetime with a time zone, or an int of milliseconds since "
                f"1970, and not a {type(time).__name__}"
            )
        return time
    if time.tzinfo is None:
        raise ValueError(f"{name}: {time!r} has no time zone; write datetime(..., tzinfo=UTC)")
    return (time - _EPOCH) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Record(Generic[K, V]):
    """A record that came out of a topology; the timestamp is in milliseconds since 1970."""

    key: K | None
    value: V | None
    timestamp: int
    headers: Headers
    partition: int
    offset: int


class TestInput(Generic[K, V]):
    """Writes to one source topic; made by ``TopologyTestDriver.input``.

    A record without a timestamp of its own gets the driver's time, and each one sent here is `step`
    later than the one before it.
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
        self._key = for_topic(key, topic, is_key=True)
        self._value = for_topic(value, topic, is_key=False)
        self._cluster = cluster
        self._run = run
        self._now_ms = now_ms
        self._step_ms = step_ms
        self._sent = 0

    def __repr__(self) -> str:
        return f"<TestInput of {self._topic} key={self._key.name} value={self._value.name}>"

    def send(
        self,
        key: K | None,
        value: V | None,
        *,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Write one record, and run the topology.

        Args:
            key: None is a null key.
            value: None is a null value.
            timestamp: a datetime or milliseconds since 1970; None takes the driver's time.
            headers: pairs of a name and bytes.
            partition: None takes the key's, for a null key each in turn.

        Raises:
            SerdeError: the serdes refuse the key or the value; nothing was written.
            StreamsError: what stopped the worker.
        """
        self.append(
            *self._encoded(key, value), timestamp=timestamp, headers=headers, partition=partition
        )
        self._run()

    def send_many(self, records: Iterable[tuple[K | None, V | None]]) -> None:
        """Write several records before the topology is run: it may get them as one batch.

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
        """Write one record of bytes that no serde has made, and run the topology."""
        self.append(key, value, timestamp=timestamp, headers=headers, partition=partition)
        self._run()

    @property
    def key_serde(self) -> Serde[K]:
        """What keys are written with."""
        return self._key

    @property
    def value_serde(self) -> Serde[V]:
        """What values are written with."""
        return self._value

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        *,
        timestamp: Time | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> tuple[TopicPartition, int]:
        """Write one record of bytes, and leave the topology as it is; `run` then takes all.

        Returns:
            Where the record stands: its partition and its offset.

        Raises:
            ValueError: there is no such partition.
        """
        count = len(self._cluster.topics[self._topic].logs)
        if partition is not None and not 0 <= partition < count:
            raise ValueError(f"topic {self._topic!r} has {count} partitions, and no {partition}")
        message = self._cluster.append(
            self._topic,
            value,
            key,
            -1 if partition is None else partition,
            self._time_ms() if timestamp is None else to_ms(timestamp),
            headers,
        )
        return message.place, message.offset()

    def _encoded(self, key: K | None, value: V | None) -> tuple[bytes | None, bytes | None]:
        with about("key"):
            key_bytes = None if key is None else self._key.serialize(key)
        with about("value"):
            value_bytes = None if value is None else self._value.serialize(value)
        return key_bytes, value_bytes

    def _time_ms(self) -> int:
        time_ms = self._now_ms() + self._sent * self._step_ms
        self._sent += 1
        return time_ms


class TestOutput(Generic[K, V]):
    """Reads one topic; made by ``TopologyTestDriver.output``.

    Records of one partition come in the order of their offsets, those of several in the order in
    which they were written.
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
        self._key = for_topic(key, topic, is_key=True)
        self._value = for_topic(value, topic, is_key=False)
        self._cluster = cluster
        self._committed = isolation == "read_committed"
        self._next: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        return f"<TestOutput of {self._topic} key={self._key.name} value={self._value.name}>"

    @property
    def key_serde(self) -> Serde[K]:
        """What keys are read with."""
        return self._key

    @property
    def value_serde(self) -> Serde[V]:
        """What values are read with."""
        return self._value

    def read(self) -> Record[K, V]:
        """Return the next record.

        Raises:
            LookupError: there is none.
        """
        found = self._after(self._next, limit=1)
        if not found:
            raise LookupError(
                f"topic {self._topic!r} has no further record; send more, commit, or read it with "
                "isolation='read_uncommitted'"
            )
        self._next[found[0].place] = found[0].offset() + 1
        return self._record(found[0])

    def read_all(self) -> list[Record[K, V]]:
        """Return all records that were not read yet."""
        found = self._after(self._next)
        for message in found:
            self._next[message.place] = message.offset() + 1
        return [self._record(message) for message in found]

    def as_dict(self) -> dict[K | None, V]:
        """Return the last value of each key in the whole topic; a null value takes it out.

        What `read` returns next stays as it is.
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
        """Whether everything was read."""
        return not self._after(self._next, limit=1)

    def _after(
        self, offsets: dict[TopicPartition, int], limit: int = 1 << 62
    ) -> list[MemoryMessage]:
        """The records from these offsets on, `limit` of each partition, in the order of writing."""
        if self._topic not in self._cluster.topics:
            return []
        found: list[MemoryMessage] = []
        for place in self._cluster.places(self._topic):
            log = self._cluster.log(place)
            begin = max(log.start, offsets.get(place, 0))
            found += log.read(begin, limit, committed=self._committed)[0]
        return sorted(found, key=lambda message: message.number)

    def _record(self, message: MemoryMessage) -> Record[K, V]:
        key_bytes, value_bytes = message.key(), message.value()
        headers = message.headers() or ()
        # A partial result is shown as what it is: for a count a number.
        result = None if self._take is None else self._take(headers, value_bytes)[0]
        value: Any = None
        try:
            with about("key"):
                key = None if key_bytes is None else self._key.deserialize(key_bytes)
            with about("value"):
                if value_bytes is not None:
                    value = self._value.deserialize(value_bytes) if result is None else result
        except SerdeError as error:
            raise SerdeError(f"{error} ({_read_at(message)}){_of_letter(headers)}") from error
        return Record(
            key,
            value,
            message.timestamp()[1],
            headers,
            message.partition(),
            message.offset(),
        )


def _read_at(message: MemoryMessage) -> str:
    return f"topic {message.topic()}, partition {message.partition()}, offset {message.offset()}"


def _of_letter(headers: Headers) -> str:
    if not any(name.startswith(HEADER) for name, _ in headers):
        return ""
    return (
        ". It is a dead letter with the bytes of the record that failed: read it with "
        "key=serdes.bytes, value=serdes.bytes"
    )


def step_to_ms(step: timedelta) -> int:
    """Return a step in milliseconds.

    Raises:
        ValueError: it is negative.
    """
    if step < timedelta(0):
        raise ValueError(f"step {step} is negative; time goes on only")
    return step // timedelta(milliseconds=1)
