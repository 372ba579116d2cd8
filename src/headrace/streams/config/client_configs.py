"""librdkafka's settings for each client of an application."""

from __future__ import annotations

from headrace.streams.config.client_settings import (
    MAX_POLL_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS,
    ClientConfig,
    ClientSettings,
)
from headrace.streams.config.cross_checks import heartbeat_interval_ms, transaction_timeout_ms
from headrace.streams.config.endpoints import with_endpoint, with_version

PRODUCER_QUEUE_KIB = 64 * 1024
"""What waits to be sent at most; a commit of large values may be more, and waits for room."""
RECONNECT_MS = 20
"""A client's first pause before it connects again; each is twice the one before, up to 10 s."""
FETCH_WAIT_MS = 100
"""How long a broker may wait for records; librdkafka has it wait 500.

A client asks one question of a broker at a time. Partitions that it begins to read meanwhile wait
for the answer, and a question about topics that are still empty is often the first.
"""
BATCH_BYTES = 1_000_000
"""librdkafka's default of batch.size."""


class ClientConfigs:
    """The part of `StreamsConfig` that the clients get."""

    __slots__ = ()

    application_id: str
    application_server: str | None
    bootstrap_servers: str
    processing_guarantee: str
    _clients: ClientSettings

    @property
    def exactly_once(self) -> bool:
        """Whether state, output and offsets are committed in one transaction."""
        return self.processing_guarantee == "exactly_once_v2"

    @property
    def reads_committed(self) -> bool:
        """Whether inputs are read without aborted records, up to the last stable offset."""
        return self.consumer_config("")["isolation.level"] != "read_uncommitted"

    @property
    def transaction_timeout_ms(self) -> int:
        """After how many milliseconds the broker aborts a transaction of a worker that died."""
        return transaction_timeout_ms(self._clients)

    @property
    def max_poll_interval_ms(self) -> int:
        """After how many milliseconds without a poll the group gives up a worker."""
        return int(str(self.consumer_config("").get("max.poll.interval.ms", MAX_POLL_INTERVAL_MS)))

    @property
    def session_timeout_ms(self) -> int:
        """After how many milliseconds the group gives up a worker that died."""
        return int(str(self.consumer_config("")["session.timeout.ms"]))

    def consumer_config(self, instance_id: str, *, version: str = "") -> ClientConfig:
        """librdkafka's settings for the consumer of the input, a static member of the group.

        Args:
            version: a digest of how tasks own topics (see `headrace.streams.deployed.ownership`),
                for the other members.
        """
        chosen: ClientConfig = {
            **self._chosen_for_consumers(),
            # All inputs wait in one line: what is fetched ahead of one is waited for by the others.
            "queued.min.messages": 5_000,
            # Large records reach this bound before that of their number.
            "queued.max.messages.kbytes": 16 * 1024,
            "max.partition.fetch.bytes": 256 * 1024,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
        }
        owned: ClientConfig = {
            **self._owned_by_consumers(),
            "group.instance.id": instance_id,
            "group.protocol": "classic",
            "partition.assignment.strategy": "cooperative-sticky",
        }
        config = self._clients.layered(("consumer.",), chosen, owned, role="consumer")
        name = with_version(str(config["client.id"]), version)
        config["client.id"] = with_endpoint(name, self.application_server)
        # A rebalance waits for everybody's next heartbeat, and what moves is nobody's until then.
        config.setdefault("heartbeat.interval.ms", heartbeat_interval_ms(self._clients))
        return config

    def restore_config(self) -> ClientConfig:
        """librdkafka's settings for the consumer of changelogs, which joins no group.

        The ``consumer.`` settings apply to it as well, under the ``restore.`` ones.
        """
        owned: ClientConfig = {
            **self._owned_by_consumers(),
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
        return self._clients.layered(
            ("consumer.", "restore."), self._chosen_for_consumers(), owned, role="restore"
        )

    def producer_config(
        self,
        transactional_id: str | None,
        *,
        message_max_bytes: int | None = None,
        batch_max_bytes: int | None = None,
    ) -> ClientConfig:
        """librdkafka's settings for the producer of output and changelogs.

        Args:
            transactional_id: the worker's identity, or None for a producer without transactions.
            message_max_bytes: the largest record that a topic accepts, where it is known.
            batch_max_bytes: the largest batch that every topic accepts, where it is known.
        """
        chosen: ClientConfig = {
            **self._chosen_for_all(),
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5,
            # Its default of 100 delays each transaction that follows right on another.
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 1000,
            # How long a topic may be unknown before records for it fail; 30 s by default.
            "topic.metadata.propagation.max.ms": 5_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": PRODUCER_QUEUE_KIB,
        }
        if message_max_bytes is not None:
            chosen["message.max.bytes"] = message_max_bytes
            # The largest record has to find room.
            room_kib = max(PRODUCER_QUEUE_KIB, 2 * message_max_bytes // 1024)
            chosen["queue.buffering.max.kbytes"] = room_kib
        if batch_max_bytes is not None:
            # A topic bounds whole batches, and the client does not divide one that was refused.
            chosen["batch.size"] = min(BATCH_BYTES, batch_max_bytes)
        owned: ClientConfig = {
            **self._owned_by_all(),
            "partitioner": "murmur2_random",
            # Exactly-once needs the offset of each changelog record, at-least-once each failure.
            "delivery.report.only.error": not self.exactly_once,
        }
        if transactional_id is not None:
            chosen["transaction.timeout.ms"] = TRANSACTION_TIMEOUT_MS
            owned["transactional.id"] = transactional_id
        return self._clients.layered(("producer.",), chosen, owned, role="producer")

    def admin_config(self) -> ClientConfig:
        """librdkafka's settings for the admin client."""
        chosen = self._chosen_for_all()
        return self._clients.layered(("admin.",), chosen, self._owned_by_all(), role="admin")

    def _chosen_for_all(self) -> ClientConfig:
        # A new client tries to connect half as often as it does again; at the default of 100, the
        # first answer of each takes 50 ms.
        return {"client.id": self.application_id, "reconnect.backoff.ms": RECONNECT_MS}

    def _owned_by_all(self) -> ClientConfig:
        return {"bootstrap.servers": self.bootstrap_servers}

    def _chosen_for_consumers(self) -> ClientConfig:
        return {
            **self._chosen_for_all(),
            # At its default of 1000 a full queue pauses each partition for up to a second.
            "fetch.queue.backoff.ms": 2,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
        }

    def _owned_by_consumers(self) -> ClientConfig:
        return {
            **self._owned_by_all(),
            "group.id": self.application_id,
            "allow.auto.create.topics": False,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": False,
        }
