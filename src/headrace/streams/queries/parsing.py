"""Queries in text form, from a command line or a URL: keys, times and positions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.state.codec import prefix_end
from headrace.streams.queries.answers import PartitionPosition, StoreRow
from headrace.streams.queries.errors import QueryError, WrongQueryError
from headrace.streams.queries.readers import LAST_MS, SessionReader, StoreReader, WindowReader
from headrace.streams.queries.scan import Scan
from headrace.topology.errors import LAST_TIME_MS, SerdeError
from headrace.topology.serdes import Serde
from headrace.topology.serdes.documents import TOO_DEEP, to_bytes, to_document

ReadKey = Callable[[str, Serde[Any], str], bytes]
"""Encodes a key given as text, with a serde; the last argument is the store's name."""
_ADVICE = {
    "string": "Use text",
    "integer": "Use an integer from -2147483648 to 2147483647",
    "long": "Use an integer of at most 64 bits",
    "double": "Use a number",
}
"""The advice for an invalid key, by the name of the key serde."""
_LIKE_ITS_ROWS = "Use a key as it is in JSON rows of the store"
_FOR_PROGRAMS = ("pass ", "or pass ", "convert it first", "write serdes.")
_POSITION = re.compile(
    r"(?:(?P<topic>[a-zA-Z0-9._-]+)-)?(?P<partition>\d{1,6}):(?P<at>\d{1,18})", re.ASCII
)


def key_of_text(text: str, serde: Serde[Any], store: str) -> bytes:
    """Encode a key given as text, or raise WrongQueryError.

    If the store's keys are text, the text is the key; otherwise it is JSON: a number, or an object
    for JSON and Avro. Text that is not valid JSON is used as a string.

    >>> from headrace import serdes
    >>> key_of_text("7", serdes.string, "s"), key_of_text("7", serdes.integer, "s")
    (b'7', b'\\x00\\x00\\x00\\x07')
    """
    data = text.encode(errors="surrogateescape")
    try:
        if serde.serialize(text) == data:
            return data
    except SerdeError:
        pass  # the serde does not accept text
    try:
        document = json.loads(text)
    except ValueError:
        document = text
    except RecursionError as error:
        raise _too_deep(store) from error
    return key_of_document(document, serde, store)


def key_of_document(document: Any, serde: Serde[Any], store: str) -> bytes:
    if document is None:
        raise WrongQueryError(f"store {store!r} has no key null")
    try:
        return to_bytes(document, serde)
    except SerdeError as error:
        raise WrongQueryError(
            f"keys of store {store!r} use serde {serde.name}: {_without_advice(error)}. "
            f"{_ADVICE.get(serde.name, _LIKE_ITS_ROWS)}"
        ) from error


def _without_advice(error: SerdeError) -> str:
    parts = str(error).split("; ")
    return "; ".join(part for part in parts if not part.startswith(_FOR_PROGRAMS))


def _too_deep(store: str) -> WrongQueryError:
    return WrongQueryError(f"a key of store {store!r} {TOO_DEEP}. Send a key that the store has")


def key_of_json(text: str, serde: Serde[Any], store: str) -> bytes:
    """Encode a key given as JSON text, or raise WrongQueryError.

    >>> from headrace import serdes
    >>> key_of_json('"7"', serdes.json, "s")
    b'"7"'
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise WrongQueryError(f"a key must be JSON, not {text[:40]!r}") from error
    except RecursionError as error:
        raise _too_deep(store) from error
    return key_of_document(document, serde, store)


def scan_of(
    reader: StoreReader[Any, Any],
    *,
    begin: str | None = None,
    end: str | None = None,
    prefix: str | None = None,
    reverse: bool = False,
    read: ReadKey = key_of_text,
) -> Scan:
    """Return the scan of a range given as text: a range of keys, or of times for windows.

    Both ends are inclusive. A `prefix` excludes `begin` and `end`; an invalid range raises
    WrongQueryError.
    """
    if isinstance(reader, WindowReader | SessionReader):
        if reverse or prefix is not None:
            raise WrongQueryError(
                f"the rows of store {reader.name!r} have windows and are ordered by time. Use "
                "times as from and to, without prefix and reverse"
            )
        if begin is None and end is None:
            return Scan()
        return reader.of_times(
            0 if begin is None else time_of(begin, "from"),
            LAST_MS if end is None else time_of(end, "to"),
        )
    if prefix is not None:
        if begin is not None or end is not None or reverse:
            raise WrongQueryError("prefix excludes from, to and reverse. Leave them out")
        try:
            data = read(prefix, reader.key_serde, reader.name)
        except WrongQueryError as error:
            raise WrongQueryError(
                f"{error}. A prefix must be a key itself: for tuples and lists, use a range "
                "between two complete keys"
            ) from error
        return Scan(data, prefix_end(data))
    low, high = (
        None if text is None else read(text, reader.key_serde, reader.name) for text in (begin, end)
    )
    # The first key after `end`.
    return Scan(low, None if high is None else high + b"\0", reverse)


def time_of(text: str, name: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 (default UTC), or raise WrongQueryError.

    >>> time_of("1500", "from"), time_of("1970-01-01T00:00:02Z", "from")
    (1500, 2000)
    """
    if text.isascii() and text.isdigit():
        return min(int(text[:19]), LAST_TIME_MS)
    try:
        given = datetime.fromisoformat(text)
    except ValueError as error:
        raise WrongQueryError(
            f"{name} must be milliseconds since 1970 or a time such as 2026-01-31T09:00:00Z, not "
            f"{text[:40]!r}"
        ) from error
    instant = given if given.tzinfo else given.replace(tzinfo=UTC)
    return max(0, round(instant.timestamp() * 1000))


@dataclass(frozen=True, slots=True)
class MinPosition:
    """Minimum position of a partition, as an offset of its changelog or of an input."""

    topic: str | None
    partition: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> MinPosition:
        """Parse ``PARTITION:OFFSET`` of the changelog, or ``TOPIC-PARTITION:OFFSET`` of an input.

        >>> MinPosition.parse("words-3:17")
        MinPosition(topic='words', partition=3, offset=17)
        """
        found = _POSITION.fullmatch(text)
        if found is None:
            raise WrongQueryError(
                "min_position must be PARTITION:OFFSET of an answer, or TOPIC-PARTITION:OFFSET of "
                f"a written record, not {text[:80]!r}"
            )
        return cls(found["topic"], int(found["partition"]), int(found["at"]))

    def __str__(self) -> str:
        where = "" if self.topic is None else f"{self.topic}-"
        return f"{where}{self.partition}:{self.offset}"

    @property
    def is_reached(self) -> Callable[[PartitionPosition], bool]:
        if self.topic is None:
            return lambda position: position.offset >= self.offset
        name = f"{self.topic}-{self.partition}"
        # A record is committed if the committed offset, which is the next to read, is larger.
        return lambda position: position.inputs.get(name, -1) > self.offset


def row_document(row: StoreRow[Any, Any]) -> dict[str, Any]:
    """Convert a row to a JSON document; raise QueryError if it is nested too deeply."""
    try:
        key, value = to_document(row.key), to_document(row.value)
    except SerdeError as error:
        raise QueryError(f"a row of partition {row.partition}: {error}") from error
    return {
        "key": key,
        "value": value,
        "timestamp": row.timestamp,
        "partition": row.partition,
    }
