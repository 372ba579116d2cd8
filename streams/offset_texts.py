"""The text beside a committed offset, as a client gives it.

librdkafka hands it on without a terminator (its issue 4649), unless the one who committed it put
one there, as this client does and Java's does not. What is read then goes on into other memory, up
to the next zero. So nothing may be read of such a text but what its own form says is there.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["text_of"]


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
