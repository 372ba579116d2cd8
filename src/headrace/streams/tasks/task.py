"""A task: a sub-topology on a partition, from committed offsets to the next commit.

Hot path: `process` runs once per batch; only the generated code runs per record.

Ownership: only the task advances `next_offset` and `partition_time`, in `process`. Only its buffers
hold uncommitted rows. The local state is written by `written`, after the transaction, and by the
restore. An abort ends the task: a new task is created from committed offsets and the same local
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from headrace.state.buffer import Buffer, Coding
from headrace.state.buffers import make_buffer
from headrace.state.codec import partition_for_key
from headrace.state.errors import ValueEncodingError
from headrace.state.store import Position, TaskState
from headrace.state.timed import TimedBuffer
from headrace.streams.config.handlers import Handlers
from headrace.streams.errors import RecordTooLargeError, StreamsError
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    Consumer,
    Log,
    Offsets,
    ReceivedMessage,
    TopicPartition,
)
from headrace.streams.plan.flow import Writers
from headrace.streams.plan.plan import TaskId, TaskSpec
from headrace.streams.plan.progress import HELD, SHIFT, WATERMARK, OffsetMetadata
from headrace.streams.tasks.committed_numbers import (
    CommittedNumbers,
    MarkedRecords,
    TimesWritten,
    committed_rows,
)
from headrace.streams.tasks.failures import RecordErrors
from headrace.streams.tasks.input_queue import BatchCursor, InputQueue, RecordRun, in_order
from headrace.streams.tasks.task_failures import InputRange, corruption_of, raise_for, range_error
from headrace.topology.compile.compiler import BoundProgram
from headrace.topology.context.context import Operator, TableView
from headrace.topology.context.environment import Send, TaskEnvironment
from headrace.topology.context.punctuation import NEVER_MS
from headrace.topology.context.task_context import TaskContext
from headrace.topology.errors import LAST_TIME_MS, RefusedTimestampError
from headrace.topology.operators.combining import caches_bytes, partials_bytes, partials_in
from headrace.topology.serdes import Serde
from headrace.topology.serdes.normalise import exact_types, normalised, normaliser
from headrace.topology.timestamps import TimestampAssigner

# Buffers of a task's stores: creation, and the rows that a commit reads from them.


Delta = list[tuple[bytes, "bytes | None", int]]
_NULL = frozenset({type(None)})
LocalRows = Sequence[tuple[bytes, "bytes | None"]]


def buffers_of(spec: TaskSpec, state: TaskState) -> dict[str, Buffer]:
    buffers = {}
    for store in spec.stores:
        serde, stored_form = spec.value_serdes[store.name], spec.program.stored_forms[store.name]
        # With a handler, a record whose row cannot be encoded is skipped, so check immediately.
        checks = spec.program.options.handles_errors and stored_form == "bytes"
        coding = Coding(
            encode=serde.serialize,
            decode=serde.deserialize,
            stored_form=stored_form,
            exact=_NULL if checks else exact_types(serde),
            keep=partial(_checked, serde) if checks else normaliser(serde),
        )
        buffers[store.name] = make_buffer(store.spec, state.store(store.name), coding)
    return buffers


def _checked(serde: Serde[Any], value: Any) -> Any:
    """Return the stored form of a value; raise if the value cannot be encoded."""
    serde.serialize(value)
    return normalised(serde, value)


def local_rows(buffers: Mapping[str, Buffer], deltas: Mapping[str, Delta]) -> dict[str, LocalRows]:
    """Return the rows to write to local state: changed rows and expired rows."""
    rows: dict[str, LocalRows] = {}
    for name, buffer in buffers.items():
        changed = buffer.local_rows(deltas.get(name, []))
        if changed:
            rows[name] = changed
    return rows


@dataclass(slots=True, eq=False)
class Task:
    """A sub-topology on a partition: queues, generated function, stores, uncommitted state."""

    spec: TaskSpec
    state: TaskState
    start: Offsets
    """The committed offset of each input partition, or its first offset if nothing was committed.
    """
    send: Send
    dropped: Callable[[str, str], None]
    handlers: Handlers = field(default_factory=Handlers)
    context: TaskContext = field(default_factory=TaskContext)
    """State that its processors share."""
    global_views: Mapping[str, TableView] = field(default_factory=dict)
    now_ms: Callable[[], int] = lambda: 0
    record_limit: Callable[[str], int | None] = lambda _: None
    """Returns the maximum record size of a topic in bytes, if known."""
    max_ahead_ms: int = LAST_TIME_MS
    """Maximum distance of a timestamp ahead of the clock that its output topics accept."""
    log: Log | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The IDs of its input topics, if known."""
    changelog_ids: Mapping[str, str] = field(default_factory=dict)
    """The IDs of its changelogs."""
    followed: frozenset[str] = frozenset()
    """Input repartition topics with watermarks from their upstream tasks."""
    is_time_bounded: bool = False
    """Whether its stream time is limited by these watermarks."""
    partition_for_key: Callable[[bytes, int], int] = partition_for_key
    """Returns the default partition of a serialized key, from the partition count."""
    repartitions: Mapping[str, Writers] = field(default_factory=dict)
    """Output repartition topics whose readers use the event time of this task."""
    is_committed: bool = True
    """Whether its offsets need no commit until something happens."""
    next_offset: dict[TopicPartition, int] = field(init=False)
    partition_time: dict[TopicPartition, int] = field(init=False)
    last_read: dict[TopicPartition, ReceivedMessage] = field(default_factory=dict)
    """The last processed record of each input."""
    moved: bool = False
    """Whether records were processed, or control records passed, since the last commit."""
    _failed_ends: dict[TopicPartition, int] = field(init=False)
    """Like `next_offset`, for a batch that failed."""
    _cursor: BatchCursor = field(default_factory=BatchCursor)
    _reading: BatchCursor | RecordRun | None = None
    """The batch that is being processed."""
    _undecodable: set[int] = field(default_factory=set)
    """Offsets of its records that were skipped because they cannot be decoded."""
    _highest_ms: int = -1
    """Timestamps up to this time are not too far ahead of the clock; later timestamps may be."""
    _too_far_ahead: dict[TopicPartition, range] = field(default_factory=dict)
    """By input: the first record since the last commit that is too far ahead of the clock."""
    _queues: dict[TopicPartition, InputQueue] = field(init=False)
    _buffers: dict[str, Buffer] = field(init=False)
    _bound: BoundProgram = field(init=False)
    _process_of: Mapping[TopicPartition, Callable[[Iterable[ReceivedMessage]], int]] = field(
        init=False
    )
    _numbers: CommittedNumbers = field(init=False)
    watermarks: dict[TopicPartition, int] = field(init=False)
    """By repartition topic: the time up to which no record is outstanding."""
    _times_written: TimesWritten = field(init=False)
    _marked_records: MarkedRecords = field(init=False)
    _assigners: dict[TopicPartition, TimestampAssigner] = field(init=False)
    _emitting: Sequence[Operator] = field(init=False)
    """The operators that emit results of earlier records when time advances."""
    _closes_idle: bool = False
    """Whether the windows of an idle task are being closed, over several commits."""

    def __post_init__(self) -> None:
        progress = {tp: OffsetMetadata.decode(c.metadata) for tp, c in self.start.items()}
        self.next_offset = {tp: committed.offset for tp, committed in self.start.items()}
        self._failed_ends = {}
        self.partition_time = {tp: p.partition_time for tp, p in progress.items()}
        self._queues = {tp: InputQueue() for tp in self.start}
        self._buffers = buffers_of(self.spec, self.state)
        self._numbers = CommittedNumbers(progress, self.topic_ids)
        self._marked_records = MarkedRecords(progress, str(self.id), self.log)
        self._times_written = TimesWritten(self.repartitions, self.context)
        self.send = self._times_written.following(self.send)
        errors = self._record_errors()
        self.watermarks = {
            # Commit unknown watermarks as 0: their presence distinguishes stream.time=slowest.
            tp: max(0, p.values.get(WATERMARK, 0))
            for tp, p in progress.items()
            if tp.topic in self.followed
        }
        if self.is_time_bounded:
            # Until it is known whether the other inputs have more records, they may have.
            others = [self.partition_time[tp] for tp in self.unfollowed]
            self.context.watermark = min(self.watermark, *others, NEVER_MS)
        latest = max(self.partition_time.values(), default=-1)
        self.context.stream_time = min(latest, self.context.watermark)
        self.context.failed, self.context.on_row_rejected = (
            errors.punctuator_failed,
            errors.decide_rejected_row,
        )
        self._bound = self._bind(errors)
        self._process_of = {tp: self._bound.process[tp.topic] for tp in self.start}
        operators = self._bound.operators.values()
        self._emitting = [operator for operator in operators if operator.emits_earlier]
        self._times_written.begin(self.id.sub_topology, self._bound.operators, self._numbers.number)
        self._numbers.discard(WATERMARK, HELD, SHIFT)  # numbers without an operator are outdated
        of_inputs = [WATERMARK] if self.followed else []
        self._numbers.require_room(self.id, self.changelog_ids, self.log, of_inputs=of_inputs)
        self._assigners = {
            tp: self._bound.stampers[tp.topic](self.partition_time[tp])
            for tp in self.start
            if tp.topic in self._bound.stampers
        }

    def _bind(self, errors: RecordErrors) -> BoundProgram:
        environment = TaskEnvironment(
            self.send,
            self._buffers,
            self.dropped,
            number=self._numbers.number,
            partitions_of=self.spec.partitions_of,
            partition_for_key=self.partition_for_key,
            task=self.context,
            global_views=self.global_views,
            failed=errors.failed,
            let_go=errors.let_go,
            undecodable=partial(self._skip_undecodable, errors),
            now_ms=self.now_ms,
        )
        try:
            return self.spec.program.bind(environment)
        except BaseException as error:
            if not self.spec.program.called(error, None, likely=False):
                raise  # no supplier of the user failed
            self._raise(error)

    def _skip_undecodable(
        self, errors: RecordErrors, node: str, error: Exception, message: ReceivedMessage
    ) -> None:
        errors.decide_undecodable(node, error, message)
        self._undecodable.add(message.offset())

    def _record_errors(self) -> RecordErrors:
        return RecordErrors(
            self.handlers,
            self.spec.program,
            str(self.id),
            self.send,
            self.dropped,
            self._raise,
            self.current,
            self.context,
            self.record_limit,
            self.log,
        )

    @property
    def id(self) -> TaskId:
        return self.spec.id

    @property
    def inputs(self) -> Sequence[TopicPartition]:
        return tuple(self.start)

    @property
    def batches_records(self) -> bool:
        """Whether its runs end after async calls, and need no other limit."""
        return self._bound.batches_records and self.context.calls.batches_records

    @property
    def external_inputs(self) -> Sequence[TopicPartition]:
        return [tp for tp in self.start if tp.topic not in self.spec.internal_topics]

    def begin(self) -> None:
        """Start the processors: the state is complete, and records come next."""
        for buffer in self._buffers.values():
            buffer.detect_empty_store()
        try:
            self.context.start()
        except BaseException as error:
            self._raise(error, self.context.node)

    # -- input -------------------------------------------------------------------------------

    def add(self, tp: TopicPartition, records: Sequence[ReceivedMessage]) -> None:
        remaining = self._marked_records.of(tp, records)
        if remaining:
            self.enqueue(tp, self.assign_timestamps(tp, remaining))
        if remaining is not records:
            self.moved = True  # commit past the skipped records

    def assign_timestamps(
        self, tp: TopicPartition, records: Sequence[ReceivedMessage]
    ) -> Sequence[ReceivedMessage]:
        """Assign record timestamps by the input's extractor; call it once per record, in order."""
        assigner = self._assigners.get(tp)
        return records if assigner is None else assigner.stamp(records)

    def enqueue(self, tp: TopicPartition, records: Sequence[ReceivedMessage]) -> None:
        """Queue records returned by `assign_timestamps`; the batch is iterated, not copied."""
        queue = self._queues[tp]
        expected = queue.last_offset() + 1 if queue else self.next_offset[tp]
        assert records[0].offset() >= expected, f"{tp} went back to {records[0].offset()}"
        queue.extend(records)

    def queued(self) -> int:
        return sum(map(len, self._queues.values()))

    def queued_in(self, tp: TopicPartition) -> int:
        return len(self._queues[tp])

    def heads(self) -> list[ReceivedMessage]:
        return [queue.head() for queue in self._queues.values() if queue]

    def empty_inputs(self) -> list[TopicPartition]:
        return [tp for tp, queue in self._queues.items() if not queue]

    # -- processing --------------------------------------------------------------------------

    def process(self, max_records: int) -> int:
        """Run queued records with the lowest timestamps; return the number of records.

        Records of a partition keep their order; across partitions, the lowest head timestamp is
        first (Kafka Streams: `PartitionGroup`). Ends early if an input of several becomes empty,
        because its next record may precede records of the other inputs.

        Results of closed windows that the last commit has left are emitted first; if more is left
        for the next commit, no record is processed before that.
        """
        self.emit_remaining()
        done = 0
        while done < max_records and not self.context.emission.is_spent:
            waiting = [tp for tp, queue in self._queues.items() if queue]
            if not waiting:
                break
            if len(waiting) > 1:
                context, emission = self.context, self.context.emission
                for tp, batch in in_order(self._queues, waiting, max_records - done):
                    done += self._run(tp, batch)
                    if context.run_ended_early or emission.is_spent:
                        break
                break
            batch = self._queues[waiting[0]].take(max_records - done)
            done += self._run(waiting[0], batch)
            if self.context.run_ended_early:
                break
        return done

    def _run(self, tp: TopicPartition, batch: Sequence[ReceivedMessage]) -> int:
        """Process records of an input. Hot path: two inputs may alternate at each record."""
        records: Iterable[ReceivedMessage]
        batches_records = self.batches_records
        if batches_records or (self._emitting and self.context.emission.is_bounded):
            records = RecordRun(batch, self.context, batches_records=batches_records)
            self._reading = records
        else:
            self._reading = self._cursor
            records = self._cursor.start(batch)
        if self._undecodable:
            self._undecodable.clear()
        last = batch[-1]
        try:
            stream_time = self._process_of[tp](records)
        except BaseException as error:  # also SystemExit: it would recur after a restart
            self._failed_ends[tp] = last.offset() + 1
            self._find_too_far_ahead(tp, batch)
            self._raise(error)
        self._reading = None
        if isinstance(records, RecordRun):
            batch = records.ended(self._queues[tp])
            last = batch[-1]
        self.moved = True
        self.last_read[tp] = last
        self.next_offset[tp] = last.offset() + 1
        if stream_time > self._highest_ms:
            self._find_too_far_ahead(tp, batch)
        if stream_time > self.partition_time[tp]:
            self.partition_time[tp] = stream_time
        return len(batch)

    def current(self) -> ReceivedMessage | None:
        """Return the message that is being processed, or None."""
        if self.context.batched is not None:
            message: ReceivedMessage | None = self.context.batched.message
            return message
        reading = self._reading
        return reading.batch[reading.count - 1] if reading is not None and reading.count else None

    def batch_time(self) -> int:
        """Return the largest timestamp of the current batch so far, or -1."""
        reading, skipped = self._reading, self._undecodable
        read = () if reading is None else reading.batch[: reading.count]
        return max((m.timestamp()[1] for m in read if m.offset() not in skipped), default=-1)

    def _find_too_far_ahead(self, tp: TopicPartition, batch: Sequence[ReceivedMessage]) -> None:
        """Remember the first record whose timestamp the output topics may reject."""
        self._highest_ms = self.now_ms() + self.max_ahead_ms
        if tp not in self._too_far_ahead:
            times = ((message.timestamp()[1], message.offset()) for message in batch)
            far = next((offset for time, offset in times if time > self._highest_ms), None)
            if far is not None:
                self._too_far_ahead[tp] = range(far, far + 1)

    # -- the clock ---------------------------------------------------------------------------

    def is_due(self) -> bool:
        due_ms = self.context.wall_due_ms
        return due_ms != NEVER_MS and due_ms <= self.context.now_ms()

    def punctuate(self) -> None:
        try:
            self.context.punctuate(self.context.now_ms())
        except BaseException as error:
            self._raise(error)
        self.moved = True

    def _raise(self, error: BaseException, node: str | None = None, record: Any = None) -> NoReturn:
        record = self.current() if record is None else record
        raise_for(error, self.spec, self.input_range, node, record)

    def input_range(self) -> InputRange:
        """Return the input range processed since the last commit, to attribute an error to it."""
        ends = {**self.next_offset, **self._failed_ends}
        ranges = {p: range(c.offset, ends[p]) for p, c in self.start.items()}
        moved = {tp: offsets for tp, offsets in ranges.items() if offsets}
        sinks = self.spec.program.sub_topology.sinks
        begins = {tp: c.offset for tp, c in self.start.items()}
        times = dict(self.partition_time)
        far = dict(self._too_far_ahead)
        return InputRange(str(self.id), moved, self.spec.changelogs, sinks, begins, times, far)

    # -- the commit --------------------------------------------------------------------------

    def passed(self, positions: Mapping[TopicPartition, int]) -> None:
        """Request a commit if inputs have advanced past control records only."""
        for tp, committed in self.start.items():
            if positions.get(tp, 0) > committed.offset and not self._queues[tp]:
                self.moved = True

    def needs_commit(self) -> bool:
        if self.moved or not self.is_committed:
            return not self.context.has_collected_rows
        return any(buffer.dirty for buffer in self._buffers.values())

    def uncommitted_bytes(self, copies: int = 0) -> int:
        """Estimate the memory of uncommitted rows and of a number of copies of them."""
        return sum(buffer.uncommitted_bytes(copies) for buffer in self._buffers.values())

    @property
    def buffers(self) -> Iterable[Buffer]:
        return self._buffers.values()

    def cached_updates(self) -> int:
        """Return the number of cached updates."""
        return sum(map(len, self._bound.pending))

    def caches_bytes(self) -> int:
        return caches_bytes(self._bound.pending)

    def partials_bytes(self, records: int) -> int:
        """Estimate the memory of partial aggregates; `records` count since the last call."""
        return partials_bytes(self._bound.pending, records)

    def send_partials(self) -> None:
        for partial_aggregates in partials_in(self._bound.pending):
            try:
                partial_aggregates.send()
            except BaseException as error:
                self._raise(error, partial_aggregates.node)

    def flush(self) -> None:
        try:
            self._bound.flush()
        except BaseException as error:
            self._raise(error)

    @property
    def watermark(self) -> int:
        return min(self.watermarks.values(), default=NEVER_MS)

    @property
    def unfollowed(self) -> Sequence[TopicPartition]:
        return [tp for tp in self.start if tp not in self.watermarks]

    def advance_watermarks(self, times: Mapping[TopicPartition, int], limit: int) -> None:
        """Advance the watermarks of inputs, and stream time to their minimum and `limit`."""
        self.watermarks.update(times)
        self.moved = True
        time = min(self.watermark, limit)
        if not self.is_time_bounded or time <= self.context.watermark:
            return
        self.context.watermark = time
        try:
            self._advance_operators(time)
        except BaseException as error:
            self._raise(error)

    def _advance_operators(self, time: int) -> None:
        """Advance the operators, upstream first, until an operator has results left."""
        operators = self._bound.operators.values()
        emits = any(operator.is_due(time) for operator in operators) or self.has_remaining_results()
        for operator in operators:
            while emits and self.cached_updates():
                self._bound.flush()
            if operator.has_remaining_results():
                operator.emit_remaining()
            operator.advance(time)
            if operator.has_remaining_results():
                return
        self.context.advance(time)

    def has_remaining_results(self) -> bool:
        """Return whether results of closed windows and the like wait for the next commit."""
        return self._closes_idle or any(op.has_remaining_results() for op in self._emitting)

    def emit_remaining(self) -> None:
        """Emit results left by the last commit, if any, within the budget of the next commit."""
        if not self.has_remaining_results():
            return
        if self._closes_idle:
            self.close_idle()
            return
        before = self.context.emission.count
        try:
            if self.is_time_bounded:
                self._advance_operators(self.context.watermark)
            else:
                for operator in self._emitting:
                    if operator.has_remaining_results():
                        operator.emit_remaining()
        except BaseException as error:
            self._raise(error)
        self.moved = self.moved or self.context.emission.count != before

    def waiting_operators(self) -> list[str]:
        """Return the names of operators with results that wait for a later stream time."""
        found = self._bound.operators.items()
        return [name for name, op in found if op.earliest_waiting() is not None]

    def close_idle(self) -> None:
        """Close all open windows as if stream time passed them, within the commit's budget."""
        self.moved = self._closes_idle = True
        for operator in self._bound.operators.values():
            while self.cached_updates():
                self.flush()
            try:
                if operator.has_remaining_results():
                    operator.emit_remaining()
                operator.close_idle()
            except BaseException as error:
                self._raise(error)
            if operator.has_remaining_results():
                return
        self._closes_idle = False

    def deltas(self) -> dict[str, Delta]:
        """Encode the rows that changed since the last commit, by store."""
        try:
            return {name: b.delta() for name, b in self._buffers.items() if b.dirty}
        except ValueEncodingError as error:
            raise range_error(
                self.input_range(), str(error), node=None, store=error.store
            ) from error
        except Exception:
            raise
        except BaseException as error:  # of a serde of the user
            self._raise(error)

    def oldest_times(self) -> dict[str, int]:
        """Return the earliest time that the next commit writes, by windowed store."""
        times = {}
        for name, buffer in self._buffers.items():
            if isinstance(buffer, TimedBuffer) and (oldest := buffer.oldest_written()) is not None:
                times[name] = oldest
        return times

    def row_refused(
        self, store: str, error: RecordTooLargeError | RefusedTimestampError
    ) -> StreamsError:
        input_range = self.input_range()
        if isinstance(error, RefusedTimestampError):
            input_range = input_range.for_its_time()
        return range_error(input_range, str(error), node=None, store=store)

    def offsets(self, positions: Mapping[TopicPartition, int], commit_id: int) -> Offsets:
        """Return the offsets to commit: for empty queues `positions`, past control records."""
        self._times_written.note()
        values = self._numbers.values((tp.topic for tp in self.start), commit_id)
        result = {}
        for tp, offset in self.next_offset.items():
            if not self._queues[tp]:
                offset = max(offset, positions.get(tp, offset))
            numbers = {**values, **self._marked_records.values(tp, offset)}
            if tp in self.watermarks:
                numbers[WATERMARK] = self.watermarks[tp]
            progress = self._numbers.progress(tp.topic, self.partition_time[tp], numbers)
            result[tp] = CommittedOffset(offset, progress.encode())
        return result

    def written(
        self, deltas: Mapping[str, Delta], positions: Mapping[str, Position], offsets: Offsets
    ) -> None:
        """Write the rows of a committed transaction to the local state, and reset the task."""
        with corruption_of(self.id):
            rows = local_rows(self._buffers, deltas)  # also reads, if rows expire
            if rows or positions:
                self.state.write(rows, positions)
        for name in deltas:
            self._buffers[name].committed()
        self.start = offsets
        self.next_offset = {tp: committed.offset for tp, committed in offsets.items()}
        self._too_far_ahead.clear()
        self.moved = False
        self.is_committed = True
        self.context.longest_call = None

    # -- reading from outside ----------------------------------------------------------------

    def rows(
        self,
        store: str,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        committed: bool = False,
    ) -> Iterable[tuple[bytes, Any, int]]:
        """Yield ``(key bytes, value, timestamp)`` in the order of the keys; `end` is exclusive."""
        if not committed:
            yield from self._buffers[store].scan(start, end)
            return
        decode = self.spec.value_serdes[store].deserialize
        layout, buffer = self.spec.layout(store), self._buffers[store]
        # Expired rows may still be on disk.
        horizon = buffer.horizon if isinstance(buffer, TimedBuffer) else 0
        rows = layout.view(self.state.store(store))
        for row in committed_rows(rows, decode, start, end):
            if layout.time_of is None or layout.time_of(row[0]) >= horizon:
                yield row

    def buffer(self, store: str) -> Buffer:
        return self._buffers[store]

    def close(self) -> list[tuple[str, BaseException]]:
        """End the task; return errors of processors by node. The local state stays open."""
        failures = self.context.close()
        for buffer in self._buffers.values():
            buffer.discard()
        return failures


def lags_of(
    task: Task, consumer: Consumer, inputs: Sequence[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Return how many offsets of each input the broker is known to have after the queued records.

    The position is past control records and aborted records, which are never delivered.
    """
    positions = consumer.positions(inputs)
    return {tp: consumer.lag(tp, max(positions.get(tp, 0), task.next_offset[tp])) for tp in inputs}
