"""Who follows the changes of which store: one reader a store, from the first follower to the last.

Changes come from the cluster, not from this host: whoever asks anywhere is told those of all
partitions. They are read in the process that is asked, beside the workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

import msgspec

from headrace.state.log import get_logger
from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import OffsetLostError, StreamsError
from headrace.streams.kafka.protocols import Consumer, ReceivedMessage, TopicPartition
from headrace.streams.plan.topics import TopicAdmin
from headrace.streams.queries.change import Change
from headrace.streams.queries.errors import (
    NotReadableError,
    PositionGoneError,
    TooManyFollowersError,
    WrongQueryError,
    said_of,
)
from headrace.streams.queries.kept import store_of
from headrace.streams.queries.origin import Origin, origin_of
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.rows_first import Rows, RowsFirst, RowsHere
from headrace.streams.queries.subscription import Subscription, Turns, shares
from headrace.streams.queries.walk import Scan

# The one reader of a store's changes, shared by all who follow them.
#
#     catches up: reads alone ─► is as far as the tail ─► joins ─► is handed what the tail reads
#
# Whoever joins a partition has been told everything before the place where the tail is there, and
# the
# tail hands on nothing meanwhile, so that nothing is told twice or left out.


POLL_RECORDS = 1_000
POLL_S = 0.2
ENDS_S = 5.0


class Tail:
    """Single reader of a store's changes, shared by all followers.

    Args:
        make_consumer: makes one without a group that reads committed records.
        begins: where to begin in each partition.
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
        self._members: dict[int, list[Subscription]] = {partition: [] for partition in begins}
        self._ended: str | None = None
        self._log = get_logger().bind(store=origin.store.name, topic=origin.topic)
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-changes-{origin.store.name}", daemon=True
        )
        self._thread.start()

    @property
    def partitions(self) -> list[int]:
        """Those of the topic."""
        return list(self._members)

    @property
    def has_ended(self) -> bool:
        """Whether it hands out nothing any more."""
        return self._ended is not None

    def join_now(self, follower: Subscription) -> None:
        """Hand a follower what comes in all partitions.

        Raises:
            StreamsError: it has ended.
        """
        with self._lock:
            if self._ended is not None:
                raise StreamsError(self._ended)
            follower.begin(self._reached)
            for members in self._members.values():
                members.append(follower)

    def join(self, follower: Subscription, partition: int) -> bool:
        """Hand a follower what comes in a partition, if he has been told all before it.

        Raises:
            StreamsError: it has ended.
        """
        with self._lock:
            if self._ended is not None:
                raise StreamsError(self._ended)
            if follower.next_of(partition) < self._reached[partition]:
                return False
            self._members[partition].append(follower)
            return True

    def leave(self, follower: Subscription) -> None:
        """Hand a follower nothing more."""
        with self._lock:
            for members in self._members.values():
                if follower in members:
                    members.remove(follower)

    def end(self, reason: str = "nobody follows any more") -> None:
        """Read no more; those who still follow are told why."""
        with self._lock:
            if self._ended is None:
                self._ended = reason
            followers = [one for members in self._members.values() for one in members]
        for follower in followers:
            follower.close(reason)

    def await_end(self) -> None:
        """Wait until the thread has ended."""
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
        except Exception as error:  # whatever it is: those who follow are to hear of it
            reason = said_of(error)
            self._log.warning("changes_failed", reason=reason)
            self.end(f"the changes cannot be read: {reason}")
        self._log.debug("changes_left", reason=self._ended)

    def _turn(self, consumer: Consumer) -> None:
        batches = consumer.poll(POLL_RECORDS, POLL_S)
        places = [TopicPartition(self.origin.topic, partition) for partition in self._members]
        # What markers and aborted records take is passed only once all before it was handed out.
        positions = consumer.positions(places)
        with self._lock:
            for place, records in batches.items():
                members = self._members[place.partition]
                for record in records if members else ():
                    change = Change(self.origin, record)
                    members[:] = [one for one in members if one.offer(change)]
            for place, offset in positions.items():
                if offset > self._reached[place.partition]:
                    self._reached[place.partition] = offset
                    for member in self._members[place.partition]:
                        member.reach(place.partition, offset)


# Telling one follower what came before he could join the tail: rows, and changes since then.


_GAP_MIN = 5
"""The marker of a transaction takes one offset, and where workers were killed some lie side by
side: of transactions that were to write here and had not yet. Fewer that are missing say nothing.
"""


@dataclass(frozen=True, slots=True)
class Readers:
    """Make consumers without a group.

    Args:
        committed: of committed records.
        all: of those of aborted transactions, too.
    """

    committed: Callable[[], Consumer]
    all: Callable[[], Consumer]


class CatchUp:
    """Thread that sends a follower the changes before it joins the tail.

    Args:
        follower: knows where to begin, unless there are rows first.
        turns: those of all who catch up.
        rows: what to tell before; None for nothing.
        tells_gaps: whether to say where compaction has taken changes away: not to him who asked
            for what there is.
    """

    def __init__(
        self,
        tail: Tail,
        follower: Subscription,
        readers: Readers,
        turns: Turns,
        *,
        rows: RowsFirst | None = None,
        tells_gaps: bool,
        done: Callable[[], None],
    ) -> None:
        self._tail = tail
        self._follower = follower
        self._readers = readers
        self._turns = turns
        self._rows = rows
        self._tells_gaps = tells_gaps
        self._done = done
        self._told_gaps: set[int] = set()
        self._looking: Consumer | None = None

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="headrace-changes-since", daemon=True).start()

    def _run(self) -> None:
        try:
            if self._rows is None or self._rows.tell(self._follower):
                self._catch_up()
        except OffsetLostError as error:
            self._follower.close(f"{error}; begin anew, with snapshot=true")
        except StreamsError as error:
            self._follower.close(str(error))
        except Exception as error:  # whatever it is: he who follows is to hear of it
            reason, origin = said_of(error), self._tail.origin
            get_logger().warning(
                "changes_failed", store=origin.store.name, topic=origin.topic, reason=reason
            )
            self._follower.close(f"the changes cannot be read: {reason}")
        finally:
            if self._looking is not None:
                self._looking.close(leave=False)
            self._done()

    def _catch_up(self) -> None:
        tail, follower = self._tail, self._follower
        left = {p for p in tail.partitions if not tail.join(follower, p)}
        if not left:
            return
        consumer = self._readers.committed()
        try:
            consumer.add({self._place(p): follower.next_of(p) for p in left})
            while left and not follower.is_over:
                for place, records in consumer.poll(POLL_RECORDS, POLL_S).items():
                    self._hand(place.partition, records)
                positions = consumer.positions([self._place(p) for p in left])
                for partition in sorted(left):
                    reached = positions.get(self._place(partition), -1)
                    if reached > follower.next_of(partition):
                        self._tell_gap(partition, follower.next_of(partition), reached)
                        follower.reach(partition, reached)
                    if tail.join(follower, partition):
                        left.discard(partition)
                        consumer.remove([self._place(partition)])
        finally:
            consumer.close(leave=False)

    def _hand(self, partition: int, records: Sequence[ReceivedMessage]) -> None:
        for change in self._made(records):
            offset = change.offset
            if offset > self._follower.next_of(partition):
                self._tell_gap(partition, self._follower.next_of(partition), offset)
            if not self._follower.offer(change, can_wait=True):
                return

    def _made(self, records: Sequence[ReceivedMessage]) -> Iterator[Change]:
        """The changes that records are, with the JSON of those that are wanted."""
        for some in shares(records):
            with self._turns.one():
                made = [Change(self._tail.origin, record) for record in some]
                for change in made:
                    if self._follower.wants(change):
                        _ = change.data  # it is kept
            yield from made

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self._tail.origin.topic, partition)

    # -- what compaction took away ---------------------------------------------------------------

    def _tell_gap(self, partition: int, begin: int, end: int) -> None:
        """Say that there were changes between two offsets that are not there any more.

        Records of aborted transactions are no changes, and still there; one who reads them, too,
        sees which offsets hold nothing at all.
        """
        if not self._tells_gaps or partition in self._told_gaps or end - begin < _GAP_MIN:
            return
        if not _is_missing(self._offsets_in(partition, begin, end), begin, end):
            return
        self._told_gaps.add(partition)
        said: Mapping[str, object] = {
            "partition": partition,
            "from": begin,
            "to": end,
            "reason": "compaction has taken away changes of keys that changed again later; what "
            "follows may lack more of them",
        }
        self._follower.tell("compacted", msgspec.json.encode(said))

    def _offsets_in(self, partition: int, begin: int, end: int) -> list[int]:
        place, found = self._place(partition), list[int]()
        if self._looking is None:
            self._looking = self._readers.all()
        self._looking.add({place: begin})
        # Brokers may be away for any time, and what was not read is not missing.
        while self._looking.positions([place]).get(place, -1) < end:
            if self._follower.is_over:
                found = list(range(begin, end))
                break
            records = self._looking.poll(end - begin, POLL_S).get(place, ())
            found += [record.offset() for record in records if record.offset() < end]
        self._looking.remove([place])
        return found


def _is_missing(offsets: Iterable[int], begin: int, end: int) -> bool:
    """Whether so many offsets side by side hold nothing that they are no markers.

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
"""So many may catch up at once: each reads with a client of its own."""


class Cluster(Protocol):
    """How changes are reached."""

    @property
    def admin(self) -> TopicAdmin:
        """Tells of topics."""

    @property
    def readers(self) -> Readers:
        """Read them."""

    def reach(self) -> None:
        """See that it answers."""


class LiveCluster:
    """The cluster that an application names in its settings; see `Cluster`."""

    def __init__(self, config: StreamsConfig) -> None:
        from headrace.streams.kafka.admin import LiveAdmin
        from headrace.streams.kafka.consumer import LiveConsumer

        timeout_s = config.task_timeout_ms / 1000
        self.admin: TopicAdmin = LiveAdmin(config.admin_config(), timeout_s=timeout_s)
        committed = config.restore_config()
        every = {**committed, "isolation.level": "read_uncommitted"}
        self.readers = Readers(
            lambda: LiveConsumer(committed, timeout_s=timeout_s),
            lambda: LiveConsumer(every, timeout_s=timeout_s),
        )
        self._admin_config = config.admin_config()

    def reach(self) -> None:
        """See that it answers."""
        from headrace.streams.kafka.connectivity import reach

        reach(self._admin_config)


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin.

    Args:
        kind: at the end, at the beginning, at positions, or with the rows.
        positions: the offsets that come next; partitions that are not named begin at their ends.
    """

    kind: Literal["end", "beginning", "positions", "rows"] = "end"
    positions: Mapping[int, int] = field(default_factory=dict)


class Feeds:
    """Change feeds of the stores of an application. Thread-safe.

    Args:
        connect: reaches the cluster, once somebody wants to follow; None does so live.
    """

    def __init__(
        self,
        queries: Queries,
        *,
        connect: Callable[[StreamsConfig], Cluster] | None = None,
        followers_max: int = FOLLOWERS_MAX,
    ) -> None:
        self._queries = queries
        self._connect = connect or LiveCluster
        self._followers_max = followers_max
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None
        self._closed: str | None = None
        self._tails: dict[str, Tail] = {}
        self._followers: dict[Subscription, Tail | None] = {}
        self._catching_up = threading.Semaphore(CATCHING_UP_MAX)
        self._turns = Turns()

    def follow(
        self,
        name: str,
        *,
        key: bytes | None = None,
        start: Start = Start(),
        wake: Callable[[], None],
        rows: Rows | None = None,
    ) -> Subscription:
        """Follow the changes of a store.

        Args:
            name: the store's.
            key: the bytes of the one key that is followed; None follows all of them.
            wake: see `Subscription`.
            rows: to begin with, where that is wanted; None takes those of this host.

        Returns:
            What there is to be told; to be given to `leave` in the end.

        Raises:
            QueryError: that store, or that position, cannot be followed.
            StreamsError: the cluster does not answer, or refuses it.
        """
        store = store_of(self._queries.stores, self._queries.application, name)
        origin = origin_of(store, self._queries.plans, self._queries.global_plans)
        follower = Subscription(key, wake)
        with self._lock:
            if self._closed is not None:
                raise StreamsError(self._closed)
            if len(self._followers) >= self._followers_max:
                raise TooManyFollowersError(
                    f"{self._followers_max} follow changes here already; ask again later, or "
                    "another host: each has the changes of all partitions"
                )
            self._followers[follower] = None
        try:
            self._begin(origin, follower, start, key, rows)
        except BaseException:
            self.leave(follower)
            raise
        return follower

    def reach(self) -> None:
        """See that the cluster answers, for somebody who would wait at a terminal.

        Raises:
            StreamsError: it does not, or does not let this client in.
        """
        self._reached().reach()

    def leave(self, follower: Subscription) -> None:
        """Follow no more; the reader of a store ends with its last follower."""
        follower.close("it was left")
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

    def close(self, reason: str = "what serves the changes stops") -> None:
        """End all of it, and say why."""
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
        follower: Subscription,
        start: Start,
        key: bytes | None,
        there: Rows | None,
    ) -> None:
        cluster = self._reached()
        places = self._places(cluster, origin)
        rows = None
        if start.kind == "rows":
            rows = self._rows(origin, key, {place.partition for place in places}, there)
        tail = self._tail_of(cluster, origin, places, follower)
        if start.kind == "end":
            tail.join_now(follower)
            return
        if start.kind == "beginning":
            follower.begin(_by_partition(cluster.admin.start_offsets(places)))
        elif start.kind == "positions":
            follower.begin(_checked(cluster.admin, places, start.positions))
        if not self._catching_up.acquire(blocking=False):
            raise TooManyFollowersError(
                f"{CATCHING_UP_MAX} streams of changes are reading older changes at this moment, "
                "which is the most; ask again in a few seconds, or begin at the end"
            )
        CatchUp(
            tail,
            follower,
            cluster.readers,
            self._turns,
            rows=rows,
            tells_gaps=start.kind != "beginning",
            done=self._catching_up.release,
        ).start()

    def _reached(self) -> Cluster:
        with self._lock:
            if self._cluster is None:
                self._cluster = self._connect(self._queries.config)
            return self._cluster

    def _places(self, cluster: Cluster, origin: Origin) -> list[TopicPartition]:
        facts = cluster.admin.describe([origin.topic]).get(origin.topic)
        if facts is None:
            raise NotReadableError(
                f"the changes of store {origin.store.name!r} are in the topic {origin.topic}, "
                "which is not there yet: the application makes it when it starts first"
            )
        return [TopicPartition(origin.topic, number) for number in range(facts.partitions)]

    def _tail_of(
        self,
        cluster: Cluster,
        origin: Origin,
        places: list[TopicPartition],
        follower: Subscription,
    ) -> Tail:
        name = origin.store.name
        ends: dict[TopicPartition, int] | None = None
        while True:
            with self._lock:
                tail = self._tails.get(name)
                if (tail is None or tail.has_ended) and ends is not None:
                    begins = _by_partition(ends)
                    tail = self._tails[name] = Tail(origin, cluster.readers.committed, begins)
                if tail is not None and not tail.has_ended:
                    self._followers[follower] = tail
                    return tail
            # Not with the lock: the cluster may take its time.
            ends = cluster.admin.stable_offsets(places)

    def _rows(
        self, origin: Origin, key: bytes | None, partitions: set[int], there: Rows | None
    ) -> RowsFirst:
        store = origin.store
        if store.is_global:
            raise WrongQueryError(
                f"{store.name!r} is a global table, whose changes are the records of "
                f"{origin.topic}: begin with from=beginning in place of snapshot=true"
            )
        reader = self._queries.reader(store.name)
        rows = there or RowsHere(reader, Scan() if key is None else reader.of_one(key))
        rows.require_all(frozenset(partitions))
        return RowsFirst(rows, partitions, self._turns)


def _by_partition(offsets: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {place.partition: offset for place, offset in offsets.items()}


def _checked(
    admin: TopicAdmin, places: list[TopicPartition], wanted: Mapping[int, int]
) -> dict[int, int]:
    """Positions in all partitions, those that were given being there.

    Raises:
        PositionGoneError: one is not there any more.
    """
    if over := wanted.keys() - {place.partition for place in places}:
        raise WrongQueryError(
            f"{places[0].topic} has {len(places)} partitions, and none is number {min(over)}"
        )
    starts, ends = admin.start_offsets(places), admin.end_offsets(places)
    stable = admin.stable_offsets(places)
    found: dict[int, int] = {}
    for place in places:
        at = wanted.get(place.partition, stable[place])
        if not starts[place] <= at <= ends[place]:
            gone = "was deleted"
            if at > ends[place]:
                gone = "is behind its end: the position is wrong, or the topic was made anew since"
            raise PositionGoneError(
                f"{place} has offsets from {starts[place]} to {ends[place]}, and what comes at "
                f"{at} {gone}; begin anew with the rows, snapshot=true, or from=beginning"
            )
        found[place.partition] = at
    return found
