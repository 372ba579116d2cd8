"""Errors of a backfill; each message gives the next step."""

from __future__ import annotations

from headrace.streams.errors import StreamsError


class BackfillError(StreamsError):
    """The backfill failed. Nothing of it is visible; correct the cause and run it again."""


class CannotBackfillError(BackfillError):
    """The topology or its history cannot be backfilled; the backfill has not started."""


class HistoryGapError(CannotBackfillError):
    """Records between an archive and the topic are lost, or the end of the archive is unknown."""


class RecordFailedError(BackfillError):
    """A record cannot be processed, and another attempt would fail at the same record."""


class WallClockError(BackfillError):
    """A processor schedules a wall-clock punctuator, which has no meaning for history."""


class ReadError(StreamsError):
    """The data to read as a DataFrame does not exist, or only the application can read it."""


class SparkMissingError(StreamsError):
    """Spark cannot start: a package or Java is missing or too old. The message gives the install
    command.
    """
