"""Protocol of sources: batches of rows that can be read again from a position.

A source has parts, such as files, and each part has a position, which is any JSON value. A batch
contains its part, rows, and the position after them. The feed commits rows and position in a single
transaction, so a source must only return the same rows again for the same position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from headrace.streams.errors import StreamsError
from headrace.topology.serdes.documents import BASE64, as_base64

Position = Any
"""Position in a part: any JSON value except null."""
Positions = Mapping[str, Position]


class SourceError(StreamsError):
    """Source that cannot be read further; the message names the location and the fix.

    Nothing after the last commit was written; a restarted feed continues from there.
    """


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a source that becomes a record.

    Args:
        value: value for the feed's value serde.
        key: key for the feed's key serde.
        timestamp_ms: milliseconds since 1970; None uses the time of the write.
        headers: headers in order.
        where: location of the row in the source, formatted with `str` for errors.
    """

    value: Any = field(repr=False)
    key: Any = field(default=None, repr=False)
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    where: object = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a part, in order.

    Args:
        part: stable name of the part.
        position: the position after the rows.
        rows: empty if only the position moves.
        skipped: number of rows that were skipped because they cannot be read.
        reason: error and location of the first skipped row.
    """

    part: str
    position: Position
    rows: Sequence[Row]
    skipped: int = 0
    reason: str = ""


class Source(Protocol):
    """Source of rows that can be read from a position.

    Examples:
        >>> class Countdown(Source):
        ...     def read(self, positions):
        ...         left = positions.get("countdown", 3)
        ...         yield Batch("countdown", 0, [Row(number) for number in range(left, 0, -1)])
        >>> [row.value for batch in Countdown().read({}) for row in batch.rows]
        [3, 2, 1]
    """

    def read(self, positions: Positions, /) -> Iterable[Batch]:
        """Return the batches after the positions that exist now; batches of a part are in order.

        Args:
            positions: committed position of each part; a missing part is new.
        """


@dataclass(frozen=True, slots=True)
class Replayable:
    """Source that calls a function."""

    function: Callable[[Positions], Iterable[Batch]]

    def read(self, positions: Positions, /) -> Iterable[Batch]:
        return self.function(positions)


def replayable(function: Callable[[Positions], Iterable[Batch]]) -> Source:
    """Create a source from a function that maps positions to batches.

    Args:
        function: called as ``function(positions)`` repeatedly; returns the batches after them.

    Examples:
        >>> def numbers(positions):
        ...     begin = positions.get("numbers", 0)
        ...     yield Batch("numbers", begin + 2, [Row(begin), Row(begin + 1)])
        >>> [batch.position for batch in replayable(numbers).read({"numbers": 6})]
        [8]
    """
    return Replayable(function)


def size_of(row: Any) -> int:
    """Return the approximate size of a row's text and bytes, including nested lists and objects.

    >>> size_of({"name": "ann", "tags": ["new", b"\\x00"], "n": 5})
    7
    """
    if isinstance(row, (str, bytes)):
        return len(row)
    if isinstance(row, dict):
        return sum(map(size_of, row.values()))
    return sum(map(size_of, row)) if isinstance(row, list) else 0


def plain(value: Any) -> Any:
    """Convert a value of a database or a data frame to JSON types.

    Bytes become an object with the field ``base64``, durations become seconds, and NaN and infinity
    become null.

    >>> plain({"at": datetime(2024, 5, 1, 12, tzinfo=UTC), "price": [Decimal("1.50")]})
    {'at': '2024-05-01T12:00:00+00:00', 'price': ['1.50']}
    >>> plain([b"\\xff", float("nan"), UUID(int=7), timedelta(minutes=1, milliseconds=500)])
    [{'base64': '/w=='}, None, '00000000-0000-0000-0000-000000000007', 60.5]
    """
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (date, time)):  # a datetime is a date, too
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return as_base64(bytes(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, (Decimal, UUID)) else value


def _text_of(key: Any) -> str:
    return str(key[BASE64] if isinstance(key, dict) and key.keys() == {BASE64} else key)


def time_ms(value: Any) -> int | None:
    """Parse a timestamp: milliseconds since 1970, or a date and time, in UTC if it has no zone.

    >>> time_ms(5), time_ms("1970-01-01T00:00:05Z"), time_ms("1970-01-01 01:00:00+01:00")
    (5, 5000, 0)
    >>> print(time_ms("soon"))
    None
    """
    if type(value) is int:
        return value
    try:
        instant = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        return None
    zoned = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Fields:
    """Names of the fields that become key and timestamp of a record; None for none."""

    key: str | None = None
    timestamp: str | None = None

    def row(self, value: Mapping[str, Any], where: object) -> Row:
        """Raise SourceError if a field is missing or is no valid time; `where` is for errors."""
        key = None if self.key is None else self._field(value, self.key, where)
        at: int | None = None
        if self.timestamp is not None:
            at = time_ms(self._field(value, self.timestamp, where))
            if at is None or at < 0:
                raise SourceError(
                    f"{where}: field {self.timestamp!r} must be milliseconds since 1970, or a time "
                    "such as 2026-01-31T09:00:00Z"
                )
        text = None if key is None else _text_of(plain(key))
        return Row(plain(value), text, at, where=where)

    @staticmethod
    def _field(value: Mapping[str, Any], name: str, where: object) -> Any:
        try:
            return value[name]
        except (KeyError, TypeError):
            has = ", ".join(map(str, value)) if isinstance(value, Mapping) else "none"
            raise SourceError(f"{where}: field {name!r} is missing; fields: {has}") from None
