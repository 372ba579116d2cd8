"""Errors of queries, with a class for each reaction of the caller."""

from __future__ import annotations

import sys

from headrace.streams.errors import StreamsError
from headrace.streams.tasks.failures import is_ours


class QueryError(StreamsError):
    """Raised if a query cannot be answered; the message contains the reason and the fix."""


class NoSuchStoreError(QueryError):
    """Raised if the application has no store of this name; correct the name."""


class StoreInMemoryError(QueryError):
    """Raised if the rows are in the memory of workers that cannot be queried from this process."""


class WrongQueryError(QueryError):
    """Raised if the query does not fit the store, such as a key of another type."""


class WrongKindError(WrongQueryError, AttributeError):
    """Raised if the method belongs to another kind of store; the message names the right method."""


class NotReadableError(QueryError):
    """Raised if rows cannot be read now: the store is restored or on another host; try again later.

    Args:
        remaining: the number of changelog offsets left to restore, if known.
        unreached: the host that did not respond to the queried host; None for other causes.
    """

    def __init__(
        self, message: str, *, remaining: int | None = None, unreached: str | None = None
    ) -> None:
        super().__init__(message)
        self.remaining = remaining
        self.unreached = unreached


class ApplicationFailedError(NotReadableError):
    """Raised if the application in this process has failed; correct the cause and restart it."""

    def __init__(self, application: str, reason: str) -> None:
        super().__init__(
            f"the application {application} has failed in this process, and its stores cannot "
            f"be read: {reason}. Correct the cause, and start a new KafkaStreams"
        )


class UnfinishedError(NotReadableError):
    """Raised if the files belong to an unfinished restore, which their worker continues."""


class TooOldError(NotReadableError):
    """Raised if the rows are older than the caller accepts, or before its required position."""


class StoppingError(NotReadableError):
    """Raised if the queried process stops; try again after its restart, or query another host."""

    def __init__(self) -> None:
        super().__init__("this host stops. Retry in a moment, or query another host")


class NotHereError(NotReadableError):
    """Raised if another host has the task; query that host.

    Args:
        partition: the partition that is not on this host.
        host: the address of the owner for other hosts; None if unknown.
    """

    def __init__(self, message: str, *, partition: int, host: str | None = None) -> None:
        super().__init__(message)
        self.partition = partition
        self.host = host


class UnreachedHostError(NotReadableError):
    """Raised if a host does not respond; try again later, or query another host.

    Args:
        host: the address of the host.
        is_silent: whether the host may exist and has not responded in time.
        is_other: whether something else responds at this address, so that a retry does not help.
    """

    def __init__(
        self, message: str, *, host: str, is_silent: bool = False, is_other: bool = False
    ) -> None:
        super().__init__(message)
        self.host = host
        self.is_silent = is_silent
        self.is_other = is_other


class UnknownTokenError(QueryError):
    """Raised if the application requires a token, and the given token is wrong."""


class ClosedConnectionError(QueryError):
    """Raised if the connection to the application was closed locally before the response."""


class PositionGoneError(QueryError):
    """Raised if changes after a position no longer exist; start with the rows (``snapshot=true``).

    Retention has deleted them, or the topic was re-created.
    """


# Additional errors of change feeds.


class NoChangelogError(QueryError):
    """Raised if the store has no changelog, so that it has no change feed; enable logging."""


class TooManyFollowersError(NotReadableError):
    """Raised if the maximum number of followers is reached; try again later."""


def describe_error(error: Exception) -> str:
    """Return the description of an error: its message, unless it may contain data of a record.

    >>> [describe_error(e) for e in (NotReadableError("it restores"), ValueError("the value 5"))]
    ['it restores', 'ValueError']
    """
    if is_ours(error):
        return str(error)
    client = sys.modules.get("confluent_kafka")  # not loaded here: all may be in memory
    if client is not None and isinstance(error, client.KafkaException) and error.args:
        return f"the Kafka client reports: {error.args[0].str()}"
    return type(error).__name__
