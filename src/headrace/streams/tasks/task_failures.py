"""Attribution of a task's errors to input records."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from headrace.state.errors import StoreCorruptedError
from headrace.streams.config.handlers import HandlerFailedError
from headrace.streams.errors import (
    ProcessorFailedError,
    RecordError,
    RecordRefusedError,
    RecordTooLargeError,
    StreamsError,
    TaskCorruptedError,
    describe_offsets,
)
from headrace.streams.kafka.offset_texts import advice, format_time
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.plan.plan import TaskId, TaskSpec
from headrace.topology.errors import (
    BadRecordError,
    BufferFullError,
    CallError,
    EarlierRecordError,
    NullKeyError,
    PartialError,
    RefusedTimestampError,
    RegistryError,
    ReturnedError,
    SerdeError,
    TopologyError,
)
from headrace.topology.external_sink import SinkRefusedError
from headrace.topology.functions import is_ours
from headrace.topology.graph.graph import Sink
from headrace.topology.serdes.partials import describe_partial

# Attribution of an error to a range of offsets if the exact record is unknown.
#
# Rows are encoded at the commit, and brokers answer some time after a record was sent: any record
# since the last commit may have caused the error.


Ranges = Mapping[TopicPartition, range]


@dataclass(frozen=True, slots=True)
class InputRange:
    """Input processed by a task since its last commit, and the task's outputs.

    Args:
        ranges: the offsets processed since the last commit, by input partition.
        changelogs: the changelog partition of each of its stores.
        begins: the committed offset of each input partition.
        times: the largest timestamp of each input partition.
        far: the first record of each input partition since the last commit whose timestamp the
            output topics may reject.
    """

    task_id: str
    ranges: Ranges
    changelogs: Mapping[str, TopicPartition]
    sinks: Sequence[Sink] = ()
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    far: Ranges = field(default_factory=dict)

    def for_its_time(self) -> InputRange:
        return replace(self, ranges=self.far or self.ranges)

    def outputs_to(self, error: RecordRefusedError) -> tuple[list[str], list[str]]:
        """Return the stores and the sinks that write to the partition of a rejected record."""
        stores = [
            store
            for store, (topic, partition) in self.changelogs.items()
            if topic == error.topic and error.partition in (partition, None)
        ]
        return stores, [sink.name for sink in self.sinks if _writes(sink, error.topic)]


def _writes(sink: Sink, topic: str | None) -> bool:
    if callable(sink.topic) or topic is None:
        return True
    return topic.endswith(f"-{sink.topic}") if sink.internal else topic == sink.topic


def refused_record(
    candidates: Sequence[InputRange], error: RecordRefusedError, *, now_ms: int
) -> StreamsError:
    """Return the error for a record that was rejected after its send, with its possible input."""
    moved = [candidate for candidate in candidates if candidate.ranges] or list(candidates)
    origins = [candidate for candidate in moved if any(candidate.outputs_to(error))] or moved
    stores = {store for origin in origins for store in origin.outputs_to(error)[0]}
    sinks = {sink for origin in origins for sink in origin.outputs_to(error)[1]}
    ranges = {tp: offsets for origin in origins for tp, offsets in origin.ranges.items()}
    message = str(error)
    if error.for_its_time:
        times = {p: ms for o in origins for p, ms in o.times.items() if ms > now_ms and p in ranges}
        # If inputs have timestamps in the future, attribute the error to these inputs.
        ranges = {tp: ranges[tp] for tp in times} or ranges
        ranges = {p: r for origin in origins for p, r in origin.far.items()} or ranges
        if times:
            message += f"; the latest time that was read is {format_time(max(times.values()))}"
        message += f"; {advice(error.topic)}"
    task_ids = ", ".join(sorted({origin.task_id for origin in origins}))
    return range_error(
        InputRange(task_ids, ranges, {}),
        message,
        node=sinks.pop() if len(sinks) == 1 and not stores else None,
        store=stores.pop() if len(stores) == 1 else None,
    )


def range_error(
    input_range: InputRange, message: str, *, node: str | None, store: str | None
) -> StreamsError:
    """Return an error that names ranges of offsets, because the exact record is unknown.

    Without any input the error is a processor's, because processors also write by the clock.
    """
    ranges, task_id = input_range.ranges, input_range.task_id
    if not ranges:
        return ProcessorFailedError(message, node=node, store=store, task_id=task_id)
    tp = max(ranges, key=lambda p: len(ranges[p]))
    words = " or ".join(_records(p, offsets) for p, offsets in sorted(ranges.items()))
    return RecordError(
        f"{message}; it was written by {words}",
        topic=tp.topic,
        partition=tp.partition,
        offset=ranges[tp][-1],
        first=ranges[tp][0],
        node=node,
        store=store,
        task_id=task_id,
    )


def _records(tp: TopicPartition, offsets: range) -> str:
    if offsets and offsets[0] < 0:
        return describe_offsets(*tp, offsets[0], offsets[-1])
    if len(offsets) == 1:
        return f"the record at offset {offsets[0]} of {tp}"
    return f"a record between offsets {offsets[0]} and {offsets[-1]} of {tp}"


_SAFE_TEXTS = (
    BadRecordError,
    SerdeError,
    RegistryError,
    TopologyError,
    RecordTooLargeError,
    HandlerFailedError,
    SinkRefusedError,
)
"""Errors whose text is specific and quotes no record, so it is shown unchanged."""

GetInputRange = Callable[[], InputRange]
"""Returns the input range since the last commit."""


def raise_for(
    error: BaseException, spec: TaskSpec, get_range: GetInputRange, node: str | None, record: Any
) -> NoReturn:
    """Raise an error that names the record; client errors are raised unchanged."""
    if not isinstance(error, Exception) and not _is_user_error(error):
        raise error
    if isinstance(error, StreamsError) and not isinstance(error, RecordTooLargeError):
        raise error
    if isinstance(error, StoreCorruptedError):
        raise TaskCorruptedError([str(spec.id)], str(error)) from error
    if node is None:
        node = spec.program.node_of(error.__traceback__)
    # An error of a handler for undecodable bytes is not an error of the serde.
    is_explained = isinstance(error, (HandlerFailedError, RecordTooLargeError))
    cause: BaseException = error
    if isinstance(error, Exception) and not is_explained:
        cause = spec.program.explain(error, node, record)
    failure = _record_error(spec, get_range, cause, node, record)
    likely = isinstance(cause, (ReturnedError, CallError)) or not isinstance(cause, _SAFE_TEXTS)
    if isinstance(error, HandlerFailedError):
        failure.functions = error.locations
    else:
        raised = error.error if isinstance(error, EarlierRecordError) else error
        failure.functions = spec.program.called(raised, node, likely=likely)
    raise failure from cause


def _record_error(
    spec: TaskSpec, get_range: GetInputRange, error: BaseException, node: str | None, record: Any
) -> StreamsError:
    message = _what_happened(error) + _of_partial(spec, error, record)
    store = error.store if isinstance(error, NullKeyError) else _store_of(spec, node)
    message += _of_row(error, store)
    if record is None:
        input_range = get_range()
        if isinstance(error, RefusedTimestampError):
            input_range = input_range.for_its_time()
        if input_range.ranges != input_range.far:
            message += _of_folded(spec, node)
        return range_error(input_range, message, node=node, store=store)
    return RecordError(
        message,
        topic=record.topic(),
        partition=record.partition(),
        offset=record.offset(),
        timestamp=record.timestamp()[1],
        node=node,
        store=store,
        task_id=str(spec.id),
        hint=_hint(error, store),
        unread=isinstance(error, (SerdeError, RegistryError))
        and any(source.name == node for source in spec.program.sub_topology.sources),
    )


def _of_partial(spec: TaskSpec, error: BaseException, record: Any) -> str:
    if record is None or record.topic() not in spec.internal_topics:
        return ""
    description = describe_partial(record.headers(), record.value())
    return (
        ""
        if description is None or isinstance(error, PartialError)
        else f"; the record is {description}"
    )


def _of_row(error: BaseException, store: str | None) -> str:
    if not _is_unread_row(error, store):
        return ""
    return f"; these may be bytes of a row of store {store!r} that another version has written"


def _is_unread_row(error: BaseException, store: str | None) -> bool:
    return isinstance(error, SerdeError) and "cannot decode" in str(error) and store is not None


def _hint(error: BaseException, store: str | None) -> str | None:
    """Return the fix if skipping the record does not help, else None."""
    if isinstance(error, EarlierRecordError):
        then = "correct the function, and do not skip this record"
    elif isinstance(error, BufferFullError):
        then = "raise the bound of its BufferConfig, or emit early if results need not be final"
    elif _is_unread_row(error, store):
        then = f"run the version that wrote store {store!r}, or give the store another name"
    else:
        return None
    return f"nothing past it is committed: {then}"


def _of_folded(spec: TaskSpec, node: str | None) -> str:
    sinks = [n.as_sink for n in spec.program.sub_topology.nodes if n.name == node]
    if not any(sink is not None and sink.combines is not None for sink in sinks):
        return ""
    return "; it aggregates several records: set topology.optimization=none to find the record"


def _store_of(spec: TaskSpec, node: str | None) -> str | None:
    nodes = spec.program.sub_topology.nodes
    return next((s for n in nodes if n.name == node for s in n.stores), None)


@contextmanager
def corruption_of(task_id: TaskId) -> Iterator[None]:
    """Convert `StoreCorruptedError` to a `TaskCorruptedError` that names the task."""
    try:
        yield
    except StoreCorruptedError as error:
        raise TaskCorruptedError([str(task_id)], str(error)) from error


def _is_user_error(error: BaseException) -> bool:
    """Return whether user code raised an error that is not an `Exception`.

    Ctrl-C may occur anywhere; errors that end a test or a simulated process are of this package.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if isinstance(error, SystemExit):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and not is_ours(str(frames[-1].f_globals.get("__name__", "")))


def _what_happened(error: BaseException) -> str:
    """Describe an error, without its text if a user function may have quoted the record."""
    if isinstance(error, _SAFE_TEXTS):
        return str(error)
    if not isinstance(error, Exception):
        return (
            f"a user function raised {type(error).__name__}, which ends the application without a "
            "call of a handler; raise an Exception to fail only the record"
        )
    return f"a user function raised {type(error).__name__}"
