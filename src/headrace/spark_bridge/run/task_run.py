"""Run of the tasks of a Spark task over their history, in the Python worker process.

A Spark task runs one task of the topology: the same compiled program and the same `Task` class as
in a live application, over records in the order of `headrace.spark_bridge.records.packs`.
Sub-topologies that write to each other in a cycle, as in a foreign-key join, run together with all
their partitions in one Spark task. A record that one of them sends to another is processed before
the next input record, so the result is that of a live run in which no record ever waits.

Nothing here depends on time, randomness or earlier attempts, so a second attempt creates the same
rows.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from headrace.spark_bridge.cleanup import cleanup_after
from headrace.spark_bridge.errors import RecordFailedError, WallClockError
from headrace.spark_bridge.executor_errors import without_record_texts
from headrace.spark_bridge.plan.job import CompiledApplication, StageJob
from headrace.spark_bridge.plan.plan import BackfillPlan
from headrace.spark_bridge.read import OpenConsumer, consumer_opener, read_range
from headrace.spark_bridge.records.merging import merged_packs, open_packs
from headrace.spark_bridge.records.order import Block, merged, orders_of
from headrace.spark_bridge.records.outputs import AttributedRecords, Outputs, SyntheticRecord
from headrace.spark_bridge.records.packs import Label, packed_note, packs_to_arrow
from headrace.spark_bridge.records.spill import SpillingState, spill_directory
from headrace.spark_bridge.stage_watch import SparkTaskReport, SparkTaskReports, returns_errors
from headrace.state.buffers import bound_caches
from headrace.state.codec import decode_timestamped
from headrace.state.layout import is_deletion, key_and_time
from headrace.state.log import get_logger
from headrace.state.memory import MemoryTaskState
from headrace.state.timed import TimedBuffer
from headrace.streams.config.config import StreamsConfig
from headrace.streams.config.config import table as setting_table
from headrace.streams.errors import ProcessorFailedError, RecordError, describe_offsets
from headrace.streams.kafka.protocols import CommittedOffset, Log, TopicPartition
from headrace.streams.metrics.snapshots import moment
from headrace.streams.plan.plan import TaskId
from headrace.streams.tasks.async_io import LiveCalls
from headrace.streams.tasks.global_state import GlobalRows
from headrace.streams.tasks.global_tables import RowErrors
from headrace.streams.tasks.task import Task
from headrace.topology.context.calls import Caller, NoCaller
from headrace.topology.context.context import TableView
from headrace.topology.context.punctuation import Schedule
from headrace.topology.context.task_context import TaskContext, TimeKind
from headrace.topology.processors.store_wrappers import store_key

RUN_RECORDS = 5000
"""Maximum number of records that a task processes between checks of its memory."""
CHECK_RECORDS = 100
"""Minimum number of records between these checks: inputs that alternate have short runs."""
COLLECT_OBJECTS = 100_000
"""Number of new objects that triggers the next garbage collection."""


class run_stage:  # noqa: N801 - called as a function
    """Function that Spark calls for each of its partitions: takes and yields Arrow batches."""

    def __init__(self, job: StageJob, reports: SparkTaskReports) -> None:
        self._job = job
        self._reports = reports

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "not in a Spark task"
        application, plan = self._job.open()
        config = application.config
        opener = consumer_opener(config, committed=config.reads_committed)
        tables, number = consumer_opener(config), context.partitionId()
        run = StageRun(self._job, application, plan, number, opener, tables)
        error = None
        try:
            with without_record_texts(full=config.log_errors == "full"), _collector_off():
                yield from run.run(batches)
        except _RECURRING as caught:
            if not returns_errors(context, self._job.stage):
                raise
            error = "; ".join([str(caught), *getattr(caught, "__notes__", ())])
            note = Label("failed", self._job.stage[0], number, "")
            yield packs_to_arrow([packed_note(note, error.encode())])
        self._reports.add(SparkTaskReport(number, run.records, error))


_RECURRING = (RecordFailedError, ProcessorFailedError, WallClockError)
"""Errors that every attempt of a Spark task would raise."""


@contextmanager
def _collector_off() -> Iterator[None]:
    """Disable automatic garbage collection; the run decides when to collect.

    Records form no reference cycles. Because many of them are alive for a while, automatic
    collections would take as long as the processing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class StageRun:
    """Run of all tasks of a Spark task.

    Args:
        number: of the Spark partition, which is the partition of the task if the stage has a single
            sub-topology.
        open_tables: opens the consumer for topics of global tables; None uses `open_consumer`.
    """

    def __init__(
        self,
        job: StageJob,
        application: CompiledApplication,
        plan: BackfillPlan,
        number: int,
        open_consumer: OpenConsumer,
        open_tables: OpenConsumer | None = None,
    ) -> None:
        self._job = job
        self._application = application
        self._config = application.config
        self._plan = plan
        self._open_consumer = open_consumer
        self._open_tables = open_tables or open_consumer
        self._sources = {tp: i for i, tp in enumerate(plan.inputs)}
        # Sequentially, so that outputs keep the order of their records.
        self._calls = LiveCalls(batches_records=False)
        self._global_views: Mapping[str, TableView] = {}
        self._log = get_logger().bind(backfill=plan.id)
        topics = [application.plans[sub].topics for sub in job.stage]
        read_here = {topic.name for one in topics for topic in one.repartition_sources}
        written_here = {topic for one in topics for topic in one.repartition_sinks}
        delivered = read_here & written_here
        self._is_cycle = bool(delivered)
        self._has_effects = bool(written_here)
        """Whether the tasks write to repartition topics, which needs the order of causes."""
        self._outputs = Outputs(
            partitions=plan.partitions,
            internal=application.repartitions,
            delivered=delivered,
            with_sinks=job.with_sinks,
        )
        self._ids = [TaskId(job.stage[0], number)]
        if self._is_cycle:
            self._ids = application.tasks(job.stage, plan)
        self._tasks: dict[TaskId, Task] = {}
        self._reader_of: dict[TopicPartition, Task] = {}
        self._records: dict[TaskId, int] = dict.fromkeys(self._ids, 0)
        self._dropped: dict[tuple[str, str], int] = {}
        self._unchecked = 0
        """Number of records since the last check of the memory."""
        self._block = Block((), ())
        """The block that was processed last."""

    @property
    def records(self) -> int:
        """Number of processed records."""
        return sum(self._records.values())

    # -- the run -------------------------------------------------------------------------------

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process all input, sorted packs of records for these tasks, and yield all output."""
        with cleanup_after(self._close), self._explained_errors():
            self._global_views = load_global_tables(
                self._application, self._plan, self._open_tables, self._log
            )
            for task_id in self._ids:
                self._begin(task_id)
            limit = 1 if self._is_cycle else RUN_RECORDS
            for block in merged(self._inputs(batches), limit=limit):
                first = block.records[0]
                self._process(TopicPartition(first.topic(), first.partition()), block)
                self._deliver()
                if gc.get_count()[0] >= COLLECT_OBJECTS:
                    gc.collect(0)  # only new objects: the state is large and has no garbage
                if self._unchecked >= CHECK_RECORDS:
                    self._unchecked = 0
                    yield from self._outputs.take()
                    self._bound_memory()
            yield from self._end()

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        try:
            yield
        except RecordError as error:
            raise self._explained(error) from error

    def _close(self) -> None:
        tasks = self._tasks.values()
        closes = [close for task in tasks for close in (task.close, task.state.close)]
        with cleanup_after(*closes, self._calls.close):
            pass

    def _begin(self, task_id: TaskId) -> None:
        plan = self._application.plans[task_id.sub_topology]
        tps = plan.inputs(task_id.partition, self._plan.partitions)
        spec = plan.task(
            task_id.partition,
            partitions_of=partition_counter(self._plan, self._config),
        )
        specs = [store.spec for store in spec.stores]
        task = Task(
            spec=spec,
            state=SpillingState(
                specs,
                memory_bytes=self._job.memory_bytes,
                directory=spill_directory(task_id.partition),
            ),
            start={tp: CommittedOffset(self._first_offset(tp)) for tp in tps},
            send=self._outputs.sender(task_id),
            dropped=self._drop,
            handlers=self._config.handlers,
            context=task_context_of(self._config, task_id, self._plan.now_ms, self._calls),
            global_views=self._global_views,
            now_ms=lambda: self._plan.now_ms,
            log=self._log,
        )
        self._tasks[task_id] = task
        self._reader_of.update(dict.fromkeys(tps, task))
        task.begin()

    def _first_offset(self, tp: TopicPartition) -> int:
        archived = self._job.archived.get(tp)
        return archived.first if archived is not None else self._plan.starts.get(tp, 0)

    # -- input ---------------------------------------------------------------------------------

    def _inputs(self, batches: Iterator[pa.RecordBatch]) -> list[Iterator[Block]]:
        external = [tp for tp in self._reader_of if tp in self._sources]
        return [merged_packs(open_packs(batches), self._sources), *map(self._range, external)]

    def _range(self, tp: TopicPartition) -> Iterator[Block]:
        task, source = self._reader_of[tp], self._sources[tp]
        archived = self._job.archived.get(tp)
        largest = -1 if archived is None else archived.largest
        for found in read_range(
            self._open_consumer,
            tp,
            self._plan.starts[tp],
            self._plan.ends[tp],
            timeout_s=self._config.task_timeout_ms / 1000,
        ):
            records = task.assign_timestamps(tp, found)
            orders, largest = orders_of(records, source, largest)
            yield Block(records, orders)

    def _process(self, tp: TopicPartition, block: Block) -> None:
        task = self._reader_of[tp]
        records = block.records
        if isinstance(records[0], SyntheticRecord):
            records = task.assign_timestamps(tp, records)
        self._block = block
        count = len(records)
        if self._has_effects:
            records = AttributedRecords(records, block.orders, self._outputs)
        task.enqueue(tp, records)
        done = task.process(count)
        assert done == count, f"{tp}: {done} of {count} records were processed"
        self._records[task.id] += count
        self._unchecked += count
        if task.caches_bytes() > self._config.statestore_cache_max_bytes:
            task.flush()
        # Unlike live, no commit sends them.
        if task.partials_bytes(count) > self._config.statestore_uncommitted_max_bytes:
            task.send_partials()

    def _explained(self, error: RecordError) -> RecordFailedError:
        """Describe the input record of an error, and the fix; `headrace skip` is for live."""
        error.told_for(None)
        tp = TopicPartition(error.topic, error.partition)
        hint = error.hint.removeprefix("nothing past it is committed: ")
        if not error.has_own_hint:
            handler = self._handler_of(error)
            if handler is not None and handler not in hint and error.first == error.offset:
                hint += f", or set {handler}"
            if tp in self._job.archived and error.first < self._plan.starts[tp]:
                hint = f"correct the archive, or {hint}".replace(", or correct ", " or ", 1)
        if error.first < 0 and error.timestamp is not None:
            row = describe_offsets(*tp, error.first, error.offset)
            error.position = f"{row}, time {moment(error.timestamp)}"
        error.hint = hint
        return RecordFailedError(f"{error}{self._cause_of(error)}")

    def _handler_of(self, error: RecordError) -> str | None:
        """Return the setting of the handler that is called for errors of the failed node."""
        subs = [plan.program.sub_topology for plan in self._application.plans.values()]
        stages = {node.name: "processing" for sub in subs for node in sub.nodes}
        stages |= {node.name: "deserialization" for sub in subs for node in sub.sources}
        stages |= {node.name: "production" for sub in subs for node in sub.sinks}
        stage = stages.get(error.node or "")
        return None if stage is None else f"{stage}.exception.handler"

    def _cause_of(self, error: RecordError) -> str:
        """Describe the input record if the failed record itself was never in Kafka."""
        records, orders = self._block
        at = error.offset - records[0].offset() if records else -1
        if error.topic not in self._application.repartitions or not 0 <= at < len(orders):
            return ""
        _, source, offset = orders[at]
        if source < 0:
            return ""
        cause = describe_offsets(*self._plan.inputs[source], offset, offset)
        return f"; the record results from {cause}, and is not stored in {error.topic}"

    def _deliver(self) -> None:
        """Process the records that tasks of a cycle sent to each other, until none is left."""
        deliveries = self._outputs.deliveries
        while deliveries:
            tp, record, order = deliveries.popleft()
            self._process(tp, Block([record], [order]))

    # -- memory --------------------------------------------------------------------------------

    def _bound_memory(self) -> None:
        for task in self._tasks.values():
            if task.uncommitted_bytes() > self._config.statestore_uncommitted_max_bytes:
                self._flush()
                self._write(task)
        buffers = (buffer for task in self._tasks.values() for buffer in task.buffers)
        bound_caches(buffers, self._config.statestore_read_cache_max_bytes)

    def _flush(self) -> None:
        """Flush the caches of all tasks.

        Flushed records may reach another task of the same cycle, whose cache holds the results back
        again. The loop therefore repeats until all caches are empty.
        """
        is_empty = False
        while not is_empty:
            is_empty = True
            for task in self._tasks.values():
                task.flush()  # cached_updates() does not count everything that is cached
                is_empty = is_empty and not (self._outputs.deliveries or task.cached_updates())
                self._deliver()

    def _write(self, task: Task) -> None:
        task.written(task.deltas(), {}, task.offsets({}, self._commit_id))

    @property
    def _commit_id(self) -> int:
        # The live application numbers its commits from a random start, not from this number.
        return 1

    # -- the end -------------------------------------------------------------------------------

    def _end(self) -> Iterator[pa.RecordBatch]:
        self._flush()
        waiting = len(self._outputs.deliveries)
        assert waiting == 0, f"{waiting} records for tasks of this Spark task were not processed"
        yield from self._outputs.take(everything=True)
        notes = []
        for task_id, task in self._tasks.items():
            progress = task.offsets({}, self._commit_id)
            self._write(task)
            for store, tp in task.spec.changelogs.items():
                if tp in self._sources:
                    continue  # the source topic is the changelog, and already has the rows
                yield from self._outputs.add(
                    task_id, "changelog", tp.topic, changelog_rows(task, store), tp.partition
                )
            for tp, committed in progress.items():
                row = (None, committed.metadata.encode(), 0)
                yield from self._outputs.add(task_id, "progress", tp.topic, [row], tp.partition)
            stats = {
                "records": self._records[task_id],
                "on_disk": getattr(task.state, "is_on_disk", False),
                "dropped": [[*names, count] for names, count in self._dropped.items()],
            }
            self._dropped = {}
            notes.append(packed_note(Label("stats", *task_id, ""), json.dumps(stats).encode()))
        yield from self._outputs.take(everything=True)
        yield packs_to_arrow(notes)

    def _drop(self, node: str, reason: str) -> None:
        self._dropped[node, reason] = self._dropped.get((node, reason), 0) + 1


def partition_counter(plan: BackfillPlan, config: StreamsConfig) -> Callable[[str], int]:
    def partitions_of(topic: str) -> int:
        known = plan.partitions.get(topic)
        if known is not None:
            return known
        from headrace.streams.kafka.admin import LiveAdmin
        from headrace.streams.tasks.tasks import ClusterMetadata

        admin = LiveAdmin(config.admin_config(), timeout_s=config.task_timeout_ms / 1000)
        return ClusterMetadata(admin, {}, from_earliest=True).partitions_of(topic)

    return partitions_of


# Global tables, as they were at planning: a live application also reads a global table to the end
# of its topic before the first record, but the table then changes while records are processed.


def load_global_tables(
    application: CompiledApplication,
    plan: BackfillPlan,
    open_consumer: OpenConsumer | None,
    log: Log,
) -> Mapping[str, TableView]:
    """Return the global tables by node and by store; empty tables without a consumer."""
    config = application.config
    errors = RowErrors(config.handlers, config.null_key_policy, log)
    views: dict[str, TableView] = {}
    for table in application.global_plans:
        state = MemoryTaskState([table.store])
        for tp, start in plan.global_starts.items():
            if open_consumer is None or tp.topic != table.topic:
                continue
            end, timeout_s = plan.global_ends[tp], config.task_timeout_ms / 1000
            for records in read_range(open_consumer, tp, start, end, timeout_s=timeout_s):
                state.write({table.store.name: errors.rows(table, records)}, {})
        rows = GlobalRows(table, config.statestore_read_cache_max_bytes)
        rows.use(state.store(table.store.name))
        views[table.table] = views[store_key(table.store.name)] = rows
    return views


# The context of processors, without a wall clock.


@dataclass(slots=True, eq=False)
class HistoryTaskContext(TaskContext):
    """Context of a task that rejects wall-clock schedules."""

    def schedule(self, kind: TimeKind, schedule: Schedule) -> None:
        """Schedule by stream time; raise WallClockError for a wall-clock schedule."""
        if kind == "wall_clock":
            raise WallClockError(
                f"processor {schedule.node} schedules a punctuator by the wall clock, which "
                f"history does not have (task {self.task_id}). Schedule it by stream time, or "
                "backfill a topology without the processor"
            )
        TaskContext.schedule(self, kind, schedule)


def task_context_of(
    config: StreamsConfig, task_id: TaskId, now_ms: int, calls: Caller | None = None
) -> HistoryTaskContext:
    """Create the context that the processors of a task share.

    Settings of clients, which may be secret, are not passed on; `now_ms` is the same in each
    attempt.
    """
    settings = {own.name: getattr(config, own.name.replace(".", "_")) for own in setting_table()}
    return HistoryTaskContext(
        application_id=config.application_id,
        task_id=str(task_id),
        partition=task_id.partition,
        settings=settings,
        now_ms=lambda: now_ms,
        calls=NoCaller() if calls is None else calls,
    )


_VERSION_ROWS = (b"\x00", b"\x01")
"""Key range of the rows of a versioned store; its index follows them."""


def changelog_rows(task: Task, store: str) -> Iterator[tuple[bytes, bytes | None, int]]:
    """Yield key, value and timestamp of each changelog record of a store without dirty rows.

    Expired windows and sessions are skipped. In a versioned store, a deletion is a null value at
    the time of the deletion.
    """
    buffer = task.buffer(store)
    assert not buffer.dirty, f"rows of {store} are not written"
    spec = next(s.spec for s in task.spec.stores if s.name == store)
    committed = task.state.store(store)
    if spec.layout == "versioned":
        for row_key, row in committed.scan(*_VERSION_ROWS):
            key, time = key_and_time(row_key)
            yield key, None if is_deletion(row) else row[1:], time
        return
    time_of = spec.rows.time_of
    horizon = buffer.horizon if isinstance(buffer, TimedBuffer) else 0
    for key, row in spec.rows.view(committed).scan():
        if time_of is None or time_of(key) >= horizon:
            timestamp, value = decode_timestamped(row)
            yield key, value, timestamp
