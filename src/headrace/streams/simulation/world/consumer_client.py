"""Consumer client of a simulated cluster, with the API and errors of confluent_kafka.

In the background it prefetches records, takes part in rebalances and detects the end of its
session. Callbacks wait for the next call that serves them. `Reading` has its partitions and
prefetched records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, Message

from headrace.streams.config.client_settings import MAX_POLL_INTERVAL_MS
from headrace.streams.kafka.protocols import CommittedOffset, TopicPartition
from headrace.streams.simulation.world.cluster import SimulatedCluster
from headrace.streams.simulation.world.faults import Faults, crash, failure, request
from headrace.streams.simulation.world.groups import Metadata
from headrace.streams.simulation.world.kernel import MS, SECOND
from headrace.streams.simulation.world.process import SimulatedProcess
from headrace.streams.simulation.world.transactions import BrokerResponseError

NO_OFFSET = -1001
FETCH_RECORDS = 40
"""Maximum number of prefetched records of a partition."""


@dataclass(slots=True, eq=False)
class _Part:
    """Partition that is read."""

    tp: TopicPartition
    next: int
    """The offset of the next fetch."""
    position: int = NO_OFFSET
    paused: bool = False
    fetched: int = 0
    version: int = 0
    """Records fetched under an older version are dropped."""
    high: int = NO_OFFSET


_Fetched = tuple[_Part, int, Message | None, int]


class Reading:
    """Partitions and prefetched records of a simulated consumer.

    Prefetched records are dropped by a pause or a removal. A position advances when a record, or a
    skipped range after it, is returned.

    Args:
        process: the consumer's process, which is woken for new records.
        committed_only: whether to skip records of open and aborted transactions.
    """

    def __init__(
        self, cluster: SimulatedCluster, process: SimulatedProcess, *, committed_only: bool
    ) -> None:
        self._cluster = cluster
        self._committed_only = committed_only
        self._parts: dict[TopicPartition, _Part] = {}
        self._watched: set[TopicPartition] = set()
        self._fetched: deque[_Fetched] = deque()
        self._reader = (process, self._watched)
        cluster.readers.append(self._reader)

    def close(self) -> None:
        self._parts.clear()
        # By identity, because another reader of the process can be equal.
        readers = self._cluster.readers
        readers[:] = [reader for reader in readers if reader is not self._reader]

    def add(self, tp: TopicPartition, offset: int) -> None:
        if tp in self._parts:
            raise failure(KafkaError._CONFLICT, f"{tp} is assigned already")
        self._parts[tp] = _Part(tp, offset)
        self._watched.add(tp)

    def remove(self, tp: TopicPartition) -> None:
        part = self._parts.pop(tp, None)
        if part is None:
            raise failure(KafkaError._INVALID_ARG, f"{tp} is not assigned")
        part.version += 1
        self._watched.discard(tp)

    def pause(self, tp: TopicPartition) -> None:
        part = self._part(tp)
        self._rewind(part)
        part.paused = True

    def resume(self, tp: TopicPartition) -> None:
        self._part(tp).paused = False

    def position(self, tp: TopicPartition) -> int:
        part = self._parts.get(tp)
        return NO_OFFSET if part is None else part.position

    def ends(self, tp: TopicPartition) -> tuple[int, int]:
        """Return the watermarks that the last fetch has seen, which may be outdated."""
        part = self._parts.get(tp)
        return (NO_OFFSET, NO_OFFSET) if part is None else (0, part.high)

    def fetch(self) -> None:
        chance = self._cluster.kernel.chance
        for part in self._parts.values():
            if part.paused or part.fetched >= FETCH_RECORDS:
                continue
            log = self._cluster.log(part.tp)
            if not log.start <= part.next <= log.end:
                error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "offset out of range")
                topic, partition = part.tp
                message = Message(topic=topic, partition=partition, error=error)
                self._fetched.append((part, part.version, message, NO_OFFSET))
                # The error is reported only once.
                part.fetched = FETCH_RECORDS
                continue
            found, after = log.read(
                part.next, FETCH_RECORDS - part.fetched, committed=self._committed_only
            )
            if part.high < log.end and chance(0.7):
                part.high = log.end
            if after == part.next:
                continue
            for message in found:
                offset = message.offset()
                assert offset is not None
                self._fetched.append((part, part.version, message, offset + 1))
            part.fetched += len(found)
            last = found[-1].offset() if found else None
            if last is None or last + 1 < after:
                self._fetched.append((part, part.version, None, after))
            part.next = after

    def take(self, limit: int) -> list[Message]:
        taken: list[Message] = []
        fetched = self._fetched
        while fetched and (len(taken) < limit or fetched[0][2] is None):
            part, version, message, after = fetched.popleft()
            if part.version != version:
                continue
            if after != NO_OFFSET:
                part.position = after
            if message is not None:
                part.fetched -= 1
                taken.append(message)
        return taken

    def drop(self) -> None:
        """Drop prefetched records, but advance positions past markers after them."""
        while self._fetched:
            part, version, message, after = self._fetched.popleft()
            if part.version == version and message is None and after != NO_OFFSET:
                part.position = after

    def _rewind(self, part: _Part) -> None:
        first = next((e for e in self._fetched if e[0] is part and e[1] == part.version), None)
        if part.position >= 0:
            part.next = part.position
        elif first is not None and first[2] is not None:
            part.next = first[3] - 1
        part.version += 1
        part.fetched = 0

    def _part(self, tp: TopicPartition) -> _Part:
        if tp not in self._parts:
            raise failure(KafkaError._UNKNOWN_PARTITION, f"{tp} is not assigned")
        return self._parts[tp]


Place = confluent_kafka.TopicPartition
Callback = Callable[[Any, list[Place]], None]


class SimulatedConsumer:
    """Consumer client of a simulated cluster, with confluent_kafka's API and errors."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        process: SimulatedProcess,
        faults: Faults,
        config: dict[str, Any],
    ) -> None:
        self._cluster = cluster
        self._kernel = cluster.kernel
        self._group = cluster.group
        self.process = process
        self._faults = faults
        self._instance_id = str(config.get("group.instance.id", ""))
        self.client_id = str(config.get("client.id", ""))
        committed_only = config.get("isolation.level") == "read_committed"
        self._reading = Reading(cluster, process, committed_only=committed_only)
        session_ms = config.get("session.timeout.ms", 45_000)
        self._session_us = int(str(session_ms)) * MS
        max_poll_ms = config.get("max.poll.interval.ms", MAX_POLL_INTERVAL_MS)
        self._max_poll_us = int(str(max_poll_ms)) * MS
        self._polled_us: int | None = None
        """The time of the last poll, from which on max.poll.interval.ms is checked."""
        self._errors: deque[Message] = deque()
        self._topics: tuple[str, ...] = ()
        self._callbacks: dict[str, Callback] = {}
        self._due: deque[tuple[str, list[TopicPartition]]] = deque()
        self._owned: list[TopicPartition] = []
        self._member_id = ""
        self._generation = -1
        self._calling = False
        self._then: Callable[[], None] | None = None
        """The background action after the callbacks were served."""
        self._closed = False
        self._is_closing = False
        self._leaves_amid = False
        """Whether it leaves during a rebalance."""

    # -- the group, in the background ----------------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callback,
        on_revoke: Callback,
        on_lost: Callback,
    ) -> None:
        self.process.check()
        # Patterns match nothing here.
        self._topics = tuple(topic for topic in topics if not topic.startswith("^"))
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        join = self.must_rejoin if self._member_id else self._join
        self.process.when_up(self._kernel.between(MS, 20 * MS), join)

    def _join(self) -> None:
        if not self._closed and self._topics and not self._member_id:
            self._member_id = self._group.join(
                self, self._instance_id, self._topics, self._session_us
            )

    def _check_poll_later(self, polled_us: int) -> None:
        """Check max.poll.interval.ms in the background, as librdkafka does in its own thread."""
        left_us = polled_us + self._max_poll_us - self._kernel.now_us
        self.process.when_up(max(MS, left_us), self._check_poll)

    def _check_poll(self) -> None:
        assert self._polled_us is not None
        if self._kernel.now_us - self._polled_us >= self._max_poll_us:
            self._exceed_max_poll()
            self._polled_us = self._kernel.now_us
        if not self._closed:
            self._check_poll_later(self._polled_us)

    def _exceed_max_poll(self) -> None:
        if self._member_id and not self._closed:
            self._fail(KafkaError(KafkaError._MAX_POLL_EXCEEDED, "simulated"))
            # A static member does not leave: it stops sending heartbeats.
            self._group.silence(self._member_id, self._instance_id)
            self.expelled()

    def must_rejoin(self) -> None:
        """Take part in a rebalance after the callbacks of the last rebalance were served."""
        if self._member_id:
            self._when_served(self._rejoin)

    def _rejoin(self) -> None:
        if self._closed or not self._member_id:
            return
        try:
            self._group.rejoin(self._member_id, self._instance_id)
        except BrokerResponseError as refused:
            if refused.code == KafkaError.FENCED_INSTANCE_ID:
                self.fenced()
            else:
                self.expelled()

    def _when_served(self, then: Callable[[], None]) -> None:
        if self._due or self._calling:
            self._then = then
        else:
            then()

    def synced(self, generation: int, partitions: Sequence[TopicPartition]) -> None:
        """Start a generation; assigned and revoked partitions are reported in the next poll."""
        if self._closed:
            return
        self._generation = generation
        owned = self._owned_when_served()
        added = [tp for tp in partitions if tp not in owned]
        revoked = [tp for tp in owned if tp not in partitions]
        if revoked:
            self._due.append(("revoke", revoked))
            self._then = self._rejoin
        # Also without new partitions, because the callback reports the new generation.
        self._due.append(("assign", added))
        if self._faults.draw(self.process, "rebalance") is not None:
            self.process.suspend(self._faults.stall_us())
        self.process.wake()

    def _owned_when_served(self) -> list[TopicPartition]:
        owned = list(self._owned)
        for kind, partitions in self._due:
            if kind == "assign":
                owned += partitions
            else:
                owned = [tp for tp in owned if tp not in partitions]
        return owned

    def expelled(self) -> None:
        """Lose all partitions; if callbacks are due, revoke them after the next join instead."""
        if self._closed or not self._topics:
            return
        self._note("session has ended")
        self._generation = -1
        self._member_id = ""
        self._then = self._join
        if self._due or self._calling:
            return
        if self._owned:
            self._due.append(("lost", list(self._owned)))
            self.process.wake()
        else:
            self._then = None
            self._join()

    def fenced(self) -> None:
        if not self._closed:
            self._fail(
                KafkaError(
                    KafkaError._FATAL,
                    "Fatal consumer error: Broker: Static consumer fenced by other consumer with "
                    "same group.instance.id",
                    True,
                )
            )

    def _serve(self) -> None:
        """Run the due callbacks in the caller's thread."""
        while self._due:
            kind, partitions = self._due.popleft()
            self._calling = True
            text = ", ".join(map(str, partitions))
            self._note(f"on_{kind}: {text or 'nothing new'} in generation {self._generation}")
            try:
                if kind == "assign":
                    self._owned += partitions
                    # Renew the claim on partitions that stay, unless the membership has ended.
                    self._cluster.claim(self._owned, self._generation, self._instance_id)
                self._callbacks[kind](self, [Place(*tp) for tp in partitions])
            finally:
                self._calling = False
                if kind != "assign" and self.process.alive:
                    self._owned = [p for p in self._owned if p not in partitions]
                    self._cluster.disclaim(partitions, self._instance_id)
        if self._then is not None:
            then, self._then = self._then, None
            if then == self._leave:
                then()
                return
            self.process.when_up(self._kernel.between(100, 5 * MS), then)

    # -- reading -------------------------------------------------------------------------------

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        del timeout
        self._begin_call()
        if not self._kernel.chance(0.1):
            self._serve()
        if self._kernel.chance(0.8):
            self._fetch()
        return self._take(num_messages)

    def poll(self, timeout: float = -1) -> Message | None:
        self._begin_call()
        deadline_us = self._kernel.now_us + int(timeout * SECOND)
        if self._leaves_amid and (early := self._hand_out_early(deadline_us)):
            return early[0]
        while True:
            self._serve()
            self._fetch()
            found = self._take(1)
            if found:
                return found[0]
            left_us = deadline_us - self._kernel.now_us
            if left_us <= 0:
                return None
            self.process.sleep(left_us)

    def _hand_out_early(self, deadline_us: int) -> list[Message]:
        """Return records before the last callback, as a client leaving during a rebalance may."""
        while self._kernel.now_us < deadline_us and self._kernel.chance(0.7):
            self._fetch()
            if found := self._take(1):
                return found
            self.process.sleep(self._kernel.between(0, deadline_us - self._kernel.now_us))
        return []

    def _begin_call(self) -> None:
        self.process.check()
        if self._closed:
            raise RuntimeError("Consumer closed")
        kind = self._faults.draw(self.process, "consume")
        if kind == "crash_before":
            raise crash(self.process)
        if kind == "stall":
            self.process.suspend(self._faults.stall_us())
        elif kind == "error":
            code = self._faults.random.choice((KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN))
            self._fail(KafkaError(code, "simulated"))
        elif kind == "max_poll" and self._member_id:
            self._exceed_max_poll()
        is_first, self._polled_us = self._polled_us is None, self._kernel.now_us
        if is_first:
            self._check_poll_later(self._polled_us)
        # A call takes time, in which other threads run.
        self.process.sleep(self._kernel.between(20, 300))

    def _fail(self, error: KafkaError) -> None:
        self._errors.append(Message(error=error))
        self.process.wake()

    def _fetch(self) -> None:
        if self._instance_id or not self._faults.is_slow_to_restore():
            self._reading.fetch()

    def _take(self, limit: int) -> list[Message]:
        taken: list[Message] = []
        while self._errors and len(taken) < limit:
            taken.append(self._errors.popleft())
        return taken + self._reading.take(limit - len(taken))

    # -- what is read --------------------------------------------------------------------------

    def incremental_assign(self, partitions: Iterable[Place]) -> None:
        self.process.check()
        for p in partitions:
            self._reading.add(_named(p), p.offset)

    def incremental_unassign(self, partitions: Iterable[Place]) -> None:
        self.process.check()
        for p in partitions:
            self._reading.remove(_named(p))

    def pause(self, partitions: Iterable[Place]) -> None:
        self.process.check()
        for p in partitions:
            self._reading.pause(_named(p))

    def resume(self, partitions: Iterable[Place]) -> None:
        self.process.check()
        for p in partitions:
            self._reading.resume(_named(p))

    def position(self, partitions: Sequence[Place]) -> list[Place]:
        self.process.check()
        return [Place(p.topic, p.partition, self._reading.position(_named(p))) for p in partitions]

    def get_watermark_offsets(
        self,
        partition: Place,
        timeout: float | None = None,
        cached: bool = False,
    ) -> tuple[int, int]:
        del timeout
        self.process.check()
        assert cached
        return self._reading.ends(_named(partition))

    # -- offsets -------------------------------------------------------------------------------

    def committed(self, partitions: Sequence[Place], timeout: float) -> list[Place]:
        tps = [_named(p) for p in partitions]
        wrong: list[str] = []
        request(
            self._faults,
            self.process,
            "committed",
            lambda: None,
            timeout_s=timeout,
            special=wrong.append,
        )
        deadline_us = self._kernel.now_us + int(timeout * SECOND)
        while self._group.is_undecided(tps):
            if self._kernel.now_us >= deadline_us:
                raise failure(KafkaError._TIMED_OUT, "Local: Timed out")
            self.process.sleep(self._kernel.between(5 * MS, 50 * MS))
        known = self._group.offsets
        found = []
        for tp in tps:
            c = known.get(tp)
            if c is None:
                found.append(Place(tp.topic, tp.partition, NO_OFFSET))
            else:
                found.append(Place(tp.topic, tp.partition, c.offset, c.metadata))
        if wrong and found:
            found[0] = _Failed(found[0].topic, found[0].partition)
        text = ", ".join(f"{f.topic}-{f.partition}@{f.offset}" for f in found)
        self._note(f"committed: {text}")
        return found

    def commit(
        self, offsets: Sequence[Place] | None = None, asynchronous: bool = True
    ) -> list[Place]:
        assert offsets is not None
        assert not asynchronous
        wanted = {_named(p): CommittedOffset(p.offset, p.metadata or "") for p in offsets}
        metadata = self._membership()
        try:
            request(
                self._faults,
                self.process,
                "commit",
                lambda: self._cluster.plain_offsets(wanted, metadata),
                timeout_s=5.0,
            )
        except BrokerResponseError as refused:
            raise failure(refused.code, "offsets refused") from None
        self._note("commit: " + ", ".join(f"{p}@{c.offset}" for p, c in wanted.items()))
        return list(offsets)

    def consumer_group_metadata(self) -> Metadata:
        """Return the membership; while closing sometimes raise, as if its thread had ended."""
        self.process.check()
        if self._is_closing and self._kernel.now_ms() % 2:
            raise RuntimeError("Consumer group metadata not available")
        return self._membership()

    def _membership(self) -> Metadata:
        return Metadata(
            self._group.name, self._generation, self._member_id, self._instance_id or None
        )

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> None:
        """Do nothing: joins do not depend on topic metadata here."""
        del topic, timeout
        self.process.check()

    def memberid(self) -> str:
        self.process.check()
        return self._member_id

    # -- the end -------------------------------------------------------------------------------

    def unsubscribe(self) -> None:
        self.process.check()
        self._leaves_amid = bool(self._due) or self._group.joining
        self._revoke_all()
        self._then = self._leave
        if not self._due:
            self._then = None
            self._leave()

    def _revoke_all(self) -> None:
        """End the subscription; losses that are due replace the revocation."""
        self._topics = ()
        self._due = deque(due for due in self._due if due[0] == "lost")
        if self._owned and not self._due:
            self._due.append(("revoke", list(self._owned)))

    def _leave(self) -> None:
        if self._member_id:
            self._group.leave(self._member_id, self._instance_id)
        self._member_id = ""
        self._generation = -1

    def close(self) -> None:
        """Close the client after a revocation of its partitions; a static member does not leave."""
        self.process.check()
        if self._closed:
            return
        self._revoke_all()
        if self._then != self._leave:
            self._then = None
        # A closing client does this before its last callbacks.
        self._fetch()
        self._reading.drop()
        self._is_closing = True
        self._serve()
        self._closed = True
        self._reading.close()

    def _note(self, what: str) -> None:
        if self._instance_id:
            self.process.note(what)


def _named(tp: Place) -> TopicPartition:
    return TopicPartition(tp.topic, tp.partition)


class _Failed(Place):
    """Partition whose result is a retriable error."""

    error = KafkaError(KafkaError.NOT_COORDINATOR, "simulated", False, True)
