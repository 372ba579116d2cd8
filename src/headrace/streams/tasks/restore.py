"""Restore of local state from changelogs, in slices, before a task runs.

A restore is exact because a new owner of a task reads from the cluster in this order:

    1  the committed input offsets, after all transactions on them have ended
    2  only then the changelogs' high watermarks
    3  committed records until the consumer's position reaches them

The last stable offset instead of the high watermark is not sufficient: the offsets of a transaction
can be visible before its markers are in the changelogs. The consumer's position passes control
records and aborted records, so the restore also ends if a changelog ends with markers.

`plan_restore`, the first part of this file, decides which local rows are kept: all rows, unless
they provably do not belong to this changelog. `Restorer`, the second part, reads the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Protocol

from headrace.state.store import NO_COMMIT, LastRecord, Position
from headrace.streams.errors import OffsetLostError, RestoreLostError, TaskCorruptedError
from headrace.streams.kafka.clocks import MonotonicWallClock
from headrace.streams.kafka.protocols import (
    Clock,
    Consumer,
    Log,
    Probe,
    ReceivedMessage,
    TopicPartition,
)
from headrace.streams.plan.identity import ChangelogLostError, last_read, last_restored
from headrace.streams.plan.plan import TaskId
from headrace.streams.plan.progress import COMMIT_COUNT_BITS, committed_commit_id
from headrace.streams.tasks.task import LocalRows, Task
from headrace.streams.tasks.task_failures import corruption_of

# The plan of a restore: the changelog offsets that must be read to complete local rows.


@dataclass(frozen=True, slots=True)
class ChangelogDescription:
    """Identity, offsets and settings of a changelog partition, as read from the cluster.

    Args:
        start: the first available offset.
        end: the high watermark.
        delete_retention_ms: how long tombstones survive compaction.
    """

    topic_id: str
    start: int
    end: int
    delete_retention_ms: int

    def up_to(self, offset: int) -> ChangelogDescription:
        """Return the description for a source topic, limited to its committed offset."""
        return replace(self, end=max(self.start, min(self.end, offset)))


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Offsets to restore of a store, and the reason if its local rows are dropped."""

    begin: int
    end: int
    drop: str | None = None


def plan_restore(
    position: Position | None, changelog: ChangelogDescription, now_ms: int
) -> RestorePlan:
    """Return the offsets to restore of a store, and whether its local rows are dropped.

    Local rows are dropped only with proof: they belong to a different topic, are beyond the end of
    this topic, or are so old that tombstones after them may have been compacted away. A position in
    the future shows that a clock was set back, so its age is unknown.

    >>> changelog = ChangelogDescription("id", start=0, end=10, delete_retention_ms=1000)
    >>> plan_restore(Position("id", 8, 1, 500), changelog, 600)
    RestorePlan(begin=8, end=10, drop=None)
    >>> plan_restore(Position("other", 8, 1, 500), changelog, 600).begin
    0
    """
    assert 0 <= changelog.start <= changelog.end, changelog
    if position is None:
        return RestorePlan(changelog.start, changelog.end)
    reason = None
    if position.topic_id != changelog.topic_id:
        reason = "the changelog was re-created"
    elif position.offset > changelog.end:
        reason = f"it is at offset {position.offset} of a changelog that ends at {changelog.end}"
    elif (
        _is_behind(position, changelog)
        and now_ms - position.wall_ms > changelog.delete_retention_ms
    ):
        reason = "deletions that it has not seen may have been compacted away"
    elif _is_behind(position, changelog) and position.wall_ms > now_ms:
        reason = (
            "its time is ahead of this host's clock, so its age is unknown, and deletions that it "
            "has not seen may have been compacted away"
        )
    if reason is not None:
        return RestorePlan(changelog.start, changelog.end, reason)
    return RestorePlan(max(position.offset, changelog.start), changelog.end)


def _is_behind(position: Position, changelog: ChangelogDescription) -> bool:
    # The commit's own marker is one offset, and never a deletion.
    return changelog.end - position.offset > 1


def is_of_same_worker(commit_id: int, other: int) -> bool:
    return commit_id >> COMMIT_COUNT_BITS == other >> COMMIT_COUNT_BITS


# The restore: reads the changelogs of several tasks in slices, and writes their rows.


Changes = list[tuple[bytes, "bytes | None", int]]

SLICE_S = 0.1
"""Seconds that a worker restores before it returns to its loop."""
WAIT_S = 0.01
"""Seconds that an idle worker waits for records; no records follow if a changelog ends with a
marker."""
_KEY = itemgetter(0)
BULK_RECORDS = 20_000
"""Number of records from which a load bypasses RocksDB's log and flushes once at its end."""
FLUSH_RECORDS = 2_000_000
"""Number of records after which a bulk load is made durable, to limit the loss if it is killed."""


class RestoreListener(Protocol):
    """Listener for the restore progress of each store; called in the worker's thread.

    Derive a class from it, and override the methods that you need. The partition `tp` is of the
    topic that the store is restored from, and has the attributes `topic` and `partition`. Global
    tables are reported, too.

    Examples:
        >>> from headrace import KafkaStreams, RestoreListener, StreamsBuilder
        >>> class Restores(RestoreListener):
        ...     def on_restore_start(self, tp, store, begin, end):
        ...         print(f"{store}: offsets {begin} to {end}")
        ...     def on_batch_restored(self, tp, store, offset, count):
        ...         print(f"{store}: {count} records, up to offset {offset}")
        ...     def on_restore_end(self, tp, store, total):
        ...         print(f"{store}: {total} records of {tp.topic}-{tp.partition}")
        >>> builder = StreamsBuilder()
        >>> builder.table("prices", store="prices").to_stream().to("out")
        >>> app = KafkaStreams(builder.build(), {
        ...     "application.id": "prices", "bootstrap.servers": "localhost:9092"},
        ...     restore_listener=Restores())
    """

    def on_restore_start(self, tp: TopicPartition, store: str, begin: int, end: int) -> None:
        """Handle the start of a store's restore: offsets `begin` to `end`, exclusive."""

    def on_batch_restored(self, tp: TopicPartition, store: str, offset: int, count: int) -> None:
        """Handle a batch of `count` applied records, up to `offset`, exclusive."""

    def on_restore_end(self, tp: TopicPartition, store: str, total: int) -> None:
        """Handle the end of a store's restore, with `total` applied records."""


@dataclass(frozen=True, slots=True)
class RestoreListeners:
    """Listener that forwards restore events to other listeners, in order."""

    listeners: Sequence[RestoreListener] = ()

    def on_restore_start(self, tp: TopicPartition, store: str, begin: int, end: int) -> None:
        for listener in self.listeners:
            listener.on_restore_start(tp, store, begin, end)

    def on_batch_restored(self, tp: TopicPartition, store: str, offset: int, count: int) -> None:
        for listener in self.listeners:
            listener.on_batch_restored(tp, store, offset, count)

    def on_restore_end(self, tp: TopicPartition, store: str, total: int) -> None:
        for listener in self.listeners:
            listener.on_restore_end(tp, store, total)


@dataclass(slots=True)
class _StoreRestore:
    store: str
    tp: TopicPartition
    plan: RestorePlan
    changelog: ChangelogDescription
    rows_time_ms: int
    """Time from which local rows may lack deletions."""
    rows_commit_id: int
    """The commit to which the local rows belonged."""
    end_requested_ms: int
    """Time at which the changelog's end offset was requested."""
    expected: LastRecord | None
    """Last record of the local rows, until it is compared with the changelog."""
    last: LastRecord | None
    """Last record in the rows."""
    applied_to: int | None = None
    """The offset after the last applied record."""
    applied: int = 0

    def position(self, offset: int) -> Position:
        return Position(
            self.changelog.topic_id, offset, self.rows_commit_id, self.rows_time_ms, self.last
        )

    @property
    def first(self) -> int:
        return self.plan.begin if self.expected is None else self.expected.offset


@dataclass(slots=True, eq=False)
class _TaskRestore:
    task: Task
    commit_id: int
    bulk: bool
    changelogs: Mapping[TopicPartition, ChangelogDescription]
    open: dict[TopicPartition, _StoreRestore]
    done: dict[str, _StoreRestore] = field(default_factory=dict)
    unflushed: int = 0
    """Records of a bulk restore that are not durable yet."""


class Restorer:
    """Restorer of a worker's tasks, with a shared consumer without a group, created on demand."""

    def __init__(
        self,
        *,
        make_consumer: Callable[[], Consumer],
        clock: Clock,
        listener: RestoreListener,
        probe: Probe,
        batch_records: int,
        log: Log,
    ) -> None:
        self._make_consumer = make_consumer
        self._consumer: Consumer | None = None
        self._clock = MonotonicWallClock(clock)
        self._listener = listener
        self._probe = probe
        self._batch_records = batch_records
        self._active: list[_TaskRestore] = []
        self._complete: list[Task] = []
        """Restored tasks that `advance` has not returned yet."""
        self._broken: dict[TaskId, str] = {}
        """Tasks whose files were found corrupted by `cancel`, with the reason; raised by the next
        `begin`."""
        self._log = log
        self.restored = 0
        """Number of applied changelog records since the worker started."""

    @property
    def is_active(self) -> bool:
        return bool(self._active or self._complete)

    def remaining(self) -> dict[tuple[TaskId, str], int]:
        """Return the number of changelog offsets left to read, by task and store."""
        return {
            (restore.task.id, part.store): part.plan.end
            - (part.plan.begin if part.applied_to is None else part.applied_to)
            for restore in self._active
            for part in restore.open.values()
        }

    def begin(self, task: Task, changelogs: Mapping[TopicPartition, ChangelogDescription]) -> bool:
        """Start a restore, or return False; request `changelogs` after the start offsets."""
        if task.id in self._broken:
            raise TaskCorruptedError([str(task.id)], self._broken.pop(task.id))
        with corruption_of(task.id):
            restores = [
                restore
                for store, tp in task.spec.restored_from.items()
                if (restore := self._plan(task, store, tp, changelogs[tp])) is not None
            ]
            if not restores:
                self._are_complete(task)
                return False
            total = sum(r.plan.end - r.plan.begin for r in restores)
            fresh = any(task.state.position(r.store) is None for r in restores)
            bulk = fresh or total > BULK_RECORDS
            if bulk:
                task.state.begin_restore()
        if self._consumer is None:
            self._consumer = self._make_consumer()
        self._consumer.add({r.tp: r.first for r in restores})
        commit_id = _last_commit_id(task)
        by_tp = {r.tp: r for r in restores}
        self._active.append(_TaskRestore(task, commit_id, bulk, changelogs, by_tp))
        for r in restores:
            self._listener.on_restore_start(r.tp, r.store, r.plan.begin, r.plan.end)
        return True

    def _plan(
        self, task: Task, store: str, tp: TopicPartition, changelog: ChangelogDescription
    ) -> _StoreRestore | None:
        """Plan the restore of a store, and drop its rows if they are not usable."""
        now_ms = self._clock.now_ms()
        if store in task.spec.source_rows:
            changelog = changelog.up_to(task.start[tp].offset)
        position = task.state.position(store)
        plan = plan_restore(position, changelog, now_ms)
        if plan.drop is not None:
            self._require_other_commit(task, store, position, changelog)
            self._log.warning("store_dropped", task=str(task.id), store=store, reason=plan.drop)
        if plan.drop is not None or position is None:
            # A restore that was never completed leaves rows without a position.
            task.state.drop_store(store)
            position = None
        last = None if position is None else position.last
        if last is not None and position is not None and last.offset >= position.offset:
            last = None  # belongs to another position
        # A record that retention has deleted cannot be compared.
        expected = None if last is None or last.offset < changelog.start else last
        if plan.begin >= plan.end and expected is None:
            if position is None or position.commit_id == NO_COMMIT:
                # Record that the changelog is empty, too. This does not imply that the rows of the
                # other stores belong to the commit of the offsets.
                empty = Position(changelog.topic_id, changelog.end, _last_commit_id(task), now_ms)
                task.state.write({}, {store: empty})
            return None
        rows_time_ms = now_ms if position is None else position.wall_ms
        # During the restore, the store's rows are a mix that belongs to no commit.
        rows_commit_id = NO_COMMIT if position is None else position.commit_id
        return _StoreRestore(
            store,
            tp,
            plan,
            changelog,
            rows_time_ms,
            rows_commit_id,
            now_ms,
            expected=expected,
            last=last,
        )

    def _are_complete(self, task: Task) -> None:
        """Mark all rows as belonging to the commit of the offsets."""
        commit_id = committed_commit_id(task.start)
        if commit_id is None:
            return
        positions_found = {store: task.state.position(store) for store in task.spec.restored_from}
        positions = {
            store: replace(position, commit_id=commit_id)
            for store, position in positions_found.items()
            if position is not None and position.commit_id != commit_id
        }
        if positions:
            task.state.write({}, positions)

    def _require_other_commit(
        self, task: Task, store: str, position: Position | None, changelog: ChangelogDescription
    ) -> None:
        """Raise `ChangelogLostError` instead of dropping rows of the commit of the offsets.

        They are the only copy if the changelog was re-created or has lost records.
        """
        committed = committed_commit_id(task.start)
        if position is None or committed is None:
            return
        if position.topic_id == changelog.topic_id:
            if position.offset > changelog.end and store not in task.spec.source_rows:
                self._require_uncommitted(task, store)
            return
        if is_of_same_worker(position.commit_id, committed):
            tp = task.spec.restored_from[store]
            raise ChangelogLostError([tp.topic], stores=[store], task=str(task.id))

    def _require_uncommitted(self, task: Task, store: str) -> None:
        """Raise `ChangelogLostError` if the worker of the commit wrote the rows, in or before it.

        If the whole cluster was reset to an earlier state, the offsets are earlier, too.
        """
        committed, position = committed_commit_id(task.start), task.state.position(store)
        if committed is None or position is None:
            return
        same_worker = is_of_same_worker(position.commit_id, committed)
        if same_worker and position.commit_id <= committed:
            tp = task.spec.restored_from[store]
            raise ChangelogLostError(
                [tp.topic], stores=[store], task=str(task.id), is_shortened=True
            )

    def advance(self, budget_s: float, wait_s: float) -> list[Task]:
        """Restore for a time slice, and wait `wait_s` for records; return the complete tasks."""
        deadline = self._clock.monotonic_s() + budget_s
        while self._active:
            assert self._consumer is not None
            try:
                batches = self._consumer.poll(self._batch_records, wait_s)
            except OffsetLostError as error:
                tasks = [str(restore.task.id) for restore in self._active]
                raise RestoreLostError(tasks, str(error)) from error
            self._use(batches)
            if not batches or self._clock.monotonic_s() >= deadline:
                break
        if not self._active:
            self._close_consumer()
        complete, self._complete = self._complete, []
        return complete

    def _use(self, batches: Mapping[TopicPartition, Sequence[ReceivedMessage]]) -> None:
        """Apply records to all tasks, even if some tasks fail."""
        broken: dict[str, str] = {}
        for restore in list(self._active):
            try:
                self._use_of(restore, batches)
            except TaskCorruptedError as error:
                self._drop(restore)
                broken[str(restore.task.id)] = error.reason
        if broken:
            raise TaskCorruptedError(broken, "; ".join(dict.fromkeys(broken.values())))

    def _use_of(
        self,
        restore: _TaskRestore,
        batches: Mapping[TopicPartition, Sequence[ReceivedMessage]],
    ) -> None:
        try:
            for tp in [tp for tp in restore.open if tp in batches]:
                self._apply(restore, tp, batches[tp])
            self._finish(restore)
        except _OtherHistoryError as error:
            self._restart(restore, error)

    def _restart(self, restore: _TaskRestore, error: _OtherHistoryError) -> None:
        """Restart a task's restore without the rows of a store that differ from its changelog."""
        task, store = restore.task, error.store
        self._drop(restore)
        if error.is_proof and store not in task.spec.source_rows:
            self._require_uncommitted(task, store)
        with corruption_of(task.id):
            task.state.drop_store(store)
        self._log.warning("store_dropped", task=str(task.id), store=store, reason=str(error))
        if not self.begin(task, restore.changelogs):
            self._complete.append(task)

    def _drop(self, restore: _TaskRestore) -> None:
        assert self._consumer is not None
        self._consumer.remove(restore.open)
        if restore in self._active:
            self._active.remove(restore)

    def cancel(self, task: Task, *, keep: bool = True) -> None:
        """Stop a task's restore, if any; `keep` the restored rows for the next restore."""
        self._complete = [complete for complete in self._complete if complete is not task]
        for restore in [r for r in self._active if r.task is task]:
            self._drop(restore)
            if keep and restore.bulk:
                self._try_flush(restore)
        if not self._active:
            self._close_consumer()

    def _try_flush(self, restore: _TaskRestore) -> None:
        try:
            self._flush(restore)
        except TaskCorruptedError as error:
            self._broken[restore.task.id] = error.reason

    def close(self) -> None:
        self._active.clear()
        self._complete.clear()
        self._close_consumer()

    def _close_consumer(self) -> None:
        if self._consumer is not None:
            self._consumer.close(leave=False)
            self._consumer = None

    def _apply(
        self, restore: _TaskRestore, tp: TopicPartition, records: Sequence[ReceivedMessage]
    ) -> None:
        part = restore.open[tp]
        source = restore.task.spec.source_rows.get(part.store)
        identify = last_restored if source is None else last_read
        if part.expected is not None:
            _require_same_history(part, identify(records[0]))
            part.expected = None
            records = [r for r in records if r.offset() >= part.plan.begin]
            if not records:
                return
        below = records
        # The last record is sufficient to check most batches.
        if records[-1].offset() >= part.plan.end:
            below = [r for r in records if r.offset() < part.plan.end]
        changes = changelog_changes(below) if source is None else source.changes(below)
        if not changes:
            return
        # Records after the planned end are not in the rows.
        part.applied_to = min(records[-1].offset() + 1, part.plan.end)
        part.last = identify(below[-1])
        part.applied += len(changes)
        rows = restore.task.spec.layout(part.store).rows(changes)
        with corruption_of(restore.task.id):
            if restore.bulk:
                self._apply_bulk(restore, part.store, rows)
            else:
                position = part.position(part.applied_to)
                delta = list(dict(rows).items())
                restore.task.state.write({part.store: delta}, {part.store: position})
        self._probe("records_restored")
        self.restored += len(changes)
        self._listener.on_batch_restored(tp, part.store, records[-1].offset() + 1, len(changes))

    def _apply_bulk(self, restore: _TaskRestore, store: str, rows: LocalRows) -> None:
        restore.task.state.restore({store: rows})
        restore.unflushed += len(rows)
        if restore.unflushed >= FLUSH_RECORDS:
            self._flush(restore)
            restore.task.state.begin_restore()

    def _flush(self, restore: _TaskRestore) -> None:
        """Make the restored rows of a bulk restore durable, and end it."""
        parts = [*restore.done.values(), *restore.open.values()]
        positions = {
            part.store: part.position(part.applied_to)
            for part in parts
            if part.applied_to is not None
        }
        restore.unflushed = 0
        with corruption_of(restore.task.id):
            restore.task.state.end_restore(positions)

    def _finish(self, restore: _TaskRestore) -> None:
        assert self._consumer is not None
        positions = self._consumer.positions(list(restore.open))
        for tp, part in list(restore.open.items()):
            if positions.get(tp, -1) >= part.plan.end:
                if part.expected is not None:
                    _require_same_history(part, None)
                self._consumer.remove([tp])
                restore.done[part.store] = restore.open.pop(tp)
                self._listener.on_restore_end(tp, part.store, part.applied)
        if not restore.open:
            self._active.remove(restore)
            self._end(restore)
            self._complete.append(restore.task)

    def _end(self, restore: _TaskRestore) -> None:
        task = restore.task
        # The complete rows belong to the committed offsets, which were read before.
        commit_id = committed_commit_id(task.start) or restore.commit_id
        positions = {
            store: Position(
                part.changelog.topic_id, part.plan.end, commit_id, part.end_requested_ms, part.last
            )
            for store, part in restore.done.items()
        }
        with corruption_of(task.id):
            if restore.bulk:
                task.state.end_restore(positions)
            else:
                task.state.write({}, positions)
        self._probe("restore_ended")
        self._log.info(
            "task_restored",
            task=str(task.id),
            records=sum(part.applied for part in restore.done.values()),
        )


class _OtherHistoryError(Exception):
    """Error: the changelog lacks the last record of the local rows."""

    def __init__(self, store: str, reason: str, *, is_proof: bool) -> None:
        super().__init__(reason)
        self.store = store
        self.is_proof = is_proof


def _require_same_history(part: _StoreRestore, actual: LastRecord | None) -> None:
    """Compare the first record read with the last record of the local rows.

    A missing record may have been compacted away, or its offset may be a control record of a
    different history. A different record at its offset proves that the rows do not match.
    """
    expected = part.expected
    assert expected is not None
    if actual == expected:
        return
    is_proof = actual is not None and actual.offset == expected.offset
    if is_proof:
        reason = "the changelog has another record at that offset: its cluster has lost records, "
        reason += "and new records were written in their place"
    else:
        reason = "the changelog does not have that record any more: it was compacted, or its "
        reason += "cluster has lost records, and new records were written in their place"
    where = f"its last record is at offset {expected.offset} of {part.tp}"
    raise _OtherHistoryError(part.store, f"{where}, and {reason}", is_proof=is_proof)


def _last_commit_id(task: Task) -> int:
    positions = [task.state.position(store) for store in task.spec.restored_from]
    return max((0, *(p.commit_id for p in positions if p is not None)))


def changelog_changes(records: Sequence[ReceivedMessage]) -> Changes:
    """Return key, value and timestamp; raise a `ValueError` for a record without a key."""
    changes: Any = [(r.key(), r.value(), r.timestamp()[1]) for r in records]
    if None in map(_KEY, changes):
        record = next(r for r in records if r.key() is None)
        raise ValueError(
            f"changelog {record.topic()}-{record.partition()} has a record without a key at "
            f"offset {record.offset()}; another program writes to it: stop it, and reset the "
            "application"
        )
    return changes  # type: ignore[no-any-return]
