"""Headers of a dead letter that describe the error, with limited size.

An error's text may quote the record, so that without a limit a letter would be too large for its
topic.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from headrace.topology.context.environment import Headers

HEADER = "__streams.errors."
NODE_HEADER = "headrace.errors.node"
"""Name of the node's header; Kafka Streams has no such header."""
CLASS_MAX = 512
MESSAGE_MAX = 4_096
STACKTRACE_MAX = 32_768
"""Size limits of the headers' values, in bytes."""

_LEAST = 64
"""Minimum size of a shortened header; with less space it is omitted."""
_MARK_BYTES = 48
"""Upper bound of the size of a truncation mark."""
_RECORD_BYTES = 128
"""Overhead of a record and its batch in bytes, rounded up."""
_HEADER_BYTES = 10
"""Maximum size of a header's length fields."""
_MOST_NEEDED = (
    *(HEADER + name for name in ("topic", "partition", "offset", "exception", "message")),
    NODE_HEADER,
    HEADER + "stacktrace",
)


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:
        return f"(no text: str() of the {type(error).__name__} raised {type(second).__name__})"


def class_of(error: BaseException) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def user_error(error: BaseException) -> BaseException:
    """Return the error that a user function raised, if the error only wraps it."""
    while getattr(error, "is_of_function", False) and error.__cause__ is not None:
        error = error.__cause__
    return error


def error_headers(error: Exception, origin: Mapping[str, object], node: str) -> Headers:
    """Return an error's headers; `origin` has the input's topic, partition and offset, if known."""
    raised = user_error(error)
    about = {
        "exception": _first(class_of(raised), CLASS_MAX),
        "message": _first(text_of(raised), MESSAGE_MAX),
    }
    if error.__traceback__ is not None:  # None: an operator reports an error without raising it
        about["stacktrace"] = _both_ends(_stack_of(error), STACKTRACE_MAX)
    about |= {name: _bytes(str(part)) for name, part in origin.items() if part is not None}
    return [*((HEADER + name, data) for name, data in about.items()), (NODE_HEADER, _bytes(node))]


def _stack_of(error: Exception) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as second:  # a user's class may raise in its own `__str__`
        return f"(no stack trace: {type(second).__name__} while it was formatted)"


def letter_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the maximum size of a letter in its topic, in bytes, without compression."""
    parts = len(key or b"") + len(value or b"")
    return _RECORD_BYTES + parts + sum(_size(name, data) for name, data in headers)


def fitted(headers: Headers, max_bytes: int) -> Headers:
    """Shorten or omit error headers until all headers fit into `max_bytes`."""
    if sum(_size(name, data) for name, data in headers) <= max_bytes:
        return headers
    ranks: dict[int, int] = {}
    seen: set[str] = set()
    for at, (name, _) in reversed(list(enumerate(headers))):
        if name.startswith(HEADER) or name == NODE_HEADER:
            # Headers of an earlier letter rank below all headers of this letter.
            ranks[at] = _rank(name) + (len(_MOST_NEEDED) + 1 if name in seen else 0)
            seen.add(name)
    max_bytes -= sum(_size(*header) for at, header in enumerate(headers) if at not in ranks)
    shortened: dict[int, bytes | None] = {}
    for at in sorted(ranks, key=ranks.__getitem__):
        name, data = headers[at]
        if _size(name, data) > max_bytes:
            left = max_bytes - _size(name, None)
            if data is None or left < _LEAST:
                continue
            data = _cut(data, left)
        shortened[at] = data
        max_bytes -= _size(name, data)
    return [
        (name, shortened.get(at, data))
        for at, (name, data) in enumerate(headers)
        if at not in ranks or at in shortened
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
    shortened = _whole(data[: limit - _MARK_BYTES])
    return shortened + b" [... %d bytes left out]" % (len(data) - len(shortened))


def _both_ends(text: str, limit: int) -> bytes:
    """Keep both ends: frames are at the beginning, the text of the last error is at the end."""
    data = _bytes(text)
    if len(data) <= limit:
        return data
    half = (limit - _MARK_BYTES) // 2
    first, last = _whole(data[:half]), data[-half:].decode(errors="ignore").encode()
    return first + b"\n[... %d bytes left out]\n" % (len(data) - len(first) - len(last)) + last


def _whole(data: bytes) -> bytes:
    """Remove a truncated character at the end."""
    return data.decode(errors="ignore").encode()
