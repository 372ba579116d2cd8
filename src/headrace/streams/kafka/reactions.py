"""The table of worker reactions to errors of Kafka clients.

A client error has a code and three flags: `fatal` (the client instance is unusable), `abortable`
(the transaction is) and `retriable`. The worker has few reactions; `reaction_to` selects the
reaction by the failed call and the error. The page docs/guarantees.md shows the same table.

| error | in | reaction |
|---|---|---|
| fenced: another producer has the transactional id, or the broker expired it | any | `FENCED` |
| unknown producer id, or a transaction in another state than ours | any | `REPLACE` |
| stale membership: unknown member, old generation, rebalance under way | offsets | `MIGRATED` |
| the group knows another member with this group.instance.id | offsets | `MIGRATED` |
| the same | all others | `REJOIN` |
| a record is too large, or not as its topic wants it | any | `REFUSED` |
| not authorised, or the password is wrong | any | `DENIED` |
| a setting or a version that the brokers do not take | any | `MISCONFIGURED` |
| marked fatal | any | `REPLACE` |
| marked abortable | transaction | `ABORT` |
| anything that is no clean first answer | commit | `REPLACE`: the outcome is unknown |
| marked retriable, timed out, transport, coordinator moving | all but commit | `RETRY` |
| anything else | any | `STOP` |
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from confluent_kafka import KafkaError

from headrace.streams.errors import ConfigError
from headrace.streams.kafka.denials import DENIED

Call = Literal["init", "send", "offsets", "commit", "abort", "consumer", "query"]


class Reaction(Enum):
    """Reaction of the worker to an error."""

    RETRY = "call again, within the bound of task.timeout.ms"
    ABORT = "abort the transaction, re-create the tasks from committed state, continue"
    REPLACE = "replace the producer, re-create the tasks from committed state"
    FENCED = "as REPLACE; stop if it recurs within a minute, unless the transaction had expired"
    MIGRATED = "as ABORT; the next poll returns the group's assignment"
    REJOIN = "drop the tasks without a commit, rejoin; stop at the sixth time within a minute"
    REFUSED = "stop: the same input would write the same record again"
    DENIED = "stop, and do not start again: an operator must grant the right"
    MISCONFIGURED = "stop, and do not start again: an operator must change a setting"
    STOP = "stop: no retry can fix it"


_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
)
_LOST_AT_THE_BROKER = frozenset(
    {KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.INVALID_TXN_STATE}
)
_STALE = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
    }
)
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
    }
)
_TOO_OLD = "Use brokers and a confluent-kafka of versions that support each other."
_SETTINGS = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "Set producer.transaction.timeout.ms to no more than "
    "the brokers' transaction.max.timeout.ms, or raise that.",
    KafkaError.INVALID_SESSION_TIMEOUT: "Set consumer.session.timeout.ms between the brokers' "
    "group.min.session.timeout.ms and group.max.session.timeout.ms.",
    KafkaError.INVALID_GROUP_ID: "Correct application.id.",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "Stop the other program whose group has the name "
    "of this application.id, or change application.id.",
    KafkaError.INVALID_REQUIRED_ACKS: "Set producer.acks to all.",
    KafkaError.OFFSET_METADATA_TOO_LARGE: "Raise the brokers' offset.metadata.max.bytes to 4096.",
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: "Set producer.compression.type to a supported type.",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "Raise the topic's message.format.version.",
    KafkaError.UNSUPPORTED_VERSION: _TOO_OLD,
    KafkaError._UNSUPPORTED_FEATURE: _TOO_OLD,
}
"""Errors that recur with the same settings at each start, and their fixes."""
_TEMPORARY = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        KafkaError._RESOLVE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
    }
)


GONE = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
"""Errors of a topic or a partition that does not exist."""


def reaction_to(error: KafkaError, call: Call) -> Reaction:
    """Return the reaction to an error of a client call.

    Examples:
        >>> from confluent_kafka import KafkaError
        >>> reaction_to(KafkaError(KafkaError._TIMED_OUT), "offsets").name
        'RETRY'
        >>> reaction_to(KafkaError(KafkaError._TIMED_OUT), "commit").name
        'REPLACE'
    """
    code = error.code()
    if code == KafkaError.FENCED_INSTANCE_ID:
        # A commit also fails with this code if the group has removed the member unnoticed.
        return Reaction.MIGRATED if call == "offsets" else Reaction.REJOIN
    if code in _REFUSED:
        return Reaction.REFUSED
    if code in DENIED:
        return Reaction.DENIED
    if code in _SETTINGS:
        return Reaction.MISCONFIGURED
    if code == KafkaError._INVALID_ARG:
        return Reaction.STOP
    if code in _FENCED:
        return Reaction.FENCED
    if code in _LOST_AT_THE_BROKER:
        return Reaction.REPLACE
    if code in _STALE:
        return Reaction.MIGRATED
    if call == "consumer":
        # A consumer recovers automatically from all errors that are not fatal.
        return Reaction.STOP if error.fatal() else Reaction.RETRY
    if error.fatal():
        return Reaction.REPLACE
    if error.txn_requires_abort():
        return Reaction.ABORT
    if call == "commit":
        return Reaction.REPLACE
    if error.retriable() or code in _TEMPORARY:
        return Reaction.RETRY
    return Reaction.STOP


def wrong_setting(error: KafkaError, where: str) -> ConfigError:
    """Return an error that names the wrong setting.

    Examples:
        >>> error = KafkaError(KafkaError.INVALID_GROUP_ID, "The group is invalid")
        >>> print(wrong_setting(error, "consumer, the cluster"))
        The group is invalid (consumer, the cluster). Correct application.id.
    """
    return ConfigError(f"{error.str().rstrip('.')} ({where}). {_SETTINGS[error.code()]}")
