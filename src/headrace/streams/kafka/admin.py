"""The live `TopicAdmin`: awaits confluent-kafka's futures, and raises the runtime's own errors."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from headrace.state.log import get_logger
from headrace.streams.errors import FatalClientError, StopRequestedError
from headrace.streams.kafka.acls import principal_of
from headrace.streams.kafka.asking import Asking
from headrace.streams.kafka.connectivity import answered, new_admin
from headrace.streams.kafka.denials import DENIED
from headrace.streams.kafka.group_offsets import OpenGroup
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupState,
    Member,
    NewTopic,
    TopicFacts,
    TopicPartition,
    places_in,
)
from headrace.streams.kafka.reactions import GONE

# The package offers these classes without declaring it, which a strict type check refuses.
_kafka: Any = confluent_kafka.admin

_CONFIGS_AGAIN_S = 0.5
_LOOK_AGAIN_S = 0.2
_CONFIGS = (
    "cleanup.policy",
    "max.message.bytes",
    "delete.retention.ms",
    "retention.ms",
    "min.compaction.lag.ms",
    "message.timestamp.type",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
)
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
_UNIQUE = re.compile(r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class LiveAdmin(Asking):
    """Admin client of a real cluster.

    Args:
        config: librdkafka's settings, from `StreamsConfig.admin_config`.
        timeout_s: how long a call is repeated after temporary errors.
        waiting: returns whether no broker is reachable now, so that calls are repeated for longer.
    """

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        described = self._described(names)
        configs = self._describe_configs(described)
        return {
            name: TopicFacts(
                name, len(topic.partitions), str(topic.topic_id), configs.get(name, {})
            )
            for name, topic in described.items()
        }

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        return {name: len(found.partitions) for name, found in self._described(names).items()}

    def ask_ids(self, topics: Sequence[str]) -> Callable[[float], Mapping[str, str] | None]:
        try:
            futures: Mapping[str, Future[Any]] = self._client.describe_topics(
                TopicCollection(list(topics)), request_timeout=self._request_s
            )
        except KafkaException:
            return lambda _: None
        return partial(_ids, futures)

    def _describe_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        def send(some: list[str], request_s: float) -> dict[str, Future[Any]]:
            resources = [_kafka.ConfigResource(_kafka.ResourceType.TOPIC, name) for name in some]
            futures = self._client.describe_configs(resources, request_timeout=request_s)
            return {resource.name: future for resource, future in futures.items()}

        # Reading configs requires a separate ACL, and the configs are useful but not required.
        ask = partial(
            self._ask, "describe the configs of", send=send, quick=True, ignored=GONE | DENIED
        )
        refused: dict[str, KafkaError] = {}
        entries = ask(names, refused=refused)
        again = sorted(refused.keys() - self._configs_unknown)
        if again:
            # The answering broker may not have received a new topic or a new ACL yet.
            time.sleep(_CONFIGS_AGAIN_S)
            refused = {}
            entries.update(ask(again, refused=refused))
            self._say_unknown(refused)
        return {
            name: {entry: found[entry].value for entry in _CONFIGS if entry in found}
            for name, found in entries.items()
        }

    def _say_unknown(self, refused: Mapping[str, KafkaError]) -> None:
        """Log the topics whose configuration cannot be checked, once per topic."""
        self._configs_unknown.update(refused)
        denied = sorted(name for name, error in refused.items() if error.code() in DENIED)
        who = principal_of(self._config)
        if denied:
            self._warn_unknown(
                denied,
                f"{who} lacks the right DescribeConfigs on them",
                "grant it: a topic that is not kept as it must be can lose state",
            )
        others = sorted(refused.keys() - set(denied))
        if others:
            said = "; ".join(sorted({refused[name].str() for name in others}))
            self._warn_unknown(
                others,
                f"the brokers did not say, asked twice: {said}",
                "no right is missing; topics that are new or were just deleted look like this, "
                "and the next start asks again",
            )

    def _warn_unknown(self, topics: Sequence[str], reason: str, advice: str) -> None:
        get_logger().warning(
            "topic_configs_unknown",
            topics=topics,
            reason=reason,
            unchecked="cleanup.policy, retention.ms, max.message.bytes, message.timestamp.*",
            advice=advice,
        )

    def names(self) -> frozenset[str]:
        try:
            return frozenset(self._client.list_topics(timeout=self._request_s).topics)
        except KafkaException:
            return frozenset()

    def broker_configs(self, name: str) -> list[str]:
        """Request it once from each broker; raise FatalClientError if any does not return it."""
        asked = f"cannot read {name} of the brokers"
        try:
            cluster = self._client.describe_cluster(request_timeout=self._request_s)
            nodes = answered(cluster, 2 * self._request_s).nodes
            asking = [self._ask_broker(node.id) for node in nodes]
            until_s = time.monotonic() + 2 * self._request_s
            found = [answered(future, until_s - time.monotonic()) for future in asking]
            return [str(configs[name].value) for configs in found]
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            hint = ""
            if cause.code() in DENIED:
                who = principal_of(self._config)
                hint = f"; {who} lacks the right DescribeConfigs on the cluster"
            raise FatalClientError(f"{asked}: {cause.str()}{hint}") from error
        except KeyError as error:
            raise FatalClientError(f"{asked}: {error!r}") from error

    def _ask_broker(self, broker_id: int) -> Future[Any]:
        resource = _kafka.ConfigResource(_kafka.ResourceType.BROKER, str(broker_id))
        futures = self._client.describe_configs([resource], request_timeout=self._request_s)
        future: Future[Any] = futures[resource]
        return future

    def groups(self) -> frozenset[str]:
        try:
            found = self._client.list_consumer_groups(request_timeout=self._request_s)
            return frozenset(group.group_id for group in answered(found, 2 * self._request_s).valid)
        except KafkaException:
            return frozenset()

    def create(self, topics: Sequence[NewTopic]) -> None:
        new = {
            topic.name: _kafka.NewTopic(
                topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                config=dict(topic.config),
            )
            for topic in topics
        }
        self._ask(
            "create",
            new,
            lambda some, request_s: self._client.create_topics(
                [new[name] for name in some],
                request_timeout=request_s,
                operation_timeout=request_s,
            ),
            ignored=frozenset({KafkaError.TOPIC_ALREADY_EXISTS}),
        )

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._list_offsets("find the end of", partitions, _kafka.OffsetSpec.latest())

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._list_offsets("find the start of", partitions, _kafka.OffsetSpec.earliest())

    def stable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        latest = _kafka.OffsetSpec.latest()
        return self._list_offsets("find the stable end of", partitions, latest, committed=True)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int, *, committed: bool = True
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset with a timestamp at or after a time; None if no record has it."""
        spec = _kafka.OffsetSpec.for_timestamp(timestamp_ms)
        # -1 is a valid answer: no record has that time or a later time.
        found = self._list_offsets(
            "find a time in", partitions, spec, least=-1, committed=committed
        )
        return {tp: None if offset < 0 else offset for tp, offset in found.items()}

    def _list_offsets(
        self,
        action: str,
        partitions: Iterable[TopicPartition],
        spec: Any,
        *,
        committed: bool = False,
        least: int = 0,
    ) -> dict[TopicPartition, int]:
        # Committed records end at the last stable offset: an open transaction hides the rest.
        levels = confluent_kafka.IsolationLevel
        isolation = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED

        def send(some: list[TopicPartition], request_s: float) -> dict[TopicPartition, Future[Any]]:
            return _by_place(
                self._client.list_offsets(
                    {_client_place(tp): spec for tp in some},
                    isolation_level=isolation,
                    request_timeout=request_s,
                )
            )

        found = self._ask(
            action, partitions, send, quick=True, usable=lambda result: result.offset >= least
        )
        return {tp: result.offset for tp, result in found.items()}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        def send(some: list[TopicPartition], request_s: float) -> dict[TopicPartition, Future[Any]]:
            return _by_place(
                self._client.delete_records(
                    [_client_place(tp, before[tp]) for tp in some],
                    request_timeout=request_s,
                    operation_timeout=request_s,
                )
            )

        self._ask("delete records of", before, send)

    def alter_config(self, topic: str, config: Mapping[str, str | None]) -> None:
        entries = [
            _kafka.ConfigEntry(
                name,
                value,
                incremental_operation=(
                    _kafka.AlterConfigOpType.DELETE
                    if value is None
                    else _kafka.AlterConfigOpType.SET
                ),
            )
            for name, value in config.items()
        ]

        def send(some: list[str], request_s: float) -> dict[str, Future[Any]]:
            resources = [
                _kafka.ConfigResource(_kafka.ResourceType.TOPIC, name, incremental_configs=entries)
                for name in some
            ]
            futures = self._client.incremental_alter_configs(resources, request_timeout=request_s)
            return {resource.name: future for resource, future in futures.items()}

        self._ask("alter the configs of", [topic] if entries else [], send)

    def group_state(self, group: str) -> GroupState:
        """Return a missing group as "dead"; raise FatalClientError if a broker does not answer."""
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._listed(group)
            except FatalClientError:
                if time.monotonic() >= give_up_at and not self._waiting():
                    raise
            if self._stopping():
                raise StopRequestedError(f"stopped while waiting for: describe the group {group}")
            time.sleep(_LOOK_AGAIN_S)

    def _listed(self, group: str) -> GroupState:
        """Request the group from all brokers once, by the older of the client's two calls.

        An admin client that describes a group crashes the process if the connection to the
        coordinator is lost at the wrong moment (librdkafka's assertion ``eonce->refcnt > 0``). This
        call does not have the problem. It fails while a known broker does not answer.
        """
        try:
            # It is deprecated in favor of the call that crashes.
            message = r"list_groups\(\) is deprecated"
            warnings.filterwarnings("ignore", message=message, category=DeprecationWarning)
            listed = self._client.list_groups(group, timeout=self._request_s)
        except KafkaException as error:
            # A new client discovers the current brokers.
            self._client = new_admin(self._config, self._contact)
            raise FatalClientError(
                f"cannot describe the group {group}: {error.args[0].str()}; ask again later"
            ) from error
        found = next((one for one in listed if one.id == group and one.error is None), None)
        return GroupState("dead", {}) if found is None else _state_of(found)

    def assigned(self, group: str) -> frozenset[TopicPartition] | None:
        found = self._listed(group)
        if found.state != "stable":
            return None
        return frozenset(tp for tps in found.members.values() for tp in tps)

    def progress(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return {tp: found.offset for tp, found in self.committed_offsets(group, partitions).items()}

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        # An admin client would crash the process if the coordinator moves: see `group_offsets`.
        reader = self._readers.get(group)
        if reader is None:
            reader = OpenGroup(self._config, group, contact=self._contact)
            self._readers[group] = reader
        return reader.committed(partitions)


def _ids(futures: Mapping[str, Future[Any]], timeout_s: float) -> Mapping[str, str] | None:
    found = {}
    until_s = time.monotonic() + timeout_s
    for name, future in futures.items():
        try:
            found[name] = str(answered(future, until_s - time.monotonic()).topic_id)
        except KafkaException as error:
            if error.args[0].code() not in GONE:
                return None
    return found


def _state_of(listed: Any) -> GroupState:
    members = {
        Member(_name_of(one), one.client_id, one.client_host): places_in(one.assignment)
        for one in listed.members
    }
    ordered = dict(sorted(members.items(), key=lambda item: str(item[0])))
    return GroupState(_spaced(listed.state), ordered)


def _name_of(member: Any) -> str:
    """Return the group.instance.id of a static member, else its client ID."""
    name = _UNIQUE.sub("", member.id)
    return str(member.id if name == member.client_id else name)


def _spaced(state: str) -> str:
    """Convert Kafka's name of a group state to lower-case words.

    >>> _spaced("PreparingRebalance")
    'preparing rebalance'
    """
    return _WORD.sub(" ", state).lower()


def _client_place(tp: TopicPartition, offset: int = -1) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(tp.topic, tp.partition, offset)


def _by_place(
    futures: Mapping[confluent_kafka.TopicPartition, Future[Any]],
) -> dict[TopicPartition, Future[Any]]:
    return {TopicPartition(p.topic, p.partition): future for p, future in futures.items()}
