"""What whoever wants to follow changes may be refused with, beside the errors of queries."""

from __future__ import annotations

import sys

from headrace.streams.queries.errors import NotReadableError, QueryError
from headrace.streams.records.failures import is_ours


class NoChangelogError(QueryError):
    """The store keeps no changelog, so nobody can be told of its changes; have it keep one."""


class TooManyFollowersError(NotReadableError):
    """So many follow changes here already; ask again later."""


def said_of(error: Exception) -> str:
    """What is told of an error: its text, unless that may quote a record.

    >>> said_of(NotReadableError("it is restored")), said_of(ValueError("the value 5"))
    ('it is restored', 'ValueError')
    """
    if is_ours(error):
        return str(error)
    client = sys.modules.get("confluent_kafka")  # not loaded here: all may be in memory
    if client is not None and isinstance(error, client.KafkaException) and error.args:
        return f"Kafka's client refuses it: {error.args[0].str()}"
    return type(error).__name__
