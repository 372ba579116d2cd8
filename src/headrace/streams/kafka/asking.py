"""Base of the admin client: requests about many items, each with its own answer.

Only temporary failures are repeated; other failures become the runtime's own errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from headrace.streams.errors import (
    ConfigError,
    FatalClientError,
    MissingTopicError,
    StopRequestedError,
)
from headrace.streams.kafka.connectivity import BrokerState, answered, new_admin
from headrace.streams.kafka.denials import denial
from headrace.streams.kafka.group_offsets import OpenGroup
from headrace.streams.kafka.protocols import TopicPartition
from headrace.streams.kafka.reactions import GONE, Reaction, reaction_to, wrong_setting

K = TypeVar("K", bound=Hashable)
"""Item of a request: a topic's name or a partition."""

_REQUEST_TIMEOUT_S = 5.0
_FIRST_REQUEST_S = 1.5
"""Timeout of the first attempt of a quick request; it doubles with each further attempt."""
_WAIT_MIN_S = 0.1
_WAIT_MAX_S = 2.0
_GONE_AFTER_S = 10.0
"""Seconds that a topic may be unknown to a broker, which may not have received it yet."""

_PASSING = frozenset(
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


class Asking:
    """Admin client with retries; see `headrace.streams.kafka.admin.LiveAdmin` for its arguments."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout_s: float,
        stopping: Callable[[], bool] = lambda: False,
        contact: BrokerState | None = None,
        waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        self._stopping = stopping
        self._config = dict(config)
        self._contact = contact or BrokerState()
        self._waiting = waiting
        self._client = new_admin(self._config, self._contact)
        self._timeout_s = timeout_s
        self._configs_unknown: set[str] = set()
        self._readers: dict[str, OpenGroup] = {}
        # A client may wait for an outdated controller: leave time for another client.
        self._request_s = max(1.0, min(_REQUEST_TIMEOUT_S, timeout_s / 3))

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
                if not _passes(error, elapsed_s) or is_over:
                    self._raise(action, item, error, elapsed_s)
            pending = list(failed)
            if any(error.code() in _STALE for error in failed.values()):
                # The client never refreshes its controller and leaders, so replace it.
                self._client = new_admin(self._config, self._contact)
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
            raise ConfigError(f"{what}; set replication.factor to no more than there are brokers")
        if code in REFUSED:
            raise ConfigError(f"{what}; correct the settings topic.* or the topology")
        if _passes(error, elapsed_s):
            raise FatalClientError(
                f"{what}, for {elapsed_s:.0f} s{self._contact.why()}; see that the brokers at "
                "bootstrap.servers are up, or raise task.timeout.ms"
            )
        raise FatalClientError(what)

    def _outcome(
        self, future: Future[Any], until_s: float, answers: dict[K, Any], item: K
    ) -> KafkaError | None:
        try:
            answers[item] = answered(future, until_s - time.monotonic())
        except KafkaException as exc:
            error: KafkaError = exc.args[0]
            if error.code() == KafkaError._NOENT and not self._described([_topic(item)]):
                # The client does not distinguish a missing topic from partitions without leaders.
                return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            return error
        return None


def _passes(error: KafkaError, elapsed_s: float) -> bool:
    code = error.code()
    if code in GONE:
        return elapsed_s < _GONE_AFTER_S
    return code in _PASSING | _STALE or reaction_to(error, "query") is Reaction.RETRY


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
