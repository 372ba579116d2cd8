"""The live `TopicAdmin`: confluent-kafka's futures become results, its errors the runtime's own.

Calls concern many topics at once, and each topic has its own answer; only those that failed for a
passing reason are asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, NoReturn, TypeVar

import confluent_kafka
import confluent_kafka.admin
import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from headrace.streams.contact.denials import DENIED, denial
from headrace.streams.contact.rights import principal_of
from headrace.streams.errors import (
    ConfigError,
    FatalClientError,
    MissingTopicError,
    StopRequestedError,
)
from headrace.streams.kafka.broker_contact import Heard
from headrace.streams.kafka.kafka_clients import new_admin
from headrace.streams.kafka.reactions import Reaction, reaction_to
from headrace.streams.seams.clients import TopicPartition
from headrace.streams.seams.topic_facts import NewTopic, TopicFacts

# The package offers these classes without declaring it, which a strict type check refuses.
_kafka: Any = confluent_kafka.admin

K = TypeVar("K", bound=Hashable)
"""What a call asks about: a topic's name or a partition."""

_REQUEST_TIMEOUT_S = 5.0
_WAIT_MIN_S = 0.1
_WAIT_MAX_S = 2.0
_CONFIGS_AGAIN_S = 0.5
_GONE_AFTER_S = 10.0
"""How long a topic may be unknown to a broker, which may only not have heard of it yet."""

_CONFIGS = ("cleanup.policy", "max.message.bytes", "delete.retention.ms", "retention.ms")
_GONE = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_PASSING = frozenset(
    {KafkaError.NOT_CONTROLLER, KafkaError.THROTTLING_QUOTA_EXCEEDED, KafkaError._NOENT}
)
_STALE = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
"""Errors of a client that believes in a controller or in leaders of earlier on."""
_REFUSED = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    }
)


class LiveAdmin:
    """Topics of a real cluster.

    Args:
        config: librdkafka's settings, from `StreamsConfig.admin_config`.
        timeout_s: how long a call repeats itself after temporary errors, in seconds.
        stopping: whether nobody waits for answers any more.
        contact: hears what the client says besides its answers.
        waiting: whether no broker can be reached now, so that calls are repeated for longer.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        stopping: Callable[[], bool] = lambda: False,
        contact: Heard | None = None,
        waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stopping = stopping
        self._config = dict(config)
        self._contact = contact or Heard()
        self._waiting = waiting
        self._client = new_admin(self._config, self._contact)
        self._configs_unknown: set[str] = set()
        self._timeout_s = timeout_s
        self._request_s = max(1.0, min(_REQUEST_TIMEOUT_S, timeout_s))

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """The facts of those topics that exist."""
        described = self._ask(
            "describe",
            names,
            lambda some: self._client.describe_topics(
                TopicCollection(some), request_timeout=self._request_s
            ),
            ignored=_GONE,
        )
        configs = self._describe_configs(described)
        return {
            name: TopicFacts(
                name, len(topic.partitions), str(topic.topic_id), configs.get(name, {})
            )
            for name, topic in described.items()
        }

    def ask_ids(self, topics: Sequence[str]) -> Callable[[float], Mapping[str, str] | None]:
        """Ask for the ids of those topics that exist; returns what waits so long for the answer.

        None is no answer. Nothing is repeated or raised.
        """
        try:
            futures: Mapping[str, Future[Any]] = self._client.describe_topics(
                TopicCollection(list(topics)), request_timeout=self._request_s
            )
        except KafkaException:
            return lambda _: None
        return partial(_ids, futures)

    def _describe_configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        def send(some: list[str]) -> dict[str, Future[Any]]:
            resources = [_kafka.ConfigResource(_kafka.ResourceType.TOPIC, name) for name in some]
            futures = self._client.describe_configs(resources, request_timeout=self._request_s)
            return {resource.name: future for resource, future in futures.items()}

        # Reading configs is a right of its own, and what they are is of use but not needed.
        ask = partial(self._ask, "describe the configs of", send=send, ignored=_GONE | DENIED)
        refused: dict[str, KafkaError] = {}
        entries = ask(names, refused=refused)
        again = sorted(refused.keys() - self._configs_unknown)
        if again:
            # The broker that answers may not have heard yet of a topic, or of a right, that is new.
            time.sleep(_CONFIGS_AGAIN_S)
            refused = {}
            entries.update(ask(again, refused=refused))
            self._say_unknown(refused)
        return {
            name: {entry: found[entry].value for entry in _CONFIGS if entry in found}
            for name, found in entries.items()
        }

    def _say_unknown(self, refused: Mapping[str, KafkaError]) -> None:
        """Say which topics cannot be checked, once for each, and why."""
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
        structlog.get_logger().warning(
            "topic_configs_unknown",
            topics=topics,
            reason=reason,
            unchecked="cleanup.policy, retention.ms, max.message.bytes",
            advice=advice,
        )

    def names(self) -> frozenset[str]:
        """All topics that this client may see, for suggestions; empty when that cannot be told."""
        try:
            return frozenset(self._client.list_topics(timeout=self._request_s).topics)
        except KafkaException:
            return frozenset()

    def broker_configs(self, name: str) -> list[str]:
        """What the brokers have for a setting, asked once.

        Raises:
            FatalClientError: one of them does not say.
        """
        asked = f"cannot read {name} of the brokers"
        try:
            cluster = self._client.describe_cluster(request_timeout=self._request_s)
            nodes = cluster.result(2 * self._request_s).nodes
            asking = [self._ask_broker(node.id) for node in nodes]
            return [str(future.result(2 * self._request_s)[name].value) for future in asking]
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            hint = ""
            if cause.code() in DENIED:
                who = principal_of(self._config)
                hint = f"; {who} lacks the right DescribeConfigs on the cluster"
            raise FatalClientError(f"{asked}: {cause.str()}{hint}") from error
        except (FutureTimeoutError, KeyError) as error:
            raise FatalClientError(f"{asked}: {error!r}") from error

    def _ask_broker(self, broker_id: int) -> Future[Any]:
        resource = _kafka.ConfigResource(_kafka.ResourceType.BROKER, str(broker_id))
        futures = self._client.describe_configs([resource], request_timeout=self._request_s)
        future: Future[Any] = futures[resource]
        return future

    def groups(self) -> frozenset[str]:
        """All groups that this client may see; empty when that cannot be told."""
        try:
            found = self._client.list_consumer_groups(request_timeout=self._request_s)
            return frozenset(group.group_id for group in found.result(2 * self._request_s).valid)
        except (KafkaException, FutureTimeoutError):
            return frozenset()

    def create(self, topics: Sequence[NewTopic]) -> None:
        """Create topics; one that exists already is left as it is."""
        by_name = {topic.name: topic for topic in topics}

        def send(some: list[str]) -> dict[str, Future[Any]]:
            new = [
                _kafka.NewTopic(
                    name,
                    num_partitions=by_name[name].partitions,
                    replication_factor=by_name[name].replication_factor,
                    config=dict(by_name[name].config),
                )
                for name in some
            ]
            futures: dict[str, Future[Any]] = self._client.create_topics(
                new, request_timeout=self._request_s, operation_timeout=self._request_s
            )
            return futures

        self._ask("create", by_name, send, ignored=frozenset({KafkaError.TOPIC_ALREADY_EXISTS}))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the last record, committed or not: the high watermark."""
        return self._list_offsets("find the end of", partitions, _kafka.OffsetSpec.latest())

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record that is still there."""
        return self._list_offsets("find the start of", partitions, _kafka.OffsetSpec.earliest())

    def stable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The last stable offset: behind everything whose transaction is decided."""
        latest = _kafka.OffsetSpec.latest()
        return self._list_offsets("find the stable end of", partitions, latest, committed=True)

    def offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int, *, committed: bool = True
    ) -> dict[TopicPartition, int | None]:
        """The first offset of a record that is not older than a time; None where there is none."""
        levels = confluent_kafka.IsolationLevel
        isolation = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        places = list(partitions)
        spec = _kafka.OffsetSpec.for_timestamp(timestamp_ms)

        def send(some: list[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
            return _by_place(
                self._client.list_offsets(
                    {_client_place(place): spec for place in some},
                    isolation_level=isolation,
                    request_timeout=self._request_s,
                )
            )

        found = self._ask("find a time in", places, send)
        return {p: result.offset if result.offset >= 0 else None for p, result in found.items()}

    def _list_offsets(
        self,
        action: str,
        partitions: Iterable[TopicPartition],
        spec: Any,
        *,
        committed: bool = False,
    ) -> dict[TopicPartition, int]:
        # The last stable offset hides what an open transaction holds back.
        levels = confluent_kafka.IsolationLevel
        isolation = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED

        def send(some: list[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
            return _by_place(
                self._client.list_offsets(
                    {_client_place(place): spec for place in some},
                    isolation_level=isolation,
                    request_timeout=self._request_s,
                )
            )

        found = self._ask(action, partitions, send, usable=lambda result: result.offset >= 0)
        return {place: result.offset for place, result in found.items()}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Delete the records before these offsets."""

        def send(some: list[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
            return _by_place(
                self._client.delete_records(
                    [_client_place(place, before[place]) for place in some],
                    request_timeout=self._request_s,
                    operation_timeout=self._request_s,
                )
            )

        self._ask("delete records of", before, send)

    def alter_config(self, topic: str, config: Mapping[str, str | None]) -> None:
        """Set some configs of a topic and leave the others; None goes back to the default."""
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

        def send(some: list[str]) -> dict[str, Future[Any]]:
            resources = [
                _kafka.ConfigResource(_kafka.ResourceType.TOPIC, name, incremental_configs=entries)
                for name in some
            ]
            futures = self._client.incremental_alter_configs(
                resources, request_timeout=self._request_s
            )
            return {resource.name: future for resource, future in futures.items()}

        self._ask("alter the configs of", [topic] if entries else [], send)

    def assigned(self, group: str) -> frozenset[TopicPartition] | None:
        """The partitions that a group's members have, or None while the group is not stable."""

        def send(some: list[str]) -> dict[str, Future[Any]]:
            futures: dict[str, Future[Any]] = self._client.describe_consumer_groups(
                some, request_timeout=self._request_s
            )
            return futures

        found = self._ask("describe the group", [group], send)[group]
        if found.state != confluent_kafka.ConsumerGroupState.STABLE:
            return None
        return frozenset(
            TopicPartition(place.topic, place.partition)
            for member in found.members
            for place in member.assignment.topic_partitions
        )

    def _ask(
        self,
        action: str,
        items: Iterable[K],
        send: Callable[[list[K]], Mapping[K, Future[Any]]],
        *,
        ignored: frozenset[int] = frozenset(),
        usable: Callable[[Any], bool] = lambda _: True,
        refused: dict[K, KafkaError] | None = None,
    ) -> dict[K, Any]:
        """Ask about each item until each has an answer; those with an ignored error have none.

        Those errors are put into `refused`.

        An answer that is not usable is none yet: where a partition has no leader, the client gives
        some offsets as -1001, without an error.
        """
        begun_at = time.monotonic()
        answers: dict[K, Any] = {}
        pending = list(dict.fromkeys(items))
        wait_s = _WAIT_MIN_S
        while pending:
            failed: dict[K, KafkaError] = {}
            for item, future in send(pending).items():
                error = self._outcome(future, answers, item)
                if error is None and not usable(answers[item]):
                    del answers[item]
                    error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
                if error is not None and error.code() not in ignored:
                    failed[item] = error
                elif error is not None and refused is not None:
                    refused[item] = error
            elapsed_s = time.monotonic() - begun_at
            if failed:
                self._client.poll(0)  # it may say that it reaches no broker, and why
            is_over = elapsed_s >= self._timeout_s and not self._waiting()
            for item, error in failed.items():
                if not _passes(error, elapsed_s) or is_over:
                    self._raise(action, item, error, elapsed_s)
            pending = list(failed)
            if any(error.code() in _STALE for error in failed.values()):
                # The client never asks anew who is controller, and who leads since when.
                self._client = new_admin(self._config, self._contact)
            if pending and self._stopping():
                raise StopRequestedError(f"stopped while waiting for: {action} {pending[0]}")
            if pending:
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_MAX_S)
        return answers

    def _raise(self, action: str, item: object, error: KafkaError, elapsed_s: float) -> NoReturn:
        if reaction_to(error, "query") is Reaction.DENIED:
            right = _RIGHTS.get(action, "Describe")
            raise denial(error, self._config, topic=_topic(item), group=str(item), right=right)
        _raise(action, item, error, elapsed_s, self._contact.why())

    def _outcome(self, future: Future[Any], answers: dict[K, Any], item: K) -> KafkaError | None:
        try:
            # The request's own time-out comes first; this one is for an answer that never comes.
            answers[item] = future.result(2 * self._request_s)
        except KafkaException as exc:
            error: KafkaError = exc.args[0]
            if error.code() == KafkaError._NOENT and not self.describe([_topic(item)]):
                # Where no partition has a leader, the client does not tell the two apart.
                return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            return error
        except FutureTimeoutError:
            return KafkaError(KafkaError._TIMED_OUT)
        return None


def _ids(futures: Mapping[str, Future[Any]], timeout_s: float) -> Mapping[str, str] | None:
    found = {}
    for name, future in futures.items():
        try:
            found[name] = str(future.result(timeout_s).topic_id)
        except FutureTimeoutError:
            return None
        except KafkaException as error:
            if error.args[0].code() not in _GONE:
                return None
    return found


def _passes(error: KafkaError, elapsed_s: float) -> bool:
    code = error.code()
    if code in _GONE:
        return elapsed_s < _GONE_AFTER_S
    return code in _PASSING or reaction_to(error, "query") is Reaction.RETRY


_RIGHTS = {
    "describe": "Describe",
    "describe the configs of": "DescribeConfigs",
    "create": "Create",
    "delete": "Delete",
    "delete records of": "Delete",
    "alter the configs of": "AlterConfigs",
    "delete the group": "Delete",
    "describe the group": "Read",
    "list the offsets of the group": "Read",
    "set the offsets of the group": "Read",
}
"""What an action needs; all others need Describe."""


def _raise(action: str, item: object, error: KafkaError, elapsed_s: float, why: str) -> NoReturn:
    what = f"cannot {action} {item}: {error.str()}"
    code = error.code()
    if code in _GONE:
        raise MissingTopicError(f"{what}; was the topic deleted?", topics=[_topic(item)])
    if code == KafkaError.INVALID_REPLICATION_FACTOR:
        raise ConfigError(f"{what}; set replication.factor to no more than there are brokers")
    if code in _REFUSED:
        raise ConfigError(f"{what}; correct the settings topic.* or the topology")
    if _passes(error, elapsed_s):
        raise FatalClientError(
            f"{what}, for {elapsed_s:.0f} s{why}; see that the brokers at bootstrap.servers are "
            "up, or raise task.timeout.ms"
        )
    raise FatalClientError(what)


def _topic(item: object) -> str:
    return item.topic if isinstance(item, TopicPartition) else str(item)


def _client_place(place: TopicPartition, offset: int = -1) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(place.topic, place.partition, offset)


def _by_place(
    futures: Mapping[confluent_kafka.TopicPartition, Future[Any]],
) -> dict[TopicPartition, Future[Any]]:
    return {TopicPartition(p.topic, p.partition): future for p, future in futures.items()}
