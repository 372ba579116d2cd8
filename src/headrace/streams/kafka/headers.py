"""Reading and writing of headers, including names that are not UTF-8.

`Message.headers()` of confluent-kafka decodes names strictly, and does not check whether that
worked: the error surfaces in a later call, and the second call returns tuples without a name, which
crash the process. A name that cannot be encoded crashes it in `Producer.produce`. So names are
decoded and encoded here with the error handler ``surrogateescape``, which keeps their bytes.
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
"""Lock held while the interpreter's strict error handler is replaced."""
_keep_bytes = codecs.lookup_error("surrogateescape")

Header = tuple[str, bytes | None]


def read_headers(messages: Iterable[Message]) -> None:
    """Read the headers of messages; later calls of `Message.headers` return the same lists."""
    with _any_names():
        # One C loop: no other code of this thread runs while the handler is replaced.
        deque(map(Message.headers, messages), maxlen=0)


def are_plain(headers: Any) -> bool:
    """Return whether a client can encode these headers itself."""
    for name, _ in headers:  # noqa: SIM110 - a generator takes three times as long
        if not name.isascii():
            return False
    return True


def produce_any(produce: Callable[[list[Header]], None], headers: Sequence[Header]) -> None:
    """Raise UnicodeEncodeError if a name has surrogates that represent no byte."""
    # The client caches the encoded form in the string, so pass a copy.
    copied = [
        (name.encode(errors="surrogateescape").decode(errors="surrogateescape"), value)
        for name, value in headers
    ]
    with _any_names():
        produce(copied)


@contextmanager
def _any_names() -> Iterator[None]:
    """Let this thread's C code decode and encode any bytes, as ``surrogateescape`` does.

    The client passes no error handler, so the interpreter looks up "strict".
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
