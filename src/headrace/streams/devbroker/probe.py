"""Ask a node, as a client would, whether it serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient


class Probe:
    """A client of one node alone; keep it to ask again.

    Args:
        cluster_id: whose node it is to be.
        settings: what a client needs besides, of a secured broker.
    """

    def __init__(
        self, endpoint: str, *, cluster_id: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self._cluster_id = cluster_id
        # A node that is not up yet is no news: log_level 0 keeps the client from reporting it.
        self._client = AdminClient(
            {
                **(settings or {}),
                "bootstrap.servers": endpoint,
                "log_level": 0,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
            }
        )

    def serves(self, nodes: Iterable[int], *, timeout: timedelta) -> bool:
        """Whether it answers for our cluster and knows all of `nodes` as living brokers."""
        try:
            metadata = self._client.list_topics(timeout=timeout.total_seconds())
        except KafkaException:
            return False
        return metadata.cluster_id == self._cluster_id and set(nodes) <= metadata.brokers.keys()
