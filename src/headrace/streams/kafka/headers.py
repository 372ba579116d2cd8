"""Read and write headers safely, also where a name is not UTF-8.

`Message.headers()` of confluent-kafka decodes names strictly, and does not check whether that
worked: the error surfaces in a later call, and the second call returns tuples without a name, which
end the process. A name that cannot be encoded ends it in `Producer.produce`. So names are decoded
and encoded here with the error handler ``surrogateescape``, which keeps their bytes.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

from confluent_kafka import Message

_REPLACING = Lock()
"""Held while the interpreter's strict error handler is replaced."""
_keep_bytes = codecs.lookup_error("surrogateescape")

Header = tuple[str, bytes | None]


def read_headers(messages: Iterable[Message]) -> None:
    """Read the headers of messages; later calls of `Message.headers` return the same lists."""
    with _any_names():
        # One C loop: no other code of this thread runs while the handler is replaced.
        deque(map(Message.headers, messages), maxlen=0)


def are_plain(headers: Any) -> bool:
    """Return whether a client can be given these headers as they are."""
    for name, _ in headers:  # noqa: SIM110 - a generator takes three times as long
        if not name.isascii():
            return False
    return True


def produce_any(produce: Callable[[list[Header]], None], headers: Sequence[Header]) -> None:
    """Call a client's `produce` with headers whose names have any bytes.

    Raises:
        UnicodeEncodeError: a name has surrogates that stand for no byte.
    """
    # The client's encoded form stays in the string, so it gets one of its own.
    copied = [
        (name.encode(errors="surrogateescape").decode(errors="surrogateescape"), value)
        for name, value in headers
    ]
    with _any_names():
        produce(copied)


@contextmanager
def _any_names() -> Iterator[None]:
    """Let this thread's C code decode and encode any bytes, as ``surrogateescape`` does.

    The client names no error handler, for which the interpreter looks up "strict".
    """
    caller = get_ident()

    def handle(error: UnicodeError) -> tuple[str | bytes, int]:
        if get_ident() != caller:
            raise error
        return _keep_bytes(error)

    with _REPLACING:
        strict = codecs.lookup_error("strict")
        codecs.register_error("strict", handle)
        try:
            yield
        finally:
            codecs.register_error("strict", strict)
