"""The live producers, one per guarantee, behind `headrace.streams.seams.clients.Producer`.

Hot path: `send` runs for every record that leaves a task; benchmarks/produce.py times it.

Every retry rule of a producer's calls is here. What a call cannot settle itself becomes one of
`headrace.streams.errors`, by the table in `headrace.streams.kafka.reactions`.

The client takes a timestamp of 0 for none and writes the present instead, so 0 becomes 1.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.contact.denials import denial
from headrace.streams.errors import (
    AbortableError,
    FatalClientError,
    MemberFencedError,
    MissingTopicError,
    OutcomeUnknownError,
    ProducerFencedError,
    RecordRefusedError,
    RecordTooLargeError,
    StopRequestedError,
    TaskMigratedError,
)
from headrace.streams.kafka.broker_contact import Heard
from headrace.streams.kafka.kafka_clients import new_producer, new_transactional_producer
from headrace.streams.kafka.reactions import Call, Reaction, reaction_to
from headrace.streams.seams.clients import Clock, GroupMetadata, Offsets, TopicPartition
from headrace.streams.seams.refused_times import REFUSED
from headrace.streams.seams.system_clock import SystemClock
from headrace.topology.compile.compiler import Headers

_RETRY_WAIT_S = 0.05
_PRESSURE_WAIT_S = 0.05
_OFFSETS_WAIT_S = 5.0
"""It takes milliseconds, or a coordinator is away; a new producer waits for that better."""
_INIT_SLICE_S = 5.0
"""A call that timed out is taken up again by the next one."""
_REPORT_WAIT_S = 0.01

_REFUSED_AT = re.compile(r"ProduceRequest for (\S+) \[(\d+)\]")
"""Where librdkafka says which partition a failed transaction could not write to."""
_TOO_LARGE = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)

_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})

Rows = Sequence[tuple[bytes, "bytes | None", int]]
MakeClient = Callable[[dict[str, Any]], confluent_kafka.Producer]
EndOffsets = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]


class _LiveProducer:
    """What both guarantees share: sending, back-pressure, and the translation of errors."""

    _make: Callable[..., confluent_kafka.Producer] = staticmethod(new_producer)

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        max_in_flight: int = 200_000,
        topic_limits: Mapping[str, int] | None = None,
        clock: Clock | None = None,
        make_client: MakeClient | None = None,
        stopping: Callable[[], bool] = lambda: False,
        contact: Heard | None = None,
        group: str | None = None,
        waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stopping = stopping
        self._waiting = waiting
        self._config = config
        self._group = group
        self._contact = contact or Heard()
        self._clock = clock or SystemClock()
        self._timeout_s = timeout_s
        self._max_in_flight = max_in_flight
        self._topic_limits = topic_limits or {}
        self._failure: KafkaError | None = None
        self._failed_place: tuple[str, int | None] = ("", None)
        self.waited_s = 0.0
        make = make_client or partial(self._make, hearing=self._contact)
        self._client = make(self._with_callbacks(dict(config)))
        self.send = self._make_send()

    def _with_callbacks(self, config: dict[str, Any]) -> dict[str, Any]:
        return config

    def _make_send(
        self,
    ) -> Callable[[str, bytes | None, bytes | None, int, int, Headers | None], None]:
        produce: Callable[..., None] = self._client.produce
        wait, refuse = self._wait_for_room, self._refuse_record

        def send(
            topic: str,
            value: bytes | None,
            key: bytes | None,
            partition: int,
            timestamp: int,
            headers: Headers | None,
        ) -> None:
            while True:
                try:
                    produce(topic, value, key, partition, None, None, timestamp or 1, headers)
                except BufferError:
                    wait()
                    continue
                except KafkaException as error:
                    refuse(error, topic, key, value)
                return

        return send

    def _refuse_record(
        self, error: KafkaException, topic: str, key: bytes | None, value: bytes | None
    ) -> NoReturn:
        cause: KafkaError = error.args[0]
        if cause.code() in _TOO_LARGE:
            size = len(key or b"") + len(value or b"")
            raise RecordTooLargeError(topic, size, self._topic_limits.get(topic)) from error
        if cause.code() in _GONE:
            raise _missing(topic, cause) from error
        self._raise_for_send(error)

    def _raise_for_send(self, error: KafkaException) -> NoReturn:
        self._raise(error, "send")

    def pressure(self, timeout_s: float) -> None:
        """Serve delivery reports, and wait while too much is under way."""
        self._poll(0)
        deadline = self._clock.monotonic_s() + timeout_s
        while len(self._client) > self._max_in_flight and self._clock.monotonic_s() < deadline:
            self._poll(_PRESSURE_WAIT_S)

    def _poll(self, timeout_s: float) -> None:
        """Serve callbacks; that of a fatal error raises it in whichever call serves it first."""
        try:
            self._client.poll(timeout_s)
        except KafkaException as error:
            self._raise(error, "send")

    def _wait_for_room(self) -> None:
        begun_s = self._clock.monotonic_s()
        self._poll(_PRESSURE_WAIT_S)
        self.waited_s += self._clock.monotonic_s() - begun_s

    def _poll_quietly(self) -> None:
        """Have the client say what it has to say of an error."""
        with contextlib.suppress(KafkaException):
            self._client.poll(0)

    def _flush(self, timeout_s: float) -> int:
        try:
            return self._client.flush(timeout_s)
        except KafkaException as error:
            self._raise(error, "send")

    def _drop(self) -> None:
        """Forget what is queued, and what has gone wrong."""
        self._client.purge()
        with contextlib.suppress(KafkaException):
            self._client.poll(0)

    def _check_sizes(self, topic: str, rows: Rows) -> None:
        limit = self._topic_limits.get(topic)
        if limit is None:
            return
        for key, value, _ in rows:
            if value is not None and len(value) > limit:
                raise RecordTooLargeError(topic, len(value), limit, key_size=len(key))

    def _send_rows(self, place: TopicPartition, rows: Rows) -> None:
        """Like `send` for each row, without a call of one's own per row."""
        topic, partition = place
        produce = self._client.produce
        for key, value, timestamp in rows:
            try:
                produce(topic, value, key, partition, None, None, timestamp or 1)
            except BufferError:
                self._wait_for_room()
                self.send(topic, value, key, partition, timestamp, None)
            except KafkaException as error:
                self._refuse_record(error, topic, key, value)

    def _call(
        self,
        call: Call,
        function: Callable[..., Any],
        *args: Any,
        unless: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call the client; again within the bound for what passes, else raise the reaction."""
        deadline = self._clock.monotonic_s() + self._timeout_s
        while True:
            try:
                function(*args)
            except KafkaException as error:
                retry = reaction_to(error.args[0], call) is Reaction.RETRY
                is_over = self._clock.monotonic_s() > deadline and not self._waiting()
                if not retry or is_over:
                    self._raise(error, call)
                self._poll(0)  # the client says meanwhile that it reaches no broker
                if unless():
                    raise StopRequestedError(f"stopped while waiting for: {call}") from error
                self._clock.sleep(_RETRY_WAIT_S)
            else:
                return

    def _raise(self, error: KafkaException, call: Call) -> NoReturn:
        cause: KafkaError = error.args[0]
        reaction = reaction_to(cause, call)
        if reaction is Reaction.DENIED:
            self._poll_quietly()
            topic = self._contact.denied_topic
            raise denial(cause, self._config, topic=topic, group=self._group) from error
        if reaction is Reaction.REJOIN:
            raise MemberFencedError(f"producer, {call}: {cause.str()}") from error
        if reaction is Reaction.FENCED:
            raise ProducerFencedError(f"producer, {call}: {cause.str()}") from error
        if reaction is Reaction.MIGRATED:
            raise TaskMigratedError(f"producer, {call}: {cause.str()}") from error
        if reaction is Reaction.REFUSED:
            found = _REFUSED_AT.search(cause.str())
            topic, partition = (found[1], int(found[2])) if found else (None, None)
            raise self._refused(cause, topic, partition) from error
        if reaction is Reaction.ABORT:
            raise AbortableError(f"producer, {call}: {cause.str()}") from error
        if reaction in (Reaction.REPLACE, Reaction.RETRY):
            raise OutcomeUnknownError(f"producer, {call}: {cause.str()}") from error
        raise FatalClientError(f"producer, {call}: {cause.str()}") from error

    def _refused(
        self, cause: KafkaError, topic: str | None, partition: int | None
    ) -> RecordRefusedError:
        where = topic or "a topic"
        if cause.code() == KafkaError.INVALID_TIMESTAMP:
            what = f"{where} {REFUSED}"
            return RecordRefusedError(what, topic=topic, partition=partition, for_its_time=True)
        if cause.code() not in _TOO_LARGE:
            what = f"{where} refuses a record: {cause.str()}"
        else:
            limit = self._topic_limits.get(topic or "")
            of = f" of {limit}" if limit is not None else ""
            what = f"a record, or a batch of them, is larger than the max.message.bytes{of} of "
            what += f"{where}; raise it, or write less per record"
        return RecordRefusedError(what, topic=topic, partition=partition)


def _missing(topic: str, cause: KafkaError) -> MissingTopicError:
    return MissingTopicError(
        f"topic {topic}, which the application writes, does not exist any more ({cause.str()}); "
        "create it again, or take it out of the topology, then start the application",
        topics=[topic],
    )


class TransactionalProducer(_LiveProducer):
    """Exactly-once: everything between `begin` and `commit` becomes visible together."""

    _make = staticmethod(new_transactional_producer)

    def __init__(self, config: Mapping[str, Any], **limits: Any) -> None:
        super().__init__(config, **limits)
        # The brokers abort what takes longer, so there is nothing to wait for.
        expires_s = int(config.get("transaction.timeout.ms", 60_000)) / 1000
        self._transaction_timeout_s = min(self._timeout_s, expires_s)
        self._offsets_timeout_s = min(self._transaction_timeout_s, _OFFSETS_WAIT_S)
        self._ends: dict[TopicPartition, int] = {}
        self._is_open = False
        self._number = 0
        """Of the transaction: reports of one before may come late."""

    def init(self) -> None:
        """Decide what an earlier producer of the same identity left open.

        Raises:
            StopRequestedError: it was not decided yet, and nobody needs it any more.
        """
        slice_s = min(self._timeout_s, _INIT_SLICE_S)
        self._call("init", self._client.init_transactions, slice_s, unless=self._stopping)

    def _raise_for_send(self, error: KafkaException) -> NoReturn:
        # A send does not say what has broken the transaction, and to begin another one does.
        try:
            self._client.begin_transaction()
        except KafkaException as cause:
            error = cause
        self._raise(error, "send")

    def begin(self) -> None:
        """Begin a transaction; the client tells the broker with the first send."""
        self._ends.clear()
        self._number += 1
        self._call("send", self._client.begin_transaction)
        self._is_open = True

    def settle(self) -> None:
        """Nothing to wait for: what is sent becomes visible together, or not at all."""

    def send_changelog(self, place: TopicPartition, rows: Rows) -> None:
        """Write a store's delta; the report of the last record says where it ends."""
        self._check_sizes(place.topic, rows)
        self._send_rows(place, rows[:-1])
        key, value, timestamp = rows[-1]
        self._send_reported(place, key, value, timestamp)

    def _send_reported(
        self, place: TopicPartition, key: bytes, value: bytes | None, timestamp: int
    ) -> None:
        topic, partition = place
        reported = partial(self._reported, self._number)
        while True:
            try:
                self._client.produce(
                    topic, value, key, partition, reported, None, timestamp or 1, None
                )
            except BufferError:
                self._wait_for_room()
                continue
            except KafkaException as error:
                self._refuse_record(error, topic, key, value)
            return

    def _reported(
        self, number: int, error: KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        # A failed record makes the whole transaction abortable, so the commit will say so.
        if error is None and number == self._number:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            self._ends[TopicPartition(topic, partition)] = offset + 1

    def send_offsets(self, offsets: Offsets, metadata: GroupMetadata) -> None:
        """Add the input offsets to the transaction, fenced by the membership."""
        positions = [
            confluent_kafka.TopicPartition(place.topic, place.partition, c.offset, c.metadata)
            for place, c in offsets.items()
        ]
        self._call(
            "offsets",
            self._client.send_offsets_to_transaction,
            positions,
            metadata,
            self._offsets_timeout_s,
        )

    def commit(self) -> None:
        """Make everything since `begin` final: called once, whatever the answer."""
        try:
            self._client.commit_transaction(self._transaction_timeout_s)
        except KafkaException as error:
            self._raise(error, "commit")
        self._is_open = False

    def changelog_ends(self, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset behind the last record of each changelog, from the reports."""
        wanted = list(places)
        deadline = self._clock.monotonic_s() + self._timeout_s
        # The commit has waited for the records, but not for the reports to be handed out.
        while any(place not in self._ends for place in wanted):
            if self._clock.monotonic_s() > deadline:
                raise OutcomeUnknownError("the client does not say where changelog records went")
            self._poll(_REPORT_WAIT_S)
        return {place: self._ends[place] for place in wanted}

    def abort(self) -> None:
        """Make everything since `begin` void."""
        if self._is_open:
            self._call("abort", self._client.abort_transaction, self._transaction_timeout_s)
        self._is_open = False
        self._ends.clear()

    def close(self) -> None:
        """Drop what is queued; an open transaction is left for the successor to decide."""
        self._drop()
        # With an open transaction the client would wait for brokers that may not answer.
        if not self._is_open:
            self._client.close()


class PlainProducer(_LiveProducer):
    """At-least-once: all records are on the brokers before the offsets are committed."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        commit_offsets: Callable[[Offsets], None],
        end_offsets: EndOffsets,
        **limits: Any,
    ) -> None:
        super().__init__(config, **limits)
        self._commit_offsets = commit_offsets
        self._end_offsets = end_offsets
        self._offsets: Offsets = {}

    def _with_callbacks(self, config: dict[str, Any]) -> dict[str, Any]:
        # The client reports failures alone, for every record (delivery.report.only.error).
        return {**config, "on_delivery": self._failed}

    def _failed(self, error: KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None and self._failure is None:
            self._failure = error
            self._failed_place = (message.topic() or "", message.partition())

    def init(self) -> None:
        """Nothing to decide without transactions."""

    def begin(self) -> None:
        """Nothing to begin without transactions."""

    def settle(self) -> None:
        """Wait until everything is on the brokers; refuse to go on if any record failed."""
        deadline = self._clock.monotonic_s() + self._timeout_s
        while self._flush(1.0) > 0 and self._failure is None:
            if self._clock.monotonic_s() > deadline:
                raise OutcomeUnknownError(
                    f"{len(self._client)} records were not acknowledged within "
                    f"{self._timeout_s:.0f} s; check that the brokers are reachable"
                )
        self._check()

    def send_changelog(self, place: TopicPartition, rows: Rows) -> None:
        """Write a store's delta."""
        self._check_sizes(place.topic, rows)
        self._send_rows(place, rows)

    def send_offsets(self, offsets: Offsets, metadata: GroupMetadata) -> None:  # noqa: ARG002
        """Keep the offsets until everything before them is on the brokers."""
        self._offsets = offsets

    def commit(self) -> None:
        """Flush, refuse to go on if any record failed, then commit the offsets."""
        self.settle()
        if self._offsets:
            self._commit_offsets(self._offsets)

    def changelog_ends(self, places: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the changelogs' end offsets, as only this task writes there."""
        wanted = list(places)
        return self._end_offsets(wanted) if wanted else {}

    def abort(self) -> None:
        """What was sent stays sent; forget what is still queued, and the failure."""
        self._client.purge()
        self._flush(self._timeout_s)
        self._failure = None

    def pressure(self, timeout_s: float) -> None:
        """Serve failure reports, and wait while too much is under way."""
        super().pressure(timeout_s)
        self._check()

    def close(self) -> None:
        """Drop what is still queued: its offsets are not committed."""
        self._drop()
        self._client.close()

    def _check(self) -> None:
        failure = self._failure
        if failure is None:
            return
        topic, partition = self._failed_place
        reaction = reaction_to(failure, "send")
        if reaction is Reaction.REFUSED:
            raise self._refused(failure, topic, partition)
        if failure.code() in _GONE:
            raise _missing(topic, failure)
        if reaction is Reaction.DENIED:
            raise denial(failure, self._config, topic=topic)
        raise FatalClientError(f"a record for {topic}-{partition} failed: {failure.str()}")
