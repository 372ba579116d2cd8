"""The text beside a committed offset, as a client gives it.

librdkafka hands it on without a terminator (its issue 4649), unless the one who committed it put
one there, as this client does and Java's does not. What is read then goes on into other memory, up
to the next zero. So nothing may be read of such a text but what its own form says is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.streams.seams.clients import CommittedOffset, Offsets, TopicPartition


class Position(Protocol):
    """An offset of a partition, of confluent-kafka."""

    @property
    def metadata(self) -> str | None:
        """The text beside it."""


def text_of(position: Position) -> str:
    """The text beside an offset, with anything behind it; it is ASCII, so bytes cannot part it."""
    try:
        return position.metadata or ""
    except UnicodeDecodeError as error:
        # All bytes are in the error, and those of the text come first.
        return error.object[: error.start].decode()


def without_mark(marks: Offsets, found: Mapping[TopicPartition, CommittedOffset]) -> list[str]:
    """The places that have another offset or text than a mark that was committed there.

    Args:
        marks: what was committed.
        found: what was read back.

    Example:
        >>> place, mark = TopicPartition("orders", 0), CommittedOffset(7, "mark")
        >>> without_mark({place: mark}, {place: CommittedOffset(7, "mark and what is behind it")})
        []
        >>> without_mark({place: mark}, {place: CommittedOffset(8, "mark")})
        ['orders-0']
    """
    return [
        str(place)
        for place, mark in marks.items()
        if place not in found
        or found[place].offset != mark.offset
        or not found[place].metadata.startswith(mark.metadata)
    ]
