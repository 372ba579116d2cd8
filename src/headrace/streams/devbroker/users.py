"""Users of a secured dev broker, and their ACLs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import confluent_kafka.admin
from confluent_kafka import KafkaException

from headrace.streams.config.secrets import revealed
from headrace.streams.devbroker.errors import DevBrokerError
from headrace.streams.kafka.acls import Right
from headrace.streams.kafka.clients import result_within

# The package does not export these classes explicitly, which a strict type check requires.
_kafka: Any = confluent_kafka.admin

_TIMEOUT_S = 30.0
_ITERATIONS = 4096


class Users:
    """Administration of users and their ACLs.

    Args:
        settings: client settings of the administrator.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._client = _kafka.AdminClient({**revealed(settings), "log_level": 2})

    def add(self, name: str, password: str) -> None:
        """Create a user, or change an existing user's password."""
        credential = _kafka.UserScramCredentialUpsertion(
            name,
            _kafka.ScramCredentialInfo(_kafka.ScramMechanism.SCRAM_SHA_512, _ITERATIONS),
            password.encode(),
        )
        _wait(self._client.alter_user_scram_credentials([credential]), "create the user")

    def grant(self, name: str, rights: Iterable[Right]) -> None:
        bindings = [_binding(_kafka.AclBinding, name, right) for right in rights]
        _wait(self._client.create_acls(bindings) if bindings else {}, "grant ACLs")

    def revoke(self, name: str, rights: Iterable[Right]) -> None:
        filters = [_binding(_kafka.AclBindingFilter, name, right) for right in rights]
        _wait(self._client.delete_acls(filters) if filters else {}, "revoke ACLs")


_RESOURCES = {
    "topic": _kafka.ResourceType.TOPIC,
    "group": _kafka.ResourceType.GROUP,
    "transactional id": _kafka.ResourceType.TRANSACTIONAL_ID,
    "cluster": _kafka.ResourceType.BROKER,
}
_CLUSTER = "kafka-cluster"


def _binding(kind: Any, user: str, right: Right) -> Any:
    patterns = _kafka.ResourcePatternType
    # Kafka's tools write ALTER_CONFIGS as AlterConfigs.
    operation = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", right.operation).upper()
    return kind(
        _RESOURCES[right.resource],
        right.name or _CLUSTER,
        patterns.PREFIXED if right.is_prefix else patterns.LITERAL,
        f"User:{user}",
        "*",
        _kafka.AclOperation[operation],
        _kafka.AclPermissionType.ALLOW,
    )


def _wait(futures: Mapping[Any, Any], what: str) -> None:
    until_s = time.monotonic() + _TIMEOUT_S
    for future in futures.values():
        try:
            result_within(future, until_s - time.monotonic())
        except KafkaException as error:
            raise DevBrokerError(f"cannot {what}: {error.args[0].str()}") from error
