"""Source of the rows of a store on this host, with their positions."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from headrace.state.codec import partition_for_key
from headrace.state.store import CommittedStore, Position
from headrace.streams.metrics.snapshots import (
    UNRESPONSIVE_S,
    ApplicationSnapshot,
    TaskSnapshot,
    without_taken,
)
from headrace.streams.queries.answers import PartitionPosition
from headrace.streams.queries.descriptors import StoreDescriptor
from headrace.streams.queries.errors import (
    NotReadableError,
    StoreInMemoryError,
    TooOldError,
    UnfinishedError,
)
from headrace.streams.queries.query_queue import (
    BYTES_MAX,
    KEYS_MAX,
    NO_PARTITION,
    QueryRefusal,
    StateQueryRequest,
    StateQueryResponse,
    UnansweredError,
    Workers,
)
from headrace.streams.queries.replicas import ReplicaTracker, ReplicaTrackers
from headrace.streams.queries.scan import ORDER_MAX_MS, Cursor, Scan, ScannedRow, TimeOrder

# Maximum age of rows: files that a task has left behind are not current.
#
# A task that moves to another host leaves its files on this host, and they look like the files of a
# running task. So rows that may lack the changes of more than a minute are refused, unless a worker
# of this host holds the task, or no worker of the application runs here.


AGE_MAX_S = 60.0
"""Default maximum age in seconds; older rows must be requested explicitly."""


@dataclass(frozen=True, slots=True)
class AgeLimit:
    """Maximum age of rows, so that files of a task that moved are not taken for current.

    `most_ms` None is a minute, as described in this module; `advice` is how to get older rows.
    """

    most_ms: int | None = None
    advice: str = "accept them with max_age="

    def require(self, store: str, position: PartitionPosition, is_left: Callable[[], bool]) -> None:
        """Raise TooOldError if the rows of a partition are too old.

        `is_left` returns whether workers run on this host, but none of them holds the files.
        """
        most_ms = AGE_MAX_S * 1000 if self.most_ms is None else self.most_ms
        if position.age_ms <= most_ms or (self.most_ms is None and not is_left()):
            return
        raise too_old(
            store, position, most_ms, advice=f"Query all hosts over HTTP, or {self.advice}"
        )


def too_old(store: str, position: PartitionPosition, most_ms: float, *, advice: str) -> TooOldError:
    """Return the error for rows that are older than the caller accepts, with advice."""
    which = f"store {store!r}"
    if position.partition is not None:
        which = f"partition {position.partition} of {which}"
    is_current = position.state == "running" or position.partition is None
    if is_current and position.age_ms <= UNRESPONSIVE_S * 1000:
        problem = (
            f"the rows of {which} are {position.age_ms} ms old, and at most {most_ms:g} ms are "
            "accepted"
        )
    else:
        problem = (
            f"{which} may lack changes of {position.age_ms / 1000:g} s, and at most "
            f"{most_ms / 1000:g} s are accepted: {_age_reason(position)}"
        )
    return TooOldError(f"{problem}. {advice}")


def _age_reason(position: PartitionPosition) -> str:
    if position.partition is None:
        return "no worker of this host has it now"
    if position.state is None:
        return "no worker of this host has its task now"
    if position.state == "running":
        return "the worker with its task is unresponsive"
    return f"its task here is {position.state}"


# The committed rows of a store in a worker's memory, with the interface of a local store.


ANSWER_WITHIN_S = 3.0
"""Maximum seconds to wait for a worker's response."""


class WorkerRows:
    """`CommittedStore` whose rows are in a worker's memory and are queried in pieces.

    Args:
        likely: the number of the worker that last reported the task, if any.
        store: identifies the store; its other fields are ignored.
    """

    def __init__(self, workers: Workers, likely: int | None, store: StateQueryRequest) -> None:
        self._workers = workers
        self._likely = likely
        self._store = store
        self._first: StateQueryResponse | None = None
        self.max_offset = 0
        """The largest position of the returned rows."""
        self.has_moved = False
        """Whether the task has committed between two responses."""

    @property
    def position(self) -> Position:
        """The position that all returned rows have at least."""
        first = self._first or self._query()
        return Position(first.topic_id, first.offset, first.commit_id, first.wall_ms)

    def get(self, key: bytes) -> bytes | None:
        return self._query(keys=(key,)).values[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        rows: list[bytes | None] = []
        for some in _divided(keys):
            while some:
                values = self._query(keys=some).values
                rows += values
                some = some[len(values) :]
        return rows

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        while True:
            response = self._query(what="scan", start=start, end=end, reverse=reverse)
            yield from response.rows
            if response.after is None:
                return
            if reverse:
                end = response.after
            else:
                start = response.after + b"\0"

    def approximate_count(self) -> int:
        return self._query(what="count").count

    def approximate_bytes(self) -> int:
        raise NotImplementedError

    def _query(self, **what: object) -> StateQueryResponse:
        response = self._ask_workers(msgspec.structs.replace(self._store, **what))
        if self._first is None:
            self._first = response
        self.max_offset = max(self.max_offset, response.offset)
        self.has_moved |= response.commit_id != self._first.commit_id
        return response

    def _ask_workers(self, request: StateQueryRequest) -> StateQueryResponse:
        workers = self._workers() or {}
        refused: QueryRefusal | None = None
        for _, ask in sorted(workers.items(), key=lambda one: one[0] != self._likely):
            try:
                return ask(request, ANSWER_WITHIN_S)
            except UnansweredError as error:
                if not error.refused.is_elsewhere:
                    raise
                refused = error.refused
        if refused is None:
            refused = QueryRefusal("its worker restarts. Retry later")
        elif request.sub_topology is not None:
            refused = QueryRefusal("no worker of this host has the task now. Retry later")
        raise UnansweredError(refused)


def _divided(keys: Sequence[bytes]) -> Iterator[tuple[bytes, ...]]:
    some: list[bytes] = []
    size = 0
    for key in keys:
        if some and (len(some) >= KEYS_MAX or size + len(key) > BYTES_MAX):
            yield tuple(some)
            some, size = [], 0
        some.append(key)
        size += len(key)
    if some:
        yield tuple(some)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Task as last reported by its worker on this host, `age_s` ago."""

    task: TaskSnapshot
    age_s: float
    worker: int = 0

    @property
    def remaining(self) -> int:
        return sum(store.restore_remaining for store in self.task.stores)

    @property
    def inputs(self) -> dict[str, int]:
        """The committed offset of each input, by ``TOPIC-PARTITION``."""
        return {f"{one.topic}-{one.partition}": one.committed for one in self.task.inputs}


def task_reports(snapshot: ApplicationSnapshot, now_s: float) -> Mapping[str, TaskReport]:
    return {
        task.id: TaskReport(task, view.snapshot.age_s(now_s), view.index)
        for view in without_taken(snapshot).workers
        if view.snapshot is not None and view.pid is not None
        for task in view.snapshot.tasks
    }


_MOVED_MAX = 20
"""Maximum number of attempts to read a piece without a commit in between."""


@dataclass(frozen=True, slots=True)
class StorePartition:
    """Partition of a store on this host."""

    partition: int
    replica: ReplicaTracker | None
    report: TaskReport | None

    @property
    def shown_partition(self) -> int | None:
        return None if self.partition == NO_PARTITION else self.partition


@dataclass(slots=True)
class ReadAccess:
    """Read access to the rows of a partition.

    Args:
        position: the position of the rows; for rows in memory it is set after the access ends.
    """

    rows: CommittedStore
    position: PartitionPosition | None = None


@dataclass(frozen=True, slots=True)
class LocalHost:
    """Files and workers of the application on this host.

    Args:
        reports: returns the reported tasks by task id; empty without reports.
        workers: queries the workers of this host for rows in their memory.
        endpoint: the address of this host for other hosts.
        require_working: raises if the application has failed in this process.
    """

    replicas: ReplicaTrackers
    reports: Callable[[], Mapping[str, TaskReport]]
    now_ms: Callable[[], int]
    workers: Workers
    endpoint: str | None
    require_working: Callable[[], None]

    def reports_of(self, store: StoreDescriptor) -> dict[int, TaskReport]:
        """Return the reports of the tasks that own a store, by partition."""
        return {
            one.task.partition: one
            for one in self.reports().values()
            if one.task.sub_topology == store.sub_topology
        }


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """Source of a store's committed rows: files of this host or memory of a worker.

    Args:
        only: the partitions to read; None for all partitions on this host.
        partitions: the partition count of the store, if known.
        age: the maximum age of rows; None does not limit it.
    """

    store: StoreDescriptor
    host: LocalHost
    only: frozenset[int] | None = None
    partitions: int | None = None
    age: AgeLimit | None = None
    positions: dict[int, PartitionPosition] = field(default_factory=dict, init=False)
    """The positions of everything that was read, by partition."""

    def parts(self, first: bytes | None = None) -> list[StorePartition]:
        """Return the partitions on this host; the likely partition of the key `first` comes first.

        Raises:
            QueryError: this host has no partition, the application has failed in this process, or
                the rows are in the memory of workers, and no worker runs in this process.
        """
        self.host.require_working()
        in_memory = self.store.in_memory
        if in_memory and self.host.workers() is None:
            raise StoreInMemoryError(
                f"store {self.store.name!r} is in the memory of the workers, and this process "
                "cannot query them. Query the program that runs them, or a host that serves its "
                'stores, or keep the store in RocksDB (kind="rocksdb")'
            )
        if self.store.is_global:
            return [StorePartition(NO_PARTITION, None, None) if in_memory else self._newest_table()]
        sub = self.store.sub_topology
        assert sub is not None, self.store.name
        here = {} if in_memory else self.host.replicas.of_tasks(sub, self.store.together)
        reports = self.host.reports_of(self.store)
        wanted = {*here, *reports} if self.only is None else self.only
        partitions = [StorePartition(n, here.get(n), reports.get(n)) for n in sorted(wanted)]
        if not partitions:
            where = f"no worker has started a task with it below {self.host.replicas.base}"
            if in_memory:
                where = "no worker of this host reports a task with it"
            raise NotReadableError(
                f"this host has no rows of store {self.store.name!r}: {where}. Retry later"
            )
        if first is not None and len(partitions) > 1:
            guess = partition_for_key(first, self._spread(partitions))
            partitions.sort(key=lambda part: part.partition != guess)
        return partitions

    def _spread(self, parts: Sequence[StorePartition]) -> int:
        return likely_count((part.partition for part in parts), self.partitions)

    def _newest_table(self) -> StorePartition:
        newest: tuple[int, StorePartition] | None = None
        for replica in self.host.replicas.of_tables(self.store.together):
            try:
                with replica.read(self.store.family, self.store.kind) as (_, position, _):
                    if newest is None or position.wall_ms > newest[0]:
                        newest = position.wall_ms, StorePartition(NO_PARTITION, replica, None)
            except NotReadableError:
                continue
        if newest is None:
            raise NotReadableError(
                f"this host has no rows of the global table {self.store.name!r} yet. Retry later"
            )
        return newest[1]

    @contextmanager
    def read(
        self, part: StorePartition, *, fresh: bool = False, any_age: bool = False
    ) -> Iterator[ReadAccess]:
        """Read a partition: its rows in stored form, and their position.

        Raises NotReadableError, also as TooOldError or ApplicationFailedError.
        """
        self.host.require_working()
        try:
            if self.store.in_memory:
                held = self._worker_rows(part)
                access = ReadAccess(held)
                yield access
                access.position = self._position(part, held.position, None, held.max_offset)
                self._note(part, access.position)
                return
            if part.replica is None:
                raise NotReadableError("its worker has not started it. Retry later")
            with part.replica.read(self.store.family, self.store.kind, fresh=fresh) as (
                rows,
                position,
                age_s,
            ):
                partition_position = self._position(part, position, age_s)
                if self.age is not None and not any_age:
                    replica = part.replica
                    self.age.require(
                        self.store.name,
                        partition_position,
                        lambda: self.host.replicas.is_left(replica),
                    )
                self._note(part, partition_position)
                yield ReadAccess(rows, partition_position)
        except TooOldError:
            raise
        except (NotReadableError, UnansweredError) as error:
            remaining = None if part.report is None else part.report.remaining
            if isinstance(error, UnansweredError) and error.refused.remaining is not None:
                remaining = error.refused.remaining
            more = f", {remaining:,} records of changelogs are left" if remaining else ""
            store = f"task {self.store.sub_topology}_{part.partition} of store"
            if self.store.is_global:
                store = "global table"
            advice = self._advice(part) if isinstance(error, UnfinishedError) else ""
            raise NotReadableError(
                f"{store} {self.store.name!r} cannot be read now{more}: {error}{advice}",
                remaining=remaining,
            ) from error

    def _advice(self, part: StorePartition) -> str:
        replicas = self.host.replicas
        if part.report is not None or (part.replica and replicas.is_held(part.replica)):
            return ". Retry later"
        return (
            ", and no worker of this host has the task to complete it. Query the host that has the "
            "task, or start a worker here"
        )

    def _worker_rows(self, part: StorePartition) -> WorkerRows:
        store = self.store
        return WorkerRows(
            self.host.workers,
            None if part.report is None else part.report.worker,
            StateQueryRequest(store.family, store.sub_topology, part.partition),
        )

    def _note(self, part: StorePartition, position: PartitionPosition) -> None:
        """Record a read: all rows have at least the first offset, and at most the last."""
        first = self.positions.setdefault(part.partition, position)
        if position.offset < first.offset:
            first = self.positions[part.partition] = replace(position, max_offset=first.max_offset)
        if position.max_offset > first.max_offset:
            self.positions[part.partition] = replace(first, max_offset=position.max_offset)

    @property
    def _order_max_ms(self) -> float:
        """Maximum age of keys sorted by time that a page uses."""
        limit_ms = None if self.age is None else self.age.most_ms
        return ORDER_MAX_MS if limit_ms is None else min(ORDER_MAX_MS, limit_ms)

    def _position(
        self,
        part: StorePartition,
        position: Position,
        age_s: float | None,
        max_offset: int | None = None,
    ) -> PartitionPosition:
        """Return the position of rows that were read.

        If `age_s` is None, the worker has answered; if `max_offset` is, all rows are of one moment.
        """
        report = part.report
        state = None if report is None else report.task.state
        age_ms = max(0, self.host.now_ms() - position.wall_ms)
        if age_s is None:
            state, age_ms = None if self.store.is_global else "running", 0
        elif report is not None and state == "running":
            age_ms = round(1000 * max(age_s, report.age_s))
        elif self.store.is_global and part.replica is not None:
            # The worker that holds the files applies changes immediately, without a report.
            is_current = self.host.replicas.is_held(part.replica)
            age_ms = round(1000 * age_s) if is_current else age_ms
        return PartitionPosition(
            partition=part.shown_partition,
            offset=position.offset,
            commit_id=position.commit_id,
            committed_ms=position.wall_ms,
            age_ms=age_ms,
            state=state,
            inputs={} if report is None else report.inputs,
            host=self.host.endpoint,
            max_offset=position.offset if max_offset is None else max_offset,
        )

    def scan_rows(self, scan: Scan, cursor: Cursor | None = None) -> Iterator[ScannedRow]:
        """Iterate over all partitions in key order (`headrace.streams.queries.scan`)."""
        scans = [
            self._scan_part(part, scan if cursor is None else scan.rest(cursor, part.partition))
            for part in self.parts()
        ]
        if len(scans) == 1:
            return scans[0]
        return heapq.merge(*scans, reverse=scan.reverse)

    def _scan_part(self, part: StorePartition, scan: Scan) -> Iterator[ScannedRow]:
        for _, steps, _ in self.pieces(part, scan):
            yield from steps

    def pieces(
        self, part: StorePartition, scan: Scan, *, is_exact: bool = False
    ) -> Iterator[tuple[PartitionPosition, list[ScannedRow], bytes | None]]:
        """Yield pieces: their position, their rows, and their last key, None at the end.

        If `is_exact`, all rows of a piece are from the same moment.
        """
        left: Scan | None = scan
        order = TimeOrder() if part.replica is None else part.replica.time_order(self.store.family)
        while left is not None:
            for _ in range(_MOVED_MAX):
                with self.read(part) as access:
                    order.drop_before(self.host.now_ms() - self._order_max_ms)
                    steps, last = left.piece(self._view(access.rows), part.partition, order)
                    if left.times is not None and access.position is not None:
                        access.position = order.position(access.position, self.host.now_ms())
                        self._note(part, access.position)
                rows = access.rows
                if not (is_exact and isinstance(rows, WorkerRows) and rows.has_moved):
                    break
            else:
                raise NotReadableError(
                    f"store {self.store.name!r} is committed more often than it can be read. Ask "
                    "again later"
                )
            assert access.position is not None
            yield access.position, steps, last
            left = None if last is None else left.after(last)

    def _view(self, rows: CommittedStore) -> CommittedStore:
        return self.store.layout.view(rows)

    def shown_positions(self) -> tuple[PartitionPosition, ...]:
        return tuple(position for _, position in sorted(self.positions.items()))

    def get(self, key: bytes) -> tuple[int, bytes] | None:
        """Return the row of a key and its partition, from any partition on this host."""
        return self.first(key, lambda rows: self._view(rows).get(key))

    def first(
        self, key: bytes, read: Callable[[CommittedStore], bytes | None]
    ) -> tuple[int, bytes] | None:
        """Return the first result of a key that is not None, and its partition.

        NotReadableError is raised if there is none, and a partition cannot be read.
        """
        unread: NotReadableError | None = None
        for part in self.parts(key):
            try:
                with self.read(part) as access:
                    row = read(access.rows)
            except NotReadableError as error:
                unread = unread or error
                continue
            if row is not None:
                assert access.position is not None
                self.positions.clear()
                self.positions[part.partition] = access.position
                return part.partition, row
        if unread is not None:
            raise unread
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes] | None]:
        found: list[tuple[int, bytes] | None] = [None] * len(keys)
        parts = self.parts()
        spread = self._spread(parts)
        likely: dict[int, list[int]] = {}
        for index, key in enumerate(keys):
            likely.setdefault(partition_for_key(key, spread), []).append(index)
        unread: NotReadableError | None = None
        for is_first in (True, False):
            for part in parts:
                if is_first:
                    wanted = likely.get(part.partition, [])
                else:
                    searched = set(likely.get(part.partition, ()))
                    wanted = [i for i, row in enumerate(found) if row is None and i not in searched]
                if not wanted:
                    continue
                try:
                    with self.read(part) as access:
                        rows = self._view(access.rows).get_many([keys[index] for index in wanted])
                except NotReadableError as error:
                    unread = unread or error
                    continue
                for index, row in zip(wanted, rows, strict=True):
                    if row is not None:
                        found[index] = part.partition, row
        if unread is not None and None in found:
            raise unread
        return found


def likely_count(here: Iterable[int], known: int | None = None) -> int:
    """Return the number of partitions over which keys are probably distributed.

    Producers choose partitions by murmur2 and the partition count of the inputs. An unknown count
    is guessed, because it only determines which partition is searched first: a processor may store
    any key in any of its tasks.

    >>> likely_count([0, 2]), likely_count([0, 2], 8)
    (3, 8)
    """
    return known or max(1, max(here) + 1)
