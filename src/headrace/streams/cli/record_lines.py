"""Records as lines: parsing of input files, and printing.

A line that is a JSON object with the field ``value``, and no fields except those of a record
(``key``, ``timestamp``, ``headers``, ``partition``; ``topic``, ``offset`` and ``error`` are
ignored), is a record. Each other line is only a value. Printed records can therefore be read again.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NoReturn

import click
import msgspec

from headrace.streams.errors import StreamsError
from headrace.topology.errors import SerdeError
from headrace.topology.serdes import Serde
from headrace.topology.serdes import bytes as bytes_serde
from headrace.topology.serdes import string as string_serde
from headrace.topology.serdes.documents import to_bytes, to_document

STANDARD_INPUT = "-"
_PASSED_OVER = frozenset({"topic", "offset", "error"})
_FIELDS = frozenset({"key", "value", "timestamp", "headers", "partition"}) | _PASSED_OVER
Headers = tuple[tuple[str, bytes | None], ...]


class _ReasonError(Exception):
    """Reason why a line is not a valid record."""


class LineError(StreamsError):
    """Line that is not a valid record of its topic; the message contains the line and the reason.

    Examples:
        >>> print(LineError("orders.jsonl", 17, "is not JSON"))
        orders.jsonl, line 17: is not JSON
    """

    def __init__(self, file: str, number: int, reason: str) -> None:
        super().__init__(f"{file}, line {number}: {reason}")


@dataclass(frozen=True, slots=True)
class LineRecord:
    """Record of a line, serialized.

    Args:
        line: the line number, from 1.
        timestamp: milliseconds since 1970; None if the line has none.
        partition: None if the line has none.
    """

    line: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    partition: int | None = None
    headers: Headers = ()


def read_records(
    lines: Iterable[str], file: str, *, key: Serde[Any], value: Serde[Any]
) -> Iterator[LineRecord]:
    """Yield the records of a file; empty lines are ignored.

    For text values, a line that is not a record is the value itself.

    >>> from headrace import serdes
    >>> lines = ['{"id": 1}', '{"key": "a", "value": {"id": 2}, "timestamp": 5}']
    >>> for record in read_records(lines, "x", key=serdes.string, value=serdes.json):
    ...     print(record.key, record.value, record.timestamp)
    None b'{"id":1}' None
    b'a' b'{"id":2}' 5
    """
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if number == 1:
            text = text.removeprefix("\ufeff")  # byte order mark
        if text.strip():
            try:
                yield _record(text, number, key=key, value=value)
            except _ReasonError as error:
                raise LineError(file, number, str(error)) from error.__cause__


@contextmanager
def opened(file: str) -> Iterator[IO[str]]:
    """Open a file, or standard input for "-"; `read_records` rejects invalid UTF-8."""
    if file == STANDARD_INPUT:
        yield text_of(sys.stdin.buffer)
        return
    try:
        stream = Path(file).open("rb")  # noqa: SIM115
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from error
    with stream:
        yield text_of(stream)


def text_of(stream: IO[bytes]) -> IO[str]:
    return io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape")


def _record(text: str, number: int, *, key: Serde[Any], value: Serde[Any]) -> LineRecord:
    try:
        text.encode()
        document = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeEncodeError as error:
        raise _ReasonError("is not UTF-8. Convert the file") from error
    except RecursionError as error:
        raise _ReasonError("is nested too deeply. Make it flat") from error
    except ValueError as error:
        if value is string_serde:
            return LineRecord(number, None, text.encode())
        raise _ReasonError(f"is not JSON: {error}") from error
    if not _is_record(document):
        content = text if value is string_serde else document
        return LineRecord(number, None, _part(content, value, "value"))
    return LineRecord(
        number,
        _part(document.get("key"), key, "key"),
        _part(document["value"], value, "value"),
        timestamp=_timestamp(document.get("timestamp")),
        partition=_partition(document.get("partition")),
        headers=_headers(document.get("headers")),
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON; write null, or a number")


def _is_record(document: object) -> bool:
    return isinstance(document, dict) and "value" in document and document.keys() <= _FIELDS


def _part(document: Any, serde: Serde[Any], name: str) -> bytes | None:
    if document is None:
        return None
    try:
        return to_bytes(document, serde)
    except RecursionError as error:
        raise _ReasonError(f"the {name} is nested too deeply. Make it flat") from error
    except SerdeError as error:
        raise _ReasonError(
            f"the {name} does not match the topic's serde {serde.name}: {error}; or correct "
            "the line"
        ) from error


def _timestamp(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except ValueError:
        pass
    raise _ReasonError(
        f"timestamp is {value!r}. Write milliseconds since 1970, or a time such as "
        '"2026-01-31T09:00:00Z"'
    )


def _partition(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise _ReasonError(f"partition is {value!r}. Write a number from 0")


def _headers(value: object) -> Headers:
    pairs: Any = value.items() if isinstance(value, dict) else (value or [])
    try:
        return tuple(
            (_header_name(name), None if text is None else _header_bytes(text))
            for name, text in pairs
        )
    except (SerdeError, TypeError, ValueError) as error:
        raise _ReasonError(
            'headers must be an object or pairs such as [["name", "text"]]'
        ) from error


def _header_name(value: object) -> str:
    return _header_bytes(value).decode(errors="surrogateescape")


def _header_bytes(value: object) -> bytes:
    return to_bytes(value if isinstance(value, dict) else str(value), bytes_serde)


def record_line(
    key: object,
    value: object,
    *,
    timestamp: int | None = None,
    partition: int | None = None,
    offset: int | None = None,
    headers: Iterable[tuple[str, bytes | None]] = (),
    more: Mapping[str, object] | None = None,
    error: str | None = None,
) -> str:
    """Format a record as a line of JSON; fields that are None or empty are omitted.

    `more` precedes the key; `error` is why a part could not be deserialized.

    >>> record_line("the", 2, timestamp=5, partition=0)
    '{"key":"the","value":2,"timestamp":5,"partition":0}'
    """
    fields: dict[str, object] = {
        **(more or {}),
    }
    for part, found in (("key", key), ("value", value)):
        try:
            fields[part] = to_document(found)
        except SerdeError as refused:
            fields[part] = None
            error = "; ".join([*filter(None, [error]), f"{part}: {refused}"])
    numbers = {"timestamp": timestamp, "partition": partition, "offset": offset}
    fields |= {name: number for name, number in numbers.items() if number is not None}
    pairs = [
        (to_document(name.encode(errors="surrogateescape")), to_document(data))
        for name, data in headers
    ]
    if pairs:
        fields["headers"] = pairs
    if error is not None:
        fields["error"] = error
    return msgspec.json.encode(fields).decode()
