"""Loggers of events that look at each event where it has to go.

    structlog is configured, by `headrace run` or by the program      ─► structlog
    it is not                                                         ─► Python's `logging`

What a program says to either is obeyed as soon as it says it: nothing is decided when a logger is
made, and nothing is configured here. To Python's `logging` an event goes under the name of the
module that says it, such as ``headrace.streams.worker.worker``; ``headrace`` is above them all.

Its message has the event and the fields, and each field is an attribute of the record too. An
error given as ``exc_info`` becomes the places where it was raised: its text may quote a record.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

LINES = ("said", "traceback")
"""Fields that are lists of lines."""
Say = Callable[..., Any]
"""Called with an event and its fields."""

_TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event"}
"""What a record of Python's `logging` has of its own."""


class ModuleLog:
    """A logger with fields that go with each of its events (see the module)."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        self._fields = dict(fields or {})

    def bind(self, **fields: Any) -> ModuleLog:
        """Return a logger with more fields.

        Example:
            >>> ModuleLog({"application": "shop"}).bind(task="0_1")
            <ModuleLog application=shop task=0_1>
        """
        return ModuleLog({**self._fields, **fields})

    def __repr__(self) -> str:
        return f"<ModuleLog {_pairs(self._fields)}>"

    @property
    def debug(self) -> Say:
        """Say what only whoever looks for a fault wants to know."""
        return self._sayer("debug")

    @property
    def info(self) -> Say:
        """Say what happened."""
        return self._sayer("info")

    @property
    def warning(self) -> Say:
        """Say what went wrong and was put right."""
        return self._sayer("warning")

    @property
    def error(self) -> Say:
        """Say what stopped something."""
        return self._sayer("error")

    def _sayer(self, level: str) -> Say:
        """What is called then stands in the caller's own frame, as loggers expect it."""
        module = sys._getframe(2).f_globals.get("__name__", "headrace")
        structlog = sys.modules.get("structlog")
        # It takes a fifth of a start to import, and whoever has configured it has done so.
        if (
            structlog is None
            or not hasattr(structlog, "get_config")
            or not structlog.is_configured()
        ):
            return _Standard(module, level, self._fields)
        factory = structlog.get_config()["logger_factory"]
        names = (module,) if isinstance(factory, structlog.stdlib.LoggerFactory) else ()
        bound = structlog.get_logger(*names).bind(**self._fields)
        if hasattr(bound, "_logger"):
            bound._logger = _Forgiving(bound._logger)
        say: Say = getattr(bound, level)
        return say


def get_logger() -> ModuleLog:
    """Return a logger without fields."""
    return ModuleLog()


def places(error: BaseException) -> list[str]:
    """Say where an error was raised, outermost first: file, line and function, no values.

    Example:
        >>> try:
        ...     int("secret")
        ... except ValueError as error:
        ...     print(places(error))
        ['<doctest headrace.state.log.places[0]>:2 <module>']
    """
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def keep_places_only(event: MutableMapping[str, Any]) -> None:
    """Put the places of an error that stands as ``exc_info`` in its stead."""
    given = event.pop("exc_info", None)
    error = sys.exc_info()[1] if given is True else given
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        event["places"] = places(error)


class _Forgiving:
    """A program's own logger, which may have no room to write, or nobody who reads.

    To lose a line must not stop a worker; Python's `logging` forgives by itself.
    """

    __slots__ = ("_logger",)

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        write = getattr(self._logger, name)

        def forgiving(*args: Any, **fields: Any) -> Any:
            with suppress(OSError, ValueError):
                return write(*args, **fields)

        return forgiving if callable(write) else write


class _Standard:
    """Says one event through Python's `logging`."""

    __slots__ = ("_fields", "_level", "_logger")

    def __init__(self, module: str, level: str, fields: Mapping[str, Any]) -> None:
        self._logger = logging.getLogger(module)
        self._level = getattr(logging, level.upper())
        self._fields = fields

    def __call__(self, event: str, /, **fields: Any) -> None:
        if not self._logger.isEnabledFor(self._level):
            return
        found = {**self._fields, **fields}
        keep_places_only(found)
        extra = {f"{name}_" if name in _TAKEN else name: found[name] for name in found}
        message = _message(event, found)
        self._logger.log(self._level, "%s", message, extra={"event": event, **extra}, stacklevel=2)


def _message(event: str, fields: Mapping[str, Any]) -> str:
    """One line, and below it those of fields that are lists of lines."""
    short = {name: value for name, value in fields.items() if name not in LINES}
    first = f"{event} {_pairs(short)}".rstrip()
    below = [f"    {line}" for name in LINES for line in fields.get(name, ())]
    return "\n".join([first, *below])


def _pairs(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_word(value)}" for name, value in fields.items())


def _word(value: object) -> str:
    """A value as it is where it is one word, else quoted, so that an event stays one line."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & {" ", "=", '"'} else repr(text)
