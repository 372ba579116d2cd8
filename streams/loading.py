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


def refuse_while_loading(application_id: str) -> None:
    """Refuse to run an application while a module is imported by a worker or a command.

    Raises:
        ApplicationError: one is.
    """
    target = loading()
    if target is not None:
        raise ApplicationError(
            f"the application {application_id} was told to run while {target} was "
            "imported, by a module that a worker or a command imports; put the call behind: "
            'if __name__ == "__main__":'
        )
