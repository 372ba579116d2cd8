"""What a source is: given positions, the rows behind them.

A source has parts, such as files, and each has a position of its own: any JSON. A batch says which
part its rows are of, and the position behind them. Whoever feeds a topic commits rows and position
in one transaction, so a source needs to do no more than give the same rows again from a position.
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
"""Where a part stands: any JSON but null."""
Positions = Mapping[str, Position]


class SourceError(StreamsError):
    """A source cannot be read on; the message says where, and what to do.

    Nothing behind the last commit was written; a feed that is started again goes on from there.
    """


@dataclass(frozen=True, slots=True)
class Row:
    """A record to be.

    Args:
        value: as the feed's serde of values takes it.
        key: as that of keys takes it.
        timestamp_ms: milliseconds since 1970; None takes the time at which it is written.
        headers: in order.
        where: what says for an error, as text, which row of the source it is.
    """

    value: Any = field(repr=False)
    key: Any = field(default=None, repr=False)
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    where: object = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of one part, in their order.

    Args:
        part: its name, the same each time.
        position: behind the rows.
        rows: none where only the position moves.
        skipped: how many were left out, as they cannot be read.
        reason: what was wrong with the first of these, and where it stands.
    """

    part: str
    position: Position
    rows: Sequence[Row]
    skipped: int = 0
    reason: str = ""


class Source(Protocol):
    """Gives rows from positions on."""

    def read(self, positions: Positions, /) -> Iterable[Batch]:
        """The batches that are there now behind the positions; those of a part in their order.

        Args:
            positions: of each part, as they were committed; a part that is not there is new.
        """


@dataclass(frozen=True, slots=True)
class Replayable:
    """A source of a function."""

    function: Callable[[Positions], Iterable[Batch]]

    def read(self, positions: Positions, /) -> Iterable[Batch]:
        """What the function gives."""
        return self.function(positions)


def replayable(function: Callable[[Positions], Iterable[Batch]]) -> Source:
    """Make a source of a function from positions to batches.

    Args:
        function: called as ``function(positions)`` time and again, gives the batches behind them.

    >>> def numbers(positions):
    ...     begin = positions.get("numbers", 0)
    ...     yield Batch("numbers", begin + 2, [Row(begin), Row(begin + 1)])
    >>> [batch.position for batch in replayable(numbers).read({"numbers": 6})]
    [8]
    """
    return Replayable(function)


def size_of(row: Any) -> int:
    """About how many bytes the text and the bytes of a row are, those in lists and objects too.

    >>> size_of({"name": "ann", "tags": ["new", b"\\x00"], "n": 5})
    7
    """
    if isinstance(row, (str, bytes)):
        return len(row)
    if isinstance(row, dict):
        return sum(map(size_of, row.values()))
    return sum(map(size_of, row)) if isinstance(row, list) else 0


def plain(value: Any) -> Any:
    """What JSON can say of a value of a database or of a frame.

    Bytes become an object with the field ``base64``, durations their seconds; what is no number
    becomes null.

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
    """Read a time: milliseconds since 1970, or a date and time, UTC without a zone.

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
    """Which fields of a row its key and its time are.

    Args:
        key: the name of that of the key; None for no key.
        timestamp: likewise, of the time.
    """

    key: str | None = None
    timestamp: str | None = None

    def row(self, value: Mapping[str, Any], where: object) -> Row:
        """Make a row.

        Args:
            where: what says for an error, as text, which one it is.

        Raises:
            SourceError: a field is not there, or is no time.
        """
        key = None if self.key is None else self._field(value, self.key, where)
        at: int | None = None
        if self.timestamp is not None:
            at = time_ms(self._field(value, self.timestamp, where))
            if at is None or at < 0:
                raise SourceError(
                    f"{where}: field {self.timestamp!r} is no time; it must be milliseconds since "
                    "1970, or such as 2026-01-31T09:00:00Z"
                )
        text = None if key is None else _text_of(plain(key))
        return Row(plain(value), text, at, where=where)

    @staticmethod
    def _field(value: Mapping[str, Any], name: str, where: object) -> Any:
        try:
            return value[name]
        except (KeyError, TypeError):
            has = ", ".join(map(str, value)) if isinstance(value, Mapping) else "none"
            raise SourceError(f"{where}: there is no field {name!r}; there are: {has}") from None
