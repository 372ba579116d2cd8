"""What a backfill stops with; each says what to do next."""

from __future__ import annotations

from headrace.streams.errors import StreamsError


class BackfillError(StreamsError):
    """A backfill cannot go on. Nothing of it is visible; correct the cause and run it again."""


class CannotBackfillError(BackfillError):
    """A topology, or what it is to read, cannot be computed from history; nothing was begun."""


class HistoryGapError(CannotBackfillError):
    """Records between an archive and the topic are nowhere any more, or it is not known where the
    archive ends."""


class WallClockError(BackfillError):
    """A processor asks to be called by the clock, which says nothing about history."""


class ReadError(StreamsError):
    """What is to be read as a DataFrame is not there, or only the application has it."""


class SparkMissingError(StreamsError):
    """Spark cannot start here: a package or Java is missing or too old. The message says what to
    install."""
