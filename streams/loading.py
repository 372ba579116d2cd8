"""Whether a module is being imported for its application, which must not run meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headrace.streams.errors import StreamsError

_TARGET: ContextVar[str | None] = ContextVar("headrace_loading", default=None)


@contextmanager
def loading_of(target: str) -> Iterator[None]:
    """Import for an application of this name."""
    token = _TARGET.set(target)
    try:
        yield
    finally:
        _TARGET.reset(token)


def loading() -> str | None:
    """The name of the application that a module is being imported for, if one is."""
    return _TARGET.get()


class ApplicationError(StreamsError):
    """The application that a command names cannot be loaded, or is none.

    Nobody catches it: the name or the code must be corrected first.
    """
