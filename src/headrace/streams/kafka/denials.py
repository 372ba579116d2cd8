"""Errors for missing ACLs: they name the principal, the operation and the resource."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from confluent_kafka import KafkaError

from headrace.streams.config.secrets import written_as
from headrace.streams.kafka.acls import AccessError, GroupDeniedError, principal_of

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
    }
)
_RIGHT = {
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Read",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "IdempotentWrite",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write",
}
_UNREAD = re.compile(
    r"commit offsets to transaction.*?([\w.-]+)(?:\([^\[]*\))?\[\d+\]\(Broker: Topic authorization"
)
"""Offsets are accepted only with the Read operation on their topic; only the text names the topic.
"""
_UNWRITTEN = re.compile(r"ProduceRequest for (\S+) \[\d+\] ")
"""Error text of a producer whose ACL was removed during a transaction."""


def denial(
    error: KafkaError,
    config: Mapping[str, object],
    *,
    topic: str | None = None,
    group: str | None = None,
    right: str | None = None,
) -> AccessError:
    """Return the error that names the principal and the missing ACL.

    Args:
        config: the client's settings, which may have a principal and a group.
        right: the missing operation, if the error does not imply it.

    Examples:
        >>> error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        >>> print(denial(error, {"sasl.username": "app"}, topic="orders", right="Read"))
        User:app lacks the right Read on the topic orders: Broker: Topic authorization failed; \
grant it, as headrace acls MODULE:APP --user app --grant does for all that an application needs
    """
    code, who = error.code(), principal_of(config)
    if code in (KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION):
        return AccessError(
            f"the brokers reject {who}: {error.str()}; correct sasl.mechanism, "
            f"sasl.username and {written_as(config, 'sasl.password')}",
            principal=who,
        )
    unread = _UNREAD.search(error.str())
    if unread is not None:
        topic, right = unread[1], "Read"
    unwritten = _UNWRITTEN.search(error.str())
    if unwritten is not None:
        topic, right = unwritten[1], "Write"
    right = right or _RIGHT.get(code, "Write")
    group = group or str(config.get("group.id") or "that it commits for")
    resource = {
        KafkaError.GROUP_AUTHORIZATION_FAILED: f"the group {group}",
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster",
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
            f"the transactional id {config.get('transactional.id')}"
        ),
    }.get(code, f"the topic {topic}" if topic else "a topic that it uses")
    kind = GroupDeniedError if code == KafkaError.GROUP_AUTHORIZATION_FAILED else AccessError
    return kind(
        f"{who} lacks the right {right} on {resource}: {error.str()}; grant it, as "
        f"{_granting(who)} does for all that an application needs",
        principal=who,
        right=right,
        resource=resource,
    )


def _granting(who: str) -> str:
    user = who.removeprefix("User:") if who.startswith("User:") else "NAME"
    return f"headrace acls MODULE:APP --user {shlex.quote(user)} --grant"
