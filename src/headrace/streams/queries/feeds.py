"""Change feeds of stores, with a shared reader per store while it has followers.

Changes are read from the cluster, not from local files, so every host serves the changes of all
partitions. They are read in the process that serves the followers, in separate threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, Self

import msgspec

from headrace.state.log import get_logger
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import OffsetLostError, StreamsError
from headrace.streams.kafka.protocols import AdminClient, Consumer, ReceivedMessage, TopicPartition
from headrace.streams.queries.change import DecodedChange
from headrace.streams.queries.descriptors import store_of
from headrace.streams.queries.errors import (
    NotReadableError,
    PositionGoneError,
    TooManyFollowersError,
    WrongQueryError,
    describe_error,
)
from headrace.streams.queries.initial_rows import InitialRows, LocalRows, SnapshotRows
from headrace.streams.queries.origin import Origin, origin_of
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.scan import Scan
from headrace.streams.queries.subscription import ChangeSubscription, Turns, shares

# The single reader of a store's changes, shared by all followers.
#
#     catch up: own reader ─► reaches the tail's offset ─► joins ─► receives what the tail reads
#
# A follower that joins a partition has received all changes before the tail's offset, and the tail
# sends nothing in the meantime, so no change is sent twice or lost.


POLL_RECORDS = 1_000
POLL_S = 0.2
ENDS_S = 5.0


class Tail:
    """Single reader of a store's changes, shared by all followers.

    Args:
        make_consumer: creates a consumer without a group that reads committed records.
        begins: the start offset in each partition.
    """

    def __init__(
        self,
        origin: Origin,
        make_consumer: Callable[[], Consumer],
        begins: Mapping[int, int],
    ) -> None:
        self.origin = origin
        self._make_consumer = make_consumer
        self._lock = threading.Lock()
        self._reached = dict(begins)
        self._members: dict[int, list[ChangeSubscription]] = {partition: [] for partition in begins}
        self._ended: str | None = None
        self._log = get_logger().bind(store=origin.store.name, topic=origin.topic)
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-changes-{origin.store.name}", daemon=True
        )
        self._thread.start()

    @property
    def partitions(self) -> list[int]:
        return list(self._members)

    @property
    def has_ended(self) -> bool:
        return self._ended is not None

    def join_now(self, follower: ChangeSubscription) -> None:
        """Send a follower the new changes of all partitions; raise StreamsError after the end."""
        with self._lock:
            if self._ended is not None:
                raise StreamsError(self._ended)
            follower.begin(self._reached)
            for members in self._members.values():
                members.append(follower)

    def join(self, follower: ChangeSubscription, partition: int) -> bool:
        """Send a follower the new changes of a partition, if it has received all earlier changes.

        Return whether the follower has joined; raise StreamsError after the end.
        """
        with self._lock:
            if self._ended is not None:
                raise StreamsError(self._ended)
            if follower.next_of(partition) < self._reached[partition]:
                return False
            self._members[partition].append(follower)
            return True

    def leave(self, follower: ChangeSubscription) -> None:
        with self._lock:
            for members in self._members.values():
                if follower in members:
                    members.remove(follower)

    def end(self, reason: str = "the last follower has left") -> None:
        """Stop reading, and close the remaining followers with the reason."""
        with self._lock:
            if self._ended is None:
                self._ended = reason
            followers = [one for members in self._members.values() for one in members]
        for follower in followers:
            follower.close(reason)

    def await_end(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(ENDS_S)

    def _run(self) -> None:
        self._log.debug("changes_followed", partitions=len(self._members))
        try:
            consumer = self._make_consumer()
            try:
                topic = self.origin.topic
                consumer.add({TopicPartition(topic, p): at for p, at in self._reached.items()})
                while self._ended is None:
                    self._turn(consumer)
            finally:
                consumer.close(leave=False)
        except Exception as error:  # any error must be reported to the followers
            reason = describe_error(error)
            self._log.warning("changes_failed", reason=reason)
            self.end(f"the changes cannot be read: {reason}")
        self._log.debug("changes_left", reason=self._ended)

    def _turn(self, consumer: Consumer) -> None:
        batches = consumer.poll(POLL_RECORDS, POLL_S)
        tps = [TopicPartition(self.origin.topic, partition) for partition in self._members]
        # Markers and aborted records are passed only after all records before them were returned.
        positions = consumer.positions(tps)
        with self._lock:
            for tp, records in batches.items():
                members = self._members[tp.partition]
                for record in records if members else ():
                    change = DecodedChange(self.origin, record)
                    members[:] = [one for one in members if one.offer(change)]
            for tp, offset in positions.items():
                if offset > self._reached[tp.partition]:
                    self._reached[tp.partition] = offset
                    for member in self._members[tp.partition]:
                        member.reach(tp.partition, offset)


# Catch-up of a follower before it joins the tail: rows, and the changes since then.


_GAP_MIN = 5
"""Minimum number of consecutive missing offsets that counts as a gap. A transaction marker takes an
offset, and several markers can be adjacent if workers were killed before they wrote any record.
"""


class FeedCluster(Protocol):
    """Access to the cluster that has the changes."""

    @property
    def admin(self) -> AdminClient:
        """The admin client."""

    def committed(self) -> Consumer:
        """Create a consumer without a group that reads committed records."""

    def all(self) -> Consumer:
        """Create a consumer that also reads the records of aborted transactions."""

    def reach(self) -> None:
        """Check that the cluster responds."""


class CatchUp:
    """Thread that sends a follower the changes before it joins the tail.

    Args:
        follower: has its start positions, unless rows are sent first.
        reports_gaps: whether to report changes removed by compaction; False for followers that
            start at the beginning, because they request only existing changes.
        done: called at the end.
    """

    def __init__(
        self,
        tail: Tail,
        follower: ChangeSubscription,
        cluster: FeedCluster,
        turns: Turns,
        *,
        rows: InitialRows | None = None,
        reports_gaps: bool,
        done: Callable[[], None],
    ) -> None:
        self._tail = tail
        self._follower = follower
        self._cluster = cluster
        self._turns = turns
        self._rows = rows
        self._reports_gaps = reports_gaps
        self._done = done
        self._reported_gaps: set[int] = set()
        self._gap_consumer: Consumer | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="headrace-changes-since", daemon=True).start()

    def _run(self) -> None:
        try:
            if self._rows is None or self._rows.emit(self._follower):
                self._catch_up()
        except OffsetLostError as error:
            self._follower.close(f"{error}. Start again with snapshot=true")
        except StreamsError as error:
            self._follower.close(str(error))
        except Exception as error:  # any error must be reported to the follower
            reason, origin = describe_error(error), self._tail.origin
            get_logger().warning(
                "changes_failed", store=origin.store.name, topic=origin.topic, reason=reason
            )
            self._follower.close(f"the changes cannot be read: {reason}")
        finally:
            if self._gap_consumer is not None:
                self._gap_consumer.close(leave=False)
            self._done()

    def _catch_up(self) -> None:
        tail, follower = self._tail, self._follower
        left = {p for p in tail.partitions if not tail.join(follower, p)}
        if not left:
            return
        consumer = self._cluster.committed()
        try:
            consumer.add({self._tp(p): follower.next_of(p) for p in left})
            while left and not follower.is_over:
                for tp, records in consumer.poll(POLL_RECORDS, POLL_S).items():
                    self._deliver(tp.partition, records)
                positions = consumer.positions([self._tp(p) for p in left])
                for partition in sorted(left):
                    reached = positions.get(self._tp(partition), -1)
                    if reached > follower.next_of(partition):
                        self._report_gap(partition, follower.next_of(partition), reached)
                        follower.reach(partition, reached)
                    if tail.join(follower, partition):
                        left.discard(partition)
                        consumer.remove([self._tp(partition)])
        finally:
            consumer.close(leave=False)

    def _deliver(self, partition: int, records: Sequence[ReceivedMessage]) -> None:
        for change in self._decode(records):
            offset = change.offset
            if offset > self._follower.next_of(partition):
                self._report_gap(partition, self._follower.next_of(partition), offset)
            if not self._follower.offer(change, can_wait=True):
                return

    def _decode(self, records: Sequence[ReceivedMessage]) -> Iterator[DecodedChange]:
        """Decode records, and encode wanted changes as JSON within a turn."""
        for some in shares(records):
            with self._turns.one():
                made = [DecodedChange(self._tail.origin, record) for record in some]
                for change in made:
                    if self._follower.wants(change):
                        _ = change.data  # encode and cache it
            yield from made

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._tail.origin.topic, partition)

    # -- changes that compaction removed ---------------------------------------------------------

    def _report_gap(self, partition: int, begin: int, end: int) -> None:
        """Report that compaction has removed changes between two offsets.

        Records of aborted transactions also take offsets, so a consumer that reads them checks.
        """
        if not self._reports_gaps or partition in self._reported_gaps or end - begin < _GAP_MIN:
            return
        if not _is_missing(self._offsets_in(partition, begin, end), begin, end):
            return
        self._reported_gaps.add(partition)
        gap: Mapping[str, object] = {
            "partition": partition,
            "from": begin,
            "to": end,
            "reason": "compaction has removed changes of keys that changed again later; more of "
            "them may be missing from the following changes",
        }
        self._follower.emit("compacted", msgspec.json.encode(gap))

    def _offsets_in(self, partition: int, begin: int, end: int) -> list[int]:
        tp, offsets = self._tp(partition), list[int]()
        if self._gap_consumer is None:
            self._gap_consumer = self._cluster.all()
        self._gap_consumer.add({tp: begin})
        # Brokers may be unavailable for a long time, and unread offsets are not missing.
        while self._gap_consumer.positions([tp]).get(tp, -1) < end:
            if self._follower.is_over:
                offsets = list(range(begin, end))
                break
            records = self._gap_consumer.poll(end - begin, POLL_S).get(tp, ())
            offsets += [record.offset() for record in records if record.offset() < end]
        self._gap_consumer.remove([tp])
        return offsets


def _is_missing(offsets: Iterable[int], begin: int, end: int) -> bool:
    """Return whether more consecutive offsets are missing than transaction markers can explain.

    >>> _is_missing([5, 7], 5, 9), _is_missing([5], 5, 10), _is_missing([5], 5, 11)
    (False, False, True)
    """
    last = begin - 1
    for offset in [*sorted(offsets), end]:
        if offset - last - 1 >= _GAP_MIN:
            return True
        last = offset
    return False


FOLLOWERS_MAX = 32
CATCHING_UP_MAX = 8
"""Maximum number of followers that catch up at the same time, each with its own client."""


class LiveCluster:
    """Cluster of an application's settings; see `FeedCluster`."""

    def __init__(self, config: StreamsConfig) -> None:
        from headrace.streams.kafka.admin import LiveAdmin
        from headrace.streams.kafka.consumer import LiveConsumer

        timeout_s = config.task_timeout_ms / 1000
        self.admin: AdminClient = LiveAdmin(config.admin_config(), timeout_s=timeout_s)
        committed = config.restore_config()
        every = {**committed, "isolation.level": "read_uncommitted"}
        self.committed = partial(LiveConsumer, committed, timeout_s=timeout_s)
        self.all = partial(LiveConsumer, every, timeout_s=timeout_s)
        self._admin_config = config.admin_config()

    def reach(self) -> None:
        from headrace.streams.kafka.connectivity import reach

        reach(self._admin_config)


@dataclass(frozen=True, slots=True)
class Start:
    """Start position of a follower: the end, the beginning, next offsets, or the store's rows.

    Partitions without a position start at their ends.
    """

    kind: Literal["end", "beginning", "positions", "rows"] = "end"
    positions: Mapping[int, int] = field(default_factory=dict)


class Feeds:
    """Change feeds of the stores of an application. Thread-safe.

    `connect` connects to the cluster for the first follower; None is the live cluster.
    """

    def __init__(
        self,
        queries: Queries,
        *,
        connect: Callable[[StreamsConfig], FeedCluster] | None = None,
        followers_max: int = FOLLOWERS_MAX,
    ) -> None:
        self._queries = queries
        self._connect = connect or LiveCluster
        self._followers_max = followers_max
        self._lock = threading.Lock()
        self._cluster: FeedCluster | None = None
        self._closed: str | None = None
        self._tails: dict[str, Tail] = {}
        self._followers: dict[ChangeSubscription, Tail | None] = {}
        self._catching_up = threading.Semaphore(CATCHING_UP_MAX)
        self._turns = Turns()

    def follow(
        self,
        name: str,
        *,
        key: bytes | None = None,
        start: Start = Start(),
        wake: Callable[[], None],
        rows: SnapshotRows | None = None,
    ) -> ChangeSubscription:
        """Follow the changes of a store, or of an encoded key.

        Args:
            rows: the rows to start with, if `start` requires rows; None reads the rows of this
                host.

        Returns:
            The subscription, which must be passed to `leave` in the end.

        Raises:
            QueryError: the store or the position cannot be followed.
            StreamsError: the cluster does not respond, or denies access.
        """
        store = store_of(self._queries.stores, self._queries.application, name)
        origin = origin_of(store, self._queries.plans, self._queries.global_plans)
        follower = ChangeSubscription(key, wake)
        with self._lock:
            if self._closed is not None:
                raise StreamsError(self._closed)
            if len(self._followers) >= self._followers_max:
                raise TooManyFollowersError(
                    f"{self._followers_max} clients follow changes on this host, which is the "
                    "maximum. Retry later, or use another host: each has all partitions"
                )
            self._followers[follower] = None
        try:
            self._begin(origin, follower, start, key, rows)
        except BaseException:
            self.leave(follower)
            raise
        return follower

    def reach(self) -> None:
        """Check that the cluster responds, so that a command fails early instead of waiting."""
        self._reached().reach()

    def leave(self, follower: ChangeSubscription) -> None:
        """Remove a follower; the reader of a store ends with its last follower."""
        follower.close("the follower has left")
        with self._lock:
            tail = self._followers.pop(follower, None)
            if tail is None:
                return
            tail.leave(follower)
            if tail in self._followers.values():
                return
            name = tail.origin.store.name
            if self._tails.get(name) is tail:
                del self._tails[name]
        tail.end()

    def close(self, reason: str = "the server of the changes stops") -> None:
        with self._lock:
            self._closed = reason
            followers, tails = list(self._followers), list(self._tails.values())
            self._followers.clear()
            self._tails.clear()
        for follower in followers:
            follower.close(reason)
        for tail in tails:
            tail.end(reason)
        for tail in tails:
            tail.await_end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(
        self,
        origin: Origin,
        follower: ChangeSubscription,
        start: Start,
        key: bytes | None,
        remote_rows: SnapshotRows | None,
    ) -> None:
        cluster = self._reached()
        tps = self._tps(cluster, origin)
        rows = None
        if start.kind == "rows":
            rows = self._rows(origin, key, {tp.partition for tp in tps}, remote_rows)
        tail = self._tail_of(cluster, origin, tps, follower)
        if start.kind == "end":
            tail.join_now(follower)
            return
        if start.kind == "beginning":
            follower.begin(_by_partition(cluster.admin.start_offsets(tps)))
        elif start.kind == "positions":
            follower.begin(_checked(cluster.admin, tps, start.positions))
        if not self._catching_up.acquire(blocking=False):
            raise TooManyFollowersError(
                f"{CATCHING_UP_MAX} change feeds are reading older changes, which is the maximum. "
                "Retry in a few seconds, or start at the end"
            )
        CatchUp(
            tail,
            follower,
            cluster,
            self._turns,
            rows=rows,
            reports_gaps=start.kind != "beginning",
            done=self._catching_up.release,
        ).start()

    def _reached(self) -> FeedCluster:
        with self._lock:
            if self._cluster is None:
                self._cluster = self._connect(self._queries.config)
            return self._cluster

    def _tps(self, cluster: FeedCluster, origin: Origin) -> list[TopicPartition]:
        description = cluster.admin.describe([origin.topic]).get(origin.topic)
        if description is None:
            raise NotReadableError(
                f"the topic {origin.topic}, with the changes of store {origin.store.name!r}, does "
                "not exist yet. Start the application, which creates it"
            )
        return [TopicPartition(origin.topic, number) for number in range(description.partitions)]

    def _tail_of(
        self,
        cluster: FeedCluster,
        origin: Origin,
        tps: list[TopicPartition],
        follower: ChangeSubscription,
    ) -> Tail:
        name = origin.store.name
        ends: dict[TopicPartition, int] | None = None
        while True:
            with self._lock:
                tail = self._tails.get(name)
                if (tail is None or tail.has_ended) and ends is not None:
                    begins = _by_partition(ends)
                    tail = self._tails[name] = Tail(origin, cluster.committed, begins)
                if tail is not None and not tail.has_ended:
                    self._followers[follower] = tail
                    return tail
            # Without the lock, because the cluster may be slow.
            ends = cluster.admin.stable_offsets(tps)

    def _rows(
        self,
        origin: Origin,
        key: bytes | None,
        partitions: set[int],
        remote_rows: SnapshotRows | None,
    ) -> InitialRows:
        store = origin.store
        if store.is_global:
            raise WrongQueryError(
                f"{store.name!r} is a global table, whose changes are the records of "
                f"{origin.topic}. Start with from=beginning instead of snapshot=true"
            )
        reader = self._queries.reader(store.name)
        rows = remote_rows or LocalRows(reader, Scan() if key is None else reader.of_one(key))
        rows.require_all(frozenset(partitions))
        return InitialRows(rows, partitions, self._turns)


def _by_partition(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {tp.partition: offset for tp, offset in offsets.items()}


def _checked(
    admin: AdminClient, tps: list[TopicPartition], wanted: Mapping[int, int]
) -> dict[int, int]:
    """Return the start of all partitions; raise PositionGoneError for a deleted position."""
    if over := wanted.keys() - {tp.partition for tp in tps}:
        raise WrongQueryError(
            f"partition {min(over)} of {tps[0].topic} does not exist. Use 0 to {len(tps) - 1}"
        )
    starts, ends = admin.start_offsets(tps), admin.end_offsets(tps)
    stable = admin.stable_offsets(tps)
    positions: dict[int, int] = {}
    for tp in tps:
        begin = wanted.get(tp.partition, stable[tp])
        if not starts[tp] <= begin <= ends[tp]:
            problem = "was deleted"
            if begin > ends[tp]:
                problem = "is after its end: the position is wrong, or the topic was re-created"
            raise PositionGoneError(
                f"{tp} has offsets from {starts[tp]} to {ends[tp]}, and offset {begin} "
                f"{problem}. Start again with the rows, snapshot=true, or from=beginning"
            )
        positions[tp.partition] = begin
    return positions
