"""The live producer of at-least-once; see `producer` for the common base."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError

from headrace.streams.errors import FatalClientError, OutcomeUnknownError
from headrace.streams.kafka.denials import denial
from headrace.streams.kafka.producer import GONE, LiveProducer, Rows, missing_topic_error
from headrace.streams.kafka.protocols import GroupMetadata, Offsets, TopicPartition
from headrace.streams.kafka.reactions import Reaction, reaction_to, wrong_setting
from headrace.topology.context.environment import Headers

EndOffsets = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]


class PlainProducer(LiveProducer):
    """At-least-once: all records are on the brokers before the offsets are committed."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        commit_offsets: Callable[[Offsets], None],
        end_offsets: EndOffsets,
        **limits: Any,
    ) -> None:
        # The client reports only failures (delivery.report.only.error).
        super().__init__({**config, "on_delivery": self._failed}, **limits)
        self._commit_offsets = commit_offsets
        self._end_offsets = end_offsets
        self._offsets: Offsets = {}

    def _failed(self, error: KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None and self._failure is None:
            self._failure = error
            self._failed_partition = (message.topic() or "", message.partition())

    def init(self) -> None:
        """Do nothing: no transaction can be open."""

    def begin(self) -> None:
        """Do nothing: the producer has no transactions."""

    def flush(self) -> None:
        deadline = self._clock.monotonic_s() + self._timeout_s
        while self._flush(1.0) > 0 and self._failure is None:
            self._check_stop()
            if self._clock.monotonic_s() > deadline:
                self._require_access()
                raise OutcomeUnknownError(
                    f"{len(self._client)} records were not acknowledged within "
                    f"{self._timeout_s:.0f} s; check that the brokers are reachable"
                )
        self._check()

    def send_changelog(
        self, tp: TopicPartition, rows: Rows, last_headers: Headers | None = None
    ) -> None:
        self._check_rows(tp.topic, rows)
        self._send_rows(tp, rows[:-1])
        key, value, timestamp = rows[-1]
        self.send(tp.topic, value, key, tp.partition, timestamp, last_headers)

    def send_offsets(self, offsets: Offsets, metadata: GroupMetadata) -> None:  # noqa: ARG002
        self._offsets = offsets

    def commit(self) -> None:
        self.flush()
        if self._offsets:
            self._commit_offsets(self._offsets)

    def changelog_ends(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offsets, because only this task writes to its changelogs."""
        wanted = list(tps)
        return self._end_offsets(wanted) if wanted else {}

    def abort(self) -> None:
        """Discard queued records and the failure; sent records cannot be rolled back."""
        self._client.purge()
        self._flush(self._timeout_s)
        self._failure = None

    def apply_backpressure(self, timeout_s: float) -> None:
        super().apply_backpressure(timeout_s)
        self._check()

    def close(self) -> None:
        """Discard queued records, whose offsets are not committed."""
        self._drop()
        self._client.close()

    def _check(self) -> None:
        failure = self._failure
        if failure is None:
            return
        topic, partition = self._failed_partition
        reaction = reaction_to(failure, "send")
        if reaction is Reaction.REFUSED:
            raise self._refused(failure, topic, partition)
        if failure.code() in GONE:
            raise missing_topic_error(topic, failure)
        if reaction is Reaction.MISCONFIGURED:
            raise wrong_setting(failure, f"a record for {topic}-{partition}")
        if reaction is Reaction.DENIED:
            raise denial(failure, self._config, topic=topic)
        raise FatalClientError(f"a record for {topic}-{partition} failed: {failure.str()}")
