"""The live consumer behind `headrace.streams.kafka.protocols.Consumer`.

Hot path: `poll` groups each batch by partition; benchmarks/micro/consume.py times it.

The group's assignment and what is read are kept apart: nothing is read on a rebalance by itself,
the runtime adds partitions, at explicit offsets, when their tasks are ready for them.
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
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.connectivity import BrokerState, new_consumer
from headrace.streams.kafka.denials import denial
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
from headrace.streams.kafka.reactions import Call, Reaction, reaction_to, wrong_setting

MakeClient = Callable[[dict[str, Any]], confluent_kafka.Consumer]
Batches = Mapping[TopicPartition, Sequence[ReceivedMessage]]

_NOTHING: Batches = {}
_RETRY_WAIT_S = 0.1
_METADATA_S = 2.0
_HASTEN_S = 0.5
_JOIN_WAIT_S = 10.0
"""How long a member that leaves waits for its joining to end; the others join once they hear of it,
with their next heartbeat, and one that is dead holds them up until its session ends."""
_NEXT_GENERATION = frozenset({KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})
_REBALANCE_S = 1.0
"""How long a commit waits for the next generation, behind the end of a session: the group waits for
that of a member that is gone before it begins one, and the client belongs to none meanwhile."""
_SESSION_MS = 45_000
"""The client's own default."""
_KNOWN_S = 3.0
"""How long a topic may be unknown to the brokers before it is taken for deleted."""
_NO_TOPIC = "^headrace-matches-no-topic$"
_GONE = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_LOST = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._LOG_TRUNCATION,
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)


class LiveConsumer:
    """A confluent-kafka consumer that raises the runtime's own errors.

    Args:
        reads_headers: False where nothing may call `headers()` of the records.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        clock: Clock | None = None,
        make_client: MakeClient | None = None,
        contact: BrokerState | None = None,
        waiting: Callable[[], bool] = lambda: False,
        reads_headers: bool = True,
    ) -> None:
        self._clock = clock or SystemClock()
        self._waiting = waiting
        self._reads_headers = reads_headers
        # An offset that is not there must be an error: a silent reset would lose records.
        self._config = {**config, "auto.offset.reset": "error"}
        self._contact = contact or BrokerState()
        self._make_client = make_client or partial(new_consumer, hearing=self._contact)
        self._timeout_s = timeout_s
        session_s = float(config.get("session.timeout.ms", _SESSION_MS)) / 1000
        self._rebalance_s = session_s + _REBALANCE_S
        self._subscribed: tuple[Sequence[str], RebalanceListener] | None = None
        self._asked = False
        self._is_leaving = False
        self._is_closing = False
        self._is_closed = False
        self._is_called_back = False
        self._client = self._make_client(dict(self._config))

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group for these topics."""
        self._subscribed = topics, listener
        self._subscribe(topics, listener)

    def _subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        current = self._client

        def assigned(client: Any, partitions: Any) -> None:
            # A call of one's own, even an empty one, keeps the client from its default: to read.
            client.incremental_assign([])
            is_over = self._is_leaving or self._is_closing
            # One that was replaced may be given partitions in its close, which are no one's then.
            if self._client is current and not is_over:
                with self._calling_back():
                    listener.on_assigned(_places(partitions))

        def revoked(client: Any, partitions: Any) -> None:
            take_away(client, partitions, listener.on_revoked)

        def lost(client: Any, partitions: Any) -> None:
            take_away(client, partitions, listener.on_lost)

        def take_away(client: Any, partitions: Any, tell: Callable[..., None]) -> None:
            # What a client that was replaced had is dropped already, and whoever closes one has
            # committed before, and lets go of what it has behind it.
            try:
                if self._client is current and not self._is_closing:
                    with self._calling_back():
                        tell(_places(partitions))
            finally:
                # Else the client does so itself, and what it raises where it cannot is no exception
                # that anybody could catch.
                client.incremental_unassign([])

        self._client.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=lost)

    @contextlib.contextmanager
    def _calling_back(self) -> Iterator[None]:
        self._is_called_back = True
        try:
            yield
        finally:
            self._is_called_back = False

    def ask_for_rebalance(self) -> None:
        """Have the group share out its partitions again; what stays where it is goes on.

        Nothing is asked where the client is about to join.
        """
        assert self._subscribed is not None, "before subscribe"
        topics, listener = self._subscribed
        # A client that joins without a membership ends the process over another subscription.
        if not self._client.memberid():
            return
        # A changed subscription makes the client join again, and what it owns by now is news to
        # the group. The pattern matches no topic.
        self._asked = not self._asked
        self._subscribe([*topics, _NO_TOPIC] if self._asked else topics, listener)

    def hasten(self) -> None:
        """Have the client take part at once in the rebalance that comes next."""
        assert self._subscribed is not None, "before subscribe"
        # The client joins once a second at most, and counts anew behind any answer about topics.
        with contextlib.suppress(KafkaException):
            self._client.list_topics(self._subscribed[0][0], timeout=_HASTEN_S)

    def keep_in_touch(self) -> None:
        """Have the client send a heartbeat if one is due."""
        # It looks when something wakes it, as a question does; by itself each half second alone.
        self._client.consumer_group_metadata()

    def hear_of_partitions(self) -> bool:
        """Ask what partitions there are, so that the group shares out new ones; whether it was."""
        try:
            # Only an answer about all topics makes the client look at its subscription again; by
            # itself it asks each topic.metadata.refresh.interval.ms, five minutes.
            self._client.list_topics(timeout=_METADATA_S)
        except KafkaException:
            return False
        return True

    def rejoin(self) -> None:
        """Join the group with a new client, once the old one's membership is lost for good."""
        assert self._subscribed is not None, "rejoin before subscribe"
        old, self._client = self._client, self._make_client(dict(self._config))
        with contextlib.suppress(KafkaException):
            old.close()
        self._asked = False
        self._subscribe(*self._subscribed)

    def poll(self, max_records: int, timeout_s: float) -> Batches:
        """Return what is there at once, or wait for the first record until the timeout."""
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
        """Let what is there begin anew: not each broker knows a new topic at once."""
        gone = next(
            m
            for m in messages
            if (error := m.error()) and error.code() in _GONE and m.topic() != _NO_TOPIC
        )
        topic, partition = gone.topic() or "", gone.partition()
        deadline = self._clock.monotonic_s() + _KNOWN_S
        while self._clock.monotonic_s() < deadline or self._waiting():
            if self._contact.is_given_up():
                raise StopRequestedError(f"stopped while waiting for: topic {topic}")
            with contextlib.suppress(KafkaException):
                found = self._client.list_topics(topic, timeout=_METADATA_S).topics.get(topic)
                if found is not None and partition in found.partitions:
                    raise TaskMigratedError(
                        f"{topic}-{partition} was not known to a broker, and is there"
                    )
            self._clock.sleep(_RETRY_WAIT_S)

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Start to read these partitions at these offsets."""
        self._client.incremental_assign(
            [confluent_kafka.TopicPartition(t, p, offset) for (t, p), offset in offsets.items()]
        )

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop to read these partitions."""
        if not self._is_closed:
            self._client.incremental_unassign(_positions(partitions))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until they are resumed."""
        self._client.pause(_positions(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of paused partitions again."""
        self._client.resume(_positions(partitions))

    def committed(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> Mapping[TopicPartition, CommittedOffset | None] | None:
        """Return the group's committed offsets, or None while they are undecided."""
        try:
            found = self._client.committed(_positions(partitions), timeout_s)
        except KafkaException as error:
            # An undecided transaction shows as a time-out that is marked not retriable.
            if reaction_to(error.args[0], "consumer") is Reaction.RETRY:
                return None
            self._raise(error.args[0], "committed offsets")
        result: dict[TopicPartition, CommittedOffset | None] = {}
        for position in found:
            if position.error is not None:
                if reaction_to(position.error, "query") is Reaction.RETRY:
                    return None
                place = _place(position)
                self._raise(position.error, f"committed offset of {place}", topic=place.topic)
            known = position.offset >= 0
            result[_place(position)] = (
                CommittedOffset(position.offset, text_of(position)) if known else None
            )
        return result

    def positions(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset after what was handed out last, control records passed over.

        None is known within a callback, so that no commit there takes for processed what the call
        has read, or dropped, and not handed out: a client that closes drops the records that it
        has, and moves behind their markers (librdkafka's rd_kafka_consumer_close0).
        """
        if self._is_called_back:
            return {}
        found = self._client.position(_positions(partitions))
        return {_place(position): position.offset for position in found if position.offset >= 0}

    def lag(self, place: TopicPartition, next_offset: int) -> int | None:
        """Return how many offsets the broker is known to have from `next_offset` on.

        None as long as nothing was heard of the partition.
        """
        ends = self._client.get_watermark_offsets(_position(place), cached=True)
        if ends is None or ends[1] < 0:
            return None
        return max(0, int(ends[1]) - next_offset)

    def member_id(self) -> str:
        """Return what the group knows the consumer by since it joined; empty without a group."""
        return self._client.memberid() or ""

    def group_metadata(self) -> GroupMetadata | None:
        """Return the present membership; None where a client that closes has none any more."""
        try:
            return self._client.consumer_group_metadata()  # type: ignore[no-any-return]
        except RuntimeError:
            return None

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets outside of a transaction, and wait for the answer."""
        wanted = [
            confluent_kafka.TopicPartition(place.topic, place.partition, c.offset, c.metadata)
            for place, c in offsets.items()
        ]
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
                # What this member has stays its own until a callback says that it goes.
                retry = self._clock.monotonic_s() - begun_s < self._rebalance_s
            is_over = self._clock.monotonic_s() > deadline and not self._waiting()
            if not retry or is_over:
                self._raise(cause, "offset commit", call="offsets", topic=topic)
            if self._contact.is_given_up():
                raise StopRequestedError("stopped while waiting for: offset commit")
            self._clock.sleep(_RETRY_WAIT_S)

    def _raise(
        self, error: KafkaError, where: str, *, call: Call = "query", topic: str | None = None
    ) -> NoReturn:
        _raise(error, where, self._config, call=call, topic=topic)

    def close(self, *, leave: bool) -> None:
        """Stop; with `leave`, leave the group so that others need not wait for a time-out.

        Callbacks of the client's own close tell nobody: in the midst of them its group's thread may
        end, and what that was asked a moment before is never answered (librdkafka's
        rd_kafka_cgrp_terminated).
        """
        if self._is_closed:
            return
        # A client that met a fatal error refuses the calls; the group knows it no more in any case.
        with contextlib.suppress(KafkaException):
            if leave:
                self._is_leaving = True
                self._end_joining()
                self._client.unsubscribe()
                # The leave request goes out, and the last callbacks run, in a poll.
                self._client.poll(0.1)
        self._is_closing = True
        with contextlib.suppress(KafkaException):
            self._client.close()
        self._is_closed = True

    def _end_joining(self) -> None:
        """Wait until the group has said what this member is called.

        Whoever leaves before that leaves nothing: the group takes it in afterwards, and the others
        wait for a whole session for somebody who is gone.
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
    """The records of each partition in what a client gave; errors that do not pass are raised."""
    # One C loop each instead of a Python loop: most batches are of one partition.
    if set(map(Message.error, messages)) != {None}:
        messages = checked(messages, config)
        if not messages:
            return _NOTHING
    topics = set(map(Message.topic, messages))
    partitions: list[Any] = list(map(Message.partition, messages))
    if len(topics) > 1:
        places = list(zip(map(Message.topic, messages), partitions, strict=True))
        return {TopicPartition(*place): of for place, of in _in_runs(places, messages).items()}
    topic: Any = topics.pop()
    if len(set(partitions)) == 1:
        return {TopicPartition(topic, partitions[0]): messages}  # type: ignore[dict-item]
    return {TopicPartition(topic, p): of for p, of in _in_runs(partitions, messages).items()}


def _in_runs(places: list[Any], messages: list[Message]) -> dict[Any, Any]:
    """The records of each place; those of one follow each other, as a fetch had them."""
    groups: dict[Any, list[Message]] = {}
    end = 0
    for place, run in groupby(places):
        begin, end = end, end + len(list(run))
        group = groups.get(place)
        if group is None:
            groups[place] = messages[begin:end]
        else:
            group += messages[begin:end]
    return groups


def checked(messages: list[Message], config: Mapping[str, Any]) -> list[Message]:
    """The records among what a client gave; errors that do not pass are raised."""
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
    if code in _GONE:
        raise MissingTopicError(
            f"{where} does not exist any more; create the topic again, or take it out of the "
            "topology, then start the application"
        )
    if code == KafkaError._MAX_POLL_EXCEEDED:
        raise TaskMigratedError(
            f"no poll within max.poll.interval.ms: {error.str()}; a user function took too long: "
            "make it faster, or set consumer.max.poll.interval.ms higher"
        )
    if reaction_to(error, "consumer") is not Reaction.RETRY:
        _raise(error, where, config, topic=topic)


def _raise_fatal(error: KafkaError, where: str) -> NoReturn:
    # It comes once, as a message; what is behind it is in the text alone.
    if "static consumer fenced" in error.str().lower():
        raise MemberFencedError(f"consumer, {where}: {error.str()}")
    raise FatalClientError(f"consumer, {where}: {error.str()}")


def _raise(
    error: KafkaError,
    where: str,
    config: Mapping[str, Any],
    *,
    call: Call = "query",
    topic: str | None = None,
) -> NoReturn:
    if error.code() == KafkaError._FATAL:
        # What is behind it comes as a message, later: as a rule, that the member is fenced.
        raise MemberFencedError(f"consumer, {where}: {error.str()}")
    reaction = reaction_to(error, call)
    if reaction is Reaction.DENIED:
        raise denial(error, config, topic=topic, right="Read")
    if reaction is Reaction.MISCONFIGURED:
        raise wrong_setting(error, f"consumer, {where}")
    if reaction is Reaction.REJOIN:
        raise MemberFencedError(f"consumer, {where}: {error.str()}")
    if reaction is Reaction.MIGRATED:
        raise TaskMigratedError(f"consumer, {where}: {error.str()}")
    raise FatalClientError(f"consumer, {where}: {error.str()}")


def _place(position: confluent_kafka.TopicPartition) -> TopicPartition:
    return TopicPartition(position.topic, position.partition)


def _places(positions: Iterable[confluent_kafka.TopicPartition]) -> list[TopicPartition]:
    return [_place(position) for position in positions]


def _position(place: TopicPartition) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(place.topic, place.partition)


def _positions(places: Iterable[TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    return [_position(place) for place in places]
