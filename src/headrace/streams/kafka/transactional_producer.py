"""The live producer of exactly-once: what both share is in `producer`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.errors import OutcomeUnknownError
from headrace.streams.kafka.connectivity import new_transactional_producer
from headrace.streams.kafka.producer import LiveProducer, Rows
from headrace.streams.kafka.protocols import GroupMetadata, Offsets, TopicPartition
from headrace.topology.context.environment import Headers

_OFFSETS_WAIT_S = 5.0
"""It takes milliseconds, or a coordinator is away; a new producer waits for that better."""
_SLICE_S = 5.0
"""A call that timed out is taken up again by the next one."""
_ENDING_S = 0.15
"""What the first client is given beside the time that it takes to connect.

Where a predecessor's transaction is open, its question ends that, within milliseconds, and it would
ask again after half a second only.
"""
_IDENTITY_WAITS_S = (2.5, 5.0, 10.0)
"""How long the second client waits for its identity, the third and all later ones.

A client that asked while the coordinator moved may get no answer at all: the next one gets it at
once. Brokers may be slow, too, so each waits longer than the one before.
"""
_REPORT_WAIT_S = 0.01
_MEET_S = 0.5
"""No longer than what it is to spare."""
_MEETINGS = 2
"""An address to begin with answers the first time; it is left for those that it has told of."""


class TransactionalProducer(LiveProducer):
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
        self._asked = 0
        """How many clients have asked for the identity."""

    def init(self) -> None:
        """Decide what an earlier producer of the same identity left open.

        Raises:
            StopRequestedError: it was not decided yet, and nobody needs it any more.
        """
        self._call("init", self._ask_for_identity, unless=self._stopping)

    def _ask_for_identity(self) -> None:
        """Ask by a client that has not asked yet.

        One that is called again sends a second request beside the first. The brokers answer both,
        with an epoch each, and its transactions would begin with the one that is void by then.
        """
        if self._asked:
            self._client = self._make_client()
            self.send = self._make_send()
            self.given_up += 1
        met_s = self._meet_brokers()
        waits_s = (_ENDING_S + met_s, *_IDENTITY_WAITS_S)
        wait_s = waits_s[min(self._asked, len(waits_s) - 1)]
        self._asked += 1
        self._client.init_transactions(min(self._timeout_s, wait_s))

    def _meet_brokers(self) -> float:
        """Hear of the brokers before one is named as the coordinator; returns how long it took.

        That is about as long as it takes to connect to another one. A client that has no connection
        to one that it has heard of takes that for an error, and asks again after half a second. The
        question is about a topic that is there, as one about all may be large.
        """
        begun_s = self._clock.monotonic_s()
        topic = next(iter(self._topic_limits), None)
        if topic is not None:
            with contextlib.suppress(KafkaException):
                for _ in range(_MEETINGS):
                    self._client.list_topics(topic, timeout=_MEET_S)
        return self._clock.monotonic_s() - begun_s

    def _raise_for_send(self, error: KafkaException) -> NoReturn:
        # A send does not say what has broken the transaction, and to begin another one does.
        try:
            self._client.begin_transaction()
        except KafkaException as cause:
            # A state that is only wrong for a begin tells nothing: the send itself is at fault.
            if cause.args[0].code() != KafkaError._STATE:
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

    def send_changelog(
        self, place: TopicPartition, rows: Rows, last_headers: Headers | None = None
    ) -> None:
        """Write a store's delta; the report of the last record says where it ends."""
        self._check_rows(place.topic, rows)
        self._send_rows(place, rows[:-1])
        key, value, timestamp = rows[-1]
        self._send_reported(place, key, value, timestamp, last_headers)

    def _send_reported(
        self,
        place: TopicPartition,
        key: bytes,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        topic, partition = place
        reported = partial(self._reported, self._number)
        produce: Callable[..., None] = self._client.produce
        while True:
            try:
                produce(topic, value, key, partition, reported, None, timestamp or 1, headers)
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
        """Make everything since `begin` void.

        Where nobody waits for the brokers any more it stays open, and the successor decides it.
        """
        if self._is_open:
            if self._contact.is_given_up():
                return
            slice_s = min(self._transaction_timeout_s, _SLICE_S)
            self._call("abort", self._client.abort_transaction, slice_s)
        self._is_open = False
        self._ends.clear()

    def close(self) -> None:
        """Drop what is queued; an open transaction is left for the successor to decide."""
        self._drop()
        # With an open transaction the client would wait for brokers that may not answer.
        if not self._is_open:
            # Of one whose first question is unanswered it warns that there is nothing to abort.
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
                self._client.close()
