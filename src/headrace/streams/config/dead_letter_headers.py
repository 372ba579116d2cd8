"""The headers of a dead letter that describe the error, bounded in bytes.

An error's text may quote the record, so without a bound a letter is larger than its topic takes.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from headrace.topology.context.environment import Headers

HEADER = "__streams.errors."
NODE_HEADER = "headrace.errors.node"
"""Kafka Streams has no header for the node."""
CLASS_MAX = 512
MESSAGE_MAX = 4_096
STACKTRACE_MAX = 32_768
"""How many bytes of each go into a header."""

_LEAST = 64
"""A header that has less room than this is left out."""
_MARK_BYTES = 48
"""More than what says how much is left out."""
_RECORD_BYTES = 128
"""What a record and its batch take besides key, value and headers, rounded up."""
_HEADER_BYTES = 10
"""What the lengths of a header take at most."""
_MOST_NEEDED = (
    *(HEADER + name for name in ("topic", "partition", "offset", "exception", "message")),
    NODE_HEADER,
    HEADER + "stacktrace",
)


def text_of(error: BaseException) -> str:
    """Return an error's text, also where its `__str__` fails."""
    try:
        return str(error)
    except Exception as second:
        return f"(no text: str() of the {type(error).__name__} raised {type(second).__name__})"


def class_of(error: BaseException) -> str:
    """Return the full name of an error's class; built-in ones have no module in front."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def user_error(error: BaseException) -> BaseException:
    """Return what a user's function raised, where an error only reports that one did."""
    while getattr(error, "is_of_function", False) and error.__cause__ is not None:
        error = error.__cause__
    return error


def error_headers(error: Exception, place: Mapping[str, object], node: str) -> Headers:
    """Make the headers that describe an error.

    Args:
        error: what was raised.
        place: topic, partition and offset of the input record; None where there is none.
        node: the node that failed.
    """
    raised = user_error(error)
    about = {
        "exception": _first(class_of(raised), CLASS_MAX),
        "message": _first(text_of(raised), MESSAGE_MAX),
    }
    if error.__traceback__ is not None:  # None: a step said so, and nothing failed
        about["stacktrace"] = _both_ends(_stack_of(error), STACKTRACE_MAX)
    about |= {name: _bytes(str(part)) for name, part in place.items() if part is not None}
    return [*((HEADER + name, data) for name, data in about.items()), (NODE_HEADER, _bytes(node))]


def _stack_of(error: Exception) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as second:  # by what a user's class says of itself
        return f"(no stack trace: {type(second).__name__} while it was formatted)"


def letter_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return how many bytes a letter takes in its topic at most, without compression."""
    parts = len(key or b"") + len(value or b"")
    return _RECORD_BYTES + parts + sum(_size(name, data) for name, data in headers)


def fitted(headers: Headers, room: int) -> Headers:
    """Shorten or leave out headers about errors until all fit; the others stay as they are.

    Args:
        room: how many bytes they may take.
    """
    if sum(_size(name, data) for name, data in headers) <= room:
        return headers
    ranks: dict[int, int] = {}
    seen: set[str] = set()
    for at, (name, _) in reversed(list(enumerate(headers))):
        if name.startswith(HEADER) or name == NODE_HEADER:
            # One of an earlier letter comes after all that are of this one.
            ranks[at] = _rank(name) + (len(_MOST_NEEDED) + 1 if name in seen else 0)
            seen.add(name)
    room -= sum(_size(*header) for at, header in enumerate(headers) if at not in ranks)
    kept: dict[int, bytes | None] = {}
    for at in sorted(ranks, key=ranks.__getitem__):
        name, data = headers[at]
        if _size(name, data) > room:
            left = room - _size(name, None)
            if data is None or left < _LEAST:
                continue
            data = _cut(data, left)
        kept[at] = data
        room -= _size(name, data)
    return [
        (name, kept.get(at, data))
        for at, (name, data) in enumerate(headers)
        if at not in ranks or at in kept
    ]


def _rank(name: str) -> int:
    return _MOST_NEEDED.index(name) if name in _MOST_NEEDED else len(_MOST_NEEDED)


def _size(name: str, data: bytes | None) -> int:
    return _HEADER_BYTES + len(_bytes(name)) + len(data or b"")


def _bytes(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _first(text: str, limit: int) -> bytes:
    data = _bytes(text)
    return data if len(data) <= limit else _cut(data, limit)


def _cut(data: bytes, limit: int) -> bytes:
    kept = _whole(data[: limit - _MARK_BYTES])
    return kept + b" [... %d bytes left out]" % (len(data) - len(kept))


def _both_ends(text: str, limit: int) -> bytes:
    """The frames are at the beginning, and the text of the last error at the end."""
    data = _bytes(text)
    if len(data) <= limit:
        return data
    half = (limit - _MARK_BYTES) // 2
    first, last = _whole(data[:half]), data[-half:].decode(errors="ignore").encode()
    return first + b"\n[... %d bytes left out]\n" % (len(data) - len(first) - len(last)) + last


def _whole(data: bytes) -> bytes:
    """Leave out a character at the end that was cut."""
    return data.decode(errors="ignore").encode()
