"""What a query may be refused with: one class for each answer that whoever asks can act on."""

from __future__ import annotations

import sys

from headrace.streams.errors import StreamsError
from headrace.streams.tasks.failures import is_ours


class QueryError(StreamsError):
    """A query cannot be answered; the message says why, and what to do."""


class NoSuchStoreError(QueryError):
    """The application has no store of this name; correct the name."""


class StoreInMemoryError(QueryError):
    """The rows are in the memory of workers, and none can be asked here; ask where they run."""


class WrongQueryError(QueryError):
    """The store cannot be asked so: a key of another type, a question for another kind of store."""


class WrongKindError(WrongQueryError, AttributeError):
    """Stores of another kind are asked so; the message says what this one is asked with."""


class NotReadableError(QueryError):
    """The rows cannot be read now: they are restored, or not on this host; ask again later.

    Args:
        remaining: offsets of changelogs that are still to be read, where that is known.
        unreached: the host that does not answer the one that was asked; None where it is not that.
    """

    def __init__(
        self, message: str, *, remaining: int | None = None, unreached: str | None = None
    ) -> None:
        super().__init__(message)
        self.remaining = remaining
        self.unreached = unreached


class ApplicationFailedError(NotReadableError):
    """The application in this process has failed; correct the cause and start a new one."""

    def __init__(self, application: str, reason: str) -> None:
        super().__init__(
            f"the application {application} has failed in this process, and its stores are not "
            f"read any more: {reason}. Correct that, and start a new KafkaStreams"
        )


class UnfinishedError(NotReadableError):
    """The files are of a restore that has not come to its end; its worker goes on with it."""


class TooOldError(NotReadableError):
    """The rows are older than whoever asks accepts, or not as far as he waits for."""


class StoppingError(NotReadableError):
    """What answers here stops; ask again once it is back, or another host."""

    def __init__(self) -> None:
        super().__init__("this host stops: ask again in a moment, or ask another host")


class NotHereError(NotReadableError):
    """Another host has the task; ask that one.

    Args:
        partition: which is not here.
        host: who has it, as other hosts reach it; None where that is not known.
    """

    def __init__(self, message: str, *, partition: int, host: str | None = None) -> None:
        super().__init__(message)
        self.partition = partition
        self.host = host


class UnreachedHostError(NotReadableError):
    """A host does not answer; ask again later, or another one.

    Args:
        host: which.
        is_silent: whether it may be there, and said nothing for as long as was waited.
        is_other: whether something else is there, so that asking again does not help.
    """

    def __init__(
        self, message: str, *, host: str, is_silent: bool = False, is_other: bool = False
    ) -> None:
        super().__init__(message)
        self.host = host
        self.is_silent = is_silent
        self.is_other = is_other


class UnknownTokenError(QueryError):
    """The application wants a token, and this is not the one; give the right one."""


class ClosedConnectionError(QueryError):
    """The connection to the application was closed, here, before there was an answer."""


class PositionGoneError(QueryError):
    """What comes behind a position is not there any more; begin with the rows (``snapshot=true``).

    When retention deleted it, or the topic was made anew.
    """


# What whoever wants to follow changes may be refused with, beside the errors of queries.


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
