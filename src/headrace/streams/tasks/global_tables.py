"""Global tables of a process: read to the ends of their topics at start, then kept up to date.

    bootstrap ─► update, before each batch of records ─► close

All of this runs in the worker's own thread. No row changes between two updates, so a task sees the
same rows for all records of a batch. Global tables are not part of commits: an abort does not roll
back their updates, and a record that is processed again may find different rows. As in Kafka
Streams, global tables are outside of the transaction and of the exactly-once guarantee.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.state.errors import StoreCorruptedError
from headrace.state.store import CommittedStore, LastRecord, Position
from headrace.streams.config.dead_letter_headers import user_error
from headrace.streams.config.handlers import Continue, Failure, HandlerFailedError, Handlers
from headrace.streams.errors import (
    FatalClientError,
    GlobalTableLostError,
    OffsetLostError,
    RecordError,
    StopRequestedError,
)
from headrace.streams.kafka.protocols import (
    Clock,
    Consumer,
    Log,
    Probe,
    ReceivedMessage,
    TopicDescription,
    TopicPartition,
)
from headrace.streams.plan.global_plan import GlobalPlan
from headrace.streams.plan.identity import last_read
from headrace.streams.tasks.failures import is_log_worthy, is_ours, origin_of
from headrace.streams.tasks.global_state import (
    GlobalRows,
    GlobalState,
    Row,
    TableProgress,
    row_of,
    stores_of_tables,
)
from headrace.streams.tasks.restore import (
    BULK_RECORDS,
    FLUSH_RECORDS,
    ChangelogDescription,
    RestoreListener,
    plan_restore,
)
from headrace.streams.tasks.tasks import ClusterMetadata, TaskHome
from headrace.topology.compile.codegen import NullKeyPolicy
from headrace.topology.context.context import TableView
from headrace.topology.errors import NullKeyError, RegistryError, SerdeError
from headrace.topology.processors.store import Store
from headrace.topology.processors.store_wrappers import store_key

# Handling of records of a global topic that cannot be decoded to rows.


_HINT = (
    "no stream was read past it: correct the serde, or write another record under the key and "
    "delete this record, or set deserialization.exception.handler"
)


class RowErrors:
    """Decoder of global-table rows; asks the deserialization handler about records that fail.

    Dead letters are not written: every process reads the topic, from its beginning if it has no
    local state, and these reads are not part of a transaction.
    """

    def __init__(self, handlers: Handlers, null_key_policy: NullKeyPolicy, log: Log) -> None:
        self._handlers = handlers
        self._null_key_policy = null_key_policy
        self._log = log
        self.dropped: dict[tuple[str, str], int] = {}
        """Number of dropped records, by node and reason."""

    def rows(self, plan: GlobalPlan, records: Sequence[ReceivedMessage]) -> list[Row]:
        """Decode records to rows; raise a `RecordError` for a record that no handler skips."""
        rows = []
        for record in records:
            try:
                row = row_of(plan, record)
            except Exception as error:
                self._decide(plan, record, error)
                continue
            if row is None:
                self._drop_without_key(plan, record)
            else:
                rows.append(row)
        return rows

    def _drop_without_key(self, plan: GlobalPlan, record: ReceivedMessage) -> None:
        if self._null_key_policy != "drop":
            raise _refused(plan, record, NullKeyError(plan.table, plan.store.name))
        self._drop(plan.table, "null key")

    def _decide(self, plan: GlobalPlan, record: ReceivedMessage, error: Exception) -> None:
        if isinstance(error, RegistryError):
            raise _refused(plan, record, error) from error
        failure = Failure(
            error,
            stage="deserialization",
            node=plan.source,
            task_id="global",
            **origin_of(record),
        )
        try:
            answer = self._handlers.answer(failure)
        except HandlerFailedError as handler_error:
            raise _refused(plan, record, handler_error) from handler_error
        if not isinstance(answer, Continue):
            raise _refused(plan, record, error) from error
        count = self._drop(plan.source, "it cannot be decoded")
        if not is_log_worthy(count):
            return
        self._log.warning(
            "record_skipped",
            topic=record.topic(),
            partition=record.partition(),
            offset=record.offset(),
            node=plan.source,
            stage="deserialization",
            error=type(user_error(error)).__name__,
            reason=str(error) if is_ours(error) else None,
            dead_letters_left_out=len(answer.dead_letters),
            count=count,
        )

    def _drop(self, node: str, reason: str) -> int:
        count = self.dropped[node, reason] = self.dropped.get((node, reason), 0) + 1
        if is_log_worthy(count):
            self._log.warning("records_dropped", node=node, reason=reason, count=count)
        return count


def _refused(plan: GlobalPlan, record: ReceivedMessage, error: Exception) -> RecordError:
    known = isinstance(error, (SerdeError, RegistryError, NullKeyError, HandlerFailedError))
    what = str(error) if known else f"a serde raised {type(error).__name__}"
    refused = RecordError(
        f"a record of a global table cannot be decoded: {what}",
        topic=str(record.topic()),
        partition=record.partition(),
        offset=record.offset(),
        timestamp=record.timestamp()[1],
        node=plan.source,
        store=plan.store.name,
        hint=_HINT,
    )
    if isinstance(error, HandlerFailedError):
        refused.functions = error.locations
    return refused


Batches = Mapping[TopicPartition, Sequence[ReceivedMessage]]
OpenGlobalHome = Callable[[Sequence[Store]], TaskHome]
"""Opens the local state of the global tables of a process."""

POLL_S = 0.1
"""Seconds that a poll of the bootstrap waits for records."""
UPDATE_S = 0.1
"""Maximum seconds for which an update may delay the records of streams."""
PROGRESS_INTERVAL_MS = 10 * 60 * 1000
"""Interval at which positions are written without new records, because rows whose position is too
old are dropped at the next start."""


@dataclass(slots=True, eq=False)
class _Table:
    """A global table and the positions of its rows in the topic."""

    plan: GlobalPlan
    rows: GlobalRows
    topic_id: str = ""
    next: dict[TopicPartition, int] = field(default_factory=dict)
    known_ms: int = 0
    """Time at which the rows were last known to be complete."""
    written_ms: int = 0
    """Time at which `known_ms` was last written."""
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """First offset of each partition at the start."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """End offset of each partition at the start."""
    last: dict[TopicPartition, LastRecord] = field(default_factory=dict)
    """Last record of each partition that is in the rows."""
    expected: dict[TopicPartition, LastRecord] = field(default_factory=dict)
    """Last records of local rows that are not compared with the topic yet."""

    @property
    def progress(self) -> TableProgress:
        return TableProgress(self.topic_id, dict(self.next), self.known_ms, dict(self.last))

    @property
    def begins(self) -> dict[TopicPartition, int]:
        return {**self.next, **{tp: last.offset for tp, last in self.expected.items()}}


class GlobalTables:
    """Global tables of a process: restored, kept up to date and readable by tasks.

    Args:
        make_consumer: creates a consumer of committed records without a group.
        topics: the known topics, refreshed elsewhere.
        timeout_s: maximum time without progress before the bootstrap fails, in seconds.
        cache_bytes: approximate limit of decoded rows per table, in bytes.
    """

    def __init__(
        self,
        plans: Sequence[GlobalPlan],
        *,
        make_consumer: Callable[[], Consumer],
        open_home: OpenGlobalHome,
        metadata: ClusterMetadata,
        topics: Mapping[str, TopicDescription],
        errors: RowErrors,
        listener: RestoreListener,
        probe: Probe,
        clock: Clock,
        timeout_s: float,
        batch_records: int,
        cache_bytes: int,
        log: Log,
    ) -> None:
        self._tables = {plan.topic: _Table(plan, GlobalRows(plan, cache_bytes)) for plan in plans}
        self._make_consumer = make_consumer
        self._open_home = open_home
        self._metadata = metadata
        self._topics = topics
        self._errors = errors
        self._listener = listener
        self._probe = probe
        self._clock = clock
        self._timeout_s = timeout_s
        self._batch_records = batch_records
        self._log = log
        self._consumer: Consumer | None = None
        self._state: GlobalState | None = None
        self._is_broken = False
        self._ends: dict[TopicPartition, int] = {}
        """End offset of each partition that the bootstrap has not read to the end yet."""

    @property
    def has_tables(self) -> bool:
        return bool(self._tables)

    @property
    def views(self) -> Mapping[str, TableView]:
        """The rows of each table, by its node and by its store (see `store_key`)."""
        views: dict[str, TableView] = {}
        for table in self._tables.values():
            views[table.plan.table] = views[store_key(table.plan.store.name)] = table.rows
        return views

    @property
    def caches(self) -> Sequence[GlobalRows]:
        return [table.rows for table in self._tables.values()]

    def committed(self, store: str) -> tuple[CommittedStore, Position | None] | None:
        """Return rows and position of a table by its store's name in the local state, or None."""
        state = self._state
        plans = (table.plan for table in self._tables.values())
        plan = next((plan for plan in plans if f"r-{plan.store.name}" == store), None)
        if state is None or plan is None:
            return None
        return state.rows(plan), state.position(plan)

    @property
    def dropped(self) -> Mapping[tuple[str, str], int]:
        return self._errors.dropped

    # -- bootstrap -----------------------------------------------------------------------------

    def bootstrap(self, stopping: Callable[[], bool]) -> None:
        """Read the topics to their current ends; raise `StopRequestedError` if `stopping`."""
        if not self._tables:
            return
        with self._translating_losses():
            self._ends, is_bulk = self._open()
            self._consumer = self._make_consumer()
            self._consumer.add({p: at for t in self._tables.values() for p, at in t.begins.items()})
            self._read_to(stopping, is_bulk=is_bulk)

    def _open(self) -> tuple[dict[TopicPartition, int], bool]:
        """Return the ends of incomplete partitions, and whether the load runs in bulk."""
        home = self._open_home(stores_of_tables(t.plan for t in self._tables.values()))
        self._state = state = GlobalState(home)
        tps = [tp for table in self._tables.values() for tp in self._partitions_of(table)]
        changelogs, now_ms = self._metadata.changelogs(tps), self._clock.now_ms()
        is_fresh = False
        for table in self._tables.values():
            is_fresh |= self._locate(state, table, changelogs, now_ms)
            table.rows.use(state.rows(table.plan))
        begins = {p: at for t in self._tables.values() for p, at in t.begins.items()}
        ends = {tp: changelogs[tp].end for tp in tps if changelogs[tp].end > begins[tp]}
        distance = sum(end - begins[tp] for tp, end in ends.items())
        for tp, end in ends.items():
            store = self._tables[tp.topic].plan.store.name
            self._listener.on_restore_start(tp, store, begins[tp], end)
        return ends, is_fresh or distance > BULK_RECORDS

    def _partitions_of(self, table: _Table) -> list[TopicPartition]:
        topic = table.plan.topic
        return [TopicPartition(topic, p) for p in range(self._topics[topic].partitions)]

    def _locate(
        self,
        state: GlobalState,
        table: _Table,
        changelogs: Mapping[TopicPartition, ChangelogDescription],
        now_ms: int,
    ) -> bool:
        """Set a table's start position; return whether it starts empty, without usable rows."""
        tps = self._partitions_of(table)
        table.topic_id = changelogs[tps[0]].topic_id
        table.starts = {tp: changelogs[tp].start for tp in tps}
        table.ends = {tp: changelogs[tp].end for tp in tps}
        table.next = dict(table.starts)
        progress = state.progress(table.plan)
        reason = None if progress is None else _outdated(progress, changelogs, tps, now_ms)
        if progress is None or reason is not None:
            state.drop(table.plan)
            table.known_ms = now_ms
            if reason is not None:
                self._log.warning(
                    "global_table_dropped",
                    topic=table.plan.topic,
                    store=table.plan.store.name,
                    reason=reason,
                )
            return True
        table.next.update(progress.offsets)
        table.last = dict(progress.last)
        table.expected = {
            tp: last for tp, last in table.last.items() if last.offset >= table.starts[tp]
        }
        table.known_ms = progress.wall_ms
        return False

    def _read_to(self, stopping: Callable[[], bool], *, is_bulk: bool) -> None:
        assert self._state is not None
        ends = self._ends
        asked_ms, began_s = self._clock.now_ms(), self._clock.monotonic_s()
        totals: Counter[TopicPartition] = Counter()
        idle = unflushed = 0
        if is_bulk:
            self._state.begin_load()
        while ends:
            if stopping():
                raise StopRequestedError("the application was asked to stop; its global tables "
                                         "were not read to the end yet")  # fmt: skip
            batches = self._compare_first_records(self._poll(POLL_S))
            counts = self._apply(batches, is_bulk=is_bulk)
            unflushed += sum(counts.values())
            if is_bulk and unflushed >= FLUSH_RECORDS:
                self._flush_load()
                self._state.begin_load()
                unflushed = 0
            for tp in counts:
                totals[tp] += counts[tp]
                table = self._tables[tp.topic]
                self._listener.on_batch_restored(
                    tp, table.plan.store.name, table.next[tp], counts[tp]
                )
            done = self._finish(totals)
            idle = 0 if counts or done else idle + 1
            if idle * POLL_S >= self._timeout_s:
                raise FatalClientError(self._timeout_message(ends))
        for table in self._tables.values():
            table.known_ms = asked_ms
        if is_bulk:
            self._flush_load()
        for table in self._tables.values():
            self._write_progress(table)
            self._log.info(
                "global_table_loaded",
                topic=table.plan.topic,
                store=table.plan.store.name,
                records=sum(n for tp, n in totals.items() if tp.topic == table.plan.topic),
                seconds=round(self._clock.monotonic_s() - began_s, 3),
            )

    def _finish(self, totals: Mapping[TopicPartition, int]) -> int:
        """Remove partitions that have been read to their ends; return their number."""
        ends = self._ends
        self._pass_markers()
        assert self._consumer is not None
        positions = self._consumer.positions(list(ends))
        for tp in [p for p, end in ends.items() if positions.get(p, -1) >= end]:
            if tp in self._tables[tp.topic].expected:
                self._reread(tp)
        done = [
            tp
            for tp, end in ends.items()
            if self._tables[tp.topic].next[tp] >= end and tp not in self._tables[tp.topic].expected
        ]
        for tp in done:
            del ends[tp]
            store = self._tables[tp.topic].plan.store.name
            self._listener.on_restore_end(tp, store, totals[tp])
        return len(done)

    def _compare_first_records(self, batches: Batches) -> Batches:
        """Compare first records with the last local records; omit tables that are read again."""
        compared: dict[TopicPartition, Sequence[ReceivedMessage]] = {}
        again: set[str] = set()
        for tp, records in batches.items():
            table = self._tables[tp.topic]
            expected = table.expected.get(tp)
            if expected is None:
                compared[tp] = records
            elif tp.topic not in again and last_read(records[0]) != expected:
                self._reread(tp)
                again.add(tp.topic)
            elif table.expected.pop(tp, None) is not None:
                compared[tp] = [r for r in records if r.offset() >= table.next[tp]]
        return {p: records for p, records in compared.items() if records and p.topic not in again}

    def _reread(self, tp: TopicPartition) -> None:
        """Drop the rows of a table whose last record is not in the topic, and read it again."""
        assert self._consumer is not None
        assert self._state is not None
        table = self._tables[tp.topic]
        offset = table.last[tp].offset
        self._log.warning(
            "global_table_dropped",
            topic=table.plan.topic,
            store=table.plan.store.name,
            reason=f"its last record of {tp} is at offset {offset}, and the topic does not have "
            "that record: it was compacted, or its cluster has lost records",
        )
        self._consumer.remove(list(table.next))
        self._state.drop(table.plan)
        table.next, table.last, table.expected = dict(table.starts), {}, {}
        self._consumer.add(table.starts)
        self._ends |= {p: end for p, end in table.ends.items() if end > table.starts[p]}

    def _timeout_message(self, ends: Mapping[TopicPartition, int]) -> str:
        positions = {tp: self._tables[tp.topic].next[tp] for tp in ends}
        left = ", ".join(f"{tp} is at {positions[tp]} of {end}" for tp, end in ends.items())
        return (
            f"global tables received no record for {self._timeout_s:g} s and lack some: {left}. "
            "Check that the brokers answer and that no transaction is open on the topic, or raise "
            "task.timeout.ms"
        )

    # -- updates -------------------------------------------------------------------------------

    def update(self) -> None:
        """Apply new records; raise `GlobalTableLostError` if the rows must be read again."""
        if self._consumer is None:
            return
        with self._translating_losses():
            self._follow_growth()
            until_s = self._clock.monotonic_s() + UPDATE_S
            while batches := self._poll(0.0):
                self._apply(batches, is_bulk=False)
                if self._clock.monotonic_s() >= until_s:
                    return
            now_ms = self._clock.now_ms()
            for table in self._tables.values():
                table.known_ms = now_ms
                if now_ms - table.written_ms >= PROGRESS_INTERVAL_MS:
                    self._pass_markers()
                    self._write_progress(table)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        state, self._state = self._state, None
        if consumer is not None:
            consumer.close(leave=False)
        if state is not None:
            broken = self._is_broken or any(t.rows.is_broken for t in self._tables.values())
            state.close(wipe=broken)

    def _follow_growth(self) -> None:
        assert self._consumer is not None
        for table in self._tables.values():
            if self._topics[table.plan.topic].partitions > len(table.next):
                new = [tp for tp in self._partitions_of(table) if tp not in table.next]
                starts = {
                    tp: changelog.start for tp, changelog in self._metadata.changelogs(new).items()
                }
                table.next.update(starts)
                self._consumer.add(starts)

    # -- reading and writing -------------------------------------------------------------------

    def _poll(self, wait_s: float) -> Mapping[TopicPartition, Sequence[ReceivedMessage]]:
        assert self._consumer is not None
        return self._consumer.poll(self._batch_records, wait_s)

    def _apply(
        self,
        batches: Mapping[TopicPartition, Sequence[ReceivedMessage]],
        *,
        is_bulk: bool,
    ) -> dict[TopicPartition, int]:
        assert self._state is not None
        counts = {}
        for tp, records in batches.items():
            table = self._tables[tp.topic]
            rows = self._errors.rows(table.plan, records)
            table.next[tp] = records[-1].offset() + 1
            table.last[tp] = last_read(records[-1])
            if is_bulk:
                self._state.load(table.plan, rows)
                self._probe("global_rows_loaded")
            else:
                self._state.write(table.plan, list(dict(rows).items()), table.progress)
                table.written_ms = self._clock.now_ms()
                self._probe("global_rows_written")
            table.rows.evict(rows)
            counts[tp] = len(records)
        return counts

    def _pass_markers(self) -> None:
        assert self._consumer is not None
        for table in self._tables.values():
            for tp, position in self._consumer.positions(list(table.next)).items():
                table.next[tp] = max(position, table.next[tp])

    def _write_progress(self, table: _Table) -> None:
        assert self._state is not None
        self._state.write(table.plan, [], table.progress)
        table.written_ms = self._clock.now_ms()

    def _flush_load(self) -> None:
        assert self._state is not None
        self._state.end_load([(table.plan, table.progress) for table in self._tables.values()])
        self._probe("global_load_kept")

    @contextmanager
    def _translating_losses(self) -> Iterator[None]:
        try:
            yield
        except OffsetLostError as error:
            topic = error.where.rpartition("-")[0]
            raise GlobalTableLostError(
                self._tables[topic].plan.store.name if topic in self._tables else topic,
                f"{error.where}: {error.reason}",
            ) from error
        except GlobalTableLostError:
            raise
        except StoreCorruptedError as error:
            self._is_broken = True
            names = ", ".join(table.plan.store.name for table in self._tables.values())
            raise GlobalTableLostError(names, str(error)) from error


def _outdated(
    progress: TableProgress,
    changelogs: Mapping[TopicPartition, ChangelogDescription],
    tps: Sequence[TopicPartition],
    now_ms: int,
) -> str | None:
    """Return the reason why local rows are not usable, or None if they are."""
    for tp in tps:
        topic, offset = changelogs[tp], progress.offsets.get(tp)
        if offset is None:
            continue
        position = Position(progress.topic_id, offset, 0, progress.wall_ms)
        plan = plan_restore(position, topic, now_ms)
        if plan.drop is not None:
            return plan.drop.replace("the changelog", "the topic").replace("a changelog", "a topic")
        if offset < topic.start:
            return f"records of {tp} before offset {topic.start} were deleted before they were read"
    return None
