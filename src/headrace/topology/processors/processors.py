"""Processor API: user code in a topology, with stores, punctuators and any number of results.

A processor is an object that lives as long as its task. Its attributes are lost after an abort or a
restart, because a new object is created then; its stores are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    NoReturn,
    Protocol,
    Self,
    TypeVar,
    overload,
)

from headrace.topology.arguments import refuse_other_than_function
from headrace.topology.context.context import is_header_name
from headrace.topology.context.number import Number
from headrace.topology.context.punctuation import Schedule
from headrace.topology.context.task_context import TaskContext, TimeKind
from headrace.topology.errors import (
    LAST_TIME_MS,
    MisuseTimeError,
    MisuseTypeError,
    MisuseValueError,
    type_of,
)

if TYPE_CHECKING:
    from headrace.topology.context.context import Headers, OperatorContext, Receive
    from headrace.topology.processors.stores import StoreBuilder

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)
KIn_contra = TypeVar("KIn_contra", contravariant=True)
VIn_contra = TypeVar("VIn_contra", contravariant=True)
KOut_contra = TypeVar("KOut_contra", contravariant=True)
VOut_contra = TypeVar("VOut_contra", contravariant=True)
KOut_co = TypeVar("KOut_co", covariant=True)
VOut_co = TypeVar("VOut_co", covariant=True)
K2 = TypeVar("K2")
V2 = TypeVar("V2")
F = TypeVar("F")

HeaderTuple = tuple[tuple[str, "bytes | None"], ...]

_MS = timedelta(milliseconds=1)
_NUMBER_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True, init=False)
class _Record(Generic[K_co, V_co]):
    key: K_co
    value: V_co
    timestamp: int
    headers: HeaderTuple = ()

    # Written out as it runs for each record: a generated one takes three times as long.
    def __init__(self, key: K_co, value: V_co, timestamp: int, headers: HeaderTuple = ()) -> None:
        try:
            if not 0 <= timestamp <= LAST_TIME_MS:
                _refuse_time(timestamp)
        except TypeError:
            _refuse_time(timestamp)
        set_key, set_value, set_timestamp, set_headers = _SETTERS
        set_key(self, key)
        set_value(self, value)
        set_timestamp(self, timestamp)
        set_headers(self, headers)

    def with_timestamp(self, timestamp: int) -> Self:
        """Return a copy with another timestamp, in milliseconds since 1970."""
        return replace(self, timestamp=timestamp)

    def with_headers(self, headers: Headers) -> Self:
        """Return a copy with other headers; None for no headers."""
        return replace(self, headers=tuple(headers or ()))


_SETTERS: tuple[Callable[[Any, Any], None], ...] = tuple(
    vars(_Record)[field.name].__set__ for field in fields(_Record)
)


class Record(_Record[K_co, V_co]):
    """Record that processors receive and forward.

    Args:
        key: the key; None for a record without a key.
        value: the value; None for a null value.
        timestamp: milliseconds since 1970; not negative, and ``2**62`` at most.
        headers: names and values in order; forward a received record's headers to keep them.

    Raises:
        ValueError: the timestamp is negative or too large.

    Examples:
        >>> record = Record("fr", 1, 5_000)
        >>> record.with_value(2).with_timestamp(6_000)
        Record(key='fr', value=2, timestamp=6000, headers=())
        >>> record.with_key("de").with_headers([("trace", b"7")])
        Record(key='de', value=1, timestamp=5000, headers=(('trace', b'7'),))
    """

    __slots__ = ()

    def with_key(self, key: K2) -> Record[K2, V_co]:
        """Return a copy with another key."""
        return Record(key, self.value, self.timestamp, self.headers)

    def with_value(self, value: V2) -> Record[K_co, V2]:
        """Return a copy with another value."""
        return Record(self.key, value, self.timestamp, self.headers)


class FixedKeyRecord(_Record[K_co, V_co]):
    """Record in ``process_values``, whose key cannot be changed.

    Its timestamp is in milliseconds since 1970.

    Examples:
        >>> FixedKeyRecord("fr", 1, 5_000).with_value("one")
        FixedKeyRecord(key='fr', value='one', timestamp=5000, headers=())
        >>> FixedKeyRecord("fr", 1, 5_000).with_headers([("trace", b"7")]).with_timestamp(0).headers
        (('trace', b'7'),)
    """

    __slots__ = ()

    def with_value(self, value: V2) -> FixedKeyRecord[K_co, V2]:
        """Return a copy with another value."""
        return FixedKeyRecord(self.key, value, self.timestamp, self.headers)


def _refuse_time(timestamp: Any) -> None:
    if not isinstance(timestamp, int):
        raise MisuseTypeError(
            f"the timestamp of a record is {type_of(timestamp)}; give an int of milliseconds since "
            "1970"
        )
    wrong = "negative" if timestamp < 0 else f"larger than {LAST_TIME_MS}"
    raise MisuseValueError(
        f"the timestamp {timestamp} is {wrong}; a record's time is milliseconds since 1970"
    )


class RecordMetadata(NamedTuple):
    """Topic, partition and offset of the current input record."""

    topic: str
    partition: int
    offset: int


class Cancellable(Protocol):
    """Scheduled punctuator."""

    def cancel(self) -> None:
        """Cancel all further calls."""


class ProcessingContext:
    """Base class of the contexts of processors.

    Args:
        context: the context of the operator.
    """

    __slots__ = ("_forward", "_operator", "_scheduled", "_task")

    def __init__(self, context: OperatorContext) -> None:
        self._operator = context
        self._task: TaskContext = context.task
        self._scheduled = 0
        """Number of schedules that `init` has created; -1 after `init`."""
        self._forward: Receive = self._not_yet

    @property
    def node(self) -> str:
        """Name of the processor's node."""
        return self._operator.node

    @property
    def application_id(self) -> str:
        """The application's id."""
        return self._task.application_id

    @property
    def task_id(self) -> str:
        """The task's id: sub-topology and partition, such as ``0_3``."""
        return self._task.task_id

    @property
    def partition(self) -> int:
        """The partition that the task reads, of each of its topics."""
        return self._task.partition

    @property
    def settings(self) -> Mapping[str, object]:
        """The application's settings by their dotted names, without the clients' settings."""
        return self._task.settings

    @property
    def record_metadata(self) -> RecordMetadata | None:
        """Topic, partition and offset of the input record that is being processed.

        None in a punctuator and in `init`, and for cached changes that are forwarded at the commit.
        """
        message = self._task.record
        if message is None:
            return None
        return RecordMetadata(message.topic(), message.partition(), message.offset())

    @property
    def current_stream_time(self) -> int:
        """The largest timestamp that the task has seen, in milliseconds; -1 before the first
        record.
        """
        return self._task.stream_time

    @property
    def current_time(self) -> int:
        """The wall-clock time in milliseconds since 1970."""
        return self._task.now_ms()

    @overload
    def store(self, store: StoreBuilder[F]) -> F: ...
    @overload
    def store(self, store: str) -> Any: ...

    def store(self, store: StoreBuilder[Any] | str) -> Any:
        """Return a store that is connected to the processor.

        Args:
            store: its name, or its builder, from which a type checker infers the store's type.

        Raises:
            TopologyError: the store is not connected to the processor.
        """
        return self._operator.open_store(store if isinstance(store, str) else store.name)

    def schedule(
        self,
        interval: timedelta,
        callback: Callable[[int], object],
        *,
        kind: TimeKind,
        start: datetime | int | None = None,
    ) -> Cancellable:
        """Schedule a punctuator: a function that is called periodically, in the task's thread,
        between records. Return an object that cancels it.

        Stream time is checked after each record, so the same input results in the same calls.
        Missed calls are combined into a single call, and the next call is due at the first multiple
        of the interval after now.

        The due times of punctuators that `init` schedules are committed in the offset metadata: an
        abort or a restart neither repeats nor omits a call, provided that `init` schedules them in
        the same order. Punctuators that are scheduled later end with the task.

        Args:
            interval: interval between two calls.
            callback: called with the current time of that kind in milliseconds.
            kind: "stream_time" starts with the first record; "wall_clock" after one interval, even
                if no records arrive.
            start: origin of the multiples: a datetime with a time zone, or milliseconds since 1970.
                None is 1970 for stream time, and now for wall-clock time.

        Raises:
            TopologyError: the callback is not a function of one argument.
            TypeError: the interval or the start has another type.
            ValueError: the interval is not a whole number of milliseconds of at least one, or the
                kind is unknown.
        """
        if not isinstance(interval, timedelta):
            raise MisuseTypeError(f"an interval must be a timedelta, not {type_of(interval)}")
        refuse_other_than_function(callback, "schedule", "callback", 1, "callback(now_ms)")
        interval_ms, rest = divmod(interval, _MS)
        if rest or interval_ms < 1:
            raise MisuseValueError(
                "an interval must be at least 1 ms and a whole number of milliseconds, not "
                f"{interval}"
            )
        start_ms = None if start is None else _to_ms(start)
        due = self._due_number()
        if kind == "stream_time":
            due.value = self._first_by_stream_time(due.value, interval_ms, start_ms)
        elif kind == "wall_clock":
            due.value = self._first_by_wall_clock(due.value, interval_ms, start_ms)
        else:
            raise MisuseValueError(
                f"the kind of time must be 'stream_time' or 'wall_clock', not {kind!r}"
            )
        schedule = Schedule(self.node, interval_ms, callback, due)
        self._task.schedule(kind, schedule)
        return schedule

    def _due_number(self) -> Number:
        if self._scheduled < 0:
            return Number()
        self._scheduled += 1
        return self._operator.number(f"due {self._scheduled}")

    def _first_by_stream_time(self, committed: int, interval_ms: int, start_ms: int | None) -> int:
        if committed < 0:
            return start_ms or 0
        if start_ms is None and self._task.stream_time >= 0:
            # If the interval is now shorter, do not wait for the end of the previous interval.
            return min(committed, self._task.stream_time + interval_ms)
        return committed

    def _first_by_wall_clock(self, committed: int, interval_ms: int, start_ms: int | None) -> int:
        now_ms = self._task.now_ms()
        first = now_ms + interval_ms
        if start_ms is not None:
            missed = max(0, -((start_ms - now_ms) // interval_ms))
            first = start_ms + missed * interval_ms
        return first if committed < 0 else min(committed, first)

    def commit(self) -> None:
        """Request a commit soon; it includes all work up to that commit."""
        self._task.request_commit()

    def count(self, name: str, n: float = 1) -> None:
        """Add to a counter of the processor, which is part of the application's metrics.

        All tasks of a worker share the counter. An abort does not undo its increments.

        Args:
            name: letters, digits and underscores; use few names, and never a key or a value.
            n: increment.

        Raises:
            ValueError: the name has other characters, or `n` is negative.
        """
        if not isinstance(name, str) or not _NUMBER_NAME.fullmatch(name):
            raise MisuseValueError(
                f"processor {self.node!r} uses an invalid name for a counter; use letters, digits "
                'and underscores, and no digit first, such as count("refused")'
            )
        if not n >= 0:
            raise MisuseValueError(
                f"processor {self.node!r} decreases counter {name}; a counter can only increase"
            )
        self._task.count(self.node, name, n)

    def _started(self) -> None:
        self._scheduled = -1
        self._forward = self._operator.forward

    def _not_yet(self, *record: Any) -> None:  # noqa: ARG002
        raise MisuseTimeError(
            f"processor {self.node!r} forwards in init(), before anything runs; forward in "
            "process() or in a punctuator"
        )

    def _child(self, name: str) -> Receive:
        if self._scheduled >= 0:
            return self._not_yet
        child = self._operator.children.get(name)
        if child is None:
            children = ", ".join(self._operator.children) or "none"
            raise MisuseValueError(
                f"processor {self.node!r} has no child with the name that was passed to "
                f"forward(to=...); its children: {children}"
            )
        return child

    def _sendable(self, headers: HeaderTuple) -> list[tuple[str, bytes | None]]:
        """Return the headers as a list; raise for a name that would crash the client."""
        for name, _ in headers:
            if not is_header_name(name):
                raise MisuseValueError(
                    f"processor {self.node!r} forwards a header with the name {name!a}, which "
                    "UTF-8 cannot encode; give text without lone surrogates"
                )
        return list(headers)

    def _refuse(self, value: object, required: type, advice: str) -> NoReturn:
        kind = f"the class {value.__qualname__}" if isinstance(value, type) else type_of(value)
        raise MisuseTypeError(
            f"processor {self.node!r} must forward a {required.__name__}, not {kind}; {advice}"
        )


class ProcessorContext(ProcessingContext, Generic[KOut_contra, VOut_contra]):
    """Context of a processor, passed to `init`.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> class Traced(Processor[str, str, str, str]):
        ...     def init(self, context: ProcessorContext[str, str]) -> None:
        ...         self.context = context
        ...         settings = context.settings
        ...         print(context.application_id, context.node, settings["commit.interval.ms"])
        ...         minute = timedelta(minutes=1)
        ...         self.timer = context.schedule(minute, self.flush, kind="stream_time")
        ...     def process(self, record):
        ...         self.context.count("records")
        ...         offset = self.context.record_metadata.offset
        ...         where = f"task {self.context.task_id}, partition {self.context.partition}"
        ...         self.context.forward(record.with_value(f"{where}, offset {offset}"))
        ...         self.context.commit()
        ...     def flush(self, now_ms):
        ...         print(now_ms, self.context.current_stream_time, self.context.current_time)
        ...     def close(self):
        ...         self.timer.cancel()
        >>> builder = StreamsBuilder()
        >>> texts = {"key": serdes.string, "value": serdes.string}
        >>> builder.stream("in", **texts).process(Traced, name="trace").to("out", **texts)
        >>> with TopologyTestDriver(builder.build(), now=5_000) as driver:
        ...     for timestamp in (1_000, 60_000):
        ...         driver.input("in").send("a", "x", timestamp=timestamp)
        ...     driver.output("out").read_all()[1].value
        test trace 0
        1000 1000 5000
        60000 60000 5000
        'task 0_0, partition 0, offset 1'
    """

    __slots__ = ()

    def forward(self, record: Record[KOut_contra, VOut_contra], *, to: str | None = None) -> None:
        """Forward a record to the downstream nodes, and return after it is completely processed.

        The nodes receive it one after the other, in the order in which they were added.

        Args:
            record: the record, with its timestamp and headers.
            to: name of the only node that receives it; None for all.

        Raises:
            TypeError: it is not a `Record`.
            ValueError: no downstream node has that name.
        """
        if not isinstance(record, Record):
            self._refuse(record, Record, "forward the received record, or Record(key, value, time)")
        headers = self._sendable(record.headers) if record.headers else None
        receive = self._forward if to is None else self._child(to)
        receive(record.key, record.value, None, record.timestamp, headers)


class FixedKeyProcessorContext(ProcessingContext, Generic[KOut_contra, VOut_contra]):
    """Context of a processor of ``process_values``, passed to `init`.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> def stamp(
        ...     record: FixedKeyRecord[str, str], context: FixedKeyProcessorContext[str, int]
        ... ) -> None:
        ...     context.forward(record.with_value(context.current_stream_time))
        >>> builder = StreamsBuilder()
        >>> lines = builder.stream("in", key=serdes.string, value=serdes.string)
        >>> lines.process_values(stamp).to("out", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("in").send("a", "x", timestamp=1_000)
        ...     driver.output("out").read().value
        1000
    """

    __slots__ = ()

    def forward(
        self, record: FixedKeyRecord[KOut_contra, VOut_contra], *, to: str | None = None
    ) -> None:
        """Forward a record to the downstream nodes; see `ProcessorContext.forward`.

        Args:
            record: created from a received record with its ``with_`` methods.
            to: name of the only node that receives it; None for all.

        Raises:
            TypeError: it is not a `FixedKeyRecord`: use `KStream.process` to change keys.
            ValueError: no downstream node has that name.
        """
        if not isinstance(record, FixedKeyRecord):
            advice = "forward record.with_value(...), or use process() to change keys"
            self._refuse(record, FixedKeyRecord, advice)
        headers = self._sendable(record.headers) if record.headers else None
        receive = self._forward if to is None else self._child(to)
        receive(record.key, record.value, None, record.timestamp, headers)


class Processor(Generic[KIn_contra, VIn_contra, KOut_co, VOut_co]):
    """Base class of processors, generic in the types of input and output keys and values.

    Any object with these three methods is a valid processor.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> class Swap(Processor[str, str, str, str]):
        ...     def process(self, record):
        ...         self.context.forward(record.with_key(record.value).with_value(record.key))
        >>> builder = StreamsBuilder()
        >>> pairs = builder.stream("pairs", key=serdes.string, value=serdes.string)
        >>> pairs.process(Swap).to("swapped", key=serdes.string, value=serdes.string)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("pairs").send("a", "b")
        ...     driver.output("swapped").as_dict()
        {'b': 'a'}
    """

    context: ProcessorContext[KOut_co, VOut_co]

    def init(self, context: ProcessorContext[KOut_co, VOut_co]) -> None:
        """Initialize the processor, after its stores are restored and before the first record."""
        self.context = context

    def process(self, record: Record[KIn_contra, VIn_contra]) -> None:
        """Process a record."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the processor with its task: after a commit, or after an abort, when the stores are
        closed.
        """


class FixedKeyProcessor(Generic[KIn_contra, VIn_contra, VOut_co]):
    """Base class of processors that keep keys, generic in the types of keys, values and results.

    Examples:
        >>> from headrace import StreamsBuilder, TopologyTestDriver, serdes
        >>> class Length(FixedKeyProcessor[str, str, int]):
        ...     def process(self, record):
        ...         self.context.forward(record.with_value(len(record.value)))
        >>> builder = StreamsBuilder()
        >>> words = builder.stream("words", key=serdes.string, value=serdes.string)
        >>> words.process_values(Length).to("lengths", value=serdes.long)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.input("words").send("w", "stream")
        ...     driver.output("lengths").as_dict()
        {'w': 6}
    """

    context: FixedKeyProcessorContext[Any, VOut_co]

    def init(self, context: FixedKeyProcessorContext[Any, VOut_co]) -> None:
        """Initialize the processor, after its stores are restored and before the first record."""
        self.context = context

    def process(self, record: FixedKeyRecord[KIn_contra, VIn_contra]) -> None:
        """Process a record."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the processor with its task: after a commit, or after an abort, when the stores are
        closed.
        """


def _to_ms(time: datetime | int) -> int:
    if isinstance(time, int):
        return time
    if not isinstance(time, datetime):
        raise MisuseTypeError(
            "start must be a datetime with a time zone, or an int of milliseconds since 1970, not "
            f"{type_of(time)}"
        )
    if time.tzinfo is None:
        raise MisuseValueError(f"{time} has no time zone; add a time zone, such as timezone.utc")
    return round(time.timestamp() * 1000)
