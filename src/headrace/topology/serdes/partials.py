"""Format of partial aggregates in repartition topics.

A task may aggregate records of a key before it writes them to a repartition topic. It then writes a
single record with the headers of the last record, and an additional header: the mark, which
contains the name of the aggregation. The reader of the topic accepts single records and partial
aggregates in any order, so pre-aggregation can be enabled and disabled while records are in the
topic.

The mark is reserved: a header of that name in an input record is not a mark, and is removed before
the repartition topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from headrace.topology.errors import PartialError, RegistryError, SerdeError
from headrace.topology.serdes import long

Headers = Sequence[tuple[str, "bytes | None"]]

MARK = "headrace.partial"
"""Name of the header; its value is the name of the aggregation."""
COUNT = "count"
"""Name of the aggregation whose partial aggregates are numbers of records."""
_OTHERS = (RegistryError, MemoryError)
"""Errors that are not caused by the bytes that are read."""


def marked(headers: Headers | None, call: str) -> Headers:
    """Return the headers of a partial aggregate.

    >>> marked([("trace", b"1")], "count")
    [('trace', b'1'), ('headrace.partial', b'count')]
    """
    return [*unmarked(headers or ()), (MARK, call.encode())]


def unmarked(headers: Headers) -> Headers:
    return [header for header in headers if header[0] != MARK]


def call_of(headers: Headers) -> str | None:
    """Return the name of the aggregation of a partial aggregate; None for a single record."""
    for name, call in headers:
        if name == MARK:
            return "" if call is None else call.decode(errors="replace")
    return None


def refuse_partial(headers: Headers) -> None:
    call = call_of(headers)
    if call is not None:
        raise PartialError(call)


def describe_partial(headers: Headers | None, value: bytes | None) -> str | None:
    """Describe a record of a repartition topic if it is a partial aggregate, else return None.

    >>> describe_partial(marked(None, "count"), write_count(3))
    "a partial aggregate of 'count', of 3 records"
    >>> describe_partial(marked(None, "reduce"), b"12")
    "a partial aggregate of 'reduce', of an unknown number of records"
    """
    call = call_of(headers or ())
    if call is None:
        return None
    many = "an unknown number of records"
    if call == COUNT and value is not None:
        with suppress(SerdeError):
            number = long.deserialize(value)
            many = f"{number} record{'' if number == 1 else 's'}"
    return f"a partial aggregate of {call!r}, of {many}"


def refuse_unread(error: Exception, headers: Headers | None) -> None:
    """Raise for an unreadable partial aggregate: no handler may skip its many records."""
    call = call_of(headers or ())
    if call is None:
        return
    if isinstance(error, (PartialError, *_OTHERS)):
        raise error
    raise PartialError(call) from error


def taker(call: str, read: Callable[[bytes], Any]) -> Take:
    """Return a reader of the repartition topic of an aggregation that supports partial aggregates.

    The reader takes the headers and the value's bytes of a record. It returns the partial
    aggregate, or None for a single record, and the record's headers. It raises `PartialError`
    if the record is a partial aggregate of another aggregation, or damaged.

    >>> take_count(marked(None, "count"), write_count(3)), take_count([("trace", b"1")], b"v")
    ((3, None), (None, [('trace', b'1')]))
    """
    mark_alone = marked(None, call)

    def take(headers: Headers, value: bytes | None) -> tuple[Any, Headers | None]:
        is_alone = headers == mark_alone  # the usual case
        aggregation = call if is_alone else call_of(headers)
        if aggregation is None:
            return None, headers
        if aggregation != call or value is None:
            raise PartialError(aggregation)
        try:
            result = read(value)
        except _OTHERS:
            raise
        except Exception as error:  # a user's serde may raise any exception
            raise PartialError(aggregation) from error
        if result is None:
            raise PartialError(aggregation)
        return result, None if is_alone else unmarked(headers) or None

    return take


Take = Callable[[Headers, "bytes | None"], tuple[Any, "Headers | None"]]
"""Reader of the records of an aggregation's repartition topic; see `taker`."""
take_count = taker(COUNT, long.deserialize)
"""Reader for `count`, whose partial aggregates have a fixed serde."""
write_count = long.serialize
"""Encoder of partial counts."""
