"""The live implementation of `headrace.streams.kafka.protocols.Consumer`.

Hot path: `poll` groups each batch by partition; benchmarks/micro/consume.py measures it.

The group's assignment and the partitions to read are separate: a rebalance does not start reading.
The runtime adds partitions, at explicit offsets, when their tasks are ready.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NoReturn

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from headrace.streams.errors import (
    FatalClientError,
    MemberFencedError,
    MissingTopicError,
    OffsetLostError,
    StopRequestedError,
    TaskMigratedError,
)
from headrace.streams.kafka.clients import BrokerState, new_consumer
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.denials import denial
from headrace.streams.kafka.group_offsets import client_offsets, tp_of
from headrace.streams.kafka.headers import read_headers
from headrace.streams.kafka.offset_texts import text_of
from headrace.streams.kafka.protocols import (
    Clock,
    CommittedOffset,
    GroupMetadata,
    Offsets,
    RebalanceListener,
    ReceivedMessage,
    TopicPartition,
)
from headrace.streams.kafka.reactions import GONE, Call, Reaction, reaction_to, wrong_setting

MakeClient = Callable[[dict[str, Any]], confluent_kafka.Consumer]
Batches = Mapping[TopicPartition, Sequence[ReceivedMessage]]

_NOTHING: Batches = {}
_RETRY_WAIT_S = 0.1
_METADATA_S = 2.0
_TRIGGER_REJOIN_S = 0.5
_JOIN_WAIT_S = 10.0
"""Seconds that a leaving member waits for its own join to end. The join waits for the heartbeats of
other members, and for the session timeout of a dead member."""
_NEXT_GENERATION = frozenset({KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})
_REBALANCE_S = 1.0
"""Seconds after the session timeout that a commit waits for the next generation. The group waits
for the session of a dead member first, and the client has no generation in the meantime."""
_SESSION_MS = 45_000
"""The client's default."""
_KNOWN_S = 3.0
"""Seconds that a topic may be unknown to brokers before it counts as deleted."""
_NO_TOPIC = "^headrace-matches-no-topic$"
_LOST = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}
)
_RAISED = {Reaction.REJOIN: MemberFencedError, Reaction.MIGRATED: TaskMigratedError}


class LiveConsumer:
    """A confluent-kafka consumer that raises the runtime's own errors.

    Args:
        reads_headers: False if `headers()` of the records is never called.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        clock: Clock | None = None,
        make_client: MakeClient | None = None,
        brokers: BrokerState | None = None,
        waiting: Callable[[], bool] = lambda: False,
        reads_headers: bool = True,
    ) -> None:
        self._clock = clock or SystemClock()
        self._waiting = waiting
        self._reads_headers = reads_headers
        # A missing offset must be an error: a silent reset would lose records.
        self._config = {**config, "auto.offset.reset": "error"}
        self._brokers = brokers or BrokerState()
        self._make_client = make_client or partial(new_consumer, brokers=self._brokers)
        self._timeout_s = timeout_s
        session_s = float(config.get("session.timeout.ms", _SESSION_MS)) / 1000
        self._rebalance_s = session_s + _REBALANCE_S
        self._subscribed: tuple[Sequence[str], RebalanceListener] | None = None
        self._has_extra_topic = False
        self._is_leaving = False
        self._is_closing = False
        self._is_closed = False
        self._is_in_callback = False
        self._client = self._make_client(dict(self._config))

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        self._subscribed = topics, listener
        self._subscribe(topics, listener)

    def _subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        current = self._client

        def assigned(client: Any, partitions: Any) -> None:
            # An explicit call, even an empty one, prevents the client's default: to start reading.
            client.incremental_assign([])
            is_over = self._is_leaving or self._is_closing
            # A replaced client may be assigned partitions during its close; ignore them.
            if self._client is current and not is_over:
                with self._in_callback():
                    listener.on_assigned([*map(tp_of, partitions)])

        def revoked(client: Any, partitions: Any) -> None:
            remove(client, partitions, listener.on_revoked)

        def lost(client: Any, partitions: Any) -> None:
            remove(client, partitions, listener.on_lost)

        def remove(client: Any, partitions: Any, callback: Callable[..., None]) -> None:
            # Tasks of a replaced client were already released. Before a close, the worker has
            # committed, and it releases its tasks afterwards.
            try:
                if self._client is current and not self._is_closing:
                    with self._in_callback():
                        callback([*map(tp_of, partitions)])
            finally:
                # Otherwise the client does so itself, and its errors there cannot be caught.
                client.incremental_unassign([])

        self._client.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=lost)

    @contextlib.contextmanager
    def _in_callback(self) -> Iterator[None]:
        self._is_in_callback = True
        try:
            yield
        finally:
            self._is_in_callback = False

    def ask_for_rebalance(self) -> None:
        assert self._subscribed is not None, "before subscribe"
        topics, listener = self._subscribed
        # A client without a membership crashes the process if its subscription changes.
        if not self._client.memberid():
            return
        # A changed subscription makes the client rejoin and report its current partitions. The
        # pattern matches no topic.
        self._has_extra_topic = not self._has_extra_topic
        self._subscribe([*topics, _NO_TOPIC] if self._has_extra_topic else topics, listener)

    def trigger_rejoin(self) -> None:
        assert self._subscribed is not None, "before subscribe"
        # The client joins at most once per second; a metadata response resets that limit.
        with contextlib.suppress(KafkaException):
            self._client.list_topics(self._subscribed[0][0], timeout=_TRIGGER_REJOIN_S)

    def send_heartbeat(self) -> None:
        # The client checks when it is woken, as by this call; otherwise every half second only.
        self._client.consumer_group_metadata()

    def refresh_metadata(self) -> bool:
        try:
            # Only a response about all topics makes the client re-evaluate its subscription.
            # Otherwise it does so every topic.metadata.refresh.interval.ms, five minutes.
            self._client.list_topics(timeout=_METADATA_S)
        except KafkaException:
            return False
        return True

    def rejoin(self) -> None:
        assert self._subscribed is not None, "rejoin before subscribe"
        old, self._client = self._client, self._make_client(dict(self._config))
        with contextlib.suppress(KafkaException):
            old.close()
        self._has_extra_topic = False
        self._subscribe(*self._subscribed)

    def poll(self, max_records: int, timeout_s: float) -> Batches:
        messages = self._client.consume(max_records, 0)
        if not messages and timeout_s > 0:
            first = self._client.poll(timeout_s)
            if first is None:
                return _NOTHING
            messages = [first, *self._client.consume(max_records - 1, 0)]
        if not messages:
            return _NOTHING
        if self._reads_headers:
            read_headers(messages)
        try:
            return by_partition(messages, self._config)
        except MissingTopicError:
            self._require_gone(messages)
            raise

    def _require_gone(self, messages: Sequence[Message]) -> None:
        """Raise TaskMigratedError if a missing topic exists: brokers learn of new topics late."""
        gone = next(
            m
            for m in messages
            if (error := m.error()) and error.code() in GONE and m.topic() != _NO_TOPIC
        )
        topic, partition = gone.topic() or "", gone.partition()
        deadline = self._clock.monotonic_s() + _KNOWN_S
        while self._clock.monotonic_s() < deadline or self._waiting():
            if self._brokers.is_stop_overdue():
                raise StopRequestedError(f"stopped while waiting for: topic {topic}")
            with contextlib.suppress(KafkaException):
                metadata = self._client.list_topics(topic, timeout=_METADATA_S).topics.get(topic)
                if metadata is not None and partition in metadata.partitions:
                    raise TaskMigratedError(
                        f"{topic}-{partition} exists, but a broker did not know it yet"
                    )
            self._clock.sleep(_RETRY_WAIT_S)

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._client.incremental_assign(
            [confluent_kafka.TopicPartition(t, p, offset) for (t, p), offset in offsets.items()]
        )

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        if not self._is_closed:
            self._client.incremental_unassign(_positions(partitions))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._client.pause(_positions(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._client.resume(_positions(partitions))

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        try:
            offsets = self._client.committed(_positions(partitions), timeout_s)
        except KafkaException as error:
            # An undecided transaction appears as a timeout that is marked not retriable.
            if reaction_to(error.args[0], "consumer") is Reaction.RETRY:
                return None
            _raise(error.args[0], "committed offsets", self._config)
        result: dict[TopicPartition, CommittedOffset | None] = {}
        for position in offsets:
            if position.error is not None:
                if reaction_to(position.error, "query") is Reaction.RETRY:
                    return None
                tp = tp_of(position)
                _raise(position.error, f"committed offset of {tp}", self._config, topic=tp.topic)
            known = position.offset >= 0
            result[tp_of(position)] = (
                CommittedOffset(position.offset, text_of(position)) if known else None
            )
        return result

    def positions(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return nothing within a callback: a commit there could include records not returned.

        A client that is closing drops its records, and advances past their markers (librdkafka's
        rd_kafka_consumer_close0).
        """
        if self._is_in_callback:
            return {}
        positions = self._client.position(_positions(partitions))
        return {tp_of(position): position.offset for position in positions if position.offset >= 0}

    def lag(self, tp: TopicPartition, next_offset: int) -> int | None:
        """Return None until the first fetch response of the partition."""
        ends = self._client.get_watermark_offsets(confluent_kafka.TopicPartition(*tp), cached=True)
        if ends is None or ends[1] < 0:
            return None
        return max(0, int(ends[1]) - next_offset)

    def member_id(self) -> str:
        return self._client.memberid() or ""

    def group_metadata(self) -> GroupMetadata | None:
        try:
            return self._client.consumer_group_metadata()  # type: ignore[no-any-return]
        except RuntimeError:
            return None

    def commit(self, offsets: Offsets) -> None:
        wanted = client_offsets(offsets)
        member, begun_s = self.member_id(), self._clock.monotonic_s()
        deadline = begun_s + self._timeout_s
        while True:
            try:
                answers = self._client.commit(offsets=wanted, asynchronous=False)
            except KafkaException as error:
                cause, topic = error.args[0], wanted[0].topic if wanted else None
            else:
                failed = next((a for a in answers or [] if a.error is not None), None)
                if failed is None:
                    return
                cause, topic = failed.error, failed.topic
            retry = reaction_to(cause, "offsets") is Reaction.RETRY
            if cause.code() in _NEXT_GENERATION and self.member_id() == member:
                # The member keeps its partitions until a callback revokes them, so retry.
                retry = self._clock.monotonic_s() - begun_s < self._rebalance_s
            is_over = self._clock.monotonic_s() > deadline and not self._waiting()
            if not retry or is_over:
                _raise(cause, "offset commit", self._config, call="offsets", topic=topic)
            if self._brokers.is_stop_overdue():
                raise StopRequestedError("stopped while waiting for: offset commit")
            self._clock.sleep(_RETRY_WAIT_S)

    def close(self, *, leave: bool) -> None:
        """Forward no callbacks during the client's own close: the group's thread may end meanwhile.

        Requests sent just before are never answered then (librdkafka's rd_kafka_cgrp_terminated).
        """
        if self._is_closed:
            return
        # A client with a fatal error rejects these calls; the group has removed it anyway.
        with contextlib.suppress(KafkaException):
            if leave:
                self._is_leaving = True
                self._end_joining()
                self._client.unsubscribe()
                # A poll sends the leave request and runs the last callbacks.
                self._client.poll(0.1)
        self._is_closing = True
        with contextlib.suppress(KafkaException):
            self._client.close()
        self._is_closed = True

    def _end_joining(self) -> None:
        """Wait until the group has assigned the member ID.

        Before, a leave has no effect: the group adds the member later, and waits a session for it.
        """
        deadline = self._clock.monotonic_s() + _JOIN_WAIT_S
        while self._subscribed is not None and not self.member_id():
            if self._clock.monotonic_s() > deadline or self._waiting():
                return
            message = self._client.poll(_RETRY_WAIT_S)
            error = None if message is None else message.error()
            if error is not None and error.fatal():
                return


def by_partition(messages: list[Message], config: Mapping[str, Any]) -> Batches:
    """Group a client's messages by partition; raise final errors among them."""
    # One C loop each instead of a Python loop: most batches are of one partition.
    if set(map(Message.error, messages)) != {None}:
        messages = without_errors(messages, config)
        if not messages:
            return _NOTHING
    topics = set(map(Message.topic, messages))
    partitions: list[Any] = list(map(Message.partition, messages))
    if len(topics) > 1:
        tps = list(zip(map(Message.topic, messages), partitions, strict=True))
        return {TopicPartition(*tp): of for tp, of in _group_runs(tps, messages).items()}
    topic: Any = topics.pop()
    if len(set(partitions)) == 1:
        return {TopicPartition(topic, partitions[0]): messages}  # type: ignore[dict-item]
    return {TopicPartition(topic, p): of for p, of in _group_runs(partitions, messages).items()}


def _group_runs(tps: list[Any], messages: list[Message]) -> dict[Any, Any]:
    groups: dict[Any, list[Message]] = {}
    end = 0
    for tp, run in groupby(tps):
        begin, end = end, end + len(list(run))
        group = groups.get(tp)
        if group is None:
            groups[tp] = messages[begin:end]
        else:
            group += messages[begin:end]
    return groups


def without_errors(messages: list[Message], config: Mapping[str, Any]) -> list[Message]:
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
            continue
        if message.topic() == _NO_TOPIC:
            continue
        where = f"{message.topic()}-{message.partition()}" if message.topic() else "the cluster"
        _raise_if_final(error, where, config, topic=message.topic())
    return records


def _raise_if_final(
    error: KafkaError, where: str, config: Mapping[str, Any], *, topic: str | None
) -> None:
    code = error.code()
    if code == KafkaError._FATAL:
        _raise_fatal(error, where)
    if code in _LOST:
        raise OffsetLostError(where, error.str())
    if code in GONE:
        raise MissingTopicError(
            f"{where} no longer exists. Re-create the topic, or remove it from the topology, then "
            "start the application"
        )
    if code == KafkaError._MAX_POLL_EXCEEDED:
        raise TaskMigratedError(
            f"no poll within max.poll.interval.ms: {error.str()}; a user function took too long. "
            "Make it faster, or raise consumer.max.poll.interval.ms"
        )
    if reaction_to(error, "consumer") is not Reaction.RETRY:
        _raise(error, where, config, topic=topic)


def _raise_fatal(error: KafkaError, where: str) -> NoReturn:
    # The error is delivered once, as a message; only its text has the cause.
    is_fenced = "static consumer fenced" in error.str().lower()
    kind = MemberFencedError if is_fenced else FatalClientError
    raise kind(f"consumer, {where}: {error.str()}")


def _raise(
    error: KafkaError,
    where: str,
    config: Mapping[str, Any],
    *,
    call: Call = "query",
    topic: str | None = None,
) -> NoReturn:
    if error.code() == KafkaError._FATAL:
        # The cause is delivered later, as a message: usually, the member was fenced.
        raise MemberFencedError(f"consumer, {where}: {error.str()}")
    reaction = reaction_to(error, call)
    if reaction is Reaction.DENIED:
        raise denial(error, config, topic=topic, right="Read")
    if reaction is Reaction.MISCONFIGURED:
        raise wrong_setting(error, f"consumer, {where}")
    kind = _RAISED.get(reaction, FatalClientError)
    raise kind(f"consumer, {where}: {error.str()}")


def _positions(tps: Iterable[TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(*tp) for tp in tps]
