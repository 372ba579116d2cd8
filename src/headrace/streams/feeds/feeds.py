"""Who follows the changes of which store: one reader a store, from the first follower to the last.

Changes come from the cluster, not from this host: whoever asks anywhere is told those of all
partitions. They are read in the process that is asked, beside the workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from headrace.streams.config.config import StreamsConfig
from headrace.streams.errors import StreamsError
from headrace.streams.feeds.catch_up import CatchUp, Readers
from headrace.streams.feeds.errors import TooManyFollowersError
from headrace.streams.feeds.origin import Origin, origin_of
from headrace.streams.feeds.rows_first import Rows, RowsFirst, RowsHere
from headrace.streams.feeds.subscription import Subscription
from headrace.streams.feeds.tail import Tail
from headrace.streams.feeds.turns import Turns
from headrace.streams.plan.topics import TopicAdmin
from headrace.streams.queries.errors import NotReadableError, PositionGoneError, WrongQueryError
from headrace.streams.queries.kept import store_of
from headrace.streams.queries.queries import Queries
from headrace.streams.queries.walk import Scan
from headrace.streams.seams.clients import TopicPartition

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
        from headrace.streams.kafka.broker_contact import reach

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
    """See the module. Any thread may call it.

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
