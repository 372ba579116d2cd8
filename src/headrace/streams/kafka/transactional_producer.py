"""The live producer of exactly-once; see `producer` for the common base."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from headrace.streams.errors import OutcomeUnknownError
from headrace.streams.kafka.clients import new_transactional_producer
from headrace.streams.kafka.group_offsets import client_offsets
from headrace.streams.kafka.producer import LiveProducer, Rows
from headrace.streams.kafka.protocols import GroupMetadata, Offsets, TopicPartition
from headrace.topology.context.environment import Headers

_OFFSETS_WAIT_S = 5.0
"""The call takes milliseconds, unless a coordinator is down; a new producer handles that better."""
_SLICE_S = 5.0
"""Timeout of a single call; a call that timed out is continued by the next call."""
_ENDING_S = 0.15
"""Timeout of the first client besides its connection time. If a predecessor's transaction is open,
the request aborts it within milliseconds, but the client would repeat the request only after half a
second."""
_IDENTITY_WAITS_S = (2.5, 5.0, 10.0)
"""Timeouts of the second, the third and all later clients for their producer ID. A client that
sends its request while the coordinator moves may never get an answer, but the next client gets it
immediately. Brokers may also be slow, so each timeout is longer."""
_REPORT_WAIT_S = 0.01
_MEET_S = 0.5
"""At most the half second that it saves."""
_MEETINGS = 2
"""The first request is answered by a bootstrap address, which the client then replaces by the
brokers that it has learned."""


class TransactionalProducer(LiveProducer):
    """Exactly-once: all records between `begin` and `commit` become visible atomically."""

    _make = staticmethod(new_transactional_producer)

    def __init__(self, config: Mapping[str, Any], **limits: Any) -> None:
        super().__init__(config, **limits)
        # The brokers abort longer transactions, so a longer wait is useless.
        expires_s = int(config.get("transaction.timeout.ms", 60_000)) / 1000
        self._transaction_timeout_s = min(self._timeout_s, expires_s)
        self._offsets_timeout_s = min(self._transaction_timeout_s, _OFFSETS_WAIT_S)
        self._ends: dict[TopicPartition, int] = {}
        self._is_open = False
        self._number = 0
        """Number of the transaction, to ignore late reports of earlier transactions."""
        self._asked = 0
        """Number of clients that have requested the producer ID."""

    def init(self) -> None:
        self._call("init", self._ask_for_identity, unless=self._stopping)

    def _ask_for_identity(self) -> None:
        """Request the producer ID with a client that has not requested it yet.

        A second request of a client is concurrent: brokers answer both, each with an epoch, and its
        transactions would start with the epoch that is already invalid.
        """
        if self._asked:
            self._client = self._make_client()
            self.send = self._make_send()
            self.abandoned_clients += 1
        met_s = self._meet_brokers()
        waits_s = (_ENDING_S + met_s, *_IDENTITY_WAITS_S)
        wait_s = waits_s[min(self._asked, len(waits_s) - 1)]
        self._asked += 1
        self._client.init_transactions(min(self._timeout_s, wait_s))

    def _meet_brokers(self) -> float:
        """Discover the brokers before the coordinator is named; return the seconds that it took.

        That is about the time to connect to another broker. A client without a connection to a
        discovered broker treats that as an error, and repeats the request only after half a second.
        The request names an existing topic because a response about all topics may be large.
        """
        begun_s = self._clock.monotonic_s()
        topic = next(iter(self._topic_limits), None)
        if topic is not None:
            with contextlib.suppress(KafkaException):
                for _ in range(_MEETINGS):
                    self._client.list_topics(topic, timeout=_MEET_S)
        return self._clock.monotonic_s() - begun_s

    def _raise_for_send(self, error: KafkaException) -> NoReturn:
        # The error of a send does not name the cause; beginning a transaction raises it.
        try:
            self._client.begin_transaction()
        except KafkaException as cause:
            # An invalid state for a begin is not the cause: keep the error of the send.
            if cause.args[0].code() != KafkaError._STATE:
                error = cause
        self._raise(error, "send")

    def begin(self) -> None:
        self._ends.clear()
        self._number += 1
        self._call("send", self._client.begin_transaction)
        self._is_open = True

    def flush(self) -> None:
        """Do nothing: all records become visible atomically."""

    def send_changelog(
        self, tp: TopicPartition, rows: Rows, last_headers: Headers | None = None
    ) -> None:
        """The delivery report of the last record has the end offset."""
        self._check_rows(tp.topic, rows)
        self._send_rows(tp, rows[:-1])
        (topic, partition), (key, value, timestamp) = tp, rows[-1]
        reported = partial(self._reported, self._number)
        produce: Callable[..., None] = self._client.produce
        while True:
            try:
                produce(topic, value, key, partition, reported, None, timestamp or 1, last_headers)
            except BufferError:
                self._wait_for_space()
                continue
            except KafkaException as error:
                self._refuse_record(error, topic, key, value)
            return

    def _reported(
        self, number: int, error: KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        # A failed record makes the whole transaction abortable, so the commit raises the error.
        if error is None and number == self._number:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            self._ends[TopicPartition(topic, partition)] = offset + 1

    def send_offsets(self, offsets: Offsets, metadata: GroupMetadata) -> None:
        """Add input offsets to the transaction, fenced by the group membership."""
        positions = client_offsets(offsets)
        self._call(
            "offsets",
            self._client.send_offsets_to_transaction,
            positions,
            metadata,
            self._offsets_timeout_s,
        )

    def commit(self) -> None:
        try:
            self._client.commit_transaction(self._transaction_timeout_s)
        except KafkaException as error:
            self._raise(error, "commit")
        self._is_open = False

    def changelog_ends(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        wanted = list(tps)
        deadline = self._clock.monotonic_s() + self._timeout_s
        # The commit has waited for the records, but not for their delivery reports.
        while any(tp not in self._ends for tp in wanted):
            if self._clock.monotonic_s() > deadline:
                raise OutcomeUnknownError(
                    "the client has not reported the end offsets of changelogs"
                )
            self._poll(_REPORT_WAIT_S)
        return {tp: self._ends[tp] for tp in wanted}

    def abort(self) -> None:
        """Leave it open if waits for the brokers have ended: the successor ends it."""
        if self._is_open:
            if self._brokers.is_stop_overdue():
                return
            slice_s = min(self._transaction_timeout_s, _SLICE_S)
            self._call("abort", self._client.abort_transaction, slice_s)
        self._is_open = False
        self._ends.clear()

    def close(self) -> None:
        """Discard queued records; the successor ends an open transaction."""
        self._drop()
        # With an open transaction the client would wait for brokers that may not answer.
        if not self._is_open:
            # Of a client without an answer to init_transactions, ignore a needless warning.
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
                self._client.close()
