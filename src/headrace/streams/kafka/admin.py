"""The live `AdminClient`: awaits confluent-kafka's futures, and raises the runtime's own errors.

Only temporary failures are repeated; other failures become the runtime's own errors.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NoReturn, TypeVar

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from headrace.state.log import get_logger
from headrace.streams.errors import (
    ConfigError,
    FatalClientError,
    MissingTopicError,
    StopRequestedError,
)
from headrace.streams.kafka.acls import principal_of
from headrace.streams.kafka.clients import BrokerState, new_admin, result_within
from headrace.streams.kafka.denials import DENIED, denial
from headrace.streams.kafka.group_offsets import OpenGroup, tp_of
from headrace.streams.kafka.protocols import (
    CommittedOffset,
    GroupState,
    Member,
    NewTopic,
    TopicDescription,
    TopicPartition,
    partitions_in,
)
from headrace.streams.kafka.reactions import GONE, Reaction, reaction_to, wrong_setting

# The package offers these classes without declaring it, which a strict type check refuses.
_kafka: Any = confluent_kafka.admin

K = TypeVar("K", bound=Hashable)
"""Item of a request: a topic's name or a partition."""

_REQUEST_TIMEOUT_S = 5.0
_FIRST_REQUEST_S = 1.5
"""Timeout of the first attempt of a quick request; it doubles with each further attempt."""
_WAIT_MIN_S = 0.1
_WAIT_MAX_S = 2.0
_GONE_AFTER_S = 10.0
"""Seconds that a topic may be unknown to a broker, which may not have received it yet."""

_TEMPORARY = frozenset(
    {
        KafkaError.NOT_CONTROLLER,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError._DESTROY,  # another thread replaced the client that was asked
    }
)
_STALE = frozenset(
    {
        KafkaError._NOENT,  # of all partitions none has a leader
        KafkaError._TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
"""Errors of a client with an outdated controller or outdated leaders."""
REFUSED = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_CONFIGS_AGAIN_S = 0.5
_GROUP_RETRY_S = 0.2
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


class _CachedByArguments(type):
    """Metaclass that caches instances by their arguments."""

    def __init__(cls, *args: Any) -> None:
        super().__init__(*args)
        cls._objects: dict[tuple[Any, ...], Any] = {}

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        key = (*args, *kwargs.values())
        if key not in cls._objects:
            cls._objects[key] = super().__call__(*args, **kwargs)
        return cls._objects[key]


def share_topic_id_objects() -> None:
    """Cache the client's topic IDs, so that each description does not create more of them.

    confluent-kafka (2.16 at least) never releases the `Uuid` of a described topic, about 120
    bytes. Each commit describes its topics, which took 10 MB an hour at a commit every two seconds.
    The client looks the class up by name.
    """
    original: Any = confluent_kafka.Uuid
    if not isinstance(original, _CachedByArguments):
        confluent_kafka.Uuid = _CachedByArguments(  # type: ignore[assignment, misc]
            "Uuid", (original,), {"__module__": original.__module__}
        )


class LiveAdmin:
    """Admin client of a real cluster.

    Args:
        config: librdkafka's settings, from `StreamsConfig.admin_config`.
        timeout_s: how long a call is repeated after temporary errors.
        waiting: returns whether no broker is reachable now, so that calls are repeated for longer.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        stopping: Callable[[], bool] = lambda: False,
        brokers: BrokerState | None = None,
        waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        share_topic_id_objects()
        self._stopping = stopping
        self._config = dict(config)
        self._brokers = brokers or BrokerState()
        self._waiting = waiting
        self._client = new_admin(self._config, self._brokers)
        self._timeout_s = timeout_s
        self._configs_unknown: set[str] = set()
        self._readers: dict[str, OpenGroup] = {}
        # A client may wait for an outdated controller: leave time for another client.
        self._request_s = max(1.0, min(_REQUEST_TIMEOUT_S, timeout_s / 3))

    def describe(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        described = self._described(names)
        configs = self._describe_configs(described)
        return {
            name: TopicDescription(
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
            self._log_unknown_configs(refused)
        return {
            name: {entry: found[entry].value for entry in _CONFIGS if entry in found}
            for name, found in entries.items()
        }

    def _log_unknown_configs(self, refused: Mapping[str, KafkaError]) -> None:
        """Log the topics whose configuration cannot be checked, once per topic."""
        self._configs_unknown.update(refused)
        denied = sorted(name for name, error in refused.items() if error.code() in DENIED)
        who = principal_of(self._config)
        if denied:
            self._warn_unknown(
                denied,
                f"{who} lacks the right DescribeConfigs on them",
                "grant it: a topic with wrong configs can lose state",
            )
        others = sorted(refused.keys() - set(denied))
        if others:
            reasons = "; ".join(sorted({refused[name].str() for name in others}))
            self._warn_unknown(
                others,
                f"the brokers rejected two requests: {reasons}",
                "no right is missing; this happens for topics that are new or were just deleted, "
                "and the next start repeats the check",
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
            nodes = result_within(cluster, 2 * self._request_s).nodes
            asking = [self._ask_broker(node.id) for node in nodes]
            until_s = time.monotonic() + 2 * self._request_s
            found = [result_within(future, until_s - time.monotonic()) for future in asking]
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
            future = self._client.list_consumer_groups(request_timeout=self._request_s)
            return frozenset(
                group.group_id for group in result_within(future, 2 * self._request_s).valid
            )
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
        offsets = self._list_offsets(
            "find a time in", partitions, spec, least=-1, committed=committed
        )
        return {tp: None if offset < 0 else offset for tp, offset in offsets.items()}

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
            return _by_tp(
                self._client.list_offsets(
                    {confluent_kafka.TopicPartition(*tp, -1): spec for tp in some},
                    isolation_level=isolation,
                    request_timeout=request_s,
                )
            )

        results = self._ask(
            action, partitions, send, quick=True, usable=lambda result: result.offset >= least
        )
        return {tp: result.offset for tp, result in results.items()}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        def send(some: list[TopicPartition], request_s: float) -> dict[TopicPartition, Future[Any]]:
            return _by_tp(
                self._client.delete_records(
                    [confluent_kafka.TopicPartition(*tp, before[tp]) for tp in some],
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
            time.sleep(_GROUP_RETRY_S)

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
            self._client = new_admin(self._config, self._brokers)
            raise FatalClientError(
                f"cannot describe the group {group}: {error.args[0].str()}; try again later"
            ) from error
        listing = next((one for one in listed if one.id == group and one.error is None), None)
        return GroupState("dead", {}) if listing is None else _state_of(listing)

    def assigned(self, group: str) -> frozenset[TopicPartition] | None:
        listing = self._listed(group)
        if listing.state != "stable":
            return None
        return frozenset(tp for tps in listing.members.values() for tp in tps)

    def committed_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        # An admin client would crash the process if the coordinator moves: see `group_offsets`.
        reader = self._readers.get(group)
        if reader is None:
            reader = OpenGroup(self._config, group, brokers=self._brokers)
            self._readers[group] = reader
        return reader.committed(partitions)

    # -- requests -------------------------------------------------------------------------------

    def _described(self, names: Iterable[str]) -> dict[str, Any]:
        return self._ask(
            "describe",
            names,
            lambda some, request_s: self._client.describe_topics(
                TopicCollection(some), request_timeout=request_s
            ),
            ignored=GONE,
            quick=True,
        )

    def _ask(
        self,
        action: str,
        items: Iterable[K],
        send: Callable[[list[K], float], Mapping[K, Future[Any]]],
        *,
        quick: bool = False,
        ignored: frozenset[int] = frozenset(),
        usable: Callable[[Any], bool] = lambda _: True,
        refused: dict[K, KafkaError] | None = None,
    ) -> dict[K, Any]:
        """Repeat requests until all items are answered, without items of an ignored error.

        These errors are added to `refused`. An answer that is not usable counts as missing: if a
        partition has no leader, the client returns some offsets as -1001, without an error.

        Args:
            send: sends a request for some items with a timeout in seconds.
            quick: whether the first attempts have short timeouts, because a client may wait for a
                controller that is gone, and another client finds the new one.
        """
        begun_at = time.monotonic()
        answers: dict[K, Any] = {}
        pending = list(dict.fromkeys(items))
        wait_s = _WAIT_MIN_S
        request_s = min(_FIRST_REQUEST_S, self._request_s) if quick else self._request_s
        while pending:
            failed: dict[K, KafkaError] = {}
            futures = send(pending, request_s)
            # The request's own timeout fires first; this limit is for answers that never arrive.
            until_s = time.monotonic() + 2 * request_s
            request_s = min(2 * request_s, self._request_s)
            for item, future in futures.items():
                error = self._outcome(future, until_s, answers, item)
                if error is None and not usable(answers[item]):
                    del answers[item]
                    error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
                if error is not None and error.code() not in ignored:
                    failed[item] = error
                elif error is not None and refused is not None:
                    refused[item] = error
            elapsed_s = time.monotonic() - begun_at
            if failed:
                self._client.poll(0)  # its callbacks report unreachable brokers
            is_over = elapsed_s >= self._timeout_s and not self._waiting()
            for item, error in failed.items():
                if not _is_temporary(error, elapsed_s) or is_over:
                    self._raise(action, item, error, elapsed_s)
            pending = list(failed)
            if any(error.code() in _STALE for error in failed.values()):
                # The client never refreshes its controller and leaders, so replace it.
                self._client = new_admin(self._config, self._brokers)
            if pending and self._stopping():
                raise StopRequestedError(f"stopped while waiting for: {action} {pending[0]}")
            if pending:
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_MAX_S)
        return answers

    def _raise(self, action: str, item: object, error: KafkaError, elapsed_s: float) -> NoReturn:
        reaction = reaction_to(error, "query")
        if reaction is Reaction.DENIED:
            right = _RIGHTS.get(action, "Describe")
            raise denial(error, self._config, topic=_topic(item), group=str(item), right=right)
        what = f"cannot {action} {item}: {error.str()}"
        code = error.code()
        if reaction is Reaction.MISCONFIGURED:
            raise wrong_setting(error, f"cannot {action} {item}")
        if code in GONE:
            raise MissingTopicError(f"{what}; was the topic deleted?", topics=[_topic(item)])
        if code == KafkaError.INVALID_REPLICATION_FACTOR:
            raise ConfigError(f"{what}; set replication.factor to at most the number of brokers")
        if code in REFUSED:
            raise ConfigError(f"{what}; correct the settings topic.* or the topology")
        if _is_temporary(error, elapsed_s):
            raise FatalClientError(
                f"{what}, for {elapsed_s:.0f} s{self._brokers.failures_note()}; check that the "
                "brokers at bootstrap.servers are up, or raise task.timeout.ms"
            )
        raise FatalClientError(what)

    def _outcome(
        self, future: Future[Any], until_s: float, answers: dict[K, Any], item: K
    ) -> KafkaError | None:
        try:
            answers[item] = result_within(future, until_s - time.monotonic())
        except KafkaException as exc:
            error: KafkaError = exc.args[0]
            if error.code() == KafkaError._NOENT and not self._described([_topic(item)]):
                # The client does not distinguish a missing topic from partitions without leaders.
                return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            return error
        return None


def _ids(futures: Mapping[str, Future[Any]], timeout_s: float) -> Mapping[str, str] | None:
    ids = {}
    until_s = time.monotonic() + timeout_s
    for name, future in futures.items():
        try:
            ids[name] = str(result_within(future, until_s - time.monotonic()).topic_id)
        except KafkaException as error:
            if error.args[0].code() not in GONE:
                return None
    return ids


def _state_of(listed: Any) -> GroupState:
    members = {
        Member(_name_of(one), one.client_id, one.client_host): partitions_in(one.assignment)
        for one in listed.members
    }
    ordered = dict(sorted(members.items(), key=lambda item: str(item[0])))
    return GroupState(_lower_case_words(listed.state), ordered)


def _name_of(member: Any) -> str:
    """Return the group.instance.id of a static member, else its client ID."""
    name = _UNIQUE.sub("", member.id)
    return str(member.id if name == member.client_id else name)


def _lower_case_words(state: str) -> str:
    """Convert Kafka's name of a group state to lower-case words.

    >>> _lower_case_words("PreparingRebalance")
    'preparing rebalance'
    """
    return _WORD.sub(" ", state).lower()


def _by_tp(
    futures: Mapping[confluent_kafka.TopicPartition, Future[Any]],
) -> dict[TopicPartition, Future[Any]]:
    return {tp_of(position): future for position, future in futures.items()}


def _is_temporary(error: KafkaError, elapsed_s: float) -> bool:
    code = error.code()
    if code in GONE:
        return elapsed_s < _GONE_AFTER_S
    return code in _TEMPORARY | _STALE or reaction_to(error, "query") is Reaction.RETRY


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
"""Operation required by an action; all other actions require Describe."""


def _topic(item: object) -> str:
    return item.topic if isinstance(item, TopicPartition) else str(item)
