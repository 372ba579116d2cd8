"""What holds while a module is imported for its application.

The application must not run meanwhile, and need not say what a command says for it.
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
    beside: Mapping[str, Any]


_LOADING: ContextVar[_Loading | None] = ContextVar("headrace_loading", default=None)


@contextmanager
def loading_of(target: str, beside: Mapping[str, Any]) -> Iterator[None]:
    """Import for an application of this name.

    Args:
        target: its name.
        beside: the settings that are to be laid over its own.
    """
    token = _LOADING.set(_Loading(target, beside))
    try:
        yield
    finally:
        _LOADING.reset(token)


def loading() -> str | None:
    """The name of the application that a module is being imported for, if one is."""
    found = _LOADING.get()
    return None if found is None else found.target


def completed(own: Mapping[str, Any], required: Iterable[str]) -> Mapping[str, Any]:
    """A program's settings; where it leaves required ones to whoever loads it, with all of his.

    So that all that is wrong with them is said at once.
    """
    found = _LOADING.get()
    beside = {} if found is None else found.beside
    is_left = any(name in beside and name not in own for name in required)
    return over(given_by(own, "the program"), beside) if is_left else own


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
