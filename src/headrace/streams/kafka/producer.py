"""Base of the live producers `plain_producer` and `transactional_producer`.

Hot path: `send` runs for every record that leaves a task; benchmarks/micro/produce.py measures it.

Every retry rule of a producer's calls is here. Errors that retries cannot handle become errors of
`headrace.streams.errors`, by the table in `headrace.streams.kafka.reactions`.

The client interprets a timestamp of 0 as none and writes the current time, so 0 is replaced by 1.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

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
    StreamsError,
    TaskMigratedError,
    record_size,
)
from headrace.streams.kafka.clients import BrokerState, new_producer
from headrace.streams.kafka.clocks import SystemClock
from headrace.streams.kafka.connectivity import rejection_error
from headrace.streams.kafka.denials import denial
from headrace.streams.kafka.headers import are_plain, produce_any
from headrace.streams.kafka.offset_texts import REFUSED, TimeLimits
from headrace.streams.kafka.protocols import Clock, TopicPartition
from headrace.streams.kafka.reactions import Call, Reaction, reaction_to, wrong_setting
from headrace.topology.context.environment import Headers

_RETRY_WAIT_S = 0.05
_PRESSURE_WAIT_S = 0.05
_SURE_AFTER_S = 4.0
"""Seconds until an authentication failure is final: a starting broker may not know its users yet.
"""

_REFUSED_AT = re.compile(r"ProduceRequest for (\S+) \[(\d+)\]")
"""Part of librdkafka's error text that names the partition of a failed transaction."""
TOO_LARGE = frozenset(
    {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE}
)

GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})

_LIMIT_KEPT_S = 1.0
_RAISED: Mapping[Reaction, type[StreamsError]] = {
    Reaction.REJOIN: MemberFencedError,
    Reaction.FENCED: ProducerFencedError,
    Reaction.MIGRATED: TaskMigratedError,
    Reaction.ABORT: AbortableError,
    Reaction.REPLACE: OutcomeUnknownError,
    Reaction.RETRY: OutcomeUnknownError,
}

Rows = Sequence[tuple[bytes, "bytes | None", int]]
MakeClient = Callable[[dict[str, Any]], confluent_kafka.Producer]


class LiveProducer:
    """Common base of both guarantees: sending, backpressure, and translation of errors."""

    _make: Callable[..., confluent_kafka.Producer] = staticmethod(new_producer)

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        max_in_flight: int = 200_000,
        topic_limits: Mapping[str, int] | None = None,
        time_limits: TimeLimits | None = None,
        ask_limit: Callable[[str], int | None] = lambda _: None,
        clock: Clock | None = None,
        latest_ms: Callable[[], int] | None = None,
        make_client: MakeClient | None = None,
        stopping: Callable[[], bool] = lambda: False,
        brokers: BrokerState | None = None,
        group: str | None = None,
        waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stopping = stopping
        self._waiting = waiting
        self._config = config
        self._group = group
        self._brokers = brokers or BrokerState()
        self._clock = clock or SystemClock()
        self._latest_ms = latest_ms or self._clock.now_ms
        self._timeout_s = timeout_s
        self._max_in_flight = max_in_flight
        self._topic_limits = dict(topic_limits or {})
        self._time_limits = time_limits or TimeLimits()
        self._ask_limit = ask_limit
        self._asked_limit_s: dict[str, float] = {}
        self._failure: KafkaError | None = None
        self._failed_partition: tuple[str, int | None] = ("", None)
        self.waited_s = 0.0
        self.abandoned_clients = 0
        self._make_a_client = make_client or partial(self._make, brokers=self._brokers)
        self._client = self._make_client()
        self.send = self._make_send()

    def _make_client(self) -> confluent_kafka.Producer:
        return self._make_a_client(dict(self._config))

    def _make_send(
        self,
    ) -> Callable[[str, bytes | None, bytes | None, int, int, Headers | None], None]:
        produce: Callable[..., None] = self._client.produce
        wait, refuse = self._wait_for_space, self._refuse_record
        require_time, highest_ms = self._require_time, self._highest_ms()

        def send(
            topic: str,
            value: bytes | None,
            key: bytes | None,
            partition: int,
            timestamp: int,
            headers: Headers | None,
        ) -> None:
            nonlocal highest_ms
            if timestamp > highest_ms:
                highest_ms = require_time(topic, timestamp)
            while True:
                try:
                    if not headers or are_plain(headers):
                        produce(topic, value, key, partition, None, None, timestamp or 1, headers)
                    else:
                        record = topic, value, key, partition, None, None, timestamp or 1
                        produce_any(partial(produce, *record), headers)
                except BufferError:
                    wait()
                    continue
                except KafkaException as error:
                    refuse(error, topic, key, value, headers)
                return

        return send

    @property
    def in_flight(self) -> int:
        return len(self._client)

    def _refuse_record(
        self,
        error: KafkaException,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
    ) -> NoReturn:
        cause: KafkaError = error.args[0]
        if cause.code() in TOO_LARGE:
            size = record_size(key, value, headers)
            raise RecordTooLargeError(topic, size, self._current_limit(topic)) from error
        if cause.code() in GONE:
            raise missing_topic_error(topic, cause) from error
        self._raise_for_send(error)

    def _raise_for_send(self, error: KafkaException) -> NoReturn:
        self._raise(error, "send")

    def limit_of(self, topic: str) -> int | None:
        return self._topic_limits.get(topic)

    def apply_backpressure(self, timeout_s: float) -> None:
        self._poll(0)
        if len(self._client) <= self._max_in_flight:
            return
        deadline = self._clock.monotonic_s() + timeout_s
        while len(self._client) > self._max_in_flight and self._clock.monotonic_s() < deadline:
            self._wait_for_space()

    def _check_stop(self) -> None:
        if self._brokers.is_stop_overdue():
            raise StopRequestedError("stopped while waiting for: send")

    def _poll(self, timeout_s: float) -> None:
        """Run callbacks; a fatal error is raised by the first call that runs its callback."""
        try:
            self._client.poll(timeout_s)
        except KafkaException as error:
            self._raise(error, "send")

    def _wait_for_space(self) -> None:
        begun_s = self._clock.monotonic_s()
        self._poll(_PRESSURE_WAIT_S)
        self.waited_s += self._clock.monotonic_s() - begun_s
        self._check_stop()

    def _poll_quietly(self) -> None:
        with contextlib.suppress(KafkaException):
            self._client.poll(0)

    def _flush(self, timeout_s: float) -> int:
        try:
            return self._client.flush(timeout_s)
        except KafkaException as error:
            self._raise(error, "send")

    def _drop(self) -> None:
        self._client.purge()
        self._poll_quietly()

    def _highest_ms(self) -> int:
        return self._time_limits.highest_ms(self._clock.now_ms())

    def _require_time(self, topic: str, timestamp: int) -> int:
        """Raise RefusedTimestampError, or return the next limit up to which no check is needed."""
        now_ms = self._clock.now_ms()
        if timestamp > now_ms:  # this machine's clock may have been set back, and not the brokers'
            now_ms = self._latest_ms()
        return self._time_limits.require(topic, timestamp, now_ms)

    def _check_rows(self, topic: str, rows: Rows) -> None:
        limit = self._topic_limits.get(topic, sys.maxsize)
        highest_ms = self._highest_ms()
        for key, value, timestamp in rows:
            if timestamp > highest_ms:
                highest_ms = self._require_time(topic, timestamp)
            if value is not None and len(value) > limit:
                limit = self._current_limit(topic) or limit
            if value is not None and len(value) > limit:
                raise RecordTooLargeError(topic, len(value), limit, key_size=len(key))

    def _current_limit(self, topic: str) -> int | None:
        """Request max.message.bytes again, which may have changed, at most once per second."""
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_limit_s.get(topic, -_LIMIT_KEPT_S) >= _LIMIT_KEPT_S:
            self._asked_limit_s[topic] = now_s
            limit = self._ask_limit(topic)
            if limit is not None:
                self._topic_limits[topic] = limit
        return self._topic_limits.get(topic)

    def _send_rows(self, tp: TopicPartition, rows: Rows) -> None:
        """Send rows with the client's produce directly, to save a Python call per row."""
        topic, partition = tp
        produce = self._client.produce
        for key, value, timestamp in rows:
            try:
                produce(topic, value, key, partition, None, None, timestamp or 1)
            except BufferError:
                self._wait_for_space()
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
        """Call the client, and retry within the time limit; raise errors by their reaction."""
        begun_s = self._clock.monotonic_s()
        deadline = begun_s + self._timeout_s
        while True:
            try:
                function(*args)
            except KafkaException as error:
                retry = reaction_to(error.args[0], call) is Reaction.RETRY
                is_over = self._clock.monotonic_s() > deadline and not self._waiting()
                if not retry or is_over:
                    self._raise(error, call)
                self._brokers.on_timeout()
                self._poll(0)  # the client reports unreachable brokers by callbacks
                if self._clock.monotonic_s() - begun_s >= _SURE_AFTER_S:
                    self._require_access()
                if unless() or self._brokers.is_stop_overdue():
                    raise StopRequestedError(f"stopped while waiting for: {call}") from error
                self._clock.sleep(_RETRY_WAIT_S)
            except OutcomeUnknownError:
                self._brokers.on_timeout()
                raise
            else:
                return

    def _require_access(self) -> None:
        """Raise AccessError if brokers reject this client, which calls do not report."""
        for failure in self._brokers.failures:
            if failure.is_final:
                raise rejection_error(failure, self._config)

    def _raise(self, error: KafkaException, call: Call) -> NoReturn:
        cause: KafkaError = error.args[0]
        reaction = reaction_to(cause, call)
        if reaction is Reaction.DENIED:
            self._poll_quietly()
            topic = self._brokers.denied_topic
            raise denial(cause, self._config, topic=topic, group=self._group) from error
        if reaction is Reaction.MISCONFIGURED:
            raise wrong_setting(cause, f"producer, {call}") from error
        if reaction is Reaction.REFUSED:
            match = _REFUSED_AT.search(cause.str())
            topic, partition = (match[1], int(match[2])) if match else (None, None)
            raise self._refused(cause, topic, partition) from error
        kind = _RAISED.get(reaction, FatalClientError)
        if kind is OutcomeUnknownError:
            self._brokers.on_timeout()
        raise kind(f"producer, {call}: {cause.str()}") from error

    def _refused(
        self, cause: KafkaError, topic: str | None, partition: int | None
    ) -> RecordRefusedError:
        where = topic or "a topic"
        if cause.code() == KafkaError.INVALID_TIMESTAMP:
            what = f"{where} {REFUSED}"
            return RecordRefusedError(what, topic=topic, partition=partition, for_its_time=True)
        if cause.code() not in TOO_LARGE:
            what = f"{where} rejects a record: {cause.str()}"
        else:
            limit = None if topic is None else self._current_limit(topic)
            of = f" of {limit}" if limit is not None else ""
            what = (
                f"a record or a batch is larger than the max.message.bytes{of} of {where}; raise "
            )
            what += "it, or write smaller records"
        return RecordRefusedError(what, topic=topic, partition=partition)


def missing_topic_error(topic: str, cause: KafkaError) -> MissingTopicError:
    return MissingTopicError(
        f"topic {topic}, which the application writes, does not exist ({cause.str()}); create it, "
        "or correct its name in the topology or in the handler that sends dead letters there, then "
        "start the application",
        topics=[topic],
    )
