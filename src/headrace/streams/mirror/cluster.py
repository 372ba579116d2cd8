"""Cluster operations that only a mirror needs."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import confluent_kafka.admin
from confluent_kafka import KafkaException

from headrace.streams.errors import ConfigError, FatalClientError
from headrace.streams.kafka.admin import REFUSED
from headrace.streams.kafka.clients import result_within
from headrace.streams.kafka.denials import DENIED, denial
from headrace.streams.kafka.group_admin import GroupAdmin
from headrace.streams.kafka.protocols import NewTopic

# The package does not export these classes explicitly, which a strict type check requires.
_kafka: Any = confluent_kafka.admin

_OF_A_CLUSTER = (
    "message.timestamp.type",  # a record keeps its own time
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    "remote.",
    "confluent.",
)
"""Prefixes of topic configs that are not copied to another cluster."""


class MirrorCluster(GroupAdmin):
    """Source or target cluster (see `headrace.streams.kafka.admin.LiveAdmin` for the arguments)."""

    def cluster_id(self) -> str:
        servers = self._config.get("bootstrap.servers")
        try:
            description = self._client.describe_cluster(request_timeout=self._request_s)
            return str(result_within(description, 2 * self._request_s).cluster_id)
        except KafkaException as error:
            if error.args[0].code() in DENIED:
                raise denial(error.args[0], self._config) from error
            raise FatalClientError(
                f"cannot describe the cluster at {servers}: {error.args[0].str()}"
            ) from error

    def topic_names(self) -> frozenset[str]:
        try:
            return frozenset(self._client.list_topics(timeout=self._request_s).topics)
        except KafkaException as error:
            raise FatalClientError(f"cannot list the topics: {error.args[0].str()}") from error

    def own_configs(self, topic: str) -> dict[str, str]:
        """Return a topic's explicitly set configs that apply to another cluster as well."""

        of_topic = _kafka.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            name: entry.value
            for name, entry in sorted(self._configs(topic).items())
            if getattr(entry.source, "value", entry.source) == of_topic
            and not name.startswith(_OF_A_CLUSTER)
        }

    def keeps_times(self, topic: str) -> bool:
        """Return whether records of a topic keep the timestamps of their producer."""
        entry = self._configs(topic).get("message.timestamp.type")
        return entry is None or entry.value != "LogAppendTime"

    def _configs(self, topic: str) -> dict[str, Any]:
        def send(some: list[str], request_s: float) -> dict[str, Future[Any]]:
            resources = [_kafka.ConfigResource(_kafka.ResourceType.TOPIC, name) for name in some]
            futures = self._client.describe_configs(resources, request_timeout=request_s)
            return {resource.name: future for resource, future in futures.items()}

        configs: dict[str, Any] = self._ask("describe the configs of", [topic], send)[topic]
        return configs

    def create_fitting(self, topic: NewTopic) -> dict[str, str]:
        """Create a topic without configs that this cluster rejects; return these with reasons."""
        try:
            self.create([topic])
        except ConfigError:
            refused = self._refused(topic)
            if not refused:
                raise
        else:
            return {}
        config = {name: value for name, value in topic.config.items() if name not in refused}
        self.create([replace(topic, config=config)])
        return refused

    def grow(self, topic: str, partitions: int) -> None:
        self._ask(
            "add partitions to",
            [topic],
            lambda some, request_s: self._client.create_partitions(
                [_kafka.NewPartitions(name, partitions) for name in some],
                request_timeout=request_s,
                operation_timeout=request_s,
            ),
        )

    def replicas(self, topic: str) -> int:
        return min(len(one.replicas) for one in self.layout(topic))

    def _refused(self, topic: NewTopic) -> dict[str, str]:
        """Return the rejected configs, each with the reason; configs are validated separately."""
        refused: dict[str, str] = {}
        for name, value in topic.config.items():
            new = _kafka.NewTopic(
                topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                config={name: value},
            )
            futures = self._client.create_topics(
                [new], validate_only=True, request_timeout=self._request_s
            )
            try:
                result_within(futures[topic.name], 2 * self._request_s)
            except KafkaException as error:
                cause = error.args[0]
                # Temporary errors are not rejections: the topic would lack this config.
                if cause.code() not in REFUSED:
                    break
                refused[name] = cause.str()
        return refused


def fitting(config: Mapping[str, str], replicas: int) -> tuple[dict[str, str], dict[str, str]]:
    """Split configs into valid configs for a replica count, and invalid configs with reasons.

    >>> fitting({"min.insync.replicas": "2", "retention.ms": "-1"}, 1)
    ({'retention.ms': '-1'}, {'min.insync.replicas': 'the topic has 1 replicas'})
    """
    wanted = int(config.get("min.insync.replicas", "1"))
    if wanted <= replicas:
        return dict(config), {}
    supported = {name: value for name, value in config.items() if name != "min.insync.replicas"}
    return supported, {"min.insync.replicas": f"the topic has {replicas} replicas"}
