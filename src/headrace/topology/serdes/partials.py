"""The form of partial results in repartition topics.

A task may fold records of a key before it writes them to a repartition topic. What it writes then
is one record with the last of their headers, and one header more: the mark, which says what call
the partial result is of. Whoever reads the topic takes single records and partial results as they
come, so that folding ahead can be switched on and off while records are under way.

The mark is reserved: a header of that name that comes with a record from elsewhere is no mark, and
goes no further than to the repartition topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from headrace.topology.errors import PartialError, RegistryError, SerdeError
from headrace.topology.serdes import long

Headers = Sequence[tuple[str, "bytes | None"]]

MARK = "headrace.partial"
"""The name of the header; its value is the word of a fold."""
COUNT = "count"
"""The word of the fold whose partial results are numbers of records."""
_OTHERS = (RegistryError, MemoryError)
"""What says nothing of the bytes that are read."""


def marked(headers: Headers | None, call: str) -> Headers:
    """The headers of a partial result.

    >>> marked([("trace", b"1")], "count")
    [('trace', b'1'), ('headrace.partial', b'count')]
    """
    return [*unmarked(headers or ()), (MARK, call.encode())]


def unmarked(headers: Headers) -> Headers:
    """The same headers without a mark."""
    return [one for one in headers if one[0] != MARK]


def call_of(headers: Headers) -> str | None:
    """What call a record is a partial result of; None where it is none."""
    for name, call in headers:
        if name == MARK:
            return "" if call is None else call.decode(errors="replace")
    return None


def refuse_partial(headers: Headers) -> None:
    """Let no partial result be taken for a record.

    Raises:
        PartialError: the headers are those of one.
    """
    call = call_of(headers)
    if call is not None:
        raise PartialError(call)


def said_of_partial(headers: Headers | None, value: bytes | None) -> str | None:
    """What a record of a repartition topic is said to be if it is a partial result, else None.

    >>> said_of_partial(marked(None, "count"), write_count(3))
    "a partial result of 'count', made of 3 records"
    >>> said_of_partial(marked(None, "reduce"), b"12")
    "a partial result of 'reduce', made of one record or more, nobody knows how many"
    """
    call = call_of(headers or ())
    if call is None:
        return None
    many = "one record or more, nobody knows how many"
    if call == COUNT and value is not None:
        with suppress(SerdeError):
            number = long.deserialize(value)
            many = f"{number} record{'' if number == 1 else 's'}"
    return f"a partial result of {call!r}, made of {many}"


def refuse_unread(error: Exception, headers: Headers | None) -> None:
    """Let no handler decide about a partial result that cannot be read: it is of many records.

    Args:
        error: why a record cannot be read.
        headers: those of the record.

    Raises:
        PartialError: the record is a partial result.
    """
    call = call_of(headers or ())
    if call is None:
        return
    if isinstance(error, (PartialError, *_OTHERS)):
        raise error
    raise PartialError(call) from error


def taker(call: str, read: Callable[[bytes], Any]) -> Take:
    """What reads the records of a repartition topic for a fold that takes partial results.

    Args:
        call: the word of the fold.
        read: makes a partial result of its bytes.

    Returns:
        Takes the headers and the value's bytes of a record; gives the partial result, None where
        the record is a single one, and its headers. It raises `PartialError` where it is a partial
        result of another call, or damaged.

    >>> take_count(marked(None, "count"), write_count(3)), take_count([("trace", b"1")], b"v")
    ((3, None), (None, [('trace', b'1')]))
    """
    mark_alone = marked(None, call)

    def take(headers: Headers, value: bytes | None) -> tuple[Any, Headers | None]:
        is_alone = headers == mark_alone  # as a rule
        found = call if is_alone else call_of(headers)
        if found is None:
            return None, headers
        if found != call or value is None:
            raise PartialError(found)
        try:
            result = read(value)
        except _OTHERS:
            raise
        except Exception as error:  # a serde of the user's own raises what it likes
            raise PartialError(found) from error
        if result is None:
            raise PartialError(found)
        return result, None if is_alone else unmarked(headers) or None

    return take


Take = Callable[[Headers, "bytes | None"], tuple[Any, "Headers | None"]]
"""What reads a record for one fold, see `taker`."""
take_count = taker(COUNT, long.deserialize)
"""The same for a count, whose partial results have a form of their own."""
write_count = long.serialize
"""The bytes of a partial count."""
