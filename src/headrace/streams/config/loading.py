"""Context while a module is imported to load its application.

The application must not run during the import, and may omit settings that the command provides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from headrace.streams.config.secrets import over
from headrace.streams.config.settings import given_by
from headrace.streams.errors import StreamsError


@dataclass(frozen=True, slots=True)
class _Loading:
    target: str
    overrides: Mapping[str, Any]


_LOADING: ContextVar[_Loading | None] = ContextVar("headrace_loading", default=None)


@contextmanager
def loading_of(target: str, overrides: Mapping[str, Any]) -> Iterator[None]:
    """Set the application that is being loaded; settings in `overrides` override its own."""
    token = _LOADING.set(_Loading(target, overrides))
    try:
        yield
    finally:
        _LOADING.reset(token)


def loading() -> str | None:
    current = _LOADING.get()
    return None if current is None else current.target


def completed(own: Mapping[str, Any], required: Iterable[str]) -> Mapping[str, Any]:
    """Add the command's settings if any is required, so that all problems are reported together."""
    current = _LOADING.get()
    overrides = {} if current is None else current.overrides
    is_left = any(name in overrides and name not in own for name in required)
    return over(given_by(own, "the program"), overrides) if is_left else own


class ApplicationError(StreamsError):
    """Application that cannot be loaded, or a name that does not refer to an application.

    It is not handled: the name or the code must be corrected first.
    """


def refuse_while_loading(application_id: str) -> None:
    """Raise if a worker or a command is importing a module."""
    target = loading()
    if target is not None:
        raise ApplicationError(
            f"the application {application_id} was started while {target} was imported by a worker "
            'or a command; put the call after: if __name__ == "__main__":'
        )
